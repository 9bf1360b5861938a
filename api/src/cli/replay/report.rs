//! What became of a replay.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use tessera_model::life::JobState;
use utoipa::ToSchema;

/// What became of the jobs of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Report {
    /// Jobs in the trace, as far as they were to be submitted.
    pub planned: u64,
    /// Jobs that the controller accepted.
    pub accepted: u64,
    /// Jobs that it refused.
    pub refused: u64,
    /// Why it refused them, with the number of each.
    pub refusals: BTreeMap<String, u64>,
    /// Accepted jobs by state; every one of them is counted once.
    pub by_state: BTreeMap<String, u64>,
    /// Seconds from the first submit to the last job's end.
    pub seconds: f64,
    /// By how many seconds the latest submit was behind its moment.
    pub latest_submit_seconds: f64,
    /// Whether a person stopped it.
    pub interrupted: bool,
    /// What of the trace was not submitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The exit code of a program that Ctrl-C ended, as shells have it.
const INTERRUPTED: u8 = 130;

impl Report {
    /// Tells whether every accepted job is accounted for, and over.
    pub fn adds_up(&self) -> bool {
        let counted: u64 = self.by_state.values().sum();
        counted == self.accepted && self.over() == counted
    }

    /// Counts the jobs that have reached their end.
    fn over(&self) -> u64 {
        let is_final = |state: &str| state.parse().is_ok_and(JobState::is_final);
        self.by_state.iter().filter(|(state, _)| is_final(state)).map(|(_, count)| count).sum()
    }

    /// Returns the exit code: 0 only if all was accepted, and all of that ended.
    pub fn code(&self) -> u8 {
        match (self.interrupted, self.adds_up() && self.refused == 0) {
            (true, _) => INTERRUPTED,
            (false, true) => 0,
            (false, false) => 1,
        }
    }

    /// Tells it to a person.
    pub fn told(&self) -> String {
        let mut text =
            format!("{} of {} jobs accepted in {:.1} s", self.accepted, self.planned, self.seconds);
        if self.latest_submit_seconds >= 1.0 {
            let _ = write!(text, " (the latest {:.1} s behind)", self.latest_submit_seconds);
        }
        text.push('\n');
        for (state, count) in &self.by_state {
            let _ = writeln!(text, "{count:>8}  {state}");
        }
        for (why, count) in &self.refusals {
            let _ = writeln!(text, "{count:>8}  refused: {why}");
        }
        for note in &self.notes {
            let _ = writeln!(text, "Note: {note}.");
        }
        let counted: u64 = self.by_state.values().sum();
        text.push_str(&match (self.interrupted, self.adds_up()) {
            (true, _) => format!(
                "Interrupted: {} jobs were not submitted, {} are not over. They go on; `tessera \
                 queue` shows them, and `tessera cancel` ends them.\n",
                self.planned - self.accepted - self.refused,
                self.accepted - self.over(),
            ),
            (false, true) => {
                format!("{counted:>8}  in all: every accepted job is over\n")
            }
            (false, false) => {
                format!("{counted:>8}  in all, but {} were accepted\n", self.accepted)
            }
        });
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(accepted: u64, by_state: &[(&str, u64)]) -> Report {
        let by_state = by_state.iter().map(|(state, count)| ((*state).to_owned(), *count));
        Report { planned: 10, accepted, by_state: by_state.collect(), ..Report::default() }
    }

    #[test]
    fn all_is_well_only_if_every_accepted_job_is_over() {
        assert_eq!(report(10, &[("succeeded", 9), ("failed", 1)]).code(), 0);
        assert_eq!(report(10, &[("succeeded", 9)]).code(), 1);
        assert_eq!(report(10, &[("succeeded", 9), ("running", 1)]).code(), 1);
        assert_eq!(Report { refused: 1, ..report(9, &[("succeeded", 9)]) }.code(), 1);
        assert_eq!(Report { interrupted: true, ..report(0, &[]) }.code(), 130);
    }

    #[test]
    fn an_interruption_says_what_remains() {
        let stopped = report(4, &[("succeeded", 1), ("running", 3)]);

        let told = Report { interrupted: true, ..stopped }.told();

        assert!(told.contains("6 jobs were not submitted, 3 are not over"), "{told}");
    }

    #[test]
    fn a_sum_that_is_wrong_is_told() {
        let told = report(10, &[("succeeded", 9)]).told();

        assert!(told.contains("9  in all, but 10 were accepted"), "{told}");
    }
}
