//! Jobs that share a slice under MPS: real agents, daemons, servers and clients, on the stand-in
//! for NVIDIA's control program. Rows M1 to M7 of docs/reliability.md.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tessera_api::types::{Instance, JobDetail, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::programs::programs;
use tessera_load_tests::{processes, wait};

/// Within this a slice serves again after a fault, and a dead daemon is noticed (M2, M5).
const SERVES_AGAIN: Duration = Duration::from_secs(10);
const GIB: u64 = 1 << 30;

/// One node with one card, and the fault list of its MPS.
struct Rig {
    cluster: Cluster,
}

/// A job that is a client of MPS until told otherwise by files.
struct Client {
    job: u64,
    files: PathBuf,
}

impl Rig {
    fn new() -> Self {
        Self { cluster: Plan::new().node("n1", "a100-40gb").start() }
    }

    fn faults(&self, list: &str) {
        std::fs::write(self.cluster.hardware(0).join("mps-faults"), list).unwrap();
    }

    fn request(&self, name: &str, more: &str) -> SubmitRequest {
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

    fn submit(&self, request: &SubmitRequest) -> Client {
        let job = self.cluster.submit(request).job_id;
        let name = request.name.clone().unwrap();
        Client { job, files: self.cluster.scratch().join(name) }
    }

    /// A client that runs its kernels.
    fn client(&self, name: &str) -> Client {
        self.serving(self.submit(&self.request(name, "")))
    }

    /// Waits until a job's newest attempt is a client.
    fn serving(&self, client: Client) -> Client {
        self.serves(&client, SOON);
        client
    }

    fn serves(&self, client: &Client, within: Duration) {
        wait::until(within, "the job is a client", || {
            let said = self.cluster.job(client.job).job.state == "running"
                && self.cluster.logs(client.job).contains("shares ");
            said.then_some(())
        });
    }

    fn shared(&self) -> Vec<Instance> {
        let gpus = self.cluster.gpus();
        let all = gpus.items.into_iter().flat_map(|gpu| gpu.instances);
        all.filter(|instance| instance.state == "shared").collect()
    }

    /// Pids of the daemons that run, from their own files.
    fn daemons(&self) -> Vec<u32> {
        let folder = self.cluster.agent_data(0).join("mps");
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let pid = |folder: PathBuf| {
            let text =
                std::fs::read_to_string(folder.join("p/nvidia-cuda-mps-control.pid")).ok()?;
            text.trim().parse().ok()
        };
        entries.filter_map(|entry| pid(entry.path())).collect()
    }

    fn ended_as(&self, client: &Client, state: &str) -> JobDetail {
        self.cluster.wait_job(client.job, SOON, state)
    }

    /// Waits until the job's first attempt ended in a state, and returns the job.
    fn first_attempt(&self, client: &Client, state: &str) -> JobDetail {
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
    fn raise(&self, what: &str) {
        std::fs::write(self.files.with_extension(what), "").unwrap();
    }

    /// The client's process.
    fn pid(&self) -> u32 {
        let mark = format!("TESSERA_JOB_ID={}\0", self.job);
        let found = processes::marked(&mark);
        *found.first().unwrap_or_else(|| panic!("no process of job {}", self.job))
    }
}

#[test]
fn m1_m2_one_jobs_fault_ends_its_slice_costs_others_no_retry_and_the_slice_serves_again() {
    let rig = Rig::new();
    let victim = rig.client("victim");
    let culprit = rig.client("culprit");
    // On a slice of its own: 60 % and 50 % don't fit together.
    let apart = SubmitRequest { sm_percent: Some(60), ..rig.request("apart", "") };
    let apart = rig.serving(rig.submit(&apart));
    let shared = rig.shared();
    assert_eq!(shared.len(), 2, "{shared:#?}");
    let both = shared.iter().find(|instance| instance.sharers.len() == 2).unwrap();
    assert_eq!(both.profile, "2g.10gb");
    let parts: Vec<_> = both.sharers.iter().map(|s| (s.sm_percent, s.memory_bytes)).collect();
    assert_eq!(parts, [(50, 4 * GIB), (50, 4 * GIB)]);
    let why = rig.cluster.explain(culprit.job);
    assert!(why.summary.contains("is shared and has room"), "{why:#?}");

    let struck = Instant::now();
    culprit.raise("fault");
    let victims = rig.first_attempt(&victim, "collateral");
    rig.serves(&victim, SERVES_AGAIN + SOON);

    assert!(struck.elapsed() < SERVES_AGAIN, "{:?}", struck.elapsed());
    assert_eq!(victims.retries_left, rig.cluster.job(victim.job).retries_left);
    let detail = victims.attempt_list[0].detail.clone().unwrap();
    assert!(detail.contains("fault"), "{detail}");
    let culprits = rig.ended_as(&culprit, "failed");
    assert_eq!(culprits.attempt_list.len(), 1, "{culprits:#?}");
    let neighbour = rig.cluster.job(apart.job);
    assert_eq!((neighbour.job.state.as_str(), neighbour.job.attempts), ("running", 1));
    victim.raise("done");
    apart.raise("done");
    assert_eq!(rig.ended_as(&victim, "succeeded").job.attempts, 2);
    rig.ended_as(&apart, "succeeded");
    wait::until(SOON, "no daemon is left", || rig.daemons().is_empty().then_some(()));
}

#[test]
fn m3_a_cancelled_job_is_terminated_in_order_and_its_neighbour_goes_on() {
    let rig = Rig::new();
    // A bare kill would break the neighbour for certain.
    rig.faults("poison_percent=100\n");
    let neighbour = rig.client("neighbour");
    let deaf = SubmitRequest { grace_secs: Some(1), ..rig.request("deaf", "") };
    let text = deaf.script.clone().unwrap().replace("exec ", "trap '' TERM\nexec ");
    let deaf = rig.serving(rig.submit(&SubmitRequest { script: Some(text), ..deaf }));

    rig.cluster.act(deaf.job, "cancel");

    rig.ended_as(&deaf, "cancelled");
    neighbour.raise("done");
    let ended = rig.ended_as(&neighbour, "succeeded");
    assert_eq!(ended.job.attempts, 1, "{ended:#?}");
}

#[test]
fn m4_after_a_bare_death_the_neighbours_are_verified() {
    let rig = Rig::new();
    rig.faults("poison_percent=0\n");
    let neighbour = rig.client("neighbour");
    let first = rig.client("first");

    processes::signal(first.pid(), libc::SIGKILL);
    rig.ended_as(&first, "failed");

    // The server is well: nobody is touched.
    assert_eq!(rig.cluster.job(neighbour.job).job.attempts, 1);
    rig.faults("poison_percent=100\n");
    let second = rig.client("second");
    processes::signal(second.pid(), libc::SIGKILL);
    rig.ended_as(&second, "failed");

    let harmed = rig.first_attempt(&neighbour, "collateral");
    assert!(harmed.attempt_list[0].detail.is_some(), "{harmed:#?}");
    rig.serves(&neighbour, SOON);
    neighbour.raise("done");
    assert_eq!(rig.ended_as(&neighbour, "succeeded").job.attempts, 2);
}

#[test]
fn m5_a_daemon_that_dies_or_hangs_takes_only_its_own_slice() {
    let rig = Rig::new();
    let one = rig.client("one");
    let first_daemon = rig.daemons();
    let other = SubmitRequest { sm_percent: Some(60), ..rig.request("other", "") };
    let other = rig.serving(rig.submit(&other));
    for (signal, attempts) in [(libc::SIGKILL, 2), (libc::SIGSTOP, 3)] {
        let apart = rig.daemons();
        let own = apart.iter().find(|pid| !is_of(&rig, **pid, &other)).copied().unwrap();
        let struck = Instant::now();

        processes::signal(own, signal);
        wait::until(SERVES_AGAIN * 3, "the job runs again", || {
            let job = rig.cluster.job(one.job).job;
            (job.attempts == attempts && job.state == "running").then_some(())
        });

        let job = rig.cluster.job(one.job);
        let last = &job.attempt_list[usize::try_from(attempts).unwrap() - 2];
        assert_eq!(last.state, "collateral", "{job:#?}");
        assert!(struck.elapsed() < SERVES_AGAIN * 2, "{:?}", struck.elapsed());
        rig.serves(&one, SOON);
        assert_eq!(rig.cluster.job(other.job).job.attempts, 1);
    }
    assert!(!rig.daemons().contains(&first_daemon[0]));
    one.raise("done");
    other.raise("done");
    rig.ended_as(&one, "succeeded");
    assert_eq!(rig.ended_as(&other, "succeeded").job.attempts, 1);
}

/// Whether a daemon serves the slice of a job.
fn is_of(rig: &Rig, daemon: u32, client: &Client) -> bool {
    let slice = rig.cluster.job(client.job).job.slice.unwrap();
    let environment = std::fs::read(format!("/proc/{daemon}/environ")).unwrap();
    let wanted = format!("CUDA_VISIBLE_DEVICES={slice}");
    environment.split(|byte| *byte == 0).any(|pair| pair == wanted.as_bytes())
}

#[test]
fn m6_a_slow_start_is_waited_for_and_a_refused_one_costs_nothing_and_says_why() {
    let rig = Rig::new();
    rig.faults("start_delay_ms=1500\nserver_delay_ms=500\n");
    let slow = rig.client("slow");
    slow.raise("done");
    assert_eq!(rig.ended_as(&slow, "succeeded").job.attempts, 1);
    rig.faults("refuse_start=1\n");

    let refused = rig.submit(&rig.request("refused", ""));
    let job = rig.first_attempt(&refused, "not_started");

    let detail = job.attempt_list[0].detail.clone().unwrap();
    assert!(detail.contains("MPS can't be started"), "{detail}");
    rig.faults("");
    rig.serves(&refused, SOON);
    refused.raise("done");
    assert_eq!(rig.ended_as(&refused, "succeeded").retries_left, job.retries_left);
}

#[test]
fn m7_a_memory_limit_stops_only_the_greedy_one() {
    let rig = Rig::new();
    let modest = rig.client("modest");
    let grow = format!("--memory-bytes {} --grow-bytes {}", 3 * GIB, 2 * GIB);
    let greedy = rig.serving(rig.submit(&rig.request("greedy", &grow)));

    greedy.raise("grow");

    rig.ended_as(&greedy, "failed");
    let errors =
        rig.cluster.call("GET", &format!("/v1/jobs/{}/logs?stream=stderr", greedy.job), None);
    assert!(errors.text().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{}", errors.text());
    modest.raise("done");
    assert_eq!(rig.ended_as(&modest, "succeeded").job.attempts, 1);
}

#[test]
fn sharers_outlive_their_agent_and_users_are_kept_apart() {
    let mut rig = Rig::new();
    let ada = rig.client("ada");
    let bob = SubmitRequest { user: Some("bob".into()), ..rig.request("bob", "") };
    let bob = rig.serving(rig.submit(&bob));
    assert_eq!(rig.shared().len(), 2);
    let daemons = rig.daemons();

    rig.cluster.agents[0].kill();
    rig.cluster.agents[0].start();
    rig.cluster.wait_ready();

    let late = rig.client("late");
    let slice = |client: &Client| rig.cluster.job(client.job).job.slice;
    assert_eq!(slice(&late), slice(&ada));
    assert_ne!(slice(&late), slice(&bob));
    let mut after = rig.daemons();
    after.sort_unstable();
    let mut before = daemons;
    before.sort_unstable();
    assert_eq!(after, before, "the daemons were taken over");
    for client in [&ada, &bob, &late] {
        client.raise("done");
        assert_eq!(rig.ended_as(client, "succeeded").job.attempts, 1);
    }
    wait::until(SOON, "no daemon is left", || rig.daemons().is_empty().then_some(()));
}
