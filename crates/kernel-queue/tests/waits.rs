//! Every wait ends, and the cost of that is bounded.

#[path = "support/scene.rs"]
mod scene;

use scene::{K0, K1, Scene, first, granted, ms, profile, us};
use tessera_kernel_queue::admission::ResourceNeed;
use tessera_kernel_queue::limits::WAITING_MAX;
use tessera_kernel_queue::{
    Ageing, GrantKind, KernelIndex, KernelSharing, Nanos, QueueAction, QueueEvent, QueueRefusal,
    QueueRules, SessionId, TaskProfile,
};

/// A holder that never pauses: kernels of 500 µs one after another, for `span`; fillers send another request
/// as soon as they have been served. Returns the time that aged kernels took.
fn never_pausing(scene: &mut Scene, fillers: &[(u64, Nanos)], span: Nanos) -> Nanos {
    let mut cost = Nanos::ZERO;
    for (filler, _) in fillers {
        scene.request(*filler, K0);
    }
    let mut running: Option<(u64, Nanos)> = None;
    while scene.now < span {
        scene.alive(&[1]);
        let now = scene.now;
        let at_launch = scene.launch(1, K0);
        let mut grants: Vec<_> = at_launch.into_iter().map(|action| (now, action)).collect();
        grants.extend(scene.wait(now.plus(us(500))));
        if let Some((filler, _)) = running.filter(|(_, end)| *end <= scene.now) {
            running = None;
            scene.done(filler).into_iter().for_each(|action| grants.push((scene.now, action)));
            let next = scene.request(filler, K0);
            next.into_iter().for_each(|action| grants.push((scene.now, action)));
        }
        for (filler, took) in fillers {
            scene.alive(&[*filler]);
            if let Some((_, grant)) = first(&grants, *filler, GrantKind::Aged) {
                assert_eq!(running, None, "one at a time over all sessions");
                cost = cost.plus(*took);
                scene.started(*filler, K0, grant);
                running = Some((*filler, scene.now.plus(*took)));
            }
        }
    }
    cost
}

fn fillers(scene: &mut Scene) -> Vec<(u64, Nanos)> {
    let kernels = [us(30), us(400), ms(2), ms(6)];
    let fillers: Vec<(u64, Nanos)> = (2..).zip(kernels).collect();
    scene.join(1, 0, profile(&[(us(500), Nanos::ZERO)]));
    for (filler, took) in &fillers {
        scene.join(*filler, u8::try_from(*filler).unwrap(), profile(&[(*took, Nanos::ZERO)]));
    }
    fillers
}

#[test]
fn with_a_holder_that_never_pauses_every_wait_ends_and_costs_a_fiftieth() {
    let mut scene = Scene::new(QueueRules::default());
    let fillers = fillers(&mut scene);
    let ageing = QueueRules::default().ageing.unwrap();
    let span = Nanos::from_millis(10_000);

    let cost = never_pausing(&mut scene, &fillers, span);

    // Each session waits for its own threshold, and then until the launches before it are paid for.
    let paid = |took: Nanos| Nanos::new(took.get() * 1_000 / ageing.cost_thousandths);
    let all = fillers.iter().fold(Nanos::ZERO, |sum, (_, took)| sum.plus(paid(*took)));
    let bound = ageing.wait_max.plus(all).plus(ms(5));
    for (filler, _) in &fillers {
        let counters = scene.queue.session_counters(SessionId::new(*filler)).unwrap();
        assert!(counters.aged >= 10, "{filler}: {}", counters.aged);
        assert!(counters.waited_max <= bound, "{filler}: {}", counters.waited_max);
    }
    let longest = fillers.iter().map(|(_, took)| *took).max().unwrap();
    let allowed = span.thousandths(ageing.cost_thousandths).plus(longest);
    assert!(cost <= allowed, "{cost} of {allowed}");
}

#[test]
fn without_ageing_a_kernel_that_fits_no_gap_waits_forever() {
    let mut scene = Scene::new(QueueRules { ageing: None, ..QueueRules::default() });
    let fillers = fillers(&mut scene);

    assert_eq!(never_pausing(&mut scene, &fillers, ms(2_000)), Nanos::ZERO);
}

#[test]
fn a_smaller_share_waits_longer() {
    let ageing =
        Ageing { duration: ms(10), wait_max: Nanos::from_millis(10_000), cost_thousandths: 1_000 };
    let wait = |share_thousandths| {
        let mut scene = Scene::new(QueueRules { ageing: Some(ageing), ..QueueRules::default() });
        let fillers = [(2, us(10))];
        scene.join(1, 0, profile(&[(us(500), Nanos::ZERO)]));
        join_with_share(&mut scene, 2, share_thousandths);
        never_pausing(&mut scene, &fillers, ms(500));
        scene.queue.session_counters(SessionId::new(2)).unwrap().waited_max
    };

    let (whole, quarter) = (wait(1_000), wait(250));
    assert!((ms(10)..ms(12)).contains(&whole), "{whole}");
    assert!((ms(40)..ms(42)).contains(&quarter), "{quarter}");
}

fn join_with_share(scene: &mut Scene, session: u64, share_thousandths: u32) {
    use tessera_kernel_queue::{Join, TaskKey};
    use tessera_model::spec::{Class, Priority};
    let task = TaskKey::new(format!("task {session}")).unwrap();
    scene.queue.add_profile(&task, profile(&[(us(10), Nanos::ZERO)]));
    scene.step(QueueEvent::Join(Join {
        session: SessionId::new(session),
        task,
        priority: Priority::DEFAULT,
        class: Class::Offline,
        share_thousandths,
        exclusive: None,
    }));
}

#[test]
fn an_unknown_kernel_is_granted_only_by_age() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 0, profile(&[(us(50), ms(300))]));
    scene.join(2, 5, TaskProfile::default());
    assert_eq!(granted(&scene.launch(1, K0), 2), None);
    scene.request(2, K0);

    let seen = scene.wait(ms(150));

    let (at, grant) = first(&seen, 2, GrantKind::Aged).expect("it does not wait forever");
    assert!(at <= ms(101), "{at}");
    assert_eq!(grant.launches, 1);
    assert_eq!(first(&seen, 2, GrantKind::Gap), None);
}

#[test]
fn a_waiting_launch_that_gets_its_index_late_is_granted_in_the_current_gap() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 0, profile(&[(us(50), ms(300))]));
    scene.join(2, 5, profile(&[(us(100), us(10))]));
    scene.launch(1, K0);
    scene.request(2, KernelIndex::UNKNOWN);
    assert_eq!(scene.wait(ms(1)), []);

    let actions = scene.request_again(2, K0);

    assert_eq!(granted(&actions, 2).map(|grant| grant.kind), Some(GrantKind::Gap));
    assert_eq!(scene.queue.waiting().iter().count(), 0, "it is one launch under either index");
}

#[test]
fn each_session_has_its_share_of_the_places_and_repeats_its_request() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 0, profile(&[(us(50), us(10))]));
    scene.join(2, 5, profile(&[(us(50), us(10))]));
    scene.join(3, 5, profile(&[(us(50), us(10))]));
    for _ in 0..WAITING_MAX / 2 {
        assert!(scene.request(2, K0).is_empty());
    }

    let refused = QueueAction::Refuse { session: SessionId::new(2), why: QueueRefusal::QueueFull };
    assert_eq!(scene.request(2, K0), [refused]);
    assert!(scene.request(3, K0).is_empty(), "the other has its own places");
}

/// Simulates a holder with 2 ms of work and 8 ms of pause. Its co-runners have kernels of these
/// times and never pause. Returns the ratio of its time to its time alone, in thousandths, and how
/// many of its tasks in a thousand took more than 7.2 % longer.
fn slowdown(fillers: &[Nanos], are_known: bool, tasks: u64) -> (u64, u64) {
    let mut scene = Scene::new(QueueRules::default().without_switches());
    scene.join(1, 0, profile(&[(ms(2), ms(8))]));
    for (filler, took) in (2..).zip(fillers) {
        let task =
            if are_known { profile(&[(*took, Nanos::ZERO)]) } else { TaskProfile::default() };
        scene.join(filler, 5, task);
        let session = SessionId::new(filler);
        scene.step(QueueEvent::Define { session, kernel: Box::new(scene::kernel_id(0)) });
        scene.request(filler, K0);
    }
    // The device runs one kernel after the other; a grant is used at once.
    let (mut free_at, mut hit, mut running) = (Nanos::ZERO, 0, None::<(u64, Nanos)>);
    for _ in 0..tasks {
        let begun = scene.now;
        let mut seen: Vec<_> =
            scene.launch(1, K0).into_iter().map(|action| (begun, action)).collect();
        let end = begun.max(free_at).plus(ms(2));
        let mut synced = false;
        while scene.now < end.plus(ms(8)) {
            let grant = seen.drain(..).rev().find_map(|(_, action)| match action {
                QueueAction::Grant { session, grant } => Some((session.get(), grant)),
                _ => None,
            });
            if let Some((filler, grant)) = grant
                && scene.now.max(grant.from) < grant.until
                && (synced || !grant.kind.ends_with_gap())
            {
                assert_eq!(running, None, "one kernel of all fillers is in flight");
                let took = fillers[usize::try_from(filler - 2).unwrap()];
                let start = if synced { scene.now } else { scene.now.max(end) };
                free_at = start.plus(took);
                scene.started(filler, K0, grant);
                running = Some((filler, free_at));
            }
            let sessions: Vec<u64> = (1..).take(fillers.len() + 1).collect();
            scene.alive(&sessions);
            let next = scene.now.plus(us(100));
            seen.extend(scene.wait(next));
            scene.now = next;
            let mut note = |actions: Vec<QueueAction>, now| {
                seen.extend(actions.into_iter().map(|action| (now, action)));
            };
            if !synced && scene.now >= end {
                synced = true;
                note(scene.sync(1), next);
            }
            if let Some((filler, _)) = running.filter(|(_, end)| *end <= next) {
                running = None;
                note(scene.done(filler), next);
                note(scene.request(filler, K0), next);
            }
        }
        hit += u64::from(scene.now.minus(begun) > us(10_720));
    }
    (scene.now.get() / tasks / 10_000, hit * 1_000 / tasks)
}

#[test]
fn waiting_sessions_of_any_number_cost_a_holder_at_most_the_budgets() {
    let scenes: [(&str, Vec<Nanos>, bool); 6] = [
        ("one of 50 ms", vec![ms(50)], true),
        ("eight of 5 ms", vec![ms(5); 8], true),
        ("sixteen of 20 ms", vec![ms(20); 16], true),
        ("one graph of 200 ms", vec![ms(200)], true),
        ("fifty of 1 ms", vec![ms(1); 50], true),
        ("eight unknown ones of 20 ms", vec![ms(20); 8], false),
    ];
    for (name, fillers, are_known) in scenes {
        let (ratio, hit) = slowdown(&fillers, are_known, 500);
        assert!(ratio <= 1_050, "{name}: {ratio} thousandths of the time alone");
        assert!(hit <= 10, "{name}: {hit} of 1,000 tasks took more than 7.2 % longer");
    }
}

/// A device that alternates between a holder and a filler in slices of 2 ms while both have work.
struct SlicedDevice {
    left: [Nanos; 2],
    turn: usize,
    of_turn: Nanos,
}

impl SlicedDevice {
    const SLICE: Nanos = ms(2);

    /// Lets the time pass. Returns whose work ended.
    fn pass(&mut self, span: Nanos) -> [bool; 2] {
        if self.left[self.turn] == Nanos::ZERO || self.of_turn == Nanos::ZERO {
            self.of_turn = Self::SLICE;
            if self.left[1 - self.turn] > Nanos::ZERO {
                self.turn = 1 - self.turn;
            }
        }
        self.of_turn = self.of_turn.minus(span);
        let before = self.left;
        self.left[self.turn] = self.left[self.turn].minus(span);
        [0, 1].map(|at| before[at] > Nanos::ZERO && self.left[at] == Nanos::ZERO)
    }
}

/// Simulates a holder with 2 ms of work and 8 ms of pause next to a filler whose kernels take `took`, on a device with
/// time slices. Returns which tasks took more than 7.2 % longer, and how many kernels went by age.
fn delayed_in_slices(took: Nanos, tasks: usize) -> (Vec<bool>, u64) {
    let mut scene = Scene::new(QueueRules::default().without_switches());
    scene.join(1, 0, profile(&[(ms(2), ms(8))]));
    scene.join(2, 5, profile(&[(took, Nanos::ZERO)]));
    scene.request(2, K0);
    let (mut hit, mut aged) = (Vec::new(), 0);
    let mut device = SlicedDevice { left: [Nanos::ZERO; 2], turn: 0, of_turn: Nanos::ZERO };
    for _ in 0..tasks {
        let begun = scene.now;
        let mut seen = scene.launch(1, K0);
        device.left[0] = ms(2);
        let mut next_task = Nanos::MAX;
        while scene.now < next_task {
            if let Some(grant) = granted(&seen, 2) {
                assert_eq!(grant.kind, GrantKind::Aged, "it fits no gap");
                scene.started(2, K0, grant);
                device.left[1] = took;
                aged += 1;
            }
            seen.clear();
            scene.alive(&[1, 2]);
            let next = scene.now.plus(us(100));
            seen.extend(scene.wait(next).into_iter().map(|(_, action)| action));
            let [holder, filler] = device.pass(us(100));
            if holder {
                seen.extend(scene.sync(1));
                next_task = scene.now.plus(ms(8));
            }
            if filler {
                seen.extend(scene.done(2));
                seen.extend(scene.request(2, K0));
            }
        }
        hit.push(scene.now.minus(begun) > us(10_720));
    }
    (hit, aged)
}

#[test]
fn kernels_that_span_several_tasks_delay_less_than_one_task_in_a_hundred() {
    for took in [ms(20), ms(50)] {
        let (hit, aged) = delayed_in_slices(took, 2_000);
        for tasks in [300, 1_000, 2_000] {
            let hit = hit[..tasks].iter().filter(|is_hit| **is_hit).count();
            assert!(hit * 100 < tasks, "{took}: {hit} of the first {tasks} tasks took longer");
        }
        assert!(aged >= 2, "{took}: {aged} kernels, and every wait ends");
    }
}

/// A profile of one kernel with needs.
fn profile_with_needs(took: Nanos, sm: u32, bandwidth: u32) -> TaskProfile {
    let mut profile = profile(&[(took, Nanos::ZERO)]);
    profile.kernel_mut(K0).unwrap().need = Some(ResourceNeed {
        sm_thousandths: sm,
        shared_thousandths: 0,
        bandwidth_thousandths: bandwidth,
    });
    profile
}

fn colocated() -> Scene {
    Scene::new(QueueRules {
        sharing: KernelSharing::Colocated { capacity: ResourceNeed::WHOLE },
        ..QueueRules::default()
    })
}

#[test]
fn an_offline_kernel_that_fits_runs_next_to_the_holders_kernels() {
    let mut scene = colocated();
    scene.join(1, 0, profile_with_needs(ms(1), 600, 300));
    scene.join(2, 5, profile_with_needs(us(100), 400, 700));
    scene.launch(1, K0);

    let grant = granted(&scene.request(2, K0), 2).unwrap();

    assert_eq!((grant.kind, grant.from, grant.launches), (GrantKind::Colocated, scene.now, 1));
}

#[test]
fn an_offline_kernel_that_does_not_fit_waits_until_enough_is_free() {
    for (sm, bandwidth) in [(401, 10), (10, 701)] {
        let mut scene = colocated();
        scene.join(1, 0, profile_with_needs(ms(1), 600, 300));
        scene.join(2, 5, profile_with_needs(us(100), sm, bandwidth));
        scene.launch(1, K0);
        assert_eq!(granted(&scene.request(2, K0), 2), None);

        scene.now = ms(1);
        let grant = granted(&scene.sync(1), 2).expect("the holder's kernel has ended");
        assert_eq!(grant.kind, GrantKind::Colocated);
    }
}

#[test]
fn resources_reserved_for_a_grant_are_free_again_when_it_expires() {
    let mut scene = colocated();
    scene.join(1, 0, profile_with_needs(ms(1), 100, 100));
    scene.join(2, 5, profile_with_needs(us(100), 900, 100));
    scene.join(3, 5, profile_with_needs(us(100), 900, 100));
    scene.request(2, K0);
    scene.request(3, K0);
    assert_eq!(scene.queue.counters().colocated, 1, "both together do not fit");
    scene.leave(2);

    assert_eq!(scene.queue.counters().colocated, 2);
}

#[test]
fn a_grant_for_a_whole_gap_takes_its_window_so_that_an_aged_launch_waits_for_it() {
    let rules = QueueRules { in_flight: 2, grant_max: ms(400), ..QueueRules::default() };
    let mut scene = Scene::new(rules);
    scene.join(1, 0, profile(&[(us(20), Nanos::ZERO)]));
    scene.join(2, 1, profile(&[(us(20), Nanos::ZERO)]));
    scene.join(3, 1, profile(&[(us(20), Nanos::ZERO)]));
    scene.request(2, K0);
    scene.request(3, K0);
    let seen = scene.wait(ms(90));
    let (given, lapse) = first(&seen, 2, GrantKind::Lapse).unwrap();
    assert_eq!(lapse.in_flight, 2, "it may fill the whole window without a request");
    scene.started(2, K0, lapse);
    scene.done(2);

    // The other's longest wait ends while that grant is valid.
    let longest = QueueRules::default().ageing.unwrap().wait_max;
    let until_over = given.plus(rules.grant_max).minus(ms(1));
    let mut meanwhile = Vec::new();
    while scene.now < until_over {
        scene.alive(&[1, 2, 3]);
        let step = scene.now.plus(ms(100)).min(until_over);
        meanwhile.extend(scene.wait(step));
    }
    assert!(scene.now > longest, "it has waited for long enough");
    assert_eq!(first(&meanwhile, 3, GrantKind::Aged), None, "three would be in flight");
    scene.alive(&[1, 2, 3]);
    let after = scene.wait(lapse.until.plus(ms(1)));
    assert!(first(&after, 3, GrantKind::Aged).is_some(), "it is served before all others");
}

#[test]
fn a_launch_without_its_late_grant_no_longer_waits() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 0, profile(&[(us(20), us(2_000))]));
    scene.join(2, 1, profile(&[(us(50), Nanos::ZERO)]));
    scene.request(2, K0);
    let actions = scene.launch(1, K0);
    assert!(granted(&actions, 2).is_some());

    // Its longest wait ended just then, and the holder's return ends the grant.
    scene.step(QueueEvent::Launch { session: SessionId::new(2), launch: 1, kernel: K0, count: 0 });
    scene.done(2);
    let actions = scene.launch(1, K0);

    assert_eq!(granted(&actions, 2), None, "no launch waits for one");
    assert_eq!(scene.queue.waiting().iter().count(), 0, "no launch waits");
}

#[test]
fn launches_that_crossed_a_new_role_are_charged_once_and_leave_no_lasting_debt() {
    let mut scene = Scene::new(QueueRules::default().without_switches());
    scene.join(2, 5, TaskProfile::default());
    scene.join(1, 0, profile(&[(ms(2), ms(8))]));
    scene.launch(1, K0);
    // A program that ran alone had these launches on the way when the other one joined.
    for _ in 0..12 {
        scene.launch(2, KernelIndex::UNKNOWN);
    }
    scene.request(2, KernelIndex::UNKNOWN);
    let mut aged_at = None;
    for task in 1..=1_000_u64 {
        scene.alive(&[1, 2]);
        scene.now = ms(10 * task - 8);
        scene.sync(1);
        if task == 4 {
            // They end one after another, within 40 ms.
            (0..12).for_each(|_| drop(scene.done(2)));
        }
        let seen = scene.wait(ms(10 * task));
        scene.now = ms(10 * task);
        if first(&seen, 2, GrantKind::Aged).is_some() {
            aged_at.get_or_insert(scene.now);
            break;
        }
        scene.launch(1, K0);
    }

    // 38 ms are repaid at 2 % of the time.
    assert!(aged_at.is_some_and(|at| at <= ms(2_500)), "{aged_at:?}");
}

#[test]
fn a_kernel_that_fits_no_gap_ages_although_other_threads_of_its_program_use_every_gap() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 0, profile(&[(ms(2), ms(8))]));
    scene.join(2, 5, profile(&[(ms(1), Nanos::ZERO), (ms(40), Nanos::ZERO)]));
    // It delays six tasks, and so many are saved for in 7.5 s.
    scene.request(2, K1);
    let (mut is_waiting, mut short) = (false, 0);
    for task in 1..=1_000 {
        scene.alive(&[1, 2]);
        scene.launch(1, K0);
        let mut seen = scene.wait(ms(10 * task - 8));
        let now = scene.now;
        let mut add = |actions: Vec<QueueAction>| {
            seen.extend(actions.into_iter().map(|action| (now, action)));
        };
        add(scene.sync(1));
        if !std::mem::replace(&mut is_waiting, true) {
            add(scene.request(2, K0));
        }
        seen.extend(scene.wait(ms(10 * task - 7)));
        if let Some((_, grant)) = first(&seen, 2, GrantKind::Gap) {
            scene.started(2, K0, grant);
            (is_waiting, short) = (false, short + 1);
        }
        seen.extend(scene.wait(ms(10 * task - 6)));
        scene.done(2);
        seen.extend(scene.wait(ms(10 * task)));
        if first(&seen, 2, GrantKind::Aged).is_some() {
            assert!(task > 700 && short * 10 > task * 9, "{short} short ones in {task} gaps");
            return;
        }
    }
    panic!("it was never granted, next to {short} short ones");
}

/// Simulates a holder that never pauses next to fillers with unknown kernels of this time, which report the ends of their
/// kernels or don't. Returns for how long others ran next to the holder, and when each kernel went by age.
fn unknown_kernels(
    took: Nanos,
    fillers: u64,
    is_reported: bool,
    span: Nanos,
) -> (Nanos, Vec<Nanos>) {
    let mut scene = Scene::new(QueueRules::default().without_switches());
    scene.join(1, 0, profile(&[(ms(5), Nanos::ZERO)]));
    let sessions: Vec<u64> = (1..=fillers + 1).collect();
    for filler in &sessions[1..] {
        scene.join(*filler, 5, TaskProfile::default());
        scene.request(*filler, KernelIndex::UNKNOWN);
    }
    let (mut busy, mut aged) = (Nanos::ZERO, Vec::new());
    let mut running: Vec<(u64, Nanos)> = Vec::new();
    while scene.now < span {
        scene.alive(&sessions);
        let now = scene.now;
        let mut seen = scene.launch(1, K0);
        seen.extend(scene.wait(now.plus(ms(5))).into_iter().map(|(_, action)| action));
        busy = busy.plus(if running.is_empty() { Nanos::ZERO } else { ms(5) });
        let ended: Vec<u64> = running
            .iter()
            .filter(|(_, end)| *end <= scene.now)
            .map(|(filler, _)| *filler)
            .collect();
        running.retain(|(_, end)| *end > scene.now);
        for filler in ended.into_iter().filter(|_| is_reported) {
            seen.extend(scene.done(filler));
            seen.extend(scene.request(filler, KernelIndex::UNKNOWN));
        }
        for filler in &sessions[1..] {
            if let Some(grant) = granted(&seen, *filler) {
                scene.started(*filler, KernelIndex::UNKNOWN, grant);
                running.push((*filler, scene.now.plus(took)));
                aged.push(scene.now);
            }
        }
    }
    (busy, aged)
}

#[test]
fn unknown_kernels_that_take_longer_than_an_end_is_expected_cost_two_percent_and_one_of_them() {
    let took = ms(1_500);
    let span = Nanos::from_millis(240_000);

    let (busy, aged) = unknown_kernels(took, 2, true, span);

    let cost = QueueRules::default().ageing.unwrap().cost_thousandths;
    let allowed = span.thousandths(cost).plus(took);
    assert!(busy <= allowed, "{busy} of {allowed}, in {} kernels", aged.len());
    assert!(aged.len() >= 3, "each wait ends: {aged:?}");
}

#[test]
fn a_kernel_whose_end_is_never_reported_delays_other_waits_but_not_forever() {
    let (_, aged) = unknown_kernels(ms(5), 3, false, Nanos::from_millis(1_000_000));

    assert_eq!(aged.len(), 3, "{aged:?}");
    // Six seconds without an end are repaid at 2 % of the time.
    assert!(aged[1].minus(aged[0]) > Nanos::from_millis(200_000), "{aged:?}");
    assert!(aged[2] < Nanos::from_millis(700_000), "{aged:?}");
}

#[test]
fn gaps_are_filled_while_the_end_of_an_aged_kernel_is_overdue() {
    let mut scene = Scene::new(QueueRules::default().without_switches());
    scene.join(1, 0, profile(&[(ms(2), ms(8))]));
    scene.join(2, 5, TaskProfile::default());
    scene.join(3, 6, profile(&[(ms(1), Nanos::ZERO)]));
    scene.launch(1, K0);
    scene.request(2, KernelIndex::UNKNOWN);
    let seen = scene.wait(ms(150));
    let (_, grant) = first(&seen, 2, GrantKind::Aged).expect("it does not wait forever");
    scene.started(2, KernelIndex::UNKNOWN, grant);
    let fill = |scene: &mut Scene, task: u64| {
        scene.now = ms(200 + 9 * task);
        scene.alive(&[1, 2, 3]);
        let mut actions = scene.launch(1, K0);
        actions.extend(scene.request(3, K0));
        scene.now = ms(202 + 9 * task);
        actions.extend(scene.sync(1));
        actions.extend(scene.wait(ms(203 + 9 * task)).into_iter().map(|(_, action)| action));
        granted(&actions, 3).map(|grant| grant.kind)
    };
    assert_eq!(fill(&mut scene, 0), None, "its place is taken");

    let later = (1..130).find(|task| fill(&mut scene, *task).is_some());

    assert!(later.is_some_and(|task| (100..115).contains(&task)), "{later:?}");
}

#[test]
fn a_kernel_whose_end_is_seen_late_costs_what_its_sample_shows() {
    use tessera_kernel_queue::KernelSample;
    for (sampled, soon) in [(true, true), (false, false)] {
        let mut scene = Scene::new(QueueRules::default().without_switches());
        scene.join(1, 0, profile(&[(us(500), Nanos::ZERO)]));
        scene.join(2, 5, profile(&[(ms(2), Nanos::ZERO)]));
        scene.join(3, 5, profile(&[(ms(2), Nanos::ZERO)]));
        scene.request(2, K0);
        let (mut given, mut next) = (None, None);
        while scene.now < ms(20_000) && next.is_none() {
            scene.alive(&[1, 2, 3]);
            let mut seen = scene.launch(1, K0);
            let until = scene.now.plus(us(500));
            seen.extend(scene.wait(until).into_iter().map(|(_, action)| action));
            if let Some(grant) = granted(&seen, 2) {
                scene.started(2, K0, grant);
                given = Some(scene.now);
                scene.request(3, K0);
            }
            // The program looks at it three seconds after its launch.
            if given.is_some_and(|given| given.plus(ms(3_000)) == scene.now) {
                if sampled {
                    let sample = KernelSample { kernel: K0, took: ms(2), before: None, gap: None };
                    scene.step(QueueEvent::Sample { session: SessionId::new(2), sample });
                }
                seen.extend(scene.done(2));
            }
            next = granted(&seen, 3).map(|_| scene.now);
        }
        assert_eq!(next.is_some(), soon, "{given:?} {next:?}");
    }
}

#[test]
fn launches_that_crossed_a_new_role_delay_no_wait_although_nobody_reports_their_ends() {
    let mut scene = Scene::new(QueueRules::default().without_switches());
    scene.join(2, 5, TaskProfile::default());
    scene.join(1, 0, profile(&[(ms(5), Nanos::ZERO)]));
    scene.join(3, 5, profile(&[(ms(1), Nanos::ZERO)]));
    scene.launch(1, K0);
    let session = SessionId::new(2);
    let crossed = QueueEvent::Launch { session, launch: 1, kernel: KernelIndex::UNKNOWN, count: 2 };
    scene.step(crossed);
    scene.request(3, K0);

    let mut seen = Vec::new();
    while scene.now < ms(1_500) {
        scene.alive(&[1, 2, 3]);
        scene.launch(1, K0);
        let until = scene.now.plus(ms(5));
        seen.extend(scene.wait(until));
    }

    let (at, _) = first(&seen, 3, GrantKind::Aged).expect("its wait ends");
    assert!((ms(1_000)..ms(1_100)).contains(&at), "{at}");
}
