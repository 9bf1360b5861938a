//! What kernels need of the slice: queried once, reported to the queue, and never in the program's way.

use tessera_frames::kernel::ShimRecord;
use tessera_kernel_queue::need::{DeviceLimits, FunctionResources, LaunchSize, of_launch};
use tessera_kernel_queue::{Dims, KernelIndex, ResourceNeed, Role};

use crate::job::Job;
use crate::queue::{QueueBehaviour, TestFolders, TestQueue};

/// The driver of these tests.
const DEVICE: DeviceLimits = DeviceLimits {
    multiprocessors: 108,
    block_threads: 1_024,
    threads: 2_048,
    blocks: 32,
    registers: 65_536,
    shared_bytes: 167_936,
    shared_reserved_bytes: 1_024,
};
const FUNCTION: FunctionResources =
    FunctionResources { registers: 64, shared_bytes: 1_024, block_threads: 1_024 };

/// Returns what the launcher's kernels need with so much dynamic shared memory.
fn need(shared_bytes: u32) -> ResourceNeed {
    let size = LaunchSize { grid: Dims([4, 2, 1]), block: Dims([32, 1, 1]), shared_bytes };
    of_launch(&size, &FUNCTION, &DEVICE).unwrap()
}

fn needs(records: &[ShimRecord]) -> Vec<(KernelIndex, ResourceNeed)> {
    let need = |record: &ShimRecord| match record {
        ShimRecord::Need { kernel, need } => Some((*kernel, *need)),
        _ => None,
    };
    records.iter().filter_map(need).collect()
}

fn launches(records: &[ShimRecord]) -> usize {
    records.iter().filter(|record| matches!(record, ShimRecord::Launch { .. })).count()
}

#[test]
fn each_kernels_need_is_reported_once_and_each_function_is_queried_once() {
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::join(&folders, None);

    job.launch("k0", 200);
    job.launch("k1", 200);
    assert_eq!(job.send("kernel k2 200"), "0");

    let reported = queue.receive(|records| {
        (launches(records) >= 600 && needs(records).len() >= 3).then(|| records.to_vec())
    });
    let mut reported = needs(&reported);
    reported.sort_by_key(|(kernel, _)| *kernel);
    let expected = [0, 1, 2].map(|kernel| (KernelIndex::new(kernel), need(0)));
    assert_eq!(reported, expected);
    assert_eq!(job.send("calls cuFuncGetAttribute"), "6", "three numbers of each of two functions");
    assert_eq!(
        job.send("calls cuKernelGetAttribute"),
        "3",
        "a kernel of a library has its own query"
    );
    assert_eq!(job.send("calls cuDeviceGetAttribute"), "7", "the device is queried once");
}

#[test]
fn a_launch_with_more_shared_memory_changes_the_need() {
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::join(&folders, None);
    let last = |records: &[ShimRecord]| needs(records).last().map(|(_, need)| *need);
    job.launch("k0", 1);
    queue.receive(|records| (last(records) == Some(need(0))).then_some(()));

    assert_eq!(job.send("shared k0 100000"), "0");
    queue.receive(|records| (last(records) == Some(need(100_000))).then_some(()));

    assert_eq!(job.send("shared k0 1000"), "0");
    job.launch("k0", 10);
    let all = queue.receive(|records| (launches(records) >= 12).then(|| needs(records)));
    assert_eq!(all.len(), 2, "less memory changes nothing: {all:?}");
    assert_ne!(need(0), need(100_000));
}

#[test]
fn a_query_that_fails_changes_no_launch_and_reports_no_need() {
    for symbol in ["cuFuncGetAttribute", "cuDeviceGetAttribute"] {
        let folders = TestFolders::new();
        let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
        let mut job = Job::start(&folders, None);
        assert_eq!(job.send(&format!("fail {symbol} 999")), "0");
        assert_eq!(job.send("init"), "0");
        job.launch("k0", 1);
        job.reach(crate::job::ACTIVE);

        job.launch("k0", 50);
        job.launch("k1", 50);

        let reported =
            queue.receive(|records| (launches(records) >= 100).then(|| records.to_vec()));
        assert_eq!(needs(&reported), [], "{symbol}");
        assert_eq!(job.arrived().launches, 101, "{symbol}");
    }
}

#[test]
fn a_queue_of_the_version_before_gets_no_record_that_it_does_not_know() {
    let folders = TestFolders::new();
    let mut behaviour = QueueBehaviour::of(Role::Hold);
    behaviour.welcome.protocol = 1;
    let queue = TestQueue::start(&folders, behaviour);
    let mut job = Job::join(&folders, None);
    assert_eq!(job.send("alloc x 4096").split(' ').next(), Some("0"));

    job.launch("k0", 100);

    // Memory is reported regularly, as the number of streams is: its report comes after the first one of
    // those.
    let is_regular = |record: &ShimRecord| matches!(record, ShimRecord::Memory { .. });
    let reported = queue.receive(|records| {
        (launches(records) >= 100 && records.iter().any(is_regular)).then(|| records.to_vec())
    });
    let newer = |record: &&ShimRecord| {
        matches!(record, ShimRecord::Need { .. } | ShimRecord::Streams { .. })
    };
    assert_eq!(reported.iter().find(newer), None);
}

#[test]
fn the_number_of_streams_is_reported_as_it_grows() {
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::join(&folders, None);
    let streams = |expected| {
        queue.receive(|records| {
            let of = |record: &ShimRecord| *record == ShimRecord::Streams { streams: expected };
            records.iter().any(of).then_some(())
        });
    };

    job.launch("k0", 1);
    streams(1);
    assert!(job.send("launch k0 1 0x20000").starts_with('0'));
    streams(2);
}
