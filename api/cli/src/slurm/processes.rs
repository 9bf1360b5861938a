//! The processes of jobs on this node, by step: for `scontrol listpids` and `sstat`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::failure::CommandFailure;

/// A process of a job on this node, as the kernel and its environment describe it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobProcess {
    pub pid: u32,
    /// Number of the job that started it.
    pub job: u64,
    /// The step; `None` for the script.
    pub step: Option<u32>,
    /// The process's number on its node and in its step; `None` for one that a process of the job started.
    pub task: Option<(u32, u32)>,
    /// The largest amount of memory that it had so far, in KiB.
    pub peak_kib: u64,
    /// The largest size of its address space so far, in KiB.
    pub virtual_kib: u64,
    /// Processor time, in the kernel's ticks of 10 ms.
    pub ticks: u64,
}

/// What one step used so far on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepUse {
    /// What each of its processes used with those that it started, by their numbers in the step.
    pub tasks: BTreeMap<u32, TaskUse>,
    pub pids: Vec<u32>,
}

/// What one process of a step used so far, with those that it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskUse {
    /// Memory, in KiB.
    pub peak_kib: u64,
    /// Address space, in KiB.
    pub virtual_kib: u64,
    /// Processor time, in milliseconds.
    pub cpu_ms: u64,
}

/// Milliseconds of the kernel's tick, which is the same on all machines.
const TICK_MS: u64 = 10;

impl JobProcess {
    /// Returns the step's name: its number, or `batch`.
    pub fn step_name(&self) -> String {
        self.step.map_or_else(|| "batch".to_owned(), |step| step.to_string())
    }
}

/// Lists the processes of jobs on this node whose environment this account may read, in the order of Slurm: the script's
/// first, then each step's.
pub fn processes() -> Vec<JobProcess> {
    let Ok(folder) = std::fs::read_dir("/proc") else { return Vec::new() };
    let read = folder.filter_map(|entry| read_process(&entry.ok()?.path()));
    let found: Vec<(JobProcess, Kin)> = read.collect();
    let by_pid: BTreeMap<u32, Kin> =
        found.iter().map(|(process, kin)| (process.pid, *kin)).collect();
    let is_first = |kin: &Kin| by_pid.get(&kin.parent).is_none_or(|parent| !kin.is_like(*parent));
    let mut all: Vec<JobProcess> = found
        .into_iter()
        .map(|(process, kin)| JobProcess {
            task: Some((kin.local, kin.rank)).filter(|_| is_first(&kin)),
            ..process
        })
        .collect();
    all.sort_by_key(|process| (process.job, process.step.is_some(), process.step, process.pid));
    all
}

/// What a process has in common with those that it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kin {
    parent: u32,
    job: u64,
    step: Option<u32>,
    local: u32,
    rank: u32,
}

impl Kin {
    /// Returns whether another one belongs to the same process of the same step.
    fn is_like(self, other: Self) -> bool {
        (self.job, self.step, self.rank) == (other.job, other.step, other.rank)
    }
}

fn read_process(folder: &Path) -> Option<(JobProcess, Kin)> {
    let pid: u32 = folder.file_name()?.to_str()?.parse().ok()?;
    let environment = std::fs::read(folder.join("environ")).ok()?;
    let value = |name: &str| {
        let mut pairs = environment.split(|byte| *byte == 0);
        pairs.find_map(|pair| std::str::from_utf8(pair).ok()?.strip_prefix(name)?.strip_prefix('='))
    };
    let number = |name: &str| value(name).and_then(|text| text.parse::<u32>().ok());
    // Only processes that an agent's job started have it.
    value("TESSERA_ATTEMPT_ID")?;
    let job: u64 = value("TESSERA_JOB_ID")?.parse().ok()?;
    let step = number("SLURM_STEP_ID");
    let status = std::fs::read_to_string(folder.join("status")).ok()?;
    let line = |name: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(name))?;
        found.split_whitespace().next()?.parse::<u64>().ok()
    };
    let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
    // Fields count from the state, behind the name in brackets.
    let fields: Vec<&str> = stat.rsplit(") ").next()?.split(' ').collect();
    let ticks = |place: usize| fields.get(place).and_then(|text| text.parse::<u64>().ok());
    let parent = fields.get(1)?.parse().ok()?;
    let (local, rank) = match step {
        Some(_) => (number("SLURM_LOCALID")?, number("SLURM_PROCID")?),
        None => (0, 0),
    };
    let process = JobProcess {
        pid,
        job,
        step,
        task: None,
        peak_kib: line("VmHWM:").unwrap_or(0),
        virtual_kib: line("VmPeak:").unwrap_or(0),
        ticks: ticks(11)?.saturating_add(ticks(12)?),
    };
    Some((process, Kin { parent, job, step, local, rank }))
}

/// Adds up what processes used, by step: each process of a step counts with those that it started, whose number is that
/// of the last process before them.
pub fn used(processes: &[JobProcess]) -> BTreeMap<(bool, Option<u32>), StepUse> {
    let mut steps: BTreeMap<(bool, Option<u32>), StepUse> = BTreeMap::new();
    for process in processes {
        let step = steps.entry((process.step.is_some(), process.step)).or_default();
        step.pids.push(process.pid);
        let last = step.tasks.keys().next_back().copied().unwrap_or(0);
        let task = step.tasks.entry(process.task.map_or(last, |(_, rank)| rank)).or_default();
        task.peak_kib = task.peak_kib.saturating_add(process.peak_kib);
        task.virtual_kib = task.virtual_kib.saturating_add(process.virtual_kib);
        task.cpu_ms = task.cpu_ms.saturating_add(process.ticks.saturating_mul(TICK_MS));
    }
    steps
}

/// Prints the processes of the job that this process belongs to, for `sstat`.
///
/// # Errors
///
/// This is not inside of a job.
pub fn print_own() -> Result<u8, CommandFailure> {
    let own = std::env::var("TESSERA_JOB_ID").ok().and_then(|job| job.parse::<u64>().ok());
    let own = own.ok_or_else(|| CommandFailure::usage("only sstat calls this, inside of a job"))?;
    let mut all = processes();
    // This process, which the session started, is none of the job's own.
    all.retain(|process| process.job == own && process.pid != std::process::id());
    let text = serde_json::to_string(&all).map_err(std::io::Error::from)?;
    crate::session::write_out(&text)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, step: Option<u32>, task: Option<(u32, u32)>, peak_kib: u64) -> JobProcess {
        JobProcess { pid, job: 7, step, task, peak_kib, virtual_kib: 10, ticks: 3 }
    }

    #[test]
    fn what_a_process_started_counts_with_it() {
        let all = [
            process(10, None, Some((0, 0)), 100),
            process(11, None, None, 50),
            process(20, Some(0), Some((0, 0)), 1),
            process(21, Some(0), Some((1, 1)), 2),
            process(22, Some(0), None, 4),
        ];

        let steps = used(&all);

        let batch = &steps[&(false, None)];
        assert_eq!(
            (batch.pids.len(), batch.tasks[&0].peak_kib, batch.tasks[&0].cpu_ms),
            (2, 150, 60)
        );
        let step = &steps[&(true, Some(0))];
        assert_eq!((step.tasks[&0].peak_kib, step.tasks[&1].peak_kib), (1, 6));
        assert_eq!((all[0].step_name(), all[2].step_name()), ("batch".to_owned(), "0".to_owned()));
    }

    #[test]
    fn a_process_of_a_job_is_found_with_its_step_and_what_it_started_without_a_number() {
        use std::io::Read as _;
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; wait"])
            .env("TESSERA_ATTEMPT_ID", "attempt-of-this-test")
            .env("TESSERA_JOB_ID", "4242")
            .env("SLURM_STEP_ID", "3")
            .env("SLURM_PROCID", "5")
            .env("SLURM_LOCALID", "1")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = [0; 16];
        let read = child.stdout.as_mut().unwrap().read(&mut printed).unwrap();
        let started: u32 = std::str::from_utf8(&printed[..read]).unwrap().trim().parse().unwrap();

        let own: Vec<_> = processes().into_iter().filter(|one| one.job == 4242).collect();

        child.kill().unwrap();
        child.wait().unwrap();
        let sleeper = rustix::process::Pid::from_raw(i32::try_from(started).unwrap()).unwrap();
        rustix::process::kill_process(sleeper, rustix::process::Signal::KILL).unwrap();
        let task = |pid: u32| own.iter().find(|one| one.pid == pid).map(|one| (one.step, one.task));
        assert_eq!(task(child.id()), Some((Some(3), Some((1, 5)))));
        assert_eq!(task(started), Some((Some(3), None)));
    }
}
