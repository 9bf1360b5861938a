//! One gap from its beginning to its end.

#[path = "support/scene.rs"]
mod scene;

use std::collections::VecDeque;

use scene::{K0, K1, Scene, first, granted, kernel_id, ms, profile, role_sent, us};
use tessera_kernel_queue::{
    Dims, GateState, Grant, GrantBudget, GrantKind, GrantSize, KernelId, KernelIndex, KernelSample,
    LaunchDecision, Nanos, QueueAction, QueueEvent, QueueRules, Role, SessionId, TaskKey,
    TaskProfile,
};

/// Tests on a device without context switches.
fn plain() -> QueueRules {
    QueueRules::default().without_switches()
}

fn pair(rules: QueueRules) -> Scene {
    let mut scene = Scene::new(rules);
    scene.join(1, 0, profile(&[(us(50), ms(2))]));
    scene.join(2, 5, profile(&[(us(200), Nanos::ZERO), (us(900), Nanos::ZERO)]));
    scene
}

#[test]
fn a_gap_is_granted_from_the_kernels_end_to_its_own() {
    let mut scene = pair(plain());
    scene.request(2, K0);

    let grant = granted(&scene.launch(1, K0), 2).unwrap();

    assert_eq!((grant.from, grant.until), (us(50), us(2_050)));
    assert_eq!((grant.budget, grant.kind, grant.in_flight), (ms(2), GrantKind::Gap, 1));
}

#[test]
fn a_launch_is_held_back_from_its_request_to_the_end_of_its_grant() {
    let held = |scene: &Scene| scene.queue.blocked_sessions().collect::<Vec<_>>();
    let mut scene = pair(plain());
    assert!(held(&scene).is_empty());
    scene.request(2, K0);
    assert_eq!(held(&scene), [SessionId::new(2)]);

    // A grant for later: nothing may be launched before the holder's kernel ends.
    let grant = granted(&scene.launch(1, K0), 2).unwrap();
    assert!(scene.now < grant.from && scene.queue.waiting().is_empty());
    assert_eq!(held(&scene), [SessionId::new(2)]);

    scene.now = grant.until;
    scene.started(2, K0, grant);
    assert!(held(&scene).is_empty());
}

#[test]
fn a_synchronising_call_starts_the_gap() {
    let mut scene = pair(plain());
    scene.launch(1, K0);
    // The kernel took longer than predicted.
    scene.now = us(380);
    scene.sync(1);
    scene.now = us(400);

    let grant = granted(&scene.request(2, K0), 2).unwrap();

    assert_eq!((grant.from, grant.until), (us(400), us(2_380)));
}

#[test]
fn a_gap_is_measured_from_its_predicted_begin_if_a_call_returns_a_little_later_and_from_the_return_if_that_is_earlier()
 {
    let until = |returns: Nanos| {
        let mut scene = pair(plain());
        scene.launch(1, K0);
        scene.now = returns;
        scene.sync(1);
        granted(&scene.request(2, K0), 2).unwrap().until
    };

    // A thread is woken later than the device ends.
    assert_eq!(until(us(150)), us(2_050));
    assert_eq!(until(us(40)), us(2_040));
}

#[test]
fn launches_before_the_device_is_idle_do_not_shorten_the_predictions_of_gaps() {
    let mut scene = Scene::new(plain());
    // Nothing is known of the gaps of the other kernels.
    let mut kernels = profile(&[(us(50), ms(2)); 9]);
    for other in 1..9 {
        kernels.pairs.forget(KernelIndex::new(other));
    }
    scene.join(1, 0, kernels);
    scene.join(2, 5, profile(&[(us(200), Nanos::ZERO)]));
    // After kernel 0, a gap is expected each time. But the next launch is made before the device is idle.
    for other in 1..9 {
        scene.launch(1, KernelIndex::new(other));
        scene.launch(1, K0);
    }
    assert_eq!(scene.queue.counters().gaps_seen, 7);
    scene.request(2, K0);
    scene.now = ms(10);

    let grant = granted(&scene.launch(1, K0), 2).unwrap();

    // Less by the width of a bucket's part.
    assert!(grant.until.minus(grant.from) > us(1_990));
}

#[test]
fn the_switch_back_to_a_holder_is_a_part_of_the_time_after_which_it_is_idle() {
    let rules = QueueRules::default();
    let mut scene = pair(rules);
    scene.request(2, K0);
    let grant = granted(&scene.launch(1, K0), 2).unwrap();
    assert_eq!(grant.from, us(50));
    scene.now = us(60);
    scene.started(2, K0, grant);
    scene.now = us(1_000);
    scene.done(2);
    scene.request(2, K0);
    scene.now = ms(3);

    // The filler's kernel ran last.
    let grant = granted(&scene.launch(1, K0), 2).unwrap();

    assert_eq!(grant.from, ms(3).plus(rules.switch).plus(us(50)));
}

#[test]
fn a_gap_that_is_reported_late_is_granted_from_now_to_its_own_end() {
    let mut scene = pair(plain());
    scene.launch(1, K0);
    let sync = QueueEvent::Sync { session: SessionId::new(1), returns: None };
    // Its report took 300 µs.
    scene.queue.note(sync, us(380), us(680));
    scene.now = us(680);

    let grant = granted(&scene.request(2, K0), 2).unwrap();

    assert_eq!((grant.from, grant.until), (us(680), us(2_380)));
}

#[test]
fn the_holders_launch_ends_the_gap_at_once() {
    let mut scene = pair(plain());
    scene.request(2, K0);
    let grant = granted(&scene.launch(1, K0), 2).unwrap();
    let mut budget = GrantBudget::default();
    budget.receive(grant);
    scene.now = us(300);

    let actions = scene.launch(1, K0);

    assert!(
        actions.contains(&QueueAction::Revoke { session: SessionId::new(2), grant: grant.number })
    );
    let epoch = actions.iter().find_map(|action| match action {
        QueueAction::Gate { epoch } => Some(*epoch),
        _ => None,
    });
    let by_queue = GateState { epoch: epoch.unwrap(), launches: 0 };
    let by_page = GateState { epoch: grant.gate.epoch, launches: grant.gate.launches + 1 };
    for gate in [by_queue, by_page] {
        assert_eq!({ budget }.spend(Some(us(1)), gate, 0, us(301)), LaunchDecision::Request);
    }
    assert_eq!({ budget }.spend(Some(us(1)), grant.gate, 0, us(301)), LaunchDecision::Launch);
    assert_eq!(scene.queue.counters().early_stops, 1);
}

#[test]
fn a_granted_launch_that_was_not_made_keeps_its_position() {
    let mut scene = pair(plain());
    scene.join(3, 5, profile(&[(us(200), Nanos::ZERO)]));
    scene.request(2, K0);
    scene.request(3, K0);
    assert!(granted(&scene.launch(1, K0), 2).is_some());
    scene.now = us(300);

    let again = scene.launch(1, K0);

    assert!(granted(&again, 2).is_some(), "both take equally long, and it came first");
}

#[test]
fn a_budget_is_spent_without_requests_and_the_rest_goes_to_the_next_fit() {
    let mut scene = pair(plain());
    scene.join(3, 6, profile(&[(us(300), Nanos::ZERO)]));
    scene.request(3, K0);
    scene.request(2, K1);
    let grant = granted(&scene.launch(1, K0), 2).expect("the higher priority goes first");
    let mut budget = GrantBudget::default();
    budget.receive(grant);

    assert_eq!(budget.spend(Some(us(900)), grant.gate, 0, us(50)), LaunchDecision::Launch);
    scene.now = us(50);
    scene.started(2, K1, grant);
    assert_eq!(budget.spend(Some(us(900)), grant.gate, 1, us(60)), LaunchDecision::Wait);
    scene.now = us(950);
    scene.done(2);
    assert_eq!(budget.spend(Some(us(900)), grant.gate, 0, us(950)), LaunchDecision::Launch);
    scene.started(2, K1, grant);
    scene.now = us(1_850);
    scene.done(2);
    // 200 µs are left: too few for another grant of the same session.
    assert_eq!(budget.spend(Some(us(900)), grant.gate, 0, us(1_850)), LaunchDecision::Request);
    let session = SessionId::new(2);
    let beyond = Some(grant.number);
    let actions = scene.step(QueueEvent::Request { session, launch: 99, kernel: K1, beyond });

    assert_eq!(granted(&actions, 3), None, "300 µs do not fit into 200");
    assert_eq!(scene.queue.counters().filled_time, us(1_800));
}

#[test]
fn a_late_launch_is_counted_and_does_not_reduce_a_newer_grant() {
    let mut scene = pair(plain());
    scene.request(2, K0);
    let old = granted(&scene.launch(1, K0), 2).unwrap();
    scene.now = us(2_500);
    let new = granted(&scene.launch(1, K0), 2).unwrap();
    assert!(new.number > old.number);

    scene.started(2, K0, old);

    assert_eq!(scene.queue.counters().late, 1);
    assert_eq!(scene.queue.granted_gap_time(), new.budget);
}

#[test]
fn a_late_older_grant_replaces_no_newer_one() {
    let mut scene = pair(plain());
    scene.request(2, K0);
    let old = granted(&scene.launch(1, K0), 2).unwrap();
    scene.now = us(2_500);
    let new = granted(&scene.launch(1, K0), 2).unwrap();
    let mut budget = GrantBudget::default();
    budget.receive(new);
    budget.receive(old);

    assert_eq!(budget.grant(), Some(&new));
}

#[test]
fn a_grant_expires_when_no_message_arrives() {
    let mut scene = pair(plain());
    scene.request(2, K0);
    let grant = granted(&scene.launch(1, K0), 2).unwrap();
    let mut budget = GrantBudget::default();
    budget.receive(grant);

    assert_eq!(budget.spend(Some(us(1)), grant.gate, 0, us(2_049)), LaunchDecision::Launch);
    assert_eq!(
        budget.spend(Some(us(200)), grant.gate, 0, us(1_900)),
        LaunchDecision::Request,
        "it would not end in time"
    );
    assert_eq!(budget.spend(Some(us(1)), grant.gate, 0, us(2_050)), LaunchDecision::Request);
}

#[test]
fn a_gap_longer_than_all_earlier_ones_is_filled_by_a_share_of_its_age() {
    let mut scene = pair(plain());
    scene.request(2, K1);
    let grant = granted(&scene.launch(1, K0), 2).unwrap();
    scene.now = us(50);
    scene.sync(1);
    scene.started(2, K1, grant);
    scene.now = us(950);
    scene.done(2);
    scene.now = us(2_100);
    let small = scene.request(2, K0);
    assert_eq!(granted(&small, 2).map(|grant| grant.budget), Some(us(205)), "a tenth of 2,050 µs");
}

#[test]
fn short_gaps_are_not_checked_while_only_their_age_changes() {
    // All known gaps last 200 µs, and the shortest that is ever filled lasts 450 µs.
    let rules = QueueRules::default();
    let mut scene = Scene::new(rules);
    scene.join(1, 0, profile(&[(us(50), us(200))]));
    scene.join(2, 5, profile(&[(us(100), Nanos::ZERO)]));
    scene.request(2, K0);
    assert_eq!(granted(&scene.launch(1, K0), 2), None);
    let begun = us(50);
    scene.now = begun;
    assert_eq!(granted(&scene.sync(1), 2), None);

    // The first check is at the age of which a tenth is as long: the gap is longer than all known ones then.
    let longer = begun.plus(us(4_500));
    assert_eq!(scene.queue.deadline(), longer);
    scene.now = longer.plus(us(1));
    let grant = granted(&scene.step(QueueEvent::Tick), 2).expect("a probe of the long gap");
    assert!(grant.until.minus(grant.from) <= us(451), "{grant:?}");
}

#[test]
fn a_grant_for_one_kernel_covers_one() {
    let mut scene = pair(QueueRules { grants: GrantSize::Kernel, ..plain() });
    scene.request(2, K0);
    let grant = granted(&scene.launch(1, K0), 2).unwrap();
    let mut budget = GrantBudget::default();
    budget.receive(grant);

    assert_eq!((grant.budget, grant.launches), (us(200), 1));
    assert_eq!(budget.spend(Some(us(200)), grant.gate, 0, us(50)), LaunchDecision::Launch);
    assert_eq!(budget.spend(Some(us(1)), grant.gate, 0, us(51)), LaunchDecision::Request);
}

#[test]
fn a_new_task_is_measured_first_and_its_gaps_stay_empty_until_some_are_known() {
    let mut scene = Scene::new(plain());
    let actions = scene.join(1, 0, TaskProfile::default());
    assert_eq!(role_sent(&actions, 1), Some(Role::Measure));
    scene.join(2, 5, profile(&[(us(10), Nanos::ZERO)]));
    let session = SessionId::new(1);
    scene.step(QueueEvent::Define { session, kernel: Box::new(kernel_id(0)) });
    scene.request(2, K0);

    let mut measured_at = None;
    for run in 1..=200 {
        scene.now = us(500 * run);
        let launched = scene.launch(1, K0);
        let is_over = scene.role(1) == Some(Role::Hold);
        assert_eq!(granted(&launched, 2).is_some(), is_over, "run {run}");
        let sample =
            KernelSample { kernel: K0, before: Some(K0), took: us(50), gap: Some(us(950)) };
        scene.step(QueueEvent::Sample { session, sample });
        if launched.contains(&QueueAction::Measured { session }) {
            measured_at = Some(run);
            assert_eq!(role_sent(&launched, 1), Some(Role::Hold));
        }
    }

    assert_eq!(measured_at, Some(100), "the fewest launches that make a measurement");
    let key = TaskKey::new("task 1").unwrap();
    let profile = scene.queue.profile(&key).unwrap();
    assert_eq!((profile.took(K0), profile.gap(K0)), (Some(us(50)), Some(us(950))));
    let text = serde_json::to_string(profile).unwrap();
    let read: TaskProfile = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), text);
    assert_eq!((read.took(K0), read.is_measured()), (Some(us(50)), true));
}

#[test]
fn a_kernel_that_changed_is_measured_again_and_used_meanwhile() {
    let mut scene = pair(plain());
    let session = SessionId::new(2);
    let key = TaskKey::new("task 2").unwrap();
    let mut remeasured = 0;
    for _ in 0..6 {
        let sample = KernelSample { kernel: K0, before: None, took: us(700), gap: None };
        let actions = scene.step(QueueEvent::Sample { session, sample });
        remeasured += actions.iter().filter(|a| matches!(a, QueueAction::Remeasure { .. })).count();
    }

    assert_eq!(remeasured, 1);
    assert_eq!(scene.queue.profile(&key).unwrap().took(K0), Some(us(700)));
    assert_eq!(scene.role(2), Some(Role::Fill));
}

#[test]
fn profiles_of_two_machines_merge_for_any_order_of_their_kernels() {
    let mut one = profile(&[(us(10), us(100)), (us(20), us(200))]);
    let mut other = TaskProfile::default();
    for number in [1, 2] {
        let index = other.intern(&kernel_id(number)).unwrap();
        for _ in 0..20 {
            other.kernel_mut(index).unwrap().took.add(us(40));
            other.pairs.add(None, index, us(400));
        }
    }

    one.merge(&other);

    let took = |number| one.took(one.index(&kernel_id(number)).unwrap());
    assert_eq!(took(0), Some(us(10)));
    assert_eq!(took(1), Some(us(30)));
    assert_eq!(took(2), Some(us(40)));
    let gaps = one.pairs.trusted(None, one.index(&kernel_id(2)).unwrap()).unwrap();
    assert_eq!(gaps.longest(), us(400));
}

#[test]
fn the_gaps_of_a_task_that_is_measured_are_filled_once_some_are_known_and_the_device_is_idle() {
    let mut scene = Scene::new(plain());
    scene.join(1, 0, TaskProfile::default());
    scene.join(2, 5, profile(&[(us(100), us(10))]));
    let session = SessionId::new(1);
    scene.step(QueueEvent::Define { session, kernel: Box::new(kernel_id(0)) });
    scene.request(2, K0);
    let mut filled_at = None;
    for run in 1..=50_u64 {
        scene.now = us(1_000 * run);
        assert_eq!(granted(&scene.launch(1, K0), 2), None, "its kernel runs: run {run}");
        let sample =
            KernelSample { kernel: K0, before: Some(K0), took: us(50), gap: Some(us(950)) };
        scene.step(QueueEvent::Sample { session, sample });
        scene.now = us(1_000 * run + 60);
        if granted(&scene.sync(1), 2).is_some() {
            filled_at.get_or_insert(run);
        }
    }

    assert_eq!(scene.role(1), Some(Role::Measure));
    assert!(filled_at.is_some_and(|run| run <= 10), "{filled_at:?}");
}

#[test]
fn a_gap_is_filled_only_if_it_is_worth_two_changes_of_contexts() {
    for (gap, is_filled) in [(us(440), false), (us(470), true)] {
        let mut scene = Scene::new(QueueRules::default());
        scene.join(1, 0, profile(&[(us(50), gap)]));
        scene.join(2, 5, profile(&[(us(60), Nanos::ZERO)]));
        scene.request(2, K0);
        assert_eq!(granted(&scene.launch(1, K0), 2).is_some(), is_filled, "{gap}");
    }
}

#[test]
fn several_fills_of_a_gap_change_contexts_once() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 0, profile(&[(us(50), ms(1))]));
    scene.join(2, 5, profile(&[(us(300), Nanos::ZERO)]));
    scene.launch(1, K0);
    scene.now = us(50);
    scene.sync(1);
    let first = granted(&scene.request(2, K0), 2).unwrap();
    assert_eq!(
        (first.until, first.budget, first.entry()),
        (us(900), us(700), us(150)),
        "the device changes contexts first, and at the end"
    );
    scene.started(2, K0, first);
    scene.now = us(450);
    scene.done(2);
    let (session, beyond) = (SessionId::new(2), Some(first.number));

    let next = scene.step(QueueEvent::Request { session, launch: 77, kernel: K0, beyond });

    let next = granted(&next, 2).unwrap();
    assert_eq!((next.until, next.budget), (us(900), us(450)), "and not again");
    assert_eq!(next.entry(), Nanos::ZERO);
}

/// Returns when a holder is ordered to bring the device back, and at how many launches.
fn recall(actions: &[QueueAction]) -> Option<(u64, Nanos, u64)> {
    actions.iter().find_map(|action| match action {
        QueueAction::Recall { session, at, launches } => Some((session.get(), *at, *launches)),
        _ => None,
    })
}

#[test]
fn the_holder_of_a_filled_gap_is_ordered_to_bring_the_device_back_one_switch_before_its_end() {
    let rules = QueueRules::default();
    let orders = |rules: QueueRules| {
        let mut scene = Scene::new(rules);
        scene.join(1, 0, profile(&[(us(50), ms(1))]));
        scene.join(2, 5, profile(&[(us(300), Nanos::ZERO)]));
        scene.launch(1, K0);
        scene.now = us(50);
        assert_eq!(recall(&scene.sync(1)), None, "nobody fills the gap");
        let actions = scene.request(2, K0);
        (recall(&actions), granted(&actions, 2).unwrap().until)
    };

    assert_eq!(orders(rules), (Some((1, us(900), 0)), us(900)));
    assert_eq!(orders(QueueRules { recall: false, ..rules }), (None, us(1_050)));
    assert_eq!(orders(rules.without_switches()), (None, us(1_050)));
}

/// When a holder brings the device back, of the gaps that are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recalled {
    Never,
    /// As ordered, after the filler's kernel.
    InTime,
    /// Before the filler's kernel.
    TooSoon,
}

/// Plays 2,000 gaps of 1.2 ms, and returns how many are filled.
fn filled_gaps(recalled: Recalled) -> u64 {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 0, profile(&[(us(50), us(1_200))]));
    scene.join(2, 5, profile(&[(us(60), Nanos::ZERO)]));
    let session = SessionId::new(1);
    let mut filled = 0;
    for _ in 0..2_000 {
        scene.alive(&[1, 2]);
        if scene.queue.waiting().is_empty() {
            scene.request(2, K0);
        }
        let mut actions = scene.launch(1, K0);
        scene.now = scene.now.plus(us(50));
        let end = scene.now.plus(us(1_200));
        actions.extend(scene.sync(1));
        if let Some(grant) = granted(&actions, 2) {
            let (_, at, _) = recall(&actions).unwrap();
            filled += 1;
            if recalled == Recalled::TooSoon {
                scene.step(QueueEvent::Recalled { session });
                scene.now = scene.now.plus(us(1));
            }
            scene.started(2, K0, grant);
            scene.now = scene.now.plus(us(210));
            scene.done(2);
            if recalled == Recalled::InTime {
                scene.now = at;
                scene.step(QueueEvent::Recalled { session });
            }
        }
        scene.now = end;
    }
    filled
}

#[test]
fn a_switch_within_the_gap_costs_the_holder_nothing_and_one_after_it_is_paid_for() {
    // 3 % of 2.5 s pay for 500 switches of 150 µs, and those of 100 ms were saved.
    assert!(
        (450..=530).contains(&filled_gaps(Recalled::Never)),
        "{}",
        filled_gaps(Recalled::Never)
    );
    assert_eq!(filled_gaps(Recalled::InTime), 2_000);
    assert_eq!(filled_gaps(Recalled::TooSoon), filled_gaps(Recalled::Never));
}

#[test]
fn once_recalls_are_in_time_shorter_gaps_are_filled_as_well() {
    let mut scene = Scene::new(QueueRules::default());
    // Two switches take 300 µs. A fill that costs one more pays off from 450 µs on.
    scene.join(1, 0, profile(&[(us(50), us(1_200)), (us(50), us(420))]));
    scene.join(2, 5, profile(&[(us(60), Nanos::ZERO)]));
    let session = SessionId::new(1);
    let mut short_filled = Vec::new();
    for _ in 0..40 {
        for (kernel, gap) in [(K0, us(1_200)), (K1, us(420))] {
            scene.alive(&[1, 2]);
            if scene.queue.waiting().is_empty() {
                scene.request(2, K0);
            }
            let mut actions = scene.launch(1, kernel);
            scene.now = scene.now.plus(us(50));
            let end = scene.now.plus(gap);
            actions.extend(scene.sync(1));
            let grant = granted(&actions, 2);
            if kernel == K1 {
                short_filled.push(grant.is_some());
            }
            if let Some(grant) = grant {
                scene.started(2, K0, grant);
                scene.now = scene.now.plus(us(210));
                scene.done(2);
                scene.now = recall(&actions).unwrap().1;
                scene.step(QueueEvent::Recalled { session });
            }
            scene.now = end;
        }
    }

    assert!(!short_filled[0], "no recall was in time yet");
    assert!(short_filled[20..].iter().all(|filled| *filled), "{short_filled:?}");
}

/// Plays gaps of the second kernel that end a quarter earlier than predicted, and returns the predicted length of the first
/// kernel's gap of 1 ms after that.
fn predicted_after_early_ends(of_gaps: Nanos) -> Nanos {
    let rules = QueueRules { ahead: false, recall: false, ..QueueRules::default() };
    let mut scene = Scene::new(rules);
    scene.join(1, 0, profile(&[(us(50), ms(1)), (us(50), of_gaps)]));
    scene.join(2, 5, profile(&[(us(60), Nanos::ZERO)]));
    for _ in 0..4 {
        scene.alive(&[1, 2]);
        scene.launch(1, K1);
        scene.now = scene.now.plus(us(50));
        scene.sync(1);
        scene.now = scene.now.plus(of_gaps.thousandths(750));
    }
    scene.launch(1, K0);
    scene.now = scene.now.plus(us(50));
    let begin = scene.now;
    scene.sync(1);
    granted(&scene.request(2, K0), 2).unwrap().until.minus(begin)
}

#[test]
fn only_gaps_that_are_long_enough_to_be_filled_correct_predictions() {
    assert_eq!(predicted_after_early_ends(us(280)), ms(1), "two switches take longer");
    assert!(predicted_after_early_ends(us(800)) < ms(1));
}

#[test]
fn two_kernels_that_take_no_longer_than_a_context_switch_are_in_flight_in_a_gap() {
    for (took, in_flight) in [(us(150), 2), (us(151), 1)] {
        let mut scene = Scene::new(QueueRules::default());
        scene.join(1, 0, profile(&[(us(50), ms(4))]));
        scene.join(2, 5, profile(&[(took, Nanos::ZERO)]));
        scene.request(2, K0);
        let grant = granted(&scene.launch(1, K0), 2).unwrap();
        assert_eq!((grant.kind, grant.in_flight), (GrantKind::Gap, in_flight), "{took}");
    }
}

#[test]
fn the_cost_of_context_switches_is_bounded_and_the_longest_gaps_are_filled() {
    // Alternating gaps of 0.4 and 1.2 ms. To fill all of them would cost 0.3 of 1.7 ms.
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 0, profile(&[(us(50), us(400)), (us(50), us(1_200))]));
    scene.join(2, 5, profile(&[(us(60), Nanos::ZERO)]));
    let mut filled = [0_u64; 2];
    scene.request(2, K0);
    for _ in 0..4_000 {
        for (at, (kernel, gap)) in [(K0, us(400)), (K1, us(1_200))].into_iter().enumerate() {
            scene.alive(&[1, 2]);
            let early = granted(&scene.launch(1, kernel), 2);
            scene.now = scene.now.plus(us(50));
            let end = scene.now;
            if let Some(grant) = early.or(granted(&scene.sync(1), 2)) {
                filled[at] += 1;
                scene.started(2, K0, grant);
                scene.now = end.plus(us(160));
                scene.done(2);
            }
            scene.now = end.plus(gap);
            if scene.queue.waiting().is_empty() {
                scene.request(2, K0);
            }
        }
    }
    let rules = QueueRules::default();
    let lost = rules.switch.times(filled[0] + filled[1]);
    let most = scene.now.thousandths(rules.fill_cost_thousandths).plus(ms(4));
    assert!(lost <= most, "{lost} of {most}, {filled:?}");
    assert!(lost >= most.thousandths(800), "{lost} of {most}, {filled:?}");
    assert!(filled[1] > 5 * filled[0], "{filled:?}");
}

#[test]
fn a_launch_of_higher_priority_does_not_wait_for_the_grant_of_a_lower_one() {
    let mut scene = Scene::new(plain());
    scene.join(1, 0, profile(&[(us(50), ms(4))]));
    scene.join(2, 9, profile(&[(us(100), Nanos::ZERO)]));
    scene.join(3, 1, profile(&[(us(100), Nanos::ZERO)]));
    scene.request(2, K0);
    let low = granted(&scene.launch(1, K0), 2).unwrap();
    scene.now = us(60);
    scene.started(2, K0, low);
    scene.now = us(100);

    let actions = scene.request(3, K0);
    let revoked = QueueAction::Revoke { session: SessionId::new(2), grant: low.number };
    assert!(actions.contains(&revoked), "{actions:?}");
    scene.now = us(160);
    assert!(granted(&scene.done(2), 3).is_some());
}

/// A process whose threads launch kernels of 1 ms, one after another, in the gaps of a holder with
/// 2 ms of work and 8 ms of pause. Returns the numbers of its grants and of its kernels in twenty
/// gaps.
fn filled_by_threads(threads: u64) -> (u64, u64) {
    let mut scene = Scene::new(plain());
    scene.join(1, 0, profile(&[(ms(2), ms(8))]));
    scene.join(2, 5, profile(&[(ms(1), Nanos::ZERO)]));
    let filler = SessionId::new(2);
    // The launches that wait, oldest first, and whether each was requested.
    let mut line: VecDeque<(u64, bool)> = (1..=threads).map(|launch| (launch, false)).collect();
    let (mut budget, mut next, mut kernels) = (GrantBudget::default(), threads, 0);
    let receive = |budget: &mut GrantBudget, actions: &[QueueAction]| {
        granted(actions, 2).into_iter().for_each(|grant| budget.receive(grant));
    };
    for period in 1..=20 {
        let begin = ms(10 * period);
        scene.wait(begin);
        receive(&mut budget, &scene.launch(1, K0));
        scene.wait(begin.plus(ms(2)));
        receive(&mut budget, &scene.sync(1));
        while scene.now < begin.plus(ms(10)) {
            let decision = budget.spend(Some(ms(1)), scene.queue.gate(), 0, scene.now);
            if decision == LaunchDecision::Launch {
                let grant = budget.grant().unwrap().number;
                let (launch, _) = line.pop_front().unwrap();
                let started = QueueEvent::Started { session: filler, launch, kernel: K0, grant };
                scene.step(started);
                scene.wait(scene.now.plus(ms(1)));
                receive(&mut budget, &scene.done(2));
                (kernels, next) = (kernels + 1, next + 1);
                line.push_back((next, false));
                continue;
            }
            // Every thread sends its own request as soon as no grant covers its launch.
            for (launch, requested) in &mut line {
                if decision == LaunchDecision::Request && !std::mem::replace(requested, true) {
                    let (session, launch) = (filler, *launch);
                    let request = QueueEvent::Request { session, launch, kernel: K0, beyond: None };
                    receive(&mut budget, &scene.step(request));
                }
            }
            if budget.grant().is_none_or(|grant| scene.now < grant.from) {
                scene.wait(scene.now.plus(us(100)));
            }
        }
    }
    (scene.queue.counters().grants, kernels)
}

#[test]
fn eight_threads_of_a_process_get_the_grants_and_kernels_that_one_gets() {
    let (grants_of_one, kernels_of_one) = filled_by_threads(1);
    let (grants_of_eight, kernels_of_eight) = filled_by_threads(8);

    assert!(kernels_of_one >= 120, "six of eight in each gap: {kernels_of_one}");
    assert!(kernels_of_eight >= kernels_of_one, "{kernels_of_eight} of {kernels_of_one}");
    assert!(grants_of_eight >= grants_of_one, "{grants_of_eight} of {grants_of_one}");
}

#[test]
fn a_profile_states_what_half_of_its_kernel_time_needs_and_its_longest_gap() {
    // In equal counts: 3 ms of 5.1 ms are in kernels of 3 ms.
    let known = profile(&[(us(100), us(300)), (ms(2), ms(8)), (ms(3), us(50))]);

    assert_eq!(known.lengths(), Some((ms(3), ms(8))));
    assert_eq!(TaskProfile::default().lengths(), None, "it is not measured");
}

#[test]
fn the_gaps_of_a_program_whose_kernels_all_have_new_shapes_are_filled() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 0, profile(&[(ms(1), ms(8))]));
    scene.join(2, 5, profile(&[(ms(1), Nanos::ZERO)]));
    let session = SessionId::new(1);
    let mut filled = Vec::new();
    let mut shapes = 0;
    for burst in 0..40 {
        for _ in 0..5 {
            shapes += 1;
            let id = KernelId::new("step", Dims([shapes, 1, 1]), Dims([32, 1, 1])).unwrap();
            let actions = scene.step(QueueEvent::Define { session, kernel: Box::new(id) });
            let kernel = actions.iter().find_map(|action| match action {
                QueueAction::Defined { kernel, .. } => Some(*kernel),
                _ => None,
            });
            scene.launch(1, kernel.unwrap());
        }
        scene.now = scene.now.plus(ms(5));
        let at_once = granted(&scene.sync(1), 2);
        let gap_until = scene.now.plus(ms(8));
        let at_once = at_once.or(granted(&scene.request(2, K0), 2));
        let early = scene.wait(scene.now.plus(ms(1)));
        if at_once.is_some() || first(&early, 2, GrantKind::Gap).is_some() {
            filled.push(burst);
        }
        scene.wait(gap_until);
        scene.alive(&[1, 2]);
    }

    assert!(filled.len() >= 25 && filled[0] <= 12, "{filled:?}");
}

/// A grant of 1 ms of which the switch to the session's context takes 150 µs.
fn with_a_switch(in_flight: u16) -> (GrantBudget, GateState) {
    let gate = GateState::default();
    let grant = Grant {
        number: 1,
        gate,
        kind: GrantKind::Gap,
        from: us(100),
        until: us(1_100),
        budget: us(850),
        launches: u16::MAX,
        in_flight,
        yields: false,
    };
    let mut budget = GrantBudget::default();
    budget.receive(grant);
    (budget, gate)
}

#[test]
fn the_switch_to_a_session_takes_time_from_its_first_kernel_and_from_no_other() {
    let (mut budget, gate) = with_a_switch(1);
    assert_eq!({ budget }.spend(Some(us(850)), gate, 0, us(100)), LaunchDecision::Launch);
    let late = us(151);
    assert_eq!({ budget }.spend(Some(us(800)), gate, 0, late), LaunchDecision::Request);

    assert_eq!(budget.spend(Some(us(400)), gate, 0, us(110)), LaunchDecision::Launch);
    assert_eq!({ budget }.spend(Some(us(401)), gate, 0, us(700)), LaunchDecision::Request);
    assert_eq!(budget.spend(Some(us(400)), gate, 0, us(700)), LaunchDecision::Launch);
}

#[test]
fn a_kernel_behind_others_in_flight_is_launched_if_all_of_them_end_in_time() {
    let (mut budget, gate) = with_a_switch(2);
    assert_eq!(budget.spend(Some(us(400)), gate, 0, us(100)), LaunchDecision::Launch);
    // The first one runs until 650 µs.
    assert_eq!({ budget }.spend(Some(us(450)), gate, 1, us(120)), LaunchDecision::Launch);
    assert_eq!({ budget }.spend(Some(us(449)), gate, 1, us(120)), LaunchDecision::Launch);
    let mut longer = budget;
    longer.receive(Grant { number: 2, budget: us(900), ..*budget.grant().unwrap() });
    assert_eq!({ longer }.spend(Some(us(451)), gate, 1, us(120)), LaunchDecision::Wait);
    assert_eq!(
        { longer }.spend(Some(us(451)), gate, 0, us(520)),
        LaunchDecision::Launch,
        "the first one ended sooner than predicted"
    );
}
