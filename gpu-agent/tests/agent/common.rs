//! A controller for tests: real certificates, a real QUIC server, and whatever a test needs to
//! send. With it, real agents in separate folders.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tessera_frames::cluster::{
    AttemptStatus, ExitRecord, FromSession, GpuReport, Hello, LaunchOrder, LogReply, LogRequest,
    LogStream, MigReport, PROTOCOL_VERSION, PlanEnd, PlanOrder, SessionName, SessionProgram,
    SessionRequest, SessionStart, StreamRequest, ToAgent, ToController, Welcome,
};
use tessera_model::lease::LeaseTerms;
use tessera_model::mig::{PlanStep, Slot};
use tessera_model::spec::{JobProgram, OutputPaths, RunSpec};
use tessera_model::{
    AttemptId, ControllerId, GpuId, JobId, Millis, NodeId, NodeIdentity, PlanId, SliceId,
};
use tessera_wire::link::{FrameReader, FrameWriter};
use tessera_wire::tls::{Authority, issue_node};
use tokio::sync::mpsc;

/// Longer than anything here takes, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The GPUs of every node here.
const GPUS: [&str; 2] = ["a100-40gb", "a30-24gb"];

pub struct Cluster {
    pub folder: TempDir,
    pub endpoint: quinn::Endpoint,
    pub address: String,
}

pub struct Agent {
    pub child: Child,
    pub data: PathBuf,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // What its shepherds still run must not outlive the test.
        let Ok(entries) = std::fs::read_dir(self.data.join("shepherds")) else { return };
        for entry in entries.flatten() {
            if let Some(pid) = shepherd_pid(&entry.path()) {
                kill(pid, "-KILL");
                // Nobody else would take its groups away: its next agent never comes.
                let name = entry.path().file_stem().unwrap().to_str().unwrap().to_owned();
                if let Some(groups) = tessera_agent::shepherd::group::find_parent() {
                    while runs(pid) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    tessera_agent::shepherd::group::kill_orphans(&groups, &name);
                }
            }
        }
    }
}

pub fn shepherd_pid(path: &Path) -> Option<u32> {
    if path.extension()? != "id" {
        return None;
    }
    let text = std::fs::read_to_string(path).ok()?;
    let identity: serde_json::Value = serde_json::from_str(&text).ok()?;
    u32::try_from(identity["pid"].as_u64()?).ok()
}

pub fn kill(pid: u32, signal: &str) {
    let _ = Command::new("kill").arg(signal).arg(pid.to_string()).stderr(Stdio::null()).status();
}

/// Returns whether a process exists and is no zombie.
pub fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(") ").unwrap().1.starts_with(['Z', 'X']))
}

impl Cluster {
    pub fn new() -> Self {
        Self::new_in(&std::env::temp_dir())
    }

    /// Makes its folder in another one.
    #[expect(clippy::disallowed_methods, reason = "certificates are valid from now on")]
    pub fn new_in(folder: &Path) -> Self {
        let folder = tempfile::tempdir_in(folder).unwrap();
        let now = time::OffsetDateTime::now_utc();
        let authority = Authority::create(now).unwrap();
        authority.save(&folder.path().join("ca")).unwrap();
        let server = authority.controller(now).unwrap().server().unwrap();
        let endpoint = quinn::Endpoint::server(server, "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = format!("localhost:{}", endpoint.local_addr().unwrap().port());
        Self { folder, endpoint, address }
    }

    /// Makes a node's identity in its data folder.
    #[expect(clippy::disallowed_methods, reason = "certificates are valid from now on")]
    pub fn enrol(&self, name: &str) -> PathBuf {
        let data = self.folder.path().join(name);
        let node = NodeIdentity {
            id: NodeId::from_uuid(uuid::Uuid::new_v4()),
            name: name.parse().unwrap(),
        };
        let now = time::OffsetDateTime::now_utc();
        let identity = issue_node(&self.folder.path().join("ca"), &node, now).unwrap();
        identity.save(&data.join("identity")).unwrap();
        data
    }

    pub fn command(&self, data: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera-agent"));
        command
            .arg("--controller")
            .arg(&self.address)
            .arg("--data")
            .arg(data)
            .env("TESSERA_SIM_NODE", data.join("sim"))
            .env("TESSERA_SIM_LATENCY", "0")
            // Tests may run as root, and their users are no accounts of this machine.
            .env("TESSERA_AGENT_RUN_AS", "agent")
            .env("TESSERA_AGENT_ROOT_JOBS", "true")
            .env("TESSERA_SIM_GPUS", GPUS.join(","))
            .env("TESSERA_LOG", std::env::var("TESSERA_LOG").unwrap_or_else(|_| "warn".into()))
            .stdin(Stdio::null());
        command.env("TESSERA_AGENT_NVML", tessera_stand_in::library::build().unwrap());
        command
    }

    pub fn start(&self, data: &Path) -> Agent {
        Agent { child: self.command(data).spawn().unwrap(), data: data.to_owned() }
    }

    pub fn start_with(&self, data: &Path, set: impl FnOnce(&mut Command)) -> Agent {
        let mut command = self.command(data);
        set(&mut command);
        Agent { child: command.spawn().unwrap(), data: data.to_owned() }
    }

    /// Waits for an agent to connect, and reads its hello.
    pub async fn accept(&self) -> Session {
        let accept = async {
            let connection = self.endpoint.accept().await.unwrap().await.unwrap();
            let (sender, receiver) = connection.accept_bi().await.unwrap();
            let mut reader = FrameReader::new(receiver);
            let Some(ToController::Hello(hello)) = reader.receive().await.unwrap() else {
                panic!("no hello")
            };
            let name = tessera_wire::tls::peer_node(&connection).unwrap().name;
            let (frames, received) = mpsc::unbounded_channel();
            tokio::spawn(async move {
                while let Ok(Some(frame)) = reader.receive::<ToController>().await {
                    if frames.send(frame).is_err() {
                        return;
                    }
                }
            });
            let writer = FrameWriter::new(sender);
            Session {
                connection,
                writer,
                received,
                hello,
                name,
                inventory: Vec::new(),
                ended: Vec::new(),
                generation: 0,
                renewing: true,
            }
        };
        tokio::time::timeout(PATIENCE, accept).await.expect("no agent connected")
    }

    /// Accepts an agent and welcomes it into generation 1.
    pub async fn welcome(&self) -> Session {
        let mut session = self.accept().await;
        session.welcome(1, 1, 60).await;
        session
    }
}

/// The controller's end of one connection.
pub struct Session {
    pub connection: quinn::Connection,
    pub writer: FrameWriter,
    received: mpsc::UnboundedReceiver<ToController>,
    pub hello: Hello,
    pub name: tessera_model::NodeName,
    /// What was reported before the inventory was done.
    pub inventory: Vec<ToController>,
    /// Ends that were received on the way to something else, until somebody waits for them.
    pub ended: Vec<(AttemptId, ExitRecord)>,
    generation: u64,
    /// Whether renewals are granted.
    pub renewing: bool,
}

pub const CONTROLLER: ControllerId = ControllerId::from_uuid(uuid::Uuid::from_u128(77));

impl Session {
    pub fn terms(epoch: u64, generation: u64, lease_secs: u64, session: &Self) -> Welcome {
        Welcome {
            protocol: PROTOCOL_VERSION,
            controller: CONTROLLER,
            node: session.name.clone(),
            epoch,
            generation,
            lease: LeaseTerms::from_length(Millis::from_secs(lease_secs)).unwrap(),
            receipt: vec![7],
        }
    }

    pub async fn welcome(&mut self, epoch: u64, generation: u64, lease_secs: u64) {
        let terms = Self::terms(epoch, generation, lease_secs, self);
        self.generation = generation;
        self.send(ToAgent::Welcome(terms)).await;
        loop {
            match self.next().await {
                ToController::InventoryDone => break,
                frame => self.inventory.push(frame),
            }
        }
        if self.renewing {
            // The first lease: granted once it is requested.
            let Some(frame) = self.received.recv().await else { panic!("the session ended") };
            let ToController::Renew { sent, generation } = frame else { panic!("{frame:?}") };
            self.send(ToAgent::RenewOk { sent, generation }).await;
        }
    }

    pub async fn send(&mut self, frame: ToAgent) {
        self.writer.send(&frame).await.unwrap();
    }

    /// The next frame; renewals are granted on the way.
    pub async fn next(&mut self) -> ToController {
        self.try_next().await.expect("the session ended")
    }

    #[expect(clippy::disallowed_methods, reason = "a test gives up after a real time")]
    pub async fn try_next(&mut self) -> Option<ToController> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let received = tokio::time::timeout_at(give_up.into(), self.received.recv()).await;
            match received.expect("the agent reports nothing")? {
                ToController::Renew { sent, generation } => {
                    if self.renewing && generation == self.generation {
                        self.send(ToAgent::RenewOk { sent, generation }).await;
                    }
                }
                frame => return Some(frame),
            }
        }
    }

    /// Waits for a frame that `pick` takes; drops the others.
    #[expect(clippy::disallowed_methods, reason = "a test gives up after a real time")]
    pub async fn until<T>(&mut self, mut pick: impl FnMut(&ToController) -> Option<T>) -> T {
        // As a whole: renewals keep coming, whatever doesn't.
        let give_up = Instant::now() + PATIENCE * 4;
        loop {
            assert!(Instant::now() < give_up, "the agent never reports it");
            let frame = self.next().await;
            if let Some(found) = pick(&frame) {
                return found;
            }
            if let ToController::Attempt(report) = frame
                && let AttemptStatus::Ended(record) = report.status
            {
                self.ended.push((report.attempt, record));
            }
        }
    }

    pub async fn until_running(&mut self, attempt: AttemptId) -> u32 {
        self.until(|frame| match frame {
            ToController::Attempt(report) if report.attempt == attempt => match report.status {
                AttemptStatus::Running { pid, .. } => Some(pid),
                AttemptStatus::Ended(ref record) => panic!("it ended: {record:?}"),
                AttemptStatus::Journalled => None,
            },
            _ => None,
        })
        .await
    }

    pub async fn until_ended(&mut self, attempt: AttemptId) -> ExitRecord {
        // Several that end at once are reported in any order.
        if let Some(at) = self.ended.iter().position(|(ended, _)| *ended == attempt) {
            return self.ended.remove(at).1;
        }
        self.until(|frame| match frame {
            ToController::Attempt(report) if report.attempt == attempt => match &report.status {
                AttemptStatus::Ended(record) => Some(record.clone()),
                AttemptStatus::Running { .. } | AttemptStatus::Journalled => None,
            },
            _ => None,
        })
        .await
    }

    pub async fn until_tombstoned(&mut self, expected: AttemptId) {
        self.until(|frame| {
            matches!(frame, ToController::Tombstoned { attempt } if *attempt == expected)
                .then_some(())
        })
        .await;
    }

    pub async fn launch(&mut self, order: &LaunchOrder) {
        self.send(ToAgent::Launch(Box::new(order.clone()))).await;
    }

    pub async fn run(&mut self, order: &LaunchOrder) -> ExitRecord {
        self.launch(order).await;
        self.until_ended(order.attempt).await
    }

    pub fn gpus(&self) -> Vec<GpuReport> {
        let gpus = self.inventory.iter().filter_map(|frame| match frame {
            ToController::Gpu(report) => Some(report.clone()),
            _ => None,
        });
        gpus.collect()
    }

    pub fn gpu(&self, model: &str) -> GpuReport {
        let found = self.gpus().into_iter().find(|gpu| gpu.model.contains(model));
        found.unwrap_or_else(|| panic!("no {model} in {:?}", self.inventory))
    }

    /// Returns the state of an attempt in the inventory.
    pub fn reported(&self, attempt: AttemptId) -> Option<AttemptStatus> {
        self.inventory.iter().find_map(|frame| match frame {
            ToController::Attempt(report) if report.attempt == attempt => {
                Some(report.status.clone())
            }
            _ => None,
        })
    }

    /// Carries a plan out; returns its end and the GPU as it was reported just before.
    pub async fn apply(&mut self, order: PlanOrder) -> (PlanEnd, Option<GpuReport>) {
        let (gpu, plan) = (order.gpu.clone(), order.plan);
        self.send(ToAgent::ApplyPlan(order)).await;
        let mut last = None;
        let end = self
            .until(|frame| match frame {
                ToController::Gpu(report) if report.gpu == gpu => {
                    last = Some(report.clone());
                    None
                }
                ToController::PlanEnded { plan: ended, end, .. } if *ended == plan => {
                    Some(end.clone())
                }
                _ => None,
            })
            .await;
        (end, last)
    }

    pub async fn read_log(&self, attempt: AttemptId, stream: LogStream, follow: bool) -> LogRead {
        let (sender, receiver) = self.connection.open_bi().await.unwrap();
        let mut writer = FrameWriter::new(sender);
        let request = LogRequest { attempt, stream, offset: 0, follow };
        writer.send(&StreamRequest::Log(request)).await.unwrap();
        let mut reader = FrameReader::new(receiver);
        let mut text = Vec::new();
        loop {
            let reply = tokio::time::timeout(PATIENCE, reader.receive::<LogReply>()).await;
            match reply.expect("no reply").unwrap() {
                Some(LogReply::Chunk { bytes, .. }) => text.extend(bytes),
                Some(LogReply::End { length }) => {
                    return LogRead::Text(String::from_utf8(text).unwrap(), length);
                }
                Some(LogReply::Unknown { reason }) => return LogRead::Unknown(reason),
                None => panic!("the stream ended without an end"),
            }
        }
    }

    /// Runs a line of shell in a session of an attempt; returns its output and how it ended.
    pub async fn session(
        &self,
        attempt: AttemptId,
        line: &str,
        terminal: bool,
    ) -> (String, FromSession) {
        let words = ["/bin/sh", "-c", line].map(str::to_owned);
        let program = SessionProgram::Command(words.into());
        let request = SessionRequest {
            attempt,
            session: SessionName::Other(uuid::Uuid::new_v4()),
            start: Some(SessionStart { program, terminal, env: Vec::new() }),
            offset: None,
            size: None,
        };
        let (sender, receiver) = self.connection.open_bi().await.unwrap();
        let (mut writer, mut reader) = (FrameWriter::new(sender), FrameReader::new(receiver));
        writer.send(&StreamRequest::Session(request)).await.unwrap();
        let mut text = Vec::new();
        loop {
            let frame = tokio::time::timeout(PATIENCE, reader.receive::<FromSession>()).await;
            match frame.expect("no frame").unwrap().expect("the stream ended without an end") {
                FromSession::Output { bytes, .. } => text.extend(bytes),
                FromSession::Joined { .. } | FromSession::Taken { .. } => {}
                end => return (String::from_utf8(text).unwrap(), end),
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum LogRead {
    Text(String, u64),
    Unknown(String),
}

/// A place where attempts can run.
#[derive(Clone, Debug)]
pub struct Place {
    pub gpu: GpuId,
    pub slot: Option<Slot>,
    pub slice: SliceId,
}

impl Place {
    /// The whole of a GPU whose MIG mode is off, or its first instance.
    pub fn on(gpu: &GpuReport) -> Self {
        match gpu.instances.iter().find(|instance| instance.slice.is_some()) {
            Some(instance) => Self {
                gpu: gpu.gpu.clone(),
                slot: Some(instance.slot),
                slice: instance.slice.clone().unwrap(),
            },
            None => {
                Self { gpu: gpu.gpu.clone(), slot: None, slice: gpu.gpu.as_str().parse().unwrap() }
            }
        }
    }
}

pub fn order(place: &Place, program: &[&str]) -> LaunchOrder {
    LaunchOrder {
        epoch: 1,
        generation: 1,
        attempt: AttemptId::from_uuid(uuid::Uuid::now_v7()),
        job: JobId::from_number(42),
        number: 1,
        gpu: place.gpu.clone(),
        slot: place.slot,
        slice: place.slice.clone(),
        array: None,
        name: "test".into(),
        user: "ada".into(),
        run: RunSpec {
            program: JobProgram::Command(program.iter().map(|&word| word.to_owned()).collect()),
            work_dir: None,
            env: Default::default(),
            output: OutputPaths::default(),
            time_limit: None,
            grace: Millis::new(500),
            checkpoint_signal: None,
            host_memory: None,
            cpus: None,
            batch: Default::default(),
            input: None,
            container: None,
        },
        restart_reason: None,
        traceparent: None,
        share: None,
        kernel: None,
        gang: None,
        oom_count: 0,
    }
}

pub fn shell(place: &Place, line: &str) -> LaunchOrder {
    order(place, &["/bin/sh", "-c", line])
}

pub fn plan(gpu: &GpuId, layout_gen: u64, steps: Vec<PlanStep>) -> PlanOrder {
    PlanOrder {
        epoch: 1,
        plan: PlanId::from_uuid(uuid::Uuid::new_v4()),
        gpu: gpu.clone(),
        layout_gen,
        steps,
        traceparent: None,
    }
}

/// A process that is no attempt of ours, on a slice of a simulated node.
pub fn stranger(agent: &Agent, place: &Place) -> tessera_stand_in::client::DeviceClient {
    tessera_stand_in::client::DeviceClient::open(&sim_node(agent), place.slice.as_str()).unwrap()
}

/// A process that only watches a slice: it is in no list, and in the way.
pub fn watcher(agent: &Agent, place: &Place) -> tessera_stand_in::client::DeviceClient {
    use tessera_stand_in::device::ClaimKind;
    let node = sim_node(agent);
    tessera_stand_in::client::DeviceClient::open_as(&node, place.slice.as_str(), ClaimKind::Monitor)
        .unwrap()
}

/// Makes a whole instance on the first GPU, as another program would.
pub fn by_hand(agent: &Agent, slot: Slot) {
    use tessera_stand_in::device::SlotPlacement;
    let change = |state: &mut tessera_stand_in::device::DeviceState| {
        let model = state.gpus[0].profile(slot.profile.0).unwrap();
        let size = model.profile.memory_slices.into();
        let at = SlotPlacement { start: slot.start.into(), size };
        let serial = state.create_gpu_instance(0, slot.profile.0, Some(at)).unwrap();
        let slices = model.profile.compute_slices;
        let whole = model.compute.iter().find(|c| c.compute_slices == slices).unwrap();
        state.create_compute_instance(serial, whole.id.unwrap(), None).unwrap();
    };
    sim_node(agent).change(change).unwrap();
}

/// Makes the simulated node of a data folder before an agent does.
pub fn make_sim(data: &Path) {
    let config = tessera_stand_in::config::StandInConfig::new(data.join("sim"), &GPUS);
    tessera_stand_in::node::SimulatedNode::open(&config).unwrap();
}

/// The simulated node under an agent.
pub fn sim_node(agent: &Agent) -> tessera_stand_in::node::SimulatedNode {
    let config = tessera_stand_in::config::StandInConfig::new(agent.data.join("sim"), &GPUS);
    tessera_stand_in::node::SimulatedNode::open(&config).unwrap()
}

/// Waits until something is true, for what no event shows.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A node with one whole GPU, whose MIG is off.
pub struct WholeGpuStage {
    pub cluster: Cluster,
    pub agent: Agent,
    pub session: Session,
    pub place: Place,
}

impl WholeGpuStage {
    pub async fn start() -> Self {
        let cluster = Cluster::new();
        let data = cluster.enrol("n1");
        let agent = cluster.start_with(&data, |command| {
            command.env("TESSERA_SIM_MIG", "off");
        });
        let session = cluster.welcome().await;
        let place = Place::on(&session.gpu("A100"));
        Self { cluster, agent, session, place }
    }
}

/// A slot of a GPU in MIG mode, by the name of its profile.
pub fn slot(gpu: &GpuReport, profile: &str, start: u8) -> Slot {
    let MigReport::On { geometry } = &gpu.mig else { panic!("{gpu:?}") };
    Slot { start, profile: geometry.by_name(&profile.parse().unwrap()).unwrap().id }
}
