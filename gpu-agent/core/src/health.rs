//! The health of one GPU: its faults, the actions that they require, and the quarantine of a GPU
//! that fails repeatedly. Pure.

use serde::{Deserialize, Serialize};
use tessera_frames::cluster::{
    FAULT_ATTEMPTS_MAX, FAULTS_MAX, FaultAction, FaultCause, GpuFault, Quarantine,
};
use tessera_model::mig::Slot;
use tessera_model::{AttemptId, BootId, Millis};

/// Equal faults within this time of each other count as one.
const SAME_WITHIN: Millis = Millis::from_secs(60);
/// Equal faults further apart than this count again against the GPU.
const APART: Millis = Millis::from_secs(600);
/// This many distinct faults…
const REPEATED_FAULTS: usize = 3;
/// …within this time quarantine a GPU, until the oldest of them is older than this.
const REPEATED_WITHIN: Millis = Millis::from_secs(24 * 60 * 60);
/// Maximum number of faults that are counted: more than any decision needs.
const COUNTED_MAX: usize = 32;
/// The longest sentence about a fault.
const MESSAGE_CHARS_MAX: usize = 300;

/// A memory error that was contained to one program: the program is the victim, not the cause.
const CONTAINED_ECC: u32 = 94;

/// The record of a GPU's faults, which survives restarts of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultHistory {
    faults: Vec<GpuFault>,
    /// Faults of the GPU itself, with the time at which each was last seen.
    counted: Vec<(Millis, FaultCause)>,
    mark: Option<Mark>,
}

/// A fault that blocks new attempts until it is fixed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    /// [`FaultAction::Drain`] or stronger.
    action: FaultAction,
    since_unix: Millis,
    /// The boot of the fault; a later boot has reset the GPU.
    boot: BootId,
    reason: String,
    /// Whether the driver itself advised it: then the mark ends with the advice.
    advised: bool,
}

/// One observed fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedFault {
    /// When it occurred, on the wall clock.
    pub at_unix: Millis,
    /// The content.
    pub cause: FaultCause,
    /// The affected instance.
    pub slot: Option<Slot>,
    /// The required action.
    pub action: FaultAction,
    /// Whether the driver advised that.
    pub advised: bool,
    /// The description for users.
    pub message: String,
}

impl FaultHistory {
    /// Records a fault; returns whether it differs from the last one.
    pub fn note(&mut self, seen: ObservedFault, boot: BootId) -> bool {
        let ObservedFault { at_unix, cause, slot, action, advised, message } = seen;
        let message: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
        self.count(&cause, action, at_unix);
        let stronger = self.mark.as_ref().is_none_or(|mark| mark.action < action);
        if action >= FaultAction::Drain && stronger {
            let reason = message.clone();
            self.mark = Some(Mark { action, since_unix: at_unix, boot, reason, advised });
        }
        let same = self.faults.iter_mut().rev().find(|known| {
            known.cause == cause
                && known.slot == slot
                && known.action == action
                && (at_unix.minus(known.at_unix) <= SAME_WITHIN || lasts(&known.cause))
        });
        if let Some(known) = same {
            known.times = known.times.saturating_add(1);
            return false;
        }
        if self.faults.len() >= FAULTS_MAX {
            self.faults.remove(0);
        }
        let attempts = Vec::new();
        self.faults.push(GpuFault { at_unix, cause, slot, attempts, action, times: 1, message });
        true
    }

    fn count(&mut self, cause: &FaultCause, action: FaultAction, at: Millis) {
        if !speaks_against_gpu(cause, action) {
            return;
        }
        let known = self.counted.iter_mut().rev().find(|(_, known)| known == cause);
        match known {
            Some((last, _)) if at.minus(*last) <= APART => *last = (*last).max(at),
            Some(_) | None => self.counted.push((at, cause.clone())),
        }
        if self.counted.len() > COUNTED_MAX {
            self.counted.remove(0);
        }
    }

    /// Adds the attempts that a fault affected.
    pub fn hit(&mut self, at_unix: Millis, cause: &FaultCause, attempts: &[AttemptId]) {
        let fault = self
            .faults
            .iter_mut()
            .rev()
            .find(|fault| fault.cause == *cause && at_unix.minus(fault.at_unix) <= SAME_WITHIN);
        let Some(fault) = fault else { return };
        for attempt in attempts {
            if !fault.attempts.contains(attempt) && fault.attempts.len() < FAULT_ATTEMPTS_MAX {
                fault.attempts.push(*attempt);
            }
        }
    }

    /// Returns the newest faults, oldest first.
    pub fn faults(&self) -> &[GpuFault] {
        &self.faults
    }

    /// Records that the GPU was read in a boot, with its driver's current advice. Returns whether
    /// anything changed.
    pub fn read(&mut self, advice: Option<FaultAction>, boot: BootId, now: Millis) -> bool {
        let before = self.mark.clone();
        self.mark.take_if(|mark| mark.boot != boot || (mark.advised && advice.is_none()));
        if let Some(action) = advice
            && self.mark.as_ref().is_none_or(|mark| mark.action < action)
        {
            let since_unix = before.as_ref().map_or(now, |mark| mark.since_unix);
            let reason = format!("the driver requests it: {}", remedy(action));
            self.mark = Some(Mark { action, since_unix, boot, reason, advised: true });
        }
        self.mark != before
    }

    /// Returns why the GPU must not be used at all; `None` if it may be used.
    pub fn broken(&self) -> Option<String> {
        let mark = self.mark.as_ref().filter(|mark| mark.action >= FaultAction::ResetGpu)?;
        Some(format!("{}: {}", mark.reason, remedy(mark.action)))
    }

    /// Returns why no new attempt may start on the GPU at `now`; `None` if it may.
    pub fn quarantine(&self, now: Millis) -> Option<Quarantine> {
        let drained = self.mark.as_ref().filter(|mark| mark.action == FaultAction::Drain);
        if let Some(mark) = drained {
            let reason = format!("{}: {}", mark.reason, remedy(mark.action));
            return Some(Quarantine { since_unix: mark.since_unix, until_unix: None, reason });
        }
        repeated_faults(&self.counted, now)
    }

    /// Clears the GPU's record of faults.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Returns the required action.
const fn remedy(action: FaultAction) -> &'static str {
    match action {
        FaultAction::Record | FaultAction::RestartApp => "nothing to do",
        FaultAction::Drain => "reset the GPU once it is idle",
        FaultAction::ResetGpu => "reset the GPU (nvidia-smi --gpu-reset) or reboot",
        FaultAction::RestartNode => "reboot the machine",
    }
}

/// Returns whether a fault is a lasting state, which is observed again with each reading.
const fn lasts(cause: &FaultCause) -> bool {
    matches!(cause, FaultCause::Nvml { .. } | FaultCause::Silence)
}

/// Returns whether a fault is the GPU's own. Errors of programs are not evidence against it.
fn speaks_against_gpu(cause: &FaultCause, action: FaultAction) -> bool {
    match cause {
        FaultCause::Xid(CONTAINED_ECC) => true,
        FaultCause::Xid(_) => action >= FaultAction::Drain,
        // An error of the driver as a whole is not evidence against one GPU: no permission, not loaded,
        // no library, too old, of another version.
        FaultCause::Nvml { code, .. } => !matches!(code, 4 | 9 | 12 | 13 | 18),
        FaultCause::Silence => true,
    }
}

/// Quarantines a GPU with three distinct faults within a day, until one of them is a day old.
fn repeated_faults(counted: &[(Millis, FaultCause)], now: Millis) -> Option<Quarantine> {
    let mut recent: Vec<_> = counted
        .iter()
        .filter(|(at, _)| now.minus(*at) < REPEATED_WITHIN)
        .map(|(at, cause)| (*at, cause))
        .collect();
    recent.sort();
    let newest = recent.len().checked_sub(REPEATED_FAULTS).map(|from| &recent[from..])?;
    let (oldest, last) = (newest.first()?.0, newest.last()?.0);
    let names: Vec<_> = newest.iter().map(|(_, cause)| name(cause)).collect();
    let reason = format!("it failed {REPEATED_FAULTS} times in a day: {}", names.join(", "));
    Some(Quarantine { since_unix: last, until_unix: Some(oldest.plus(REPEATED_WITHIN)), reason })
}

fn name(cause: &FaultCause) -> String {
    match cause {
        FaultCause::Xid(xid) => super::xids::describe(*xid),
        FaultCause::Nvml { call, code } => format!("code {code} from {call}"),
        FaultCause::Silence => "no answer".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY: Millis = REPEATED_WITHIN;

    fn boot(number: u128) -> BootId {
        BootId::from_uuid(uuid::Uuid::from_u128(number))
    }

    fn seen(at: u64, xid: u32) -> ObservedFault {
        let action = crate::xids::action(xid, None);
        let cause = FaultCause::Xid(xid);
        let message = crate::xids::describe(xid);
        ObservedFault {
            at_unix: Millis::new(at),
            cause,
            slot: None,
            action,
            advised: false,
            message,
        }
    }

    #[test]
    fn faults_of_programs_never_quarantine_the_gpu() {
        let mut health = FaultHistory::default();
        for day in 0..50 {
            health.note(seen(day * 700_000, 31), boot(1));
        }

        assert_eq!(health.broken(), None);
        assert_eq!(health.quarantine(Millis::new(50 * 700_000)), None);
        assert_eq!(health.faults().len(), FAULTS_MAX);
    }

    #[test]
    fn a_broken_gpu_is_broken_until_a_reboot_or_an_operators_request() {
        let mut health = FaultHistory::default();
        health.note(seen(5, 95), boot(1));

        health.read(None, boot(1), Millis::new(6));
        assert!(health.broken().unwrap().contains("XID 95"), "{health:?}");

        let mut cleared = health.clone();
        cleared.clear();
        assert_eq!(cleared, FaultHistory::default());
        assert!(health.read(None, boot(2), Millis::new(7)));
        assert_eq!(health.broken(), None);
        assert_eq!(health.faults().len(), 1, "its faults are remembered");
    }

    #[test]
    fn an_action_that_the_driver_advised_ends_with_the_advice() {
        let mut health = FaultHistory::default();
        assert!(health.read(Some(FaultAction::Drain), boot(1), Millis::new(9)));
        assert!(!health.read(Some(FaultAction::Drain), boot(1), Millis::new(10)));
        assert!(health.quarantine(Millis::new(10)).unwrap().until_unix.is_none());
        assert!(health.read(Some(FaultAction::ResetGpu), boot(1), Millis::new(11)));
        assert!(health.broken().is_some());

        assert!(health.read(None, boot(1), Millis::new(12)));

        assert_eq!((health.broken(), health.quarantine(Millis::new(12))), (None, None));
    }

    #[test]
    fn three_distinct_faults_in_a_day_quarantine_a_gpu_until_the_first_is_a_day_old() {
        let mut health = FaultHistory::default();
        let hour = 3_600_000;
        for (at, xid) in [(hour, 95), (hour + 1_000, 95), (2 * hour, 119)] {
            health.note(seen(at, xid), boot(1));
        }
        health.read(None, boot(2), Millis::new(2 * hour));
        assert_eq!(health.quarantine(Millis::new(2 * hour)), None, "two faults, one of them twice");

        health.note(seen(3 * hour, 94), boot(2));

        let found = health.quarantine(Millis::new(3 * hour)).unwrap();
        let until = found.until_unix.unwrap();
        assert_eq!(until, Millis::new(hour + 1_000).plus(DAY));
        assert!(found.reason.contains("XID 95") && found.reason.contains("XID 119"), "{found:?}");
        assert!(health.quarantine(Millis::new(until.get() - 1)).is_some());
        assert_eq!(health.quarantine(until), None);
    }

    #[test]
    fn the_same_fault_hours_apart_counts_each_time() {
        let mut health = FaultHistory::default();
        for hour in 1..=3 {
            health.note(seen(hour * 3_600_000, 94), boot(1));
        }

        assert!(health.quarantine(Millis::new(4 * 3_600_000)).is_some());
    }

    #[test]
    fn equal_faults_in_a_row_are_one_with_a_count_and_the_attempts_of_all() {
        let mut health = FaultHistory::default();
        let attempts: Vec<_> =
            (1..=2).map(|n| AttemptId::from_uuid(uuid::Uuid::from_u128(n))).collect();
        assert!(health.note(seen(1_000, 31), boot(1)));
        assert!(!health.note(seen(2_000, 31), boot(1)));
        health.hit(Millis::new(1_000), &FaultCause::Xid(31), &attempts[..1]);
        health.hit(Millis::new(2_000), &FaultCause::Xid(31), &attempts);

        let [fault] = health.faults() else { panic!("{health:?}") };
        assert_eq!((fault.times, &fault.attempts), (2, &attempts));
    }

    proptest! {
        /// Only the history and the time decide, and everything stays bounded.
        #[test]
        fn quarantine_is_a_function_of_history_and_always_ends(
            history in prop::collection::vec((0..200_000_000_u64, prop::sample::select(vec![31_u32, 79, 94, 95, 119, 7])), 0..80),
            later in 0..400_000_000_u64,
        ) {
            let mut history = history;
            history.sort_unstable();
            let mut health = FaultHistory::default();
            for (at, xid) in &history {
                health.note(seen(*at, *xid), boot(1));
            }
            health.read(None, boot(2), Millis::new(later));
            prop_assert!(health.faults().len() <= FAULTS_MAX && health.counted.len() <= COUNTED_MAX);
            let restored: FaultHistory =
                serde_json::from_str(&serde_json::to_string(&health).unwrap()).unwrap();
            prop_assert_eq!(&restored, &health);
            let now = Millis::new(later);
            prop_assert_eq!(restored.quarantine(now), health.quarantine(now));
            if let Some(found) = health.quarantine(now) {
                let until = found.until_unix.expect("the quarantine ends");
                prop_assert!(until > now && until <= now.max(Millis::new(200_000_000)).plus(DAY));
                prop_assert!(health.quarantine(until.plus(DAY)).is_none());
            }
        }
    }
}
