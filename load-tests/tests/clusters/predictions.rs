//! Predictions about jobs: learned from attempts, kept across restarts, and shown with their
//! outcomes.

use std::process::Command;

use tessera_api_types::{JobDetail, JobExplanation, MemoryPredictionView, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;

const GIB: u64 = 1 << 30;

fn epoch(secs: &str) -> SubmitRequest {
    SubmitRequest {
        user: Some("ada".into()),
        task_key: Some("epoch".into()),
        gpu_memory_bytes: Some(8 * GIB),
        ..script(&format!("sleep {secs}"))
    }
}

fn ran(cluster: &Cluster, request: &SubmitRequest) -> JobDetail {
    let job = cluster.submit(request).job_id;
    cluster.wait_job(job, SOON, "succeeded")
}

fn tessera(cluster: &Cluster, words: &[&str]) -> String {
    let url = cluster.url();
    let printed = Command::new(programs().path("tessera"))
        .args(["--url", &url])
        .args(words)
        .output()
        .unwrap();
    assert!(printed.status.success(), "{printed:?}");
    String::from_utf8(printed.stdout).unwrap()
}

#[test]
fn a_task_that_ran_is_predicted_with_an_interval_and_its_outcome_is_kept() {
    let mut cluster = Plan::new().node("n1", "a100-40gb").start();
    // With a size, since the policy may expect more of another slice than of the one on which the task ran.
    let same_size = SubmitRequest {
        gpu_memory_bytes: None,
        gpu_profile: Some("2g.10gb".into()),
        ..epoch("0.4")
    };
    let first = ran(&cluster, &same_size);
    assert_eq!(first.attempt_list[0].prediction, None, "nothing was known");

    let second = ran(&cluster, &same_size);
    let known = second.attempt_list[0].prediction.clone().unwrap();
    assert_eq!((known.basis.as_str(), known.runs), ("same_slice", 1));
    assert!(known.low_secs <= known.expected_secs && known.expected_secs <= known.high_secs);
    assert!((0.3..3.0).contains(&known.expected_secs), "{known:?}");
    assert!(known.ran_secs.is_some_and(|ran| ran >= 0.4), "{known:?}");

    cluster.controller.kill();
    cluster.controller.start();
    cluster.wait_ready();
    let on_another = SubmitRequest { gpu_memory_bytes: Some(15 * GIB), ..epoch("0.4") };
    let third = ran(&cluster, &on_another);
    let known = third.attempt_list[0].prediction.clone().unwrap();
    assert_eq!((known.basis.as_str(), known.runs), ("other_slice", 2), "the store remembers");
    let limited =
        SubmitRequest { task_key: Some("new".into()), time_limit_secs: Some(600), ..epoch("0.1") };
    let limited = ran(&cluster, &limited);
    let known = limited.attempt_list[0].prediction.clone().unwrap();
    assert_eq!((known.basis.as_str(), known.runs), ("time_limit", 0));
    assert!((known.high_secs - 600.0).abs() < 1e-9);

    let shown = tessera(&cluster, &["show", &second.job.id.to_string()]);
    assert!(shown.contains("based on 1 earlier run on such slices; it took"), "{shown}");
    let explained = tessera(&cluster, &["explain", &third.job.id.to_string()]);
    assert!(
        explained.contains("based on 2 earlier runs on other slices of such GPUs"),
        "{explained}"
    );
    wait::until(SOON, "the outcomes are counted", || {
        let metrics = cluster.call("GET", "/metrics", None).expect(200).text();
        let counted = |basis: &str| {
            let sum: u64 = metrics
                .lines()
                .filter(|l| l.starts_with("tessera_predictions_total") && l.contains(basis))
                .filter_map(|l| l.rsplit(' ').next()?.parse::<u64>().ok())
                .sum();
            sum == 1
        };
        (counted("other_slice") && counted("time_limit")).then_some(())
    });
}

#[test]
fn a_waiting_job_shows_how_long_it_is_expected_to_take() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    ran(&cluster, &epoch("0.4"));
    let whole = SubmitRequest { gpu_whole: true, ..script("sleep 600") };
    let holder = cluster.submit(&whole).job_id;
    cluster.wait_job(holder, SOON, "running");
    let waits = cluster.submit(&epoch("0.4")).job_id;

    let explain: JobExplanation = wait::until(SOON, "it is explained", || {
        let path = format!("/v1/jobs/{waits}/explain");
        let explain: JobExplanation = cluster.call("GET", &path, None).expect(200).json();
        explain.reason.is_some().then_some(explain)
    });

    let known = explain.prediction.unwrap();
    assert_eq!((known.basis.as_str(), known.runs), ("same_slice", 1));
    assert_eq!(known.ran_secs, None);
}

/// A job that names no size and fails if it doesn't get `mib` of GPU memory, like CUDA programs.
fn grower(mib: u64) -> SubmitRequest {
    let client = programs().path("tessera-sim-client").display().to_string();
    let bytes = mib << 20;
    let text = format!(
        "{client} --memory-bytes {bytes} --load-percent 50 --seconds 1 && exit 0\n\
         echo 'torch.OutOfMemoryError: CUDA out of memory.' >&2\nexit 1"
    );
    SubmitRequest {
        user: Some("ada".into()),
        task_key: Some("grower".into()),
        max_retries: Some(1),
        ..script(&text)
    }
}

/// Waits until the memory of a job's last attempt is known.
fn wait_memory_outcome(cluster: &Cluster, job: u64) -> MemoryPredictionView {
    wait::until(SOON, "what it had is known", || {
        let detail: JobDetail =
            cluster.call("GET", &format!("/v1/jobs/{job}"), None).expect(200).json();
        let known = detail.attempt_list.last()?.memory_prediction.clone()?;
        known.peak_bytes.is_some().then_some(known)
    })
}

#[test]
fn a_job_that_ran_out_of_memory_runs_again_on_a_larger_slice_and_its_task_is_known_from_then_on() {
    let mut cluster = Plan::new().node("n1", "a100-40gb").start();

    let first = ran(&cluster, &grower(7_000));

    let [short, enough] = &first.attempt_list[..] else { panic!("{:?}", first.attempt_list) };
    assert_eq!((short.state.as_str(), short.profile.as_str()), ("out_of_memory", "1g.5gb"));
    assert_eq!(short.memory_prediction, None, "nothing was known");
    let detail = short.detail.as_deref().unwrap();
    assert!(detail.starts_with("it ran out of GPU memory: torch.OutOfMemoryError"), "{detail}");
    assert_eq!(
        (enough.profile.as_str(), enough.size_source.as_deref()),
        ("2g.10gb", Some("out_of_memory"))
    );
    assert_eq!((first.retries_left, first.oom_count), (1, 1), "that was no failure");
    wait::until(SOON, "what it had is known", || {
        cluster
            .job(first.job.id)
            .attempt_list
            .last()?
            .gpu_memory_peak_bytes
            .filter(|peak| *peak > 0)
    });

    cluster.controller.kill();
    cluster.controller.start();
    cluster.wait_ready();
    let second = ran(&cluster, &grower(7_000));

    assert_eq!(second.attempt_list.len(), 1, "{:?}", second.attempt_list);
    // Which of the slices with that memory it gets is the policy's matter.
    assert_ne!(second.attempt_list[0].profile, "1g.5gb", "the store remembers");
    assert_eq!(second.attempt_list[0].size_source.as_deref(), Some("learned"));
    let known = wait_memory_outcome(&cluster, second.job.id);
    // One peak doesn't narrow the interval, since the slice was large enough.
    assert_eq!((known.runs, known.estimate_bytes), (1, 9_856 << 20));
    assert_eq!(known.peak_bytes, Some(7_000 << 20));
    let shown = tessera(&cluster, &["show", &second.job.id.to_string()]);
    let words = "expected to use at most 9.62 GiB of GPU memory";
    assert!(shown.contains(words) && shown.contains("; it used 6.83 GiB"), "{shown}");
    let printed = tessera(&cluster, &["predictions"]);
    let words = "of 1 runs of jobs that request no size, 1 were within the predicted interval and 0 \
                 needed more";
    assert!(printed.contains(words), "{printed}");
}
