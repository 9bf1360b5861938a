//! A queue for the tests: speaks the frames, keeps what it receives, and answers as its behaviour states.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use quinn::crypto::rustls::QuicServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tessera_frames::gate::{GATE_BYTES, GatePage};
use tessera_frames::kernel::{
    PROTOCOL_VERSION, ShimHello, ShimRecord, ShimWelcome, ToQueue, ToShim,
};
use tessera_kernel_queue::{GateState, Grant, KernelIndex, Nanos, Role};
use tessera_wire::gate_page::{self, PageServer};
use tessera_wire::kernel_identity::ALPN;
use tessera_wire::link::{FrameReader, FrameWriter};
use tokio::sync::mpsc;

/// How long anything may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Repeats a scene until nothing kept the queue from answering for 20 ms. On such a busy machine fillers
/// rightly launch without grants, and the scene shows nothing.
pub fn calmly(mut scene: impl FnMut() -> Calm) {
    const TRIES: u32 = 10;
    let disturbed = (0..TRIES).take_while(|_| scene() == Calm::No).count();
    assert!(disturbed < 10, "each time some launch went ungranted: too busy a machine, or a bug");
}

/// Whether a scene shows what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calm {
    Yes,
    No,
}

/// What the queue does by itself.
#[derive(Clone, Debug)]
pub struct QueueBehaviour {
    pub welcome: ShimWelcome,
    /// What is known of every kernel.
    pub sk: Option<Nanos>,
    /// Whether each launch of every kernel is measured.
    pub measure: bool,
    /// The grant of a waiting launch: budget, launches, kernels in flight.
    pub grants: Option<(Nanos, u16, u16)>,
    /// Whether grants are given back by syncs.
    pub yields: bool,
    /// The longest delay of a grant; each one has another delay.
    pub late: Duration,
    /// Sent before the welcome.
    pub first: Vec<Vec<u8>>,
}

impl QueueBehaviour {
    pub fn of(role: Role) -> Self {
        let welcome = ShimWelcome {
            protocol: PROTOCOL_VERSION,
            session: 1,
            role,
            in_flight: 1,
            wait_max: Nanos::from_millis(100),
            ages_after: Nanos::from_millis(50),
            silence_max: Nanos::from_millis(1_000),
            sample_every: 0,
        };
        let sk = Some(Nanos::from_micros(500));
        let late = Duration::ZERO;
        // In the measuring stage the queue knows no times yet.
        let measure = role == Role::Measure;
        Self { welcome, sk, measure, grants: None, yields: false, late, first: Vec::new() }
    }

    pub fn granting(self, budget: Nanos, launches: u16, in_flight: u16) -> Self {
        Self { grants: Some((budget, launches, in_flight)), ..self }
    }
}

#[derive(Default)]
struct ReceivedFrames {
    hellos: Vec<ShimHello>,
    records: Vec<ShimRecord>,
    sessions: usize,
    threads: Vec<u32>,
    ended: usize,
}

/// Finds an address that no other program has or gets while no queue is there. Each is returned once, and
/// is below the ports that the kernel takes for outgoing connections.
fn free() -> SocketAddr {
    const FIRST: u16 = 12_000;
    const COUNT: u16 = 16_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test programs that run at the same time begin at different places.
    let start = u64::from(std::process::id()) * 97;
    let address = |step: u16| {
        let offset = u16::try_from((start + u64::from(step)) % u64::from(COUNT)).unwrap();
        SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST + offset))
    };
    let mut left = (0..COUNT).map(|_| address(NEXT.fetch_add(1, Ordering::Relaxed)));
    left.find(|address| UdpSocket::bind(address).is_ok()).unwrap()
}

/// The queue's folders: its port and certificate outlive it.
pub struct TestFolders {
    pub address: SocketAddr,
    pub certificate: CertificateDer<'static>,
    pub key: Vec<u8>,
}

impl TestFolders {
    pub fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["queue".to_owned()]).unwrap();
        Self {
            address: free(),
            certificate: made.cert.der().clone(),
            key: made.signing_key.serialize_der(),
        }
    }

    pub fn digest(&self) -> String {
        let digest = ring::digest::digest(&ring::digest::SHA256, &self.certificate);
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A queue that runs until it is dropped.
pub struct TestQueue {
    received: Arc<(Mutex<ReceivedFrames>, Condvar)>,
    frames: mpsc::UnboundedSender<ToShim>,
    thread: Option<std::thread::JoinHandle<()>>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

impl TestQueue {
    pub fn start(folders: &TestFolders, behaviour: QueueBehaviour) -> Self {
        let received = Arc::new((Mutex::new(ReceivedFrames::default()), Condvar::new()));
        let (frames, outgoing) = mpsc::unbounded_channel();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let config = server(folders);
        let (address, listener) = (folders.address, Arc::clone(&received));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let endpoint = quinn::Endpoint::server(config, address).unwrap();
                ready.send(()).unwrap();
                tokio::select! {
                    () = serve(&endpoint, &behaviour, &listener, outgoing) => {}
                    _ = stopped => {}
                }
                // Gone without a word, as when it is killed.
            });
        });
        is_ready.recv().unwrap();
        Self { received, frames, thread: Some(thread), stop: Some(stop) }
    }

    pub fn send(&self, frame: ToShim) {
        self.frames.send(frame).unwrap();
    }

    /// Waits until what was received is enough.
    pub fn receive<T>(&self, mut enough: impl FnMut(&[ShimRecord]) -> Option<T>) -> T {
        self.look(|received| enough(&received.records))
    }

    pub fn hellos(&self, count: usize) -> Vec<ShimHello> {
        self.look(|received| (received.hellos.len() >= count).then(|| received.hellos.clone()))
    }

    /// Returns the thread that the process names as its session's.
    pub fn session_thread(&self) -> u32 {
        self.look(|received| received.threads.first().copied())
    }

    pub fn ended(&self, count: usize) {
        self.look(|received| (received.ended >= count).then_some(()));
    }

    #[expect(clippy::disallowed_methods, reason = "the deadline for what a test waits for")]
    fn look<T>(&self, mut enough: impl FnMut(&ReceivedFrames) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let (received, news) = &*self.received;
        let mut received = received.lock().unwrap();
        loop {
            if let Some(found) = enough(&received) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "not received, but: {:?}", tail(&received.records));
            received = news.wait_timeout(received, left).unwrap().0;
        }
    }
}

fn tail(records: &[ShimRecord]) -> &[ShimRecord] {
    &records[records.len().saturating_sub(20)..]
}

impl Drop for TestQueue {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().unwrap().join();
    }
}

fn server(folders: &TestFolders) -> quinn::ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(folders.key.clone()));
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![folders.certificate.clone()], key)
        .unwrap();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let mut config =
        quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
    let mut transport = quinn::TransportConfig::default();
    transport.max_idle_timeout(Some(Duration::from_secs(1).try_into().unwrap()));
    config.transport_config(Arc::new(transport));
    config
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people: 52 bits are enough")]
async fn serve(
    endpoint: &quinn::Endpoint,
    behaviour: &QueueBehaviour,
    received: &Arc<(Mutex<ReceivedFrames>, Condvar)>,
    mut outgoing: mpsc::UnboundedReceiver<ToShim>,
) {
    let mut grants = (0, None);
    while let Some(incoming) = endpoint.accept().await {
        let Ok(connection) = incoming.await else { continue };
        let Ok((mut send, receive)) = connection.accept_bi().await else { continue };
        for bytes in &behaviour.first {
            let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
            send.write_all(&length).await.unwrap();
            send.write_all(bytes).await.unwrap();
        }
        let (mut writer, mut reader) = (FrameWriter::new(send), FrameReader::new(receive));
        loop {
            let frame = tokio::select! {
                frame = reader.receive::<ToQueue>() => frame,
                Some(frame) = outgoing.recv() => {
                    let _ = writer.send(&frame).await;
                    continue;
                }
            };
            let Ok(Some(frame)) = frame else { break };
            let answers = answers(behaviour, &frame, &mut grants);
            note(received, frame);
            if !behaviour.late.is_zero() && answers.iter().any(|a| matches!(a, ToShim::Grant(_))) {
                // Spread evenly, whatever number of grants there are (the golden ratio's parts).
                let part = grants.0.wrapping_mul(0x9e37_79b9) % (1 << 32);
                tokio::time::sleep(behaviour.late.mul_f64(part as f64 / 2_f64.powi(32))).await;
            }
            for answer in answers {
                let _ = writer.queue(&answer);
            }
            let _ = writer.flush().await;
        }
        let (received, news) = &**received;
        received.lock().unwrap().ended += 1;
        news.notify_all();
    }
}

fn note(received: &Arc<(Mutex<ReceivedFrames>, Condvar)>, frame: ToQueue) {
    let (received, news) = &**received;
    let mut received = received.lock().unwrap();
    match frame {
        ToQueue::Hello(hello) => {
            received.hellos.push(hello);
            received.sessions += 1;
        }
        ToQueue::Records(records) => received.records.extend(records),
        ToQueue::SessionThread { thread } => received.threads.push(thread),
    }
    news.notify_all();
}

/// Answers a frame; `grants` are how many there were, and the launch that requested for the last.
fn answers(
    behaviour: &QueueBehaviour,
    frame: &ToQueue,
    (grants, requested): &mut (u64, Option<u64>),
) -> Vec<ToShim> {
    let records = match frame {
        ToQueue::Hello(_) => return vec![ToShim::Welcome(behaviour.welcome.clone())],
        ToQueue::SessionThread { .. } => return Vec::new(),
        ToQueue::Records(records) => records,
    };
    let mut answers = Vec::new();
    for record in records {
        match record {
            ShimRecord::Define { number, .. } => answers.push(ToShim::Defined {
                number: *number,
                kernel: KernelIndex::new(u16::try_from(*number).unwrap()),
                sk: behaviour.sk,
                measure: behaviour.measure,
            }),
            ShimRecord::Request { launch, beyond, .. } => {
                let Some((budget, launches, in_flight)) = behaviour.grants else { continue };
                // A repeated request with the kernel's index is for the same launch.
                if requested.replace(*launch) == Some(*launch) && beyond.is_none() {
                    continue;
                }
                *grants += 1;
                answers.push(ToShim::Grant(Grant {
                    number: *grants,
                    gate: GateState::default(),
                    kind: tessera_kernel_queue::GrantKind::Gap,
                    from: Nanos::ZERO,
                    until: Nanos::MAX,
                    budget,
                    launches,
                    in_flight,
                    yields: behaviour.yields,
                }));
            }
            _ => {}
        }
    }
    answers
}

/// A gate page of the tests'.
pub struct TestGate {
    pub path: PathBuf,
    page: &'static GatePage,
    memory: OwnedFd,
}

impl TestGate {
    /// A page that is served until [`Served`] ends.
    pub fn served(folder: &Path) -> (Self, Served) {
        let memory = gate_page::create().unwrap();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of memory of that length.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                GATE_BYTES,
                access,
                libc::MAP_SHARED,
                memory.as_raw_fd(),
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED);
        // SAFETY: mapped right above and never unmapped; made of atomic numbers.
        let page: &GatePage = unsafe { &*page.cast() };
        page.open();
        let gate = Self { path: folder.join("gate"), page, memory };
        let served = gate.serve();
        (gate, served)
    }

    pub fn page(&self) -> &GatePage {
        self.page
    }

    /// Serves the page, as the queue's process does while it lives.
    pub fn serve(&self) -> Served {
        Served(PageServer::start(&self.path, None, self.memory.try_clone().unwrap()).unwrap())
    }
}

/// The life of the process that serves a page.
pub struct Served(#[expect(dead_code, reason = "its end matters")] PageServer);
