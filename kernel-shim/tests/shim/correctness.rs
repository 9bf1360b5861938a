//! Programs have the same results as without the shim: order, captures, forks, errors, ends.

use std::time::{Duration, Instant};

use tessera_frames::kernel::ShimRecord;
use tessera_kernel_queue::{Nanos, Role};

use crate::built::symbols;
use crate::job::{ACTIVE, DEAD, DETACHED, Job, PASSIVE};
use crate::queue::{Calm, QueueBehaviour, TestFolders, TestQueue, calmly};

/// Returns how much the tests do: more if `./x test --long` has set its variable.
fn times(short: u64, long: u64) -> u64 {
    if std::env::var_os("TESSERA_LONG_TESTS").is_some() { long } else { short }
}

#[test]
fn kernels_compute_the_same_results_with_the_shim_in_every_role() {
    let count = times(5_000, 100_000);
    let run = |job: &mut Job| {
        assert_eq!(job.send(&format!("mixed {count}")), "0");
        job.arrived().order
    };
    let folders = TestFolders::new();
    let mut alone = Job::without_shim(&folders);
    assert_eq!(alone.send("init"), "0");
    alone.launch("k0", 1);
    let expected = run(&mut alone);

    for role in [Role::Hold, Role::Measure, Role::Free, Role::Fill] {
        let folders = TestFolders::new();
        let behaviour =
            QueueBehaviour { sk: Some(Nanos::from_micros(2)), ..QueueBehaviour::of(role) };
        let _queue = TestQueue::start(&folders, behaviour.granting(Nanos::from_millis(1), 64, 8));
        let mut job = Job::join(&folders, None);

        assert_eq!(run(&mut job), expected, "{role:?}");

        assert_eq!(job.send("sync"), "0");
        let counters = job.counters();
        assert_eq!((counters.in_flight, counters.lost), (0, 0), "{role:?}");
    }
}

#[test]
fn eight_threads_on_four_streams_compute_the_same_results_whenever_grants_arrive() {
    let (threads, count) = (8, times(1_500, 12_500));
    let storm = |job: &mut Job, seed: u64| {
        let answer = job.numbers(&format!("storm {count} {threads} {seed}"));
        assert_eq!(answer[0], 0, "no call failed");
        answer[1]
    };
    let seed = 20_261_121;
    let folders = TestFolders::new();
    let [expected, other] = [seed, seed + 1].map(|seed| {
        let mut alone = Job::without_shim(&folders);
        assert_eq!(alone.send("init"), "0");
        alone.launch("k0", 1);
        storm(&mut alone, seed)
    });
    assert_ne!(expected, other, "the sums tell orders apart");

    for role in [Role::Hold, Role::Measure, Role::Fill] {
        let folders = TestFolders::new();
        let late = Duration::from_micros(500);
        let behaviour =
            QueueBehaviour { sk: Some(Nanos::from_micros(2)), late, ..QueueBehaviour::of(role) };
        let _queue = TestQueue::start(&folders, behaviour.granting(Nanos::from_millis(1), 64, 8));
        let mut job = Job::join(&folders, None);

        assert_eq!(storm(&mut job, seed), expected, "{role:?}");

        assert_eq!(job.send("sync"), "0");
        let counters = job.counters();
        assert_eq!(counters.in_flight, 0, "{role:?}");
        // Lost records are not checked: here kernels take a microsecond or two.
        assert!(role != Role::Fill || counters.granted > 0, "{counters:?}");
        assert_eq!(job.arrived().illegal, 0);
    }
}

#[test]
fn launches_of_many_threads_all_arrive_and_their_credits_are_returned() {
    let count = times(200, 5_000);
    let folders = TestFolders::new();
    let behaviour = QueueBehaviour {
        sk: Some(Nanos::from_micros(5)),
        yields: true,
        ..QueueBehaviour::of(Role::Fill)
    };
    let _queue = TestQueue::start(&folders, behaviour.granting(Nanos::from_millis(1), 16, 4));
    let mut job = Job::join(&folders, None);

    assert!(job.send(&format!("threads k5 {count} 8")).starts_with('0'));

    assert_eq!(job.send("sync"), "0");
    assert_eq!(job.arrived().launches, 8 * count + 1);
    let counters = job.counters();
    assert_eq!((counters.granted + counters.ungranted, counters.in_flight), (8 * count, 0));
}

#[test]
fn captures_are_neither_held_back_nor_disturbed_while_the_gate_is_closed() {
    for mode in 0..3 {
        for role in [Role::Fill, Role::Measure] {
            let folders = TestFolders::new();
            let mut behaviour = QueueBehaviour::of(role);
            behaviour.welcome.wait_max = Nanos::from_millis(1_000);
            let _queue = TestQueue::start(&folders, behaviour);
            let mut job = Job::join(&folders, None);
            let reported = job.counters().reported;

            assert_eq!(job.send(&format!("capture x {mode}")), "0");
            let before = job.numbers("all-calls")[0];
            let numbers = job.numbers("launch k1 50 0x77770");
            let after = job.numbers("all-calls")[0];
            assert_eq!(job.send("end-capture"), "0");

            assert_eq!(numbers[0], 0);
            // The launches, as many queries whether they are captured, and one for the name.
            assert_eq!(after - before, 50 + 50 + 1, "{role:?} {mode}");
            let arrived = job.arrived();
            assert_eq!((arrived.captured, arrived.illegal), (50, 0), "{role:?} {mode}");
            let counters = job.counters();
            assert_eq!((counters.reported, counters.in_flight), (reported, 0), "{role:?} {mode}");
            assert!(counters.waited_max_ns < 500_000_000);
        }
    }
}

#[test]
fn children_run_as_without_the_shim_and_the_parent_continues() {
    let folders = TestFolders::new();
    let _queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::start(&folders, None);

    // Before the driver was initialised it returns that error, with and without the shim.
    assert_eq!(job.send("count"), "3 -1");
    assert_eq!(job.send("fork plain"), format!("0 3 -1 {PASSIVE} 1"));

    assert_eq!(job.send("init"), "0");
    job.launch("k0", 1);
    job.reach(ACTIVE);
    // The child of a process with a session passes everything on, without a session.
    assert_eq!(job.send("fork plain"), format!("0 0 0 {DEAD} 1"));
    assert_eq!(job.send("fork exec"), "0");
    assert_eq!(job.send("fork vfork"), "0");

    job.launch("k0", 10);
    assert_eq!(job.counters().state, ACTIVE);
    assert_eq!(job.send("count"), "0 1");
}

#[test]
fn a_child_forked_before_the_first_launch_has_its_own_session() {
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::start(&folders, None);
    assert_eq!(job.send("init"), "0");

    // It launches, and so begins a session; its thread is the second one.
    assert_eq!(job.send("fork plain"), format!("0 0 0 {DETACHED} 2"));

    job.launch("k0", 1);
    job.reach(ACTIVE);
    drop(queue);
}

#[test]
fn kernels_never_get_the_name_of_an_unloaded_one() {
    let count = times(2_000, 10_000);
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::join(&folders, None);

    assert_eq!(job.send(&format!("reload n {count}")), "0");

    let reported = queue.receive(|records| {
        let launches = records.iter().filter(|r| matches!(r, ShimRecord::Launch { .. })).count();
        (u64::try_from(launches).unwrap() >= count).then(|| records.to_vec())
    });
    let mut defined = 0;
    for record in &reported {
        let ShimRecord::Define { kernel, .. } = record else { continue };
        let number: u32 = kernel.name()[1..2].parse().unwrap();
        assert_eq!(kernel.grid.0[0], number + 1, "{kernel:?} was launched with another's sides");
        defined += 1;
    }
    assert_eq!(defined, 7);
}

#[test]
fn every_error_of_the_driver_reaches_the_program_unchanged() {
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::join(&folders, None);
    let driver_has = |row: &&crate::built::Symbol| row.version <= 12_040;
    for row in symbols().iter().filter(|row| row.hook).filter(driver_has) {
        assert_eq!(job.send(&format!("raw {} 719", row.symbol)), "719", "{}", row.symbol);
    }
    assert_eq!(job.send("raw cuStreamBeginCaptureToCig 0"), "801", "one that it does not have");
    assert_eq!(job.counters().state, ACTIVE);

    let launched = job.counters().launches;
    assert_eq!(job.send("fail cuLaunchKernel 719"), "0");
    assert!(job.send("launch k1 3").starts_with("719 "));
    queue.receive(|records| {
        let failed =
            |record: &ShimRecord| matches!(record, ShimRecord::Failed { launch } if *launch > launched);
        (records.iter().filter(|record| failed(record)).count() == 3).then_some(())
    });
}

#[test]
fn a_launch_that_the_driver_refuses_leaves_no_credit_behind() {
    calmly(|| {
        let folders = TestFolders::new();
        let behaviour = QueueBehaviour::of(Role::Fill).granting(Nanos::from_millis(10), 2, 1);
        let _queue = TestQueue::start(&folders, behaviour);
        let mut job = Job::join(&folders, None);
        assert_eq!(job.send("fail cuLaunchKernel 701"), "0");
        assert!(job.send("launch k1 5").starts_with("701 "));
        assert_eq!(job.counters().in_flight, 0);

        assert_eq!(job.send("fail cuLaunchKernel 0"), "0");
        job.launch("k1", 5);
        assert_eq!(job.send("sync"), "0");
        let counters = job.counters();
        assert_eq!((counters.granted + counters.ungranted, counters.in_flight), (10, 0));
        if counters.ungranted == 0 { Calm::Yes } else { Calm::No }
    });
}

#[expect(
    clippy::disallowed_methods,
    reason = "measures how soon the queue notices the end of a process"
)]
#[test]
fn the_queue_removes_a_process_soon_however_it_ends() {
    for end in ["exit 0", "exit 7", "_exit 0", "kill"] {
        let folders = TestFolders::new();
        let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
        let mut job = Job::join(&folders, None);
        job.launch("k0", 100);
        assert_eq!(job.send("late"), "0");

        let begun = Instant::now();
        assert_eq!(job.send(&end.replace(' ', " x ")), "0");
        let status = job.end();
        queue.ended(1);

        // A second of silence, and some time for a busy machine.
        assert!(begun.elapsed() < Duration::from_secs(3), "{end}: {:?}", begun.elapsed());
        assert_eq!(
            status.code(),
            match end {
                "exit 7" => Some(7),
                "kill" => None,
                _ => Some(0),
            }
        );
    }
}

#[test]
fn a_process_ends_while_its_threads_wait() {
    for round in 0..times(6, 200) {
        let folders = TestFolders::new();
        let mut behaviour = QueueBehaviour::of(Role::Fill);
        behaviour.welcome.wait_max = Nanos::from_millis(1_000);
        let queue = TestQueue::start(&folders, behaviour);
        let mut job = Job::join(&folders, None);
        assert_eq!(job.send("background k0"), "0");
        queue.receive(|records| {
            records.iter().any(|r| matches!(r, ShimRecord::Request { .. })).then_some(())
        });

        assert_eq!(job.send(["exit x 0", "_exit x 0"][usize::from(round % 2 == 1)]), "0");

        assert!(job.end().success());
        queue.ended(1);
    }
}

#[test]
fn memory_that_the_process_allocates_is_reported_and_never_limited() {
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::join(&folders, None);

    let first = job.numbers("alloc x 1000000")[1];
    job.numbers("alloc x 500000");
    assert_eq!(job.send(&format!("free x {first}")), "0");

    let is_it = |r: &ShimRecord| matches!(r, ShimRecord::Memory { used: 500_000, peak: 1_500_000 });
    queue.receive(|records| records.iter().any(is_it).then_some(()));
    assert_eq!(job.send("fail cuMemAlloc_v2 2"), "0");
    assert!(job.send("alloc x 9").starts_with("2 "));
    let counters = job.counters();
    assert_eq!((counters.memory_used, counters.memory_peak), (500_000, 1_500_000));
}
