//! A filler observes the begin of a gap on the gate page, without any message.

use tessera_frames::kernel::{ShimRecord, ToShim};
use tessera_kernel_queue::{GapOpening, GateState, Grant, GrantKind, KernelIndex, Nanos, Role};

use crate::job::Job;
use crate::queue::{QueueBehaviour, Served, TestFolders, TestGate, TestQueue};

/// Longer than anything here takes.
const LONG: Nanos = Nanos::from_millis(60_000);

fn grant_of(number: u64, gate: GateState) -> Grant {
    Grant {
        number,
        gate,
        kind: GrantKind::Gap,
        from: Nanos::ZERO,
        until: Nanos::MAX,
        budget: LONG,
        launches: 100,
        in_flight: 1,
        yields: false,
    }
}

/// A process in one role, with its queue.
struct Side {
    job: Job,
    queue: TestQueue,
}

impl Side {
    fn start(gate: &TestGate, role: Role) -> Self {
        let folders = TestFolders::new();
        let mut behaviour = QueueBehaviour::of(role);
        // A repeated request is none that was expected here.
        behaviour.welcome.wait_max = Nanos::from_millis(1_000);
        let queue = TestQueue::start(&folders, behaviour);
        let job = Job::join(&folders, Some(&gate.path));
        Self { job, queue }
    }

    fn receive<T>(&self, find: impl Fn(&ShimRecord) -> Option<T>) -> T {
        self.queue.receive(|records| records.iter().find_map(&find))
    }
}

/// A holder and a filler at one gate page. The filler waits with its first launch.
struct Scene {
    _folder: tempfile::TempDir,
    _served: Served,
    gate: TestGate,
    holder: Side,
    filler: Side,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (gate, served) = TestGate::served(folder.path());
        let (mut holder, mut filler) =
            (Side::start(&gate, Role::Hold), Side::start(&gate, Role::Fill));
        // Its kernels have indexes from the second launch on, or a later one.
        let mut launched = 0;
        for kernel in ["k0", "k1"] {
            let has_index = |queue: &TestQueue, launched: usize| {
                queue.receive(|records| {
                    let kernels = records.iter().filter_map(|record| match record {
                        ShimRecord::Launch { kernel, .. } => Some(*kernel),
                        _ => None,
                    });
                    kernels.skip(launched - 1).last().map(|last| last != KernelIndex::UNKNOWN)
                })
            };
            loop {
                holder.job.launch(kernel, 1);
                launched += 1;
                if has_index(&holder.queue, launched) {
                    break;
                }
            }
        }
        filler.job.begin("launch k0 1");
        filler.receive(|record| matches!(record, ShimRecord::Request { .. }).then_some(()));
        Self { _folder: folder, _served: served, gate, holder, filler }
    }

    /// Grants the filler the gap after so many more launches of the holder, the last one of `k0`.
    fn grant(&self, number: u64, more: u64) {
        let launches = self.gate.page().gate().launches + more;
        let gate = GateState { launches, ..self.gate.page().gate() };
        let grant = grant_of(number, gate);
        let (kernel, busy, wake) =
            (KernelIndex::new(0), Nanos::from_micros(1), launches - more / 2);
        let opening = GapOpening { launches, kernel, busy, length: LONG, wake };
        self.filler.queue.send(ToShim::GrantAhead { grant, opening });
    }
}

#[test]
fn a_launch_goes_once_the_holder_made_the_expected_one_and_not_before() {
    let mut scene = Scene::new();
    let expected = scene.gate.page().gate().launches + 2;
    scene.grant(1, 2);
    scene.holder.job.launch("k1", 1);
    scene.holder.job.launch("k0", 1);

    assert!(scene.filler.job.answer().starts_with('0'));

    let started = scene.filler.receive(|record| match record {
        ShimRecord::Started { grant: 1, at, .. } => Some(*at),
        _ => None,
    });
    let opened = scene.holder.receive(|record| match record {
        ShimRecord::Launch { count, at, .. } if *count == expected => Some(*at),
        _ => None,
    });
    assert!(started > opened, "{started} {opened}");
    assert_eq!(scene.filler.job.counters().granted, 1);
}

#[test]
fn another_launch_of_the_holder_than_the_expected_one_ends_the_grant() {
    let mut scene = Scene::new();
    scene.grant(1, 1);
    scene.holder.job.launch("k1", 1);

    let returned = scene.filler.receive(|record| match record {
        ShimRecord::Request { beyond: Some(grant), .. } => Some(*grant),
        _ => None,
    });

    assert_eq!(returned, 1);
    // It takes the next one.
    scene.grant(2, 1);
    scene.holder.job.launch("k0", 1);
    assert!(scene.filler.job.answer().starts_with('0'));
    scene
        .filler
        .receive(|record| matches!(record, ShimRecord::Started { grant: 2, .. }).then_some(()));
}

#[test]
fn a_thread_that_waits_for_a_gap_goes_when_its_process_becomes_the_holder() {
    let mut scene = Scene::new();
    scene.grant(1, 1_000_000);
    scene.filler.queue.send(ToShim::Role(Role::Hold));

    assert!(scene.filler.job.answer().starts_with('0'));

    assert_eq!(scene.filler.job.counters().granted, 0);
}

#[test]
fn a_grant_of_the_present_gap_replaces_one_that_was_given_ahead() {
    let mut scene = Scene::new();
    scene.grant(1, 1_000_000);
    scene.filler.queue.send(ToShim::Revoke { grant: 1 });
    scene.filler.queue.send(ToShim::Grant(grant_of(2, scene.gate.page().gate())));

    assert!(scene.filler.job.answer().starts_with('0'));

    scene
        .filler
        .receive(|record| matches!(record, ShimRecord::Started { grant: 2, .. }).then_some(()));
}
