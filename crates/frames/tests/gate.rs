//! The gate page, and the difference between a dead queue and a slow one.

use std::collections::{BTreeSet, VecDeque};

use tessera_frames::gate::{
    GatePage, HEARTBEAT_EVERY, QUEUE_DEAD_AFTER, QUEUE_HANGS_AFTER, ReportPace, is_queue_dead,
};
use tessera_kernel_queue::{Epoch, KernelIndex, LastLaunch, Nanos};

#[test]
fn a_page_of_zeros_is_no_gate_until_it_is_opened() {
    let page = GatePage::default();
    assert!(!page.is_sound());

    page.open();
    assert!(page.is_sound());

    page.close();
    assert!(!page.is_sound());
}

#[test]
fn a_launch_of_a_holder_and_an_epoch_each_pass_a_gate() {
    let page = GatePage::default();
    let given = page.gate();
    assert!(!page.gate().has_passed(given));

    assert_eq!(page.add_launch(KernelIndex::UNKNOWN, Nanos::ZERO), 1);
    assert!(page.gate().has_passed(given));

    let given = page.gate();
    page.set_epoch(Epoch::new(1));
    assert!(page.gate().has_passed(given));
}

#[test]
fn the_page_shows_what_a_holder_launched_last_and_any_bytes_are_a_page() {
    let page = GatePage::default();
    assert_eq!(page.last_launch().count, 0);

    page.add_launch(KernelIndex::new(3), Nanos::new(70));
    let (kernel, at) = (KernelIndex::new(4), Nanos::new(80));
    page.add_launch(kernel, at);

    assert_eq!(page.last_launch(), LastLaunch { count: 2, kernel, at });
}

#[test]
fn a_holder_rings_once_for_the_launch_that_is_awaited_or_a_later_one() {
    let page = GatePage::default();
    let take_wait = |count| page.take_awaited(count).by_filler;
    assert!(!take_wait(1), "nobody waits");
    let bell = page.await_launch(3);
    assert!(!take_wait(2));
    assert!(take_wait(4) && !take_wait(5));
    page.ring();
    assert_ne!(page.await_launch(6), bell);
}

#[test]
fn holders_report_as_soon_as_the_queue_says_and_the_named_launch_once() {
    let page = GatePage::default();
    assert_eq!(page.report_pace(), ReportPace::Prompt, "so with a queue that knows no other");
    let take_report = |count| page.take_awaited(count).by_queue;
    page.set_reports(ReportPace::Soon, 0);
    assert_eq!(page.report_pace(), ReportPace::Soon);
    assert!(!take_report(1), "none is named");

    page.set_reports(ReportPace::Named, 3);
    assert_eq!(page.report_pace(), ReportPace::Named);
    assert!(!take_report(2));
    assert!(take_report(4) && !take_report(5));
}

#[test]
fn a_queue_is_silent_after_its_last_frame_or_heartbeat_and_future_heartbeats_are_ignored() {
    let dead = QUEUE_DEAD_AFTER;
    let at = Nanos::from_millis(1_000);
    let is_dead = |last_frame, heartbeat, now| is_queue_dead(last_frame, heartbeat, now, || false);
    assert!(!is_dead(at, Nanos::ZERO, at.plus(dead).minus(Nanos::new(1))));
    assert!(is_dead(at, Nanos::ZERO, at.plus(dead)));
    assert!(!is_dead(at, at.plus(dead), at.plus(dead)));
    assert!(is_dead(at, Nanos::MAX, at.plus(dead)));
}

/// What a queue's process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum QueueProcess {
    /// It writes heartbeats.
    Runs,
    /// It waits for a processor, or hangs.
    Stands,
    /// It is gone, and the system has closed its socket.
    Gone,
}

/// A state of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WatchedQueue {
    process: QueueProcess,
    /// For how many steps there was no sign of life, up to those of a hanging queue.
    silent: u64,
}

/// The checker goes through every course of a queue that runs, stands, dies and comes back, at each step of 2 ms.
/// The judgement is the product's own.
#[test]
fn in_every_course_a_slow_queue_is_spared_and_a_dead_or_hanging_one_is_noticed() {
    let step = HEARTBEAT_EVERY;
    let steps = |span: Nanos| span.get() / step.get();
    let (dead, hangs) = (steps(QUEUE_DEAD_AFTER), steps(QUEUE_HANGS_AFTER));
    let begun = Nanos::from_millis(10_000);
    let first = WatchedQueue { process: QueueProcess::Runs, silent: 0 };
    let (mut seen, mut next) = (BTreeSet::from([first]), VecDeque::from([first]));
    let mut noticed = 0;
    while let Some(state) = next.pop_front() {
        let WatchedQueue { process, silent } = state;
        let now = begun.plus(step.times(silent));
        let is_served = process != QueueProcess::Gone;
        // The sign may have been a frame or a heartbeat.
        for (frame, heartbeat) in [(begun, Nanos::ZERO), (Nanos::ZERO, begun), (begun, Nanos::MAX)]
        {
            let is_dead = is_queue_dead(frame, heartbeat, now, || is_served);
            let is_to_be_spared = is_served && silent < hangs;
            let is_to_be_noticed = silent >= hangs || (!is_served && silent >= dead);
            assert!(!(is_dead && is_to_be_spared), "a slow queue counts as dead: {state:?}");
            assert!(is_dead || !is_to_be_noticed, "a dead queue is not noticed: {state:?}");
            assert!(!is_dead || silent >= dead, "it is given up too soon: {state:?}");
            noticed += u32::from(is_dead);
        }
        let later = (silent + 1).min(hangs + 1);
        let silence = |process| WatchedQueue { process, silent: later };
        let nexts = [first, silence(QueueProcess::Stands), silence(QueueProcess::Gone)];
        // A process that is gone comes back only as another one, which gives a sign of life.
        let may_stand = process != QueueProcess::Gone;
        for state in nexts.into_iter().filter(|n| may_stand || n.process != QueueProcess::Stands) {
            if seen.insert(state) {
                next.push_back(state);
            }
        }
    }
    assert!(seen.len() > 1_000 && noticed > 0, "{} states", seen.len());
}
