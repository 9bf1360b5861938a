//! Changing the share of a job that waits or runs: `tessera update JOB --sm N`.

use std::path::PathBuf;
use std::process::{Command, Output};

use tessera_api_types::{JobDetail, ProblemDetails, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::programs::programs;
use tessera_load_tests::{processes, wait};

const GIB: u64 = 1 << 30;
const STOP: i32 = 19;
const CONTINUE: i32 = 18;

struct Rig {
    cluster: Cluster,
}

impl Rig {
    fn new() -> Self {
        Self { cluster: Plan::new().node("n1", "a100-40gb").start() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.cluster.scratch().join(name)
    }

    /// A sharer that counts, and writes its count on `SIGUSR1`.
    fn counter(&self, name: &str, checkpoint: bool) -> SubmitRequest {
        let file = self.file(name).display().to_string();
        let line = format!(
            "n=$(cat {file}.kept 2>/dev/null || echo 0)\n\
             trap 'echo $n > {file}.kept; exit 0' USR1\n\
             echo \"with $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE from $n\"\n\
             while [ ! -e {file}.done ]; do n=$((n+1)); sleep 0.02; done"
        );
        SubmitRequest {
            name: Some(name.to_owned()),
            user: Some("ada".into()),
            share: Some("mps".into()),
            sm_percent: Some(50),
            gpu_memory_bytes: Some(4 * GIB),
            checkpoint_signal: checkpoint.then(|| "USR1".to_owned()),
            max_retries: Some(0),
            ..script(&line)
        }
    }

    fn submit(&self, request: &SubmitRequest) -> u64 {
        self.cluster.submit(request).job_id
    }

    /// Waits until a job's newest attempt runs with a share, and returns where it began.
    fn runs_with(&self, job: u64, sm: u8) -> u64 {
        let line = format!("with {sm} from ");
        wait::until(SOON, "the job runs with its share", || {
            if self.cluster.job(job).job.state != "running" {
                return None;
            }
            let path = format!("/v1/jobs/{job}/logs");
            let logs = self.cluster.try_call("GET", &path, None).ok()?;
            let logs = (logs.status == 200).then(|| logs.text())?;
            logs.lines().find_map(|l| l.strip_prefix(&line)?.parse().ok())
        })
    }

    fn tessera(&self, job: u64, sm: &str) -> Output {
        Command::new(programs().path("tessera"))
            .args(["--url", &self.cluster.url()])
            .args(["update", &job.to_string(), "--sm", sm])
            .output()
            .unwrap()
    }

    fn refused(&self, job: u64, body: &str, status: u16) -> ProblemDetails {
        let path = format!("/v1/jobs/{job}");
        self.cluster.call("PATCH", &path, Some(body.as_bytes())).expect(status).json()
    }

    fn shares(&self) -> Vec<u8> {
        let gpus = self.cluster.gpus();
        let all = gpus.items.into_iter().flat_map(|gpu| gpu.instances);
        all.flat_map(|instance| instance.sharers).filter_map(|sharer| sharer.sm_percent).collect()
    }
}

#[test]
fn a_running_jobs_share_changes_through_its_checkpoint_and_costs_no_retry() {
    let rig = Rig::new();
    let job = rig.submit(&rig.counter("counter", true));
    assert_eq!(rig.runs_with(job, 50), 0);
    let before = rig.cluster.job(job);

    let output = rig.tessera(job, "30");
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let kept = rig.runs_with(job, 30);

    let on_disk = std::fs::read_to_string(rig.file("counter.kept")).unwrap();
    assert_eq!(on_disk.trim().parse(), Ok(kept), "it goes on where it put its work aside");
    let after: JobDetail = rig.cluster.job(job);
    assert_eq!(after.retries_left, before.retries_left);
    assert_eq!(after.attempt_list.len(), 2, "{after:#?}");
    assert_eq!(after.attempt_list[0].state, "preempted");
    let detail = after.attempt_list[0].detail.clone().unwrap();
    assert!(detail.contains("another share"), "{detail}");
    assert_eq!(rig.shares(), [30]);
    let same = rig.tessera(job, "30");
    assert!(same.status.success(), "{same:?}");

    std::fs::write(rig.file("counter.done"), "").unwrap();
    let done = rig.cluster.wait_job(job, SOON, "succeeded");
    assert_eq!(done.attempt_list.len(), 2, "the same share restarts nothing");
    let problem = rig.refused(job, r#"{"sm_percent":40}"#, 409);
    assert!(problem.detail.contains("can't be changed"), "{problem:?}");
}

#[test]
fn a_waiting_jobs_share_changes_at_once_and_an_impossible_change_is_refused_with_its_reason() {
    let rig = Rig::new();
    let held = rig.submit(&SubmitRequest { hold: true, ..rig.counter("held", false) });
    rig.cluster
        .call("PATCH", &format!("/v1/jobs/{held}"), Some(br#"{"sm_percent":20}"#))
        .expect(200);
    assert_eq!(rig.cluster.job(held).job.state, "held", "it waits on");
    rig.cluster.act(held, "release").expect(200);
    rig.runs_with(held, 20);

    let running = rig.refused(held, r#"{"sm_percent":30}"#, 409);
    assert!(running.detail.contains("without a checkpoint signal"), "{running:?}");
    assert!(running.expected.unwrap().contains("--checkpoint"));
    let alone = rig.submit(&SubmitRequest { hold: true, ..script("true") });
    let exclusive = rig.refused(alone, r#"{"sm_percent":30}"#, 409);
    assert!(exclusive.detail.contains("exclusive"), "{exclusive:?}");
    for (body, field) in [
        ("{}", "priority"),
        (r#"{"sm_percent":0}"#, "sm_percent"),
        (r#"{"sm_percent":101}"#, "sm_percent"),
    ] {
        let problem = rig.refused(held, body, 400);
        assert_eq!(problem.field.as_deref(), Some(field), "{body}");
    }
    let unknown = rig.refused(held, r#"{"sms":1}"#, 400);
    assert_eq!(unknown.field.as_deref(), Some("sms"));
    rig.refused(999_999, r#"{"sm_percent":30}"#, 404);
    let by_hand = rig.tessera(held, "30");
    assert_eq!(by_hand.status.code(), Some(1));
    let words = String::from_utf8(by_hand.stderr).unwrap();
    assert!(words.contains("without a checkpoint signal"), "{words}");
}

#[test]
fn the_next_controller_completes_the_change_of_a_share() {
    let mut rig = Rig::new();
    let job = rig.submit(&rig.counter("counter", true));
    rig.runs_with(job, 50);
    let agent = rig.cluster.agents[0].pid().unwrap();
    processes::signal(agent, STOP);
    let path = format!("/v1/jobs/{job}");
    rig.cluster.call("PATCH", &path, Some(br#"{"sm_percent":25}"#)).expect(200);
    rig.cluster.controller.kill();
    rig.cluster.controller.start();
    processes::signal(agent, CONTINUE);
    rig.cluster.wait_ready();

    rig.runs_with(job, 25);
}
