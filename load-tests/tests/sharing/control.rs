//! The agent with control programs that differ: an older driver's, one whose server can't start,
//! NVIDIA's own without a GPU, and none at all.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;

use crate::rig::{Rig, SERVES_AGAIN};

/// A server that can't start is reported before the agent's timeout (30 s).
const REPORTED_WITHIN: Duration = Duration::from_secs(15);

#[test]
fn a_driver_that_reports_no_status_and_writes_no_pid_is_served_as_well() {
    let mut rig = Rig::new();
    rig.faults("release=535\npoison_percent=100\n");
    let neighbour = rig.client("neighbour");
    let deaf = SubmitRequest { grace_secs: Some(1), ..rig.request("deaf", "") };
    let text = deaf.script.clone().unwrap().replace("exec ", "trap '' TERM\nexec ");
    let deaf = rig.serving(rig.submit(&SubmitRequest { script: Some(text), ..deaf }));
    let daemons = rig.daemons();
    assert_eq!(daemons.len(), 1);

    // A later agent adopts it, which has to find the daemon without its file.
    rig.cluster.agents[0].kill();
    rig.cluster.agents[0].start();
    rig.cluster.wait_ready();
    // Killing it without terminate_client would break the co-runner: the agent understands the command's
    // answer.
    rig.cluster.act(deaf.job, "cancel");
    rig.ended_as(&deaf, "cancelled");

    assert_eq!(rig.daemons(), daemons);
    let culprit = rig.client("culprit");
    assert_eq!(rig.cluster.job(neighbour.job).job.attempts, 1);
    culprit.raise("fault");
    rig.ended_as(&culprit, "failed");
    assert_eq!(rig.first_attempt(&neighbour, "collateral").attempt_list.len(), 2);
    rig.serves(&neighbour, SERVES_AGAIN + SOON);
    neighbour.raise("done");
    assert_eq!(rig.ended_as(&neighbour, "succeeded").job.attempts, 2);
    wait::until(SOON, "no daemon is left", || rig.daemons().is_empty().then_some(()));
}

#[test]
fn a_server_that_cannot_start_is_reported_at_once_and_leaves_no_remains() {
    let rig = Rig::new();
    rig.faults("server_fails=1\n");
    let began = Instant::now();

    let job = rig.submit(&rig.request("job", ""));
    let detail = refusal(&rig, &job);

    assert!(began.elapsed() < REPORTED_WITHIN, "{:?}", began.elapsed());
    assert!(detail.contains("ended with status 1 before it served"), "{detail}");
    rig.faults("");
    rig.serves(&job, SOON);
    job.raise("done");
    rig.ended_as(&job, "succeeded");
    wait::until(SOON, "no daemon is left", || rig.daemons().is_empty().then_some(()));
}

#[test]
fn nvidias_own_control_program_without_a_gpu_refuses_the_job_with_the_reason() {
    let Some(program) = std::env::var_os("TESSERA_REAL_MPS_CONTROL") else {
        eprintln!("skipped: TESSERA_REAL_MPS_CONTROL names no nvidia-cuda-mps-control");
        return;
    };
    let rig = Rig::of(Plan::new().mps_control(PathBuf::from(program)));
    let began = Instant::now();

    let job = rig.submit(&rig.request("job", ""));
    let detail = refusal(&rig, &job);

    assert!(began.elapsed() < REPORTED_WITHIN, "{:?}", began.elapsed());
    assert!(detail.contains("ended with status 1 before it served"), "{detail}");
    rig.cluster.act(job.job, "cancel");
    rig.ended_as(&job, "cancelled");
    wait::until(SOON, "no daemon is left", || rig.daemons().is_empty().then_some(()));
}

#[test]
fn without_a_control_program_sharing_is_refused_with_the_reason() {
    let plan = Plan::new().mps_control("/nowhere/nvidia-cuda-mps-control");
    let cluster = plan.node("n1", "a100-40gb").start();
    let mut request = script("true");
    (request.share, request.gpu_memory_bytes) = (Some("mps".into()), Some(4 << 30));

    let refused = cluster.try_submit(&request, None).unwrap();

    assert_eq!(refused.status, 422, "{}", refused.text());
    assert!(refused.text().contains("no registered node has NVIDIA's MPS control program"));
    assert!(cluster.nodes().iter().all(|node| !node.mps));
    let listed = tessera(&cluster, &["nodes"]);
    let row = listed.lines().last().unwrap();
    assert!(row.starts_with("n1") && row.split_whitespace().any(|word| word == "-"), "{listed}");
    let doctor = tessera(&cluster, &["doctor", "n1"]);
    assert!(doctor.contains("there is no nvidia-cuda-mps-control"), "{doctor}");
    assert!(doctor.contains("--mps-control"), "{doctor}");
    // A job that may wait shows what it waits for.
    request.allow_pending = true;
    let waiting = cluster.submit(&request).job_id;
    wait::until(SOON, "the reason", || {
        let job = cluster.job(waiting).job;
        job.reason_text?.contains("nvidia-cuda-mps-control").then_some(())
    });
}

fn tessera(cluster: &Cluster, arguments: &[&str]) -> String {
    let mut command = Command::new(programs().path("tessera"));
    command.args(arguments).env("TESSERA_URL", cluster.url());
    let output = command.output().unwrap();
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}

/// Returns how the job's first attempt was refused; it costs no retry.
fn refusal(rig: &Rig, job: &crate::rig::Client) -> String {
    let before = rig.cluster.job(job.job).retries_left;
    let refused = rig.first_attempt(job, "not_started");
    assert_eq!(refused.retries_left, before);
    refused.attempt_list[0].detail.clone().unwrap()
}
