//! Checks what prevents a machine from running jobs and partitioning its GPUs, and how to fix it.
//! Pure: the facts are gathered elsewhere.

mod driver;
mod machine;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tessera_frames::cluster::{FINDINGS_MAX, Finding, FindingLevel};
use tessera_model::isolation::IsolationGap;
use tessera_model::{Bytes, Millis};

use crate::nvml::error::NvmlCallError;

/// All facts that were gathered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DoctorFacts {
    /// The machine and this account.
    pub machine: MachineFacts,
    /// The answer of the driver's library.
    pub driver: DriverAnswer,
}

/// The result of querying the driver's library.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum DriverAnswer {
    /// It answered.
    Reported(DriverFacts),
    /// It could not be used.
    Refused(NvmlCallError),
    /// It didn't answer in time, or crashed.
    #[default]
    Silent,
}

/// The answer of the driver's library.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DriverFacts {
    /// Version of the driver that the library talks to.
    pub driver: Option<String>,
    /// Version of the library.
    pub library: Option<String>,
    /// The GPUs, by index.
    pub gpus: Vec<GpuCheckup>,
    /// Indexes of GPUs that don't answer, with the driver's error.
    pub lost: Vec<(u32, NvmlCallError)>,
}

/// One GPU. A fact that the driver can't report is `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuCheckup {
    /// The number by which NVML lists the GPU.
    pub index: u32,
    /// The driver's name for the board.
    pub model: String,
    /// Current and pending MIG mode; `Ok(None)` where the board has no MIG.
    pub mig: Result<Option<(bool, bool)>, NvmlCallError>,
    /// The driver's answer to a query that needs the right to configure MIG.
    pub may_cut: Result<(), NvmlCallError>,
    /// Whether persistence mode is on.
    pub persistence: Option<bool>,
    /// Whether it drives a display.
    pub display: Option<bool>,
    /// Processes that use it, from the driver's lists.
    pub processes: Vec<u32>,
}

/// The machine, and this account on it.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact")]
pub struct MachineFacts {
    /// Whether this account is root.
    pub root: bool,
    /// Whether the file that gives the right to configure MIG may be opened; `None` if the driver
    /// has none.
    pub mig_config_file: Option<bool>,
    /// Whether the launcher starts the program that divides GPUs as root, for an agent that isn't.
    pub nvml_worker: bool,
    /// Version of the loaded kernel module; `None` if none is loaded.
    pub module: Option<String>,
    /// Whether the free driver `nouveau` is loaded.
    pub nouveau: bool,
    /// Processes that have a GPU's files open, or are known to interfere.
    pub processes: Vec<ProcessFacts>,
    /// Services that would change layouts by themselves.
    pub competing_services: Vec<String>,
    /// Whether control groups are those of version 2.
    pub cgroup2: bool,
    /// Which limits and protections jobs don't have here.
    pub isolation_gaps: BTreeSet<IsolationGap>,
    /// The folder that holds everything that the agent keeps.
    pub data: Option<DiskFacts>,
    /// The wall clock, milliseconds since 1970.
    pub now_unix: Millis,
    /// Whether something keeps the clock synchronised; `None` if that can't be determined.
    pub clock_kept: Option<bool>,
    /// Maximum number of files that a process may open.
    pub open_files: Option<u64>,
    /// NVIDIA's MPS control program; `None` if it isn't there.
    pub mps_control: Option<String>,
    /// Whether MPS can't be started for the accounts of jobs.
    pub mps_refused: bool,
    /// Whether the agent may raise the priority of threads that launches wait for; `None` without a kernel queue.
    pub raises_priority: Option<bool>,
    /// Memory that a process may lock; `None` means no limit.
    pub locked_memory: Option<Bytes>,
}

/// A process that matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    /// The process as the kernel numbers it.
    pub pid: u32,
    /// Its name in the kernel (at most 15 characters).
    pub name: String,
    /// Whether it belongs to this agent or to an attempt.
    pub ours: bool,
    /// The GPUs whose files it has open, by the numbers of these.
    pub gpus: Vec<u32>,
}

/// The space on the file system of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFacts {
    /// The folder on it that was examined.
    pub path: String,
    /// The free space for this account.
    pub free: Bytes,
    /// Its size.
    pub total: Bytes,
}

/// Evaluates all checks; passed checks are listed, too.
pub fn findings(facts: &DoctorFacts) -> Vec<Finding> {
    let mut found = machine::findings(&facts.machine);
    found.extend(driver::findings(facts));
    found.truncate(FINDINGS_MAX);
    found
}

/// Returns what the agent may and may not do here, in one sentence.
pub fn summary(facts: &DoctorFacts) -> String {
    let DriverAnswer::Reported(driver) = &facts.driver else {
        return "may run nothing on GPUs: the driver's library can't be used".to_owned();
    };
    if driver.gpus.is_empty() {
        return "may run nothing on GPUs: the driver lists none".to_owned();
    }
    let numbers = |keep: &dyn Fn(&GpuCheckup) -> bool| -> Vec<String> {
        driver.gpus.iter().filter(|gpu| keep(gpu)).map(|gpu| gpu.index.to_string()).collect()
    };
    let cut = numbers(&|gpu| driver::may_cut(facts, gpu) && matches!(gpu.mig, Ok(Some(_))));
    let whole = numbers(&|gpu| matches!(gpu.mig, Ok(None | Some((false, _)))));
    let blocked =
        numbers(&|gpu| matches!(gpu.mig, Ok(Some((true, _)))) && !driver::may_cut(facts, gpu));
    let mut parts = Vec::new();
    if !cut.is_empty() {
        parts.push(format!("may partition GPU {}", cut.join(", ")));
    }
    if !whole.is_empty() {
        parts.push(format!("may run jobs on the whole GPU {}", whole.join(", ")));
    }
    if !blocked.is_empty() {
        parts.push(format!(
            "may neither partition nor use GPU {}: it is partitioned, and this account has no \
             permission",
            blocked.join(", ")
        ));
    }
    parts.join("; ")
}

fn finding(check: &str, level: FindingLevel, text: impl Into<String>) -> Finding {
    Finding { check: check.to_owned(), level, gpu: None, text: text.into(), remedy: None }
}

fn ok(check: &str, text: impl Into<String>) -> Finding {
    finding(check, FindingLevel::Ok, text)
}

fn with_remedy(
    check: &str,
    level: FindingLevel,
    text: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    Finding { remedy: Some(remedy.into()), ..finding(check, level, text) }
}
