//! Every error of a request has one form, and is never reported as an error of the server.

use reqwest::Method;
use tessera_controller::ports::Readiness;

use super::rig::{Rig, problem, true_job};

#[tokio::test(flavor = "multi_thread")]
async fn unknown_routes_and_methods_are_reported_as_problems() {
    let rig = Rig::start().await;

    problem(rig.get("/").await, 404, "not-found").await;
    problem(rig.get("/v1/job").await, 404, "not-found").await;
    problem(rig.get("/v1/jobs/").await, 404, "not-found").await;

    let answer = rig.request(Method::PUT, "/v1/jobs").send().await.unwrap();
    assert_eq!(answer.headers()["allow"], "GET, POST");
    problem(answer, 405, "method-not-allowed").await;
    let answer = rig.request(Method::PUT, "/v1/jobs/42").send().await.unwrap();
    problem(answer, 405, "method-not-allowed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_parameters_are_named() {
    let rig = Rig::start().await;
    for (path, field) in [
        ("/v1/jobs?limit=0", "limit"),
        ("/v1/jobs?limit=1001", "limit"),
        ("/v1/jobs?limit=x", "limit"),
        ("/v1/jobs?state=done", "state"),
        ("/v1/jobs?cursor=12", "cursor"),
        ("/v1/jobs?array=0", "array"),
        ("/v1/jobs?user=%00", "user"),
        ("/v1/jobs/x", "job"),
        ("/v1/jobs/0", "job"),
        ("/v1/jobs/42_", "job"),
        ("/v1/jobs/9223372036854775808", "job"),
        ("/v1/jobs/%00", "job"),
        ("/v1/jobs/%ff", "job"),
        ("/v1/jobs/1/wait?timeout_secs=61", "timeout_secs"),
        ("/v1/jobs/1/wait?timeout_secs=-1", "timeout_secs"),
        ("/v1/jobs/1/logs?stream=both", "stream"),
        ("/v1/jobs/1/logs?follow=maybe", "follow"),
        ("/v1/jobs/1/logs?attempt=0", "attempt"),
        ("/v1/jobs/1/sessions/mine", "session"),
        ("/v1/jobs/1/sessions/main?wait=perhaps", "wait"),
        ("/v1/gpus/a%20b", "gpu"),
        ("/v1/decisions?job=0", "job"),
        ("/v1/decisions?cursor=x", "cursor"),
        ("/v1/decisions/x", "decision"),
        ("/v1/layouts?gpu=a%20b", "gpu"),
        ("/v1/layouts?cursor=l-1-2", "cursor"),
        ("/v1/layouts?cursor=lffffffffffffffffffffffffffffffff-0", "cursor"),
    ] {
        let problem = problem(rig.get(path).await, 400, "bad-field").await;

        assert_eq!(problem.field.as_deref(), Some(field), "{path}: {problem:?}");
        assert!(problem.expected.is_some(), "{path}");
    }
    let unknown = problem(rig.get("/v1/jobs?stat=queued").await, 400, "unknown-field").await;
    assert_eq!(unknown.field.as_deref(), Some("stat"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_there_is_not_is_not_found() {
    let rig = Rig::start().await;
    for path in [
        "/v1/jobs/42",
        "/v1/jobs/42_7",
        "/v1/jobs/9223372036854775807",
        "/v1/jobs/42_4294967295",
        "/v1/jobs/42/events",
        "/v1/jobs/42/explain",
        "/v1/jobs/42/logs",
        "/v1/jobs/42/wait",
        "/v1/jobs/42/sessions/main",
        "/v1/decisions/dec_00000000000000000000000000000007",
    ] {
        problem(rig.get(path).await, 404, "not-found").await;
    }
    problem(rig.post("/v1/jobs/42/cancel").await, 404, "not-found").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_problem_names_the_trace_of_its_request() {
    let rig = Rig::start().await;
    let context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    let answer = rig.request(Method::GET, "/v1/jobs/x").header("traceparent", context).send().await;

    let problem = problem(answer.unwrap(), 400, "bad-field").await;
    assert_eq!(problem.trace_id.as_deref(), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_gone_is_unavailable_and_not_a_fault() {
    let rig = Rig::start().await;
    rig.pool.close().await;

    let answer = rig.get("/v1/jobs").await;

    assert_eq!(answer.headers()["retry-after"], "1");
    problem(answer, 503, "unavailable").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_states_what_is_missing() {
    let rig = Rig::start().await;
    assert_eq!(rig.get("/readyz").await.status(), 200);

    rig.readiness.send_replace(Readiness::NotReady { reason: "another controller leads".into() });

    let unready = problem(rig.get("/readyz").await, 503, "unavailable").await;
    assert_eq!(unready.detail, "another controller leads");
    assert_eq!(rig.get("/healthz").await.status(), 200);

    rig.readiness.send_replace(Readiness::Ready { epoch: 7 });
    rig.pool.close().await;
    let unready = problem(rig.get("/readyz").await, 503, "unavailable").await;
    assert_eq!(unready.detail, "the database does not respond");
    assert_eq!(rig.get("/livez").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_to_a_controller_that_does_not_lead_is_refused_with_the_reason() {
    let mut rig = Rig::start().await;
    drop(rig.submits.take());
    rig.readiness.send_replace(Readiness::NotReady { reason: "another controller leads".into() });

    let problem = problem(rig.submit(&true_job()).await, 503, "unavailable").await;

    assert_eq!(problem.detail, "another controller leads");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_carry_the_headers_that_keep_browsers_out() {
    let rig = Rig::start().await;

    let answer = rig.get("/v1/jobs").await;

    assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
    assert_eq!(answer.headers()["cache-control"], "no-store");
    assert!(answer.headers()["content-security-policy"].to_str().unwrap().contains("'none'"));
    assert!(!answer.headers().contains_key("access-control-allow-origin"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_no_database_can_hold_is_not_found() {
    let rig = Rig::start().await;

    problem(rig.get("/v1/kernels/task?task_key=ada:%20a%00b").await, 404, "not-found").await;
}
