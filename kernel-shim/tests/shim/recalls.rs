//! A holder brings the device back to its context before its pause ends.

use tessera_frames::kernel::{ShimRecord, ToShim};
use tessera_kernel_queue::{Nanos, Role};

use crate::job::Job;
use crate::queue::{QueueBehaviour, TestFolders, TestGate, TestQueue};

/// Launches until the shim has noted the program's context so often, since an order needed it.
fn launch_until_noted(job: &mut Job, queue: &TestQueue, times: u64) {
    loop {
        queue.send(ToShim::Recall { at: Nanos::ZERO, launches: u64::MAX });
        job.launch("k0", 1);
        if job.numbers("calls cuCtxGetCurrent") == [times] {
            return;
        }
    }
}

/// Waits until so many orders were carried out.
fn await_recalls(queue: &TestQueue, count: usize) {
    let is_recalled = |record: &&ShimRecord| matches!(record, ShimRecord::Recalled { .. });
    queue.receive(|records| (records.iter().filter(is_recalled).count() >= count).then_some(()));
}

#[test]
fn each_order_that_is_still_due_launches_one_kernel_on_a_stream_of_the_shim() {
    let (folder, folders) = (tempfile::tempdir().unwrap(), TestFolders::new());
    let (gate, _served) = TestGate::served(folder.path());
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::join(&folders, Some(&gate.path));
    launch_until_noted(&mut job, &queue, 1);

    let launches = gate.page().gate().launches;
    let (before, reported) = (job.arrived().launches, job.counters().reported);
    let order = |launches| queue.send(ToShim::Recall { at: Nanos::ZERO, launches });
    // The holder has launched since: its pause is over.
    order(launches - 1);
    order(launches);
    await_recalls(&queue, 1);
    order(launches);
    await_recalls(&queue, 2);

    assert_eq!(job.arrived().launches, before + 2);
    assert_eq!(job.counters().reported, reported, "they are no launches of the program");
    assert_eq!(gate.page().gate().launches, launches, "and end no gap");
    assert_eq!(job.numbers("calls cuStreamCreate"), [1]);

    // The driver destroys the stream with its context.
    assert_eq!(job.send("raw cuCtxDestroy_v2 0"), "0");
    launch_until_noted(&mut job, &queue, 2);
    order(gate.page().gate().launches);
    await_recalls(&queue, 3);
    assert_eq!(job.numbers("calls cuStreamCreate"), [2]);
    assert!(job.end().success());
}

#[test]
fn an_order_is_carried_out_at_its_time_and_the_latest_one_replaces_those_before() {
    const SECOND: Nanos = Nanos::from_millis(1_000);
    let (folder, folders) = (tempfile::tempdir().unwrap(), TestFolders::new());
    let (gate, _served) = TestGate::served(folder.path());
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::join(&folders, Some(&gate.path));
    launch_until_noted(&mut job, &queue, 1);
    let (launches, before) = (gate.page().gate().launches, job.arrived().launches);

    // The shim's clock is that of the last launch.
    let due = gate.page().last_launch().at.plus(SECOND);
    queue.send(ToShim::Recall { at: due.plus(SECOND.times(3_600)), launches });
    queue.send(ToShim::Recall { at: due, launches });
    await_recalls(&queue, 1);

    let recalled = queue.receive(|records| {
        records.iter().find_map(|record| match record {
            ShimRecord::Recalled { at } => Some(*at),
            _ => None,
        })
    });
    assert!(recalled >= due, "{recalled} before {due}");
    assert_eq!(job.arrived().launches, before + 1);
    assert!(job.end().success());
}
