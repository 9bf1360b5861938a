//! A model check of the gate and of all waits in the shim, by `loom`. It runs every interleaving of
//! the threads, and every value that the memory model lets them read. The files are the product's
//! own, compiled with the checker's locks and atomic numbers. Sleeps have no timeouts here, so a
//! lost wake-up is a deadlock.

#[allow(dead_code, reason = "each of these files is checked for a part of what it does")]
#[path = "../../src/first_wait.rs"]
mod first_wait;
#[allow(dead_code, reason = "as above")]
#[path = "../../../crates/frames/src/gate.rs"]
mod gate;
#[allow(dead_code, reason = "as above")]
#[path = "../../src/park.rs"]
mod park;
#[allow(dead_code, reason = "as above")]
#[path = "../../src/filler/signal.rs"]
mod signal;

/// What these files take their locks and atomic numbers from.
mod sync {
    pub use std::sync::PoisonError;

    pub use loom::sync::{Condvar, Mutex, MutexGuard, atomic};
}

use std::time::Duration;

use loom::model::Builder;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};

use loom::thread;
use tessera_kernel_queue::{
    Epoch, Grant, GrantBudget, GrantKind, KernelIndex, LaunchDecision, Nanos,
};

use first_wait::FirstWait;
use gate::{GatePage, ReportPace};
use park::{ParkFlag, PauseFlag};
use signal::Signalled;

/// No wait is that long: the checker's clocks don't advance.
const LONG: Duration = Duration::from_secs(1);
const KERNEL: Nanos = Nanos::from_micros(100);

/// A checker for three threads, limited to interleavings in which threads are interrupted at most
/// twice. Nearly all faults appear with so few.
fn bounded() -> Builder {
    let mut checker = Builder::new();
    checker.preemption_bound = Some(2);
    checker
}

/// What the filler's threads share, and what they did with it.
struct Account {
    budget: GrantBudget,
    in_flight: u16,
    launched: Vec<u64>,
}

fn grant(page: &GatePage, number: u64, launches: u16) -> Grant {
    Grant {
        number,
        gate: page.gate(),
        kind: GrantKind::Gap,
        from: Nanos::ZERO,
        until: Nanos::MAX,
        // For two kernels, and not for a third one.
        budget: KERNEL.times(2).plus(Nanos::new(1)),
        launches,
        in_flight: 1,
        yields: false,
    }
}

fn account(page: &GatePage, launches: u16) -> Arc<Signalled<Account>> {
    let mut budget = GrantBudget::new();
    budget.receive(grant(page, 1, launches));
    let account = Account { budget, in_flight: 0, launched: Vec::new() };
    Arc::new(Signalled::new(Mutex::new(account), Condvar::new()))
}

/// Makes one decision about a launch, as a waiting thread does: with the lock, and after a look at the gate.
fn decide(page: &GatePage, account: &Signalled<Account>) -> LaunchDecision {
    let mut account = account.lock();
    let given = account.budget.grant().map(|grant| (grant.number, grant.gate));
    let (gate, in_flight) = (page.gate(), account.in_flight);
    let decision = account.budget.spend(Some(KERNEL), gate, in_flight, Nanos::ZERO);
    if decision == LaunchDecision::Launch {
        let (number, given) = given.expect("no launch without a grant");
        assert!(!gate.has_passed(given), "no launch under a grant that was ended");
        account.launched.push(number);
        account.in_flight += 1;
        assert!(account.in_flight <= 1, "no more in flight than granted");
    }
    decision
}

fn end_kernel(account: &Signalled<Account>) {
    account.lock().in_flight -= 1;
    account.wake();
}

#[test]
fn threads_together_launch_under_a_grant_only_and_never_overspend_it() {
    bounded().check(|| {
        let page = Arc::new(GatePage::default());
        page.open();
        let account = account(&page, u16::MAX);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (page, account) = (Arc::clone(&page), Arc::clone(&account));
                thread::spawn(move || {
                    for _ in 0..2 {
                        if decide(&page, &account) == LaunchDecision::Launch {
                            end_kernel(&account);
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        while decide(&page, &account) == LaunchDecision::Launch {
            end_kernel(&account);
        }
        // Two threads try four times, and this one more often: the budget is for two launches.
        assert_eq!(account.lock().launched, [1, 1]);
    });
}

#[test]
fn a_holders_return_ends_grants_for_all_threads_that_observe_it_without_a_message() {
    bounded().check(|| {
        let page = Arc::new(GatePage::default());
        page.open();
        let account = account(&page, u16::MAX);
        let filler = {
            let (page, account) = (Arc::clone(&page), Arc::clone(&account));
            thread::spawn(move || {
                if decide(&page, &account) == LaunchDecision::Launch {
                    end_kernel(&account);
                }
            })
        };
        let holder = {
            let page = Arc::clone(&page);
            thread::spawn(move || page.add_launch(KernelIndex::UNKNOWN, Nanos::ZERO))
        };
        assert_eq!(holder.join().unwrap(), 1);

        assert_eq!(decide(&page, &account), LaunchDecision::Request);
        filler.join().unwrap();
        assert!(account.lock().launched.len() <= 1, "the one that looked before the return");
    });
}

#[test]
fn a_grant_that_the_queue_ended_is_not_used_together_with_its_successor() {
    loom::model(|| {
        let page = Arc::new(GatePage::default());
        page.open();
        let account = account(&page, 1);
        let queue = {
            let (page, account) = (Arc::clone(&page), Arc::clone(&account));
            thread::spawn(move || {
                page.set_epoch(Epoch::new(1));
                let next = grant(&page, 2, 1);
                account.lock().budget.receive(next);
                account.wake();
            })
        };
        // A waiting thread: it sleeps until it may launch once under the second grant.
        loop {
            match decide(&page, &account) {
                LaunchDecision::Launch => end_kernel(&account),
                LaunchDecision::Wait => unreachable!("nothing else is in flight"),
                LaunchDecision::Request => {
                    let state = account.lock();
                    if state.launched.last() == Some(&2) {
                        break;
                    }
                    if state.budget.grant().is_none() {
                        drop(account.sleep(state, LONG));
                    }
                }
            }
        }
        queue.join().unwrap();
        let launched = account.lock().launched.clone();
        assert!(launched == [2] || launched == [1, 2], "{launched:?}");
    });
}

#[test]
fn an_open_page_has_the_epoch_of_its_queue() {
    loom::model(|| {
        let page = Arc::new(GatePage::default());
        let queue = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.set_epoch(Epoch::new(5));
                page.open();
            })
        };
        if page.is_sound() {
            assert_eq!(page.gate().epoch, Epoch::new(5));
        }
        queue.join().unwrap();
    });
}

/// A filler waits on the gate page for a launch of a holder. The bell is the page's, and sleeping on it is the system's: it
/// sleeps only if the bell has not changed. Returns whether it stays asleep although the launch was made.
fn await_launch(rings: bool) -> bool {
    let page = Arc::new(GatePage::default());
    page.open();
    let holder = {
        let page = Arc::clone(&page);
        thread::spawn(move || {
            let count = page.add_launch(KernelIndex::new(7), KERNEL);
            if page.take_awaited(count).by_filler && rings {
                page.ring();
            }
        })
    };
    let bell = page.await_launch(1);
    let sleeps = page.gate().launches < 1;
    holder.join().unwrap();
    sleeps && page.bell().load(Ordering::Acquire) == bell
}

#[test]
fn a_filler_that_waits_for_a_holders_launch_on_the_gate_page_is_always_woken() {
    loom::model(|| assert!(!await_launch(true)));
}

#[test]
fn the_checker_finds_a_holder_that_does_not_ring() {
    // Not one of the checker's: it is the same in all orders of the threads' steps.
    let missed = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let found = std::sync::Arc::clone(&missed);
    loom::model(move || {
        found.fetch_or(await_launch(false), Ordering::Relaxed);
    });
    assert!(missed.load(Ordering::Relaxed));
}

#[test]
fn who_sees_a_holders_count_sees_what_it_launched() {
    loom::model(|| {
        let page = Arc::new(GatePage::default());
        page.open();
        let holder = {
            let page = Arc::clone(&page);
            thread::spawn(move || page.add_launch(KernelIndex::new(7), KERNEL))
        };
        let last = page.last_launch();
        if last.count == 1 {
            assert_eq!((last.kernel, last.at), (KernelIndex::new(7), KERNEL));
        }
        holder.join().unwrap();
    });
}

/// A holder makes a launch whose report is awaited, while the session's thread is about to pause until somebody wakes it.
/// Returns whether it pauses without the record.
fn report_named_launch(wakes: bool) -> bool {
    let page = Arc::new(GatePage::default());
    let pause =
        Arc::new(PauseFlag::new(ParkFlag::new(AtomicBool::new(false)), AtomicBool::new(false)));
    let (record, bell) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    page.open();
    page.set_reports(ReportPace::Named, 1);
    let holder = {
        let (page, pause) = (Arc::clone(&page), Arc::clone(&pause));
        let (record, bell) = (Arc::clone(&record), Arc::clone(&bell));
        thread::spawn(move || {
            let count = page.add_launch(KernelIndex::new(7), KERNEL);
            record.store(true, Ordering::Release);
            if page.take_awaited(count).by_queue && wakes && pause.end_early() {
                bell.store(true, Ordering::Release);
            }
        })
    };
    while !record.load(Ordering::Acquire) {
        if pause.may_pause(|| false) {
            // It sleeps: what the holder does is all that can wake it.
            holder.join().unwrap();
            return !bell.load(Ordering::Acquire);
        }
        pause.end();
    }
    holder.join().unwrap();
    false
}

#[test]
fn the_launch_whose_report_is_awaited_always_ends_the_pause_of_the_sessions_thread() {
    loom::model(|| assert!(!report_named_launch(true)));
}

#[test]
fn the_checker_finds_a_holder_that_does_not_end_the_pause() {
    let missed = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let found = std::sync::Arc::clone(&missed);
    loom::model(move || {
        found.fetch_or(report_named_launch(false), Ordering::Relaxed);
    });
    assert!(missed.load(Ordering::Relaxed));
}

/// A queue names a launch that the holder is making. Returns whether nobody knows that it was made.
fn name_late() -> bool {
    let page = Arc::new(GatePage::default());
    page.open();
    let holder = {
        let page = Arc::clone(&page);
        thread::spawn(move || {
            let count = page.add_launch(KernelIndex::new(7), KERNEL);
            page.take_awaited(count).by_queue
        })
    };
    page.set_reports(ReportPace::Named, 1);
    let is_made = page.gate().launches >= 1;
    !holder.join().unwrap() && !is_made
}

#[test]
fn a_launch_that_is_named_while_it_is_made_is_noticed_by_the_holder_or_by_the_queue() {
    loom::model(|| assert!(!name_late()));
}

/// A thread waits until a number outside of the lock has a value: a role, or what is known of a kernel.
fn await_fact() {
    let fact = Arc::new(AtomicU64::new(0));
    let bell = Arc::new(Signalled::new(Mutex::new(()), Condvar::new()));
    let session = {
        let (fact, bell) = (Arc::clone(&fact), Arc::clone(&bell));
        thread::spawn(move || {
            fact.store(1, Ordering::Relaxed);
            bell.wake();
        })
    };
    let mut state = bell.lock();
    while fact.load(Ordering::Relaxed) == 0 {
        (state, _) = bell.sleep(state, LONG);
    }
    drop(state);
    session.join().unwrap();
}

#[test]
fn a_thread_that_waits_for_a_role_or_a_kernels_time_is_always_woken() {
    loom::model(await_fact);
}

/// Two threads leave records, and a reader sleeps when there is none.
fn leave_and_read(writers: usize, announce: impl Fn(&ParkFlag) -> bool + Copy + Send + 'static) {
    let park = Arc::new(ParkFlag::new(AtomicBool::new(false)));
    let (records, bell) = (
        Arc::new([AtomicBool::new(false), AtomicBool::new(false)]),
        Arc::new((Mutex::new(false), Condvar::new())),
    );
    let threads: Vec<_> = (0..writers)
        .map(|own| {
            let (park, records, bell) =
                (Arc::clone(&park), Arc::clone(&records), Arc::clone(&bell));
            thread::spawn(move || {
                records[own].store(true, Ordering::Release);
                if announce(&park) {
                    *bell.0.lock().unwrap() = true;
                    bell.1.notify_all();
                }
            })
        })
        .collect();
    // A missing writer has left no record.
    let mut has_read = [writers < 1, writers < 2];
    while has_read != [true; 2] {
        let is_new =
            |at: usize, has_read: [bool; 2]| !has_read[at] && records[at].load(Ordering::Acquire);
        for at in [0, 1] {
            has_read[at] |= is_new(at, has_read);
        }
        let is_empty = || !is_new(0, has_read) && !is_new(1, has_read);
        if has_read != [true; 2] && park.may_park(is_empty) {
            let mut rung = bell.0.lock().unwrap();
            while !std::mem::take(&mut *rung) {
                rung = bell.1.wait(rung).unwrap();
            }
            drop(rung);
            park.unpark();
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn no_record_waits_while_the_sessions_thread_sleeps() {
    loom::model(|| leave_and_read(1, ParkFlag::announce));
    bounded().check(|| leave_and_read(2, ParkFlag::announce));
}

#[test]
fn the_first_launches_wait_until_the_session_has_begun_and_no_longer() {
    bounded().check(|| {
        let wait = FirstWait::new(AtomicBool::new(false), Mutex::new(()), Condvar::new());
        let wait = Arc::new(wait);
        let begun = Arc::new(AtomicBool::new(false));
        wait.begin();
        let launches: Vec<_> = (0..2)
            .map(|_| {
                let (wait, begun) = (Arc::clone(&wait), Arc::clone(&begun));
                thread::spawn(move || {
                    wait.wait(LONG);
                    assert!(begun.load(Ordering::Acquire), "it went before the session began");
                })
            })
            .collect();
        begun.store(true, Ordering::Release);
        wait.end();
        for launch in launches {
            launch.join().unwrap();
        }
    });
}

/// The checker itself must find these faults. A deadlock ends the process, so each runs in a separate one.
mod faults {
    use std::process::Command;

    use super::*;

    #[test]
    #[ignore = "run by the test below"]
    fn a_bell_without_the_lock() {
        loom::model(|| {
            let fact = Arc::new(AtomicU64::new(0));
            let (state, changed) = (Arc::new(Mutex::new(())), Arc::new(Condvar::new()));
            let session = {
                let (fact, changed) = (Arc::clone(&fact), Arc::clone(&changed));
                thread::spawn(move || {
                    fact.store(1, Ordering::Relaxed);
                    changed.notify_all();
                })
            };
            let mut guard = state.lock().unwrap();
            while fact.load(Ordering::Relaxed) == 0 {
                guard = changed.wait(guard).unwrap();
            }
            drop(guard);
            session.join().unwrap();
        });
    }

    #[test]
    #[ignore = "run by the test below"]
    fn a_record_without_an_announcement() {
        loom::model(|| leave_and_read(1, |_| false));
    }

    #[test]
    fn the_checker_finds_lost_wake_ups() {
        for fault in ["a_bell_without_the_lock", "a_record_without_an_announcement"] {
            let mut check = Command::new(std::env::current_exe().unwrap());
            check.args(["--exact", "--ignored", "--nocapture", &format!("faults::{fault}")]);
            let checked = check.output().unwrap();
            let said = String::from_utf8_lossy(&checked.stderr);
            assert!(!checked.status.success() && said.contains("deadlock"), "{fault}: {said}");
        }
    }
}
