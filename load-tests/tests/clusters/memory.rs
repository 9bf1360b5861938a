//! Jobs that run out of GPU memory automatically get the next size, with real processes.

use tessera_api_types::{AttemptView, GangRequest, JobDetail, JobMemory, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::console::{done, refused};
use tessera_load_tests::programs::programs;
use tessera_load_tests::{processes, wait};

const GIB: u64 = 1 << 30;

/// Messages that frameworks print when they run out of memory.
const COMPLAINT: &str = "echo 'torch.OutOfMemoryError: CUDA out of memory.' >&2";

/// A job that needs `mib` of device memory, and names nothing: no size, no retries.
fn needs(mib: u64) -> SubmitRequest {
    let client = programs().path("tessera-sim-client").display().to_string();
    let bytes = mib << 20;
    let text = format!(
        "echo count $TESSERA_OOM_COUNT reason $TESSERA_RESTART_REASON\n\
         {client} --memory-bytes {bytes} --load-percent 50 --seconds 0.3 && exit 0\n\
         {COMPLAINT}\nexit 1"
    );
    SubmitRequest { user: Some("ada".into()), ..script(&text) }
}

/// A job whose exit status reports that less than `bytes` is too little.
fn reports(bytes: u64) -> SubmitRequest {
    let text = format!("[ $TESSERA_GPU_MEMORY_BYTES -ge {bytes} ] || exit 112\n");
    SubmitRequest { user: Some("ada".into()), ..script(&text) }
}

/// Returns what each attempt had in MiB, and how it ended. Two profiles of a GPU may have the same memory.
fn attempts(job: &JobDetail) -> Vec<(u64, &str)> {
    let given = |bytes: Option<u64>| bytes.expect("each attempt has memory") >> 20;
    let of = job.attempt_list.iter();
    of.map(|attempt| (given(attempt.gpu_memory_given_bytes), attempt.state.as_str())).collect()
}

#[test]
fn with_default_settings_running_out_of_memory_leads_to_the_next_size_without_a_retry() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();

    let id = cluster.submit(&needs(12_000)).job_id;
    let job = cluster.wait_job(id, 3 * SOON, "succeeded");

    let sizes = [(4_864, "out_of_memory"), (9_856, "out_of_memory"), (19_968, "succeeded")];
    assert_eq!(attempts(&job), sizes);
    assert_eq!((job.oom_count, job.oom_policy.as_str(), job.retries_left), (2, "larger", 0));
    let [first, second, third] = &job.attempt_list[..] else { panic!("{job:?}") };
    let sources = [first, second, third].map(|attempt| attempt.size_source.as_deref().unwrap());
    assert_eq!(sources, ["unknown", "out_of_memory", "out_of_memory"]);
    assert_eq!(second.gpu_memory_given_bytes, Some(9_856 << 20));
    assert_eq!(job.memory_estimate_bytes, Some((9_856 << 20) + (9_856_u64 << 20).div_ceil(5)));
    let why = first.detail.as_deref().unwrap();
    assert!(why.contains("it runs again with at least 5.75 GiB"), "{why}");
    assert!(cluster.logs(id).contains("count 2 reason oom"), "{}", cluster.logs(id));
    let shown = done(&cluster, &["show", &id.to_string()]);
    assert!(shown.contains("2 times, so that it needs at least 11.55 GiB"), "{shown}");
    let explained = done(&cluster, &["explain", &id.to_string()]);
    assert!(
        explained.contains("Its size (19.5 GiB) is larger than what it ran out of."),
        "{explained}"
    );
}

#[test]
fn a_job_that_ran_out_of_the_largest_size_fails_at_once_with_the_reason() {
    let cluster = Plan::new().node("n1", "a30-24gb").start();
    let request = SubmitRequest { max_retries: Some(3), ..reports(100 * GIB) };

    let id = cluster.submit(&request).job_id;
    let job = cluster.wait_end(id, 3 * SOON);

    assert_eq!(job.job.state, "failed");
    let sizes = job.attempt_list.iter().map(|attempt| attempt.profile.as_str());
    assert_eq!(sizes.collect::<Vec<_>>(), ["1g.6gb", "2g.12gb", "4g.24gb"], "none of them twice");
    let why = job.job.reason_text.unwrap();
    assert!(why.starts_with("it reported by its exit status 112"), "{why}");
    assert!(why.contains("the largest slice of this cluster has"), "{why}");
    assert_eq!(job.retries_left, 3, "no retry was used up");
}

#[test]
fn a_named_slice_is_kept_and_a_program_that_reduces_its_need_keeps_its_size() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    let named = SubmitRequest { gpu_profile: Some("1g.5gb".into()), ..reports(8 * GIB) };
    let shrinks = "[ $TESSERA_OOM_COUNT -ge 2 ] || exit 112";
    let same = SubmitRequest {
        gpu_profile: Some("1g.5gb".into()),
        oom_policy: Some("same".into()),
        ..script(shrinks)
    };

    let failed = cluster.wait_end(cluster.submit(&named).job_id, SOON);
    let kept = cluster.wait_job(cluster.submit(&same).job_id, 2 * SOON, "succeeded");

    assert_eq!(attempts(&failed), [(4_864, "out_of_memory")]);
    let why = failed.job.reason_text.unwrap();
    assert!(why.contains("its policy is fail, which is the default for a named slice"), "{why}");
    assert_eq!(kept.attempt_list.len(), 3);
    assert!(kept.attempt_list.iter().all(|attempt| attempt.profile == "1g.5gb"), "{kept:?}");
    assert_eq!((kept.oom_count, kept.memory_estimate_bytes), (2, None));
}

#[test]
fn a_sharing_job_gets_a_larger_limit() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    let client = programs().path("tessera-sim-client").display().to_string();
    let over = cluster.scratch().join("over");
    std::fs::write(&over, "").unwrap();
    // The slice's server refuses what exceeds the limit.
    let bytes = 3 * GIB + GIB / 2;
    let line = format!("exec {client} --mps --memory-bytes {bytes} --until {}", over.display());
    let request = SubmitRequest {
        user: Some("ada".into()),
        share: Some("mps".into()),
        sm_percent: Some(50),
        gpu_memory_bytes: Some(2 * GIB),
        ..script(&line)
    };

    let id = cluster.submit(&request).job_id;
    let job = cluster.wait_job(id, 3 * SOON, "succeeded");

    let given: Vec<_> =
        job.attempt_list.iter().map(|attempt| attempt.gpu_memory_given_bytes).collect();
    assert_eq!(given, [2, 3, 4].map(|gib| Some(gib * GIB)));
    assert_eq!(job.oom_count, 2);
}

#[test]
fn a_gang_moves_all_of_its_members() {
    let cluster = Plan::new().node("n1", "a30-24gb,a30-24gb").start();
    // Only rank 1 needs more; the other rank waits for it.
    let text = format!(
        "[ $RANK = 1 ] || exec sleep 1000\n\
         [ $TESSERA_GPU_MEMORY_BYTES -ge {} ] || exit 112\n\
         exit 7\n",
        8 * GIB
    );
    let gang = Some(GangRequest { nodes: 1, gpus_per_node: 2 });
    let request = SubmitRequest {
        gang,
        gpu_memory_bytes: Some(4 * GIB),
        grace_secs: Some(1),
        ..script(&text)
    };

    let first = cluster.submit(&request).job_id;
    let ends = [first, first + 1].map(|id| cluster.wait_end(id, 3 * SOON));

    for job in &ends {
        // Another program may hold the port of the gang's rendezvous: then the gang starts again with the same size.
        let had_port = |attempt: &&AttemptView| {
            !attempt.detail.as_ref().is_some_and(|detail| detail.contains("for its rendezvous"))
        };
        let counted = job.attempt_list.iter().filter(had_port);
        let profiles: Vec<_> = counted.map(|a| a.profile.as_str()).collect();
        assert_eq!(profiles, ["1g.6gb", "2g.12gb"], "{job:?}");
        assert_eq!((job.oom_count, job.job.state.as_str()), (1, "failed"));
    }
    assert_eq!(ends[1].attempt_list[0].state, "out_of_memory");
    assert_eq!(ends[1].job.exit_code.as_deref(), Some("7:0"), "with enough memory it came further");
}

#[test]
fn with_any_process_killed_no_size_is_tried_twice_and_no_job_is_lost() {
    let mut cluster = Plan::new().node("n1", "a100-40gb").start();
    let folder = cluster.scratch().display().to_string();
    let mut request = needs(12_000);
    let body = request.script.take().unwrap();
    let wait_first = format!("while [ ! -e {folder}/go.$TESSERA_ATTEMPT ]; do sleep 0.1; done\n");
    request.script = Some(body.replacen("\n", &format!("\n{wait_first}"), 1));
    let go = |cluster: &Cluster, attempt: u32| {
        std::fs::write(cluster.scratch().join(format!("go.{attempt}")), "").unwrap();
    };
    let runs = |cluster: &Cluster, id: u64, attempt: usize| {
        wait::until(3 * SOON, &format!("attempt {attempt} to run"), || {
            let job = cluster.job(id);
            (job.attempt_list.len() == attempt && job.job.state == "running").then_some(())
        });
    };

    let id = cluster.submit(&request).job_id;
    runs(&cluster, id, 1);
    // Only the agent notices the end, and it dies with that knowledge.
    cluster.controller.kill();
    go(&cluster, 1);
    cluster.agents[0].kill();
    cluster.controller.start();
    cluster.agents[0].start();
    cluster.wait_ready();
    runs(&cluster, id, 2);
    let shepherds = processes::named("tessera-shepherd", &cluster.processes());
    shepherds.iter().for_each(|pid| processes::signal(*pid, libc::SIGKILL));
    runs(&cluster, id, 3);
    // The next leader knows what the last one recorded.
    cluster.controller.kill();
    cluster.controller.start();
    cluster.wait_ready();
    go(&cluster, 3);
    runs(&cluster, id, 4);
    go(&cluster, 4);
    let job = cluster.wait_job(id, 3 * SOON, "succeeded");

    let expected = [
        (4_864, "out_of_memory"),
        (9_856, "lost"),
        (9_856, "out_of_memory"),
        (19_968, "succeeded"),
    ];
    assert_eq!(attempts(&job), expected);
    assert_eq!(job.oom_count, 2);
}

/// A job whose memory grows until it has enough, in a CUDA program that saves its state when it gets the signal.
fn grows_to(cluster: &Cluster, limit: &str) -> SubmitRequest {
    let grow = programs().path("tessera-sim-grow").display().to_string();
    let file = cluster.scratch().join("grown").display().to_string();
    let driver = programs().path("../stand-in").canonicalize().unwrap().display().to_string();
    let text = format!(
        "trap 'touch {file}.stop' USR1\n\
         rm -f {file}.stop\n\
         (trap '' USR1; exec {grow} --step 32MiB --every-ms 250 --limit {limit} \
          --state {file} --stop-when {file}.stop) & child=$!\n\
         wait $child; code=$?\n\
         [ $code -le 128 ] || {{ wait $child; code=$?; }}\n\
         exit $code"
    );
    SubmitRequest {
        user: Some("ada".into()),
        env: [("LD_LIBRARY_PATH".to_owned(), driver)].into(),
        checkpoint_signal: Some("USR1".into()),
        ..script(&text)
    }
}

#[test]
fn a_growing_job_starts_on_the_smallest_slice_and_is_moved_before_it_fails() {
    let cluster =
        Plan::new().agent_settings("telemetry_report_ms = 500").node("n1", "a100-40gb").start();
    let request =
        SubmitRequest { memory_prediction: Some("act".into()), ..grows_to(&cluster, "6GiB") };

    let id = cluster.submit(&request).job_id;
    let job = cluster.wait_job(id, 8 * SOON, "succeeded");

    assert_eq!(attempts(&job), [(4_864, "preempted"), (9_856, "succeeded")]);
    assert_eq!((job.oom_count, job.retries_left), (0, 0), "it never ran out of memory");
    let [first, second] = &job.attempt_list[..] else { panic!("{job:?}") };
    assert_eq!(first.detail.as_deref(), Some("it continues with more GPU memory"));
    let sources = [first, second].map(|attempt| attempt.size_source.as_deref().unwrap());
    assert_eq!(sources, ["unknown", "predicted"]);
    assert!(cluster.logs(id).contains("resumed_bytes"), "{}", cluster.logs(id));
    let events = cluster.events(id).items;
    let place_of = |words: &str| events.iter().position(|event| event.text.contains(words));
    let reported = place_of("is predicted to exceed its 4.75 GiB in about");
    let moved = place_of("it is moved to a slice with at least 5.75 GiB");
    assert!(reported.is_some() && reported <= moved, "{events:#?}");
    let memory: JobMemory =
        cluster.call("GET", &format!("/v1/jobs/{id}/memory"), None).expect(200).json();
    let [before, ..] = &memory.attempts[..] else { panic!("{memory:?}") };
    assert_eq!((before.outcome.as_deref(), before.moved), (Some("true"), true), "{before:?}");
    assert!(before.points.len() >= 16 && before.forecast.is_some(), "{before:?}");
    let shown = done(&cluster, &["show", "--memory", &id.to_string()]);
    assert!(shown.contains("4.75 GiB (its slice)"), "{shown}");
    assert!(shown.contains("moved to a larger slice because of this prediction"), "{shown}");
    let metrics = cluster.call("GET", "/metrics", None).text();
    let counted = "tessera_memory_growth_predictions_total{outcome=\"true\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
}

#[test]
fn with_default_settings_a_growth_is_reported_and_nothing_is_moved() {
    let cluster =
        Plan::new().agent_settings("telemetry_report_ms = 500").node("n1", "a100-40gb").start();
    let id = cluster.submit(&grows_to(&cluster, "6GiB")).job_id;

    let memory = wait::until(4 * SOON, "a prediction", || {
        let memory: JobMemory =
            cluster.call("GET", &format!("/v1/jobs/{id}/memory"), None).expect(200).json();
        memory.attempts.first()?.forecast.is_some().then_some(memory)
    });

    let running = &memory.attempts[0];
    assert_eq!((running.memory_prediction.as_deref(), running.moved), (Some("advise"), false));
    assert_eq!(running.unit, "seconds");
    assert_eq!(memory.sizes_bytes.first(), Some(&(4_864 << 20)));
    assert!(!running.band.is_empty(), "{running:?}");
    let job = cluster.job(id);
    assert_eq!((job.job.state.as_str(), job.attempt_list.len()), ("running", 1));
    assert_eq!(job.memory_estimate_bytes, None, "it requests no more than before");
}

#[test]
fn a_switch_of_the_mig_mode_reports_the_nodes_answer() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    let hold = SubmitRequest { gpu_profile: Some("1g.5gb".into()), ..script("sleep 1000") };
    let id = cluster.submit(&hold).job_id;
    cluster.wait_job(id, SOON, "running");

    let busy = refused(&cluster, &["mig-mode", "n1:0", "off"]);
    assert!(busy.contains("attempts run on this GPU"), "{busy}");
    cluster.act(id, "cancel").expect(200);
    cluster.wait_end(id, SOON);
    let idle = refused(&cluster, &["mig-mode", "n1:0", "off"]);

    assert!(idle.contains("can't be switched off"), "an instance stands: {idle}");
}

#[test]
fn a_running_job_shows_its_peak_memory() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    let client = programs().path("tessera-sim-client").display().to_string();
    let bytes = 3 * GIB;
    let line = format!("exec {client} --memory-bytes {bytes} --load-percent 50 --seconds 1000");
    let id = cluster.submit(&script(&line)).job_id;

    let peak = wait::until(3 * SOON, "its peak so far", || {
        let job = cluster.job(id);
        let attempt = job.attempt_list.last()?;
        attempt.ended_at.is_none().then_some(attempt.gpu_memory_peak_bytes)?
    });

    assert!(peak >= bytes, "{peak}");
}
