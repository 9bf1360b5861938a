//! Launches that are not plain ones, and what counts as nothing being in flight.

use tessera_kernel_queue::{Nanos, Role};
use tessera_wire::kernel::Record;

use crate::job::Job;
use crate::queue::{Calm, Manner, Place, Queue, calmly};

fn count(records: &[Record], is_it: impl Fn(&Record) -> bool) -> usize {
    records.iter().filter(|record| is_it(record)).count()
}

fn capture(job: &mut Job) {
    assert_eq!(job.say("capture x 0"), "0");
    for kernel in ["k100", "k200", "k100"] {
        assert!(job.say(&format!("launch {kernel} 1 0x77770")).starts_with('0'));
    }
    assert_eq!(job.say("end-capture"), "0");
}

#[test]
fn a_graph_is_one_kernel_named_by_what_is_in_it() {
    let name_of_graph = || {
        let place = Place::new();
        let queue = Queue::start(&place, Manner::of(Role::Hold));
        let mut job = Job::join(&place, None);
        capture(&mut job);
        assert_eq!(job.say("graph x 10"), "0");

        let launched = |record: &Record| matches!(record, Record::Launch { .. });
        let told = queue.hear(|records| (count(records, launched) >= 10).then(|| records.to_vec()));
        assert_eq!(count(&told, launched), 10);
        assert_eq!(job.arrived().launches, 1 + 30);
        let names: Vec<String> = told
            .iter()
            .filter_map(|record| match record {
                Record::Define { kernel, .. } => Some(kernel.name().to_owned()),
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
        let place = Place::new();
        let manner = Manner { sk: Some(Nanos::from_micros(400)), ..Manner::of(Role::Ask) };
        let queue = Queue::start(&place, manner.granting(Nanos::from_millis(50), 1, 1));
        let mut job = Job::join(&place, None);
        capture(&mut job);

        assert_eq!(job.say("graph x 6"), "0");

        let counters = job.counters();
        assert_eq!(counters.granted + counters.unasked, 6);
        if counters.unasked > 0 {
            return Calm::No;
        }
        let wants = |record: &Record| matches!(record, Record::Want { .. });
        queue.hear(|records| (count(records, wants) >= 6).then_some(()));
        Calm::Yes
    });
}

#[test]
fn launches_that_others_wait_for_are_never_held_back() {
    let place = Place::new();
    let mut manner = Manner::of(Role::Ask);
    manner.welcome.wait_max = Nanos::from_millis(1_000);
    let queue = Queue::start(&place, manner);
    let mut job = Job::join(&place, None);

    // Attribute 6 has a kernel begin before the one before it has ended; NCCL's wait for peers.
    assert!(job.say("extended k0 5 6").starts_with('0'));
    job.launch("ncclDevKernel_AllReduce_0", 5);

    let counters = job.counters();
    assert_eq!((counters.unasked, counters.waited_max_ns), (10, 0));
    let unasked = |record: &Record| matches!(record, Record::Launch { count: 0, .. });
    queue.hear(|records| (count(records, unasked) >= 10).then_some(()));

    // The queue, silent as it is, is waited for by others.
    job.begin("extended k0 1 2");
    let wants = |record: &Record| matches!(record, Record::Want { .. });
    queue.hear(|records| (count(records, wants) >= 1).then_some(()));
    assert!(job.answer().starts_with('0'));
}

#[test]
fn a_sync_is_told_only_when_nothing_is_left_on_any_stream() {
    let place = Place::new();
    let queue = Queue::start(&place, Manner::of(Role::Hold));
    let mut job = Job::join(&place, None);
    let synced = |record: &Record| matches!(record, Record::Sync { .. });
    let launched = |record: &Record| matches!(record, Record::Launch { .. });

    for (stream, launches) in [("0x2000", 1), ("0x3000", 2)] {
        assert!(job.say(&format!("launch k0 1 {stream}")).starts_with('0'));
        queue.hear(|records| (count(records, launched) >= launches).then_some(()));
    }
    assert_eq!(job.say("stream-sync 0x2000"), "0");
    // The launch comes after whatever the call before it told.
    assert!(job.say("launch k0 1 0x2000").starts_with('0'));
    let told = queue.hear(|records| (count(records, launched) >= 3).then(|| records.to_vec()));
    assert_eq!(count(&told, synced), 0, "the other stream was not waited for");

    assert_eq!(job.say("event 0x3000"), "0");
    assert!(job.say("launch k0 1 0x2000").starts_with('0'));
    let told = queue.hear(|records| (count(records, launched) >= 4).then(|| records.to_vec()));
    assert_eq!(count(&told, synced), 0, "nor the first one since");

    assert_eq!(job.say("query 0x2000"), "0");
    queue.hear(|records| (count(records, synced) == 1).then_some(()));
    // Said once: nothing is new.
    assert_eq!(job.say("sync"), "0");
    assert_eq!(job.say("query 0x2000"), "0");
    assert!(job.say("launch k0 1 0x2000").starts_with('0'));
    let told = queue.hear(|records| (count(records, launched) >= 5).then(|| records.to_vec()));
    assert_eq!(count(&told, synced), 1);
}

#[test]
fn a_grant_that_yields_is_given_back_when_the_program_waits() {
    calmly(|| {
        let place = Place::new();
        let manner = Manner { yields: true, ..Manner::of(Role::Ask) };
        let queue = Queue::start(&place, manner.granting(Nanos::from_millis(50), 16, 2));
        let mut job = Job::join(&place, None);

        job.launch("k100", 3);
        assert_eq!(job.say("sync"), "0");
        if job.counters().unasked > 0 {
            return Calm::No;
        }

        let returned = queue.hear(|records| {
            records.iter().find_map(|record| match record {
                Record::Sync { returns, .. } => Some(*returns),
                _ => None,
            })
        });
        assert_eq!(returned, Some(1));
        job.begin("launch k100 1");
        let wants = |record: &Record| matches!(record, Record::Want { launch: 4, .. });
        queue.hear(|records| (count(records, wants) >= 1).then_some(()));
        Calm::Yes
    });
}
