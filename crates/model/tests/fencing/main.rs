//! A model of the fencing rules F1 to F15, checked state by state.
//!
//! One job, two nodes, two controllers. Messages are lost, delayed, reordered and repeated. Agents
//! and controllers crash between any two moves. Clocks are off by up to D, and the store may go
//! back to an earlier state once. Three invariants must hold in every run:
//!
//! - I1: the job never has two live processes;
//! - I2: the job has no live process once it is final;
//! - I3: once it is recorded that the job ran out of memory on a size, it never gets that size again. A
//!   store that went back may have lost such a record, so that runs with rewinds have one size.
//!
//! With all rules they hold. Each rule is also taken away by itself, and then a run must be found
//! that breaks one of them: a model that can't fail proves nothing. For the same reason the
//! searches must have seen the job end by its first and by its second attempt, a node lost, and
//! its return.
//!
//! What the model leaves out: more than one job, processes that survive `SIGKILL`, clocks that are
//! off by more than D. What it takes as given: every move of the store is a compare-and-set (F1),
//! and an exit is reported until it is recorded (F12).
//!
//! # Larger bounds
//!
//! By default the searches take seconds. Variables of the environment widen them:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `FENCING_TMAX` | ticks of the exhaustive search | 2 |
//! | `FENCING_EPOCHS` | leaders that may follow each other in it | 2 |
//! | `FENCING_CRASHES` | crashes in it | 1 |
//! | `FENCING_STATES` | most states that it visits, about 110 bytes each | 20,000,000 |
//! | `FENCING_WALKS` | random walks over 10 ticks, 3 epochs and 2 crashes | 40,000 |
//! | `FENCING_SEED` | seed of all random walks | 1 |
//!
//! `FENCING_TMAX=3` visits 10,542,160 states; `FENCING_TMAX=4 FENCING_EPOCHS=1` 10,826,311.

mod moves;
mod rules;
mod search;
mod state;

use rules::{Rule, Rules};
use search::{Outcome, Reached, breadth_first, random_walks};
use state::{Bounds, Violation};

/// Far more than the small bounds have.
const STATES_MAX: usize = 20_000_000;

/// Walks until a missing rule must have shown; with each of the seeds 1 to 20 every one does.
const WALKS_TO_BREAK: u32 = 400_000;

/// Reads a number from the environment, so that a person can search further than `./x test`.
fn from_env<N: std::str::FromStr>(name: &str, default: N) -> N {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a small number")),
        Err(_) => default,
    }
}

fn seed() -> u64 {
    from_env("FENCING_SEED", 1)
}

#[track_caller]
fn assert_holds(outcome: &Outcome) -> Reached {
    match outcome {
        Outcome::Holds { reached, .. } => {
            println!("{}", outcome.story());
            *reached
        }
        Outcome::Broken { .. } => panic!("{}", outcome.story()),
    }
}

#[track_caller]
fn assert_holds_everywhere(outcome: &Outcome) -> Reached {
    let reached = assert_holds(outcome);
    assert!(matches!(outcome, Outcome::Holds { exhausted: true, .. }), "{}", outcome.story());
    reached
}

/// Without the rule, the shortest run that breaks an invariant has this many moves.
#[track_caller]
fn assert_breaks_after(rule: Rule, bounds: Bounds, moves: usize) {
    let outcome = breadth_first(Rules::without(rule), bounds, STATES_MAX);
    let Outcome::Broken { run, .. } = &outcome else {
        panic!("nothing breaks without {rule:?}: {}", outcome.story());
    };
    assert_eq!(run.len(), moves, "{}", outcome.story());
}

/// Without the rule, a random walk breaks an invariant: such runs are too long to search for
/// breadth first.
#[track_caller]
fn assert_breaks_on_some_walk(rule: Rule, bounds: Bounds) {
    let outcome = random_walks(Rules::without(rule), bounds, seed(), WALKS_TO_BREAK);
    assert!(
        matches!(outcome, Outcome::Broken { .. }),
        "nothing breaks without {rule:?}, seed {}: {}",
        seed(),
        outcome.story()
    );
}

const CALM: Bounds = Bounds { ticks: 2, epochs: 1, crashes: 0, rewinds: false, sizes: 1 };
const LONG: Bounds = Bounds { ticks: 8, epochs: 2, crashes: 0, rewinds: false, sizes: 1 };
const FAR: Bounds = Bounds { ticks: 10, epochs: 3, crashes: 2, rewinds: false, sizes: 1 };

#[test]
fn with_all_rules_every_short_run_with_a_crash_and_a_takeover_is_safe() {
    let bounds = Bounds {
        ticks: from_env("FENCING_TMAX", 2),
        epochs: from_env("FENCING_EPOCHS", 2),
        crashes: from_env("FENCING_CRASHES", 1),
        rewinds: false,
        sizes: 1,
    };

    let outcome = breadth_first(Rules::ALL, bounds, from_env("FENCING_STATES", STATES_MAX));

    let reached = assert_holds_everywhere(&outcome);
    assert!(reached.done_by_first_attempt && reached.done_by_second_attempt, "{reached:?}");
}

#[test]
fn with_all_rules_every_run_in_which_a_node_is_lost_and_returns_is_safe() {
    let bounds = Bounds { ticks: 4, ..CALM };

    let outcome = breadth_first(Rules::ALL, bounds, STATES_MAX);

    let reached = assert_holds_everywhere(&outcome);
    assert!(reached.done_by_first_attempt && reached.done_by_second_attempt, "{reached:?}");
    assert!(reached.node_declared_lost && reached.node_reattached, "{reached:?}");
}

#[test]
fn with_all_rules_long_random_walks_are_safe() {
    let walks = from_env("FENCING_WALKS", 40_000);

    let reached = assert_holds(&random_walks(Rules::ALL, FAR, seed(), walks));

    let everything = Reached {
        done_by_first_attempt: true,
        done_by_second_attempt: true,
        node_declared_lost: true,
        node_reattached: true,
        leader_replaced: true,
        store_went_back: false,
        ran_out_of_memory: false,
    };
    assert_eq!(reached, everything);
}

#[test]
fn with_all_rules_long_random_walks_are_safe_though_the_store_goes_back() {
    let walks = from_env("FENCING_WALKS", 40_000);
    let bounds = Bounds { rewinds: true, ..FAR };

    let reached = assert_holds(&random_walks(Rules::ALL, bounds, seed(), walks));

    let everything = Reached {
        done_by_first_attempt: true,
        done_by_second_attempt: true,
        node_declared_lost: true,
        node_reattached: true,
        leader_replaced: true,
        store_went_back: true,
        ran_out_of_memory: false,
    };
    assert_eq!(reached, everything);
}

#[test]
fn without_f2_a_deposed_leader_acts_on_its_stale_table() {
    assert_breaks_on_some_walk(Rule::TxnGuard, LONG);
}

#[test]
fn without_f3_a_deposed_leader_goes_on_renewing_leases() {
    assert_breaks_on_some_walk(Rule::TrustWindow, LONG);
}

#[test]
fn without_f4_a_new_leader_gives_up_nodes_that_still_run() {
    assert_breaks_on_some_walk(Rule::Grace, Bounds { ticks: 4, ..LONG });
}

#[test]
fn without_f5_a_process_outlives_its_lease_while_its_agent_is_down() {
    let bounds = Bounds { ticks: 4, crashes: 1, ..CALM };

    assert_breaks_after(Rule::ShepherdFence, bounds, 15);
}

#[test]
fn without_f6_a_late_answer_lengthens_the_nodes_lease() {
    assert_breaks_on_some_walk(Rule::LeaseFromSend, LONG);
}

#[test]
fn without_f6_a_slow_clock_outlives_the_controllers_patience() {
    assert_breaks_after(Rule::DriftMargin, Bounds { ticks: 3, ..CALM }, 13);
}

#[test]
fn without_f7_a_delayed_launch_reaches_a_node_that_returned() {
    assert_breaks_after(Rule::NodeGeneration, Bounds { ticks: 4, ..CALM }, 13);
}

#[test]
fn without_f8_a_launch_that_was_given_up_starts_after_all() {
    assert_breaks_after(Rule::Revoke, CALM, 9);
}

#[test]
fn without_f9_a_crash_between_spawn_and_journal_spawns_twice() {
    assert_breaks_after(Rule::JournalFirst, Bounds { crashes: 1, ..CALM }, 6);
}

#[test]
fn without_f10_an_old_success_completes_a_newer_run() {
    assert_breaks_after(Rule::ResultFence, CALM, 11);
}

#[test]
fn without_f11_a_node_comes_back_with_its_old_processes() {
    assert_breaks_after(Rule::KillOnReattach, Bounds { ticks: 4, ..CALM }, 13);
}

#[test]
fn without_f13_an_attempts_number_is_given_out_twice_after_a_rewind() {
    assert_breaks_on_some_walk(Rule::AttemptUuid, Bounds { rewinds: true, ..LONG });
}

#[test]
fn without_f14_a_rewound_store_places_what_already_runs() {
    let bounds = Bounds { epochs: 2, rewinds: true, ..CALM };

    assert_breaks_after(Rule::RewindHold, bounds, 11);
}

/// The first attempt may run out of memory, and the second one has enough.
const GROWING: Bounds = Bounds { sizes: 2, ..CALM };

#[test]
fn with_all_rules_no_size_that_was_too_small_is_tried_again() {
    let short = Bounds { epochs: 2, crashes: 1, ..GROWING };

    let outcome = breadth_first(Rules::ALL, short, STATES_MAX);

    let reached = assert_holds_everywhere(&outcome);
    assert!(reached.ran_out_of_memory && reached.done_by_second_attempt, "{reached:?}");
    let far = Bounds { sizes: 3, ..FAR };
    let reached = assert_holds(&random_walks(Rules::ALL, far, seed(), 20_000));
    assert!(reached.ran_out_of_memory && reached.leader_replaced, "{reached:?}");
}

#[test]
fn a_new_leader_tries_a_size_twice_that_only_the_last_one_knew_to_be_too_small() {
    let bounds = Bounds { epochs: 2, ticks: 4, ..GROWING };

    let outcome = breadth_first(Rules::without(Rule::SizeRecorded), bounds, STATES_MAX);

    assert!(
        matches!(outcome, Outcome::Broken { violation: Violation::SizeTriedTwice, .. }),
        "{}",
        outcome.story()
    );
}

/// F15 breaks nothing by its absence: the other rules are enough. It is there as an alarm for two
/// leaders and for rewinds, and it orders layout plans, which this model doesn't have.
#[test]
fn without_f15_alone_nothing_breaks() {
    for rule in [Rule::AgentEpoch, Rule::AgentEpochPersisted] {
        let rules = Rules::without(rule);

        assert_holds_everywhere(&breadth_first(rules, Bounds { epochs: 2, ..CALM }, STATES_MAX));
        assert_holds(&random_walks(rules, FAR, seed(), 10_000));
    }
}
