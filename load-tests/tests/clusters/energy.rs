//! GPU usage of jobs, from the driver to `tessera show`.

use std::process::Command;

use serde_json::Value;
use tessera_api_types::SubmitRequest;
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

/// Returns what the command prints.
fn tessera(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = Command::new(programs().path("tessera"))
        .args(arguments)
        .env("TESSERA_URL", cluster.url())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns what the command prints about a job.
fn show(cluster: &Cluster, job: u64) -> Value {
    serde_json::from_str(&tessera(cluster, &["show", "--json", &job.to_string()])).unwrap()
}

#[test]
fn jobs_on_slices_show_their_memory_and_energy() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    let jobs = [user(1_000, 100), user(15_000, 20)].map(|job| cluster.submit(&job).job_id);

    for (job, mib) in jobs.into_iter().zip([1_000_u64, 15_000]) {
        let done = cluster.wait_job(job, SOON, "succeeded");
        assert_eq!(done.attempt_list.len(), 1);
        // The figures arrive after the end: they need one more sample of the GPU.
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

/// Returns what a node's agent has recorded of its only GPU, in millijoules. It is the counter at the last
/// sample, the parts of attempts and of other programs, and the sum of all parts.
fn account(cluster: &Cluster) -> Option<(u64, u64, u64, u64)> {
    let folder = cluster.agent_data(0).join("telemetry");
    let mut entries = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let path = entries.find(|path| path.extension().is_some_and(|kind| kind == "json"))?;
    let kept: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let ledger = &kept["ledger"];
    let number = |name: &str| ledger[name].as_u64();
    let live: u64 = ledger["attempts"].as_object()?.values().filter_map(Value::as_u64).sum();
    let (settled, other, idle) = (number("settled_mj")?, number("other_mj")?, number("idle_mj")?);
    let attempts = settled + live;
    Some((ledger["last"]["counter_mj"].as_u64()?, attempts, other, attempts + other + idle))
}

#[test]
fn sharing_jobs_and_idle_time_are_charged_exactly_the_counters_increase_and_their_server_nothing() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    let client = programs().path("tessera-sim-client").display().to_string();
    let sharer = |name: &str, load: &str| {
        let until = cluster.scratch().join(name).display().to_string();
        let argv = [&client, "--mps", "--load-percent", load, "--until", &until];
        SubmitRequest {
            user: Some("ada".into()),
            share: Some("mps".into()),
            sm_percent: Some(50),
            gpu_memory_bytes: Some(4 << 30),
            ..command(argv)
        }
    };
    let jobs = [sharer("a", "50"), sharer("b", "50")].map(|job| cluster.submit(&job).job_id);
    let energy = |job| show(&cluster, job)["attempt_list"][0]["gpu_energy_joules"].as_f64();
    wait::until(SOON, "energy is charged to both sharers", || {
        jobs.iter().all(|job| energy(*job).is_some_and(|joules| joules > 0.5)).then_some(())
    });
    let begun = account(&cluster).unwrap();

    let more = |joules: f64| {
        wait::until(SOON, "they bear more", || {
            jobs.iter().all(|job| energy(*job).is_some_and(|now| now > joules)).then_some(())
        });
    };
    more(energy(jobs[0]).unwrap().max(energy(jobs[1]).unwrap()) + 5.0);
    let now = wait::until(SOON, "the account continued", || {
        account(&cluster).filter(|now| now.0 > begun.0 + 10_000)
    });

    // The sum of all parts has grown exactly as much as the GPU's counter, to the millijoule.
    assert_eq!(now.3 - begun.3, now.0 - begun.0);
    assert_eq!(now.2, 0, "the server is no foreign process: its energy is its clients'");
    // The command shows the GPU with both, also without a terminal.
    let top = wait::until(SOON, "top shows both", || {
        let text = tessera(&cluster, &["top"]);
        let listed = |job: &u64| text.lines().any(|l| l.trim().starts_with(&job.to_string()));
        jobs.iter().all(listed).then_some(text)
    });
    assert!(top.contains("n1 GPU 0") && top.contains("of 40 GiB"), "{top}");
    let series: Value = serde_json::from_str(&tessera(&cluster, &["top", "--json"])).unwrap();
    assert!(series["items"][0]["points"][0]["power_watts"].as_f64() > Some(50.0), "{series}");
    for name in ["a", "b"] {
        std::fs::write(cluster.scratch().join(name), "").unwrap();
    }
    for job in jobs {
        cluster.wait_job(job, SOON, "succeeded");
    }
    let [a, b] = jobs.map(|job| wait::until(SOON, "its figures", || energy(job)));
    // Equal parts, except for the moments in which one of them was alone.
    assert!((a - b).abs() < 0.5 * a.max(b), "{a} J and {b} J");
}

#[test]
fn where_the_driver_counts_each_instance_the_busy_one_bears_the_power() {
    let cluster = Plan::new().node("n1", "h100-80gb-sxm").start();
    let client = programs().path("tessera-sim-client").display().to_string();
    let keeper = |load: &str| {
        let argv = [&client, "--memory-bytes", "1000000000", "--load-percent", load];
        SubmitRequest { gpu_profile: Some("3g.40gb".into()), ..command(argv) }
    };
    let jobs = [keeper("100"), keeper("0")].map(|job| cluster.submit(&job).job_id);
    let energy = |job| show(&cluster, job)["attempt_list"][0]["gpu_energy_joules"].as_f64();
    let both = || Some((energy(jobs[0])?, energy(jobs[1])?));
    let begun = wait::until(SOON, "both have figures", both);

    let now = wait::until(2 * SOON, "the busy one bears more", || {
        both().filter(|(busy, _)| *busy > begun.0 + 60.0)
    });

    // Three slices at 17 W. An idle GPU draws 32 W, of which each is charged three sevenths once that is
    // learned.
    let (busy, quiet) = (now.0 - begun.0, now.1 - begun.1);
    assert!(busy > 3.0 * quiet, "{busy} J and {quiet} J");
}
