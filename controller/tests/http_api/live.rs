//! Live views of the cluster.

use std::time::{Duration, Instant};

use tessera_control::commands::JobStateChange;
use tessera_controller::principal::Role;
use tessera_model::JobId;
use tessera_model::life::JobState;

use super::rig::{Rig, problem};
use super::seed::Seed;

/// How many live views one user may have.
const SUBSCRIBERS_MAX: usize = 32;

#[tokio::test(flavor = "multi_thread")]
async fn state_changes_are_sent_as_they_happen() {
    let rig = Rig::start().await;
    let mut stream = rig.get("/v1/events").await;
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    assert_eq!(stream.chunk().await.unwrap().unwrap(), ": connected\n\n");

    let moved =
        JobStateChange { job: JobId::from_number(4), attempt: None, state: JobState::Queued };
    rig.job_changes.send([moved].into()).unwrap();

    let event = stream.chunk().await.unwrap().unwrap();
    let text = std::str::from_utf8(&event).unwrap();
    assert!(text.contains("/1\nevent: job\ndata: {"), "{text}");
    assert!(text.contains(r#""job_id":4"#) && text.ends_with("\n\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn users_are_notified_of_their_own_jobs_only() {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.submission(1, 1, None, "ada").await;
    seed.submission(2, 1, None, "bob").await;
    let bob = rig.client_of("bob", Role::User).await;
    let op = rig.client_of("op", Role::Operator).await;
    let listen = async |client: &reqwest::Client| {
        let mut stream = client.get(rig.url("/v1/events")).send().await.unwrap();
        assert_eq!(stream.chunk().await.unwrap().unwrap(), ": connected\n\n");
        stream
    };
    let (mut bobs, mut ops) = (listen(&bob).await, listen(&op).await);

    for job in [1, 2, 1, 99, 2] {
        let job = JobId::from_number(job);
        let moved = JobStateChange { job, attempt: None, state: JobState::Queued };
        rig.job_changes.send([moved].into()).unwrap();
    }

    let receive = async |stream: &mut reqwest::Response, events: usize| {
        let mut text = String::new();
        while text.matches("event: job").count() < events {
            text += std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap();
        }
        text
    };
    assert_eq!(receive(&mut ops, 5).await.matches(r#""job_id":1"#).count(), 2);
    let received = receive(&mut bobs, 2).await;
    assert_eq!(received.matches(r#""job_id":2"#).count(), 2, "{received}");
    assert!(
        !received.contains(r#""job_id":1,"#) && !received.contains(r#""job_id":99"#),
        "{received}"
    );
}

/// Reads from a stream until it has this text; returns everything that was read.
async fn read_until(stream: &mut reqwest::Response, expected: &str) -> String {
    let mut read = String::new();
    while !read.contains(expected) {
        let piece = stream.chunk().await.unwrap().expect("the stream goes on");
        read += std::str::from_utf8(&piece).unwrap();
    }
    read
}

fn change(job: u64, state: JobState) -> JobStateChange {
    JobStateChange { job: JobId::from_number(job), attempt: None, state }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_was_cut_off_gets_what_came_since() {
    let rig = Rig::start().await;
    let mut stream = rig.get("/v1/events").await;
    read_until(&mut stream, "connected").await;
    rig.job_changes.send([change(1, JobState::Queued)].into()).unwrap();
    let first = read_until(&mut stream, "\"job_id\":1").await;
    let id = first.split("id: ").nth(1).unwrap().split('\n').next().unwrap().to_owned();
    drop(stream);
    for job in 2..=3 {
        rig.job_changes.send([change(job, JobState::Running)].into()).unwrap();
    }

    let again = rig.request(reqwest::Method::GET, "/v1/events").header("Last-Event-ID", id);
    let mut again = again.send().await.unwrap();

    let read = read_until(&mut again, "\"job_id\":3").await;
    assert!(read.contains("\"job_id\":2") && !read.contains("\"job_id\":1"), "{read}");
    assert!(!read.contains("missed"), "{read}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_of_another_controller_means_that_changes_were_missed() {
    let rig = Rig::start().await;
    let other = "00000000-0000-0000-0000-0000000000ff/7";

    let stream = rig.request(reqwest::Method::GET, "/v1/events").header("Last-Event-ID", other);
    let mut stream = stream.send().await.unwrap();

    read_until(&mut stream, "event: missed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_leaves_other_changes_out() {
    let rig = Rig::start().await;
    let seed = super::seed::Seed(&rig.pool);
    seed.submission(1, 1, None, "ada").await;
    seed.submission(2, 1, None, "bob").await;
    let mut of_bob = rig.get("/v1/events?user=bob").await;
    let mut ended = rig.get("/v1/events?state=succeeded,failed&jobs=1").await;
    read_until(&mut of_bob, "connected").await;
    read_until(&mut ended, "connected").await;

    for state in [JobState::Running, JobState::Succeeded] {
        rig.job_changes.send([change(1, state)].into()).unwrap();
        rig.job_changes.send([change(2, state)].into()).unwrap();
    }

    let of_bob = read_until(&mut of_bob, "succeeded").await;
    assert!(of_bob.contains("running") && !of_bob.contains("\"job_id\":1"), "{of_bob}");
    let ended = read_until(&mut ended, "succeeded").await;
    assert!(!ended.contains("running") && !ended.contains("\"job_id\":2"), "{ended}");
    problem(rig.get("/v1/events?state=done").await, 400, "bad-field").await;
}

#[expect(
    clippy::disallowed_methods,
    reason = "the deadline for the controller to notice a closed connection"
)]
#[tokio::test(flavor = "multi_thread")]
async fn live_views_are_bounded_and_a_closed_one_frees_its_place() {
    let rig = Rig::start().await;
    let mut listeners = Vec::new();
    for _ in 0..SUBSCRIBERS_MAX {
        listeners.push(rig.get("/v1/events").await);
    }
    problem(rig.get("/v1/events").await, 429, "rate-limited").await;
    let bob = rig.client_of("bob", Role::User).await;
    assert_eq!(bob.get(rig.url("/v1/events")).send().await.unwrap().status(), 200);

    listeners.clear();

    let began = Instant::now();
    while rig.get("/v1/events").await.status() != 200 {
        assert!(began.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
