//! Running jobs that move: `tessera` makes free space for a job that would wait.

use std::path::PathBuf;
use std::process::Command;

use tessera_api_types::{JobDetail, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Database, Plan, SOON, script};
use tessera_load_tests::{postgres, processes, wait};

const GIB: u64 = 1 << 30;
const STOP: i32 = 19;
const CONTINUE: i32 = 18;

struct Rig {
    cluster: Cluster,
}

impl Rig {
    /// A cluster that knows the task `train`: 3,000 s on a whole GPU, 21,000 s on a seventh.
    fn new() -> Self {
        let cluster = Plan::new()
            .policy("tessera")
            .env("TESSERA_MIGRATION_COOLDOWN", "1")
            .database(Database::External)
            .node("n1", "a100-40gb")
            .start();
        let mut rig = Self { cluster };
        for profile in ["7g.40gb", "1g.5gb"] {
            let seen = SubmitRequest {
                user: Some("ada".into()),
                task_key: Some("train".into()),
                gpu_profile: Some(profile.into()),
                ..script("true")
            };
            let job = rig.cluster.submit(&seen).job_id;
            rig.cluster.wait_job(job, SOON, "succeeded");
        }
        rig.sql(
            "UPDATE predictions SET ran_ms = CASE profile WHEN '7g.40gb' THEN 3000000 \
             ELSE 21000000 END WHERE ended_at IS NOT NULL",
        );
        rig.cluster.controller.kill();
        rig.cluster.controller.start();
        rig.cluster.wait_ready();
        rig
    }

    fn sql(&self, statement: &str) -> String {
        let url = self.cluster.database.as_ref().unwrap().url();
        let output = Command::new(postgres::program("psql"))
            .args(["-q", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", &url, "-c", statement])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.cluster.scratch().join(name)
    }

    /// A job of the known task that counts, and writes its count on `SIGUSR1`.
    fn counter(&self, checkpoint: bool) -> SubmitRequest {
        let file = self.file("counter").display().to_string();
        let line = format!(
            "n=$(cat {file}.kept 2>/dev/null || echo 0)\n\
             trap 'echo $n > {file}.kept; exit 0' USR1\n\
             echo \"from $n\"\n\
             while [ ! -e {file}.done ]; do n=$((n+1)); sleep 0.02; done"
        );
        SubmitRequest {
            user: Some("ada".into()),
            task_key: Some("train".into()),
            gpu_memory_bytes: Some(4 * GIB),
            checkpoint_signal: checkpoint.then(|| "USR1".to_owned()),
            max_retries: Some(0),
            ..script(&line)
        }
    }

    fn runs(&self, request: &SubmitRequest) -> u64 {
        let job = self.cluster.submit(request).job_id;
        self.cluster.wait_job(job, SOON, "running");
        job
    }

    /// Waits until a job's attempt of this number runs.
    fn runs_again(&self, job: u64, number: usize) -> JobDetail {
        wait::until(2 * SOON, "the job runs again", || {
            let detail = self.cluster.job(job);
            let there = detail.attempt_list.len() == number && detail.job.state == "running";
            there.then_some(detail)
        })
    }
}

fn small() -> SubmitRequest {
    SubmitRequest { gpu_memory_bytes: Some(4 * GIB), ..script("sleep 600") }
}

#[test]
fn a_running_job_writes_a_checkpoint_frees_its_slice_and_continues_without_a_retry() {
    let rig = Rig::new();
    let mover = rig.runs(&rig.counter(true));
    let before = rig.cluster.job(mover);
    assert_eq!(before.attempt_list[0].profile, "7g.40gb", "nobody else needs it");

    let newcomer = rig.cluster.submit(&small()).job_id;
    rig.cluster.wait_job(newcomer, 2 * SOON, "running");
    let after = rig.runs_again(mover, 2);

    assert_ne!(after.attempt_list[1].profile, "7g.40gb");
    assert_eq!(after.attempt_list[0].state, "preempted");
    let detail = after.attempt_list[0].detail.clone().unwrap();
    assert!(detail.contains("continues elsewhere"), "{detail}");
    assert_eq!(after.retries_left, before.retries_left);
    let kept: u64 =
        std::fs::read_to_string(rig.file("counter.kept")).unwrap().trim().parse().unwrap();
    wait::until(SOON, "it goes on where it put its work aside", || {
        rig.cluster.logs(mover).contains(&format!("from {kept}\n")).then_some(())
    });
    let why = rig.sql(&format!(
        "SELECT explanation ->> 'summary' FROM decisions \
         WHERE job = {mover} AND outcome = 'migrate'"
    ));
    assert!(why.contains("moves from 7g.40gb@0 of GPU 0 of node n1 to "), "{why}");
    assert!(why.contains("is expected to cost 30 s"), "{why}");
    let uncharged = rig.sql(&format!("SELECT uncharged + charged FROM jobs WHERE job = {mover}"));
    assert_eq!(uncharged, "0");
    let events = rig.cluster.events(mover);
    let is_migration = |text: &str| text.contains("asked to write a checkpoint and migrate");
    assert!(events.items.iter().any(|event| is_migration(&event.text)), "{events:#?}");

    std::fs::write(rig.file("counter.done"), "").unwrap();
    rig.cluster.wait_job(mover, SOON, "succeeded");
    let kept = rig.sql(&format!(
        "SELECT string_agg(concat_ws(' ', p.checkpoint_ms > 0, p.migration_ms > 0), ',' ORDER BY a.number) \
         FROM predictions p JOIN attempts a USING (attempt) WHERE a.job = {mover}"
    ));
    assert_eq!(kept, "t,t", "its checkpoint, and how long the migration took");
}

#[test]
fn a_job_without_a_checkpoint_signal_is_not_migrated() {
    let rig = Rig::new();
    let whole = SubmitRequest { gpu_memory_bytes: Some(35 * GIB), ..rig.counter(false) };
    let holder = rig.runs(&whole);

    let newcomer = rig.cluster.submit(&small()).job_id;
    wait::until(SOON, "it is told why it waits", || {
        let explain = rig.cluster.explain(newcomer);
        (explain.reason.as_deref() == Some("resources")).then_some(())
    });

    assert_eq!(rig.cluster.job(holder).attempt_list.len(), 1);
    assert_eq!(rig.cluster.job(holder).job.state, "running");
    rig.cluster.act(holder, "cancel").expect(200);
    rig.cluster.wait_job(newcomer, 2 * SOON, "running");
}

#[test]
fn no_job_is_lost_if_the_controller_dies_during_a_migration() {
    let mut rig = Rig::new();
    let mover = rig.runs(&rig.counter(true));
    let agent = rig.cluster.agents[0].pid().unwrap();
    processes::signal(agent, STOP);
    let newcomer = rig.cluster.submit(&small()).job_id;
    wait::until(2 * SOON, "it is asked to move", || {
        let migrations = rig.sql("SELECT COUNT(*) FROM decisions WHERE outcome = 'migrate'");
        (migrations != "0").then_some(())
    });

    rig.cluster.controller.kill();
    rig.cluster.controller.start();
    processes::signal(agent, CONTINUE);
    rig.cluster.wait_ready();

    rig.cluster.wait_job(newcomer, 3 * SOON, "running");
    let after = rig.runs_again(mover, 2);
    assert_eq!(after.attempt_list[0].state, "preempted");
    std::fs::write(rig.file("counter.done"), "").unwrap();
    rig.cluster.wait_job(mover, SOON, "succeeded");
}
