//! Outputs, with the node played by the test.

use std::time::Duration;

use reqwest::Method;
use tessera_control::commands::JobStateChange;
use tessera_controller::ports::ToPlacer;
use tessera_frames::cluster::{LogReply, LogStream};
use tessera_model::JobId;
use tessera_model::life::JobState;
use tokio::sync::mpsc;

use super::rig::{Rig, problem};
use super::seed::Seed;

fn chunk(text: &str) -> LogReply {
    LogReply::Chunk { offset: 0, bytes: text.as_bytes().to_vec() }
}

/// Plays a node that answers every request with these pieces, then hangs up.
fn node_replies(rig: &mut Rig, pieces: Vec<LogReply>) {
    rig.answer_placer(move |question| {
        let ToPlacer::OpenLog { request, reply, .. } = question else { panic!("{question:?}") };
        assert_eq!(request.stream, LogStream::Stderr);
        assert_eq!(request.offset, 5);
        let (say, said) = mpsc::channel(8);
        reply.send(Some(said)).unwrap();
        let pieces = pieces.clone();
        tokio::spawn(async move {
            for piece in pieces {
                say.send(piece).await.unwrap();
            }
        });
    });
}

const PATH: &str = "/v1/jobs/1/logs?stream=stderr&offset=5";

async fn running_job() -> Rig {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.node().await;
    seed.submission(1, 1, None, "ada").await;
    seed.running(1, 1).await;
    rig
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_comes_whole() {
    let mut rig = running_job().await;
    node_replies(&mut rig, vec![chunk("one\n"), chunk("two\n"), LogReply::End { length: 13 }]);

    let answer = rig.get(PATH).await;

    assert_eq!(answer.headers()["content-type"], "text/plain; charset=utf-8");
    assert_eq!(answer.headers()["tessera-attempt"], "1");
    assert_eq!(answer.text().await.unwrap(), "one\ntwo\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_breaks_off_is_not_taken_for_a_whole_one() {
    let mut rig = running_job().await;
    node_replies(&mut rig, vec![chunk("one\n")]);

    let answer = rig.request(Method::GET, PATH).send().await;

    // The break may come before the head of the answer was sent, or after it.
    let whole = match answer {
        Ok(answer) => answer.text().await,
        Err(broken) => Err(broken),
    };
    assert!(whole.is_err(), "{whole:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_the_node_does_not_have_is_not_found() {
    let mut rig = running_job().await;
    node_replies(&mut rig, vec![LogReply::Unknown { reason: "it was removed".into() }]);

    let problem = problem(rig.get(PATH).await, 404, "not-found").await;

    assert!(problem.detail.contains("it was removed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_away_is_named() {
    let mut rig = running_job().await;
    rig.answer_placer(|question| {
        let ToPlacer::OpenLog { reply, .. } = question else { panic!("{question:?}") };
        reply.send(None).unwrap();
    });

    let problem = problem(rig.get(PATH).await, 503, "unavailable").await;

    assert!(problem.detail.contains("node-1"), "{problem:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_has_not_run_has_no_output_yet() {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.submission(1, 1, None, "ada").await;

    problem(rig.get("/v1/jobs/1/logs").await, 409, "wrong-state").await;
    problem(rig.get("/v1/jobs/1/logs?attempt=2").await, 409, "wrong-state").await;
    seed.state(1, "cancelled").await;
    problem(rig.get("/v1/jobs/1/logs?follow=true").await, 404, "not-found").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn following_waits_for_the_start() {
    let mut rig = Rig::start().await;
    Seed(&rig.pool).node().await;
    Seed(&rig.pool).submission(1, 1, None, "ada").await;
    node_replies(&mut rig, vec![chunk("hello\n"), LogReply::End { length: 11 }]);
    let requested = tokio::spawn(rig.request(Method::GET, &format!("{PATH}&follow=true")).send());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!requested.is_finished());

    Seed(&rig.pool).running(1, 1).await;
    let moved =
        JobStateChange { job: JobId::from_number(1), attempt: None, state: JobState::Running };
    rig.job_changes.send([moved].into()).unwrap();

    assert_eq!(requested.await.unwrap().unwrap().text().await.unwrap(), "hello\n");
}
