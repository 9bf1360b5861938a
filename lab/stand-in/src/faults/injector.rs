//! Which faults affect a call.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::sync::{Mutex, PoisonError};

use super::rule::{FaultAction, FaultError, FaultRule, InjectedEvent};
use crate::files::FAULT_LIST;
use crate::node::{SimulatedNode, SimulatedNodeError, io_error};

const COUNTS_FILE: &str = "fault-counts.json";
const COUNTS_LOCK: &str = "fault-counts.lock";

/// Calls met so far, by line.
type HitCounts = BTreeMap<String, u32>;

/// The faults of one process on one node.
#[derive(Debug)]
pub struct FaultInjector {
    node: SimulatedNode,
    calls: &'static [&'static str],
    own: Vec<FaultRule>,
    own_counts: Mutex<HitCounts>,
}

/// An event with its line in a fault list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaisedEvent {
    /// The line, which is the event's identity.
    pub line: String,
    /// The GPU that it strikes.
    pub gpu: u32,
    /// What it is.
    pub event: InjectedEvent,
}

/// The events of both fault lists that a process sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaisedEvents {
    /// Of the process's environment.
    pub own: Vec<RaisedEvent>,
    /// Of the node's folder.
    pub shared: Vec<RaisedEvent>,
}

/// Why the faults can't be determined.
#[derive(Debug, thiserror::Error)]
pub enum InjectorError {
    /// A line can't be understood.
    #[error(transparent)]
    BadFault(#[from] FaultError),
    /// The folder can't be used.
    #[error(transparent)]
    Node(#[from] SimulatedNodeError),
}

impl FaultInjector {
    /// Reads the faults of this process. `calls` are the functions that exist.
    ///
    /// # Errors
    ///
    /// [`InjectorError`] if a line, here or in the node's folder, can't be understood.
    pub fn new(
        node: SimulatedNode,
        own: &str,
        calls: &'static [&'static str],
    ) -> Result<Self, InjectorError> {
        let own = FaultRule::parse_list(own, calls)?;
        let injector = Self { node, calls, own, own_counts: Mutex::default() };
        injector.shared()?;
        Ok(injector)
    }

    /// Counts a call, and returns the faults that affect it. Called twice for a call on a GPU:
    /// first with `gpu` left out, then, when its GPU is known, with it.
    ///
    /// # Errors
    ///
    /// [`InjectorError`] if the node's fault list can't be read.
    pub fn strike(&self, call: &str, gpu: Option<u32>) -> Result<Vec<FaultAction>, InjectorError> {
        let mut own_counts = self.own_counts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut actions = struck(&self.own, call, gpu, &mut own_counts);
        drop(own_counts);
        actions.extend(self.strike_shared(call, gpu)?);
        Ok(actions)
    }

    /// Returns the events that the lists raise.
    ///
    /// # Errors
    ///
    /// [`InjectorError`] if the node's fault list can't be read.
    pub fn events(&self) -> Result<RaisedEvents, InjectorError> {
        Ok(RaisedEvents { own: events(&self.own), shared: events(&self.shared()?) })
    }

    /// Returns the recovery action that a GPU calls for: 0, none, unless a fault sets another one.
    ///
    /// # Errors
    ///
    /// [`InjectorError`] if the node's fault list can't be read.
    pub fn recovery(&self, gpu: u32) -> Result<u32, InjectorError> {
        let of_action = |action| if let FaultAction::Recovery(n) = action { Some(n) } else { None };
        Ok(self.actions_on(gpu)?.into_iter().find_map(of_action).unwrap_or(0))
    }

    /// Returns the state of a GPU's row remapping: whether one is pending, and whether one failed.
    ///
    /// # Errors
    ///
    /// [`InjectorError`] if the node's fault list can't be read.
    pub fn remapping(&self, gpu: u32) -> Result<(bool, bool), InjectorError> {
        let actions = self.actions_on(gpu)?;
        Ok((actions.contains(&FaultAction::Remap(1)), actions.contains(&FaultAction::Remap(2))))
    }

    /// Returns whether a GPU is lost.
    ///
    /// # Errors
    ///
    /// [`InjectorError`] if the node's fault list can't be read.
    pub fn is_lost(&self, gpu: u32) -> Result<bool, InjectorError> {
        Ok(self.actions_on(gpu)?.contains(&FaultAction::Lose))
    }

    fn actions_on(&self, gpu: u32) -> Result<Vec<FaultAction>, InjectorError> {
        let shared = self.shared()?;
        let rules = self.own.iter().chain(&shared);
        Ok(rules.filter(|rule| rule.gpu == Some(gpu)).map(|rule| rule.action).collect())
    }

    fn strike_shared(
        &self,
        call: &str,
        gpu: Option<u32>,
    ) -> Result<Vec<FaultAction>, InjectorError> {
        let rules = self.shared()?;
        let counted = rules.iter().any(|rule| rule.hits.is_some() && rule.meets(call, gpu));
        let is_gone = |line: &String| rules.iter().all(|rule| rule.line != *line);
        if !counted && !self.counts()?.keys().any(is_gone) {
            return Ok(struck(&rules, call, gpu, &mut HitCounts::new()));
        }
        let _lock = self.node.lock(COUNTS_LOCK)?;
        let before = self.counts()?;
        let mut counts = before.clone();
        counts.retain(|line, _| !is_gone(line));
        let actions = struck(&rules, call, gpu, &mut counts);
        if counts != before {
            let text = serde_json::to_vec(&counts).expect("counts are plain data");
            self.node.replace(COUNTS_FILE, &text)?;
        }
        Ok(actions)
    }

    fn shared(&self) -> Result<Vec<FaultRule>, InjectorError> {
        let text = self.read_or_default(FAULT_LIST)?;
        Ok(FaultRule::parse_list(&String::from_utf8_lossy(&text), self.calls)?)
    }

    fn counts(&self) -> Result<HitCounts, SimulatedNodeError> {
        // Counts are written in one step, so what can't be read is not ours: begin again.
        Ok(serde_json::from_slice(&self.read_or_default(COUNTS_FILE)?).unwrap_or_default())
    }

    fn read_or_default(&self, name: &str) -> Result<Vec<u8>, SimulatedNodeError> {
        let path = self.node.path(name);
        match fs::read(&path) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(io_error("read", &path)(error)),
        }
    }
}

/// Counts the call for each distinct line that it meets, and returns the faults that affect it.
fn struck(
    rules: &[FaultRule],
    call: &str,
    gpu: Option<u32>,
    counts: &mut HitCounts,
) -> Vec<FaultAction> {
    let mut met = BTreeSet::new();
    rules
        .iter()
        .filter(|rule| rule.meets(call, gpu) && met.insert(&rule.line))
        .filter(|rule| {
            rule.hits.is_none_or(|hits| {
                let count = counts.entry(rule.line.clone()).or_default();
                *count = count.saturating_add(1);
                hits.hit(*count)
            })
        })
        .map(|rule| rule.action)
        .collect()
}

fn events(rules: &[FaultRule]) -> Vec<RaisedEvent> {
    rules
        .iter()
        .filter_map(|rule| {
            let FaultAction::Raise(event) = rule.action else { return None };
            Some(RaisedEvent { line: rule.line.clone(), gpu: rule.gpu?, event })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StandInConfig;

    const CALLS: &[&str] = &["nvmlDeviceGetUUID", "nvmlDeviceGetName"];

    fn node(folder: &tempfile::TempDir) -> SimulatedNode {
        SimulatedNode::open(&StandInConfig::new(folder.path(), &["a30-24gb"])).unwrap()
    }

    #[test]
    fn calls_are_counted_over_all_processes_until_the_line_is_taken_out() {
        let folder = tempfile::tempdir().unwrap();
        let node = node(&folder);
        let one = FaultInjector::new(node.clone(), "", CALLS).unwrap();
        let other = FaultInjector::new(node.clone(), "", CALLS).unwrap();
        let line = "call=nvmlDeviceGetUUID nth=2 code=23";
        node.set_faults(line).unwrap();

        assert_eq!(one.strike("nvmlDeviceGetUUID", None).unwrap(), []);
        assert_eq!(one.strike("nvmlDeviceGetName", None).unwrap(), []);
        assert_eq!(other.strike("nvmlDeviceGetUUID", None).unwrap(), [FaultAction::Fail(23)]);
        assert_eq!(one.strike("nvmlDeviceGetUUID", None).unwrap(), []);

        node.set_faults("").unwrap();
        assert_eq!(one.strike("nvmlDeviceGetUUID", None).unwrap(), []);
        node.set_faults(line).unwrap();
        assert_eq!(one.strike("nvmlDeviceGetUUID", None).unwrap(), []);
        assert_eq!(other.strike("nvmlDeviceGetUUID", None).unwrap(), [FaultAction::Fail(23)]);
    }

    #[test]
    fn a_fault_of_one_gpu_leaves_the_others_alone() {
        let folder = tempfile::tempdir().unwrap();
        let injector =
            FaultInjector::new(node(&folder), "gpu=1 code=15;gpu=1 xid=79", CALLS).unwrap();

        assert_eq!(injector.strike("nvmlDeviceGetName", None).unwrap(), []);
        assert_eq!(injector.strike("nvmlDeviceGetName", Some(0)).unwrap(), []);
        let struck = injector.strike("nvmlDeviceGetName", Some(1)).unwrap();
        assert!(struck.contains(&FaultAction::Fail(15)), "{struck:?}");
    }

    #[test]
    fn a_bad_line_in_the_folder_is_refused_whenever_it_comes() {
        let folder = tempfile::tempdir().unwrap();
        let node = node(&folder);
        let injector = FaultInjector::new(node.clone(), "", CALLS).unwrap();
        node.set_faults("call=nvmlNoSuchThing code=1").unwrap();

        assert!(injector.strike("nvmlDeviceGetName", None).is_err());
        assert!(FaultInjector::new(node, "", CALLS).is_err());
    }
}
