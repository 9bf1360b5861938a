//! `sacct`: accounting of jobs and their runs.

use clap::{ArgAction, Parser};
use serde_json::json;
use tessera_api_types::{RecordFilter, RunRecord, StepRecord};
use tessera_model::number::clamped;
use time::OffsetDateTime;

use super::columns::{Column, Width, column, find, fit};
use super::job::{SlurmJob, exit_code, gather, megabytes, uid};
use super::squeue::{code_of, meta, parse_job};
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
    /// Unit of sizes: K, M, G, T or P; by default each has one that fits
    #[arg(long, value_name = "UNIT")]
    units: Option<char>,
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

/// A line: a job, or what was started in one of its runs.
struct Line {
    job: SlurmJob,
    run: Option<RunRecord>,
    part: LinePart,
}

/// What a line stands for.
#[derive(PartialEq)]
enum LinePart {
    /// The job with all that ran in it.
    Job,
    /// Its script, which has the measurements.
    Batch,
    /// What `srun` started once.
    Step(StepRecord),
}

impl Line {
    /// Returns whether it stands for the job itself.
    fn is_job(&self) -> bool {
        self.part == LinePart::Job
    }

    /// Returns the step that it stands for.
    const fn step(&self) -> Option<&StepRecord> {
        match &self.part {
            LinePart::Step(step) => Some(step),
            LinePart::Job | LinePart::Batch => None,
        }
    }

    /// Returns the number of processors.
    fn cpus(&self) -> u32 {
        match self.step() {
            Some(step) => step.tasks.saturating_mul(self.job.cpus_per_task()),
            None => self.job.cpus(),
        }
    }

    /// Returns the number of nodes.
    fn node_count(&self) -> u32 {
        let nodes = |step: &StepRecord| hosts::expand(&step.nodes).map_or(1, |names| names.len());
        self.step().map_or_else(|| self.job.node_count(), |step| clamped(nodes(step)))
    }

    /// Returns when it started, and when it ended.
    fn span(&self) -> (Option<OffsetDateTime>, Option<OffsetDateTime>) {
        match (self.step(), &self.run) {
            (Some(step), _) => (Some(step.started_at), step.ended_at),
            (None, Some(run)) => (run.started_at, run.ended_at),
            (None, None) => (None, self.job.record.ended_at),
        }
    }

    /// Returns the processor time in user mode and in the kernel, in milliseconds.
    fn processor_ms(&self) -> (u64, u64) {
        let (user, system) = match (self.step(), &self.run) {
            (Some(step), _) => (step.user_ms, step.system_ms),
            (None, Some(run)) => (run.user_ms, run.system_ms),
            (None, None) => (None, None),
        };
        (user.unwrap_or(0), system.unwrap_or(0))
    }

    /// Returns the largest resident set of any one process of a script or a step.
    fn max_rss(&self) -> Option<u64> {
        match &self.part {
            LinePart::Job => None,
            LinePart::Batch => self.run.as_ref()?.max_rss_bytes,
            LinePart::Step(step) => step.max_rss_bytes,
        }
    }
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
                lines.push(Line { job: job.clone(), run: Some(run.clone()), part: LinePart::Job });
            }
        }
        let started = newest.as_ref().is_some_and(|run| run.started_at.is_some());
        let waits = job.state == SlurmState::Pending;
        let shown = newest.clone().filter(|_| !waits);
        lines.push(Line { job: job.clone(), run: shown, part: LinePart::Job });
        if started && !waits && !self.allocations {
            let steps = newest.iter().flat_map(|run| run.steps.iter().cloned());
            for part in std::iter::once(LinePart::Batch).chain(steps.map(LinePart::Step)) {
                lines.push(Line { job: job.clone(), run: newest.clone(), part });
            }
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
            let of = |(column, width): &Cell| {
                let cell = (column.cell)(line);
                let unit = self.units.filter(|_| SIZES.contains(&column.heading));
                let converted = unit.and_then(|unit| in_unit(&cell, unit));
                padded(&converted.unwrap_or(cell), *width)
            };
            text += &join(cells.iter().map(of).collect());
        }
        text
    }
}

/// Columns whose unit can be chosen.
const SIZES: [&str; 5] = ["AveRSS", "AveVMSize", "MaxRSS", "MaxVMSize", "ReqMem"];

/// Returns a size such as `26076K` in another unit, with two digits as Slurm prints it; `None` if it is no size, or there
/// is no such unit.
fn in_unit(size: &str, unit: char) -> Option<String> {
    let letters = "KMGTP";
    let power = |letter: char| letters.find(letter.to_ascii_uppercase());
    let (number, own) = size.split_at_checked(size.len().checked_sub(1)?)?;
    let kib = number.parse::<u128>().ok()? << (10 * power(own.chars().next()?)?);
    let requested = power(unit)?;
    let hundredths = (kib * 100 + (1 << (10 * requested)) / 2) >> (10 * requested);
    Some(format!("{}.{:02}{}", hundredths / 100, hundredths % 100, unit.to_ascii_uppercase()))
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
    let abbreviated = |column: &&Column<Line>| {
        let start = column.name.get(..name.len()).filter(|start| !start.is_empty());
        start.is_some_and(|start| start.eq_ignore_ascii_case(name))
    };
    let column = find(name, COLUMNS).or_else(|| COLUMNS.iter().find(abbreviated));
    let Some(column) = column else {
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
    part_of(line.job.id(), line)
}

/// Appends what a line stands for to the number of its job: `42`, `42.batch` or `42.0`.
fn part_of(job: String, line: &Line) -> String {
    match &line.part {
        LinePart::Job => job,
        LinePart::Batch => format!("{job}.batch"),
        LinePart::Step(step) => format!("{job}.{}", step.step),
    }
}

fn name(line: &Line) -> String {
    match &line.part {
        LinePart::Job => line.job.record.name.clone(),
        LinePart::Batch => "batch".to_owned(),
        LinePart::Step(step) => step.name.clone(),
    }
}

fn state(line: &Line) -> SlurmState {
    if let Some(step) = line.step() {
        return SlurmState::of_step(step, line.run.as_ref());
    }
    match &line.run {
        // An earlier run ended, and the job goes on or waits again.
        Some(run)
            if line.job.record.attempts > run.number || line.job.state == SlurmState::Pending =>
        {
            SlurmState::of_end(&run.state)
        }
        Some(run) if line.part == LinePart::Batch => SlurmState::of_end(&run.state),
        _ => line.job.state.accounted(),
    }
}

fn exit(line: &Line) -> String {
    if let Some(step) = line.step() {
        return match &step.exit_code {
            Some(code) => code.clone(),
            None if state(line) == SlurmState::Cancelled => "0:15".to_owned(),
            None => "0:0".to_owned(),
        };
    }
    match &line.run {
        Some(run) if line.part == LinePart::Batch && state(line) == SlurmState::Cancelled => {
            run.exit_code.clone().unwrap_or_else(|| "0:15".to_owned())
        }
        Some(run) => exit_code(state(line), Some(&run.state), run.exit_code.as_deref()),
        None => line.job.exit_code(),
    }
}

/// Returns the worst exit code of a job's steps.
fn derived_exit(line: &Line) -> String {
    let steps = line.run.iter().flat_map(|run| &run.steps);
    let codes = steps.filter_map(|step| step.exit_code.as_deref());
    codes.max_by_key(|code| code_of(code)).unwrap_or("0:0").to_owned()
}

fn elapsed(line: &Line) -> u64 {
    let (start, end) = line.span();
    start.map_or(0, |start| secs_between(start, end.unwrap_or_else(now)))
}

/// Returns how long a job waited before it started, or has waited so far.
fn planned(line: &Line) -> u64 {
    let until = line.span().0.or(line.job.record.ended_at).unwrap_or_else(now);
    secs_between(line.job.record.submitted_at, until)
}

fn processor_ms(line: &Line) -> u64 {
    let (user, system) = line.processor_ms();
    user.saturating_add(system)
}

/// Shows processor time as `MM:SS.mmm`.
fn processor_time(ms: u64) -> String {
    let secs = ms / 1_000;
    match secs / 3_600 {
        0 => format!("{:02}:{:02}.{:03}", secs / 60, secs % 60, ms % 1_000),
        _ => long_span(secs),
    }
}

/// Returns the mean processor time of the processes of a script or a step.
fn mean_processor_time(line: &Line) -> String {
    let tasks = line.step().map_or(1, |step| u64::from(step.tasks.max(1)));
    not_job(line, || long_span(processor_ms(line) / tasks / 1_000))
}

fn of_job(line: &Line, text: impl Fn(&SlurmJob) -> String) -> String {
    if line.is_job() { text(&line.job) } else { String::new() }
}

fn not_job(line: &Line, text: impl Fn() -> String) -> String {
    if line.is_job() { String::new() } else { text() }
}

fn kib(bytes: u64) -> String {
    format!("{}K", bytes / 1_024)
}

fn max_rss(line: &Line) -> String {
    line.max_rss().map(kib).unwrap_or_default()
}

/// Returns the node of the process with the largest amount.
fn measured_node(line: &Line) -> String {
    let measured = line.max_rss().and(line.run.as_ref());
    measured.map(|run| run.node.clone()).unwrap_or_default()
}

/// Returns the number of the process with the largest amount.
fn measured_task(line: &Line) -> String {
    line.max_rss().map(|_| "0".to_owned()).unwrap_or_default()
}

fn energy(line: &Line) -> String {
    let measured = line.run.as_ref().filter(|_| line.step().is_none());
    let joules = measured.and_then(|run| run.gpu_energy_millijoules).map(|mj| mj / 1_000);
    joules.unwrap_or(0).to_string()
}

fn nodes(line: &Line) -> String {
    if let Some(step) = line.step() {
        return step.nodes.clone();
    }
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
    if line.run.is_none() {
        return String::new();
    }
    match line.step() {
        Some(_) => format!("cpu={},node={}", line.cpus(), line.node_count()),
        // Only jobs are billed.
        None if line.part == LinePart::Batch => {
            let all = requested(line);
            all.split_once(',').map_or_else(String::new, |(_, rest)| rest.to_owned())
        }
        None => requested(line),
    }
}

fn used(line: &Line) -> String {
    let cpu = long_span(processor_ms(line) / 1_000);
    match (&line.part, &line.run) {
        (LinePart::Job, _) | (LinePart::Batch, None) => String::new(),
        (LinePart::Step(_), _) => {
            let memory =
                line.max_rss().map_or_else(String::new, |bytes| format!(",mem={}", kib(bytes)));
            format!("cpu={cpu}{memory}")
        }
        (LinePart::Batch, Some(run)) => format!(
            "cpu={cpu},energy={},gres/gpumem={}",
            run.gpu_energy_millijoules.unwrap_or(0) / 1_000,
            megabytes(run.gpu_memory_peak_bytes.unwrap_or(0))
        ),
    }
}

/// Fields of Slurm that nothing here measures or has.
fn nothing(_: &Line) -> String {
    String::new()
}

const fn named(name: &'static str, cell: fn(&Line) -> String) -> Column<Line> {
    column(None, name, name, "", cell)
}

/// The fields of Slurm 22.05, in its order: an abbreviation means the first that begins with it.
static COLUMNS: &[Column<Line>] = &[
    named("Account", |line| line.job.record.account.clone()),
    named("AdminComment", nothing),
    named(
        "AllocCPUS",
        |line| if line.run.is_some() { line.cpus().to_string() } else { "0".to_owned() },
    ),
    named("AllocNodes", |line| {
        if line.run.is_some() { line.node_count().to_string() } else { "0".to_owned() }
    }),
    named("AllocTRES", allocated),
    named("AssocID", |_| "0".to_owned()),
    named("AveCPU", mean_processor_time),
    named("AveCPUFreq", nothing),
    named("AveDiskRead", nothing),
    named("AveDiskWrite", nothing),
    named("AvePages", nothing),
    named("AveRSS", max_rss),
    named("AveVMSize", nothing),
    named("BlockID", nothing),
    named("Cluster", |_| "tessera".to_owned()),
    named("Comment", |line| of_job(line, |job| job.comment().unwrap_or_default().to_owned())),
    named("Constraints", |line| {
        of_job(line, |job| job.request.gpu_model.clone().unwrap_or_default())
    }),
    named("ConsumedEnergy", energy),
    named("ConsumedEnergyRaw", energy),
    named("Container", nothing),
    named("CPUTime", |line| long_span(elapsed(line).saturating_mul(line.cpus().into()))),
    named("CPUTimeRAW", |line| elapsed(line).saturating_mul(line.cpus().into()).to_string()),
    named("DBIndex", |line| of_job(line, |job| job.raw_id().to_string())),
    named("DerivedExitCode", |line| of_job(line, |_| derived_exit(line))),
    named("Elapsed", |line| long_span(elapsed(line))),
    named("ElapsedRaw", |line| elapsed(line).to_string()),
    named("Eligible", |line| of_job(line, |job| local(Some(job.eligible_at()), "Unknown"))),
    named("End", |line| local(line.span().1, "Unknown")),
    named("ExitCode", exit),
    named("Flags", nothing),
    named("GID", |line| of_job(line, |job| uid(&job.record.user).to_string())),
    named("Group", |line| of_job(line, |job| job.record.user.clone())),
    named("JobID", job_id),
    named("JobIDRaw", |line| part_of(line.job.raw_id().to_string(), line)),
    named("JobName", name),
    named("Layout", |line| line.step().map_or_else(String::new, |_| "Block".to_owned())),
    named("MaxDiskRead", nothing),
    named("MaxDiskReadNode", nothing),
    named("MaxDiskReadTask", nothing),
    named("MaxDiskWrite", nothing),
    named("MaxDiskWriteNode", nothing),
    named("MaxDiskWriteTask", nothing),
    named("MaxPages", nothing),
    named("MaxPagesNode", nothing),
    named("MaxPagesTask", nothing),
    named("MaxRSS", max_rss),
    named("MaxRSSNode", measured_node),
    named("MaxRSSTask", measured_task),
    named("MaxVMSize", nothing),
    named("MaxVMSizeNode", nothing),
    named("MaxVMSizeTask", nothing),
    named("McsLabel", nothing),
    named("MinCPU", mean_processor_time),
    named("MinCPUNode", measured_node),
    named("MinCPUTask", measured_task),
    named("NCPUS", |line| line.cpus().to_string()),
    named("NNodes", |line| line.node_count().to_string()),
    named("NodeList", nodes),
    named("NTasks", |line| match &line.part {
        LinePart::Job => String::new(),
        LinePart::Batch => "1".to_owned(),
        LinePart::Step(step) => step.tasks.to_string(),
    }),
    named("Partition", |line| of_job(line, SlurmJob::partition)),
    named("Planned", |line| of_job(line, |_| long_span(planned(line)))),
    named("PlannedCPU", |line| {
        of_job(line, |job| long_span(planned(line).saturating_mul(job.cpus().into())))
    }),
    named("PlannedCPURAW", |line| {
        of_job(line, |job| planned(line).saturating_mul(job.cpus().into()).to_string())
    }),
    named("Priority", |line| of_job(line, |job| job.priority().to_string())),
    named("QOS", |line| of_job(line, |job| job.qos().to_owned())),
    named("QOSRAW", |line| of_job(line, |_| "1".to_owned())),
    named("Reason", |line| of_job(line, |job| super::state::reason(&job.record))),
    named("ReqCPUFreq", nothing),
    named("ReqCPUFreqGov", nothing),
    named("ReqCPUFreqMax", nothing),
    named("ReqCPUFreqMin", nothing),
    named("ReqCPUS", |line| line.cpus().to_string()),
    named("ReqMem", |line| of_job(line, SlurmJob::memory)),
    named("ReqNodes", |line| line.job.request.nodes.to_string()),
    named("ReqTRES", |line| of_job(line, |_| requested(line))),
    named("Reservation", nothing),
    named("ReservationId", nothing),
    named("Reserved", |line| of_job(line, |_| long_span(planned(line)))),
    named("ResvCPU", |line| {
        of_job(line, |job| long_span(planned(line).saturating_mul(job.cpus().into())))
    }),
    named("ResvCPURAW", |line| {
        of_job(line, |job| planned(line).saturating_mul(job.cpus().into()).to_string())
    }),
    named("Start", |line| local(line.span().0, "Unknown")),
    named("State", |line| state(line).long().to_owned()),
    named("Submit", |line| {
        let at = line.step().map_or(line.job.record.submitted_at, |step| step.started_at);
        local(Some(at), "Unknown")
    }),
    named("SubmitLine", nothing),
    named("Suspended", |_| "00:00:00".to_owned()),
    named("SystemComment", nothing),
    named("SystemCPU", |line| processor_time(line.processor_ms().1)),
    named("Timelimit", |line| {
        of_job(line, |job| job.time_limit().map_or_else(|| "UNLIMITED".to_owned(), long_span))
    }),
    named("TimelimitRaw", |line| {
        of_job(line, |job| {
            job.time_limit().map_or_else(String::new, |secs| (secs / 60).to_string())
        })
    }),
    named("TotalCPU", |line| processor_time(processor_ms(line))),
    named("TRESUsageInAve", used),
    named("TRESUsageInMax", used),
    named("TRESUsageInMaxNode", nothing),
    named("TRESUsageInMaxTask", nothing),
    named("TRESUsageInMin", used),
    named("TRESUsageInMinNode", nothing),
    named("TRESUsageInMinTask", nothing),
    named("TRESUsageInTot", used),
    named("TRESUsageOutAve", nothing),
    named("TRESUsageOutMax", nothing),
    named("TRESUsageOutMaxNode", nothing),
    named("TRESUsageOutMaxTask", nothing),
    named("TRESUsageOutMin", nothing),
    named("TRESUsageOutMinNode", nothing),
    named("TRESUsageOutMinTask", nothing),
    named("TRESUsageOutTot", nothing),
    named("UID", |line| of_job(line, |job| uid(&job.record.user).to_string())),
    named("User", |line| of_job(line, |job| job.record.user.clone())),
    named("UserCPU", |line| processor_time(line.processor_ms().0)),
    named("WCKey", nothing),
    named("WCKeyID", nothing),
    named("WorkDir", |line| of_job(line, |job| job.request.work_dir.clone().unwrap_or_default())),
];

fn helpformat() -> String {
    let names: Vec<String> = COLUMNS.iter().map(|column| format!("{:<20}", column.name)).collect();
    names.chunks(4).map(|line| line.concat().trim_end().to_owned() + "\n").collect()
}

fn print_json(lines: &[Line]) -> Done {
    let jobs: Vec<_> = lines.iter().filter(|line| line.is_job()).map(to_json).collect();
    let document = json!({ "meta": meta(), "errors": [], "jobs": jobs });
    let text = serde_json::to_string_pretty(&document).map_err(std::io::Error::from)?;
    write_out(&format!("{text}\n"))?;
    Ok(0)
}

fn code_to_json(code: &str) -> serde_json::Value {
    let (status, signal) = code.split_once(':').unwrap_or(("0", "0"));
    json!({
        "status": if signal == "0" { if status == "0" { "SUCCESS" } else { "ERROR" } } else { "SIGNALED" },
        "return_code": status.parse::<u32>().unwrap_or(0),
        "signal": { "signal_id": signal.parse::<u32>().unwrap_or(0) },
    })
}

fn step_to_json(of: &Line, step: &StepRecord) -> serde_json::Value {
    let part = LinePart::Step(step.clone());
    let line = Line { job: of.job.clone(), run: of.run.clone(), part };
    json!({
        "step": { "id": job_id(&line), "name": step.name },
        "state": state(&line).long(),
        "exit_code": code_to_json(&exit(&line)),
        "nodes": { "count": line.node_count(), "range": step.nodes },
        "tasks": { "count": step.tasks },
        "time": {
            "elapsed": elapsed(&line),
            "start": step.started_at.unix_timestamp(),
            "end": step.ended_at.map_or(0, OffsetDateTime::unix_timestamp),
        },
    })
}

fn to_json(line: &Line) -> serde_json::Value {
    let unix =
        |at: Option<time::OffsetDateTime>| at.map_or(0, time::OffsetDateTime::unix_timestamp);
    let job = &line.job;
    json!({
        "account": job.record.account,
        "array": { "job_id": job.record.array_index.map_or(0, |_| job.record.submission), "task_id": job.record.array_index },
        "cluster": "tessera",
        "comment": { "job": job.comment() },
        "derived_exit_code": code_to_json(&derived_exit(line)),
        "exit_code": code_to_json(&exit(line)),
        "job_id": job.raw_id(),
        "name": job.record.name,
        "nodes": nodes(line),
        "partition": job.partition(),
        "required": { "CPUs": job.cpus(), "memory": job.request.host_memory_bytes.unwrap_or(0) >> 20 },
        "restart_cnt": job.record.attempts.saturating_sub(1),
        "state": { "current": state(line).long(), "reason": super::state::reason(&job.record) },
        "steps": line.run.iter().flat_map(|run| &run.steps).map(|step| step_to_json(line, step)).collect::<Vec<_>>(),
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
    use super::super::job::samples::{record, records};
    use super::*;

    #[test]
    fn sizes_are_shown_in_the_unit_that_is_asked_for() {
        for (size, unit, shown) in [
            ("26076K", 'G', Some("0.02G")),
            ("200M", 'g', Some("0.20G")),
            ("1G", 'M', Some("1024.00M")),
            ("512K", 'K', Some("512.00K")),
            ("", 'G', None),
            ("1G", 'X', None),
            ("0:53", 'M', None),
        ] {
            assert_eq!(in_unit(size, unit).as_deref(), shown, "{size} in {unit}");
        }
    }

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
            steps: Vec::new(),
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
