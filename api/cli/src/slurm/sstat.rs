//! `sstat`: what the steps of running jobs use now, read by a short session in each job.

use clap::{ArgAction, Parser};
use tessera_api_types::{JobRecord, RecordFilter, SessionOpening};
use tessera_model::number::clamped;
use tessera_model::{JobId, JobRef};

use super::lists::{ListColumn, ListSeparator, ListStyle, choose, draw, left, right};
use super::processes::{JobProcess, StepUse, TaskUse, used};
use super::squeue::parse_job;
use super::times::long_span;
use super::{Done, SlurmFailure, VERSION, connect, words, write_out};
use crate::failure::CommandFailure;
use crate::interactive::{Collected, Conversation, LocalInput, SessionEnd};
use crate::own_program;
use crate::session::CommandSession;

/// The command of this program that lists a job's processes, inside of the job.
const COMMAND: &str = "job-processes";

const DEFAULT: &str = "jobid,maxvmsize,maxvmsizenode,maxvmsizetask,avevmsize,maxrss,maxrssnode,maxrsstask,averss,mincpu,\
                       mincpunode,mincputask,avecpu,ntasks";
const PIDS: &str = "jobid,nodelist,pids";

const COLUMNS: &[ListColumn] = &[
    left("JobID", 12),
    right("MaxVMSize", 10),
    right("MaxVMSizeNode", 14),
    right("MaxVMSizeTask", 14),
    right("AveVMSize", 10),
    right("MaxRSS", 10),
    right("MaxRSSNode", 10),
    right("MaxRSSTask", 10),
    right("AveRSS", 10),
    right("MinCPU", 10),
    right("MinCPUNode", 10),
    right("MinCPUTask", 10),
    right("AveCPU", 10),
    right("NTasks", 8),
    right("Nodelist", 20),
    right("Pids", 20),
    right("TRESUsageInMax", 40),
];

/// Shows what running jobs use now, as Slurm's sstat does.
#[derive(Parser)]
#[command(disable_help_flag = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of sstat")]
pub struct Sstat {
    /// The jobs or steps, such as 42 or 42.batch, separated by commas
    #[arg(short, long, value_name = "JOBS", required_unless_present_any = ["version", "helpformat"])]
    jobs: Vec<String>,
    /// All steps of a job; by default the first one that srun started
    #[arg(short, long)]
    allsteps: bool,
    /// The columns, separated by commas, with widths such as jobid%-20
    #[arg(short = 'o', long, visible_alias = "fields", value_name = "COLUMNS")]
    format: Vec<String>,
    /// Numbers of processes instead of amounts
    #[arg(short = 'i', long)]
    pidformat: bool,
    /// Omit the headings
    #[arg(short, long)]
    noheader: bool,
    /// Separate columns by |, with one at the end
    #[arg(short, long)]
    parsable: bool,
    /// Separate columns by |
    #[arg(short = 'P', long)]
    parsable2: bool,
    /// Accepted: amounts are in KiB
    #[arg(long)]
    noconvert: bool,
    /// List the columns
    #[arg(short = 'e', long)]
    helpformat: bool,
    /// Accepted
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    /// Print help
    #[arg(short = 'h', long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// A step's use on one node.
struct OnNode {
    node: String,
    used: StepUse,
}

impl Sstat {
    /// Shows the steps.
    pub async fn run(self) -> Done {
        if self.version {
            write_out(&format!("{VERSION}\n"))?;
            return Ok(0);
        }
        if self.helpformat {
            let names = COLUMNS.iter().map(|column| column.name);
            write_out(&(names.collect::<Vec<_>>().join("\n") + "\n"))?;
            return Ok(0);
        }
        let list = match (self.format.is_empty(), self.pidformat) {
            (false, _) => self.format.join(","),
            (true, true) => PIDS.to_owned(),
            (true, false) => DEFAULT.to_owned(),
        };
        let chosen = choose("sstat", &list, COLUMNS)?;
        let session = connect()?;
        let (mut rows, mut code) = (Vec::new(), 0);
        for word in words(&self.jobs) {
            let (job, step) = word.split_once('.').map_or((&*word, None), |(j, s)| (j, Some(s)));
            if parse_job(job).is_none() {
                return Err(SlurmFailure::Message(format!("sstat: fatal: Invalid job id: {word}")));
            }
            let found = self.steps(&session, job, step).await?;
            if found.is_empty() {
                eprintln!("sstat: error: no steps running for job {word}");
                code = 1;
            }
            rows.extend(found);
        }
        let style = ListStyle {
            has_header: !self.noheader,
            is_ruled: true,
            separator: ListSeparator::of(self.parsable, self.parsable2),
        };
        write_out(&draw(style, &chosen, &rows))?;
        Ok(code)
    }

    /// Returns a line for each step of a job that runs.
    async fn steps(
        &self,
        session: &CommandSession,
        job: &str,
        step: Option<&str>,
    ) -> Result<Vec<Vec<String>>, SlurmFailure> {
        let filter = RecordFilter { jobs: Some(job.to_owned()), ..RecordFilter::default() };
        let records = session.client.records(&filter).await?.jobs;
        let mut nodes: Vec<(String, Vec<JobProcess>)> = Vec::new();
        for record in one_of_each_node(&records) {
            let node = record.node.clone().unwrap_or_default();
            nodes.push((node, processes_of(session, record).await?));
        }
        let mut names: Vec<(bool, Option<u32>)> =
            nodes.iter().flat_map(|(_, all)| used(all).into_keys()).collect();
        names.sort_unstable();
        names.dedup();
        let shown = |name: &&(bool, Option<u32>)| match step {
            Some("batch") => !name.0,
            Some(number) => name.1.is_some_and(|own| own.to_string() == number),
            None => self.allsteps || name.0,
        };
        let first_only = step.is_none() && !self.allsteps;
        let names = names.iter().filter(shown).take(if first_only { 1 } else { usize::MAX });
        let rows = names.map(|name| {
            let on_nodes = nodes.iter().filter_map(|(node, all)| {
                Some(OnNode { node: node.clone(), used: used(all).remove(name)? })
            });
            let label = name.1.map_or_else(|| "batch".to_owned(), |number| number.to_string());
            row(&format!("{job}.{label}"), &on_nodes.collect::<Vec<_>>())
        });
        Ok(rows.collect())
    }
}

/// Returns one running member of a job for each of its nodes.
fn one_of_each_node(records: &[JobRecord]) -> Vec<&JobRecord> {
    let mut chosen: Vec<&JobRecord> = Vec::new();
    for record in records.iter().filter(|record| record.state == "running") {
        if !chosen.iter().any(|other| other.node == record.node) {
            chosen.push(record);
        }
    }
    chosen
}

/// Reads the processes of a job on one of its nodes.
async fn processes_of(
    session: &CommandSession,
    record: &JobRecord,
) -> Result<Vec<JobProcess>, SlurmFailure> {
    let program = own_program::words(COMMAND).map_err(CommandFailure::from)?;
    let opening = SessionOpening { program, ..SessionOpening::default() };
    let name = (JobRef::Job(JobId::from_number(record.id)), uuid::Uuid::new_v4().to_string());
    let mut printed = Collected::default();
    let talk = Conversation::new(session.client.clone(), name, opening, LocalInput::none());
    match talk.run(&mut printed).await? {
        SessionEnd::Exited(0) => {
            Ok(serde_json::from_slice(&printed.0).map_err(std::io::Error::from)?)
        }
        // It has ended meanwhile.
        SessionEnd::Interrupted(_) | SessionEnd::Replaced | SessionEnd::Exited(_) => Ok(Vec::new()),
        SessionEnd::NotStarted(reason) => {
            Err(SlurmFailure::Message(format!("sstat: error: job {}: {reason}", record.id)))
        }
    }
}

/// Returns a text for each column.
fn row(step: &str, nodes: &[OnNode]) -> Vec<String> {
    let tasks: Vec<(&str, u32, TaskUse)> = nodes
        .iter()
        .flat_map(|on| on.used.tasks.iter().map(|(rank, used)| (on.node.as_str(), *rank, *used)))
        .collect();
    let count = clamped::<u64>(tasks.len()).max(1);
    let greatest = |of: fn(&TaskUse) -> u64| {
        let found = tasks.iter().max_by_key(|(_, rank, used)| (of(used), std::cmp::Reverse(*rank)));
        found.map_or((0, String::new(), String::new()), |(node, rank, used)| {
            (of(used), (*node).to_owned(), rank.to_string())
        })
    };
    let mean = |of: fn(&TaskUse) -> u64| {
        tasks.iter().fold(0_u64, |sum, (_, _, used)| sum.saturating_add(of(used))) / count
    };
    let least = tasks.iter().min_by_key(|(_, rank, used)| (used.cpu_ms, *rank));
    let (min_cpu, min_node, min_task) = least
        .map_or((0, String::new(), String::new()), |(node, rank, used)| {
            (used.cpu_ms, (*node).to_owned(), rank.to_string())
        });
    let (virtual_kib, virtual_node, virtual_task) = greatest(|used| used.virtual_kib);
    let (peak_kib, peak_node, peak_task) = greatest(|used| used.peak_kib);
    let kib = |amount: u64| format!("{amount}K");
    let span = |ms: u64| long_span(ms / 1_000);
    let pids = nodes.iter().flat_map(|on| on.used.pids.iter().map(ToString::to_string));
    let names: Vec<&str> = nodes.iter().map(|on| on.node.as_str()).collect();
    let mean_cpu = mean(|used| used.cpu_ms);
    vec![
        step.to_owned(),
        kib(virtual_kib),
        virtual_node,
        virtual_task,
        kib(mean(|used| used.virtual_kib)),
        kib(peak_kib),
        peak_node,
        peak_task,
        kib(mean(|used| used.peak_kib)),
        span(min_cpu),
        min_node,
        min_task,
        span(mean_cpu),
        tasks.len().to_string(),
        super::hosts::compress(&names),
        pids.collect::<Vec<_>>().join(","),
        format!("cpu={},mem={},vmem={}", span(mean_cpu), kib(peak_kib), kib(virtual_kib)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_over_two_nodes_is_one_line_with_its_extremes() {
        let task = |peak_kib, cpu_ms| TaskUse { peak_kib, virtual_kib: 2 * peak_kib, cpu_ms };
        let on = |node: &str, rank: u32, used: TaskUse| OnNode {
            node: node.to_owned(),
            used: StepUse { tasks: [(rank, used)].into(), pids: vec![100 + rank] },
        };

        let row = row("42.0", &[on("n1", 0, task(100, 90_000)), on("n2", 1, task(300, 30_000))]);

        let shown = |name: &str| {
            let place = COLUMNS.iter().position(|column| column.name == name).unwrap();
            row[place].as_str()
        };
        assert_eq!((shown("JobID"), shown("NTasks"), shown("Nodelist")), ("42.0", "2", "n[1-2]"));
        assert_eq!(
            (shown("MaxRSS"), shown("MaxRSSNode"), shown("MaxRSSTask")),
            ("300K", "n2", "1")
        );
        assert_eq!(
            (shown("AveRSS"), shown("MinCPU"), shown("AveCPU")),
            ("200K", "00:00:30", "00:01:00")
        );
        assert_eq!((shown("MinCPUTask"), shown("Pids")), ("1", "100,101"));
        assert_eq!(row.len(), COLUMNS.len());
    }
}
