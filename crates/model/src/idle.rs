//! What becomes of a job whose GPU does nothing.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::BadId;
use crate::life::words;
use crate::spec::BadField;
use crate::units::Millis;

/// Shortest time without work: agents report the use of GPUs every few seconds, and programs load data for longer.
pub const IDLE_SECS_MIN: u64 = 10;
/// Longest time, a week: a job that may be idle for longer needs no rule.
const IDLE_SECS_MAX: u64 = 7 * 24 * 3_600;

words! {
    /// What is done with a job whose GPU did nothing for its idle timeout.
    IdleAction {
        /// It ends, as if its user had cancelled it.
        End = "end",
        /// It goes back to the queue, and starts again later.
        Requeue = "requeue",
    }
}

/// How long a job's GPU may do nothing, and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleRules {
    /// How long.
    pub timeout: Millis,
    /// What follows.
    pub action: IdleAction,
}

impl IdleRules {
    /// Reads a request.
    ///
    /// # Errors
    ///
    /// [`BadField`] names what is wrong.
    pub fn parse(
        timeout_secs: Option<u64>,
        action: Option<&str>,
    ) -> Result<Option<Self>, BadField> {
        let Some(secs) = timeout_secs else {
            return match action {
                None => Ok(None),
                Some(_) => Err(BadField::new(
                    "idle_action",
                    "there is no idle timeout that it could follow",
                    "idle_timeout_secs as well",
                )),
            };
        };
        if !(IDLE_SECS_MIN..=IDLE_SECS_MAX).contains(&secs) {
            return Err(BadField::new(
                "idle_timeout_secs",
                format!("{secs} is out of range"),
                format!("{IDLE_SECS_MIN} to {IDLE_SECS_MAX}"),
            ));
        }
        let action = action.map_or(Ok(IdleAction::End), str::parse).map_err(|bad: BadId| {
            BadField::new("idle_action", format!("{:?} is unknown", bad.text), bad.expected)
        })?;
        Ok(Some(Self { timeout: Millis::from_secs(secs), action }))
    }

    /// Returns after how long without work the job is warned: half of its timeout, so that its user has as long to
    /// react as the warning took to come.
    pub const fn warns_after(self) -> Millis {
        Millis::new(self.timeout.get() / 2)
    }
}
