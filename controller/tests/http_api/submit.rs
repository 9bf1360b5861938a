//! Submits: what is accepted, what is refused, and what reaches the writer.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use tessera_api_types::SubmitResponse;
use tessera_controller::ports::ClusterShape;
use tessera_controller::requests::{AcceptedSubmission, RequestError};
use tessera_model::mig::catalog;
use tessera_model::{Bytes, JobId};
use tessera_placement::{ClusterView, GpuView, MigView};

use super::rig::{Rig, SUBMITS_QUEUED, problem, true_job};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_accepted_with_its_place() {
    let mut rig = Rig::start().await;
    let mut taken = rig.accept_submits();

    let answer = rig.submit(&json!({ "command": ["/bin/true"], "hold": true })).await;

    assert_eq!(answer.status(), 201);
    assert_eq!(answer.headers()["location"], "/v1/jobs/1");
    assert!(!answer.headers().contains_key("idempotency-replayed"));
    let submitted: SubmitResponse = answer.json().await.unwrap();
    assert_eq!(
        submitted,
        SubmitResponse {
            job_id: 1,
            tasks: 1,
            state: "held".into(),
            remarks: Vec::new(),
            deadline: None
        }
    );
    let submission = taken.recv().await.unwrap();
    assert!(submission.hold);
    assert_eq!(submission.array_first, None);
    assert_eq!(submission.spec.name, "true");
    assert!(tessera_telemetry::context::is_traceparent(&submission.traceparent.unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_array_is_one_submit() {
    let mut rig = Rig::start().await;
    let mut taken = rig.accept_submits();

    let answer =
        rig.submit(&json!({ "command": ["a"], "array": { "first": 3, "last": 12 } })).await;

    assert_eq!(answer.json::<SubmitResponse>().await.unwrap().tasks, 10);
    let submission = taken.recv().await.unwrap();
    assert_eq!((submission.tasks, submission.array_first), (10, Some(3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clients_trace_goes_on() {
    let mut rig = Rig::start().await;
    let mut taken = rig.accept_submits();
    let context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    for header in [context, "nonsense"] {
        let requested = rig.request(Method::POST, "/v1/jobs").header("traceparent", header);
        assert_eq!(requested.json(&true_job()).send().await.unwrap().status(), 201);
    }

    assert_eq!(taken.recv().await.unwrap().traceparent.as_deref(), Some(context));
    assert_ne!(taken.recv().await.unwrap().traceparent.as_deref(), Some("nonsense"));
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_break_a_rule_are_refused_with_the_field() {
    let rig = Rig::start().await;
    for (body, kind, field) in [
        (json!({}), "bad-field", Some("script")),
        (json!({ "command": ["a"], "priority": 10 }), "bad-field", Some("priority")),
        (json!({ "command": ["a"], "priority": 256 }), "bad-field", Some("priority")),
        (json!({ "command": ["a"], "priority": 1.5 }), "bad-field", Some("priority")),
        (json!({ "command": ["a"], "gpus": 1 }), "unknown-field", Some("gpus")),
        (
            json!({ "command": ["a"], "array": { "first": 2, "last": 1 } }),
            "bad-field",
            Some("array"),
        ),
        (
            json!({ "command": ["a"], "array": { "first": 0, "last": 10_000 } }),
            "bad-field",
            Some("array"),
        ),
        (json!({ "command": ["a"], "name": "a\nb" }), "bad-field", Some("name")),
        (json!(["a"]), "bad-json", None),
    ] {
        let problem = problem(rig.submit(&body).await, 400, kind).await;

        assert_eq!(problem.field.as_deref(), field, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nul_in_a_name_never_reaches_the_database() {
    let mut rig = Rig::start().await;
    let mut taken = rig.accept_submits();

    for field in ["name", "user", "task_key"] {
        let body = json!({ "command": ["a"], field: "a\u{0}b" });
        problem(rig.submit(&body).await, 400, "bad-field").await;
    }

    assert!(taken.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_json_is_taken_and_not_too_much_of_it() {
    let rig = Rig::start().await;
    let post = || rig.request(Method::POST, "/v1/jobs");

    let bare = post().body("{}").send().await.unwrap();
    problem(bare, 415, "unsupported-media-type").await;
    let text = post().header("content-type", "text/plain").body("{}").send().await.unwrap();
    problem(text, 415, "unsupported-media-type").await;
    let broken = post().header("content-type", "application/json; charset=utf-8").body("{");
    problem(broken.send().await.unwrap(), 400, "bad-json").await;
    let large = post().header("content-type", "application/json").body(vec![b' '; (1 << 20) + 1]);
    problem(large.send().await.unwrap(), 413, "too-large").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_unknown_length_is_cut_off_at_the_limit() {
    let rig = Rig::start().await;
    let pieces = (0..40).map(|_| Ok::<_, std::io::Error>(vec![b' '; 32 * 1024]));
    let body = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));

    let requested =
        rig.request(Method::POST, "/v1/jobs").header("content-type", "application/json");

    problem(requested.body(body).send().await.unwrap(), 413, "too-large").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_goes_to_the_writer_with_the_bodys_hash() {
    let mut rig = Rig::start().await;
    let mut taken = rig.answer_submits(|number, submission| {
        Ok(AcceptedSubmission {
            job: JobId::from_number(9),
            tasks: submission.tasks,
            replayed: number > 1,
        })
    });
    let submit = async |key: &str| {
        let requested = rig.request(Method::POST, "/v1/jobs").header("idempotency-key", key);
        requested.json(&true_job()).send().await.unwrap()
    };

    let first = submit("k-1").await;
    let second = submit("k-1").await;

    assert!(!first.headers().contains_key("idempotency-replayed"));
    assert_eq!(second.headers()["idempotency-replayed"], "true");
    let (one, two) = (taken.recv().await.unwrap(), taken.recv().await.unwrap());
    assert_eq!(one.idempotency.as_ref().unwrap().key, "k-1");
    assert_eq!(one.idempotency, two.idempotency);
    for bad in ["", &"k".repeat(256), "\u{e4}"] {
        let problem = problem(submit(bad).await, 400, "bad-field").await;
        assert_eq!(problem.field.as_deref(), Some("Idempotency-Key"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_writer_refuses_is_reported() {
    let mut rig = Rig::start().await;
    let _taken = rig.answer_submits(|number, _| {
        Err(match number {
            1 => RequestError::KeyReused,
            2 => RequestError::Overloaded,
            _ => RequestError::Unavailable { reason: "the database doesn't answer".into() },
        })
    });

    problem(rig.submit(&true_job()).await, 422, "key-reused").await;
    problem(rig.submit(&true_job()).await, 503, "overloaded").await;
    problem(rig.submit(&true_job()).await, 503, "unavailable").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_submits_than_fit_are_turned_away_at_once() {
    let rig = Rig::start().await;
    // Nobody takes any out of the writer's mailbox.
    let waiting: Vec<_> = (0..SUBMITS_QUEUED)
        .map(|_| {
            let requested = rig.request(Method::POST, "/v1/jobs").json(&true_job());
            tokio::spawn(requested.send())
        })
        .collect();
    let refused = loop {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let requested = rig.request(Method::POST, "/v1/jobs").json(&true_job());
        // Without an answer it was among the first itself: the mailbox was not full yet.
        if let Ok(answer) = tokio::time::timeout(Duration::from_millis(500), requested.send()).await
        {
            break answer.unwrap();
        }
    };

    assert_eq!(refused.headers()["retry-after"], "1");
    problem(refused, 503, "overloaded").await;
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// One A100 with 40 GB, cut into slices.
fn a100() -> ClusterShape {
    let model = &catalog::models()["a100-40gb"];
    let gpu = GpuView {
        id: "GPU-1".parse().unwrap(),
        node: "node-1".parse().unwrap(),
        index: 0,
        model: "NVIDIA A100-SXM4-40GB".into(),
        memory: model.memory.unwrap_or(Bytes::from_mib(40_960)),
        sms: model.sms,
        mps: false,
        kernel: false,
        mig: Some(Arc::new(MigView::new(model.geometry()).unwrap())),
        available: false,
        changing: false,
        instances: Vec::new(),
        operator: tessera_placement::AdminOverride::default(),
        part: 0,
    };
    let view = ClusterView::from(vec![gpu]);
    let largest = tessera_placement::largest_possible(&view);
    ClusterShape { view, known: true, largest }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_gpu_could_ever_hold_is_refused_with_what_would_be_possible() {
    let mut rig = Rig::start().await;
    let _taken = rig.accept_submits();
    let huge = json!({ "command": ["a"], "gpu_memory_bytes": 1_u64 << 40 });
    // Nothing can be called impossible before anything was seen.
    assert_eq!(rig.submit(&huge).await.status(), 201);
    rig.shape.send_replace(Arc::new(a100()));

    let refused = problem(rig.submit(&huge).await, 422, "impossible-request").await;

    assert_eq!(refused.field.as_deref(), Some("gpu_memory_bytes"));
    assert!(refused.expected.as_ref().unwrap().contains("7g.40gb"), "{refused:?}");
    assert!(refused.expected.unwrap().contains("allow_pending"));
    let odd = json!({ "command": ["a"], "gpu_profile": "1g.12gb" });
    let refused = problem(rig.submit(&odd).await, 422, "impossible-request").await;
    assert_eq!(refused.field.as_deref(), Some("gpu_profile"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_may_wait_for_hardware_that_is_not_there() {
    let mut rig = Rig::start().await;
    let _taken = rig.accept_submits();
    rig.shape.send_replace(Arc::new(a100()));

    let patient =
        json!({ "command": ["a"], "gpu_memory_bytes": 1_u64 << 40, "allow_pending": true });

    assert_eq!(rig.submit(&patient).await.status(), 201);
    // Its only GPU is away for now: that is no reason either.
    let modest = json!({ "command": ["a"], "gpu_profile": "7g.40gb" });
    assert_eq!(rig.submit(&modest).await.status(), 201);
}
