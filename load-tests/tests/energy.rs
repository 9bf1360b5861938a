//! What jobs used of their GPUs, from the driver to `tessera show`.

use std::process::Command;

use serde_json::Value;
use tessera_api::types::SubmitRequest;
use tessera_load_tests::cluster::{Cluster, Plan, SOON, command};
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;

/// A job that allocates `mib` on its slice and keeps it busy for a second.
fn user(mib: u64, load: u8) -> SubmitRequest {
    let client = programs().path("tessera-sim-client").display().to_string();
    let memory = (mib << 20).to_string();
    let load = load.to_string();
    let arguments = ["--memory-bytes", &memory, "--load-percent", &load, "--seconds", "1"];
    let argv = std::iter::once(client.as_str()).chain(arguments);
    SubmitRequest { gpu_memory_bytes: Some(mib << 20), ..command(argv) }
}

/// What the command line says of a job.
fn show(cluster: &Cluster, job: u64) -> Value {
    let shown = Command::new(programs().path("tessera"))
        .args(["show", "--json", &job.to_string()])
        .env("TESSERA_URL", format!("http://{}", cluster.http()))
        .output()
        .unwrap();
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    serde_json::from_slice(&shown.stdout).unwrap()
}

#[test]
fn jobs_on_slices_show_their_memory_and_energy() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    let jobs = [user(1_000, 100), user(15_000, 20)].map(|job| cluster.submit(&job).job_id);

    for (job, mib) in jobs.into_iter().zip([1_000_u64, 15_000]) {
        let done = cluster.wait_job(job, SOON, "succeeded");
        assert_eq!(done.attempt_list.len(), 1);
        // The figures follow the end: they take one more sample of the card.
        let attempt = wait::until(SOON, "the figures of a job", || {
            let attempt = show(&cluster, job)["attempt_list"][0].clone();
            attempt["gpu_memory_peak_bytes"].is_u64().then_some(attempt)
        });
        assert_eq!(attempt["gpu_memory_peak_bytes"].as_u64(), Some(mib << 20));
        let joules = attempt["gpu_energy_joules"].as_f64().unwrap();
        // A second on an A100: at most 32 W and seven slices at 17 W, for a little longer.
        assert!(joules > 1.0 && joules < 151.0 * SOON.as_secs_f64(), "{attempt}");
    }
}
