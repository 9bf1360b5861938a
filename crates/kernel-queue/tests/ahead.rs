//! Grants that are given before a gap begins.

#[path = "support/scene.rs"]
mod scene;

use scene::{K0, Scene, granted, ms, profile, us};
use tessera_kernel_queue::{
    GapOpening, GateState, Grant, GrantBudget, GrantKind, KernelIndex, LastLaunch, LaunchDecision,
    Nanos, QueueAction, QueueEvent, QueueRules, ReportNeed, SessionId,
};

/// The holder's task: nine kernels of 50 µs in a row, each launched 60 µs after the last. A gap of 2 ms follows.
const TASK: u16 = 10;
const BURST: Nanos = us(60);
const GAP: Nanos = ms(2);
/// How much later than expected a launch may come.
const LATE_MAX: Nanos = ms(5);

/// A holder that repeats a task, and a filler with kernels of 200 µs.
struct Repeating {
    scene: Scene,
    count: u64,
}

impl Repeating {
    fn new(rules: QueueRules) -> Self {
        let mut scene = Scene::new(rules);
        let mut kernels = [(us(50), us(10)); TASK as usize];
        kernels[usize::from(TASK - 1)] = (us(50), GAP);
        scene.join(1, 0, profile(&kernels));
        scene.join(2, 5, profile(&[(us(200), Nanos::ZERO), (ms(40), Nanos::ZERO)]));
        [1, 2].into_iter().for_each(|id| scene.queue.note_gate_reader(SessionId::new(id)));
        Self { scene, count: 0 }
    }

    /// The holder makes its next launch now, and reports it.
    fn launch(&mut self) -> Vec<QueueAction> {
        let kernel = u16::try_from(self.count % u64::from(TASK)).unwrap();
        self.launch_of(KernelIndex::new(kernel))
    }

    fn launch_of(&mut self, kernel: KernelIndex) -> Vec<QueueAction> {
        self.count += 1;
        let (session, launch, count) = (SessionId::new(1), self.count, self.count);
        self.scene.step(QueueEvent::Launch { session, launch, kernel, count })
    }

    /// Plays launches until so many were made, with their pauses.
    fn play_to(&mut self, launches: u64) -> Vec<QueueAction> {
        let mut seen = Vec::new();
        while self.count < launches {
            seen.extend(self.launch());
            let is_last = self.count.is_multiple_of(u64::from(TASK));
            self.pass(if is_last { us(50).plus(GAP) } else { BURST });
        }
        seen
    }

    /// Makes and reports launches at once until so many were made.
    fn play_to_launch(&mut self, launches: u64) -> Vec<QueueAction> {
        let mut seen = Vec::new();
        while self.count < launches {
            seen.extend(self.launch());
        }
        seen
    }

    /// Returns how many grants of the filler were given ahead, and how many of them were used.
    fn ahead(&self) -> (u64, u64) {
        let counters = self.scene.queue.session_counters(SessionId::new(2)).unwrap();
        (counters.grants_ahead, counters.grants_ahead_used)
    }

    fn pass(&mut self, span: Nanos) {
        let until = self.scene.now.plus(span);
        self.scene.wait(until);
        self.scene.alive(&[1, 2, 3]);
    }
}

fn granted_ahead(actions: &[QueueAction]) -> Option<(Grant, GapOpening)> {
    actions.iter().find_map(|action| match action {
        QueueAction::GrantAhead { session, grant, opening } if session.get() == 2 => {
            Some((*grant, *opening))
        }
        _ => None,
    })
}

#[test]
fn the_next_long_gap_of_a_repeated_task_is_granted_while_the_holder_works() {
    let mut play = Repeating::new(QueueRules::default());
    play.play_to(73);

    let (grant, opening) = granted_ahead(&play.scene.request(2, K0)).unwrap();

    assert_eq!((opening.launches, opening.kernel), (80, KernelIndex::new(9)));
    assert_eq!(
        (opening.busy, opening.wake),
        (us(50), 79),
        "two launches take the 100 µs of a wake-up"
    );
    // The switch to the filler, before its kernels, takes 150 µs, and so does the switch back, after them.
    assert_eq!((opening.length, grant.budget), (GAP.minus(us(150)), GAP.minus(us(300))));
    assert_eq!((grant.kind, grant.gate.launches), (GrantKind::Gap, 80));
}

#[test]
fn nothing_is_granted_ahead_to_sessions_without_the_gate_page_nor_of_a_new_course() {
    let mut old = Repeating::new(QueueRules::default());
    old.scene.leave(2);
    old.scene.join(3, 5, profile(&[(us(200), Nanos::ZERO)]));
    old.play_to(73);
    assert_eq!(old.scene.request(3, K0), [], "its shim knows nothing of such grants");

    let mut new = Repeating::new(QueueRules::default());
    new.play_to(23);
    assert_eq!(granted_ahead(&new.scene.request(2, K0)), None, "the task came twice only");

    let mut off = Repeating::new(QueueRules { ahead: false, ..QueueRules::default() });
    off.play_to(73);
    assert_eq!(off.scene.request(2, K0), []);
}

#[test]
fn the_session_uses_the_gap_from_its_begin_without_any_message() {
    let mut play = Repeating::new(QueueRules::default());
    play.play_to(73);
    let (grant, opening) = granted_ahead(&play.scene.request(2, K0)).unwrap();
    let mut budget = GrantBudget::new();
    budget.receive_ahead(grant, opening);
    let gate = |launches| GateState { launches, ..grant.gate };
    let last = |count, kernel, at| LastLaunch { count, kernel: KernelIndex::new(kernel), at };
    let start = play.scene.now;

    budget.look(last(79, 8, start));
    assert_eq!(budget.spend(Some(us(200)), gate(79), 0, start), LaunchDecision::Wait);
    let at = start.plus(us(60));
    budget.look(last(80, 9, at));
    assert_eq!(
        budget.spend(Some(us(200)), gate(80), 0, at),
        LaunchDecision::Wait,
        "its last kernel runs"
    );
    let begin = at.plus(us(50));
    assert_eq!(budget.spend(Some(us(200)), gate(80), 0, begin), LaunchDecision::Launch);
    let end = begin.plus(opening.length);
    assert_eq!(
        budget.spend(Some(us(200)), gate(80), 0, end.minus(us(201))),
        LaunchDecision::Launch
    );
    assert_eq!(
        budget.spend(Some(us(200)), gate(80), 0, end.minus(us(199))),
        LaunchDecision::Request
    );

    let mut returned = GrantBudget::new();
    returned.receive_ahead(grant, opening);
    returned.look(last(80, 9, at));
    assert_eq!(returned.spend(Some(us(200)), gate(81), 0, begin), LaunchDecision::Request);
}

#[test]
fn a_session_keeps_a_grant_ahead_although_its_gap_is_late() {
    let mut play = Repeating::new(QueueRules::default());
    play.play_to(73);
    let (grant, opening) = granted_ahead(&play.scene.request(2, K0)).unwrap();
    let mut budget = GrantBudget::new();
    budget.receive_ahead(grant, opening);
    let gate = GateState { launches: 79, ..grant.gate };
    let late = grant.from.plus(LATE_MAX).minus(us(100));

    assert_eq!(budget.spend(Some(us(200)), gate, 0, late), LaunchDecision::Wait);
    budget.look(LastLaunch { count: 80, kernel: KernelIndex::new(9), at: late });
    let gate = GateState { launches: 80, ..gate };
    let begin = late.plus(opening.busy);
    assert_eq!(budget.spend(Some(us(200)), gate, 0, begin), LaunchDecision::Launch);
}

#[test]
fn another_launch_than_expected_ends_the_grant_on_both_sides() {
    let mut play = Repeating::new(QueueRules::default());
    play.play_to(73);
    let (grant, opening) = granted_ahead(&play.scene.request(2, K0)).unwrap();
    let mut budget = GrantBudget::new();
    budget.receive_ahead(grant, opening);
    budget.look(LastLaunch { count: 80, kernel: KernelIndex::new(3), at: play.scene.now });
    assert_eq!(budget.grant(), None);

    play.play_to(79);
    let ended = play.launch_of(KernelIndex::new(3));

    assert!(
        ended.contains(&QueueAction::Revoke { session: SessionId::new(2), grant: grant.number })
    );
    assert!(ended.iter().any(|action| matches!(action, QueueAction::Gate { .. })));
    assert_eq!(play.scene.queue.waiting().iter().count(), 1, "the launch waits again");
}

#[test]
fn launches_before_the_expected_one_leave_the_grant() {
    let mut play = Repeating::new(QueueRules::default());
    play.play_to(73);
    let (grant, _) = granted_ahead(&play.scene.request(2, K0)).unwrap();

    let seen = play.play_to(79);
    assert_eq!(seen, [], "nothing is ended and nothing granted");
    let seen = play.launch();
    let recalled_at = play.scene.now.plus(us(50)).plus(GAP).minus(us(150));
    let session = SessionId::new(1);
    assert_eq!(seen, [QueueAction::Recall { session, at: recalled_at, launches: 80 }]);
    let last = play.scene.now.plus(us(50)).plus(GAP).minus(us(200));
    play.scene.wait(last);
    assert!(play.scene.queue.waiting().is_empty(), "the grant lasts until the gap's end");
    assert_eq!(play.ahead(), (1, 0));
    play.scene.started(2, K0, grant);
    assert_eq!(play.scene.queue.counters().late, 0);
    play.scene.started(2, K0, grant);
    assert_eq!(play.ahead(), (1, 1), "its kernels count once");
}

#[test]
fn a_kernel_in_the_gap_whose_report_comes_before_the_holders_is_no_kernel_in_the_holders_way() {
    let mut play = Repeating::new(QueueRules::default());
    play.play_to(73);
    let (grant, _) = granted_ahead(&play.scene.request(2, K0)).unwrap();
    play.play_to(79);
    // The holder launches now, and the filler in the gap after that. The filler's report comes first.
    let launched_at = play.scene.now;
    play.pass(us(70));
    play.scene.started(2, K0, grant);
    let now = play.scene.now.plus(us(20));
    let (session, kernel) = (SessionId::new(1), KernelIndex::new(9));
    let event = QueueEvent::Launch { session, launch: 80, kernel, count: 80 };
    play.count = 80;
    play.scene.queue.note(event, launched_at, now);
    play.scene.queue.decide();
    play.scene.now = launched_at.plus(us(300));
    play.scene.done(2);

    assert_eq!(play.scene.queue.counters().overshoots, 0, "it ended within the gap");
    assert!(play.scene.queue.counters().late == 0);
    assert_eq!(play.ahead(), (1, 1));
    play.scene.wait(launched_at.plus(us(50)).plus(GAP));
    play.launch();
    let counters = play.scene.queue.counters();
    assert_eq!(counters.gaps_filled, 1, "the gap after the 80th launch was filled, and no other");
}

#[test]
fn launches_on_a_new_gate_page_are_not_before_a_gap_of_the_old_one() {
    let mut play = Repeating::new(QueueRules::default());
    play.play_to(73);
    let (grant, _) = granted_ahead(&play.scene.request(2, K0)).unwrap();
    play.play_to(79);
    play.scene.started(2, K0, grant);

    play.scene.queue.set_launch_count(0);
    play.count = 0;
    play.launch();
    play.pass(us(30));
    play.scene.done(2);

    assert_eq!(play.scene.queue.counters().overshoots, 1, "the holder returned while it ran");
}

#[test]
fn an_unexpected_pause_takes_the_place_of_an_expected_gap() {
    let mut play = Repeating::new(QueueRules::default());
    play.play_to(73);
    let (ahead, _) = granted_ahead(&play.scene.request(2, K0)).unwrap();
    // The program does something else. Another launch of the filler waits, too.
    play.scene.request(2, K0);
    play.scene.sync(1);

    let until = play.scene.now.plus(ms(20));
    let seen = play.scene.wait(until);

    let grant = seen.iter().find_map(|(_, action)| granted(&[*action], 2)).unwrap();
    assert!(grant.number > ahead.number && grant.kind.ends_with_gap());
}

#[test]
fn a_kernel_that_fits_no_gap_ages_although_small_ones_of_another_session_are_granted_ahead() {
    let mut play = Repeating::new(QueueRules::default());
    play.scene.join(3, 6, profile(&[(ms(40), Nanos::ZERO)]));
    play.play_to(73);
    play.scene.request(3, K0);
    play.play_to(74);

    // Its price is saved after 2 s.
    let large = SessionId::new(3);
    while play.scene.queue.session_counters(large).unwrap().aged == 0 {
        play.scene.request(2, K0);
        let task = play.count.next_multiple_of(u64::from(TASK));
        play.play_to(task + 3);
        play.scene.alive(&[1, 2, 3]);
        assert!(play.scene.now < ms(4_000), "it was never granted");
    }
    assert!(play.scene.queue.counters().grants > 100);
}

#[test]
fn reports_of_a_holder_may_wait_while_it_repeats_itself_or_nobody_waits_for_its_gaps() {
    let mut play = Repeating::new(QueueRules::default());
    play.play_to(5);
    assert_eq!(play.scene.queue.report_need(), ReportNeed::Soon, "no launch waits");
    // This one fits no gap.
    play.scene.request(2, KernelIndex::new(1));
    assert_eq!(play.scene.queue.report_need(), ReportNeed::Prompt, "its gaps are not expected");

    play.play_to(73);
    assert_eq!(play.scene.queue.report_need(), ReportNeed::At(None));
    let next = play.scene.now.plus(LATE_MAX).plus(us(60));
    play.scene.wait(next);
    play.scene.alive(&[1, 2]);
    assert_eq!(play.scene.queue.report_need(), ReportNeed::Prompt, "it does something else");
}

#[test]
fn reports_are_prompt_for_launches_that_are_not_granted_ahead() {
    let need = |rules: QueueRules, reads_gate: bool| {
        let mut play = Repeating::new(rules);
        if !reads_gate {
            play.scene.leave(2);
            play.scene.join(3, 5, profile(&[(us(200), Nanos::ZERO)]));
            play.scene.request(3, K0);
        }
        play.play_to(73);
        play.scene.request(if reads_gate { 2 } else { 3 }, K0);
        play.scene.queue.report_need()
    };
    let rules = QueueRules::default();

    assert_eq!(need(rules, true), ReportNeed::At(Some(80)), "the launch that begins the gap");
    assert_eq!(need(rules, false), ReportNeed::Prompt, "its shim knows nothing of such grants");
    assert_eq!(need(QueueRules { ahead: false, ..rules }, true), ReportNeed::Prompt);
    assert_eq!(need(rules.over_mps(), true), ReportNeed::Prompt);
}

/// The gate page after so many launches, the last of which is made now.
fn page(play: &Repeating, launches: u64) -> LastLaunch {
    let kernel = u16::try_from((launches - 1) % u64::from(TASK)).unwrap();
    LastLaunch { count: launches, kernel: KernelIndex::new(kernel), at: play.scene.now }
}

#[test]
fn a_holder_without_reports_is_followed_on_the_gate_page() {
    let mut play = Repeating::new(QueueRules::default());
    play.play_to(73);
    // Two tasks further, at the fourth launch: the gaps after launches 80 and 90 are over.
    for _ in 0..20 {
        play.pass(us(250));
    }
    play.scene.queue.observe(page(&play, 94));
    let now = play.scene.now;

    let (grant, opening) = granted_ahead(&play.scene.request(2, K0)).unwrap();

    assert_eq!((opening.launches, opening.kernel), (100, KernelIndex::new(9)));
    assert_eq!(grant.from, now.plus(us(6 * 60 + 50)));
    assert_eq!(play.scene.queue.report_need(), ReportNeed::At(Some(100)));
}

#[test]
fn a_gap_that_the_gate_page_shows_to_be_over_is_neither_filled_nor_in_the_way_of_the_next() {
    let mut play = Repeating::new(QueueRules::default());
    play.play_to(79);
    play.launch();
    play.pass(us(100));
    assert!(granted(&play.scene.request(2, K0), 2).is_some(), "the gap is there");

    let mut play = Repeating::new(QueueRules::default());
    play.play_to(79);
    play.launch();
    play.pass(us(100));
    play.scene.queue.observe(page(&play, 81));
    let actions = play.scene.request(2, K0);
    assert_eq!(granted(&actions, 2), None);
    assert_eq!(granted_ahead(&actions).unwrap().1.launches, 90);
}

#[test]
fn a_holder_whose_page_shows_another_launch_than_expected_has_to_report() {
    let mut play = Repeating::new(QueueRules::default());
    play.play_to(73);
    play.pass(us(60));
    // The fifth kernel of the task, where the fifteenth launch of it is due.
    play.scene.queue.observe(LastLaunch { kernel: KernelIndex::new(8), ..page(&play, 75) });

    assert_eq!(granted_ahead(&play.scene.request(2, K0)), None);
    assert_eq!(play.scene.queue.report_need(), ReportNeed::Prompt);

    // The page may show what is being launched, and not yet its count.
    play.scene.queue.observe(LastLaunch { kernel: KernelIndex::new(5), ..page(&play, 75) });
    assert_eq!(play.scene.queue.report_need(), ReportNeed::At(None));
}

#[test]
fn in_a_gap_whose_begin_was_not_reported_a_launch_has_the_holder_report() {
    let mut play = Repeating::new(QueueRules::default());
    play.play_to(73);
    for _ in 0..3 {
        play.pass(us(140));
    }
    play.scene.queue.observe(page(&play, 80));
    assert_eq!(play.scene.queue.report_need(), ReportNeed::At(None), "no launch waits");

    assert_eq!(granted_ahead(&play.scene.request(2, K0)), None, "not the next gap");
    assert_eq!(play.scene.queue.report_need(), ReportNeed::Prompt);

    let granted_gap = play.play_to_launch(80);
    assert!(granted(&granted_gap, 2).is_some(), "{granted_gap:?}");
}

#[test]
fn any_page_is_harmless() {
    let mut play = Repeating::new(QueueRules::default());
    play.play_to(73);
    for count in [0, 1, 74, 10_000, u64::MAX] {
        for at in [Nanos::ZERO, Nanos::MAX] {
            for kernel in [KernelIndex::new(3), KernelIndex::UNKNOWN] {
                play.scene.queue.observe(LastLaunch { count, kernel, at });
                play.scene.request(2, K0);
                play.scene.alive(&[1, 2]);
                let _ = play.scene.queue.report_need();
            }
        }
    }
    // Reports count, and a page that counts less than before is a new one.
    play.scene.queue.observe(LastLaunch::default());
    let before = play.ahead().0;
    play.play_to(133);
    assert!(play.ahead().0 > before);
}
