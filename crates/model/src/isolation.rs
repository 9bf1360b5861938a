//! What keeps jobs of different users apart on a node, and within what they requested.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A limit or a protection that a node does not give its jobs: its kernel or its account can't, or its operator
/// switched it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum IsolationGap {
    /// All jobs run as one account.
    Accounts,
    /// Only jobs of the agent's own account run.
    OtherAccounts,
    /// Host memory.
    MemoryLimit,
    /// Nothing limits the processors that a job uses.
    ProcessorLimit,
    /// The number of processes.
    TaskLimit,
    /// A `/tmp` of each job's own.
    PrivateTmp,
    /// A `/proc` without processes of others.
    HiddenProcesses,
    /// Device nodes that only their own jobs open.
    DeviceNodes,
}

impl IsolationGap {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Accounts,
        Self::OtherAccounts,
        Self::MemoryLimit,
        Self::ProcessorLimit,
        Self::TaskLimit,
        Self::PrivateTmp,
        Self::HiddenProcesses,
        Self::DeviceNodes,
    ];

    /// Returns the word that the API uses for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Accounts => "accounts",
            Self::OtherAccounts => "other_accounts",
            Self::MemoryLimit => "memory_limit",
            Self::ProcessorLimit => "processor_limit",
            Self::TaskLimit => "task_limit",
            Self::PrivateTmp => "private_tmp",
            Self::HiddenProcesses => "hidden_processes",
            Self::DeviceNodes => "device_nodes",
        }
    }

    /// Returns what does not hold, for people.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Accounts => {
                "all jobs run as the agent's account, and are not protected from each other"
            }
            Self::OtherAccounts => "only jobs of the agent's own account run",
            Self::MemoryLimit => "--mem is no limit",
            Self::ProcessorLimit => "--cpus-per-task is no limit",
            Self::TaskLimit => "processes of a job are not limited (tasks_max)",
            Self::PrivateTmp => "jobs share /tmp",
            Self::HiddenProcesses => "jobs see processes of others",
            Self::DeviceNodes => {
                "jobs may open device nodes of other GPUs, as far as permissions allow"
            }
        }
    }

    /// Finds one by its word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|gap| gap.word() == word)
    }
}

impl fmt::Display for IsolationGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gap_is_found_by_its_own_word() {
        for gap in IsolationGap::ALL {
            assert_eq!(IsolationGap::from_word(gap.word()), Some(gap));
        }
        assert_eq!(IsolationGap::from_word("walls"), None);
    }
}
