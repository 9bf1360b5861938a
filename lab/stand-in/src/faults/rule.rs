//! One line of a fault list.

use std::collections::BTreeMap;
use std::time::Duration;

/// Longest delay that a fault may request: beyond ten minutes it means `hang`.
const MAX_DELAY_MS: u32 = 600_000;

/// Highest code of NVML, `NVML_ERROR_UNKNOWN`.
const MAX_CODE: u32 = 999;

/// The functions that destroy instances.
const DESTRUCTIONS: [&str; 2] = ["nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy"];

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// The line as it was written, without outer blanks: its identity.
    pub line: String,
    /// The function that it concerns; all if `None`.
    pub call: Option<String>,
    /// The GPU that it concerns.
    pub gpu: Option<u32>,
    /// Which of the matching calls are affected; all if `None`.
    pub hits: Option<HitRange>,
    /// What happens.
    pub action: FaultAction,
}

/// A run of matching calls, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitRange {
    /// The first affected one.
    pub first: u32,
    /// How many are affected.
    pub times: u32,
}

/// What a fault does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// The call returns this code.
    Fail(u32),
    /// The call never returns.
    Hang,
    /// The call takes longer.
    Delay(Duration),
    /// The process aborts.
    Crash,
    /// A change of MIG mode stays pending with this activation status.
    LeavePending(u32),
    /// A destruction reports success and does nothing.
    Ghost,
    /// The GPU is lost.
    Lose,
    /// An event.
    Raise(InjectedEvent),
    /// The GPU's recovery action.
    Recovery(u32),
    /// The GPU's row remapping: 1 for pending, 2 for failed.
    Remap(u32),
}

/// An XID error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectedEvent {
    /// NVIDIA's number.
    pub xid: u32,
    /// The GPU instance that it struck, if it struck one.
    pub gpu_instance: Option<u32>,
    /// The compute instance that it struck, if it struck one.
    pub compute_instance: Option<u32>,
}

/// A line that can't be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault `{line}`: {why}")]
pub struct FaultError {
    /// The rule that can't be read.
    pub line: String,
    /// What is wrong, with what would be right.
    pub why: RuleProblem,
}

/// What is wrong with a line of a fault list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleProblem {
    /// It names a function that doesn't exist.
    #[error("no function {0}")]
    UnknownCall(String),
    /// It changes the state of a GPU, and doesn't name a GPU alone.
    #[error("lost, xid, recovery and remap need gpu=N and no call, nth or times")]
    NotOfGpu,
    /// It fakes a destruction in another function.
    #[error("ghost needs call={0} or call={1}", DESTRUCTIONS[0], DESTRUCTIONS[1])]
    NotOfDestruction,
    /// It leaves a mode pending in another function.
    #[error("activation needs call=nvmlDeviceSetMigMode")]
    NotOfMode,
    /// A key occurs twice.
    #[error("{0} is given twice")]
    Twice(String),
    /// A number is out of its range.
    #[error("{key} must be from {from} to {to}")]
    OutOfRange {
        /// The name of the value that is too large or too small.
        key: &'static str,
        /// The lowest number.
        from: u32,
        /// The highest number.
        to: u32,
    },
    /// A flag has a value.
    #[error("{0} takes no value")]
    TakesNoValue(&'static str),
    /// It has no effect, or several.
    #[error(
        "give exactly one of code=N, hang, delay_ms=N, crash, ghost, activation=N, lost, xid=N, \
         recovery=N, remap=N"
    )]
    NotOneEffect,
    /// A key is unknown, or doesn't belong to the effect.
    #[error("{0} has no meaning here")]
    UnknownKey(String),
}

impl FaultRule {
    /// Reads a fault list.
    ///
    /// # Errors
    ///
    /// [`FaultError`] names the first line that can't be understood. `calls` are the functions
    /// that exist.
    pub fn parse_list(text: &str, calls: &[&str]) -> Result<Vec<Self>, FaultError> {
        text.split(['\n', ';'])
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| {
                Self::parse(line, calls).map_err(|why| FaultError { line: line.to_owned(), why })
            })
            .collect()
    }

    fn parse(line: &str, calls: &[&str]) -> Result<Self, RuleProblem> {
        let mut words = RuleFields::read(line)?;
        let call = words.take_text("call");
        if let Some(unknown) = call.as_deref().filter(|name| !calls.contains(name)) {
            return Err(RuleProblem::UnknownCall(unknown.to_owned()));
        }
        let gpu = words.take("gpu", 0..=u32::MAX)?;
        let nth = words.take("nth", 1..=u32::MAX)?;
        let times = words.take("times", 1..=u32::MAX)?;
        let action = words.take_action()?;
        words.finish()?;
        let hits = (nth.is_some() || times.is_some())
            .then(|| HitRange { first: nth.unwrap_or(1), times: times.unwrap_or(1) });
        let rule = Self { line: line.to_owned(), call, gpu, hits, action };
        rule.check()?;
        Ok(rule)
    }

    /// Returns whether a call is one that the fault counts. `gpu` is `None` for the moment before
    /// a call's GPU is known, so that a fault is met once a call.
    pub fn meets(&self, call: &str, gpu: Option<u32>) -> bool {
        self.gpu == gpu && self.call.as_deref().is_none_or(|name| name == call)
    }

    fn check(&self) -> Result<(), RuleProblem> {
        let state_of_gpu = matches!(
            self.action,
            FaultAction::Lose
                | FaultAction::Raise(_)
                | FaultAction::Recovery(_)
                | FaultAction::Remap(_)
        );
        if state_of_gpu && (self.gpu.is_none() || self.call.is_some() || self.hits.is_some()) {
            return Err(RuleProblem::NotOfGpu);
        }
        let of_destruction = self.call.as_deref().is_some_and(|name| DESTRUCTIONS.contains(&name));
        if self.action == FaultAction::Ghost && !of_destruction {
            return Err(RuleProblem::NotOfDestruction);
        }
        let mode_only = matches!(self.action, FaultAction::LeavePending(_));
        if mode_only && self.call.as_deref() != Some("nvmlDeviceSetMigMode") {
            return Err(RuleProblem::NotOfMode);
        }
        Ok(())
    }
}

impl HitRange {
    /// Returns whether the `count`th matching call, from 1, is affected.
    pub const fn hit(self, count: u32) -> bool {
        count >= self.first && count - self.first < self.times
    }
}

/// The words of one line, by key; words without a value have an empty one.
struct RuleFields<'l>(BTreeMap<&'l str, &'l str>);

impl<'l> RuleFields<'l> {
    fn read(line: &'l str) -> Result<Self, RuleProblem> {
        let mut words = BTreeMap::new();
        for word in line.split_whitespace() {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            if words.insert(key, value).is_some() {
                return Err(RuleProblem::Twice(key.to_owned()));
            }
        }
        Ok(Self(words))
    }

    fn take_text(&mut self, key: &str) -> Option<String> {
        self.0.remove(key).map(str::to_owned)
    }

    fn take(
        &mut self,
        key: &'static str,
        range: std::ops::RangeInclusive<u32>,
    ) -> Result<Option<u32>, RuleProblem> {
        let Some(text) = self.0.remove(key) else { return Ok(None) };
        match text.parse() {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(RuleProblem::OutOfRange { key, from: *range.start(), to: *range.end() }),
        }
    }

    fn take_flag(&mut self, key: &'static str) -> Result<bool, RuleProblem> {
        match self.0.remove(key) {
            None => Ok(false),
            Some("") => Ok(true),
            Some(_) => Err(RuleProblem::TakesNoValue(key)),
        }
    }

    fn take_action(&mut self) -> Result<FaultAction, RuleProblem> {
        let mut found = Vec::new();
        found.extend(self.take("code", 1..=MAX_CODE)?.map(FaultAction::Fail));
        found.extend(self.take("activation", 1..=MAX_CODE)?.map(FaultAction::LeavePending));
        found.extend(self.take("recovery", 0..=4)?.map(FaultAction::Recovery));
        found.extend(self.take("remap", 1..=2)?.map(FaultAction::Remap));
        let delay = self.take("delay_ms", 0..=MAX_DELAY_MS)?;
        found.extend(delay.map(|ms| FaultAction::Delay(Duration::from_millis(ms.into()))));
        if let Some(xid) = self.take("xid", 1..=MAX_CODE)? {
            let gpu_instance = self.take("gi", 0..=u32::MAX)?;
            let compute_instance = self.take("ci", 0..=u32::MAX)?;
            found.push(FaultAction::Raise(InjectedEvent { xid, gpu_instance, compute_instance }));
        }
        for (key, action) in [
            ("hang", FaultAction::Hang),
            ("crash", FaultAction::Crash),
            ("ghost", FaultAction::Ghost),
            ("lost", FaultAction::Lose),
        ] {
            found.extend(self.take_flag(key)?.then_some(action));
        }
        match found.as_slice() {
            [action] => Ok(*action),
            [] | [_, _, ..] => Err(RuleProblem::NotOneEffect),
        }
    }

    fn finish(self) -> Result<(), RuleProblem> {
        match self.0.keys().next() {
            Some(unknown) => Err(RuleProblem::UnknownKey((*unknown).to_owned())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLS: &[&str] = &["nvmlDeviceGetUUID", "nvmlDeviceSetMigMode"];

    #[test]
    fn a_list_is_read_line_by_line_without_comments() {
        let text = "# why\n\n call=nvmlDeviceGetUUID nth=2 code=23 ; gpu=0 xid=79 gi=1\n";

        let rules = FaultRule::parse_list(text, CALLS).unwrap();

        assert_eq!(rules.len(), 2);
        assert_eq!(rules[0].call.as_deref(), Some("nvmlDeviceGetUUID"));
        assert_eq!(rules[0].hits, Some(HitRange { first: 2, times: 1 }));
        assert_eq!(rules[0].action, FaultAction::Fail(23));
        let event = InjectedEvent { xid: 79, gpu_instance: Some(1), compute_instance: None };
        assert_eq!((rules[1].gpu, rules[1].action), (Some(0), FaultAction::Raise(event)));
    }

    #[test]
    fn a_line_that_says_nothing_or_nonsense_is_refused() {
        for line in [
            "call=nvmlDeviceGetUuid code=1",
            "call=nvmlDeviceGetUUID",
            "call=nvmlDeviceGetUUID code=0",
            "call=nvmlDeviceGetUUID code=1 hang",
            "call=nvmlDeviceGetUUID code=1 code=2",
            "call=nvmlDeviceGetUUID code=1 nth=0",
            "call=nvmlDeviceGetUUID code=1 often",
            "call=nvmlDeviceGetUUID hang=1",
            "call=nvmlDeviceGetUUID activation=16",
            "call=nvmlDeviceGetUUID ghost",
            "call=nvmlDeviceGetUUID code=1 gi=1",
            "lost",
            "gpu=0 lost nth=1",
            "xid=79",
            "gpu=-1 code=1",
        ] {
            let refused = FaultRule::parse_list(line, CALLS).unwrap_err();
            assert_eq!(refused.line, line);
        }
    }

    #[test]
    fn nth_and_times_name_a_run_of_calls() {
        let hits = |line: &str| {
            let rule = FaultRule::parse_list(line, CALLS).unwrap().remove(0);
            let hit = |count| rule.hits.is_none_or(|hits| hits.hit(count));
            (1..=5).filter(|count| hit(*count)).collect::<Vec<_>>()
        };

        assert_eq!(hits("code=1"), [1, 2, 3, 4, 5]);
        assert_eq!(hits("code=1 nth=2"), [2]);
        assert_eq!(hits("code=1 times=3"), [1, 2, 3]);
        assert_eq!(hits("code=1 nth=2 times=2"), [2, 3]);
    }
}
