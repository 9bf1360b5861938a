//! `sacct`: accounting of jobs and their runs.

use clap::{ArgAction, Parser};
use serde_json::json;
use tessera_api_types::{RecordFilter, RunRecord};

use super::columns::{Column, Width, column, find, fit};
use super::job::{SlurmJob, exit_code, gather, megabytes, uid};
use super::squeue::{meta, parse_job};
use super::state::{SlurmState, StateFilter};
use super::times::{local, long_span, midnight, now, read, secs_between};
use super::{Done, SlurmFailure, VERSION, connect, hosts, words, write_out};

const DEFAULT: &str = "jobid,jobname,partition,account,alloccpus,state,exitcode";
const BRIEF: &str = "jobid,state,exitcode";
const LONG: &str = "jobid,jobidraw,jobname,partition,maxrss,averss,reqmem,alloccpus,elapsed,state,exitcode,\
                    reqtres,alloctres,nodelist";

/// Shows accounting of jobs, as Slurm's sacct does.
#[derive(Parser)]
#[command(disable_help_flag = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of sacct")]
pub struct Sacct {
    /// Show only these jobs, separated by commas; steps such as 42.0 are understood
    #[arg(short, long, value_name = "JOBS")]
    jobs: Vec<String>,
    /// Show only jobs of these users
    #[arg(short, long, visible_aliases = ["uid"], value_name = "USERS")]
    user: Vec<String>,
    /// Show the jobs of all users
    #[arg(short = 'a', long)]
    allusers: bool,
    /// Show only jobs with these names
    #[arg(long, value_name = "NAMES")]
    name: Vec<String>,
    /// Show only jobs in these states
    #[arg(short = 's', long, value_name = "STATES")]
    state: Vec<String>,
    /// Show only jobs of these accounts
    #[arg(short = 'A', long, visible_alias = "account", value_name = "ACCOUNTS")]
    accounts: Vec<String>,
    /// Show only jobs that ran on these nodes
    #[arg(short = 'N', long, value_name = "NODES")]
    nodelist: Option<String>,
    /// Accepted: jobs of all partitions are shown
    #[arg(short = 'r', long, value_name = "PARTITIONS")]
    partition: Vec<String>,
    /// Show jobs that existed at this time or later; by default since midnight
    #[arg(short = 'S', long, value_name = "TIME")]
    starttime: Option<String>,
    /// Show jobs that existed at this time or earlier; by default now
    #[arg(short = 'E', long, value_name = "TIME")]
    endtime: Option<String>,
    /// The columns, separated by commas, with widths such as jobname%-30
    #[arg(short = 'o', long, value_name = "COLUMNS")]
    format: Vec<String>,
    /// Omit the headings
    #[arg(short, long)]
    noheader: bool,
    /// One line for each job, none for its steps
    #[arg(short = 'X', long)]
    allocations: bool,
    /// Separate columns by |, with one at the end
    #[arg(short, long)]
    parsable: bool,
    /// Separate columns by |
    #[arg(short = 'P', long)]
    parsable2: bool,
    /// Separate the columns of --parsable by this
    #[arg(long, value_name = "TEXT")]
    delimiter: Option<String>,
    /// Show each run of jobs that were requeued
    #[arg(short = 'D', long)]
    duplicates: bool,
    /// Only job, state and exit code
    #[arg(short, long)]
    brief: bool,
    /// More columns
    #[arg(short, long)]
    long: bool,
    /// Show waiting tasks of arrays one by one
    #[arg(long)]
    array: bool,
    /// List the columns
    #[arg(short = 'e', long)]
    helpformat: bool,
    /// Print JSON in Slurm's format
    #[arg(long)]
    json: bool,
    /// Accepted: there is one cluster
    #[arg(short = 'M', long, value_name = "CLUSTERS")]
    clusters: Option<String>,
    /// Accepted: there is one cluster
    #[arg(short = 'L', long)]
    allclusters: bool,
    /// Accepted: times are shown in full
    #[arg(short = 'T', long)]
    truncate: bool,
    /// Accepted: sizes have Slurm's units
    #[arg(long, value_name = "UNIT")]
    units: Option<String>,
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

/// A line: a job, or the script of one of its runs.
struct Line {
    job: SlurmJob,
    run: Option<RunRecord>,
    /// Whether the line stands for the script, which has the measurements.
    batch: bool,
}

/// A column with its width.
type Cell = (&'static Column<Line>, Width);

impl Sacct {
    /// Shows the jobs.
    pub async fn run(self) -> Done {
        if self.version {
            write_out(&format!("{VERSION}\n"))?;
            return Ok(0);
        }
        if self.helpformat {
            write_out(&helpformat())?;
            return Ok(0);
        }
        let cells = self.cells()?;
        let states = StateFilter::parse(&words(&self.state))
            .map_err(|bad| SlurmFailure::Message(format!("sacct: error: {bad}")))?;
        let (jobs, steps) = self.jobs_and_steps()?;
        let session = connect()?;
        let users = match (self.user.is_empty(), self.allusers || !jobs.is_empty()) {
            (false, _) => words(&self.user),
            (true, true) => Vec::new(),
            // Slurm shows everybody's jobs to root, and one's own to others.
            (true, false) => match session.client.who_am_i().await? {
                who if who.role == "user" => vec![who.user],
                _ => Vec::new(),
            },
        };
        let filter = RecordFilter {
            jobs: (!jobs.is_empty()).then(|| jobs.join(",")),
            user: (!users.is_empty()).then(|| users.join(",")),
            name: (!self.name.is_empty()).then(|| words(&self.name).join(",")),
            since: match &self.starttime {
                Some(text) => Some(read(text)?),
                None if jobs.is_empty() => midnight(),
                None => None,
            },
            until: self.endtime.as_deref().map(read).transpose()?,
            specs: true,
            runs: true,
            ..RecordFilter::default()
        };
        let found = gather(session.client.records(&filter).await?);
        let kept = found.into_iter().filter(|job| self.has(job, &states)).collect::<Vec<_>>();
        let kept = if self.array { kept } else { super::job::collapse(kept) };
        let lines: Vec<Line> = kept
            .into_iter()
            .flat_map(|job| self.lines(job))
            .filter(|line| steps.is_empty() || steps.contains(&job_id(line)))
            .collect();
        if self.json {
            return print_json(&lines);
        }
        write_out(&self.draw(&cells, &lines))?;
        Ok(0)
    }

    /// Returns the jobs that were named, and the steps.
    fn jobs_and_steps(&self) -> Result<(Vec<String>, Vec<String>), SlurmFailure> {
        let (mut jobs, mut steps) = (Vec::new(), Vec::new());
        for word in words(&self.jobs) {
            let job = word.split('.').next().unwrap_or_default().to_owned();
            if parse_job(&job).is_none() {
                return Err(SlurmFailure::Message(format!(
                    "sacct: fatal: Bad job/step specified: {word}"
                )));
            }
            jobs.push(job);
            if word.contains('.') {
                steps.push(word);
            }
        }
        Ok((jobs, steps))
    }

    fn has(&self, job: &SlurmJob, states: &StateFilter) -> bool {
        let accounts = words(&self.accounts);
        let nodes = self.nodelist.as_deref().map(|list| hosts::expand(list).unwrap_or_default());
        (self.state.is_empty() || states.has(job.state.accounted()) || states.has(job.state))
            && (accounts.is_empty() || accounts.contains(&job.record.account))
            && nodes.is_none_or(|nodes| job.nodes.iter().any(|node| nodes.contains(node)))
    }

    /// Returns a job's lines: itself, and its script if that was started.
    fn lines(&self, job: SlurmJob) -> Vec<Line> {
        let newest = job.record.runs.last().cloned();
        let mut lines = Vec::new();
        if self.duplicates {
            // The newest run of a job that waits again has ended, and is not the line of the job.
            let is_shown = job.state != SlurmState::Pending;
            let before = job.record.runs.len().saturating_sub(usize::from(is_shown));
            for run in job.record.runs.iter().take(before) {
                lines.push(Line { job: job.clone(), run: Some(run.clone()), batch: false });
            }
        }
        let started = newest.as_ref().is_some_and(|run| run.started_at.is_some());
        let waits = job.state == SlurmState::Pending;
        lines.push(Line { job: job.clone(), run: newest.clone().filter(|_| !waits), batch: false });
        if started && !waits && !self.allocations {
            lines.push(Line { job, run: newest, batch: true });
        }
        lines
    }

    fn cells(&self) -> Result<Vec<Cell>, SlurmFailure> {
        let own = std::env::var("SACCT_FORMAT").ok();
        let list = match (self.format.is_empty(), self.brief, self.long) {
            (false, ..) => self.format.join(","),
            (true, true, _) => BRIEF.to_owned(),
            (true, false, true) => LONG.to_owned(),
            (true, false, false) => own.unwrap_or_else(|| DEFAULT.to_owned()),
        };
        let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
        words.map(parse_cell).collect()
    }

    fn draw(&self, cells: &[Cell], lines: &[Line]) -> String {
        let mut text = String::new();
        let delimiter = self.delimiter.as_deref().unwrap_or("|");
        let parsable = self.parsable || self.parsable2;
        let join = |cells: Vec<String>| match (self.parsable2, parsable) {
            (true, _) => cells.join(delimiter) + "\n",
            (false, true) => cells.iter().map(|c| c.clone() + delimiter).collect::<String>() + "\n",
            (false, false) => {
                cells.iter().map(|cell| cell.clone() + " ").collect::<String>() + "\n"
            }
        };
        let padded =
            |text: &str, width: Width| if parsable { text.to_owned() } else { shown(text, width) };
        if !self.noheader {
            let names = cells.iter().map(|(column, width)| padded(column.heading, *width));
            text += &join(names.collect());
            if !parsable {
                text += &join(cells.iter().map(|(_, width)| "-".repeat(width.letters)).collect());
            }
        }
        for line in lines {
            let of = |(column, width): &Cell| padded(&(column.cell)(line), *width);
            text += &join(cells.iter().map(of).collect());
        }
        text
    }
}

/// Pads a cell; one that is cut ends in `+`, as Slurm's does.
fn shown(text: &str, width: Width) -> String {
    if text.chars().count() > width.letters && width.letters > 1 {
        let cut: String = text.chars().take(width.letters - 1).collect();
        return format!("{cut}+");
    }
    fit(text, width)
}

/// Reads `jobname%-30`.
fn parse_cell(word: &str) -> Result<Cell, SlurmFailure> {
    let (name, width) = word.split_once('%').unwrap_or((word, ""));
    let Some(column) = find(name, COLUMNS) else {
        return Err(SlurmFailure::Message(format!(
            "sacct: error: Invalid field requested: \"{name}\""
        )));
    };
    let (left, number) = width.strip_prefix('-').map_or((false, width), |rest| (true, rest));
    let letters = number.parse().ok().filter(|letters| (1..=4_096).contains(letters));
    // Slurm's own widths: the number of the job is left-aligned.
    let (own, own_right) = match column.name {
        "JobID" => (12, false),
        "JobIDRaw" => (12, false),
        "NodeList" | "Submit" | "Start" | "End" | "Eligible" => {
            (if column.name == "NodeList" { 15 } else { 19 }, true)
        }
        "ExitCode" | "DerivedExitCode" => (8, true),
        "User" => (9, true),
        "Comment" => (14, true),
        _ => (10, true),
    };
    let right = if width.is_empty() { own_right } else { !left };
    Ok((column, Width { letters: letters.unwrap_or(own), right }))
}

fn job_id(line: &Line) -> String {
    if line.batch { format!("{}.batch", line.job.id()) } else { line.job.id() }
}

fn state(line: &Line) -> SlurmState {
    match &line.run {
        // An earlier run ended, and the job goes on or waits again.
        Some(run)
            if line.job.record.attempts > run.number || line.job.state == SlurmState::Pending =>
        {
            SlurmState::of_end(&run.state)
        }
        Some(run) if line.batch => SlurmState::of_end(&run.state),
        _ => line.job.state.accounted(),
    }
}

fn exit(line: &Line) -> String {
    match &line.run {
        Some(run) if line.batch && state(line) == SlurmState::Cancelled => {
            run.exit_code.clone().unwrap_or_else(|| "0:15".to_owned())
        }
        Some(run) => exit_code(state(line), Some(&run.state), run.exit_code.as_deref()),
        None => line.job.exit_code(),
    }
}

fn elapsed(line: &Line) -> u64 {
    let run = line.run.as_ref();
    run.and_then(|run| {
        let start = run.started_at?;
        Some(secs_between(start, run.ended_at.unwrap_or_else(now)))
    })
    .unwrap_or(0)
}

fn processor_ms(line: &Line) -> u64 {
    let run = line.run.as_ref();
    run.map_or(0, |run| run.user_ms.unwrap_or(0).saturating_add(run.system_ms.unwrap_or(0)))
}

/// Shows processor time as `MM:SS.mmm`.
fn processor_time(ms: u64) -> String {
    let secs = ms / 1_000;
    match secs / 3_600 {
        0 => format!("{:02}:{:02}.{:03}", secs / 60, secs % 60, ms % 1_000),
        _ => long_span(secs),
    }
}

fn of_batch(line: &Line, text: impl Fn(&RunRecord) -> Option<String>) -> String {
    line.run.as_ref().filter(|_| line.batch).and_then(text).unwrap_or_default()
}

fn not_batch(line: &Line, text: impl Fn(&SlurmJob) -> String) -> String {
    if line.batch { String::new() } else { text(&line.job) }
}

fn kib(bytes: u64) -> String {
    format!("{}K", bytes / 1_024)
}

fn nodes(line: &Line) -> String {
    let nodes = line.run.as_ref().map_or_else(
        || line.job.node_list(),
        |run| match line.job.nodes.len() {
            0 | 1 => run.node.clone(),
            _ => line.job.node_list(),
        },
    );
    if nodes.is_empty() { "None assigned".to_owned() } else { nodes }
}

fn requested(line: &Line) -> String {
    let (job, cpus) = (&line.job, line.job.cpus());
    let memory = job.request.host_memory_bytes.map_or_else(String::new, |bytes| {
        format!(",mem={}", megabytes(bytes.saturating_mul(job.processes().into())))
    });
    format!(
        "billing={cpus},cpu={cpus},gres/gpu={}{memory},node={}",
        job.request.gpus, job.request.nodes
    )
}

fn allocated(line: &Line) -> String {
    if line.run.is_none() { String::new() } else { requested(line) }
}

static COLUMNS: &[Column<Line>] = &[
    column(None, "JobID", "JobID", "", job_id),
    column(None, "JobIDRaw", "JobIDRaw", "", |line| {
        if line.batch {
            format!("{}.batch", line.job.raw_id())
        } else {
            line.job.raw_id().to_string()
        }
    }),
    column(None, "JobName", "JobName", "", |line| {
        if line.batch { "batch".to_owned() } else { line.job.record.name.clone() }
    }),
    column(None, "State", "State", "", |line| state(line).long().to_owned()),
    column(None, "ExitCode", "ExitCode", "", exit),
    column(None, "DerivedExitCode", "DerivedExitCode", "", |line| {
        not_batch(line, |_| "0:0".to_owned())
    }),
    column(None, "Partition", "Partition", "", |line| not_batch(line, SlurmJob::partition)),
    column(None, "Account", "Account", "", |line| line.job.record.account.clone()),
    column(None, "User", "User", "", |line| not_batch(line, |job| job.record.user.clone())),
    column(None, "UID", "UID", "", |line| not_batch(line, |job| uid(&job.record.user).to_string())),
    column(None, "Group", "Group", "", |line| not_batch(line, |job| job.record.user.clone())),
    column(None, "AllocCPUS", "AllocCPUS", "", |line| {
        if line.run.is_some() { line.job.cpus().to_string() } else { "0".to_owned() }
    }),
    column(None, "NCPUS", "NCPUS", "", |line| line.job.cpus().to_string()),
    column(None, "ReqCPUS", "ReqCPUS", "", |line| line.job.cpus().to_string()),
    column(None, "AllocNodes", "AllocNodes", "", |line| {
        if line.run.is_some() { line.job.node_count().to_string() } else { "0".to_owned() }
    }),
    column(None, "NNodes", "NNodes", "", |line| line.job.node_count().to_string()),
    column(None, "ReqNodes", "ReqNodes", "", |line| line.job.request.nodes.to_string()),
    column(
        None,
        "NTasks",
        "NTasks",
        "",
        |line| if line.batch { "1".to_owned() } else { String::new() },
    ),
    column(None, "NodeList", "NodeList", "", nodes),
    column(None, "Elapsed", "Elapsed", "", |line| long_span(elapsed(line))),
    column(None, "ElapsedRaw", "ElapsedRaw", "", |line| elapsed(line).to_string()),
    column(None, "Timelimit", "Timelimit", "", |line| {
        not_batch(line, |job| job.time_limit().map_or_else(|| "UNLIMITED".to_owned(), long_span))
    }),
    column(None, "TimelimitRaw", "TimelimitRaw", "", |line| {
        not_batch(line, |job| {
            job.time_limit().map_or_else(String::new, |secs| (secs / 60).to_string())
        })
    }),
    column(None, "Submit", "Submit", "", |line| {
        local(Some(line.job.record.submitted_at), "Unknown")
    }),
    column(None, "Eligible", "Eligible", "", |line| {
        not_batch(line, |job| local(Some(job.record.submitted_at), "Unknown"))
    }),
    column(None, "Start", "Start", "", |line| {
        local(line.run.as_ref().and_then(|run| run.started_at), "Unknown")
    }),
    column(None, "End", "End", "", |line| {
        local(line.run.as_ref().map_or(line.job.record.ended_at, |run| run.ended_at), "Unknown")
    }),
    column(None, "CPUTime", "CPUTime", "", |line| {
        long_span(elapsed(line).saturating_mul(line.job.cpus().into()))
    }),
    column(None, "CPUTimeRAW", "CPUTimeRAW", "", |line| {
        elapsed(line).saturating_mul(line.job.cpus().into()).to_string()
    }),
    column(None, "TotalCPU", "TotalCPU", "", |line| processor_time(processor_ms(line))),
    column(None, "UserCPU", "UserCPU", "", |line| {
        processor_time(line.run.as_ref().and_then(|run| run.user_ms).unwrap_or(0))
    }),
    column(None, "SystemCPU", "SystemCPU", "", |line| {
        processor_time(line.run.as_ref().and_then(|run| run.system_ms).unwrap_or(0))
    }),
    column(None, "MaxRSS", "MaxRSS", "", |line| of_batch(line, |run| run.max_rss_bytes.map(kib))),
    column(None, "AveRSS", "AveRSS", "", |line| of_batch(line, |run| run.max_rss_bytes.map(kib))),
    column(None, "MaxVMSize", "MaxVMSize", "", |_| String::new()),
    column(None, "ReqMem", "ReqMem", "", |line| not_batch(line, SlurmJob::memory)),
    column(None, "ReqTRES", "ReqTRES", "", |line| not_batch(line, |_| requested(line))),
    column(None, "AllocTRES", "AllocTRES", "", allocated),
    column(None, "TRESUsageInTot", "TRESUsageInTot", "", |line| {
        of_batch(line, |run| {
            Some(format!(
                "cpu={},energy={},gres/gpumem={}",
                long_span(processor_ms(line) / 1_000),
                run.gpu_energy_millijoules.unwrap_or(0) / 1_000,
                megabytes(run.gpu_memory_peak_bytes.unwrap_or(0))
            ))
        })
    }),
    column(None, "ConsumedEnergy", "ConsumedEnergy", "", |line| {
        line.run
            .as_ref()
            .and_then(|run| run.gpu_energy_millijoules)
            .map_or_else(|| "0".to_owned(), |mj| (mj / 1_000).to_string())
    }),
    column(None, "ConsumedEnergyRaw", "ConsumedEnergyRaw", "", |line| {
        line.run
            .as_ref()
            .and_then(|run| run.gpu_energy_millijoules)
            .map_or_else(|| "0".to_owned(), |mj| (mj / 1_000).to_string())
    }),
    column(None, "Comment", "Comment", "", |line| {
        not_batch(line, |job| job.request.comment.clone().unwrap_or_default())
    }),
    column(None, "QOS", "QOS", "", |line| not_batch(line, |_| "normal".to_owned())),
    column(None, "Priority", "Priority", "", |line| {
        not_batch(line, |job| job.priority().to_string())
    }),
    column(None, "Reason", "Reason", "", |line| {
        not_batch(line, |job| super::state::reason(&job.record))
    }),
    column(None, "WorkDir", "WorkDir", "", |line| {
        not_batch(line, |job| job.request.work_dir.clone().unwrap_or_default())
    }),
    column(None, "Cluster", "Cluster", "", |_| "tessera".to_owned()),
    column(None, "WCKey", "WCKey", "", |_| String::new()),
];

fn helpformat() -> String {
    let names: Vec<String> = COLUMNS.iter().map(|column| format!("{:<20}", column.name)).collect();
    names.chunks(4).map(|line| line.concat().trim_end().to_owned() + "\n").collect()
}

fn print_json(lines: &[Line]) -> Done {
    let jobs: Vec<_> = lines.iter().filter(|line| !line.batch).map(to_json).collect();
    let document = json!({ "meta": meta(), "errors": [], "jobs": jobs });
    let text = serde_json::to_string_pretty(&document).map_err(std::io::Error::from)?;
    write_out(&format!("{text}\n"))?;
    Ok(0)
}

fn to_json(line: &Line) -> serde_json::Value {
    let unix =
        |at: Option<time::OffsetDateTime>| at.map_or(0, time::OffsetDateTime::unix_timestamp);
    let job = &line.job;
    let code = exit(line);
    let (status, signal) = code.split_once(':').unwrap_or(("0", "0"));
    json!({
        "account": job.record.account,
        "array": { "job_id": job.record.array_index.map_or(0, |_| job.record.submission), "task_id": job.record.array_index },
        "cluster": "tessera",
        "comment": { "job": job.request.comment },
        "exit_code": {
            "status": if signal == "0" { if status == "0" { "SUCCESS" } else { "ERROR" } } else { "SIGNALED" },
            "return_code": status.parse::<u32>().unwrap_or(0),
            "signal": { "signal_id": signal.parse::<u32>().unwrap_or(0) },
        },
        "job_id": job.raw_id(),
        "name": job.record.name,
        "nodes": nodes(line),
        "partition": job.partition(),
        "required": { "CPUs": job.cpus(), "memory": job.request.host_memory_bytes.unwrap_or(0) >> 20 },
        "restart_cnt": job.record.attempts.saturating_sub(1),
        "state": { "current": state(line).long(), "reason": super::state::reason(&job.record) },
        "steps": [],
        "time": {
            "elapsed": elapsed(line),
            "submission": unix(Some(job.record.submitted_at)),
            "start": unix(line.run.as_ref().and_then(|run| run.started_at)),
            "end": unix(job.record.ended_at),
            "limit": job.time_limit().map(|secs| secs / 60),
        },
        "user": job.record.user,
        "working_directory": job.request.work_dir,
    })
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::super::job::samples::{record, records};
    use super::*;

    fn ended(outcome: &str, state: &str, code: &str) -> tessera_api_types::JobRecord {
        let at = OffsetDateTime::UNIX_EPOCH;
        let mut job = record(37, 37, None);
        (job.state, job.attempts) = (state.to_owned(), 1);
        (job.outcome, job.exit_code) = (Some(outcome.to_owned()), Some(code.to_owned()));
        (job.node, job.started_at, job.ended_at) = (Some("g3".to_owned()), Some(at), Some(at));
        job.runs = vec![RunRecord {
            number: 1,
            state: outcome.to_owned(),
            node: "g3".to_owned(),
            gpu_index: 0,
            profile: "1g.5gb".to_owned(),
            placed_at: at,
            started_at: Some(at),
            ended_at: Some(at + time::Duration::seconds(61)),
            exit_code: Some(code.to_owned()),
            user_ms: Some(1_500),
            system_ms: Some(0),
            max_rss_bytes: Some(426_132 << 10),
            gpu_energy_millijoules: None,
            gpu_memory_peak_bytes: None,
        }];
        job
    }

    fn sacct(line: &str, jobs: Vec<tessera_api_types::JobRecord>) -> String {
        let sacct = Sacct::try_parse_from(line.split_whitespace()).unwrap();
        let kept = super::super::job::collapse(gather(records(jobs)));
        let lines: Vec<Line> = kept.into_iter().flat_map(|job| sacct.lines(job)).collect();
        sacct.draw(&sacct.cells().unwrap(), &lines)
    }

    /// Headings and cells as recorded from Slurm 22.05.8.
    #[test]
    fn the_default_table_is_that_of_slurm() {
        assert_eq!(
            sacct("sacct", vec![ended("failed", "failed", "2:0")]),
            concat!(
                "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode \n",
                "------------ ---------- ---------- ---------- ---------- ---------- -------- \n",
                "37                train        gpu        lab          1     FAILED      2:0 \n",
                "37.batch          batch                   lab          1     FAILED      2:0 \n",
            )
        );
    }

    #[test]
    fn submitit_and_snakemake_read_what_they_expect() {
        let waiting = [0, 1, 2].map(|index| record(59 + u64::from(index), 59, Some(index)));
        let submitit =
            sacct("sacct -o JobID,State,NodeList --parsable2 -j 59 -j 63", waiting.to_vec());
        let snakemake = sacct(
            "sacct -X --parsable2 --clusters all --noheader --format=JobIdRaw,State --name x",
            vec![ended("cancelled", "cancelled", "0:15")],
        );

        assert_eq!(submitit, "JobID|State|NodeList\n59_[0-2]|PENDING|None assigned\n");
        assert_eq!(snakemake, "37|CANCELLED\n");
    }

    #[test]
    fn only_scripts_have_measurements_and_parsable_lines_end_in_a_bar() {
        let line = "sacct --parsable -n -o jobid,maxrss,elapsed,totalcpu,nodelist%-256";

        assert_eq!(
            sacct(line, vec![ended("succeeded", "succeeded", "0:0")]),
            "37||00:01:01|00:01.500|g3|\n37.batch|426132K|00:01:01|00:01.500|g3|\n"
        );
    }

    #[test]
    fn an_unknown_column_is_refused_in_slurms_words() {
        let sacct = Sacct::try_parse_from(["sacct", "-o", "restarts"]).unwrap();

        let refused = sacct.cells().err().unwrap().to_string();

        assert_eq!(refused, "sacct: error: Invalid field requested: \"restarts\"");
    }
}
