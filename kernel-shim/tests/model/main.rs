//! A model check of the gate and of all waits in the shim, by `loom`: it runs every order in which the threads can
//! come, and every value that the memory model lets them read. The files are the product's own, compiled with the
//! checker's locks and atomic numbers. Sleeps have no timeouts here, so a lost wake-up is a deadlock.

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

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex, Notify};
use loom::thread;
use tessera_kernel_queue::{Epoch, Grant, GrantBudget, GrantKind, LaunchDecision, Nanos};

use first_wait::FirstWait;
use gate::GatePage;
use park::ParkFlag;
use signal::Signalled;

/// Nothing waits for so long: the checker's clocks stand still.
const LONG: Duration = Duration::from_secs(1);
const KERNEL: Nanos = Nanos::from_micros(100);

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
    loom::model(|| {
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
        // Four tries of two threads and more of this one: the budget is for two.
        assert_eq!(account.lock().launched, [1, 1]);
    });
}

#[test]
fn a_holders_return_ends_grants_for_all_who_learn_of_it_without_a_message() {
    loom::model(|| {
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
        let holders: Vec<_> = (0..2)
            .map(|_| {
                let page = Arc::clone(&page);
                thread::spawn(move || page.add_launch())
            })
            .collect();
        let counts = holders.into_iter().map(|holder| holder.join().unwrap());
        // Each count is reported once, so that the queue misses none.
        assert_eq!(counts.sum::<u64>(), 1 + 2);

        assert_eq!(decide(&page, &account), LaunchDecision::Request);
        filler.join().unwrap();
        assert!(account.lock().launched.len() <= 1, "the one that looked before the return");
    });
}

#[test]
fn a_grant_that_the_queue_ended_is_not_used_beside_its_successor() {
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
fn a_page_that_is_open_has_the_epoch_of_its_queue() {
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

/// A thread waits until a number outside of the lock has a value: a role, or what is known of a kernel.
fn await_fact(ring: impl Fn(&Signalled<()>) + Copy + Send + 'static) {
    let fact = Arc::new(AtomicU64::new(0));
    let bell = Arc::new(Signalled::new(Mutex::new(()), Condvar::new()));
    let session = {
        let (fact, bell) = (Arc::clone(&fact), Arc::clone(&bell));
        thread::spawn(move || {
            fact.store(1, Ordering::Relaxed);
            ring(&bell);
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
    loom::model(|| await_fact(Signalled::wake));
}

/// Two threads leave records, and a reader sleeps when there is none.
fn leave_and_read(announce: impl Fn(&ParkFlag) -> bool + Copy + Send + 'static) {
    let park = Arc::new(ParkFlag::new(AtomicBool::new(false)));
    let (records, bell) =
        (Arc::new([AtomicBool::new(false), AtomicBool::new(false)]), Arc::new(Notify::new()));
    let writers: Vec<_> = [0, 1]
        .into_iter()
        .map(|own: usize| {
            let (park, records, bell) =
                (Arc::clone(&park), Arc::clone(&records), Arc::clone(&bell));
            thread::spawn(move || {
                records[own].store(true, Ordering::Release);
                if announce(&park) {
                    bell.notify();
                }
            })
        })
        .collect();
    let mut left = 2;
    while left > 0 {
        left -= records.iter().filter(|record| record.swap(false, Ordering::AcqRel)).count();
        let is_empty = || records.iter().all(|record| !record.load(Ordering::Acquire));
        if left > 0 && park.may_park(is_empty) {
            bell.wait();
            park.unpark();
        }
    }
    for writer in writers {
        writer.join().unwrap();
    }
}

#[test]
fn no_record_waits_while_the_sessions_thread_sleeps() {
    loom::model(|| leave_and_read(ParkFlag::announce));
}

#[test]
fn the_first_launches_wait_until_the_session_has_begun_and_no_longer() {
    loom::model(|| {
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

/// The checker itself: it must find these faults.
mod faults {
    use super::*;

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_bell_without_the_lock_is_missed_by_a_thread_that_has_just_looked() {
        let bell = || {
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
        };
        loom::model(bell);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_writer_that_does_not_announce_leaves_its_record_to_a_sleeping_reader() {
        loom::model(|| leave_and_read(|_| false));
    }
}
