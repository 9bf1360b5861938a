//! The course of a holder's launches, and what of it is expected again.
//!
//! Programs repeat themselves: each task, training step or token launches the same kernels in the same order. So what
//! followed these launches the last time is expected now. The place is found as in a compressor (LZ77), by the last
//! [`CONTEXT`] kernels. It is then followed for as long as each launch is the expected one.

use crate::ids::KernelIndex;
use crate::time::Nanos;

/// Steps that are remembered: training steps of large networks have some thousand launches.
const STEPS_MAX: usize = 4_096;
/// Slots for contexts: a later context replaces an earlier one of the same slot.
const SLOTS: usize = 2 * STEPS_MAX;
/// How many kernels have to be the same.
const CONTEXT: u32 = 8;
/// How many launches have to be the expected ones before the course is used.
const RIGHT_MIN: u32 = 32;

/// One launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CourseStep {
    /// What was launched.
    pub kernel: KernelIndex,
    /// How long after the launch before it.
    pub since: Nanos,
    /// For how long after the launch the device was busy with it and with what was launched before, by prediction.
    pub busy: Nanos,
}

/// The last launches of one holder. All memory is allocated at once, so that learning allocates nothing.
#[derive(Clone, Debug)]
pub struct LaunchCourse {
    /// A ring.
    steps: Box<[CourseStep]>,
    /// How many steps there were in total: the position of the next one.
    total: u64,
    /// The positions that followed each context the last time.
    slots: Box<[u64]>,
    /// The last kernels: each fills eight bits more, so those before the last eight are gone.
    context: u64,
    /// The position of the step that the next one is expected to equal.
    expected: Option<u64>,
    /// How many expected steps in a row were right.
    right: u32,
}

impl Default for LaunchCourse {
    fn default() -> Self {
        let none =
            CourseStep { kernel: KernelIndex::UNKNOWN, since: Nanos::ZERO, busy: Nanos::ZERO };
        Self {
            steps: vec![none; STEPS_MAX].into_boxed_slice(),
            total: 0,
            slots: vec![0; SLOTS].into_boxed_slice(),
            context: 0,
            expected: None,
            right: 0,
        }
    }
}

impl LaunchCourse {
    /// Adds a launch.
    pub fn add(&mut self, step: CourseStep) {
        let is_right = self.step(self.expected).is_some_and(|seen| seen.kernel == step.kernel);
        self.right = if is_right { self.right.saturating_add(1) } else { 0 };
        self.expected = self.expected.filter(|_| is_right).map(|at| at + 1);
        self.steps[place(self.total)] = step;
        self.total += 1;
        let number = u64::from(step.kernel.get()) + 1;
        self.context = (self.context << 8) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = slot(self.context);
        let followed = std::mem::replace(&mut self.slots[slot], self.total);
        if self.expected.is_none() && self.is_same_context(followed) {
            self.expected = Some(followed);
        }
    }

    /// Forgets the order: launches were lost.
    pub const fn interrupt(&mut self) {
        self.expected = None;
        self.right = 0;
        // The next contexts consist of launches from now on.
        self.context = 0;
    }

    /// Returns the launches that are expected next without the first `skipped`, the nearest first. None if the last ones
    /// were not the expected ones.
    ///
    /// What followed the last time may be shorter than what is requested. It is then expected to be repeated.
    pub fn upcoming(&self, skipped: u64) -> impl Iterator<Item = CourseStep> {
        let trusted = self.expected.filter(|_| self.right >= RIGHT_MIN);
        trusted.into_iter().flat_map(move |from| {
            let period = (self.total - from).max(1);
            (0..STEPS_MAX as u64)
                .map_while(move |at| self.step(Some(from + (skipped + at) % period)))
        })
    }

    /// Returns the step at a position, if it is remembered.
    fn step(&self, at: Option<u64>) -> Option<CourseStep> {
        let at = at.filter(|at| *at < self.total && self.total - *at <= STEPS_MAX as u64)?;
        Some(self.steps[place(at)])
    }

    /// Returns whether the kernels before a position are the last ones.
    fn is_same_context(&self, followed: u64) -> bool {
        followed >= u64::from(CONTEXT)
            && (1..=u64::from(CONTEXT)).all(|back| {
                let [one, other] =
                    [followed - back, self.total - back].map(|at| self.step(Some(at)));
                one.is_some() && one.map(|step| step.kernel) == other.map(|step| step.kernel)
            })
    }
}

#[expect(clippy::cast_possible_truncation, reason = "below the number of steps")]
const fn place(at: u64) -> usize {
    (at % STEPS_MAX as u64) as usize
}

#[expect(clippy::cast_possible_truncation, reason = "below the number of slots")]
const fn slot(context: u64) -> usize {
    (context.wrapping_mul(0xd6e8_feb8_6659_fd93) >> (64 - SLOTS.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: [u16; 0] = [];

    fn step(kernel: u16) -> CourseStep {
        CourseStep {
            kernel: KernelIndex::new(kernel),
            since: Nanos::from_micros(u64::from(kernel)),
            busy: Nanos::ZERO,
        }
    }

    fn expected(course: &LaunchCourse, most: usize) -> Vec<u16> {
        course.upcoming(0).take(most).map(|step| step.kernel.get()).collect()
    }

    /// A task: a block that is repeated five times, and an end.
    fn task() -> Vec<u16> {
        let block = [1, 2, 3, 1, 2, 4];
        block.into_iter().cycle().take(30).chain([5, 6, 7, 8, 9, 10, 11, 12, 13]).collect()
    }

    #[test]
    fn a_repeated_task_is_expected_to_go_on_as_before_even_within_its_own_repetitions() {
        let mut course = LaunchCourse::default();
        let tasks: Vec<u16> = (0..6).flat_map(|_| task()).collect();
        for (at, kernel) in tasks.iter().enumerate() {
            // In the second task, its blocks look like those before them. From its end on, they are those of the first.
            if at > 3 * task().len() {
                assert_eq!(
                    expected(&course, 20),
                    tasks.iter().copied().cycle().skip(at).take(20).collect::<Vec<_>>()
                );
            }
            course.add(step(*kernel));
        }
    }

    #[test]
    fn what_is_expected_goes_on_beyond_what_was_seen_since_and_some_of_it_can_be_skipped() {
        let mut course = LaunchCourse::default();
        (0..60).for_each(|at| course.add(step(at % 3)));

        assert_eq!(expected(&course, 7), [0, 1, 2, 0, 1, 2, 0]);
        let skipped = course.upcoming(1_000_000).take(3).map(|step| step.kernel.get());
        assert_eq!(skipped.collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!(course.upcoming(0).count(), STEPS_MAX, "it ends");
    }

    #[test]
    fn nothing_is_expected_of_a_program_that_does_something_new() {
        let mut course = LaunchCourse::default();
        (0..200).for_each(|at| course.add(step(at)));
        assert_eq!(expected(&course, 3), NOTHING);
    }

    #[test]
    fn after_something_else_nothing_is_expected_until_it_was_right_for_a_while() {
        let mut course = LaunchCourse::default();
        (0..4).flat_map(|_| task()).for_each(|kernel| course.add(step(kernel)));
        assert_eq!(expected(&course, 3), [1, 2, 3]);

        course.add(step(99));
        assert_eq!(expected(&course, 3), NOTHING);
        task().into_iter().for_each(|kernel| course.add(step(kernel)));
        assert_eq!(expected(&course, 3), NOTHING, "a part of the task was right");
        (0..2).flat_map(|_| task()).for_each(|kernel| course.add(step(kernel)));
        assert_eq!(expected(&course, 3), [1, 2, 3]);
    }

    #[test]
    fn lost_launches_are_no_part_of_the_order() {
        let mut course = LaunchCourse::default();
        (0..4).flat_map(|_| task()).for_each(|kernel| course.add(step(kernel)));
        course.interrupt();
        assert_eq!(expected(&course, 3), NOTHING);
    }

    #[test]
    fn a_course_that_is_longer_than_what_is_remembered_is_not_expected_again() {
        let mut course = LaunchCourse::default();
        let long: Vec<u16> = (0..5_000).map(|at| at % 4_999).collect();
        (0..3).flat_map(|_| long.clone()).for_each(|kernel| course.add(step(kernel)));
        assert_eq!(expected(&course, 3), NOTHING);
    }
}
