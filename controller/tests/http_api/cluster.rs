//! Nodes, GPUs, the controller itself, and the metrics.

use reqwest::Method;
use serde_json::json;
use tessera_api_types::{
    ClusterInfo, FaultView, GpuDetails, GpuListing, InstanceDetails, NodeDetails, NodeListing,
};
use tessera_control::commands::operator::{
    OperatorCommand, OperatorOutcome, OperatorRefusal, RefusalKind,
};
use tessera_controller::ports::ToPlacer;
use tessera_frames::cluster::SliceFigures;
use tessera_model::mig::{ProfileId, Slot};
use tessera_model::{AttemptId, Bytes};

use super::rig::{Rig, problem, true_job};
use super::seed::Seed;
use super::series::figures;

pub fn node(name: &str, gpu: &str) -> NodeDetails {
    let instance = InstanceDetails {
        profile: "1g.5gb".into(),
        start: 0,
        size: 1,
        slice: Some("MIG-1".into()),
        memory_bytes: 5 << 30,
        sms: Some(14),
        state: "idle".into(),
        trouble: None,
        quarantined: None,
        job_id: None,
        job_name: None,
        sharers: Vec::new(),
        parts: Vec::new(),
    };
    NodeDetails {
        name: name.into(),
        id: "node_1".into(),
        state: "available".into(),
        agent_version: "0.1.0".into(),
        cores: 8,
        memory_bytes: 1 << 30,
        mps: true,
        isolation_gaps: Some(vec!["memory_limit".to_owned()]),
        generation: 1,
        last_seen_at: None,
        quarantined: None,
        drained: None,
        gpus: vec![GpuDetails {
            id: gpu.into(),
            node: name.into(),
            index: 0,
            model: "NVIDIA A100-SXM4-40GB".into(),
            memory_bytes: 40 << 30,
            health: "healthy".into(),
            health_text: None,
            mig: "on".into(),
            memory_slices: 8,
            changing: false,
            drained: None,
            quarantined: None,
            pinned: None,
            faults: Vec::new(),
            reachability: Some(9),
            instances: vec![instance],
            profiles: Vec::new(),
        }],
    }
}

fn two_nodes(rig: &mut Rig) {
    rig.answer_placer(|question| match question {
        ToPlacer::DescribeNodes { reply } => {
            reply.send(vec![node("node-1", "GPU-1"), node("node-2", "GPU-2")]).unwrap();
        }
        ToPlacer::Operate { command: OperatorCommand::SetMigMode { gpu, on }, reply } => {
            let answer = match on && gpu.as_str() == "GPU-1" {
                true => Ok(OperatorOutcome::MigModeSet),
                false => Err(OperatorRefusal {
                    kind: RefusalKind::InTheWay,
                    problem: "attempts run on this GPU".to_owned(),
                    expected: None,
                }),
            };
            reply.send(Ok(answer)).unwrap();
        }
        other => panic!("{other:?}"),
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_and_gpus_are_listed_and_found() {
    let mut rig = Rig::start().await;
    two_nodes(&mut rig);

    let nodes: NodeListing = rig.get("/v1/nodes").await.json().await.unwrap();
    let gpus: GpuListing = rig.get("/v1/gpus").await.json().await.unwrap();
    let info: ClusterInfo = rig.get("/v1/info").await.json().await.unwrap();

    assert_eq!(nodes.items.len(), 2);
    assert_eq!(gpus.items.len(), 2);
    assert_eq!((info.gpus, info.nodes["available"], info.epoch), (2, 2, 7));
    assert_eq!(info.policy, "scheme-b");
    let found: NodeDetails = rig.get("/v1/nodes/node-2").await.json().await.unwrap();
    assert_eq!(found, nodes.items[1]);
    let found: GpuDetails = rig.get("/v1/gpus/GPU-2").await.json().await.unwrap();
    assert_eq!(found, gpus.items[1]);
    problem(rig.get("/v1/nodes/node-3").await, 404, "not-found").await;
    problem(rig.get("/v1/gpus/GPU-3").await, 404, "not-found").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mig_mode_is_switched_by_an_explicit_word_only() {
    let mut rig = Rig::start().await;
    two_nodes(&mut rig);
    let switch = async |gpu: &str, body| {
        let path = format!("/v1/gpus/{gpu}/mig-mode");
        rig.request(Method::POST, &path).json(&body).send().await.unwrap()
    };

    assert_eq!(switch("GPU-1", json!({ "on": true })).await.status(), 204);
    let lost = problem(switch("GPU-2", json!({ "on": true })).await, 409, "conflict").await;
    assert_eq!(lost.detail, "attempts run on this GPU", "what the node answered");
    problem(switch("GPU-3", json!({ "on": true })).await, 404, "not-found").await;
    problem(switch("GPU-1", json!({})).await, 400, "bad-field").await;
    problem(switch("GPU-1", json!({ "on": 1 })).await, 400, "bad-field").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_report_jobs_nodes_instances_and_requests() {
    let mut rig = Rig::start().await;
    rig.answer_placer(|question| match question {
        ToPlacer::DescribeNodes { reply } => {
            let mut first = node("node-1", "GPU-1");
            first.gpus[0].faults =
                vec![fault("xid 79", 2), fault("silence", 1), fault("xid 79", 1)];
            reply.send(vec![first, node("node-2", "GPU-2")]).unwrap();
        }
        other => panic!("{other:?}"),
    });
    let attempt = AttemptId::from_uuid(uuid::Uuid::from_u128(1));
    let mut reported = figures("GPU-1", 60, attempt);
    reported.slices = vec![SliceFigures {
        slot: Slot { profile: ProfileId(19), start: 3 },
        memory_used: Some(Bytes::from_mib(5)),
        activity: Some(125),
    }];
    rig.figures.show(&"node-1".parse().unwrap(), reported);
    let mut unreported = figures("GPU-2", 60, attempt);
    (unreported.power_mw, unreported.memory_used, unreported.activity) = (None, None, None);
    rig.figures.show(&"node-2".parse().unwrap(), unreported);
    let _taken = rig.accept_submits();
    Seed(&rig.pool).submission(1, 3, Some(0), "ada").await;
    assert_eq!(rig.submit(&true_job()).await.status(), 201);
    rig.get("/v1/jobs/7").await;

    let text = rig.get("/metrics").await.text().await.unwrap();

    for line in [
        concat!("tessera_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        "tessera_agent_up{node=\"node-1\"} 1",
        "tessera_mig_instances{gpu=\"GPU-1\",profile=\"1g.5gb\",state=\"idle\"} 1",
        "tessera_http_requests_total{method=\"POST\",route=\"/v1/jobs\",status=\"201\"}",
        "tessera_http_requests_total{method=\"GET\",route=\"/v1/jobs/{job}\",status=\"404\"}",
        "tessera_http_request_seconds_bucket",
        "tessera_submits_total",
        "tessera_jobs{state=\"queued\"}",
        "tessera_jobs{state=\"timed_out\"}",
        "tessera_gpu_faults{cause=\"xid 79\",gpu=\"GPU-1\"} 3",
        "tessera_gpu_faults{cause=\"silence\",gpu=\"GPU-1\"} 1",
        "tessera_gpu_memory_used_bytes{gpu=\"GPU-1\",node=\"node-1\"} 1048576000",
        "tessera_gpu_power_watts{gpu=\"GPU-1\",node=\"node-1\"} 100",
        "tessera_gpu_activity_ratio{gpu=\"GPU-1\",node=\"node-1\"} 0.5",
        "tessera_gpu_energy_joules_total{bearer=\"jobs\",gpu=\"GPU-1\",node=\"node-1\"} 2400",
        "tessera_gpu_energy_joules_total{bearer=\"other\",gpu=\"GPU-1\",node=\"node-1\"} 600",
        "tessera_gpu_energy_joules_total{bearer=\"idle\",gpu=\"GPU-1\",node=\"node-1\"} 3000",
        "tessera_slice_memory_used_bytes{gpu=\"GPU-1\",node=\"node-1\",start=\"3\"} 5242880",
        "tessera_slice_activity_ratio{gpu=\"GPU-1\",node=\"node-1\",start=\"3\"} 0.125",
        "tessera_gpu_energy_joules_total{bearer=\"jobs\",gpu=\"GPU-2\",node=\"node-2\"} 2400",
    ] {
        assert!(text.contains(line), "{line} is missing from\n{text}");
    }
    // What a driver doesn't report is left out; it is not zero.
    for name in ["power_watts", "memory_used_bytes", "activity_ratio"] {
        let unreported = format!("tessera_gpu_{name}{{gpu=\"GPU-2\"");
        assert!(!text.contains(&unreported), "{unreported}");
    }
}

fn fault(cause: &str, times: u32) -> FaultView {
    FaultView {
        at: time::OffsetDateTime::UNIX_EPOCH,
        cause: cause.into(),
        start: None,
        attempts: Vec::new(),
        action: "record".into(),
        times,
        text: "it happened".into(),
    }
}
