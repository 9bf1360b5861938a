//! Jobs whose GPUs do nothing: their users are warned, and then they end or wait again, as `--idle-timeout` requests.
//!
//! Agents report since when each attempt has done nothing. A job of several GPUs is idle for as long as the busiest of
//! them. An attempt of which nothing is reported is not known to be idle, and nothing happens to it.

use std::collections::BTreeMap;

use tessera_model::idle::{IdleAction, IdleRules};
use tessera_model::life::JobState;
use tessera_model::{AttemptId, Millis};

use crate::attempt_changes::AttemptChanges;
use crate::rows::idle::{IdleDecision, IdleRow};
use crate::state::ClusterState;
use crate::state::attempts::LiveAttempt;

/// How long an attempt has done nothing, as its node last reported; zero if it does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleReport {
    /// The attempt that is watched.
    pub attempt: AttemptId,
    /// How long.
    pub idle: Millis,
}

/// Decides about a job that has done nothing for `idle`, and was warned at `warned`.
///
/// Time since the warning counts, too: a job that nobody watched for an hour still has its half of the timeout. A new
/// leader knows of no warning, and warns again.
fn decide(
    rules: IdleRules,
    idle: Millis,
    warned: Option<Millis>,
    now: Millis,
) -> Option<IdleDecision> {
    let grace = rules.timeout.minus(rules.warns_after());
    match warned {
        None => (idle >= rules.warns_after()).then_some(IdleDecision::Warned),
        Some(at) if idle >= rules.timeout && now >= at.plus(grace) => Some(match rules.action {
            IdleAction::End => IdleDecision::Ended,
            IdleAction::Requeue => IdleDecision::Requeued,
        }),
        Some(_) => None,
    }
}

/// Returns what the user reads.
fn event_text(decision: IdleDecision, rules: IdleRules, idle: Millis) -> String {
    let (seconds, limit) = (idle.get() / 1_000, rules.timeout.get() / 1_000);
    let follows = match rules.action {
        IdleAction::End => "it ends",
        IdleAction::Requeue => "it goes back to the queue",
    };
    match decision {
        IdleDecision::Warned => format!(
            "warning: its GPU has done nothing for {seconds} s; at {limit} s {follows} (--idle-timeout)"
        ),
        IdleDecision::Ended => {
            format!("ended, since its GPU did nothing for {seconds} s (--idle-timeout)")
        }
        IdleDecision::Requeued => {
            format!(
                "sent back to the queue, since its GPU did nothing for {seconds} s (--idle-timeout)"
            )
        }
    }
}

fn rules_of(live: &LiveAttempt) -> Option<IdleRules> {
    live.launch_spec.as_ref()?.spec.idle
}

impl ClusterState {
    /// Lists the running attempts whose users limit how long they may be idle.
    pub fn idle_watched(&self) -> Vec<AttemptId> {
        let live = self.attempts.live.iter();
        let running = live.filter(|(_, live)| live.state == JobState::Running);
        running.filter(|(_, live)| rules_of(live).is_some()).map(|(attempt, _)| *attempt).collect()
    }
}

impl AttemptChanges<'_> {
    /// Takes in what is reported of idle attempts, and carries out what follows.
    pub(crate) fn record_idle(&mut self, reports: &[IdleReport], now: Millis) {
        let idle: BTreeMap<AttemptId, Millis> =
            reports.iter().map(|report| (report.attempt, report.idle)).collect();
        self.watches.idle.retain(|attempt, _| self.attempts.live.contains_key(attempt));
        for attempt in idle.keys() {
            let Some(live) = self.attempts.live.get(attempt) else { continue };
            let Some(rules) = rules_of(live) else { continue };
            // A gang is decided about once, by its first member.
            let mut members = self.attempts.gang_attempts(*attempt);
            members.retain(|of| self.attempts.live.get(of).is_some_and(|live| live.end.is_none()));
            if members.iter().min() != Some(attempt)
                || live.state != JobState::Running
                || live.requeue
            {
                continue;
            }
            let job = live.gang.map_or(live.job, |gang| gang.gang);
            let of_all: Option<Vec<Millis>> =
                members.iter().map(|member| idle.get(member).copied()).collect();
            let Some(least) = of_all.and_then(|all| all.into_iter().min()) else { continue };
            if least < rules.warns_after() {
                self.watches.idle.remove(attempt);
            }
            let warned = self.watches.idle.get(attempt).copied();
            let Some(decision) = decide(rules, least, warned, now) else { continue };
            let event = event_text(decision, rules, least);
            self.jobs.idle.push(IdleRow { job, decision, event });
            match decision {
                IdleDecision::Warned => {
                    self.watches.idle.insert(*attempt, now);
                }
                IdleDecision::Ended => self.end_idle(&members),
                IdleDecision::Requeued => {
                    self.requeue_attempts(&members);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(secs: u64, action: IdleAction) -> IdleRules {
        IdleRules { timeout: Millis::from_secs(secs), action }
    }

    #[test]
    fn a_job_is_warned_at_half_of_its_timeout_and_then_ends_or_waits_again() {
        let secs = Millis::from_secs;
        for (action, decision) in
            [(IdleAction::End, IdleDecision::Ended), (IdleAction::Requeue, IdleDecision::Requeued)]
        {
            let rules = rules(100, action);
            assert_eq!(decide(rules, secs(49), None, secs(0)), None);
            assert_eq!(decide(rules, secs(50), None, secs(0)), Some(IdleDecision::Warned));
            assert_eq!(decide(rules, secs(99), Some(secs(0)), secs(49)), None);
            assert_eq!(decide(rules, secs(100), Some(secs(0)), secs(50)), Some(decision));
            // Found idle for long: it is warned first, and has as long as any other.
            assert_eq!(decide(rules, secs(9_000), None, secs(0)), Some(IdleDecision::Warned));
            assert_eq!(decide(rules, secs(9_049), Some(secs(0)), secs(49)), None);
        }
    }

    #[test]
    fn the_user_reads_how_long_it_was_and_what_follows() {
        let text =
            |decision, action| event_text(decision, rules(1_800, action), Millis::from_secs(900));
        assert_eq!(
            text(IdleDecision::Warned, IdleAction::Requeue),
            "warning: its GPU has done nothing for 900 s; at 1800 s it goes back to the queue (--idle-timeout)"
        );
        assert!(
            text(IdleDecision::Ended, IdleAction::End)
                .starts_with("ended, since its GPU did nothing for 900 s")
        );
        assert!(
            text(IdleDecision::Requeued, IdleAction::Requeue).starts_with("sent back to the queue")
        );
    }

    proptest! {
        /// Whatever a busy program's pauses are: shorter ones than half of the timeout have no effect at all, and
        /// shorter ones than the timeout end nothing.
        #[test]
        fn a_busy_job_is_never_ended(
            timeout in 10_u64..10_000,
            pauses in proptest::collection::vec(0_u64..12_000, 1..60),
        ) {
            let rules = rules(timeout, IdleAction::End);
            let (mut warned, mut now) = (None, Millis::ZERO);
            for pause in pauses {
                // Reports come every five seconds, and the first after each pause shows activity.
                for idle in (0..=pause).step_by(5) {
                    let idle = Millis::from_secs(idle);
                    now = now.plus(Millis::from_secs(5));
                    if idle < rules.warns_after() {
                        warned = None;
                    }
                    match decide(rules, idle, warned, now) {
                        Some(IdleDecision::Warned) => {
                            prop_assert!(idle.get() * 2 >= timeout * 1_000);
                            warned = Some(now);
                        }
                        Some(_) => {
                            prop_assert!(pause >= timeout);
                            prop_assert!(idle >= rules.timeout);
                        }
                        None => {}
                    }
                }
            }
        }
    }
}
