//! Kernels that run at the same time (MMK's admission): which fit next to each other, and at what cost.

#[path = "support/scene.rs"]
mod scene;

use std::collections::BTreeMap;

use proptest::prelude::*;
use scene::{K0, K1, Scene, granted, kernel_id, ms, profile, us};
use tessera_kernel_queue::{
    Grant, GrantKind, Join, KernelIndex, KernelSharing, Nanos, QueueAction, QueueEvent, QueueRules,
    ResourceNeed, SessionId, TaskKey, TaskProfile,
};
use tessera_model::spec::{Class, Priority};

const NONE: Nanos = Nanos::ZERO;

const fn sms(thousandths: u32) -> ResourceNeed {
    ResourceNeed { sm_thousandths: thousandths, ..ResourceNeed::NONE }
}

fn over_mps() -> Scene {
    Scene::new(QueueRules::default().over_mps())
}

/// A session whose kernels need this much of its part of the slice.
fn join(
    scene: &mut Scene,
    session: u64,
    (priority, share): (u8, u32),
    profile: TaskProfile,
    needs: &[ResourceNeed],
) {
    let task = TaskKey::new(format!("task {session}")).unwrap();
    scene.queue.add_profile(&task, profile);
    let session = SessionId::new(session);
    scene.step(QueueEvent::Join(Join {
        session,
        task,
        priority: Priority::try_from(priority).unwrap(),
        class: Class::Offline,
        share_thousandths: share,
        exclusive: None,
    }));
    for (number, need) in needs.iter().enumerate() {
        scene.step(QueueEvent::Define { session, kernel: Box::new(kernel_id(number)) });
        let kernel = KernelIndex::new(u16::try_from(number).unwrap());
        scene.step(QueueEvent::Need { session, kernel, need: *need });
    }
}

/// A holder and a filler of one kernel each, which need this much of the slice.
fn two(holder: u32, filler: u32) -> Scene {
    let mut scene = over_mps();
    join(&mut scene, 1, (0, 1_000), profile(&[(ms(1), NONE)]), &[sms(holder)]);
    join(&mut scene, 2, (5, 1_000), profile(&[(us(100), NONE)]), &[sms(filler)]);
    scene
}

fn is_colocated(actions: &[QueueAction], session: u64) -> bool {
    granted(actions, session).is_some_and(|grant| grant.kind == GrantKind::Colocated)
}

#[test]
fn a_small_kernel_is_admitted_next_to_another_as_soon_as_both_needs_are_known() {
    let mut scene = over_mps();
    join(&mut scene, 1, (0, 1_000), profile(&[(ms(1), NONE)]), &[sms(500)]);
    join(&mut scene, 2, (5, 1_000), profile(&[(us(100), NONE)]), &[]);
    scene.launch(1, K0);
    assert!(!is_colocated(&scene.request(2, K0), 2), "its need is not known");

    let session = SessionId::new(2);
    let actions = scene.step(QueueEvent::Need { session, kernel: K0, need: sms(500) });

    assert!(is_colocated(&actions, 2), "{actions:?}");
    assert_eq!(scene.queue.counters().colocated, 1);
}

#[test]
fn a_kernel_that_does_not_fit_or_a_partner_with_unknown_needs_is_admitted_next_to_nothing() {
    let mut scene = two(501, 500);
    scene.launch(1, K0);
    assert!(!is_colocated(&scene.request(2, K0), 2));

    let mut scene = over_mps();
    join(&mut scene, 1, (0, 1_000), profile(&[(ms(1), NONE)]), &[]);
    join(&mut scene, 2, (5, 1_000), profile(&[(us(100), NONE)]), &[sms(1)]);
    scene.launch(1, K0);
    assert!(!is_colocated(&scene.request(2, K0), 2), "the holder's may need all");
}

#[test]
fn a_kernel_whose_time_is_unknown_is_not_admitted() {
    let mut scene = over_mps();
    join(&mut scene, 1, (0, 1_000), profile(&[(ms(1), NONE)]), &[sms(1)]);
    join(&mut scene, 2, (5, 1_000), TaskProfile::default(), &[sms(1)]);
    scene.launch(1, K0);

    assert!(!is_colocated(&scene.request(2, K0), 2));
}

#[test]
fn without_mps_nothing_is_admitted_next_to_a_kernel() {
    let mut scene = Scene::new(QueueRules::default());
    join(&mut scene, 1, (0, 1_000), profile(&[(ms(1), NONE)]), &[sms(1)]);
    join(&mut scene, 2, (5, 1_000), profile(&[(us(100), NONE)]), &[sms(1)]);
    scene.launch(1, K0);

    assert_eq!(granted(&scene.request(2, K0), 2), None);
    assert_eq!(scene.queue.counters().colocated, 0);
}

#[test]
fn mps_beneath_changes_interleaving_and_no_other_choice_of_the_operator() {
    let rules = QueueRules::default().over_mps();
    assert_eq!(rules.sharing, KernelSharing::Colocated { capacity: ResourceNeed::WHOLE });
    assert_eq!(rules.switch, NONE);

    let exclusive = QueueRules { sharing: KernelSharing::Exclusive, ..QueueRules::default() };
    assert_eq!(exclusive.over_mps().sharing, KernelSharing::Exclusive);
}

#[test]
fn nothing_is_admitted_next_to_kernels_that_are_measured() {
    let mut scene = over_mps();
    join(&mut scene, 1, (0, 1_000), TaskProfile::default(), &[sms(1)]);
    join(&mut scene, 2, (5, 1_000), profile(&[(us(100), NONE)]), &[sms(1)]);
    scene.launch(1, K0);

    assert!(!is_colocated(&scene.request(2, K0), 2), "the times would be those of both");
}

#[test]
fn kernels_that_fill_their_clients_parts_run_next_to_each_other_if_the_parts_fit() {
    for (shares, fits) in [([500, 500], true), ([600, 500], false), ([1_000, 10], false)] {
        let mut scene = over_mps();
        join(&mut scene, 1, (0, shares[0]), profile(&[(ms(1), NONE)]), &[sms(1_000)]);
        join(&mut scene, 2, (5, shares[1]), profile(&[(us(100), NONE)]), &[sms(1_000)]);
        scene.launch(1, K0);

        assert_eq!(is_colocated(&scene.request(2, K0), 2), fits, "{shares:?}");
    }
}

#[test]
fn a_process_counts_by_its_largest_kernel_and_with_several_streams_by_their_sum() {
    let mut scene = two(300, 500);
    (0..3).for_each(|_| drop(scene.launch(1, K0)));
    assert!(is_colocated(&scene.request(2, K0), 2), "they run one after another");

    let mut scene = two(300, 500);
    scene.step(QueueEvent::Streams { session: SessionId::new(1), streams: 2 });
    (0..3).for_each(|_| drop(scene.launch(1, K0)));
    assert!(!is_colocated(&scene.request(2, K0), 2), "they may run at the same time");
    assert!(is_colocated(&scene.sync(1), 2), "they have ended");
}

#[test]
fn a_filler_has_one_kernel_at_a_time_next_to_others() {
    let mut scene = two(300, 100);
    scene.launch(1, K0);
    let grant = granted(&scene.request(2, K0), 2).unwrap();
    assert_eq!((grant.launches, grant.in_flight), (1, 1));
}

#[test]
fn a_kernel_that_is_in_the_way_of_a_later_one_is_paid_by_the_budget_of_fills() {
    let holder = [(ms(1), NONE), (ms(1), NONE)];
    let colocate = |later: KernelIndex| {
        let mut scene = over_mps();
        join(&mut scene, 1, (0, 1_000), profile(&holder), &[sms(300), sms(1_000)]);
        join(&mut scene, 2, (5, 1_000), profile(&[(ms(20), NONE)]), &[sms(500)]);
        scene.launch(1, K0);
        let grant = granted(&scene.request(2, K0), 2).unwrap();
        scene.started(2, K0, grant);
        scene.now = ms(1);
        scene.sync(1);
        scene.launch(1, later);
        scene.now = ms(20);
        scene.done(2);
        scene.sync(1);
        scene.launch(1, K0);
        let again = is_colocated(&scene.request(2, K0), 2);
        (scene.queue.counters().overshoots, again)
    };

    assert_eq!(colocate(K0), (0, true), "the later one fits as well and costs nothing");
    assert_eq!(colocate(K1), (1, false), "19 ms are more than is saved for fills");
}

/// One step of a random scene.
#[derive(Clone, Copy, Debug)]
enum Op {
    Launch(u64, u16),
    Request(u64, u16),
    Done(u64),
    Sync(u64),
    Pass(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (1_u64..=4, 0_u16..3).prop_map(|(session, kernel)| Op::Launch(session, kernel)),
        4 => (1_u64..=4, 0_u16..3).prop_map(|(session, kernel)| Op::Request(session, kernel)),
        2 => (1_u64..=4).prop_map(Op::Done),
        1 => (1_u64..=4).prop_map(Op::Sync),
        2 => (0_u64..400).prop_map(Op::Pass),
    ]
}

/// What is known outside of the queue: needs, kernels in flight and grants, by session.
#[derive(Default)]
struct Observer {
    needs: BTreeMap<u64, Vec<ResourceNeed>>,
    running: BTreeMap<u64, Vec<ResourceNeed>>,
    waiting: BTreeMap<u64, u16>,
    grants: BTreeMap<u64, Grant>,
}

impl Observer {
    fn need(&self, session: u64, kernel: u16) -> ResourceNeed {
        self.needs[&session][usize::from(kernel)]
    }

    fn run(&mut self, session: u64, kernel: u16) {
        let need = self.need(session, kernel);
        self.running.entry(session).or_default().push(need);
    }

    /// Returns the kernels of a session that are in flight, or granted next to others.
    fn in_flight(&self, session: u64) -> impl Iterator<Item = ResourceNeed> {
        let grant = self.grants.get(&session).filter(|g| g.kind == GrantKind::Colocated);
        let granted = grant.map(|_| self.need(session, self.waiting[&session]));
        self.running.get(&session).into_iter().flatten().copied().chain(granted)
    }

    /// A kernel that is admitted fits next to each kernel of each other session that is in flight or
    /// admitted, and all sessions together fit.
    fn check(&mut self, actions: &[QueueAction], now: Nanos) -> Result<(), TestCaseError> {
        self.grants.retain(|_, grant| grant.until > now);
        for action in actions {
            match action {
                QueueAction::Grant { session, grant } => {
                    self.grants.insert(session.get(), *grant);
                    if grant.kind == GrantKind::Colocated {
                        self.check_all(session.get())?;
                    }
                }
                QueueAction::Revoke { session, .. } => {
                    self.grants.remove(&session.get());
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_all(&self, admitted: u64) -> Result<(), TestCaseError> {
        let need = self.need(admitted, self.waiting[&admitted]);
        let mut sum = ResourceNeed::NONE;
        for session in 1..=4 {
            let mut largest = ResourceNeed::NONE;
            for theirs in self.in_flight(session) {
                largest = largest.max_of_each(theirs);
                let fits = session == admitted || need.plus(theirs).fits(&ResourceNeed::WHOLE);
                prop_assert!(fits, "{need:?} and {theirs:?} are more than the slice");
            }
            sum = sum.plus(largest);
        }
        prop_assert!(sum.fits(&ResourceNeed::WHOLE), "{sum:?} is more than the slice");
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn kernels_that_together_need_more_than_the_slice_are_never_next_to_each_other(
        needs in prop::collection::vec((1_u32..=1_000, 0_u32..=1_000), 12),
        shares in prop::collection::vec(prop_oneof![Just(1_000_u32), 100_u32..1_000], 4),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut scene = over_mps();
        let times = [(us(50), NONE), (us(200), NONE), (ms(1), NONE)];
        let mut observer = Observer::default();
        for session in 1..=4_u64 {
            let at = usize::try_from(session - 1).unwrap();
            let own: Vec<_> = needs[3 * at..3 * at + 3]
                .iter()
                .map(|(sm, shared)| ResourceNeed {
                    sm_thousandths: *sm,
                    shared_thousandths: *shared,
                    bandwidth_thousandths: 0,
                })
                .collect();
            let priority = if session == 1 { 0 } else { 5 };
            join(&mut scene, session, (priority, shares[at]), profile(&times), &own);
            let of_slice = own.into_iter().map(|need| need.of_share(shares[at])).collect();
            observer.needs.insert(session, of_slice);
        }
        for op in ops {
            let actions = match op {
                Op::Launch(session, kernel) if session == 1 => {
                    observer.run(session, kernel);
                    scene.launch(session, KernelIndex::new(kernel))
                }
                Op::Launch(session, _) => {
                    let Some(grant) = observer.grants.remove(&session) else { continue };
                    let Some(kernel) = observer.waiting.remove(&session) else { continue };
                    observer.run(session, kernel);
                    scene.started(session, KernelIndex::new(kernel), grant)
                }
                Op::Request(session, kernel) => {
                    if session == 1 || observer.waiting.contains_key(&session) {
                        continue;
                    }
                    observer.waiting.insert(session, kernel);
                    scene.request(session, KernelIndex::new(kernel))
                }
                Op::Done(session) => {
                    if let Some(running) = observer.running.get_mut(&session)
                        && !running.is_empty()
                    {
                        running.remove(0);
                    }
                    scene.done(session)
                }
                Op::Sync(session) => {
                    observer.running.remove(&session);
                    scene.sync(session)
                }
                Op::Pass(micros) => {
                    scene.now = scene.now.plus(us(micros));
                    scene.step(QueueEvent::Tick)
                }
            };
            observer.check(&actions, scene.now)?;
        }
    }
}
