//! A cluster of real processes in one temporary folder.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tessera_api_types::{
    GpuListing, JobCounts, JobDetail, JobEvents, JobExplanation, JobView, LayoutPlans, NodeDetails,
    NodeListing, SubmitRequest, SubmitResponse, TokenCreated, TokenRequest,
};

use crate::daemon::Daemon;
use crate::http::{self, Response};
use crate::postgres::Postgres;
use crate::programs::programs;
use crate::{ports, processes, wait};

/// How long a cluster may take until it is ready: a first start makes a database, and tests
/// share their cores.
pub const READY_WITHIN: Duration = Duration::from_secs(60);

/// How long a small thing may take on a busy machine.
pub const SOON: Duration = Duration::from_secs(20);

/// The parts of a cluster.
#[derive(Clone, Debug)]
pub struct Plan {
    nodes: Vec<NodePlan>,
    policy: String,
    lease_secs: u64,
    database: Database,
    mps_control: Option<PathBuf>,
    agent_settings: Option<&'static str>,
    env: Vec<(String, String)>,
    run_as: &'static str,
    agent_wrapper: Option<PathBuf>,
}

/// One machine.
#[derive(Clone, Debug)]
struct NodePlan {
    name: String,
    gpus: String,
    mig: &'static str,
}

/// Where the jobs are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    /// The controller's own PostgreSQL.
    Private,
    /// A PostgreSQL that the test started, and can stop without the controller's knowledge.
    External,
}

/// The policy of clusters that name none: `TESSERA_TEST_POLICY`, so that all tests can be run under
/// another one.
fn default_policy() -> String {
    std::env::var("TESSERA_TEST_POLICY").unwrap_or_else(|_| "tessera".to_owned())
}

impl Plan {
    /// Plans a cluster without nodes, with a private database and the default lease.
    #[expect(clippy::new_without_default, reason = "a plan is written out, never defaulted")]
    pub fn new() -> Self {
        Self {
            nodes: Vec::new(),
            policy: default_policy(),
            lease_secs: 300,
            database: Database::Private,
            mps_control: None,
            agent_settings: None,
            env: Vec::new(),
            // Tests may run as root, and most of their users have no account on this machine.
            run_as: "agent",
            agent_wrapper: None,
        }
    }

    /// Starts agents by a program that gets the agent's own and its arguments, and becomes it.
    pub fn agent_wrapper(mut self, program: impl Into<PathBuf>) -> Self {
        self.agent_wrapper = Some(program.into());
        self
    }

    /// Lets jobs run as their submitters, who must have accounts on this machine.
    pub const fn run_as_submitter(mut self) -> Self {
        self.run_as = "submitter";
        self
    }

    /// Adds a machine with these GPUs, as keys of the geometry data.
    pub fn node(mut self, name: &str, gpus: &str) -> Self {
        self.nodes.push(NodePlan { name: name.to_owned(), gpus: gpus.to_owned(), mig: "on" });
        self
    }

    /// Adds a machine whose GPUs have MIG mode off.
    pub fn whole_gpu_node(mut self, name: &str, gpus: &str) -> Self {
        self.nodes.push(NodePlan { name: name.to_owned(), gpus: gpus.to_owned(), mig: "off" });
        self
    }

    /// Chooses the placement policy.
    pub fn policy(mut self, policy: &str) -> Self {
        policy.clone_into(&mut self.policy);
        self
    }

    /// Chooses how long a node may run jobs without contact to the controller.
    pub fn lease_secs(mut self, secs: u64) -> Self {
        self.lease_secs = secs;
        self
    }

    /// Chooses the database.
    pub fn database(mut self, database: Database) -> Self {
        self.database = database;
        self
    }

    /// Chooses the control program for MPS; the stand-in's by default.
    pub fn mps_control(mut self, program: impl Into<PathBuf>) -> Self {
        self.mps_control = Some(program.into());
        self
    }

    /// Gives every agent a file of settings with this text (TOML).
    pub const fn agent_settings(mut self, text: &'static str) -> Self {
        self.agent_settings = Some(text);
        self
    }

    /// Sets a variable in every daemon's environment.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Starts the cluster and waits until every node is available.
    pub fn start(self) -> Cluster {
        let cluster = self.start_without_agents_ready();
        cluster.wait_ready();
        cluster
    }

    /// Starts every process of the cluster, and waits for none.
    pub fn start_without_agents_ready(self) -> Cluster {
        let folder = tempfile::Builder::new().prefix("ts-").tempdir().expect("a temporary folder");
        // PostgreSQL refuses to run as root, and its user must be able to reach its folder.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        let mark = format!("TESSERA_TEST_CLUSTER={}", folder.path().display());
        let (http, quic) = (ports::free(), ports::free());
        let database = match self.database {
            Database::Private => None,
            Database::External => Some(Postgres::start(folder.path())),
        };
        let mut cluster = Cluster {
            controller: self.controller(folder.path(), http, quic, database.as_ref(), &mark),
            agents: Vec::new(),
            database,
            http,
            quic,
            mark,
            plan: self,
            tokens: Mutex::default(),
            folder,
        };
        cluster.init_controller();
        cluster.controller.start();
        for index in 0..cluster.plan.nodes.len() {
            let mut agent = cluster.agent(index);
            agent.start();
            cluster.agents.push(agent);
        }
        cluster
    }

    fn controller(
        &self,
        folder: &Path,
        http: SocketAddr,
        quic: SocketAddr,
        database: Option<&Postgres>,
        mark: &str,
    ) -> Daemon {
        let data = folder.join("c").display().to_string();
        let database = database.map_or_else(|| "private".to_owned(), Postgres::url);
        let daemon = Daemon::new("controller", programs().path("tessera-controller"), folder)
            .args(["--data", &data, "--database", &database])
            .args(["--http", &http.to_string(), "--quic", &quic.to_string()])
            .args(["--policy", &self.policy, "--lease", &self.lease_secs.to_string()]);
        self.marked(daemon, mark)
    }

    fn marked(&self, mut daemon: Daemon, mark: &str) -> Daemon {
        let (name, value) = mark.split_once('=').expect("a mark is a variable");
        daemon.set_env(name, value);
        daemon.set_env("TESSERA_LOG", std::env::var("TESSERA_LOG").unwrap_or("info".into()));
        for (name, value) in &self.env {
            daemon.set_env(name, value.clone());
        }
        daemon
    }
}

/// A running cluster. Its end kills every process of it.
#[derive(Debug)]
pub struct Cluster {
    /// The controller's process.
    pub controller: Daemon,
    /// The agents, in the order of the plan.
    pub agents: Vec<Daemon>,
    /// The external database, if the plan has one.
    pub database: Option<Postgres>,
    http: SocketAddr,
    quic: SocketAddr,
    mark: String,
    plan: Plan,
    /// Tokens by user and role, created when first needed.
    tokens: Mutex<BTreeMap<(String, String), String>>,
    // Last, so that the folder is removed after the processes that write into it end.
    folder: TempDir,
}

impl Cluster {
    /// Returns a folder of the cluster's own for the test's files.
    pub fn scratch(&self) -> PathBuf {
        let scratch = self.folder.path().join("scratch");
        fs::create_dir_all(&scratch).expect("a folder");
        scratch
    }

    /// Returns the cluster's folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the address of the REST API.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Returns the address for agents.
    pub fn quic(&self) -> SocketAddr {
        self.quic
    }

    /// Returns the controller's data folder.
    pub fn controller_data(&self) -> PathBuf {
        self.folder.path().join("c")
    }

    /// Returns a node's data folder.
    pub fn agent_data(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("a{index}"))
    }

    /// Returns the folder of a node's simulated hardware.
    pub fn hardware(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("h{index}"))
    }

    /// Returns the processes of this cluster, the daemons and all that they started.
    pub fn processes(&self) -> Vec<u32> {
        processes::of_cluster(&self.mark, self.folder.path())
    }

    /// Waits until the controller serves and all nodes are available.
    #[track_caller]
    pub fn wait_ready(&self) {
        self.wait_serving();
        let nodes = self.plan.nodes.len();
        wait::until(READY_WITHIN, "all nodes available", || {
            let available = self.nodes().into_iter().filter(|node| node.state == "available");
            (available.count() == nodes).then_some(())
        });
    }

    /// Waits until the controller reports that it is ready.
    #[track_caller]
    pub fn wait_serving(&self) {
        wait::until(READY_WITHIN, "controller ready", || {
            let ready = http::request(self.http, "GET", "/readyz", &[], None).ok()?;
            (ready.status == 200).then_some(())
        });
    }

    /// Sends a request; a broken connection fails the test.
    #[track_caller]
    pub fn call(&self, method: &str, path: &str, body: Option<&[u8]>) -> Response {
        self.try_call(method, path, body).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Sends a request.
    ///
    /// # Errors
    ///
    /// As [`http::request`].
    pub fn try_call(&self, method: &str, path: &str, body: Option<&[u8]>) -> io::Result<Response> {
        self.send(method, path, &[], body)
    }

    /// Sends a request as an administrator, with further headers. A database that was replaced has
    /// other tokens; in that case a new one is made.
    fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> io::Result<Response> {
        let mut tries = 0;
        loop {
            let token = match self.try_token("root", "admin")? {
                Ok(token) => token,
                Err(refusal) => return Ok(refusal),
            };
            let bearer = bearer(&token);
            let own = [("content-type", "application/json"), ("authorization", bearer.as_str())];
            let headers = [&own[..], headers].concat();
            let response = http::request(self.http, method, path, &headers, body)?;
            if response.status != 401 || tries > 0 {
                return Ok(response);
            }
            tries += 1;
            self.kept_tokens().clear();
        }
    }

    /// Returns a token with the role admin.
    ///
    /// # Panics
    ///
    /// If the controller makes none.
    #[track_caller]
    pub fn token(&self) -> String {
        self.token_for("root", "admin")
    }

    /// Returns a token of a user.
    ///
    /// # Panics
    ///
    /// If the controller makes none.
    #[track_caller]
    pub fn token_for(&self, user: &str, role: &str) -> String {
        wait::until(READY_WITHIN, "a token of the controller", || {
            self.try_token(user, role).ok()?.ok()
        })
    }

    fn try_token(&self, user: &str, role: &str) -> io::Result<Result<String, Response>> {
        let mut kept = self.kept_tokens();
        let key = (user.to_owned(), role.to_owned());
        if let Some(token) = kept.get(&key) {
            return Ok(Ok(token.clone()));
        }
        let made = self.make_token(user, role)?;
        if made.status != 201 {
            return Ok(Err(made));
        }
        let token = made.json::<TokenCreated>().secret;
        kept.insert(key, token.clone());
        Ok(Ok(token))
    }

    /// The token in the data folder makes the first ones.
    fn make_token(&self, user: &str, role: &str) -> io::Result<Response> {
        let bootstrap = fs::read_to_string(self.controller_data().join("token"))?;
        let request = TokenRequest {
            name: "tests".to_owned(),
            user: Some(user.to_owned()),
            role: Some(role.to_owned()),
            valid_secs: None,
        };
        let body = serde_json::to_vec(&request).expect("requests are plain data");
        let bearer = bearer(bootstrap.trim());
        let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
        http::request(self.http, "POST", "/v1/tokens", &headers, Some(&body))
    }

    fn kept_tokens(&self) -> MutexGuard<'_, BTreeMap<(String, String), String>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the address of the controller's Unix socket, as the command takes it. The account that runs the tests
    /// is an administrator there.
    pub fn url(&self) -> String {
        format!("unix://{}", self.controller_data().join("api.sock").display())
    }

    /// Sends a body with an idempotency key.
    ///
    /// # Errors
    ///
    /// As [`http::request`].
    pub fn try_submit(&self, request: &SubmitRequest, key: Option<&str>) -> io::Result<Response> {
        let body = serde_json::to_vec(request).expect("requests are plain data");
        let key: Vec<_> = key.map(|key| ("idempotency-key", key)).into_iter().collect();
        self.send("POST", "/v1/jobs", &key, Some(&body))
    }

    /// Submits a job that must be accepted.
    #[track_caller]
    pub fn submit(&self, request: &SubmitRequest) -> SubmitResponse {
        let response = self.try_submit(request, None).expect("the controller answers");
        assert!(matches!(response.status, 200..=202), "{}", response.text());
        response.json()
    }

    /// Returns a job.
    #[track_caller]
    pub fn job(&self, id: u64) -> JobDetail {
        self.call("GET", &format!("/v1/jobs/{id}"), None).expect(200).json()
    }

    /// Cancels, holds or releases a job.
    #[track_caller]
    pub fn act(&self, id: impl std::fmt::Display, verb: &str) -> Response {
        self.call("POST", &format!("/v1/jobs/{id}/{verb}"), None)
    }

    /// Waits until a job is in the expected state.
    #[track_caller]
    pub fn wait_job(&self, id: u64, within: Duration, state: &str) -> JobDetail {
        let mut last = String::new();
        let deadline = Instant::now() + within;
        let found = wait::within_time(within, || {
            let response = self.try_call("GET", &format!("/v1/jobs/{id}"), None).ok()?;
            if response.status != 200 {
                last = response.text();
                return None;
            }
            let job: JobDetail = response.json();
            last = format!("{} ({:?})", job.job.state, job.job.reason_text);
            // A final state other than the expected one never changes.
            let over = is_final(&job.job.state) && job.job.state != state;
            assert!(!over, "job {id} became {last}, not {state}: {:#?}", job.attempt_list);
            (job.job.state == state).then_some(job)
        });
        found.unwrap_or_else(|| {
            let late = Instant::now().saturating_duration_since(deadline);
            panic!("job {id} is not {state} after {within:?} (+{late:?}), it is {last}")
        })
    }

    /// Waits until a job has ended, in any final state.
    #[track_caller]
    pub fn wait_end(&self, id: u64, within: Duration) -> JobDetail {
        wait::until(within, &format!("end of job {id}"), || {
            let job: JobDetail = self.try_call("GET", &format!("/v1/jobs/{id}"), None).ok()?.json();
            is_final(&job.job.state).then_some(job)
        })
    }

    /// Returns a job's standard output so far.
    #[track_caller]
    pub fn logs(&self, id: u64) -> String {
        self.call("GET", &format!("/v1/jobs/{id}/logs"), None).expect(200).text()
    }

    /// Returns the explanation of a job's state.
    #[track_caller]
    pub fn explain(&self, id: u64) -> JobExplanation {
        self.call("GET", &format!("/v1/jobs/{id}/explain"), None).expect(200).json()
    }

    /// Returns the events of a job.
    #[track_caller]
    pub fn events(&self, id: u64) -> JobEvents {
        self.call("GET", &format!("/v1/jobs/{id}/events"), None).expect(200).json()
    }

    /// Returns the nodes; none while the controller doesn't answer.
    pub fn nodes(&self) -> Vec<NodeDetails> {
        match self.try_call("GET", "/v1/nodes", None) {
            Ok(response) if response.status == 200 => response.json::<NodeListing>().items,
            Ok(_) | Err(_) => Vec::new(),
        }
    }

    /// Returns the GPUs.
    #[track_caller]
    pub fn gpus(&self) -> GpuListing {
        self.call("GET", "/v1/gpus", None).expect(200).json()
    }

    /// Returns the layout plans, newest first.
    #[track_caller]
    pub fn layouts(&self) -> LayoutPlans {
        self.call("GET", "/v1/layouts", None).expect(200).json()
    }

    /// Returns how many jobs are in each state.
    #[track_caller]
    pub fn counts(&self) -> JobCounts {
        self.call("GET", "/v1/jobs/summary", None).expect(200).json()
    }

    /// Lists jobs page by page.
    #[track_caller]
    pub fn all_jobs(&self) -> Vec<JobView> {
        let mut jobs = Vec::new();
        let mut cursor = String::new();
        loop {
            let path = format!("/v1/jobs?limit=1000{cursor}");
            let page: tessera_api_types::JobPage = self.call("GET", &path, None).expect(200).json();
            jobs.extend(page.items);
            match page.next_cursor {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return jobs,
            }
        }
    }

    /// Describes a second controller on the same data folder.
    pub fn second_controller(&self) -> Daemon {
        let (http, quic) = (ports::free(), ports::free());
        let database = self.database.as_ref();
        let second = self.plan.controller(self.folder.path(), http, quic, database, &self.mark);
        second.logging_as("second-controller", self.folder.path())
    }

    /// Describes a second agent on the data folder of a node.
    pub fn second_agent(&self, index: usize) -> Daemon {
        self.agent(index).logging_as("second-agent", self.folder.path())
    }

    /// Describes an agent with a copy of a node's identity, and its own data folder.
    pub fn cloned_agent(&self, index: usize) -> Daemon {
        let (own, copy) = (self.agent_data(index), self.folder.path().join("clone"));
        fs::create_dir_all(copy.join("identity")).expect("a folder");
        for file in fs::read_dir(own.join("identity")).expect("an identity").flatten() {
            fs::copy(file.path(), copy.join("identity").join(file.file_name())).expect("a copy");
        }
        self.agent_over(index, &copy).logging_as("clone", self.folder.path())
    }

    /// Returns the last lines of every daemon's output.
    pub fn tails(&self, lines: usize) -> String {
        let daemons = std::iter::once(&self.controller).chain(&self.agents);
        daemons.map(|daemon| daemon.tail(lines)).collect()
    }

    fn init_controller(&self) {
        self.control(["init", "--data", &self.controller_data().display().to_string()]);
        for (index, node) in self.plan.nodes.iter().enumerate() {
            let out = self.agent_data(index).join("identity");
            self.control([
                "node-cert",
                &node.name,
                "--data",
                &self.controller_data().display().to_string(),
                "--out",
                &out.display().to_string(),
            ]);
        }
    }

    fn control<const N: usize>(&self, arguments: [&str; N]) {
        let program = programs().path("tessera-controller");
        let done = Command::new(program).args(arguments).output().expect("the controller runs");
        assert!(
            done.status.success(),
            "{arguments:?}: {}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
    }

    fn agent(&self, index: usize) -> Daemon {
        self.agent_over(index, &self.agent_data(index))
    }

    fn agent_over(&self, index: usize, data: &Path) -> Daemon {
        let stand_in = |name: &str| programs().path(name).display().to_string();
        let node = &self.plan.nodes[index];
        let control = self.plan.mps_control.clone();
        let control = control.unwrap_or_else(|| programs().path("nvidia-cuda-mps-control"));
        let program = programs().path("tessera-agent");
        let agent = match &self.plan.agent_wrapper {
            None => Daemon::new(&node.name, program, self.folder.path()),
            Some(wrapper) => Daemon::new(&node.name, wrapper.clone(), self.folder.path())
                .args([&program.display().to_string()]),
        };
        let agent = agent
            .args(["--controller", &self.quic.to_string()])
            .args(["--data", &data.display().to_string()])
            .args(["--nvml", &programs().nvml.display().to_string()])
            .args(["--mps-control", &control.display().to_string()])
            .args(["--mps-canary", &format!("{} --mps --canary", stand_in("tessera-sim-client"))])
            .env("TESSERA_SIM_NODE", self.hardware(index).display().to_string())
            .env("TESSERA_SIM_GPUS", node.gpus.clone())
            .env("TESSERA_SIM_MIG", node.mig)
            .env("TESSERA_SIM_LATENCY", "0")
            .env("TESSERA_AGENT_RUN_AS", self.plan.run_as)
            .env("TESSERA_AGENT_ROOT_JOBS", "true");
        let agent = match self.plan.agent_settings {
            None => agent,
            Some(text) => {
                let file = self.folder.path().join("agent.toml");
                fs::write(&file, text).expect("the agents' settings are written");
                agent.args(["--config", &file.display().to_string()])
            }
        };
        self.plan.marked(agent, &self.mark)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let lines = std::env::var("TESSERA_TEST_TAIL").ok().and_then(|n| n.parse().ok());
            eprintln!("{}", self.tails(lines.unwrap_or(25)));
        }
        for agent in &mut self.agents {
            agent.kill();
        }
        // Stopped first, so that its PostgreSQL shuts down cleanly.
        self.controller.stop();
        self.database = None;
        let gone = wait::within_time(Duration::from_secs(10), || {
            let left = self.processes();
            left.iter().for_each(|&pid| processes::signal(pid, libc::SIGKILL));
            left.is_empty().then_some(())
        });
        if gone.is_none() {
            let left: Vec<String> = self.processes().into_iter().map(processes::describe).collect();
            eprintln!("these processes don't end: {left:?}");
        }
        if std::env::var_os("TESSERA_TEST_KEEP").is_some() {
            self.folder.disable_cleanup(true);
            eprintln!("kept: {}", self.folder.path().display());
        }
    }
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// Returns whether this state is final.
pub fn is_final(state: &str) -> bool {
    matches!(state, "succeeded" | "failed" | "cancelled" | "timed_out")
}

/// Starts a cluster whose only GPU is in use, so that submitted jobs are accepted, weighed and queued.
pub fn full_cluster() -> Cluster {
    let cluster = Plan::new().node("n1", "a30-24gb").database(Database::External).start();
    let whole =
        SubmitRequest { gpu_profile: Some("4g.24gb".into()), ..command(["sleep", "86400"]) };
    let job = cluster.submit(&whole).job_id;
    cluster.wait_job(job, SOON, "running");
    cluster
}

/// Requests a script to run on the smallest slice.
pub fn script(text: &str) -> SubmitRequest {
    SubmitRequest { script: Some(format!("#!/bin/sh\n{text}\n")), ..SubmitRequest::default() }
}

/// Requests a program to run on the smallest slice.
pub fn command<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> SubmitRequest {
    let argv = argv.into_iter().map(Into::into).collect();
    SubmitRequest { command: Some(argv), ..SubmitRequest::default() }
}
