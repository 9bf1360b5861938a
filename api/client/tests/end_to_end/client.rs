//! What the client does when the controller can't answer at once.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::json;
use tessera_api_types::{JobFilter, SubmitRequest};
use tessera_client::{Access, ApiClient, ClientError, RetryPatience, SubmitKey};

use crate::fake::{Answer, Fake, job};

const PATIENCE: RetryPatience = RetryPatience {
    first_pause: Duration::from_millis(20),
    longest_pause: Duration::from_millis(100),
    total: Duration::from_secs(3),
};

fn client(fake: &Fake) -> ApiClient {
    ApiClient::new(&fake.url(), &Access { token: Some("secret"), authority: None }, PATIENCE)
        .unwrap()
}

fn submitted() -> Answer {
    Answer::json(json!({ "job_id": 42, "tasks": 1, "state": "queued" }))
}

#[tokio::test]
async fn a_submit_is_repeated_with_the_same_key_and_body() {
    let fake = Fake::start(|number, _| match number {
        0 | 1 => Answer::problem(503, "not leader yet"),
        _ => submitted(),
    });
    let request = SubmitRequest { command: Some(vec!["true".into()]), ..Default::default() };

    let submitted = client(&fake).submit(&request, &SubmitKey::new_unique()).await.unwrap();

    assert_eq!(submitted.job_id, 42);
    let seen = fake.seen();
    assert_eq!(fake.lines(), ["POST /v1/jobs"; 3]);
    assert!(seen[0].header("idempotency-key").is_some());
    assert_eq!(seen[0].header("idempotency-key"), seen[2].header("idempotency-key"));
    assert_eq!(seen[0].header("authorization"), Some("Bearer secret"));
    assert_eq!(seen[0].body, r#"{"command":["true"]}"#);
    assert_eq!(seen[0].body, seen[2].body);
}

#[expect(clippy::disallowed_methods, reason = "measures real time")]
#[tokio::test]
async fn a_controller_that_names_a_time_is_left_alone_that_long() {
    let fake = Fake::start(|number, _| match number {
        0 => Answer::problem(429, "slowly").header("Retry-After: 1"),
        _ => Answer::json(json!({ "by_state": {}, "total": 0 })),
    });
    let started = Instant::now();

    client(&fake).counts().await.unwrap();

    assert!(started.elapsed() >= Duration::from_secs(1));
    assert_eq!(fake.lines().len(), 2);
}

#[tokio::test]
async fn a_controller_that_starts_meanwhile_is_found() {
    // Nobody else is at this address, so that nobody takes its port meanwhile.
    let reserved = TcpListener::bind("127.0.0.9:0").unwrap().local_addr().unwrap();
    let client =
        ApiClient::new(&format!("http://{reserved}"), &Access::default(), PATIENCE).unwrap();
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        let listener = TcpListener::bind(reserved).unwrap();
        Fake::serve(listener, |_, _| Answer::json(json!({ "by_state": {}, "total": 7 })))
    });

    let counts = client.counts().await.unwrap();

    assert_eq!(counts.total, 7);
    assert_eq!(later.join().unwrap().lines(), ["GET /v1/jobs/summary"]);
}

#[tokio::test]
async fn patience_ends_with_the_last_refusal() {
    let fake = Fake::start(|_, _| Answer::problem(503, "the database is away"));
    let brief = RetryPatience { total: Duration::from_millis(100), ..PATIENCE };

    let refused = client(&fake).with_patience(brief).counts().await.unwrap_err();

    assert_eq!(refused.to_string(), "the database is away");
    assert!((2..=6).contains(&fake.lines().len()), "{:?}", fake.lines());
}

#[tokio::test]
async fn a_refusal_is_final() {
    let fake = Fake::start(|_, _| Answer::problem(404, "there is no job 9"));

    let refused = client(&fake).job("9".parse().unwrap()).await.unwrap_err();

    assert_eq!(refused.status(), Some(404));
    assert_eq!(refused.to_string(), "there is no job 9");
    assert_eq!(fake.lines(), ["GET /v1/jobs/9"]);
}

#[tokio::test]
async fn an_answer_from_something_else_is_reported_as_such() {
    let fake = Fake::start(|_, _| Answer::text("<html>hello</html>"));

    let refused = client(&fake).info().await.unwrap_err();

    assert!(matches!(refused, ClientError::Unexpected { .. }), "{refused}");
    assert!(refused.to_string().contains("<html>hello"), "{refused}");
}

#[tokio::test]
async fn pages_are_put_together() {
    let fake = Fake::start(|number, _| match number {
        0 => {
            Answer::json(json!({ "items": [job(2, "queued", "PD", None)], "next_cursor": "a b&c" }))
        }
        _ => Answer::json(json!({ "items": [job(1, "queued", "PD", None)], "next_cursor": null })),
    });
    let filter = JobFilter { user: Some("ada".into()), ..Default::default() };

    let page = client(&fake).all_jobs(&filter, 10).await.unwrap();

    assert_eq!(page.items.iter().map(|job| job.id).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(page.next_cursor, None);
    let lines = fake.lines();
    assert!(lines[0].contains("user=ada") && lines[0].contains("limit=10"), "{lines:?}");
    assert!(lines[1].contains("cursor=a+b%26c") && lines[1].contains("limit=9"), "{lines:?}");
}

#[test]
fn an_address_that_is_none_is_refused_at_once() {
    for address in ["", "127.0.0.1:7070", "unix://api.sock", "ftp://there"] {
        assert!(ApiClient::new(address, &Access::default(), PATIENCE).is_err(), "{address:?}");
    }
}
