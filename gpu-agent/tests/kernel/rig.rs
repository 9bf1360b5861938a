//! An endpoint, and processes that speak to it as shims do.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tessera_agent::kernel::{Endpoint, KernelEvent, KernelSettings, MappedGate, start};
use tessera_agent::sys::clock::monotonic_now;
use tessera_agent_core::kernel::{Admission, AttemptTally};
use tessera_frames::kernel::{
    Farewell, PROTOCOL_VERSION, ShimHello, ShimRecord, ShimWelcome, ToQueue, ToShim, variables,
};
use tessera_kernel_queue::{
    Dims, Grant, KernelId, KernelIndex, KernelSample, Nanos, QueueRules, Role, TaskKey, TaskProfile,
};
use tessera_model::spec::{Class, Priority};
use tessera_model::{AttemptId, SliceId};
use tessera_wire::kernel_identity::{Fingerprint, SERVER_NAME, from_hex, pinned_client};
use tessera_wire::link::{FrameReader, FrameWriter};
use tokio::sync::mpsc;

/// Far more than anything here takes, on however busy a machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// An endpoint with its folders.
pub struct Rig {
    pub folder: TempDir,
    pub endpoint: Option<Endpoint>,
    pub events: mpsc::Receiver<KernelEvent>,
    rules: QueueRules,
    next: u128,
}

/// An attempt that was admitted.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub id: AttemptId,
    pub slice: SliceId,
    pub task: TaskKey,
    pub environment: BTreeMap<String, String>,
}

impl Rig {
    pub fn new() -> Self {
        Self::with(QueueRules::default())
    }

    pub fn with(rules: QueueRules) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (endpoint, events) = start(settings(&folder, rules)).unwrap();
        Self { folder, endpoint: Some(endpoint), events, rules, next: 1 }
    }

    /// Ends the endpoint and starts another in the same folders, which adopts `alive`.
    pub fn restart(&mut self, alive: &[AttemptId]) {
        self.endpoint = None;
        let (endpoint, events) = start(settings(&self.folder, self.rules)).unwrap();
        endpoint.handle.adopt(|attempt| alive.contains(&attempt));
        self.endpoint = Some(endpoint);
        self.events = events;
    }

    pub fn endpoint(&self) -> &Endpoint {
        self.endpoint.as_ref().unwrap()
    }

    /// Admits an attempt of this priority, whose task is called `task`.
    pub fn admit(&mut self, slice: &str, task: &str, priority: u8) -> Attempt {
        self.admit_with_share(slice, task, (priority, 1_000))
    }

    /// The same with a part of the multiprocessors, in thousandths.
    pub fn admit_with_share(
        &mut self,
        slice: &str,
        task: &str,
        (priority, share_thousandths): (u8, u32),
    ) -> Attempt {
        let id = AttemptId::from_uuid(uuid::Uuid::from_u128(self.next));
        self.next += 1;
        let admission = Admission {
            attempt: id,
            gpu: "GPU-1".parse().unwrap(),
            slice: slice.parse().unwrap(),
            task: TaskKey::new(task).unwrap(),
            priority: Priority::try_from(priority).unwrap(),
            class: Class::Offline,
            share_thousandths,
            exclusive: false,
            owner: None,
        };
        let (slice, task) = (admission.slice.clone(), admission.task.clone());
        let environment = self.endpoint().handle.admit(admission, &BTreeMap::new()).unwrap();
        Attempt { id, slice, task, environment: environment.into_iter().collect() }
    }

    /// Hands a measured profile on: kernels `k0`, `k1`… that run and pause so long.
    pub fn add_profile(&self, attempt: &Attempt, kernels: &[(u64, u64)]) {
        self.endpoint().handle.share_profile(&attempt.task, &profile(kernels));
    }

    pub fn gate(&self, attempt: &Attempt) -> MappedGate {
        let gates = self.folder.path().join("gates");
        // The queue takes an admission, and serves the page, a moment after the node gave it.
        for _ in 0..PATIENCE.as_millis() {
            if let Ok(gate) = MappedGate::join(&gates, &attempt.slice) {
                return gate;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("no page is served for {}", attempt.slice)
    }

    pub async fn event_where(&mut self, expected: impl Fn(&KernelEvent) -> bool) -> KernelEvent {
        loop {
            let event = self.event().await;
            if expected(&event) {
                return event;
            }
        }
    }

    pub async fn event(&mut self) -> KernelEvent {
        tokio::time::timeout(PATIENCE, self.events.recv()).await.unwrap().unwrap()
    }

    /// Ends an attempt, and returns what the queue counted for it.
    pub async fn tally(&mut self, attempt: &Attempt) -> AttemptTally {
        self.endpoint().handle.end_attempt(attempt.id);
        let id = attempt.id;
        let over = self
            .event_where(
                |event| matches!(event, KernelEvent::Over { attempt, .. } if *attempt == id),
            )
            .await;
        let KernelEvent::Over { tally, .. } = over else { panic!("{over:?}") };
        *tally
    }
}

fn settings(folder: &TempDir, rules: QueueRules) -> KernelSettings {
    KernelSettings {
        shim: PathBuf::from("/opt/kernel-shim/libcuda.so.1"),
        rules,
        data: folder.path().join("data"),
        gates: folder.path().join("gates"),
    }
}

/// The kernel that the tests call `k<number>`.
pub fn kernel(number: usize) -> KernelId {
    KernelId::new(format!("k{number}"), Dims([1; 3]), Dims([32, 1, 1])).unwrap()
}

/// A profile whose measuring is over.
pub fn profile(kernels: &[(u64, u64)]) -> TaskProfile {
    let mut profile = TaskProfile::default();
    for (number, (took, gap)) in kernels.iter().enumerate() {
        let index = profile.intern(&kernel(number)).unwrap();
        for _ in 0..20 {
            let entry = profile.kernel_mut(index).unwrap();
            entry.took.add(Nanos::from_micros(*took));
            entry.gap.add(Nanos::from_micros(*gap));
            profile.pairs.add(None, index, Nanos::from_micros(*gap));
        }
    }
    profile.close_measuring();
    profile
}

/// A process that is connected.
pub struct Shim {
    pub welcome: ShimWelcome,
    pub writer: FrameWriter,
    pub reader: FrameReader,
    connection: quinn::Connection,
    _endpoint: quinn::Endpoint,
}

/// How a connection can be made otherwise than right.
#[derive(Clone, Copy, Default)]
pub struct HelloOverrides {
    pub token: Option<[u8; 32]>,
    pub fingerprint: Option<[u8; 32]>,
    pub protocol: Option<u16>,
    pub pid: Option<u32>,
    pub process: Option<u64>,
}

/// Opens a connection and a stream, and sends nothing.
pub async fn dial(
    attempt: &Attempt,
    oddly: HelloOverrides,
) -> Result<(quinn::Endpoint, quinn::Connection, FrameWriter, FrameReader), quinn::ConnectionError>
{
    let of = |name: &str| attempt.environment[name].clone();
    let address: SocketAddr = of(variables::ENDPOINT).parse().unwrap();
    let pinned =
        oddly.fingerprint.unwrap_or_else(|| from_hex(&of(variables::CERTIFICATE)).unwrap());
    let mut endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    endpoint.set_default_client_config(pinned_client(Fingerprint(pinned)).unwrap());
    let connection = endpoint.connect(address, SERVER_NAME).unwrap().await?;
    let (send, receive) = connection.open_bi().await?;
    Ok((endpoint, connection, FrameWriter::new(send), FrameReader::new(receive)))
}

impl Shim {
    /// Connects a process of an attempt.
    pub async fn join(attempt: &Attempt) -> Self {
        Self::try_join(attempt, HelloOverrides::default()).await.unwrap()
    }

    /// Connects a process of an attempt, perhaps with something wrong about it.
    #[expect(clippy::disallowed_methods, reason = "each process of a test has its own number")]
    pub async fn try_join(attempt: &Attempt, oddly: HelloOverrides) -> Result<Self, Farewell> {
        let (endpoint, connection, mut writer, mut reader) = dial(attempt, oddly).await.unwrap();
        let token = from_hex(&attempt.environment[variables::TOKEN]).unwrap();
        let hello = ShimHello {
            protocol: oddly.protocol.unwrap_or(PROTOCOL_VERSION),
            token: oddly.token.unwrap_or(token),
            pid: oddly.pid.unwrap_or_else(std::process::id),
            process: oddly.process.unwrap_or_else(rand::random),
            device: attempt.slice.to_string(),
            driver: 12_040,
        };
        writer.send(&ToQueue::Hello(hello)).await.unwrap();
        let answer = tokio::time::timeout(PATIENCE, reader.receive_known()).await.unwrap();
        match answer.unwrap().unwrap() {
            ToShim::Welcome(welcome) => {
                Ok(Self { welcome, writer, reader, connection, _endpoint: endpoint })
            }
            ToShim::Bye(farewell) => Err(farewell),
            other => panic!("{other:?} before a welcome"),
        }
    }

    pub async fn send(&mut self, records: Vec<ShimRecord>) {
        self.writer.send(&ToQueue::Records(records)).await.unwrap();
    }

    /// Waits for the next frame but pings.
    pub async fn receive(&mut self) -> ToShim {
        loop {
            let frame = tokio::time::timeout(PATIENCE, self.reader.receive_known()).await;
            match frame.expect("the queue said nothing").unwrap().expect("the queue hung up") {
                ToShim::Ping => {}
                frame => return frame,
            }
        }
    }

    /// Waits for a certain frame, past others.
    pub async fn await_frame<T>(&mut self, mut expected: impl FnMut(ToShim) -> Option<T>) -> T {
        loop {
            if let Some(found) = expected(self.receive().await) {
                return found;
            }
        }
    }

    pub async fn await_role(&mut self, expected: Role) {
        self.await_frame(|frame| (frame == ToShim::Role(expected)).then_some(())).await;
    }

    pub async fn await_grant(&mut self) -> Grant {
        self.await_frame(|frame| match frame {
            ToShim::Grant(grant) => Some(grant),
            _ => None,
        })
        .await
    }

    pub async fn await_bye(&mut self) -> Farewell {
        self.await_frame(|frame| match frame {
            ToShim::Bye(farewell) => Some(farewell),
            _ => None,
        })
        .await
    }

    /// Defines the kernel `k<number>` and waits for its index.
    pub async fn define(&mut self, number: usize) -> (KernelIndex, Option<Nanos>, bool) {
        let own = u32::try_from(number).unwrap();
        self.send(vec![ShimRecord::Define { number: own, kernel: kernel(number) }]).await;
        self.await_frame(|frame| match frame {
            ToShim::Defined { number, kernel, sk, measure } if number == own => {
                Some((kernel, sk, measure))
            }
            _ => None,
        })
        .await
    }

    /// Reports a launch of a holder, counted on the page if there is one.
    pub async fn launch(&mut self, launch: u64, kernel: KernelIndex, gate: Option<&MappedGate>) {
        let at = monotonic_now();
        let count = gate.map_or(0, |gate| gate.page().add_launch(kernel, at));
        self.send(vec![ShimRecord::Launch { launch, kernel, count, at }]).await;
    }

    pub async fn request(&mut self, launch: u64, kernel: KernelIndex) {
        let at = monotonic_now();
        self.send(vec![ShimRecord::Request { launch, kernel, beyond: None, at }]).await;
    }

    /// Reports that one kernel ran so long, and the device was idle so long after it.
    pub fn sample(kernel: KernelIndex, took: u64, gap: u64) -> ShimRecord {
        ShimRecord::Sample(KernelSample {
            kernel,
            before: None,
            took: Nanos::from_micros(took),
            gap: Some(Nanos::from_micros(gap)),
        })
    }

    pub async fn closed(&self) {
        tokio::time::timeout(PATIENCE, self.connection.closed()).await.unwrap();
    }
}
