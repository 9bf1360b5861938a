//! Live views of the cluster.

use std::time::{Duration, Instant};

use tessera_control::commands::JobStateChange;
use tessera_controller::principal::Role;
use tessera_model::JobId;
use tessera_model::life::JobState;

use super::rig::{Rig, problem};

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
    rig.job_changes.send(moved).unwrap();

    let event = stream.chunk().await.unwrap().unwrap();
    let text = std::str::from_utf8(&event).unwrap();
    assert!(text.starts_with("event: job\ndata: {"), "{text}");
    assert!(text.contains(r#""job_id":4"#) && text.ends_with("\n\n"), "{text}");
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
