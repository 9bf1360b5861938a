//! Carrying out a layout plan, one verified step at a time. Pure.
//!
//! Before each step the place that it is about is read: a step whose goal stands already is skipped,
//! so that a plan may be repeated after a crash; and an instance that any process uses is never
//! touched (P7). Afterwards what the driver then tells of that place is compared with the goal.

use tessera_model::Millis;
use tessera_model::mig::compute::Cut;
use tessera_model::mig::{Slot, Step};
use tessera_wire::frames::PlanEnd;

use crate::nvml::fault::Handling;

/// First pause before a blocked step is tried again; doubled each time.
const PAUSE_MIN: Millis = Millis::new(200);
/// Longest pause.
const PAUSE_MAX: Millis = Millis::from_secs(30);
/// Tries of one step before it is given up: with the pauses above a minute and a half.
pub const TRIES_MAX: u32 = 10;

/// An instance that stands in the place of a step, as a plan sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether it has its one compute instance.
    pub whole: bool,
    /// The compute instances that can be seen.
    pub cut: Cut,
    /// Whether a process uses it.
    pub used: bool,
    /// Whether it is the node's; what others made is neither destroyed nor completed.
    pub ours: bool,
}

/// A step that the driver refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRefused {
    /// What to do about it.
    pub handling: Handling,
    /// What the driver said.
    pub reason: String,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The place of the step was read.
    Read(Option<Standing>),
    /// The step was made, and this stands in its place now.
    Made(Result<Option<Standing>, StepRefused>),
    /// The pause is over.
    Waited,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Read what stands in a place.
    Look(Slot),
    /// Journal the intent, then make this step.
    Make(Step),
    /// Wait.
    Wait(Millis),
    /// The plan is over; `stuck` names an instance that could not be changed.
    End {
        /// How.
        end: PlanEnd,
        /// What could not be changed, and why.
        stuck: Option<(Slot, String)>,
    },
}

/// A plan under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRun {
    steps: Vec<Step>,
    done: usize,
    tries: u32,
    tries_max: u32,
}

impl PlanRun {
    /// Begins a plan; the first action is that of [`Event::Waited`].
    pub fn new(steps: Vec<Step>, tries_max: u32) -> Self {
        Self { steps, done: 0, tries: 0, tries_max }
    }

    /// Returns how many steps are done.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Returns the step that the plan is at.
    pub fn step(&self) -> Option<Step> {
        self.steps.get(self.done).copied()
    }

    /// Decides what follows.
    pub fn on(&mut self, event: Event) -> Action {
        match (event, self.step()) {
            (_, None) => Action::End { end: PlanEnd::Done, stuck: None },
            (Event::Waited, Some(step)) => Action::Look(step.slot()),
            (Event::Read(found) | Event::Made(Ok(found)), Some(step)) if reached(step, found) => {
                self.done += 1;
                self.tries = 0;
                self.on(Event::Waited)
            }
            (Event::Read(found), Some(step)) => self.make(step, found),
            (Event::Made(Ok(_)), Some(_)) => {
                self.again("the driver reported success, but the GPU didn't change".to_owned())
            }
            (Event::Made(Err(refused)), Some(_)) => self.refused(refused),
        }
    }

    fn make(&mut self, step: Step, found: Option<Standing>) -> Action {
        if found.is_some_and(|found| !found.ours) {
            let start = step.slot().start;
            let reason = format!(
                "somebody else made the instance on memory slice {start}: clear it, to hand it over"
            );
            return self.fail(reason, None);
        }
        match step {
            Step::Destroy(_) | Step::Cut(..) if found.is_some_and(|found| found.used) => {
                self.again("a process uses the instance".to_owned())
            }
            Step::Destroy(_) | Step::Create(_) | Step::Cut(..) => Action::Make(step),
        }
    }

    fn refused(&mut self, refused: StepRefused) -> Action {
        match refused.handling {
            // What isn't there can't be destroyed; the next read tells what is true.
            Handling::InUse | Handling::Retry | Handling::Absent => self.again(refused.reason),
            Handling::Replan | Handling::Faulty | Handling::Bug => self.fail(refused.reason, None),
        }
    }

    fn again(&mut self, reason: String) -> Action {
        self.tries += 1;
        if self.tries >= self.tries_max {
            let stuck = self.step().map(|step| (step.slot(), reason.clone()));
            return self.fail(reason, stuck);
        }
        let doubled = PAUSE_MIN.get().saturating_mul(1 << (self.tries - 1).min(16));
        Action::Wait(Millis::new(doubled).min(PAUSE_MAX))
    }

    fn fail(&self, reason: String, stuck: Option<(Slot, String)>) -> Action {
        let steps_done = u32::try_from(self.done).unwrap_or(u32::MAX);
        Action::End { end: PlanEnd::Failed { steps_done, reason }, stuck }
    }
}

/// Tells whether a step's goal stands already.
fn reached(step: Step, found: Option<Standing>) -> bool {
    match step {
        Step::Destroy(_) => found.is_none(),
        Step::Create(_) => found.is_some_and(|found| found.whole),
        Step::Cut(_, cut) => found.is_some_and(|found| found.cut == cut),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tessera_model::mig::ProfileId;
    use tessera_model::mig::compute::ComputeSlot;

    fn slot(start: u8) -> Slot {
        Slot { start, profile: ProfileId(19) }
    }

    /// Two of the three compute slices of an instance.
    fn two() -> Cut {
        let mut cut = Cut::default();
        for start in 0..2 {
            cut.insert(ComputeSlot { start, slices: 1 });
        }
        cut
    }

    fn whole() -> Standing {
        let cut = Cut::whole(3).unwrap();
        Standing { whole: true, cut, used: false, ours: true }
    }

    fn refused(handling: Handling) -> Event {
        Event::Made(Err(StepRefused { handling, reason: "no".into() }))
    }

    #[test]
    fn a_step_is_verified_before_the_next_one() {
        let mut run = PlanRun::new(vec![Step::Destroy(slot(0)), Step::Create(slot(1))], 3);

        assert_eq!(run.on(Event::Waited), Action::Look(slot(0)));
        assert_eq!(run.on(Event::Read(Some(whole()))), Action::Make(Step::Destroy(slot(0))));
        assert_eq!(run.on(Event::Made(Ok(None))), Action::Look(slot(1)));
        assert_eq!(run.on(Event::Read(None)), Action::Make(Step::Create(slot(1))));
        let end = run.on(Event::Made(Ok(Some(whole()))));

        assert_eq!(end, Action::End { end: PlanEnd::Done, stuck: None });
    }

    #[test]
    fn a_plan_that_was_done_before_touches_nothing() {
        let mut run = PlanRun::new(vec![Step::Destroy(slot(0)), Step::Create(slot(1))], 3);

        assert_eq!(run.on(Event::Read(None)), Action::Look(slot(1)));
        let end = run.on(Event::Read(Some(whole())));

        assert_eq!(end, Action::End { end: PlanEnd::Done, stuck: None });
    }

    #[test]
    fn an_instance_that_a_process_uses_is_not_destroyed_but_waited_for() {
        let mut run = PlanRun::new(vec![Step::Destroy(slot(0))], 3);
        let used = Some(Standing { used: true, ..whole() });

        assert_eq!(run.on(Event::Read(used)), Action::Wait(Millis::new(200)));
        assert_eq!(run.on(Event::Waited), Action::Look(slot(0)));
        assert_eq!(run.on(Event::Read(used)), Action::Wait(Millis::new(400)));
        let end = run.on(Event::Read(used));

        assert!(matches!(end, Action::End { stuck: Some((found, _)), .. } if found == slot(0)));
    }

    #[test]
    fn an_instance_of_somebody_else_is_neither_destroyed_nor_completed() {
        for step in [Step::Destroy(slot(0)), Step::Create(slot(0)), Step::Cut(slot(0), two())] {
            let mut run = PlanRun::new(vec![step], 3);

            let other = Standing { ours: false, whole: false, ..whole() };
            let end = run.on(Event::Read(Some(other)));

            let Action::End { end: PlanEnd::Failed { reason, .. }, .. } = end else {
                panic!("{end:?}")
            };
            assert!(reason.contains("somebody else"), "{reason}");
        }
    }

    #[test]
    fn a_half_made_instance_is_completed_by_its_create() {
        let mut run = PlanRun::new(vec![Step::Create(slot(0))], 3);

        let half = Some(Standing { whole: false, ..whole() });

        assert_eq!(run.on(Event::Read(half)), Action::Make(Step::Create(slot(0))));
    }

    #[test]
    fn a_cut_is_done_when_exactly_its_compute_instances_stand() {
        let step = Step::Cut(slot(0), two());
        let half = Standing { whole: false, cut: Cut::whole(1).unwrap(), ..whole() };
        let done = Standing { whole: false, cut: two(), ..whole() };
        for begun in [None, Some(whole()), Some(half)] {
            let mut run = PlanRun::new(vec![step], 3);

            assert_eq!(run.on(Event::Read(begun)), Action::Make(step), "{begun:?}");
            let end = run.on(Event::Made(Ok(Some(done))));

            assert_eq!(end, Action::End { end: PlanEnd::Done, stuck: None });
        }
        let mut run = PlanRun::new(vec![step], 3);
        assert_eq!(
            run.on(Event::Read(Some(Standing { used: true, ..half }))),
            Action::Wait(PAUSE_MIN)
        );
    }

    #[test]
    fn what_the_driver_will_never_take_is_given_up_at_once() {
        for handling in [Handling::Replan, Handling::Faulty, Handling::Bug] {
            let mut run = PlanRun::new(vec![Step::Create(slot(0))], 3);
            run.on(Event::Read(None));

            let end = run.on(refused(handling));

            assert!(
                matches!(
                    end,
                    Action::End { end: PlanEnd::Failed { steps_done: 0, .. }, stuck: None }
                ),
                "{handling:?}"
            );
        }
    }

    #[test]
    fn a_driver_that_says_yes_and_does_nothing_is_not_believed() {
        let mut run = PlanRun::new(vec![Step::Create(slot(0))], 2);
        run.on(Event::Read(None));

        assert_eq!(run.on(Event::Made(Ok(None))), Action::Wait(Millis::new(200)));
    }

    proptest! {
        /// Whatever the driver does, a plan ends, and never touches what is used.
        #[test]
        fn every_plan_ends_and_touches_nothing_that_is_used(
            steps in prop::collection::vec((0..4_u8, 0..3_u8), 0..6),
            answers in prop::collection::vec((0..7_u8, 0..16_u8), 200),
        ) {
            let steps: Vec<_> = steps.into_iter().map(|(start, kind)| match kind {
                0 => Step::Create(slot(start)),
                1 => Step::Destroy(slot(start)),
                _ => Step::Cut(slot(start), two()),
            }).collect();
            let mut run = PlanRun::new(steps, 4);
            let mut action = run.on(Event::Waited);
            let mut used = 0_u8;
            let mut ended = false;
            for (answer, bits) in answers {
                let stands = |slot: Slot| (answer > 1 || slot.start > 1).then(|| Standing {
                    whole: answer > 2,
                    cut: if answer == 5 { two() } else { Cut::default() },
                    used: bits & (1 << slot.start) != 0,
                    ours: !(slot.start == 3 && answer == 6),
                });
                action = match action {
                    Action::Look(slot) => {
                        // What isn't there is used by nobody.
                        used = if stands(slot).is_some() { bits } else { 0 };
                        run.on(Event::Read(stands(slot)))
                    }
                    Action::Make(step) => {
                        if let Step::Destroy(slot) | Step::Cut(slot, _) = step {
                            prop_assert!(used & (1 << slot.start) == 0 );
                        }
                        run.on(match answer {
                            0 => refused(Handling::Absent),
                            1 => refused(Handling::InUse),
                            2 => refused(Handling::Retry),
                            3 => refused(Handling::Replan),
                            _ => Event::Made(Ok(stands(step.slot()))),
                        })
                    }
                    Action::Wait(pause) => {
                        prop_assert!(pause <= PAUSE_MAX);
                        run.on(Event::Waited)
                    }
                    Action::End { .. } => { ended = true; break; }
                };
            }
            prop_assert!(ended);
        }
    }
}
