//! Jobs whose sharing the controller decides (`--share auto`): real agents, shims and kernel queues on the CUDA
//! stand-in, on a node with one GPU whose MIG mode is off.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tessera_api_types::{JobDetail, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, command, script};
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;

/// Timeout for a program that takes some seconds on an idle machine.
const DONE_WITHIN: Duration = Duration::from_secs(90);
const GIB: u64 = 1 << 30;
/// Most rounds until a pair shares.
const ROUNDS: usize = 4;

/// 2 ms of work and 18 ms of pause: light enough to be joined, even by the measurements of a busy machine.
const PAUSES: &str = "iterations 200\nkernel step dur=2ms\nrun step 64x1x1/256x1x1\ngap 18ms\n";
/// Work without a pause.
const WORKS: &str = "iterations 2500\nkernel piece dur=1ms\nrun piece 8x1x1/128x1x1\nsync\n";

/// The driver's stand-in, as `./x build` leaves it.
fn driver() -> PathBuf {
    let folder = programs().path("../stand-in");
    assert!(folder.join("libcuda.so.1").is_file(), "no CUDA stand-in: run ./x build");
    folder.canonicalize().unwrap()
}

/// A program of a user that plays a recording.
fn player(cluster: &Cluster, user: &str, name: &str, priority: u8, steps: &str) -> SubmitRequest {
    let recording = cluster.scratch().join(format!("{name}.player"));
    fs::write(&recording, format!("player 1\nmemory 64MiB\n{steps}")).unwrap();
    let program = programs().path("tessera-sim-player").display().to_string();
    SubmitRequest {
        name: Some(name.to_owned()),
        user: Some(user.to_owned()),
        share: Some("kernel".to_owned()),
        gpu_memory_bytes: Some(4 * GIB),
        priority: Some(priority),
        task_key: Some(name.to_owned()),
        env: [("LD_LIBRARY_PATH".to_owned(), driver().display().to_string())].into(),
        ..command([program, recording.display().to_string()])
    }
}

fn with_share(request: &SubmitRequest, share: &str) -> SubmitRequest {
    SubmitRequest { share: Some(share.to_owned()), ..request.clone() }
}

/// Runs each task once with a kernel queue, which measures how busy it is.
fn measure(cluster: &Cluster, requests: &[&SubmitRequest]) {
    for request in requests {
        let job = cluster.submit(request).job_id;
        cluster.wait_job(job, DONE_WITHIN, "succeeded");
    }
    wait::until(SOON, "the tasks are measured", || {
        let tasks: Value = cluster.call("GET", "/v1/kernels", None).expect(200).json();
        let measured = tasks["items"].as_array()?.iter().filter(|item| item["measured"] == true);
        (measured.count() == requests.len()).then_some(())
    });
}

fn share_of(job: &JobDetail) -> (Option<String>, Option<String>) {
    let attempt = job.attempt_list.last().unwrap();
    (attempt.share.clone(), attempt.slice.clone())
}

/// Returns whether the attempts of two jobs ran at the same time.
fn overlap(one: &JobDetail, other: &JobDetail) -> bool {
    let times = |job: &JobDetail| {
        let attempt = job.attempt_list.last().unwrap();
        (attempt.started_at.unwrap(), attempt.ended_at.unwrap())
    };
    let ((first, first_end), (second, second_end)) = (times(one), times(other));
    first < second_end && second < first_end
}

#[test]
fn only_learned_auto_jobs_of_one_user_end_up_on_one_slice() {
    let cluster = Plan::new().whole_gpu_node("n1", "a100-40gb").start();
    let holder = player(&cluster, "ada", "pauses", 0, PAUSES);
    let filler = player(&cluster, "ada", "works", 7, WORKS);
    let other_user = player(&cluster, "bob", "bobs", 7, WORKS);
    measure(&cluster, &[&holder, &filler, &other_user]);
    // The measurements of a busy machine may show too small a benefit. Then each job has the GPU to itself,
    // and their runs are measured again.
    let shared = (0..ROUNDS).any(|_| pair_shares(&cluster, [&holder, &filler, &other_user]));
    assert!(shared, "in {ROUNDS} rounds no pair shared");
}

/// Queues jobs together, and returns whether the two of one user shared the GPU.
fn pair_shares(cluster: &Cluster, [holder, filler, other_user]: [&SubmitRequest; 3]) -> bool {
    // The GPU stays in use until all of them wait.
    let go = cluster.scratch().join("go");
    let _ = fs::remove_file(&go);
    let blocker = script(&format!("until [ -e {} ]; do sleep 0.05; done", go.display()));
    let blocker = SubmitRequest { user: Some("ada".into()), gpu_whole: true, ..blocker };
    let blocker = cluster.submit(&blocker).job_id;
    wait::until(SOON, "the GPU is in use", || {
        (cluster.job(blocker).job.state == "running").then_some(())
    });

    let others = cluster.submit(&with_share(other_user, "auto")).job_id;
    let alone = cluster.submit(&with_share(filler, "exclusive")).job_id;
    let joins = cluster.submit(&with_share(filler, "auto")).job_id;
    let holds = cluster.submit(&with_share(holder, "auto")).job_id;
    let why = serde_json::to_string(&cluster.explain(others)).unwrap();
    assert!(why.contains("by share = auto it could share, but no job of its user"), "{why}");
    fs::write(&go, "").unwrap();

    let [holds, joins, others, alone] =
        [holds, joins, others, alone].map(|job| cluster.wait_job(job, DONE_WITHIN, "succeeded"));
    let exclusive = Some("exclusive".to_owned());
    for apart in [&others, &alone] {
        assert_eq!(share_of(apart).0, exclusive, "{apart:?}");
        for other in [&holds, &joins] {
            assert!(!overlap(apart, other), "{apart:?}");
        }
    }
    assert!(!overlap(&others, &alone));
    let both = (share_of(&holds).0, share_of(&joins).0);
    if both == (exclusive.clone(), exclusive) {
        assert!(!overlap(&holds, &joins), "each had the GPU to itself");
        return false;
    }
    assert_eq!(both.0, both.1, "{:?}", cluster.explain(holds.job.id));
    // A holder that is measured on a busy machine seems to leave little time, and then MPS promises more.
    let way = match both.0.as_deref() {
        Some("kernel") => "kernel by kernel",
        Some("mps") => "under MPS with",
        other => panic!("{other:?} is no way of sharing: {:?}", cluster.explain(holds.job.id)),
    };
    assert_eq!(share_of(&holds).1, share_of(&joins).1);
    assert!(overlap(&holds, &joins), "both share the GPU");
    let why = serde_json::to_string(&cluster.explain(joins.job.id)).unwrap();
    assert!(why.contains("the slice with job"), "{why}");
    assert!(why.contains(way), "{why}");
    true
}

#[test]
fn a_job_of_an_unknown_task_never_shares_and_the_clusters_default_is_shown() {
    let cluster =
        Plan::new().whole_gpu_node("n1", "a100-40gb").env("TESSERA_SHARE_DEFAULT", "auto").start();
    let info: Value = cluster.call("GET", "/v1/info", None).expect(200).json();
    assert_eq!(info["share_default"], "auto");
    let go = cluster.scratch().join("go");
    let line = format!("until [ -e {} ]; do sleep 0.05; done", go.display());
    let request = SubmitRequest { gpu_memory_bytes: Some(4 * GIB), ..script(&line) };

    let first = cluster.submit(&request);
    assert!(first.remarks.iter().any(|text| text.contains("share-default = auto")), "{first:?}");
    let stated = cluster.submit(&with_share(&request, "exclusive"));
    assert!(stated.remarks.is_empty(), "{stated:?}");
    wait::until(SOON, "the first runs", || {
        (cluster.job(first.job_id).job.state == "running").then_some(())
    });
    let second = cluster.submit(&request).job_id;
    fs::write(&go, "").unwrap();

    let jobs = [first.job_id, stated.job_id, second]
        .map(|job| cluster.wait_job(job, DONE_WITHIN, "succeeded"));
    for job in &jobs {
        assert_eq!(share_of(job).0.as_deref(), Some("exclusive"), "{job:?}");
    }
}
