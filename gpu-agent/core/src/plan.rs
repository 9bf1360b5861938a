//! Carrying out a layout plan, one verified step at a time. Pure.
//!
//! Before each step its slot is read. A step whose goal is reached already is skipped, so that a
//! plan may be repeated after a crash. An instance that any process uses is never touched (P7).
//! After the step, the driver's report of the slot is compared with the goal.

use tessera_frames::cluster::PlanEnd;
use tessera_model::Millis;
use tessera_model::backoff::Backoff;
use tessera_model::mig::compute::Cut;
use tessera_model::mig::{PlanStep, Slot};

use crate::nvml::error::ErrorHandling;

/// The first pause before a blocked step is tried again; it doubles each time.
const PAUSE_MIN: Millis = Millis::new(200);
/// The longest pause.
const PAUSE_MAX: Millis = Millis::from_secs(30);
/// How often one step is tried before it is given up: with the pauses above, that takes a minute
/// and a half.
pub const TRIES_MAX: u32 = 10;

/// An existing instance in the slot of a step, as a plan sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepInstance {
    /// Whether it has its one compute instance.
    pub whole: bool,
    /// Its visible compute instances.
    pub cut: Cut,
    /// Whether a process uses it.
    pub used: bool,
    /// Whether the node owns it; foreign instances are neither destroyed nor completed.
    pub ours: bool,
}

/// A step that the driver refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRefused {
    /// What to do about it.
    pub handling: ErrorHandling,
    /// The driver's error.
    pub reason: String,
}

/// What the plan has to react to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanEvent {
    /// The slot of the step was read.
    Read(Option<StepInstance>),
    /// The step was carried out, with the instance that is now in its slot.
    Made(Result<Option<StepInstance>, StepRefused>),
    /// The pause is over.
    Waited,
}

/// The next action of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanAction {
    /// Read the instance in a slot.
    Look(Slot),
    /// Journal the intent, then carry out this step.
    Make(PlanStep),
    /// Do nothing for this long.
    Wait(Millis),
    /// The plan ended; `stuck` names an instance that could not be changed.
    End {
        /// Its outcome.
        end: PlanEnd,
        /// What could not be changed, and why.
        stuck: Option<(Slot, String)>,
    },
}

/// A plan under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRun {
    steps: Vec<PlanStep>,
    done: u32,
    tries: u32,
    tries_max: u32,
}

impl PlanRun {
    /// Begins a plan; the first action is that of [`PlanEvent::Waited`].
    pub fn new(steps: Vec<PlanStep>, tries_max: u32) -> Self {
        Self { steps, done: 0, tries: 0, tries_max }
    }

    /// Returns how many steps are done.
    pub fn done(&self) -> u32 {
        self.done
    }

    /// Returns the step that the plan is at.
    pub fn step(&self) -> Option<PlanStep> {
        self.steps.get(self.done as usize).copied()
    }

    /// Decides the next action.
    pub fn on(&mut self, event: PlanEvent) -> PlanAction {
        match (event, self.step()) {
            (_, None) => PlanAction::End { end: PlanEnd::Done, stuck: None },
            (PlanEvent::Waited, Some(step)) => PlanAction::Look(step.slot()),
            (PlanEvent::Read(found) | PlanEvent::Made(Ok(found)), Some(step))
                if reached(step, found) =>
            {
                self.done += 1;
                self.tries = 0;
                self.on(PlanEvent::Waited)
            }
            (PlanEvent::Read(found), Some(step)) => self.make(step, found),
            (PlanEvent::Made(Ok(_)), Some(_)) => {
                self.again("the driver reported success, but the GPU didn't change".to_owned())
            }
            (PlanEvent::Made(Err(refused)), Some(_)) => self.refused(refused),
        }
    }

    fn make(&mut self, step: PlanStep, found: Option<StepInstance>) -> PlanAction {
        if found.is_some_and(|found| !found.ours) {
            let start = step.slot().start;
            let reason = format!(
                "another program created the instance on memory slice {start}: run tessera clear \
                 on it to give it to Tessera"
            );
            return self.fail(reason, None);
        }
        match step {
            PlanStep::Destroy(_) | PlanStep::Cut(..) if found.is_some_and(|found| found.used) => {
                self.again("a process uses the instance".to_owned())
            }
            PlanStep::Destroy(_) | PlanStep::Create(_) | PlanStep::Cut(..) => {
                PlanAction::Make(step)
            }
        }
    }

    fn refused(&mut self, refused: StepRefused) -> PlanAction {
        match refused.handling {
            // An absent instance can't be destroyed; the next reading shows the actual state.
            ErrorHandling::InUse | ErrorHandling::Retry | ErrorHandling::Absent => {
                self.again(refused.reason)
            }
            ErrorHandling::Replan | ErrorHandling::Faulty | ErrorHandling::Bug => {
                self.fail(refused.reason, None)
            }
        }
    }

    fn again(&mut self, reason: String) -> PlanAction {
        self.tries += 1;
        if self.tries >= self.tries_max {
            let stuck = self.step().map(|step| (step.slot(), reason.clone()));
            return self.fail(reason, stuck);
        }
        let backoff = Backoff::new(PAUSE_MIN.duration(), PAUSE_MAX.duration());
        PlanAction::Wait(backoff.millis_after(self.tries))
    }

    fn fail(&self, reason: String, stuck: Option<(Slot, String)>) -> PlanAction {
        PlanAction::End { end: PlanEnd::Failed { steps_done: self.done, reason }, stuck }
    }
}

/// Returns whether a step's goal is reached already.
fn reached(step: PlanStep, found: Option<StepInstance>) -> bool {
    match step {
        PlanStep::Destroy(_) => found.is_none(),
        PlanStep::Create(_) => found.is_some_and(|found| found.whole),
        PlanStep::Cut(_, cut) => found.is_some_and(|found| found.cut == cut),
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

    fn whole() -> StepInstance {
        let cut = Cut::whole(3).unwrap();
        StepInstance { whole: true, cut, used: false, ours: true }
    }

    fn refused(handling: ErrorHandling) -> PlanEvent {
        PlanEvent::Made(Err(StepRefused { handling, reason: "no".into() }))
    }

    #[test]
    fn a_step_is_verified_before_the_next_one() {
        let mut run = PlanRun::new(vec![PlanStep::Destroy(slot(0)), PlanStep::Create(slot(1))], 3);

        assert_eq!(run.on(PlanEvent::Waited), PlanAction::Look(slot(0)));
        assert_eq!(
            run.on(PlanEvent::Read(Some(whole()))),
            PlanAction::Make(PlanStep::Destroy(slot(0)))
        );
        assert_eq!(run.on(PlanEvent::Made(Ok(None))), PlanAction::Look(slot(1)));
        assert_eq!(run.on(PlanEvent::Read(None)), PlanAction::Make(PlanStep::Create(slot(1))));
        let end = run.on(PlanEvent::Made(Ok(Some(whole()))));

        assert_eq!(end, PlanAction::End { end: PlanEnd::Done, stuck: None });
    }

    #[test]
    fn a_plan_that_was_done_before_touches_nothing() {
        let mut run = PlanRun::new(vec![PlanStep::Destroy(slot(0)), PlanStep::Create(slot(1))], 3);

        assert_eq!(run.on(PlanEvent::Read(None)), PlanAction::Look(slot(1)));
        let end = run.on(PlanEvent::Read(Some(whole())));

        assert_eq!(end, PlanAction::End { end: PlanEnd::Done, stuck: None });
    }

    #[test]
    fn an_instance_that_a_process_uses_is_not_destroyed_but_waited_for() {
        let mut run = PlanRun::new(vec![PlanStep::Destroy(slot(0))], 3);
        let used = Some(StepInstance { used: true, ..whole() });

        assert_eq!(run.on(PlanEvent::Read(used)), PlanAction::Wait(Millis::new(200)));
        assert_eq!(run.on(PlanEvent::Waited), PlanAction::Look(slot(0)));
        assert_eq!(run.on(PlanEvent::Read(used)), PlanAction::Wait(Millis::new(400)));
        let end = run.on(PlanEvent::Read(used));

        assert!(matches!(end, PlanAction::End { stuck: Some((found, _)), .. } if found == slot(0)));
    }

    #[test]
    fn a_foreign_instance_is_neither_destroyed_nor_completed() {
        for step in
            [PlanStep::Destroy(slot(0)), PlanStep::Create(slot(0)), PlanStep::Cut(slot(0), two())]
        {
            let mut run = PlanRun::new(vec![step], 3);

            let other = StepInstance { ours: false, whole: false, ..whole() };
            let end = run.on(PlanEvent::Read(Some(other)));

            let PlanAction::End { end: PlanEnd::Failed { reason, .. }, .. } = end else {
                panic!("{end:?}")
            };
            assert!(reason.contains("another program created"), "{reason}");
        }
    }

    #[test]
    fn a_partly_created_instance_is_completed_by_its_create_step() {
        let mut run = PlanRun::new(vec![PlanStep::Create(slot(0))], 3);

        let half = Some(StepInstance { whole: false, ..whole() });

        assert_eq!(run.on(PlanEvent::Read(half)), PlanAction::Make(PlanStep::Create(slot(0))));
    }

    #[test]
    fn a_cut_is_done_when_exactly_its_compute_instances_exist() {
        let step = PlanStep::Cut(slot(0), two());
        let half = StepInstance { whole: false, cut: Cut::whole(1).unwrap(), ..whole() };
        let done = StepInstance { whole: false, cut: two(), ..whole() };
        for begun in [None, Some(whole()), Some(half)] {
            let mut run = PlanRun::new(vec![step], 3);

            assert_eq!(run.on(PlanEvent::Read(begun)), PlanAction::Make(step), "{begun:?}");
            let end = run.on(PlanEvent::Made(Ok(Some(done))));

            assert_eq!(end, PlanAction::End { end: PlanEnd::Done, stuck: None });
        }
        let mut run = PlanRun::new(vec![step], 3);
        assert_eq!(
            run.on(PlanEvent::Read(Some(StepInstance { used: true, ..half }))),
            PlanAction::Wait(PAUSE_MIN)
        );
    }

    #[test]
    fn a_step_that_the_driver_never_accepts_is_given_up_at_once() {
        for handling in [ErrorHandling::Replan, ErrorHandling::Faulty, ErrorHandling::Bug] {
            let mut run = PlanRun::new(vec![PlanStep::Create(slot(0))], 3);
            run.on(PlanEvent::Read(None));

            let end = run.on(refused(handling));

            assert!(
                matches!(
                    end,
                    PlanAction::End { end: PlanEnd::Failed { steps_done: 0, .. }, stuck: None }
                ),
                "{handling:?}"
            );
        }
    }

    #[test]
    fn a_driver_that_reports_success_and_does_nothing_is_not_trusted() {
        let mut run = PlanRun::new(vec![PlanStep::Create(slot(0))], 2);
        run.on(PlanEvent::Read(None));

        assert_eq!(run.on(PlanEvent::Made(Ok(None))), PlanAction::Wait(Millis::new(200)));
    }

    proptest! {
        /// Whatever the driver does, a plan ends and never touches an instance in use.
        #[test]
        fn every_plan_ends_and_touches_no_instance_in_use(
            steps in prop::collection::vec((0..4_u8, 0..3_u8), 0..6),
            answers in prop::collection::vec((0..7_u8, 0..16_u8), 200),
        ) {
            let steps: Vec<_> = steps.into_iter().map(|(start, kind)| match kind {
                0 => PlanStep::Create(slot(start)),
                1 => PlanStep::Destroy(slot(start)),
                _ => PlanStep::Cut(slot(start), two()),
            }).collect();
            let mut run = PlanRun::new(steps, 4);
            let mut action = run.on(PlanEvent::Waited);
            let mut used = 0_u8;
            let mut ended = false;
            for (answer, bits) in answers {
                let stands = |slot: Slot| (answer > 1 || slot.start > 1).then(|| StepInstance {
                    whole: answer > 2,
                    cut: if answer == 5 { two() } else { Cut::default() },
                    used: bits & (1 << slot.start) != 0,
                    ours: !(slot.start == 3 && answer == 6),
                });
                action = match action {
                    PlanAction::Look(slot) => {
                        // An absent instance is not in use.
                        used = if stands(slot).is_some() { bits } else { 0 };
                        run.on(PlanEvent::Read(stands(slot)))
                    }
                    PlanAction::Make(step) => {
                        if let PlanStep::Destroy(slot) | PlanStep::Cut(slot, _) = step {
                            prop_assert!(used & (1 << slot.start) == 0 );
                        }
                        run.on(match answer {
                            0 => refused(ErrorHandling::Absent),
                            1 => refused(ErrorHandling::InUse),
                            2 => refused(ErrorHandling::Retry),
                            3 => refused(ErrorHandling::Replan),
                            _ => PlanEvent::Made(Ok(stands(step.slot()))),
                        })
                    }
                    PlanAction::Wait(pause) => {
                        prop_assert!(pause <= PAUSE_MAX);
                        run.on(PlanEvent::Waited)
                    }
                    PlanAction::End { .. } => { ended = true; break; }
                };
            }
            prop_assert!(ended);
        }
    }
}
