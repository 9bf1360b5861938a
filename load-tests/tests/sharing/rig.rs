//! A node whose slices are shared, and clients that files control.

use std::path::PathBuf;
use std::time::Duration;

use tessera_api_types::{InstanceDetails, JobDetail, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::programs::programs;
use tessera_load_tests::{processes, wait};

/// Maximum time until a slice serves again after a fault, and until a dead daemon is noticed (M2,
/// M5).
pub const SERVES_AGAIN: Duration = Duration::from_secs(10);
pub const GIB: u64 = 1 << 30;

/// One node with one GPU, and the fault list of its MPS.
pub struct Rig {
    pub cluster: Cluster,
}

/// A job that is a client of MPS until a file changes it.
pub struct Client {
    pub job: u64,
    files: PathBuf,
}

impl Rig {
    pub fn new() -> Self {
        Self::of(Plan::new())
    }

    pub fn of(plan: Plan) -> Self {
        Self { cluster: plan.node("n1", "a100-40gb").start() }
    }

    pub fn faults(&self, list: &str) {
        std::fs::write(self.cluster.hardware(0).join("mps-faults"), list).unwrap();
    }

    pub fn request(&self, name: &str, more: &str) -> SubmitRequest {
        let program = programs().path("tessera-sim-client").display().to_string();
        let files = self.cluster.scratch().join(name).display().to_string();
        let line = format!(
            "exec {program} --mps --until {files}.done --fault-when {files}.fault \
             --grow-when {files}.grow {more}"
        );
        SubmitRequest {
            name: Some(name.to_owned()),
            user: Some("ada".into()),
            share: Some("mps".into()),
            sm_percent: Some(50),
            gpu_memory_bytes: Some(4 * GIB),
            ..script(&line)
        }
    }

    pub fn submit(&self, request: &SubmitRequest) -> Client {
        let job = self.cluster.submit(request).job_id;
        let name = request.name.clone().unwrap();
        Client { job, files: self.cluster.scratch().join(name) }
    }

    /// A client that runs its kernels.
    pub fn client(&self, name: &str) -> Client {
        self.serving(self.submit(&self.request(name, "")))
    }

    /// Waits until a job's newest attempt is a client.
    pub fn serving(&self, client: Client) -> Client {
        self.serves(&client, SOON);
        client
    }

    pub fn serves(&self, client: &Client, within: Duration) {
        wait::until(within, "the job is a client", || {
            let is_running = self.cluster.job(client.job).job.state == "running"
                && self.cluster.logs(client.job).contains("shares ");
            is_running.then_some(())
        });
    }

    pub fn shared(&self) -> Vec<InstanceDetails> {
        let gpus = self.cluster.gpus();
        let all = gpus.items.into_iter().flat_map(|gpu| gpu.instances);
        all.filter(|instance| instance.state == "shared").collect()
    }

    /// Pids of the daemons that run.
    pub fn daemons(&self) -> Vec<u32> {
        self.marked("nvidia-cuda-mps-control")
    }

    /// Pids of the servers that run.
    pub fn servers(&self) -> Vec<u32> {
        self.marked("nvidia-cuda-mps-server")
    }

    /// Pids of processes that were started under a name, and have the variable of a daemon's folder.
    fn marked(&self, name: &str) -> Vec<u32> {
        let folder = self.cluster.agent_data(0).join("mps");
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let found = entries.flat_map(|entry| {
            processes::marked(&format!("TESSERA_MPS={}\0", entry.path().display()))
        });
        found.filter(|pid| started_as(*pid, name)).collect()
    }

    pub fn ended_as(&self, client: &Client, state: &str) -> JobDetail {
        self.cluster.wait_job(client.job, SOON, state)
    }

    /// Waits until the job's first attempt ended in a state, and returns the job.
    pub fn first_attempt(&self, client: &Client, state: &str) -> JobDetail {
        wait::until(SOON, "the first attempt ended", || {
            let job = self.cluster.job(client.job);
            let over = job.attempt_list.first().is_some_and(|first| first.ended_at.is_some());
            over.then(|| {
                assert_eq!(job.attempt_list[0].state, state, "{job:#?}");
                job
            })
        })
    }
}

impl Client {
    pub fn raise(&self, what: &str) {
        std::fs::write(self.files.with_extension(what), "").unwrap();
    }

    /// The client's process: by its own files, since jobs of other clusters on this machine have
    /// the same numbers.
    pub fn pid(&self) -> u32 {
        let own = self.files.display().to_string();
        let runs_it = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&own)
        };
        let mut found = processes::marked(&format!("TESSERA_JOB_ID={}\0", self.job));
        found.retain(runs_it);
        *found.first().unwrap_or_else(|| panic!("no process of job {}", self.job))
    }
}

/// Returns whether a process was started by this program's name, and is not a daemon's short-lived
/// query.
fn started_as(pid: u32, name: &str) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let program = words.next().unwrap_or_default();
    program.ends_with(name.as_bytes()) && words.next().is_some()
}
