//! Jobs that wait for other jobs: over HTTP, by the commands of Slurm, and across a restart of the
//! controller.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Barrier;
use std::thread;

use serde_json::json;
use tessera_api_types::{ArrayRange, ProblemDetails, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;

struct Rig {
    cluster: Cluster,
}

impl Rig {
    fn new() -> Self {
        let rig = Self { cluster: Plan::new().node("n1", "a100-40gb").start() };
        let made = Command::new(programs().path("tessera"))
            .args(["slurm-links", &rig.links().display().to_string()])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        rig
    }

    fn links(&self) -> PathBuf {
        self.cluster.scratch().join("links")
    }

    /// Calls one of Slurm's commands.
    fn slurm(&self, command: &str, words: &[&str]) -> Output {
        Command::new(self.links().join(command))
            .args(words)
            .current_dir(self.cluster.scratch())
            .env("TESSERA_URL", self.cluster.url())
            .env("TESSERA_TOKEN", self.cluster.token())
            .output()
            .unwrap()
    }

    fn printed(&self, command: &str, words: &[&str]) -> String {
        let output = self.slurm(command, words);
        assert!(output.status.success(), "{command} {words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A job that runs until its file exists, and then ends with the given code.
    fn until_file(&self, name: &str, code: u8) -> u64 {
        let file = self.cluster.scratch().join(name).display().to_string();
        let text = format!("while [ ! -e {file} ]; do sleep 0.05; done; exit {code}");
        self.cluster.submit(&script(&text)).job_id
    }

    fn let_go(&self, name: &str) {
        std::fs::write(self.cluster.scratch().join(name), "").unwrap();
    }

    fn after(&self, dependency: &str) -> u64 {
        self.cluster.submit(&depends(dependency)).job_id
    }

    fn wait_reason(&self, job: u64, reason: &str) {
        wait::until(SOON, "the reason of the wait", || {
            (self.cluster.job(job).job.reason.as_deref() == Some(reason)).then_some(())
        });
    }
}

fn depends(dependency: &str) -> SubmitRequest {
    SubmitRequest { dependency: Some(dependency.to_owned()), ..script("true") }
}

#[test]
fn jobs_start_when_their_dependencies_have_ended_as_required() {
    let rig = Rig::new();
    let (good, bad) = (rig.until_file("good", 0), rig.until_file("bad", 3));
    let ok = rig.after(&format!("afterok:{good}"));
    let any = rig.after(&format!("afterany:{good}:{bad}"));
    let not_ok = rig.after(&format!("afternotok:{bad}"));
    let never = rig.after(&format!("afterok:{bad}"));
    let one = rig.after(&format!("afterok:{bad}?afterok:{good}"));
    let started = rig.after(&format!("after:{good}"));

    rig.cluster.wait_job(started, SOON, "succeeded");
    for waiting in [ok, any, not_ok, never, one] {
        rig.wait_reason(waiting, "dependency");
    }
    rig.let_go("good");
    rig.cluster.wait_job(ok, SOON, "succeeded");
    rig.cluster.wait_job(one, SOON, "succeeded");
    assert_eq!(rig.cluster.job(any).job.state, "queued", "the other one still runs");
    rig.let_go("bad");
    rig.cluster.wait_job(any, SOON, "succeeded");
    rig.cluster.wait_job(not_ok, SOON, "succeeded");
    rig.wait_reason(never, "dependency_never_satisfied");

    let job = rig.cluster.job(never);
    assert_eq!(job.dependency.as_deref(), Some(format!("afterok:{bad}").as_str()));
    assert_eq!(rig.cluster.explain(never).reason.as_deref(), Some("dependency_never_satisfied"));
}

#[test]
fn a_dependency_outlives_its_controller_and_the_ends_that_it_missed() {
    let mut rig = Rig::new();
    let first = rig.until_file("go", 0);
    rig.cluster.wait_job(first, SOON, "running");
    let second = rig.after(&format!("afterok:{first}"));
    rig.wait_reason(second, "dependency");

    rig.cluster.controller.kill();
    rig.let_go("go");
    rig.cluster.controller.start();
    rig.cluster.wait_ready();

    rig.cluster.wait_job(first, SOON, "succeeded");
    rig.cluster.wait_job(second, SOON, "succeeded");
}

#[test]
fn a_chain_of_jobs_is_cancelled_one_by_one_if_its_user_requested_that() {
    let rig = Rig::new();
    let first = rig.until_file("go", 1);
    let killed =
        |dependency: String| SubmitRequest { kill_on_invalid_dep: true, ..depends(&dependency) };
    let second = rig.cluster.submit(&killed(format!("afterok:{first}"))).job_id;
    let third = rig.cluster.submit(&killed(format!("afterok:{second}"))).job_id;
    rig.let_go("go");

    rig.cluster.wait_job(second, SOON, "cancelled");
    rig.cluster.wait_job(third, SOON, "cancelled");

    let events = rig.cluster.events(third);
    assert!(events.items.iter().any(|event| event.text.contains("dependency")), "{events:#?}");
}

#[test]
fn tasks_wait_for_the_tasks_of_the_same_index_and_jobs_of_one_name_for_each_other() {
    let rig = Rig::new();
    let scratch = rig.cluster.scratch().display().to_string();
    let wrap = format!("while [ ! -e {scratch}/go-$SLURM_ARRAY_TASK_ID ]; do sleep 0.05; done");
    let first = rig.printed("sbatch", &["--parsable", "--array=1-2", "--wrap", &wrap]);
    let first = first.trim();
    let on = format!("--dependency=aftercorr:{first}");
    let second = rig.printed("sbatch", &["--parsable", "--array=1-2", &on, "--wrap", "true"]);
    let second: u64 = second.trim().parse().unwrap();
    let single = ["--parsable", "-J", "only-one", "-d", "singleton", "--wrap"];
    let running = rig
        .printed("sbatch", &[&single[..], &["while [ ! -e one ]; do sleep 0.05; done"]].concat());
    let running: u64 = running.trim().parse().unwrap();
    let waiting = rig.printed("sbatch", &[&single[..], &["true"]].concat());
    let waiting: u64 = waiting.trim().parse().unwrap();

    rig.wait_reason(second, "dependency");
    rig.let_go("go-2");
    rig.cluster.wait_job(second + 1, SOON, "succeeded");
    assert_eq!(rig.cluster.job(second).job.state, "queued");
    rig.let_go("go-1");
    rig.cluster.wait_job(second, SOON, "succeeded");

    rig.cluster.wait_job(running, SOON, "running");
    rig.wait_reason(waiting, "dependency");
    rig.let_go("one");
    rig.cluster.wait_job(waiting, SOON, "succeeded");
}

#[test]
fn unknown_jobs_are_refused_here_and_count_as_ended_for_sbatch() {
    let rig = Rig::new();
    let body = serde_json::to_vec(&depends("afterok:999999")).unwrap();

    let refused: ProblemDetails =
        rig.cluster.call("POST", "/v1/jobs", Some(&body)).expect(400).json();
    assert_eq!(refused.field.as_deref(), Some("dependency"));
    assert!(refused.detail.contains("job 999999 does not exist"), "{refused:?}");

    let job = rig.printed("sbatch", &["--parsable", "-d", "afterok:999999", "--wrap", "true"]);
    rig.cluster.wait_job(job.trim().parse().unwrap(), SOON, "succeeded");
}

#[test]
fn a_waiting_job_takes_another_dependency_and_a_wrong_one_is_refused_with_its_reason() {
    let mut rig = Rig::new();
    let (first, second) = (rig.until_file("first", 0), rig.until_file("second", 3));
    let waiting = rig.after(&format!("afterok:{first}"));
    let behind = rig.after(&format!("afterok:{waiting}"));
    rig.wait_reason(behind, "dependency");
    let update = |job: u64, dependency: &str| {
        let word = format!("Dependency={dependency}");
        rig.slurm("scontrol", &["update", &format!("JobId={job}"), &word])
    };

    // The conditions by which it would never start.
    for (dependency, words) in [
        (format!("afterok:{waiting}"), "would wait for itself"),
        (format!("afterany:{second},afterok:{behind}"), "would wait for itself"),
        ("afterok:999999".to_owned(), "job 999999 does not exist"),
        ("afterwards:1".to_owned(), "is unknown"),
    ] {
        let refused = update(waiting, &dependency);
        assert_eq!(refused.status.code(), Some(1), "{dependency}: {refused:?}");
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(text.contains(words), "{dependency}: {text}");
    }
    assert_eq!(
        rig.cluster.job(waiting).dependency.as_deref(),
        Some(format!("afterok:{first}").as_str())
    );
    let done = update(waiting, &format!("afternotok:{second}"));
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");

    let expected = format!("afternotok:{second}");
    assert_eq!(rig.cluster.job(waiting).dependency.as_deref(), Some(expected.as_str()));
    wait::until(SOON, "squeue shows the new one", || {
        let line = rig.printed("squeue", &["-h", "-j", &waiting.to_string(), "-o", "%R %E"]);
        (line.trim() == format!("(Dependency) {expected}(unfulfilled)")).then_some(())
    });
    let events = rig.cluster.events(waiting).items;
    assert!(
        events.iter().any(|event| event.text == format!("it waits for {expected}, by its user"))
    );
    // Its earlier dependency has no effect any more, also under the next controller.
    rig.let_go("first");
    rig.cluster.wait_job(first, SOON, "succeeded");
    rig.cluster.controller.kill();
    rig.cluster.controller.start();
    rig.cluster.wait_ready();
    rig.wait_reason(waiting, "dependency");
    rig.let_go("second");
    rig.cluster.wait_job(waiting, SOON, "succeeded");
    rig.cluster.wait_job(behind, SOON, "succeeded");
}

#[test]
fn a_removed_dependency_lets_the_tasks_of_an_array_start_and_one_that_runs_takes_none() {
    let rig = Rig::new();
    let running = rig.until_file("go", 0);
    rig.cluster.wait_job(running, SOON, "running");
    let request = SubmitRequest {
        array: Some(ArrayRange { first: 4, last: 6 }),
        ..depends(&format!("afterok:{running}"))
    };
    let array = rig.cluster.submit(&request).job_id;
    rig.wait_reason(array, "dependency");
    let tessera = |job: String, dependency: &str| {
        Command::new(programs().path("tessera"))
            .args(["--url", &rig.cluster.url(), "update", &job, "--dependency", dependency])
            .output()
            .unwrap()
    };

    // One task first: the others wait on.
    let one = tessera(format!("{array}_5"), "none");
    assert!(one.status.success(), "{one:?}");
    rig.cluster.wait_job(array + 1, SOON, "succeeded");
    rig.wait_reason(array + 2, "dependency");
    let lines = rig.printed("squeue", &["-h", "-j", &array.to_string(), "-o", "%i %E"]);
    assert_eq!(lines.trim(), format!("{array}_[4,6] afterok:{running}(unfulfilled)"));
    let all = tessera(array.to_string(), "none");
    assert!(all.status.success(), "{all:?}");
    rig.cluster.wait_job(array, SOON, "succeeded");
    rig.cluster.wait_job(array + 2, SOON, "succeeded");

    let refused = tessera(running.to_string(), "singleton");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("is running and can't be given another dependency"), "{text}");
    rig.let_go("go");
    rig.cluster.wait_job(running, SOON, "succeeded");
}

#[test]
fn slurms_commands_show_what_a_job_waits_for() {
    let rig = Rig::new();
    let first = rig.until_file("go", 1);
    let second = rig.after(&format!("afterok:{first}"));
    let named = second.to_string();
    rig.wait_reason(second, "dependency");

    let line = rig.printed("squeue", &["-h", "-j", &named, "-o", "%t %R %E"]);
    assert_eq!(line.trim(), format!("PD (Dependency) afterok:{first}(unfulfilled)"));
    let shown = rig.printed("scontrol", &["show", "job", &named]);
    assert!(shown.contains(&format!("Dependency=afterok:{first}(unfulfilled)")), "{shown}");

    rig.let_go("go");
    rig.wait_reason(second, "dependency_never_satisfied");
    let line = rig.printed("squeue", &["-h", "-j", &named, "-o", "%t %R %E"]);
    assert_eq!(line.trim(), format!("PD (DependencyNeverSatisfied) afterok:{first}(failed)"));
}

#[test]
fn two_changes_at_the_same_moment_never_make_two_jobs_wait_for_each_other() {
    let rig = Rig::new();
    let blocker = rig.until_file("never", 0);
    let change = |job: u64, other: u64| {
        let body = serde_json::to_vec(&json!({ "dependency": format!("afterany:{other}") }));
        let path = format!("/v1/jobs/{job}");
        rig.cluster.call("PATCH", &path, Some(&body.unwrap())).status
    };

    for _ in 0..12 {
        let (one, other) =
            (rig.after(&format!("afterok:{blocker}")), rig.after(&format!("afterok:{blocker}")));
        let start = Barrier::new(2);
        let mut answers = thread::scope(|scope| {
            let first = scope.spawn(|| {
                start.wait();
                change(one, other)
            });
            start.wait();
            let second = change(other, one);
            [first.join().unwrap(), second]
        });
        answers.sort_unstable();
        assert_eq!(answers, [200, 400]);
    }
}
