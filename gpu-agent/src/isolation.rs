//! Which limits and protections jobs don't have on this node: what the kernel or the account of the agent can't
//! enforce, and what the operator switched off.

use std::collections::BTreeSet;
use std::path::Path;

use tessera_model::isolation::IsolationGap;

use crate::accounts::AccountRules;
use crate::config::AgentConfig;
use crate::shepherd::limits::{self, Controller};

/// Tests what can be tested, and returns the limits and protections that jobs don't have. Takes
/// some milliseconds.
pub fn find_gaps(config: &AgentConfig, data: &Path, program: &Path) -> BTreeSet<IsolationGap> {
    let rules = AccountRules::new(config, data, program.to_owned());
    let mut gaps = rules.isolation_gaps();
    let enforced = if config.cgroups { limits::enforced() } else { Vec::new() };
    let missing = |(controller, _): &(Controller, IsolationGap)| !enforced.contains(controller);
    let limits = [
        (Controller::Memory, IsolationGap::MemoryLimit),
        (Controller::Cpu, IsolationGap::ProcessorLimit),
        (Controller::Pids, IsolationGap::TaskLimit),
    ];
    gaps.extend(limits.into_iter().filter(missing).map(|(_, gap)| gap));
    gaps
}
