//! Administrative overrides: names of GPUs, names of operators, and refusals.

use reqwest::Method;
use serde_json::{Value, json};
use tessera_api_types::{GpuDetails, OperatorResult};
use tessera_control::commands::operator::{
    OperatorCommand, OperatorOutcome, OperatorRefusal, OverrideKind, OverrideScope, RefusalKind,
};
use tessera_controller::ports::ToPlacer;

use super::cluster::node;
use super::rig::{Rig, problem};

const ALPHA: &str = "GPU-aaaa1111-0000-0000-0000-000000000000";
const BETA: &str = "GPU-aaaa2222-0000-0000-0000-000000000000";

/// Answers as a placer with two GPUs whose UUIDs begin alike.
fn placer(rig: &mut Rig) {
    rig.answer_placer(|question| match question {
        ToPlacer::DescribeNodes { reply } => {
            reply.send(vec![node("node-1", ALPHA), node("node-2", BETA)]).unwrap();
        }
        ToPlacer::Operate { command: order, reply } => {
            let answer = match order {
                OperatorCommand::SetOverride {
                    kind: OverrideKind::Drained,
                    on: OverrideScope::Gpu(gpu),
                    by,
                    ..
                } => {
                    assert_eq!((gpu.as_str(), by.as_str()), (ALPHA, "ada"));
                    Ok(OperatorOutcome::OverrideApplied { changed: true })
                }
                OperatorCommand::SetOverride { .. }
                | OperatorCommand::ClearOverride { .. }
                | OperatorCommand::SetMigMode { .. } => {
                    Ok(OperatorOutcome::OverrideApplied { changed: false })
                }
                OperatorCommand::ApplyLayout(_) => Err(OperatorRefusal {
                    kind: RefusalKind::InTheWay,
                    problem: "3g.20gb@4 is in use by job 17".to_owned(),
                    expected: Some("a layout that keeps 3g.20gb@4".to_owned()),
                }),
            };
            reply.send(Ok(answer)).unwrap();
        }
        other => panic!("{other:?}"),
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_has_several_names_and_an_unclear_name_is_refused_with_the_candidates() {
    let mut rig = Rig::start().await;
    placer(&mut rig);

    for name in [ALPHA, "node-1:0", "GPU-aaaa1", "aaaa11", "AAAA1111"] {
        let found: GpuDetails =
            rig.get(&format!("/v1/gpus/{name}/layout")).await.json().await.unwrap();
        assert_eq!(found.id, ALPHA, "{name}");
    }
    let unclear = problem(rig.get("/v1/gpus/aaaa").await, 400, "bad-field").await;
    assert!(unclear.detail.contains("node-1:0") && unclear.detail.contains("node-2:0"));
    let no_such = problem(rig.get("/v1/gpus/node-1:3").await, 404, "not-found").await;
    assert!(no_such.detail.contains("that node has node-1:0"), "{}", no_such.detail);
    let unknown = problem(rig.get("/v1/gpus/zzz").await, 404, "not-found").await;
    assert!(unknown.detail.contains("node-1:0, node-2:0"), "{}", unknown.detail);
    let unknown = problem(rig.get("/v1/nodes/node-9").await, 404, "not-found").await;
    assert!(unknown.detail.contains("node-1, node-2"), "{}", unknown.detail);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_needs_a_name_and_a_refusal_states_what_is_expected() {
    let mut rig = Rig::start().await;
    placer(&mut rig);
    let post = async |path: &str, body: Value| {
        rig.request(Method::POST, path).json(&body).send().await.unwrap()
    };

    let reported = post("/v1/gpus/node-1:0/drain", json!({ "by": "ada", "reason": "dust" })).await;
    assert!(reported.json::<OperatorResult>().await.unwrap().changed);
    let again = post("/v1/nodes/node-1/drain", json!({ "by": "ada" })).await;
    assert!(!again.json::<OperatorResult>().await.unwrap().changed);

    for (path, body, field) in [
        ("/v1/nodes/node-1/drain", json!({ "by": " " }), "by"),
        ("/v1/nodes/node-1/drain", json!({ "by": "ada", "reason": "a\nb" }), "reason"),
        ("/v1/gpus/node-1:0/drain", json!({ "by": "ada", "slice": "4" }), "slice"),
        ("/v1/gpus/node-1:0/quarantine", json!({ "by": "ada", "slice": "x" }), "slice"),
        ("/v1/gpus/node-1:0/layout", json!({ "by": "ada", "layout": "4" }), "layout"),
    ] {
        let refused = problem(post(path, body.clone()).await, 400, "bad-field").await;
        assert_eq!(refused.field.as_deref(), Some(field), "{path} {body}");
    }
    let body = json!({ "by": "ada", "layout": "7g.40gb" });
    let busy = problem(post("/v1/gpus/node-1:0/layout", body).await, 409, "conflict").await;
    assert_eq!(busy.detail, "3g.20gb@4 is in use by job 17");
    assert_eq!(busy.expected.as_deref(), Some("a layout that keeps 3g.20gb@4"));
}
