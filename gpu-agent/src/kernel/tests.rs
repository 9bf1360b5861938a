//! Bugs and delays within the queues of one GPU, seen by processes of several GPUs over real sockets. Only tests
//! within this crate can put them there.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tempfile::TempDir;
use tessera_frames::kernel::{
    Farewell, PROTOCOL_VERSION, SessionEnd, ShimHello, ShimRecord, ToQueue, ToShim, variables,
};
use tessera_kernel_queue::{Dims, KernelId, KernelIndex, Nanos, QueueRules, TaskKey};
use tessera_model::spec::{Class, Priority};
use tessera_model::{AttemptId, GpuId};
use tessera_wire::kernel_identity::{Fingerprint, SERVER_NAME, from_hex, pinned_client};
use tessera_wire::link::{FrameReader, FrameWriter};
use tokio::sync::mpsc;

use super::queues::Injected;
use super::{
    EVENTS_MAX, Endpoint, KernelEvent, KernelOrder, KernelSettings, MappedGate, ORDERS_MAX, start,
};
use tessera_agent_core::kernel::{Admission, AttemptTally};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

struct Stage {
    endpoint: Endpoint,
    attempts: u128,
    folder: TempDir,
}

/// A process of an attempt, as its shim speaks.
struct Process {
    writer: FrameWriter,
    reader: FrameReader,
    _endpoint: quinn::Endpoint,
}

type Variables = BTreeMap<String, String>;

impl Stage {
    fn new() -> Self {
        Self::with_events().0
    }

    fn with_events() -> (Self, mpsc::Receiver<KernelEvent>) {
        let folder = tempfile::tempdir().unwrap();
        let settings = KernelSettings {
            shim: folder.path().join("shim"),
            rules: QueueRules::default(),
            data: folder.path().join("data"),
            gates: folder.path().join("gates"),
        };
        let (endpoint, events) = start(settings).unwrap();
        (Self { endpoint, attempts: 0, folder }, events)
    }

    /// Ends the attempt that was admitted last. Returns its number.
    fn end_attempt(&self) -> AttemptId {
        let attempt = AttemptId::from_uuid(uuid::Uuid::from_u128(self.attempts));
        self.endpoint.handle.end_attempt(attempt);
        attempt
    }

    fn admit(&mut self, gpu: &str, slice: &str) -> Variables {
        self.attempts += 1;
        let admission = Admission {
            attempt: AttemptId::from_uuid(uuid::Uuid::from_u128(self.attempts)),
            gpu: gpu.parse().unwrap(),
            slice: slice.parse().unwrap(),
            task: TaskKey::new("task").unwrap(),
            priority: Priority::DEFAULT,
            class: Class::Offline,
            share_thousandths: 1_000,
            exclusive: false,
            owner: None,
        };
        self.endpoint.handle.admit(admission, &Variables::new()).unwrap().into_iter().collect()
    }

    /// Runs code within the queue of a slice or outside of any, on the thread of a GPU.
    fn inject(&self, gpu: &str, slice: Option<&str>, work: impl FnOnce() + Send + 'static) {
        let slice = slice.map(|slice| slice.parse().unwrap());
        let order = KernelOrder::Inject(slice, Injected(Box::new(work)));
        assert!(self.endpoint.handle.planes.order_one(&gpu.parse().unwrap(), order));
    }

    /// Waits until a GPU has so many restarts in its numbers. They are published once a second.
    async fn await_restarts(&self, gpu: &str, restarts: u64) {
        let gpu: GpuId = gpu.parse().unwrap();
        let published = async {
            while self.restarts(&gpu) != Some(restarts) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, published).await.unwrap();
    }

    fn restarts(&self, gpu: &GpuId) -> Option<u64> {
        Some(self.endpoint.handle.numbers().by_gpu().get(gpu)?.restarts)
    }
}

impl Process {
    async fn join(variables: &Variables, process: u64) -> Self {
        let (joined, answer) = Self::greet(variables, process).await;
        assert!(matches!(answer, ToShim::Welcome(_)), "{answer:?}");
        joined
    }

    /// Requests a session. Returns the answer as well.
    async fn greet(variables: &Variables, process: u64) -> (Self, ToShim) {
        let address: SocketAddr = variables[variables::ENDPOINT].parse().unwrap();
        let pinned = Fingerprint(from_hex(&variables[variables::CERTIFICATE]).unwrap());
        let mut endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        endpoint.set_default_client_config(pinned_client(pinned).unwrap());
        let connection = endpoint.connect(address, SERVER_NAME).unwrap().await.unwrap();
        let (send, receive) = connection.open_bi().await.unwrap();
        let (writer, reader) = (FrameWriter::new(send), FrameReader::new(receive));
        let mut joined = Self { writer, reader, _endpoint: endpoint };
        let hello = ShimHello {
            protocol: PROTOCOL_VERSION,
            token: from_hex(&variables[variables::TOKEN]).unwrap(),
            pid: std::process::id(),
            process,
            device: "GPU-0".to_owned(),
            driver: 12_040,
        };
        joined.writer.send(&ToQueue::Hello(hello)).await.unwrap();
        let answer = joined.receive().await;
        (joined, answer)
    }

    async fn send(&mut self, records: Vec<ShimRecord>) {
        self.writer.send(&ToQueue::Records(records)).await.unwrap();
    }

    async fn receive(&mut self) -> ToShim {
        let frame = tokio::time::timeout(PATIENCE, self.reader.receive_known()).await;
        frame.expect("the queue said nothing").unwrap().expect("the queue hung up")
    }

    /// Names a kernel, and waits until the same session answers with its index.
    async fn define(&mut self, number: u32) {
        let kernel = KernelId::new(format!("k{number}"), Dims([1; 3]), Dims([32, 1, 1])).unwrap();
        self.send(vec![ShimRecord::Define { number, kernel }]).await;
        loop {
            match self.receive().await {
                ToShim::Defined { number: defined, .. } if defined == number => return,
                ToShim::Bye(farewell) => panic!("{farewell:?}"),
                _ => {}
            }
        }
    }

    async fn await_bye(&mut self) -> (SessionEnd, bool) {
        loop {
            if let ToShim::Bye(farewell) = self.receive().await {
                return (farewell.why, farewell.again);
            }
        }
    }
}

#[tokio::test]
async fn a_bug_in_one_queue_restarts_this_queue_and_no_other_of_its_gpu_or_of_others() {
    let mut stage = Stage::new();
    let broken = stage.admit("GPU-1", "MIG-1");
    let neighbour = stage.admit("GPU-1", "MIG-2");
    let other = stage.admit("GPU-2", "GPU-2");
    let mut first = Process::join(&broken, 1).await;
    let mut neighbour_process = Process::join(&neighbour, 2).await;
    let mut far = Process::join(&other, 3).await;
    first.define(0).await;

    stage.inject("GPU-1", Some("MIG-1"), || panic!("a bug"));

    assert_eq!(first.await_bye().await, (SessionEnd::Stopping, true), "it connects again");
    let mut again = Process::join(&broken, 1).await;
    for number in 0..20 {
        again.define(number).await;
        neighbour_process.define(number).await;
        far.define(number).await;
    }
    stage.await_restarts("GPU-1", 1).await;
    stage.await_restarts("GPU-2", 0).await;
}

#[tokio::test]
async fn an_attempt_whose_frames_end_its_queue_three_times_is_refused_and_the_others_go_on() {
    let mut stage = Stage::new();
    let (broken, sharer) = (stage.admit("GPU-1", "MIG-1"), stage.admit("GPU-1", "MIG-1"));
    for process in 0..3 {
        let mut culprit = Process::join(&broken, process).await;
        let mut neighbour = Process::join(&sharer, 1).await;
        culprit.send(vec![Injected::RECORD]).await;

        for process in [&mut culprit, &mut neighbour] {
            assert_eq!(process.await_bye().await, (SessionEnd::Stopping, true));
        }
    }

    let (_, answer) = Process::greet(&broken, 3).await;
    let refused = Farewell { why: SessionEnd::Nonsense, again: false };
    assert_eq!(answer, ToShim::Bye(refused));
    let mut neighbour = Process::join(&sharer, 1).await;
    neighbour.define(0).await;
    stage.await_restarts("GPU-1", 3).await;
}

#[tokio::test]
async fn the_totals_of_an_attempt_outlive_a_bug_in_its_queue_and_in_all_queues_of_its_gpu() {
    let (mut stage, mut events) = Stage::with_events();
    let admitted = stage.admit("GPU-1", "MIG-1");
    for (number, place) in (1..).zip([Some("MIG-1"), None]) {
        let mut process = Process::join(&admitted, number).await;
        let launch = |launch| ShimRecord::Launch {
            launch,
            kernel: KernelIndex::UNKNOWN,
            count: 0,
            at: Nanos::ZERO,
        };
        process.send((1..=10).map(launch).collect()).await;
        process.define(0).await;
        stage.inject("GPU-1", place, || panic!("a bug"));
        assert_eq!(process.await_bye().await, (SessionEnd::Stopping, true));
    }
    Process::join(&admitted, 3).await.define(0).await;

    let attempt = stage.end_attempt();

    let tally = await_tally(&mut events, attempt).await;
    assert_eq!((tally.sessions, tally.counters.launches), (3, 20));
}

#[tokio::test]
async fn the_page_of_a_queue_that_a_bug_ended_shows_that_its_grants_are_over() {
    let mut stage = Stage::new();
    let admitted = stage.admit("GPU-1", "MIG-1");
    let mut process = Process::join(&admitted, 1).await;
    let gates = stage.folder.path().join("gates");
    let page = MappedGate::join(&gates, &"MIG-1".parse().unwrap()).unwrap();
    let before = page.page().gate();
    assert!(page.page().is_sound());

    stage.inject("GPU-1", Some("MIG-1"), || panic!("a bug"));
    process.await_bye().await;

    assert!(page.page().is_closed() && page.page().gate().has_passed(before));
    Process::join(&admitted, 1).await.define(0).await;
    let next = MappedGate::join(&gates, &"MIG-1".parse().unwrap()).unwrap();
    assert!(next.page().is_sound() && next.page().gate().has_passed(page.page().gate()));
}

#[tokio::test]
async fn a_bug_outside_of_the_queues_restarts_all_of_this_gpu_and_none_of_another() {
    let mut stage = Stage::new();
    let attempts = [stage.admit("GPU-1", "MIG-1"), stage.admit("GPU-1", "MIG-2")];
    let other = stage.admit("GPU-2", "GPU-2");
    let mut far = Process::join(&other, 3).await;
    let mut first = Process::join(&attempts[0], 1).await;
    let mut second = Process::join(&attempts[1], 2).await;

    stage.inject("GPU-1", None, || panic!("a bug"));

    for process in [&mut first, &mut second] {
        assert_eq!(process.await_bye().await, (SessionEnd::Stopping, true));
    }
    far.define(0).await;
    for (number, attempt) in (1..).zip(&attempts) {
        Process::join(attempt, number).await.define(0).await;
    }
    stage.await_restarts("GPU-1", 1).await;
    stage.await_restarts("GPU-2", 0).await;
}

#[tokio::test]
async fn a_gpu_whose_thread_stands_still_holds_up_no_other_gpu() {
    let mut stage = Stage::new();
    let (slow, quick) = (stage.admit("GPU-1", "GPU-1"), stage.admit("GPU-2", "GPU-2"));
    let mut waiting = Process::join(&slow, 1).await;
    let mut served = Process::join(&quick, 2).await;
    let (entered, stands) = tokio::sync::oneshot::channel();
    let (go_on, stopped) = std::sync::mpsc::channel::<()>();
    stage.inject("GPU-1", Some("GPU-1"), move || {
        entered.send(()).unwrap();
        // Ends when the test drops the other end.
        let _ = stopped.recv();
    });
    stands.await.unwrap();

    // All of this is answered while the other GPU answers nothing.
    for number in 0..100 {
        served.define(number).await;
    }
    let third = stage.admit("GPU-3", "GPU-3");
    Process::join(&third, 3).await.define(0).await;

    drop(go_on);
    waiting.define(0).await;
}

/// Waits for the totals of an attempt.
async fn await_tally(events: &mut mpsc::Receiver<KernelEvent>, attempt: AttemptId) -> AttemptTally {
    loop {
        let event = tokio::time::timeout(PATIENCE, events.recv()).await;
        match event.expect("the end was lost").unwrap() {
            KernelEvent::Over { attempt: over, tally } if over == attempt => return *tally,
            KernelEvent::Over { .. } | KernelEvent::Learned { .. } => {}
        }
    }
}

/// Waits for the totals of an attempt. Returns how many other attempts' came before.
async fn await_over(events: &mut mpsc::Receiver<KernelEvent>, attempt: AttemptId) -> usize {
    for before in 0.. {
        let event = tokio::time::timeout(PATIENCE, events.recv()).await;
        match event.expect("the end was lost").unwrap() {
            KernelEvent::Over { attempt: over, .. } if over == attempt => return before,
            KernelEvent::Over { .. } | KernelEvent::Learned { .. } => {}
        }
    }
    unreachable!("it waits forever otherwise")
}

#[tokio::test]
async fn the_totals_of_an_attempt_come_although_the_node_reads_no_events_when_it_ends() {
    let (mut stage, mut events) = Stage::with_events();
    stage.admit("GPU-1", "GPU-1");
    let sender = stage.endpoint.handle.planes.shared().events.clone();
    let other = || KernelEvent::Over {
        attempt: AttemptId::from_uuid(uuid::Uuid::nil()),
        tally: Box::new(AttemptTally::default()),
    };
    while sender.try_send(other()).is_ok() {}

    let attempt = stage.end_attempt();
    // Its queue has handled the end when this is answered.
    let next = stage.admit("GPU-1", "GPU-1");
    Process::join(&next, 1).await.define(0).await;

    assert_eq!(await_over(&mut events, attempt).await, EVENTS_MAX);
}

#[tokio::test]
async fn the_end_of_an_attempt_arrives_although_its_queue_has_no_place_for_orders() {
    let (mut stage, mut events) = Stage::with_events();
    stage.admit("GPU-1", "GPU-1");
    let (entered, stands) = tokio::sync::oneshot::channel();
    let (go_on, stopped) = std::sync::mpsc::channel::<()>();
    stage.inject("GPU-1", None, move || {
        entered.send(()).unwrap();
        // Ends when the test drops the other end.
        let _ = stopped.recv();
    });
    stands.await.unwrap();
    let gpu = "GPU-1".parse().unwrap();
    let nothing = || KernelOrder::Inject(None, Injected(Box::new(|| {})));
    let taken = (0..2 * ORDERS_MAX)
        .take_while(|_| stage.endpoint.handle.planes.order_one(&gpu, nothing()))
        .count();
    assert!((ORDERS_MAX..2 * ORDERS_MAX).contains(&taken), "the orders are full: {taken}");

    let attempt = stage.end_attempt();
    drop(go_on);

    assert_eq!(await_over(&mut events, attempt).await, 0);
}
