//! Launches that are not plain ones, and when nothing counts as in flight.

use tessera_frames::kernel::ShimRecord;
use tessera_kernel_queue::{Nanos, Role};

use crate::job::Job;
use crate::queue::{Calm, QueueBehaviour, TestFolders, TestQueue, calmly};

fn count(records: &[ShimRecord], is_it: impl Fn(&ShimRecord) -> bool) -> usize {
    records.iter().filter(|record| is_it(record)).count()
}

fn capture(job: &mut Job) {
    assert_eq!(job.send("capture x 0"), "0");
    for kernel in ["k100", "k200", "k100"] {
        assert!(job.send(&format!("launch {kernel} 1 0x77770")).starts_with('0'));
    }
    assert_eq!(job.send("end-capture"), "0");
}

#[test]
fn a_graph_is_one_kernel_named_by_what_is_in_it() {
    let name_of_graph = || {
        let folders = TestFolders::new();
        let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
        let mut job = Job::join(&folders, None);
        capture(&mut job);
        assert_eq!(job.send("graph x 10"), "0");

        let launched = |record: &ShimRecord| matches!(record, ShimRecord::Launch { .. });
        let reported =
            queue.receive(|records| (count(records, launched) >= 10).then(|| records.to_vec()));
        assert_eq!(count(&reported, launched), 10);
        assert_eq!(job.arrived().launches, 1 + 30);
        let names: Vec<String> = reported
            .iter()
            .filter_map(|record| match record {
                ShimRecord::Define { kernel, .. } => Some(kernel.name().to_owned()),
                _ => None,
            })
            .filter(|name| name.starts_with("graph:"))
            .collect();
        let [name] = names.try_into().unwrap();
        assert!(name.ends_with(":3/3"), "{name}");
        name
    };

    assert_eq!(name_of_graph(), name_of_graph(), "the same in every process");
}

#[test]
fn a_graph_waits_as_one_launch_does() {
    calmly(|| {
        let folders = TestFolders::new();
        let behaviour =
            QueueBehaviour { sk: Some(Nanos::from_micros(400)), ..QueueBehaviour::of(Role::Fill) };
        let queue = TestQueue::start(&folders, behaviour.granting(Nanos::from_millis(50), 1, 1));
        let mut job = Job::join(&folders, None);
        capture(&mut job);

        assert_eq!(job.send("graph x 6"), "0");

        let counters = job.counters();
        assert_eq!(counters.granted + counters.ungranted, 6);
        if counters.ungranted > 0 {
            return Calm::No;
        }
        let wants = |record: &ShimRecord| matches!(record, ShimRecord::Request { .. });
        queue.receive(|records| (count(records, wants) >= 6).then_some(()));
        Calm::Yes
    });
}

#[test]
fn launches_that_others_wait_for_are_never_held_back() {
    let folders = TestFolders::new();
    let mut behaviour = QueueBehaviour::of(Role::Fill);
    behaviour.welcome.wait_max = Nanos::from_millis(1_000);
    let queue = TestQueue::start(&folders, behaviour);
    let mut job = Job::join(&folders, None);

    // NCCL's kernels wait on the device for those of other processes.
    job.launch("ncclDevKernel_AllReduce_0", 5);

    let counters = job.counters();
    assert_eq!((counters.ungranted, counters.waited_max_ns), (5, 0));
    let ungranted = |record: &ShimRecord| matches!(record, ShimRecord::Launch { count: 0, .. });
    queue.receive(|records| (count(records, ungranted) >= 5).then_some(()));

    // With attribute 6 a kernel may begin before its predecessor has ended. The predecessor never waits for
    // it, so it waits like any other.
    job.begin("extended k0 1 6");
    let wants = |record: &ShimRecord| matches!(record, ShimRecord::Request { .. });
    queue.receive(|records| (count(records, wants) >= 1).then_some(()));
    assert!(job.answer().starts_with('0'));
}

#[test]
fn a_sync_is_reported_only_when_no_stream_has_anything_in_flight() {
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::join(&folders, None);
    let synced = |record: &ShimRecord| matches!(record, ShimRecord::Sync { .. });
    let launched = |record: &ShimRecord| matches!(record, ShimRecord::Launch { .. });

    for (stream, launches) in [("0x2000", 1), ("0x3000", 2)] {
        assert!(job.send(&format!("launch k0 1 {stream}")).starts_with('0'));
        queue.receive(|records| (count(records, launched) >= launches).then_some(()));
    }
    assert_eq!(job.send("stream-sync 0x2000"), "0");
    // The launch follows everything that the previous call reported.
    assert!(job.send("launch k0 1 0x2000").starts_with('0'));
    let reported =
        queue.receive(|records| (count(records, launched) >= 3).then(|| records.to_vec()));
    assert_eq!(count(&reported, synced), 0, "the other stream was not waited for");

    assert_eq!(job.send("event 0x3000"), "0");
    assert!(job.send("launch k0 1 0x2000").starts_with('0'));
    let reported =
        queue.receive(|records| (count(records, launched) >= 4).then(|| records.to_vec()));
    assert_eq!(count(&reported, synced), 0, "nor the first one since");

    assert_eq!(job.send("query 0x2000"), "0");
    queue.receive(|records| (count(records, synced) == 1).then_some(()));
    // It is reported once: nothing is new.
    assert_eq!(job.send("sync"), "0");
    assert_eq!(job.send("query 0x2000"), "0");
    assert!(job.send("launch k0 1 0x2000").starts_with('0'));
    let reported =
        queue.receive(|records| (count(records, launched) >= 5).then(|| records.to_vec()));
    assert_eq!(count(&reported, synced), 1);
}

#[test]
fn a_grant_that_yields_is_given_back_when_the_program_waits() {
    calmly(|| {
        let folders = TestFolders::new();
        let behaviour = QueueBehaviour { yields: true, ..QueueBehaviour::of(Role::Fill) };
        let queue = TestQueue::start(&folders, behaviour.granting(Nanos::from_millis(50), 16, 2));
        let mut job = Job::join(&folders, None);

        job.launch("k100", 3);
        assert_eq!(job.send("sync"), "0");
        if job.counters().ungranted > 0 {
            return Calm::No;
        }

        let returned = queue.receive(|records| {
            records.iter().find_map(|record| match record {
                ShimRecord::Sync { returns, .. } => Some(*returns),
                _ => None,
            })
        });
        assert_eq!(returned, Some(1));
        job.begin("launch k100 1");
        let wants = |record: &ShimRecord| matches!(record, ShimRecord::Request { launch: 4, .. });
        queue.receive(|records| (count(records, wants) >= 1).then_some(()));
        Calm::Yes
    });
}
