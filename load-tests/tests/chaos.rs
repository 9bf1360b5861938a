//! The crash loop: controller, agents, shepherds and PostgreSQL are killed at random while jobs
//! come in. No job may run twice, and none may be lost.
//!
//! The test has its own oracle: each job takes a file lock while it runs (`locks`), and the client
//! durably records what was acknowledged. The seed is printed; `TESSERA_CHAOS_SEED` replays its
//! choices, `TESSERA_CHAOS_SECS` makes the loop longer.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tessera_api_types::{JobCounts, JobDetail, SubmitResponse};
use tessera_load_tests::cluster::{Cluster, Database, Plan, command, is_final};
use tessera_load_tests::programs::programs;
use tessera_load_tests::{http, locks, processes, wait};

/// How long faults are injected by default.
const DEFAULT_SECS: u64 = 25;
/// A run with less traffic than this proves nothing.
const JOBS_PER_SEC_MIN: u64 = 8;
/// A run with fewer faults than one in this many of its seconds proves nothing, so it goes on until it
/// had as many.
const SECS_PER_KILL_MAX: u64 = 2;
/// By how many times a run may exceed its time for that. A few long absences in one seed, or a machine
/// that starts processes slowly, need up to twice the time.
const TIMES_LONGER_MAX: u32 = 4;
/// How long the queue may take to drain after the last fault (invariant V12): the lease of the last lost
/// node, and the work.
const DRAIN_WITHIN: Duration = Duration::from_secs(60);

/// How many shepherds an agent keeps ready.
const SHEPHERDS_READY_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Controller,
    Agent,
    Shepherd,
    AgentAndShepherd,
    Database,
}

/// How often each is chosen: the shepherd most often, since its death must never be missed.
const FAULTS: [(Fault, u32); 5] = [
    (Fault::Controller, 3),
    (Fault::Agent, 4),
    (Fault::Shepherd, 5),
    (Fault::AgentAndShepherd, 2),
    (Fault::Database, 1),
];

#[test]
fn no_job_runs_twice_and_none_is_lost_whatever_is_killed() {
    let seed = from_env("TESSERA_CHAOS_SEED").unwrap_or_else(|| rand::rng().random());
    let secs = from_env("TESSERA_CHAOS_SECS").unwrap_or(DEFAULT_SECS);
    println!("TESSERA_CHAOS_SEED={seed} TESSERA_CHAOS_SECS={secs}");
    let mut cluster = Plan::new()
        .node("n1", "a100-40gb")
        .node("n2", "a30-24gb,a30-24gb")
        // Short, so that an absent node is declared lost within the run.
        .lease_secs(4)
        .database(Database::External)
        .start();
    let mark = format!("CHAOS_MARK={}-{seed}", std::process::id());
    let client = Client::new(&cluster, &mark);

    let enough = secs / SECS_PER_KILL_MAX;
    let stop = AtomicBool::new(false);
    let kills = thread::scope(|scope| {
        for worker in 0..4 {
            let (client, stop) = (&client, &stop);
            scope.spawn(move || client.submit_until(stop, seed, worker));
        }
        let kills = inject(&mut cluster, seed, Duration::from_secs(secs), enough);
        stop.store(true, Ordering::Relaxed);
        kills
    });
    heal(&mut cluster);
    let acked = client.acked();
    println!("{} jobs acknowledged, kills: {kills:?}", acked.len());

    let total: u64 = kills.values().sum();
    assert!(acked.len() as u64 >= secs * JOBS_PER_SEC_MIN, "too little traffic: the run is void");
    assert!(total >= enough, "too few faults: the run is void");
    drain(&cluster, acked.len());
    let lost_runs = every_acknowledged_job_ended_once(&cluster, &acked);
    the_locks_saw_no_two_runs_at_once(&cluster, &acked);
    nothing_is_left(&cluster, &mark);
    println!("{lost_runs} attempts were lost and run again");
}

/// Submits, and durably records each acknowledged job before it counts.
struct Client<'a> {
    address: std::net::SocketAddr,
    bearer: String,
    scratch: std::path::PathBuf,
    program: String,
    mark: &'a str,
    ledger: std::path::PathBuf,
    next: AtomicU32,
}

impl<'a> Client<'a> {
    fn new(cluster: &Cluster, mark: &'a str) -> Self {
        Self {
            address: cluster.http(),
            bearer: format!("Bearer {}", cluster.token()),
            scratch: cluster.scratch(),
            program: programs().path("tessera-test-job").display().to_string(),
            mark,
            ledger: cluster.folder().join("acked"),
            next: AtomicU32::new(0),
        }
    }

    fn submit_until(&self, stop: &AtomicBool, seed: u64, worker: u64) {
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(worker));
        let mut ledger = OpenOptions::new().create(true).append(true).open(&self.ledger).unwrap();
        while !stop.load(Ordering::Relaxed) {
            let key = format!("job-{}", self.next.fetch_add(1, Ordering::Relaxed));
            let millis =
                if random.random_ratio(1, 10) { 1_500 } else { random.random_range(5..300) };
            // A submit whose answer is lost is repeated with its key until it is answered.
            let accepted = wait::until(Duration::from_secs(60), "an acknowledged submit", || {
                self.submit(&key, millis)
            });
            record(&mut ledger, &key, accepted.job_id);
            thread::sleep(Duration::from_millis(random.random_range(20..250)));
        }
    }

    fn submit(&self, key: &str, millis: u64) -> Option<SubmitResponse> {
        let folder = self.scratch.display().to_string();
        let mut request =
            command([self.program.as_str(), "lock", &folder, key, &millis.to_string()]);
        let (name, value) = self.mark.split_once('=').unwrap();
        request.env.insert(name.into(), value.into());
        request.grace_secs = Some(1);
        let body = serde_json::to_vec(&request).unwrap();
        let headers = [
            ("content-type", "application/json"),
            ("authorization", self.bearer.as_str()),
            ("idempotency-key", key),
        ];
        let answer = http::request(self.address, "POST", "/v1/jobs", &headers, Some(&body)).ok()?;
        match answer.status {
            200..=202 => Some(answer.json()),
            503 => None,
            status => panic!("{key}: {status}: {}", answer.text()),
        }
    }

    fn acked(&self) -> BTreeMap<u64, String> {
        let text = std::fs::read_to_string(&self.ledger).unwrap();
        let mut acked = BTreeMap::new();
        for line in text.lines() {
            let (key, job) = line.split_once(' ').unwrap();
            let twice = acked.insert(job.parse().unwrap(), key.to_owned());
            assert_eq!(twice, None, "job {job} was given to two keys");
        }
        acked
    }
}

fn record(ledger: &mut File, key: &str, job: u64) {
    ledger.write_all(format!("{key} {job}\n").as_bytes()).unwrap();
    ledger.sync_data().unwrap();
}

/// Kills a random process at intervals, and restarts it after a random delay, for `time` and until there
/// were `enough` faults.
fn inject(cluster: &mut Cluster, seed: u64, time: Duration, enough: u64) -> BTreeMap<Fault, u64> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut kills = BTreeMap::new();
    let began = Instant::now();
    let is_over = |kills: &BTreeMap<Fault, u64>| {
        let is_enough = kills.values().sum::<u64>() >= enough;
        began.elapsed() >= if is_enough { time } else { time * TIMES_LONGER_MAX }
    };
    while !is_over(&kills) {
        thread::sleep(Duration::from_millis(random.random_range(100..1_200)));
        let fault = choose(&mut random);
        // Mostly restarted at once; sometimes absent for longer than the lease.
        let away = match random.random_range(0..10) {
            0 => Duration::from_millis(6_000),
            1..=3 => Duration::from_millis(800),
            _ => Duration::ZERO,
        };
        if strike(cluster, fault, away, &mut random) {
            *kills.entry(fault).or_default() += 1;
        }
    }
    kills
}

fn choose(random: &mut StdRng) -> Fault {
    let weights: u32 = FAULTS.iter().map(|(_, weight)| weight).sum();
    let mut pick = random.random_range(0..weights);
    for (fault, weight) in FAULTS {
        if pick < weight {
            return fault;
        }
        pick -= weight;
    }
    unreachable!("the weights add up")
}

fn strike(cluster: &mut Cluster, fault: Fault, away: Duration, random: &mut StdRng) -> bool {
    match fault {
        Fault::Controller => {
            cluster.controller.kill();
            thread::sleep(away);
            cluster.controller.start();
            true
        }
        Fault::Agent => {
            let index = random.random_range(0..cluster.agents.len());
            cluster.agents[index].kill();
            thread::sleep(away);
            cluster.agents[index].start();
            true
        }
        Fault::Shepherd => kill_a_shepherd(cluster, random),
        Fault::AgentAndShepherd => {
            let index = random.random_range(0..cluster.agents.len());
            cluster.agents[index].kill();
            let struck = kill_a_shepherd(cluster, random);
            thread::sleep(away);
            cluster.agents[index].start();
            struck
        }
        Fault::Database => {
            let database = cluster.database.as_mut().unwrap();
            database.kill();
            thread::sleep(away.min(Duration::from_secs(1)));
            database.restart();
            true
        }
    }
}

fn kill_a_shepherd(cluster: &Cluster, random: &mut StdRng) -> bool {
    let shepherds = processes::named("tessera-shepherd", &cluster.processes());
    if shepherds.is_empty() {
        return false;
    }
    processes::signal(shepherds[random.random_range(0..shepherds.len())], libc::SIGKILL);
    true
}

/// Starts each process that ended by itself under the faults again, as a service manager would.
fn heal(cluster: &mut Cluster) {
    let daemons = std::iter::once(&mut cluster.controller).chain(&mut cluster.agents);
    for daemon in daemons {
        if !daemon.is_running() {
            daemon.kill();
            daemon.start();
        }
    }
    cluster.wait_ready();
}

fn drain(cluster: &Cluster, acked: usize) {
    let mut last = None;
    let drained = wait::within_time(DRAIN_WITHIN, || {
        let counts: JobCounts = cluster.call("GET", "/v1/jobs/summary", None).json();
        let over: u64 =
            counts.by_state.iter().filter(|(state, _)| is_final(state)).map(|(_, n)| n).sum();
        let done = over == counts.total;
        last = Some(counts);
        done.then_some(())
    });
    let counts = last.unwrap();
    assert!(drained.is_some(), "the queue doesn't drain: {counts:?}");
    let sum: u64 = counts.by_state.values().sum();
    assert_eq!(sum, counts.total, "{counts:?}");
    // Every submit was repeated until it was acknowledged, so no other jobs exist.
    assert_eq!(counts.total, acked as u64, "jobs that were never submitted, or lost jobs");
    // Each job is checked for success by itself; a failure shows the attempts of that job.
}

fn every_acknowledged_job_ended_once(cluster: &Cluster, acked: &BTreeMap<u64, String>) -> usize {
    let runs = locks::read(&cluster.scratch()).unwrap();
    let mut lost = 0;
    for (&job, key) in acked {
        let detail: JobDetail = cluster.job(job);
        assert_eq!(detail.job.state, "succeeded", "{key}: {:#?}", detail.attempt_list);
        let ends = |state: &str| detail.attempt_list.iter().filter(|a| a.state == state).count();
        assert_eq!(ends("succeeded"), 1, "{key}: {:#?}", detail.attempt_list);
        lost += ends("lost");
        // The nodes agree with the database: every run belongs to an attempt.
        let ran = runs.get(key).copied().unwrap_or_default();
        assert!(ran.stopped >= 1, "{key} succeeded without completing: {ran:?}");
        assert!(ran.started as usize <= detail.attempt_list.len(), "{key}: {ran:?}");
        if ends("lost") == 0 {
            assert_eq!((ran.started, ran.stopped), (1, 1), "{key}: {:#?}", detail.attempt_list);
        }
        let finals = cluster.events(job).items.iter().filter(|e| is_final(&e.state)).count();
        assert_eq!(finals, 1, "{key} ended {finals} times");
    }
    lost
}

fn the_locks_saw_no_two_runs_at_once(cluster: &Cluster, acked: &BTreeMap<u64, String>) {
    let runs = locks::read(&cluster.scratch()).unwrap();
    for (key, ran) in &runs {
        assert_eq!(ran.doubled, 0, "{key} ran twice at once");
    }
    assert_eq!(runs.len(), acked.len(), "a job ran that was never acknowledged, or one never did");
}

fn nothing_is_left(cluster: &Cluster, mark: &str) {
    wait::until(Duration::from_secs(15), "no process of a job", || {
        processes::marked(mark).is_empty().then_some(())
    });
    // Each agent keeps a few ready for the next launch; those of its former processes have ended.
    let most = SHEPHERDS_READY_MAX * cluster.agents.len();
    wait::until(Duration::from_secs(15), "few shepherds", || {
        let left = processes::named("tessera-shepherd", &cluster.processes());
        (left.len() <= most).then_some(())
    });
    let idle = wait::within_time(Duration::from_secs(15), || {
        let gpus = cluster.gpus().items;
        let busy = gpus.iter().flat_map(|gpu| &gpu.instances).any(|i| i.state != "idle");
        (!busy && gpus.iter().all(|gpu| !gpu.changing)).then_some(())
    });
    assert!(idle.is_some(), "something is left on a GPU: {:#?}", cluster.gpus());
    let leftovers = leftover_attempts(&cluster.agent_data(0), &cluster.agent_data(1));
    println!("{leftovers} output files are kept");
}

/// Counts what agents keep of attempts: output stays readable, so this is reported, not judged.
fn leftover_attempts(first: &Path, second: &Path) -> usize {
    let count = |folder: &Path| {
        std::fs::read_dir(folder.join("outputs")).map_or(0, std::iter::Iterator::count)
    };
    count(first) + count(second)
}

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
