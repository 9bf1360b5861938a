//! The roles of sessions, and how they change when sessions join, leave or die.

#[path = "support/scene.rs"]
mod scene;

use scene::{K0, Scene, first, granted, kernel_id, ms, profile, role_sent, us};
use tessera_kernel_queue::limits::SESSIONS_MAX;
use tessera_kernel_queue::measure::{STAGE_LAUNCHES_MAX, STAGE_TIME_MAX};
use tessera_kernel_queue::{
    GrantKind, Join, KernelIndex, KernelSample, KernelSharing, Nanos, QueueAction, QueueEvent,
    QueueRefusal, QueueRules, Role, SessionId, TaskKey, TaskProfile,
};
use tessera_model::AttemptId;
use tessera_model::spec::{Class, Priority};

fn gaps() -> TaskProfile {
    profile(&[(us(50), ms(2))])
}

fn short() -> TaskProfile {
    profile(&[(us(200), Nanos::ZERO)])
}

#[test]
fn a_session_without_a_contender_is_free() {
    let mut scene = Scene::new(QueueRules::default());

    assert_eq!(role_sent(&scene.join(1, 5, gaps()), 1), Some(Role::Free));
}

#[test]
fn a_new_session_of_higher_priority_takes_over_at_the_next_kernel() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 5, gaps());
    scene.launch(1, K0);

    let actions = scene.join(2, 0, gaps());

    assert_eq!(role_sent(&actions, 1), Some(Role::Fill));
    assert_eq!(role_sent(&actions, 2), Some(Role::Hold));
    // Its next kernel is withheld until the new session leaves a gap.
    assert_eq!(granted(&scene.request(1, K0), 1), None);
    assert!(granted(&scene.launch(2, K0), 1).is_some());
}

#[test]
fn a_new_session_of_higher_priority_ends_valid_grants() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 3, gaps());
    scene.join(2, 5, short());
    scene.request(2, K0);
    let grant = granted(&scene.launch(1, K0), 2).unwrap();

    let actions = scene.join(3, 0, gaps());

    let revoke = QueueAction::Revoke { session: SessionId::new(2), grant: grant.number };
    assert!(actions.contains(&revoke), "{actions:?}");
    let raised = actions
        .iter()
        .any(|action| matches!(action, QueueAction::Gate { epoch } if *epoch > grant.gate.epoch));
    assert!(raised, "{actions:?}");
}

#[test]
fn a_new_session_of_lower_priority_fills() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 2, gaps());

    let actions = scene.join(2, 7, short());

    assert_eq!(role_sent(&actions, 1), Some(Role::Hold));
    assert_eq!(role_sent(&actions, 2), Some(Role::Fill));
}

#[test]
fn sessions_of_equal_priority_interleave_without_requests() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 4, gaps());
    scene.join(2, 4, gaps());

    assert_eq!((scene.role(1), scene.role(2)), (Some(Role::Hold), Some(Role::Hold)));
    for session in [1, 2, 1, 2] {
        assert!(scene.launch(session, K0).is_empty());
    }
}

#[test]
fn sessions_of_equal_priority_alternate_by_device_time_if_the_rules_have_a_length() {
    let most = ms(5);
    let mut scene = Scene::new(QueueRules { alternate_after: Some(most), ..QueueRules::default() });
    let kernels = [ms(1), us(250)];
    for (session, took) in (1..).zip(kernels) {
        scene.join(session, 3, profile(&[(took, Nanos::ZERO)]));
    }
    let (mut ran, mut changes, mut last) = ([Nanos::ZERO; 2], 0, 0);
    for _ in 0..400 {
        scene.alive(&[1, 2]);
        let holder = usize::from(scene.role(2) == Some(Role::Hold));
        let (own, other) = if holder == 0 { (1, 2) } else { (2, 1) };
        assert_eq!([scene.role(own), scene.role(other)], [Some(Role::Hold), Some(Role::Fill)]);
        if scene.queue.waiting().is_empty() {
            scene.request(other, K0);
        }
        changes += u32::from(std::mem::replace(&mut last, own) != own);
        scene.launch(own, K0);
        scene.now = scene.now.plus(kernels[holder]);
        scene.sync(own);
        ran[holder] = ran[holder].plus(kernels[holder]);
        let apart = ran[0].max(ran[1]).minus(ran[0].min(ran[1]));
        assert!(apart <= most.plus(ms(1)), "{ran:?}");
    }
    assert!(changes >= 10, "{changes}");
}

#[test]
fn a_gap_of_equal_holders_ends_with_the_first_launch_of_one() {
    let mut scene = Scene::new(QueueRules::default().without_switches());
    scene.join(1, 4, profile(&[(us(50), ms(4))]));
    scene.join(2, 4, profile(&[(us(50), ms(1))]));
    scene.join(3, 9, short());
    scene.request(3, K0);
    assert_eq!(granted(&scene.launch(1, K0), 3), None, "the other has not launched yet");

    let grant = granted(&scene.launch(2, K0), 3).unwrap();

    assert_eq!((grant.from, grant.until), (us(100), us(1_100)));
}

#[test]
fn when_the_holder_leaves_the_next_session_holds_and_its_waiting_launch_proceeds() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 0, gaps());
    scene.join(2, 5, short());
    scene.join(3, 6, short());
    scene.request(2, K0);

    let actions = scene.leave(1);

    assert_eq!(role_sent(&actions, 2), Some(Role::Hold));
    assert_eq!(role_sent(&actions, 3), None, "it is a filler as before");
    assert!(scene.queue.waiting().is_empty());
}

#[test]
fn in_the_exclusive_mode_one_task_runs_until_it_leaves() {
    let mut scene =
        Scene::new(QueueRules { sharing: KernelSharing::Exclusive, ..QueueRules::default() });
    scene.join(1, 5, gaps());
    scene.join(2, 9, short());
    scene.join(3, 0, short());
    assert_eq!(scene.role(1), Some(Role::Hold), "no session takes over from a running task");
    scene.launch(1, K0);
    scene.request(2, K0);
    scene.request(3, K0);

    let seen = scene.wait(ms(900));
    let grants = seen.iter().filter(|(_, action)| matches!(action, QueueAction::Grant { .. }));
    assert_eq!(grants.count(), 0, "no session fills its gaps, however long they are");

    let actions = scene.leave(1);
    assert_eq!(
        role_sent(&actions, 3),
        Some(Role::Hold),
        "the waiting session of highest priority is next"
    );
    assert_eq!(scene.role(2), Some(Role::Fill));
}

fn attempt() -> AttemptId {
    "att_00000000000040008000000000000001".parse().unwrap()
}

/// Counts grants.
fn grants(seen: &[(Nanos, QueueAction)]) -> usize {
    seen.iter().filter(|(_, action)| matches!(action, QueueAction::Grant { .. })).count()
}

#[test]
fn an_attempt_in_exclusive_mode_has_the_slice_until_its_last_process_ends() {
    let mut scene = Scene::new(QueueRules::default());
    let alone = Some(attempt());
    scene.join_of(1, 5, gaps(), alone);
    scene.join(2, 5, short());
    scene.join(3, 0, short());
    scene.join_of(4, 5, gaps(), alone);
    let roles = [1, 2, 3, 4].map(|session| scene.role(session).unwrap());
    assert_eq!(roles, [Role::Hold, Role::Fill, Role::Fill, Role::Hold], "also its second process");
    scene.launch(1, K0);
    scene.request(2, K0);
    scene.request(3, K0);

    assert_eq!(grants(&scene.wait(ms(900))), 0, "nobody fills its gaps, however long they are");
    scene.leave(1);
    assert_eq!(scene.role(4), Some(Role::Hold));

    let actions = scene.leave(4);
    assert_eq!(role_sent(&actions, 3), Some(Role::Hold), "then the best priority holds");
    assert_eq!(scene.role(2), Some(Role::Fill));
}

#[test]
fn an_attempt_in_exclusive_mode_waits_for_all_that_go_before_it_and_runs_in_no_gap() {
    let mut scene = Scene::new(QueueRules::default());
    let alone = Some(attempt());
    scene.join(1, 5, gaps());
    scene.join_of(2, 5, short(), alone);
    scene.join(3, 5, short());
    let roles = [1, 2, 3].map(|session| scene.role(session).unwrap());
    assert_eq!(roles, [Role::Hold, Role::Fill, Role::Fill], "a later equal waits for it");
    scene.launch(1, K0);
    scene.now = us(60);
    scene.sync(1);
    scene.request(2, K0);

    assert_eq!(grants(&scene.wait(ms(900))), 0, "neither in a gap, nor by age, nor in an absence");
    scene.request(3, K0);
    let seen = scene.wait(ms(910));
    assert!(grants(&seen) > 0, "others fill the gaps: {seen:?}");

    let actions = scene.leave(1);
    assert_eq!(role_sent(&actions, 2), Some(Role::Hold), "the slice is its own now");
    assert_eq!(scene.role(3), Some(Role::Fill));
    assert_eq!(grants(&scene.wait(ms(1_800))), 0);
}

#[test]
fn fillers_continue_within_ten_milliseconds_of_an_idle_holders_last_message() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 0, profile(&[(us(50), us(300))]));
    scene.join(2, 5, profile(&[(ms(2), Nanos::ZERO)]));
    scene.launch(1, K0);
    scene.now = us(60);
    scene.sync(1);
    scene.request(2, K0);

    // From now on the holder is stopped, and its connection does not report that.
    let seen = scene.wait(ms(20));

    let (at, _) = first(&seen, 2, GrantKind::Lapse).expect("a grant after the silence");
    assert!(at <= ms(10), "{at}");
}

#[test]
fn a_longer_kernel_waits_for_a_longer_absence() {
    let mut scene = Scene::new(QueueRules { ageing: None, ..QueueRules::default() });
    scene.join(1, 0, profile(&[(us(50), ms(8))]));
    scene.join(2, 5, profile(&[(ms(200), Nanos::ZERO)]));
    scene.launch(1, K0);
    scene.now = us(60);
    scene.sync(1);
    scene.request(2, K0);

    let seen = scene.wait(ms(950));

    let (at, _) = first(&seen, 2, GrantKind::Lapse).expect("a grant in the end");
    assert!(at >= ms(800), "{at}");
}

#[test]
fn a_holder_whose_kernel_end_was_not_observed_is_not_idle() {
    // Unknown, and measured at a fifteenth of what it takes now.
    for (holder, is_known) in [(TaskProfile::default(), false), (profile(&[(ms(2), ms(8))]), true)]
    {
        let mut scene = Scene::new(QueueRules { ageing: None, ..QueueRules::default() });
        scene.join(1, 0, holder);
        scene.join(2, 5, profile(&[(us(500), Nanos::ZERO)]));
        let session = SessionId::new(1);
        scene.step(QueueEvent::Define { session, kernel: Box::new(scene::kernel_id(0)) });
        let mut amid = 0;
        for _ in 0..50 {
            scene.alive(&[1, 2]);
            scene.launch(1, K0);
            let begun = scene.now;
            scene.request(2, K0);
            let seen = scene.wait(begun.plus(ms(30)));
            scene.now = begun.plus(ms(30));
            amid += u32::from(seen.iter().any(|(_, a)| matches!(a, QueueAction::Grant { .. })));
            scene.sync(1);
            scene.wait(begun.plus(ms(38)));
            scene.now = begun.plus(ms(38));
        }
        // A wrong profile has an effect once. After that its predicted ends are not used until
        // sixteen were right.
        assert!(amid <= u32::from(is_known), "{amid} times, known: {is_known}");
    }
}

#[test]
fn a_silent_session_is_dropped_and_the_next_becomes_the_holder() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 0, gaps());
    scene.join(2, 5, short());
    scene.now = ms(600);
    scene.alive(&[2]);

    let seen = scene.wait(ms(1_100));

    let dropped = QueueAction::Dropped { session: SessionId::new(1) };
    assert!(seen.contains(&(ms(1_000), dropped)), "{seen:?}");
    assert_eq!(scene.role(2), Some(Role::Free));
}

#[test]
fn a_dead_fillers_grant_expires_and_the_next_filler_gets_the_gap() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 0, profile(&[(us(50), ms(50))]));
    scene.join(2, 5, short());
    scene.join(3, 6, short());
    scene.request(2, K0);
    scene.request(3, K0);
    let grant = granted(&scene.launch(1, K0), 2).unwrap();
    assert_eq!(granted(&scene.sync(1), 3), None, "one grant at a time covers the gap");

    // The filler dies with the grant: no more messages arrive, not even the end of its connection.
    let seen = scene.wait(ms(7));

    assert!(grant.until <= grant.from.plus(ms(5)));
    let next = seen.iter().find_map(|(at, action)| match action {
        QueueAction::Grant { session, .. } => Some((*at, session.get())),
        _ => None,
    });
    // Its launch is in the queue again and has the higher priority. It is granted repeatedly until
    // its session is dropped, but never for longer than a grant.
    assert_eq!(next, Some((grant.until, 2)));
    let actions = scene.leave(2);
    assert!(granted(&actions, 3).is_some(), "{actions:?}");
}

#[test]
fn an_unknown_session_is_refused() {
    let mut scene = Scene::new(QueueRules::default());
    let session = SessionId::new(7);

    let actions = scene.step(QueueEvent::Alive { session });

    assert_eq!(actions, [QueueAction::Refuse { session, why: QueueRefusal::UnknownSession }]);
}

#[test]
fn a_number_is_used_once_and_the_sessions_of_a_slice_are_limited() {
    let mut scene = Scene::new(QueueRules::default());
    for session in 0..u64::try_from(SESSIONS_MAX).unwrap() {
        scene.join(session, 5, short());
    }
    let why = |actions: Vec<QueueAction>| match actions[..] {
        [QueueAction::Refuse { why, .. }] => Some(why),
        _ => None,
    };

    assert_eq!(why(scene.join(3, 5, short())), Some(QueueRefusal::SessionTwice));
    assert_eq!(why(scene.join(1_000, 5, short())), Some(QueueRefusal::SessionsFull));
    scene.leave(3);
    assert_eq!(why(scene.join(1_000, 5, short())), None);
}

#[test]
fn while_an_attempt_of_higher_priority_is_expected_a_lone_program_has_a_limited_window() {
    let rules = QueueRules::default();
    let mut scene = Scene::new(rules);
    scene.join(1, 5, short());

    let actions = scene.queue.set_expected(Some(Priority::try_from(0).unwrap()), us(1)).to_vec();
    assert_eq!(role_sent(&actions, 1), Some(Role::Fill));

    let grant = granted(&scene.request(1, K0), 1).unwrap();
    assert_eq!(grant.kind, GrantKind::Lapse);
    assert_eq!(grant.in_flight, rules.in_flight_while_expected);
    scene.started(1, K0, grant);

    // The attempt begins: grants end, and at most the window's kernels still run.
    let actions = scene.join(2, 0, gaps());
    assert_eq!(role_sent(&actions, 2), Some(Role::Hold));
    assert!(actions.iter().any(|action| matches!(action, QueueAction::Gate { .. })), "{actions:?}");
}

#[test]
fn an_expected_attempt_of_the_same_or_a_lower_priority_changes_nothing() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 5, short());

    for expected in [5, 9] {
        let expected = Some(Priority::try_from(expected).unwrap());
        assert_eq!(scene.queue.set_expected(expected, us(1)), []);
        assert_eq!(scene.role(1), Some(Role::Free));
    }
}

#[test]
fn a_program_is_free_again_when_no_attempt_is_expected_any_more() {
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 5, short());
    scene.queue.set_expected(Some(Priority::try_from(0).unwrap()), us(1));
    scene.request(1, K0);

    let actions = scene.queue.set_expected(None, us(2)).to_vec();

    assert_eq!(role_sent(&actions, 1), Some(Role::Free));
    assert_eq!(scene.queue.waiting().iter().count(), 0);
}

/// A program whose kernels have widely spread times, measured as the shim does it: what its samples cost is 1 % of the
/// time, and 2 ms at the start.
struct MeasuredProgram {
    scene: Scene,
    kernels: Vec<KernelIndex>,
    every: Nanos,
    saved: Nanos,
    random: u64,
}

/// What a sample costs a program on an H200.
const SAMPLE_COST: Nanos = Nanos::from_micros(8);

impl MeasuredProgram {
    fn new(kernels: usize, every: Nanos) -> Self {
        let mut scene = Scene::new(QueueRules::default());
        scene.join(1, 0, TaskProfile::default());
        scene.join(2, 9, short());
        for number in 0..kernels {
            let kernel = Box::new(kernel_id(number));
            scene.step(QueueEvent::Define { session: SessionId::new(1), kernel });
        }
        let kernels = (0..kernels).map(|n| KernelIndex::new(n.try_into().unwrap())).collect();
        Self { scene, kernels, every, saved: ms(2), random: 7 }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % below
    }

    /// Launches a kernel, and has it sampled if it needs that and the saved time pays for it.
    fn launch(&mut self, kernel: KernelIndex) {
        self.scene.now = self.scene.now.plus(self.every);
        self.saved = self.saved.plus(Nanos::new(self.every.get() / 100)).min(ms(2));
        self.scene.launch(1, kernel);
        let task = TaskKey::new("task 1").unwrap();
        let needs = self.scene.queue.profile(&task).unwrap().needs_samples(kernel);
        if needs && self.saved >= SAMPLE_COST {
            self.saved = self.saved.minus(SAMPLE_COST);
            // Nearly log-normal, with a deviation as large as the mean: the mean is never certain.
            let took = us([1, 2, 2, 3, 4, 6, 9, 30][usize::try_from(self.random(8)).unwrap()]);
            let sample = KernelSample { kernel, before: None, took, gap: Some(us(5)) };
            self.scene.step(QueueEvent::Sample { session: SessionId::new(1), sample });
        }
    }

    /// Plays tasks of so many launches until measuring is over. Returns the number of launches, and of the kernels whose
    /// times are known then.
    fn launches_until_measured(&mut self, in_task: usize) -> (u64, usize) {
        for launches in 1.. {
            let at = usize::try_from(launches).unwrap() % in_task;
            // The first launches of a task are of different kernels, the others mostly of the first ones.
            let kernels = self.kernels.len();
            let some = self.random(u64::try_from(kernels).unwrap()).pow(2);
            let kernel = if at < kernels { at } else { usize::try_from(some).unwrap() / kernels };
            self.launch(self.kernels[kernel]);
            if self.scene.role(1) != Some(Role::Measure) {
                let profile = self.scene.queue.profile(&TaskKey::new("task 1").unwrap()).unwrap();
                let known = self.kernels.iter().filter(|k| profile.took(**k).is_some()).count();
                return (launches, known);
            }
        }
        unreachable!("there are many numbers");
    }
}

#[test]
fn a_network_of_2684_launches_and_300_kernels_is_measured_for_at_most_100_000_launches() {
    let mut network = MeasuredProgram::new(300, us(15));

    let (launches, known) = network.launches_until_measured(2_684);

    assert!(launches <= STAGE_LAUNCHES_MAX, "{launches}");
    assert!(known >= 150, "{known} of 300 kernels are known");
}

#[test]
fn a_network_of_32_launches_is_measured_for_at_most_2_seconds() {
    let mut network = MeasuredProgram::new(20, us(35));

    let (launches, known) = network.launches_until_measured(32);

    assert!(us(35).times(launches) <= STAGE_TIME_MAX.plus(us(35)), "{launches}");
    assert_eq!(known, 20);
}

#[test]
fn a_program_that_launches_once_in_900_ms_is_measured_for_21_launches() {
    let mut program = MeasuredProgram::new(1, ms(900));
    let kernel = program.kernels[0];
    for launch in 1..=21 {
        assert_eq!(program.scene.role(1), Some(Role::Measure), "before launch {launch}");
        program.launch(kernel);
        program.scene.alive(&[2]);
    }

    assert_eq!(program.scene.role(1), Some(Role::Hold));
}

#[test]
fn a_program_whose_kernels_another_process_of_its_task_sampled_is_measured_for_a_hundred_launches()
{
    let mut scene = Scene::new(QueueRules::default());
    scene.join(1, 0, TaskProfile::default());
    let session = SessionId::new(2);
    let (task, class) = (TaskKey::new("task 1").unwrap(), Class::Offline);
    let priority = Priority::try_from(9).unwrap();
    let (share_thousandths, exclusive) = (1_000, None);
    let join = Join { session, task, priority, class, share_thousandths, exclusive };
    scene.step(QueueEvent::Join(join));
    scene.step(QueueEvent::Define { session, kernel: Box::new(kernel_id(0)) });
    for _ in 0..200 {
        let sample = KernelSample { kernel: K0, before: None, took: ms(1), gap: None };
        scene.step(QueueEvent::Sample { session, sample });
    }

    let mut launches = 0;
    while scene.role(1) == Some(Role::Measure) {
        launches += 1;
        scene.now = ms(3 * launches);
        scene.launch(1, K0);
    }

    assert_eq!(launches, 100);
}
