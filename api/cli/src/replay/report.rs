//! The result of a replay.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use tessera_model::life::JobState;
use utoipa::ToSchema;

/// The result of submitting the jobs of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct ReplayReport {
    /// Number of jobs in the trace that were to be submitted.
    pub planned: u64,
    /// Number of jobs that the controller accepted.
    pub accepted: u64,
    /// Number of jobs that it refused.
    pub refused: u64,
    /// Reasons of refusals, with their numbers.
    pub refusals: BTreeMap<String, u64>,
    /// Number of accepted jobs by state; each is counted once.
    pub by_state: BTreeMap<String, u64>,
    /// Seconds from the first submit to the last job's end.
    pub seconds: f64,
    /// Largest delay of a submit after its planned time, in seconds.
    pub latest_submit_seconds: f64,
    /// Whether the user interrupted it.
    pub interrupted: bool,
    /// Parts of the trace that were not submitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The exit code of a program that Ctrl-C ended, as shells have it.
const INTERRUPTED: u8 = 130;

impl ReplayReport {
    /// Returns whether every accepted job is counted, and has ended.
    pub fn adds_up(&self) -> bool {
        let counted: u64 = self.by_state.values().sum();
        counted == self.accepted && self.over() == counted
    }

    /// Counts the jobs that have ended.
    fn over(&self) -> u64 {
        let is_final = |state: &str| state.parse().is_ok_and(JobState::is_final);
        self.by_state.iter().filter(|(state, _)| is_final(state)).map(|(_, count)| count).sum()
    }

    /// Returns the exit code: 0 only if every job was accepted and has ended.
    pub fn code(&self) -> u8 {
        match (self.interrupted, self.adds_up() && self.refused == 0) {
            (true, _) => INTERRUPTED,
            (false, true) => 0,
            (false, false) => 1,
        }
    }

    /// Formats the report for people.
    pub fn describe(&self) -> String {
        let mut text =
            format!("{} of {} jobs accepted in {:.1} s", self.accepted, self.planned, self.seconds);
        if self.latest_submit_seconds >= 1.0 {
            let _ = write!(text, " (the latest one {:.1} s late)", self.latest_submit_seconds);
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
                "Interrupted: {} jobs were not submitted, {} have not ended. These continue; \
                 `tessera queue` shows them, and `tessera cancel` ends them.\n",
                self.planned - self.accepted - self.refused,
                self.accepted - self.over(),
            ),
            (false, true) => {
                format!("{counted:>8}  in total: every accepted job has ended\n")
            }
            (false, false) => {
                format!("{counted:>8}  in total, but {} were accepted\n", self.accepted)
            }
        });
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(accepted: u64, by_state: &[(&str, u64)]) -> ReplayReport {
        let by_state = by_state.iter().map(|(state, count)| ((*state).to_owned(), *count));
        ReplayReport {
            planned: 10,
            accepted,
            by_state: by_state.collect(),
            ..ReplayReport::default()
        }
    }

    #[test]
    fn the_code_is_0_only_if_every_accepted_job_has_ended() {
        assert_eq!(report(10, &[("succeeded", 9), ("failed", 1)]).code(), 0);
        assert_eq!(report(10, &[("succeeded", 9)]).code(), 1);
        assert_eq!(report(10, &[("succeeded", 9), ("running", 1)]).code(), 1);
        assert_eq!(ReplayReport { refused: 1, ..report(9, &[("succeeded", 9)]) }.code(), 1);
        assert_eq!(ReplayReport { interrupted: true, ..report(0, &[]) }.code(), 130);
    }

    #[test]
    fn an_interruption_reports_the_remaining_jobs() {
        let stopped = report(4, &[("succeeded", 1), ("running", 3)]);

        let text = ReplayReport { interrupted: true, ..stopped }.describe();

        assert!(text.contains("6 jobs were not submitted, 3 have not ended"), "{text}");
    }

    #[test]
    fn a_wrong_sum_is_reported() {
        let text = report(10, &[("succeeded", 9)]).describe();

        assert!(text.contains("9  in total, but 10 were accepted"), "{text}");
    }
}
