//! Sessions with a queue: reports, waits, and the loss of the queue.

use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::time::{Duration, Instant};

use tessera_frames::kernel::{Farewell, SESSION_THREAD_NAME, SessionEnd, ShimRecord, ToShim};
use tessera_kernel_queue::{Grant, GrantKind, KernelIndex, Nanos, Role};
use tessera_wire::gate_page;

use crate::job::{ACTIVE, DETACHED, Job};
use crate::queue::{Calm, QueueBehaviour, TestFolders, TestGate, TestQueue, calmly};

const MS: u64 = 1_000_000;

fn launches(records: &[ShimRecord]) -> Vec<(u64, u64)> {
    let each = records.iter().filter_map(|record| match record {
        ShimRecord::Launch { launch, count, .. } => Some((*launch, *count)),
        _ => None,
    });
    each.collect()
}

#[test]
fn a_holder_reports_each_launch_once_in_order_and_its_syncs_and_never_waits() {
    let folder = tempfile::tempdir().unwrap();
    let (gate, _served) = TestGate::served(folder.path());
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::join(&folders, Some(&gate.path));

    job.launch("k0", 500);
    assert_eq!(job.send("sync"), "0");
    job.launch("k1", 500);

    let reported =
        queue.receive(|records| (launches(records).len() >= 1_000).then(|| records.to_vec()));
    let reported_launches = launches(&reported);
    assert!(reported_launches.windows(2).all(|pair| pair[1] == (pair[0].0 + 1, pair[0].1 + 1)));
    assert_eq!(gate.page().gate().launches, 1_000, "the gate rose by one each");
    let sync =
        reported.iter().position(|record| matches!(record, ShimRecord::Sync { returns: None, .. }));
    let before = launches(&reported[..sync.expect("the sync was reported")]).len();
    assert_eq!(before, 500);
    let defined: Vec<&str> = reported
        .iter()
        .filter_map(|record| match record {
            ShimRecord::Define { kernel, .. } => Some(kernel.name()),
            _ => None,
        })
        .collect();
    assert_eq!(
        defined,
        ["k0", "k1"],
        "what passed before the session was reported is no kernel of it"
    );
    let hello = &queue.hellos(1)[0];
    assert_eq!(hello.device, "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f");
    assert_eq!((hello.driver, hello.token), (12_040, [0x17; 32]));
    assert_eq!(job.counters().lost, 0);
    assert!(job.end().success());
}

#[test]
fn a_filler_launches_under_grants_only_and_never_more_at_once_than_they_allow() {
    calmly(|| {
        let folders = TestFolders::new();
        let behaviour = QueueBehaviour::of(Role::Fill).granting(Nanos::from_millis(10), 16, 1);
        let queue = TestQueue::start(&folders, behaviour);
        let mut job = Job::join(&folders, None);

        job.launch("k500", 60);
        assert_eq!(job.send("sync"), "0");

        let (arrived, counters) = (job.arrived(), job.counters());
        assert_eq!((arrived.launches, counters.in_flight), (61, 0));
        if counters.ungranted > 0 {
            return Calm::No;
        }
        assert_eq!((counters.granted, arrived.in_flight_max), (60, 1), "{counters:?}");
        let started = |records: &[ShimRecord]| {
            records.iter().filter(|record| matches!(record, ShimRecord::Started { .. })).count()
        };
        let reported = queue.receive(|records| {
            let synced = records.iter().any(|record| matches!(record, ShimRecord::Sync { .. }));
            (started(records) >= 60 && synced).then(|| records.to_vec())
        });
        let done =
            reported.iter().filter(|record| matches!(record, ShimRecord::Done { .. })).count();
        assert!((59..=60).contains(&done), "each end was reported: {done}");
        let wants =
            reported.iter().filter(|record| matches!(record, ShimRecord::Request { .. })).count();
        assert!(wants >= 4, "16 launches to a grant: {wants}");
        Calm::Yes
    });
}

#[test]
fn a_lone_program_is_at_most_100_ms_ahead_of_the_device_and_never_less_than_two_kernels() {
    // The kernel's real and predicted times, and the kernels that may be in flight: ten marks, one that is being
    // set, and what is launched after it.
    for (role, kernel, millis, least, most) in [
        (Role::Free, "k5000", 5, 10, 24),
        (Role::Free, "k60000", 60, 2, 3),
        (Role::Measure, "k5000", 5, 10, 24),
    ] {
        // The queue's answer may come late, and until then the kernel has no predicted time.
        calmly(|| {
            let folders = TestFolders::new();
            let sk = Some(Nanos::from_millis(millis));
            let behaviour = QueueBehaviour { sk, ..QueueBehaviour::of(role) };
            let queue = TestQueue::start(&folders, behaviour);
            let mut job = Job::join(&folders, None);
            job.launch(kernel, 1);
            queue.receive(|records| {
                let defined = records.iter().any(|r| matches!(r, ShimRecord::Define { .. }));
                defined.then_some(())
            });
            assert_eq!(job.send("sync"), "0");

            job.launch(kernel, 40);
            assert_eq!(job.send("sync"), "0");

            if role == Role::Free {
                assert_eq!(job.counters().reported, 0, "a free program reports nothing");
            }
            let ahead = job.arrived().in_flight_max;
            assert!(ahead >= least, "{kernel} as {role:?}: {ahead} of 40 kernels at once");
            if ahead <= most { Calm::Yes } else { Calm::No }
        });
    }
}

#[test]
fn a_waiting_filler_reports_the_ends_of_its_kernels_in_flight_at_once() {
    // A thread that looks only when a grant comes, or every few milliseconds, is late each time.
    calmly(|| {
        let folders = TestFolders::new();
        let sk = Some(Nanos::from_millis(5));
        let queue =
            TestQueue::start(&folders, QueueBehaviour { sk, ..QueueBehaviour::of(Role::Fill) });
        let mut job = Job::join(&folders, None);
        job.begin("launch k5000 2");
        let wanted = |nth: usize| {
            queue.receive(|records| {
                let wants = records.iter().filter(|r| matches!(r, ShimRecord::Request { .. }));
                (wants.count() >= nth).then_some(())
            });
        };
        // The kernel is new: it is requested for twice.
        wanted(2);
        queue.send(ToShim::Grant(Grant {
            number: 1,
            gate: tessera_kernel_queue::GateState::default(),
            kind: GrantKind::Gap,
            from: Nanos::ZERO,
            until: Nanos::MAX,
            budget: Nanos::from_millis(6),
            launches: 1,
            in_flight: 1,
            yields: false,
        }));
        let (started, done) = queue.receive(|records| {
            let started = records.iter().find_map(|record| match record {
                ShimRecord::Started { at, .. } => Some(*at),
                _ => None,
            })?;
            let done = records.iter().find_map(|record| match record {
                ShimRecord::Done { at } if *at > started => Some(*at),
                _ => None,
            })?;
            Some((started, done))
        });
        assert!(job.answer().starts_with('0'));
        let late = done.minus(started).get().saturating_sub(5 * MS);
        if late < MS { Calm::Yes } else { Calm::No }
    });
}

#[test]
fn a_thread_that_waits_for_its_next_grant_reports_the_sample_of_its_last_kernel_before_its_end() {
    calmly(|| {
        let folder = tempfile::tempdir().unwrap();
        let (gate, _served) = TestGate::served(folder.path());
        let folders = TestFolders::new();
        let mut behaviour = QueueBehaviour { measure: true, ..QueueBehaviour::of(Role::Fill) };
        behaviour.welcome.wait_max = Nanos::from_millis(1_000);
        let queue = TestQueue::start(&folders, behaviour);
        let mut job = Job::join(&folders, Some(&gate.path));
        job.begin("launch k500 2");
        requests(&queue, 1, 2);

        // For one launch: the second one waits, and nobody synchronises.
        queue.send(ToShim::Grant(Grant {
            number: 1,
            gate: gate.page().gate(),
            kind: GrantKind::Gap,
            from: Nanos::ZERO,
            until: Nanos::MAX,
            budget: Nanos::from_millis(6),
            launches: 1,
            in_flight: 1,
            yields: false,
        }));

        let order = queue.receive(|records| {
            let of_end = |record: &ShimRecord| match record {
                ShimRecord::Sample(_) => Some("sample"),
                ShimRecord::Done { .. } => Some("end"),
                _ => None,
            };
            let order: Vec<_> = records.iter().filter_map(of_end).collect();
            order.contains(&"end").then_some(order)
        });
        queue.send(ToShim::Role(Role::Hold));
        assert!(job.answer().starts_with('0'));
        // A launch during which the thread was interrupted has no sample.
        assert_eq!(order.last(), Some(&"end"));
        if order == ["sample", "end"] { Calm::Yes } else { Calm::No }
    });
}

#[test]
fn a_launch_that_was_granted_by_its_age_is_measured_and_others_of_a_known_kernel_are_not() {
    for (kind, expected) in [(GrantKind::Aged, 1), (GrantKind::Gap, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let (gate, _served) = TestGate::served(folder.path());
        let folders = TestFolders::new();
        let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
        let mut job = Job::join(&folders, Some(&gate.path));
        // It is known from here on.
        job.launch("k500", 1);
        queue.receive(|records| (!launches(records).is_empty()).then_some(()));
        assert_eq!(job.send("sync"), "0");
        queue.send(ToShim::Role(Role::Fill));
        job.take_role(4);
        let count = |records: &[ShimRecord]| {
            records.iter().filter(|record| matches!(record, ShimRecord::Sample(_))).count()
        };
        let before = queue.receive(|records| Some(count(records)));

        job.begin("launch k500 1");
        requests(&queue, 2, 1);
        queue.send(ToShim::Grant(Grant {
            number: 1,
            gate: gate.page().gate(),
            kind,
            from: Nanos::ZERO,
            until: Nanos::MAX,
            budget: Nanos::from_millis(6),
            launches: 1,
            in_flight: 1,
            yields: false,
        }));
        assert!(job.answer().starts_with('0'));
        assert_eq!(job.send("sync"), "0");

        let samples = queue.receive(|records| {
            let syncs = records.iter().filter(|r| matches!(r, ShimRecord::Sync { .. }));
            (syncs.count() >= 2).then(|| count(records))
        });
        assert_eq!(samples - before, expected, "{kind:?}");
    }
}

#[test]
fn the_first_launch_waits_for_the_session_of_a_queue_that_lives_and_not_forever() {
    let folder = tempfile::tempdir().unwrap();
    let (gate, served) = TestGate::served(folder.path());
    let folders = TestFolders::new();
    let (longest, _) = first_launch(&folders, &gate).1;
    assert!(longest >= 90 * MS, "nobody listens there: {longest}");

    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Fill));
    calmly(|| {
        let (mut job, (longest, _)) = first_launch(&folders, &gate);
        let begun = job.counters().state == ACTIVE;
        assert!(begun || longest >= 90 * MS, "it went before the session began: {longest}");
        if begun { Calm::Yes } else { Calm::No }
    });
    drop(queue);

    drop(served);
    calmly(|| {
        let (longest, _) = first_launch(&folders, &gate).1;
        if longest < 90 * MS { Calm::Yes } else { Calm::No }
    });
}

fn first_launch(folders: &TestFolders, gate: &TestGate) -> (Job, (u64, u64)) {
    let mut job = Job::start(folders, Some(&gate.path));
    assert_eq!(job.send("init"), "0");
    let times = job.launch("k0", 1);
    (job, times)
}

#[test]
fn a_waiting_launch_of_a_new_kernel_is_requested_again_with_its_index() {
    let folders = TestFolders::new();
    let mut behaviour = QueueBehaviour::of(Role::Fill);
    behaviour.welcome.wait_max = Nanos::from_millis(1_000);
    let queue = TestQueue::start(&folders, behaviour);
    let mut job = Job::join(&folders, None);

    job.begin("launch k1 1");

    let (launch, kernel) = queue.receive(|records| {
        records.iter().find_map(|record| match record {
            ShimRecord::Request { launch, kernel, .. } if *kernel != KernelIndex::UNKNOWN => {
                Some((*launch, *kernel))
            }
            _ => None,
        })
    });
    assert_eq!((launch, kernel), (1, KernelIndex::new(0)));
    queue.send(ToShim::Role(Role::Hold));
    assert!(job.answer().starts_with('0'));
}

#[test]
fn a_grant_serves_launches_of_new_kernels_too() {
    let folder = tempfile::tempdir().unwrap();
    // On a busy machine this test may be late by more than the silence after which a queue without a process is dead.
    let (gate, _served) = TestGate::served(folder.path());
    let folders = TestFolders::new();
    let mut behaviour = QueueBehaviour::of(Role::Fill);
    behaviour.welcome.wait_max = Nanos::from_millis(1_000);
    let queue = TestQueue::start(&folders, behaviour);
    let mut job = Job::join(&folders, Some(&gate.path));
    job.begin("launch k1 1");
    requests(&queue, 1, 2);
    queue.send(ToShim::Grant(Grant {
        number: 1,
        gate: gate.page().gate(),
        kind: GrantKind::Gap,
        from: Nanos::ZERO,
        until: Nanos::MAX,
        budget: Nanos::from_millis(1_000),
        launches: 100,
        in_flight: 1,
        yields: false,
    }));
    assert!(job.answer().starts_with('0'));

    // No further grant comes: a program that gave this one back would wait forever.
    for kernel in 2..=9_u64 {
        job.begin(&format!("launch k{kernel} 1"));
        queue.receive(|records| {
            let started = |record: &ShimRecord| matches!(record, ShimRecord::Started { launch, grant: 1, .. } if *launch == kernel);
            records.iter().any(started).then_some(())
        });
        assert!(job.answer().starts_with('0'));
    }
    let given_back = queue.receive(|records| {
        let returns =
            |record: &&ShimRecord| matches!(record, ShimRecord::Request { beyond: Some(_), .. });
        Some(records.iter().filter(returns).count())
    });
    assert_eq!(given_back, 0);
}

/// Waits until a launch was requested so often.
fn requests(queue: &TestQueue, of: u64, times: usize) {
    let queries = |record: &&ShimRecord| matches!(record, ShimRecord::Request { launch, .. } if *launch == of);
    queue.receive(|records| (records.iter().filter(queries).count() >= times).then_some(()));
}

#[test]
fn a_filler_that_nobody_answers_asks_again_and_waits_as_long_as_the_queue_lives() {
    let folder = tempfile::tempdir().unwrap();
    // The queue's process lives, and writes no heartbeat: it waits for a processor.
    let (gate, served) = TestGate::served(folder.path());
    let folders = TestFolders::new();
    let mut behaviour = QueueBehaviour::of(Role::Fill);
    behaviour.welcome.wait_max = Nanos::from_millis(40);
    let queue = TestQueue::start(&folders, behaviour);
    let mut job = Job::join(&folders, Some(&gate.path));

    job.begin("launch k0 1");

    // One request without an index, one with it, and then one after each 40 ms: far longer than 20 ms of
    // silence.
    requests(&queue, 1, 5);
    drop(served);
    assert!(job.answer().starts_with('0'));
    assert_eq!(job.counters().ungranted, 1, "a silent queue without a process is dead");
}

#[test]
fn a_filler_whose_queue_fell_silent_waits_once_for_20_ms_and_then_not_at_all() {
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Fill));
    let mut job = Job::join(&folders, None);
    drop(queue);

    let (longest, all) = job.launch("k0", 1_000);

    // A thousand waits would take twenty seconds; the rest is what a busy machine adds to one.
    assert!(longest >= 15 * MS, "it waits once: {longest}");
    assert!(longest < 400 * MS && all < 1_000 * MS, "{longest}, {all}");
    assert_eq!(job.arrived().launches, 1_001);
}

#[test]
fn a_session_of_the_next_agent_counts_on_the_page_of_that_agent() {
    let folder = tempfile::tempdir().unwrap();
    let (first, served) = TestGate::served(folder.path());
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::join(&folders, Some(&first.path));
    job.launch("k0", 10);
    drop((queue, served));
    job.reach(DETACHED);
    let counted = first.page().gate().launches;

    let (next, _served) = TestGate::served(folder.path());
    let _queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    job.reach(ACTIVE);
    job.launch("k0", 10);

    assert!(counted >= 10);
    assert_eq!(
        first.page().gate().launches,
        counted,
        "nobody counts on the page of an agent that is gone"
    );
    assert_eq!(next.page().gate().launches, 10);
}

#[expect(clippy::disallowed_methods, reason = "measures how soon a session is there again")]
#[test]
fn a_session_is_found_again_within_two_seconds_of_the_queues_return() {
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::join(&folders, None);
    job.launch("k0", 10);
    drop(queue);
    job.reach(DETACHED);
    assert!(job.launch("k0", 100).1 < 1_000 * MS, "nothing is waited for meanwhile");

    let back = Instant::now();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    job.reach(ACTIVE);
    let took = back.elapsed();

    assert!(took < Duration::from_secs(2), "{took:?}");
    job.launch("k0", 10);
    let reported =
        queue.receive(|records| (launches(records).len() >= 10).then(|| records.to_vec()));
    assert!(
        matches!(&reported[0], ShimRecord::Define { number: 0, kernel } if kernel.name() == "k0")
    );
    assert_eq!(job.counters().sessions, 2);
}

#[test]
fn a_holders_return_at_the_gate_ends_a_grant_before_the_next_launch() {
    let folder = tempfile::tempdir().unwrap();
    let (gate, _served) = TestGate::served(folder.path());
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Fill));
    let mut job = Job::join(&folders, Some(&gate.path));
    let grant = Grant {
        number: 7,
        gate: gate.page().gate(),
        kind: GrantKind::Gap,
        from: Nanos::ZERO,
        until: Nanos::MAX,
        budget: Nanos::from_millis(500),
        launches: 100,
        in_flight: 8,
        yields: false,
    };
    job.begin("launch k0 3");
    queue.receive(|records| {
        records.iter().any(|r| matches!(r, ShimRecord::Request { .. })).then_some(())
    });
    queue.send(ToShim::Grant(grant));
    assert!(job.answer().starts_with('0'));
    let before = job.counters();
    assert_eq!(before.granted + before.ungranted, 3);

    gate.page().add_launch(KernelIndex::UNKNOWN, Nanos::ZERO);
    job.begin("launch k0 1");
    let queries = |record: &ShimRecord| matches!(record, ShimRecord::Request { launch: 4, .. });
    queue.receive(|records| records.iter().any(queries).then_some(()));
    queue.send(ToShim::Grant(Grant { number: 8, gate: gate.page().gate(), ..grant }));
    assert!(job.answer().starts_with('0'));
    let after = job.counters();
    assert_eq!(after.granted + after.ungranted, 4);
}

#[test]
fn a_closed_page_ends_a_grant_before_the_next_launch() {
    let folder = tempfile::tempdir().unwrap();
    let (gate, _served) = TestGate::served(folder.path());
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Fill));
    let mut job = Job::join(&folders, Some(&gate.path));
    let grant = Grant {
        number: 7,
        gate: gate.page().gate(),
        kind: GrantKind::Gap,
        from: Nanos::ZERO,
        until: Nanos::MAX,
        budget: Nanos::from_millis(500),
        launches: 100,
        in_flight: 8,
        yields: false,
    };
    let requests = |launch: u64| {
        let is_it = move |record: &ShimRecord| matches!(record, ShimRecord::Request { launch: of, .. } if *of == launch);
        queue.receive(|records| records.iter().any(is_it).then_some(()));
    };
    job.begin("launch k0 3");
    requests(1);
    queue.send(ToShim::Grant(grant));
    assert!(job.answer().starts_with('0'));

    gate.page().close();
    job.begin("launch k0 1");
    requests(4);
    queue.send(ToShim::Role(Role::Hold));
    assert!(job.answer().starts_with('0'));
    assert_eq!(job.counters().granted, 3);
}

#[test]
fn waiting_threads_go_when_the_role_changes_and_ask_again_when_the_queue_refuses() {
    let folder = tempfile::tempdir().unwrap();
    // On a busy machine this test may be late by more than the silence after which a queue without a process is dead.
    let (gate, _served) = TestGate::served(folder.path());
    let folders = TestFolders::new();
    let mut behaviour = QueueBehaviour::of(Role::Fill);
    behaviour.welcome.wait_max = Nanos::from_millis(1_000);
    let queue = TestQueue::start(&folders, behaviour);
    let mut job = Job::join(&folders, Some(&gate.path));

    job.begin("launch k0 1");
    let launch = queue.receive(|records| {
        records.iter().find_map(|record| match record {
            ShimRecord::Request { launch, .. } => Some(*launch),
            _ => None,
        })
    });
    requests(&queue, launch, 2);
    let why = tessera_kernel_queue::QueueRefusal::QueueFull;
    queue.send(ToShim::Refused { why, launch: Some(launch) });
    // It has no place now, and queries again.
    requests(&queue, launch, 3);
    queue.send(ToShim::Role(Role::Hold));
    assert!(job.answer().starts_with('0'));
    assert_eq!(job.counters().ungranted, 0);

    job.take_role(3);
    job.launch("k0", 5);
    queue.send(ToShim::Role(Role::Free));
    job.take_role(2);
    let reported = job.counters().reported;
    job.launch("k0", 5);
    assert_eq!(job.counters().reported, reported, "a session without contenders reports nothing");
}

#[test]
fn measuring_reports_the_run_times_of_kernels_and_the_gaps_between() {
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Measure));
    let mut job = Job::join(&folders, None);

    for _ in 0..40 {
        job.launch("k2000", 2);
        assert_eq!(job.send("sync"), "0");
    }

    let samples = queue.receive(|records| {
        let samples: Vec<_> = records
            .iter()
            .filter_map(|record| match record {
                ShimRecord::Sample(sample) => Some(*sample),
                _ => None,
            })
            .collect();
        (samples.len() >= 70).then_some(samples)
    });
    let mut took: Vec<u64> = samples.iter().map(|sample| sample.took.get()).collect();
    took.sort_unstable();
    // A preempted launch shows as a long pair; the device's own time is the usual one.
    let median = took[took.len() / 2];
    assert!((1_950_000..2_150_000).contains(&median), "{took:?}");
    // Pairs without a gap, then one while the host waits.
    let mut gaps: Vec<u64> = samples.iter().filter_map(|s| s.gap).map(Nanos::get).collect();
    gaps.sort_unstable();
    assert!(gaps.len() >= 60 && gaps[gaps.len() / 4] < 50_000, "{gaps:?}");
    assert!(gaps[gaps.len() * 3 / 4] > 1_000, "{gaps:?}");
    assert_eq!(job.arrived().illegal, 0);
}

#[test]
fn a_host_that_is_held_up_between_the_events_is_not_taken_for_a_long_kernel() {
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Measure));
    let mut job = Job::join(&folders, None);

    for _ in 0..100 {
        job.launch("stall200", 1);
        assert_eq!(job.send("sync"), "0");
    }

    let took = queue.receive(|records| {
        let took = records.iter().filter_map(|record| match record {
            ShimRecord::Sample(sample) => Some(sample.took.get()),
            _ => None,
        });
        let took: Vec<_> = took.collect();
        (took.len() >= 75).then_some(took)
    });
    assert!(took.iter().all(|took| *took < 4 * MS), "ten were held up for 5 ms: {took:?}");
    assert!(job.counters().samples <= 91, "they were left out");
}

#[test]
fn one_launch_in_so_many_is_sampled_in_the_sharing_stage_and_none_at_zero() {
    let folders = TestFolders::new();
    let mut behaviour = QueueBehaviour::of(Role::Hold);
    behaviour.welcome.sample_every = 10;
    let queue = TestQueue::start(&folders, behaviour);
    let mut job = Job::join(&folders, None);
    job.launch("k10", 400);
    assert_eq!(job.send("sync"), "0");
    job.launch("k10", 1);
    // Pairs are dropped if the thread was interrupted between their events.
    queue.receive(|records| {
        (records.iter().filter(|r| matches!(r, ShimRecord::Sample(_))).count() >= 20).then_some(())
    });
    assert!((20..=40).contains(&job.counters().samples), "{:?}", job.counters());

    let folders = TestFolders::new();
    let _queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::join(&folders, None);
    job.launch("k10", 400);
    assert_eq!((job.counters().samples, job.send("calls cuEventCreate").as_str()), (0, "0"));
}

#[test]
fn a_queue_that_rejects_a_process_is_not_tried_again() {
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::join(&folders, None);
    queue.send(ToShim::Bye(Farewell { why: SessionEnd::Attempt, again: false }));
    job.reach(DETACHED);
    queue.ended(1);
    job.launch("k0", 100);
    assert_eq!(job.counters().sessions, 1);

    let folders = TestFolders::new();
    let mut behaviour = QueueBehaviour::of(Role::Hold);
    behaviour.welcome.protocol = 77;
    let queue = TestQueue::start(&folders, behaviour);
    let mut job = Job::start(&folders, None);
    assert_eq!(job.send("init"), "0");
    job.launch("k0", 1);
    queue.ended(1);
    job.launch("k0", 100);
    assert_eq!((job.counters().state, job.counters().reported), (DETACHED, 0));
}

#[test]
fn frames_of_kinds_that_the_shim_does_not_know_are_skipped() {
    let folders = TestFolders::new();
    let mut behaviour = QueueBehaviour::of(Role::Hold);
    behaviour.first = vec![[&999_u32.to_le_bytes()[..], b"something new"].concat()];
    let queue = TestQueue::start(&folders, behaviour);
    let mut job = Job::join(&folders, None);

    job.launch("k0", 5);

    queue.receive(|records| (launches(records).len() >= 5).then_some(()));
}

#[test]
fn an_endpoint_with_another_certificate_is_not_believed() {
    let folders = TestFolders::new();
    let other = TestFolders { address: folders.address, ..TestFolders::new() };
    let queue = TestQueue::start(&other, QueueBehaviour::of(Role::Hold));
    let mut job = Job::start(&folders, None);
    assert_eq!(job.send("init"), "0");
    job.launch("k0", 1);
    job.reach(DETACHED);
    job.send("state 4 700");
    assert_eq!(job.counters().state, DETACHED);
    drop(queue);
}

#[test]
fn a_process_names_the_thread_that_serves_its_session() {
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let job = Job::join(&folders, None);

    let thread = queue.session_thread();

    let pid = queue.hellos(1)[0].pid;
    let name = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm")).unwrap();
    assert_eq!(name.trim(), SESSION_THREAD_NAME);
    assert!(job.end().success());
}

#[test]
fn no_other_process_can_truncate_the_page_that_a_program_reads() {
    let folder = tempfile::tempdir().unwrap();
    let (gate, _served) = TestGate::served(folder.path());
    let folders = TestFolders::new();
    let queue = TestQueue::start(&folders, QueueBehaviour::of(Role::Hold));
    let mut job = Job::join(&folders, Some(&gate.path));
    job.launch("k0", 10);

    let memory = gate_page::fetch(&gate.path).unwrap();
    let named = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
    let truncated = Command::new("truncate").args(["-s0", &named]).output().unwrap();

    let refusal = String::from_utf8_lossy(&truncated.stderr).into_owned();
    assert!(!truncated.status.success() && refusal.contains("not permitted"), "{refusal}");
    // A page without memory would end the program here, by SIGBUS.
    job.launch("k0", 10);
    queue.receive(|records| (launches(records).len() >= 20).then_some(()));
    assert_eq!(gate.page().gate().launches, 20);
    assert!(job.end().success());
}
