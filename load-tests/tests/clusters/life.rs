//! Changes to jobs by users, and ends of jobs by themselves.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::{Cluster, Plan, SOON, command, script};
use tessera_load_tests::{processes, wait};

/// One cluster for all tests of this file that run at the same time.
fn shared() -> Arc<Cluster> {
    static CLUSTER: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
    let mut slot = CLUSTER.lock().unwrap();
    slot.upgrade().unwrap_or_else(|| {
        let cluster = Arc::new(Plan::new().node("n1", "a100-40gb,a100-40gb").start());
        *slot = Arc::downgrade(&cluster);
        cluster
    })
}

#[test]
fn a_cancelled_running_job_ends_with_all_its_processes() {
    let cluster = shared();
    let mark = format!("FAMILY={}-{:?}", std::process::id(), Instant::now());
    let (name, value) = mark.split_once('=').unwrap();
    let request = SubmitRequest {
        env: [(name.to_owned(), value.to_owned())].into(),
        grace_secs: Some(1),
        ..script("sleep 600 & setsid sleep 600 & sleep 600")
    };
    let job = cluster.submit(&request).job_id;
    cluster.wait_job(job, SOON, "running");
    wait::until(SOON, "four processes of the job", || {
        (processes::marked(&mark).len() >= 4).then_some(())
    });

    let answer = cluster.act(job, "cancel");

    assert!(matches!(answer.status, 200 | 202), "{}", answer.text());
    let done = cluster.wait_job(job, SOON, "cancelled");
    assert_eq!(done.attempt_list[0].state, "cancelled");
    wait::until(SOON, "no process of the job", || {
        processes::marked(&mark).is_empty().then_some(())
    });
}

#[test]
fn a_held_job_waits_until_it_is_released() {
    let cluster = shared();
    let request = SubmitRequest { hold: true, ..command(["true"]) };

    let submitted = cluster.submit(&request);
    assert_eq!(submitted.state, "held");
    let other = cluster.submit(&command(["true"])).job_id;
    cluster.wait_job(other, SOON, "succeeded");
    assert_eq!(cluster.job(submitted.job_id).job.state, "held");
    let released = cluster.act(submitted.job_id, "release");

    released.expect(200);
    cluster.wait_job(submitted.job_id, SOON, "succeeded");
    assert_eq!(cluster.act(submitted.job_id, "hold").status, 409, "final is final");
}

#[test]
fn a_held_job_that_is_cancelled_never_ran() {
    let cluster = shared();
    let job = cluster.submit(&SubmitRequest { hold: true, ..command(["true"]) }).job_id;

    cluster.act(job, "cancel").expect(200);

    let done = cluster.wait_job(job, SOON, "cancelled");
    assert_eq!((done.job.attempts, done.job.started_at), (0, None));
    // Repeating it is harmless, for a client whose first answer was lost.
    assert!(matches!(cluster.act(job, "cancel").status, 200 | 409));
}

#[test]
fn a_job_that_exceeds_its_time_limit_is_ended() {
    let cluster = shared();
    let request = SubmitRequest {
        time_limit_secs: Some(1),
        grace_secs: Some(1),
        ..script("trap '' TERM; echo started; sleep 600 & wait; sleep 600")
    };

    let job = cluster.submit(&request).job_id;
    let done = cluster.wait_job(job, SOON, "timed_out");

    let attempt = &done.attempt_list[0];
    assert_eq!((attempt.state.as_str(), attempt.exit_code.as_deref()), ("timed_out", Some("0:9")));
    let ran = attempt.ended_at.unwrap() - attempt.started_at.unwrap();
    assert!((1.5..6.0).contains(&ran.as_seconds_f64()), "it ran for {ran}");
    assert_eq!(cluster.logs(job), "started\n");
}

fn changed(cluster: &Cluster, job: u64, change: &str) -> tessera_load_tests::http::Response {
    cluster.call("PATCH", &format!("/v1/jobs/{job}"), Some(change.as_bytes()))
}

#[test]
fn a_running_jobs_time_limit_can_be_set_and_removed() {
    let cluster = shared();
    let endless = cluster.submit(&script("sleep 600")).job_id;
    let limited = SubmitRequest { time_limit_secs: Some(2), ..script("sleep 4") };
    cluster.wait_job(endless, SOON, "running");
    let limited = cluster.submit(&limited).job_id;
    cluster.wait_job(limited, SOON, "running");

    changed(&cluster, limited, r#"{"time_limit_secs":0}"#).expect(200);
    changed(&cluster, endless, r#"{"time_limit_secs":1}"#).expect(200);

    assert_eq!(cluster.wait_job(endless, SOON, "timed_out").time_limit_secs, Some(1));
    assert_eq!(cluster.wait_job(limited, SOON, "succeeded").time_limit_secs, None);
    let events = cluster.events(endless).items;
    let words = "its time limit becomes 1 s, by its user";
    assert!(events.iter().any(|event| event.text == words), "{events:#?}");
    let refused = changed(&cluster, endless, r#"{"time_limit_secs":9}"#).expect(409).text();
    assert!(refused.contains("timed_out and can't be changed"), "{refused}");
    for (change, hint) in [
        ("{}", "there is nothing to change"),
        (r#"{"priority":10}"#, "0 (highest)"),
        (r#"{"time_limit_secs":99999999999}"#, "1 to"),
    ] {
        let refused = changed(&cluster, endless, change).expect(400).text();
        assert!(refused.contains(hint), "{refused}");
    }
}

#[test]
fn a_job_that_gets_a_higher_priority_overtakes_waiting_jobs() {
    let mut cluster = Plan::new().node("n1", "a30-24gb").start();
    let whole =
        || SubmitRequest { gpu_profile: Some("4g.24gb".into()), ..command(["sleep", "60"]) };
    let first = cluster.submit(&whole()).job_id;
    cluster.wait_job(first, SOON, "running");
    let second = cluster.submit(&whole()).job_id;
    let held = SubmitRequest { hold: true, ..whole() };
    let third = cluster.submit(&held).job_id;

    changed(&cluster, third, r#"{"priority":1,"time_limit_secs":3600}"#).expect(200);
    cluster.act(third, "release").expect(200);
    cluster.controller.kill();
    cluster.controller.start();
    cluster.wait_ready();

    wait::until(SOON, "it stands before the other", || {
        (cluster.explain(third).jobs_ahead == Some(0)).then_some(())
    });
    let detail = cluster.job(third);
    assert_eq!((detail.job.priority, detail.time_limit_secs), (1, Some(3_600)));
    cluster.act(first, "cancel").expect(200);
    cluster.wait_job(third, SOON + Duration::from_secs(40), "running");
    assert_eq!(cluster.job(second).job.state, "queued");
}

#[test]
fn jobs_of_one_priority_are_served_by_their_nice_values() {
    let mut cluster = Plan::new().node("n1", "a30-24gb").start();
    let whole = |nice: Option<i64>| SubmitRequest {
        gpu_profile: Some("4g.24gb".into()),
        nice,
        ..command(["sleep", "60"])
    };
    let first = cluster.submit(&whole(None)).job_id;
    cluster.wait_job(first, SOON, "running");
    let patient = cluster.submit(&whole(Some(100))).job_id;
    let updated = cluster.submit(&whole(None)).job_id;
    let plain = cluster.submit(&whole(None)).job_id;

    changed(&cluster, updated, r#"{"nice":7}"#).expect(200);
    let refused = changed(&cluster, updated, r#"{"nice":-1}"#).expect(400).text();
    assert!(refused.contains("can only be placed behind others"), "{refused}");
    cluster.controller.kill();
    cluster.controller.start();
    cluster.wait_ready();

    for (job, ahead) in [(plain, 0), (updated, 1), (patient, 2)] {
        wait::until(SOON, "its position in the queue", || {
            (cluster.explain(job).jobs_ahead == Some(ahead)).then_some(())
        });
    }
    assert_eq!([patient, updated, plain].map(|job| cluster.job(job).queue_rank.nice), [100, 7, 0]);
    cluster.act(first, "cancel").expect(200);
    cluster.wait_job(plain, SOON + Duration::from_secs(40), "running");
    assert_eq!(cluster.job(updated).job.state, "queued");
}

#[test]
fn a_user_holds_no_more_than_the_quota_and_sees_the_reason() {
    let cluster =
        Plan::new().policy("tessera").env("TESSERA_QUOTAS", "ada=1").node("n1", "a30-24gb").start();
    let of = |user: &str| SubmitRequest { user: Some(user.into()), ..command(["sleep", "60"]) };
    let first = cluster.submit(&of("ada")).job_id;
    cluster.wait_job(first, SOON, "running");

    let second = cluster.submit(&of("ada")).job_id;
    let other = cluster.submit(&of("bob")).job_id;

    cluster.wait_job(other, SOON, "running");
    let why = cluster.explain(second);
    assert_eq!(why.reason.as_deref(), Some("quota"), "{why:#?}");
    assert!(
        why.summary.contains("jobs of ada hold 1 of their limit of 1 compute slices"),
        "{why:#?}"
    );
    let would = why.would_start_if.unwrap();
    assert!(would.contains("jobs of ada that hold 1 compute slice end"), "{would}");
    assert!(would.contains("the quota is raised to 2"), "{would}");
    cluster.act(first, "cancel").expect(200);
    cluster.wait_job(second, SOON, "running");
}

#[test]
fn exit_codes_and_signals_are_reported_unchanged() {
    let cluster = shared();

    let failed = cluster.submit(&script("echo almost; exit 42")).job_id;
    let killed = cluster.submit(&script("kill -SEGV $$")).job_id;

    let failed = cluster.wait_job(failed, SOON, "failed").job;
    let killed = cluster.wait_job(killed, SOON, "failed").job;
    assert_eq!(failed.exit_code.as_deref(), Some("42:0"));
    assert_eq!(killed.exit_code.as_deref(), Some("0:11"));
    assert!(failed.reason_text.is_some(), "{failed:#?}");
}

#[test]
fn remains_of_one_attempt_never_harm_the_next_on_its_slice() {
    let cluster = shared();
    let many = |text: &str| SubmitRequest {
        array: Some(tessera_api_types::ArrayRange { first: 1, last: 150 }),
        ..script(text)
    };

    let untidy = cluster.submit(&many("setsid sleep 600 & sleep 600 & exit 0")).job_id;
    let tidy = cluster.submit(&many("exit 42")).job_id;

    for task in 0..150 {
        cluster.wait_job(untidy + task, SOON, "succeeded");
        let done = cluster.wait_job(tidy + task, SOON, "failed");
        assert_eq!(done.job.exit_code.as_deref(), Some("42:0"), "{:#?}", done.attempt_list);
    }
}

#[test]
fn a_failing_job_runs_again_up_to_its_retry_limit() {
    let cluster = shared();
    let file = cluster.scratch().join("tries");
    let request = SubmitRequest {
        max_retries: Some(2),
        env: [("FILE".into(), file.display().to_string())].into(),
        ..script("echo \"$TESSERA_ATTEMPT\" >> \"$FILE\"; exit 1")
    };

    let job = cluster.submit(&request).job_id;
    let done = cluster.wait_job(job, SOON, "failed");

    assert_eq!((done.job.attempts, done.retries_left), (3, 0));
    assert_eq!(std::fs::read_to_string(file).unwrap(), "1\n2\n3\n");
}

#[test]
fn a_missing_or_not_executable_program_fails_with_a_clear_message() {
    let cluster = shared();
    let text = cluster.scratch().join("text");
    std::fs::write(&text, "no program").unwrap();

    let missing = cluster.submit(&command(["/no/such/program"])).job_id;
    let plain = cluster.submit(&command([text.display().to_string()])).job_id;
    let bad_interpreter = SubmitRequest {
        script: Some("#!/no/such/interpreter\necho hello\n".into()),
        ..SubmitRequest::default()
    };
    let bad_interpreter = cluster.submit(&bad_interpreter).job_id;
    let nowhere = SubmitRequest { work_dir: Some("/no/such/folder".into()), ..command(["true"]) };
    let nowhere = cluster.submit(&nowhere).job_id;

    for (job, word) in [
        (missing, "/no/such/program"),
        (plain, "text"),
        (bad_interpreter, "/no/such/interpreter"),
        (nowhere, "/no/such/folder"),
    ] {
        let done = cluster.wait_job(job, SOON, "failed");
        let attempt = &done.attempt_list[0];
        assert_eq!(attempt.state, "launch_failed", "{attempt:#?}");
        assert_eq!(done.job.attempts, 1, "trying again would not help");
        let detail = attempt.detail.as_deref().unwrap_or_default();
        assert!(detail.contains(word), "{detail:?} doesn't name {word}");
    }
}

#[test]
fn a_queued_job_that_is_cancelled_frees_its_place_in_the_queue() {
    let cluster = Plan::new().node("n1", "a30-24gb").start();
    let whole =
        || SubmitRequest { gpu_profile: Some("4g.24gb".into()), ..command(["sleep", "60"]) };
    let first = cluster.submit(&whole()).job_id;
    cluster.wait_job(first, SOON, "running");
    let second = cluster.submit(&whole()).job_id;
    let third = cluster.submit(&whole()).job_id;
    wait::until(SOON, "a reason to wait", || cluster.job(third).job.reason);
    let why = cluster.explain(third);
    assert_eq!((why.state.as_str(), why.jobs_ahead), ("queued", Some(1)), "{why:#?}");
    assert!(!why.summary.is_empty() && why.would_start_if.is_some(), "{why:#?}");

    cluster.act(second, "cancel").expect(200);
    cluster.act(first, "cancel").expect(200);

    assert_eq!(cluster.wait_job(second, SOON, "cancelled").job.attempts, 0);
    cluster.wait_job(third, SOON + Duration::from_secs(40), "running");
}
