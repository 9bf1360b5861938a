//! `squeue`: the jobs that wait and run.

use clap::{ArgAction, Parser};
use serde_json::json;
use tessera_api_types::RecordFilter;
use tessera_model::JobRef;

use super::columns::{Column, Part, column, headings, of_codes, of_names, row};
use super::job::{SlurmJob, collapse, gather, minutes, uid, unfold};
use super::state::{SlurmState, StateFilter, reason};
use super::times::{local, now, secs_between, short_span};
use super::{Done, SlurmFailure, VERSION, connect, hosts, running_steps, words, write_out};
use tessera_model::number::clamped;

/// How long ended jobs are listed with `--states=all`: Slurm's `MinJobAge`.
pub const RECENT_SECS: u32 = 300;

const DEFAULT: &str = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R";
const LONG: &str = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R";
const START: &str = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R";

/// Lists jobs, as Slurm's squeue does.
#[derive(Parser)]
#[command(disable_help_flag = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of squeue")]
pub struct Squeue {
    /// List only these jobs, separated by commas
    #[arg(short, long, value_name = "JOBS", num_args = 0..=1, default_missing_value = "")]
    jobs: Vec<String>,
    /// List only jobs of these users
    #[arg(short, long, value_name = "USERS")]
    user: Vec<String>,
    /// List only your own jobs
    #[arg(long)]
    me: bool,
    /// List only jobs with these names
    #[arg(short, long, value_name = "NAMES")]
    name: Vec<String>,
    /// List only jobs in these states, or `all`; by default those that wait or have an allocation
    #[arg(short = 't', long, value_name = "STATES")]
    states: Vec<String>,
    /// List only jobs on these nodes
    #[arg(short = 'w', long, value_name = "NODES")]
    nodelist: Option<String>,
    /// List only jobs of these accounts
    #[arg(short = 'A', long = "account", value_name = "ACCOUNTS")]
    accounts: Vec<String>,
    /// List only jobs of these partitions
    #[arg(short, long, value_name = "PARTITIONS")]
    partition: Vec<String>,
    /// Accepted: jobs of every quality of service are listed
    #[arg(short, long, value_name = "QOS")]
    qos: Vec<String>,
    /// Columns by letters, such as "%.18i %j %t"
    #[arg(short = 'o', long, value_name = "FORMAT")]
    format: Option<String>,
    /// Columns by names, such as JobID:20,State
    #[arg(short = 'O', long = "Format", value_name = "FORMAT")]
    named_format: Option<String>,
    /// Omit the line of headings
    #[arg(short = 'h', long)]
    noheader: bool,
    /// One line for each task of an array
    #[arg(short = 'r', long)]
    array: bool,
    /// More columns
    #[arg(short, long)]
    long: bool,
    /// Show when waiting jobs are expected to start
    #[arg(long)]
    start: bool,
    /// List steps instead of jobs
    #[arg(short, long, value_name = "STEPS", num_args = 0..=1, default_missing_value = "")]
    steps: Option<String>,
    /// Order of the lines: letters of --format, with - for descending
    #[arg(short = 'S', long, value_name = "ORDER")]
    sort: Option<String>,
    /// Print JSON in Slurm's format
    #[arg(long)]
    json: bool,
    /// Accepted: all partitions are listed
    #[arg(short = 'a', long)]
    all: bool,
    /// Accepted: there is one cluster
    #[arg(short = 'M', long, value_name = "CLUSTERS")]
    clusters: Option<String>,
    /// Accepted: there is one cluster
    #[arg(long)]
    local: bool,
    /// Accepted
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

impl Squeue {
    /// Lists the jobs.
    pub async fn run(self) -> Done {
        if self.version {
            write_out(&format!("{VERSION}\n"))?;
            return Ok(0);
        }
        let states = self.states()?;
        let parts = self.parts()?;
        if self.steps.is_some() {
            return self.list_steps().await;
        }
        let named = words(&self.jobs);
        for job in &named {
            if parse_job(job).is_none() {
                return Err(SlurmFailure::Message(format!("squeue: error: Invalid job id: {job}")));
            }
        }
        let session = connect()?;
        let mut users = words(&self.user);
        if self.me {
            users.push(session.client.who_am_i().await?.user);
        }
        let filter = RecordFilter {
            jobs: (!named.is_empty()).then(|| named.join(",")),
            user: (!users.is_empty()).then(|| users.join(",")),
            name: Some(words(&self.name).join(",")).filter(|names| !names.is_empty()),
            recent_secs: includes_ended(&states).then_some(RECENT_SECS),
            reasons: true,
            fold: true,
            specs: self.json || needs_specs(&parts) || self.sort.is_some(),
            ..RecordFilter::default()
        };
        let mut records = session.client.records(&filter).await?;
        if !filter.specs && records.jobs.iter().any(|job| job.rank.is_some()) {
            // Only the request states how many nodes a waiting gang needs.
            records = session.client.records(&RecordFilter { specs: true, ..filter }).await?;
        }
        let mut jobs = gather(records);
        if jobs.is_empty() && named.len() == 1 && users.is_empty() {
            eprintln!("slurm_load_jobs error: Invalid job id specified");
            return Ok(1);
        }
        let shown = JobFilterLists::of(&self);
        jobs.retain(|job| states.has(job.state) && shown.has(job));
        // The tasks of one record follow each other, unless the user requests another order.
        jobs = match self.array {
            _ if self.json => unfold(jobs),
            true if self.sort.is_some() => unfold(jobs),
            true => jobs,
            false => collapse(jobs),
        };
        order(&mut jobs, self.sort.as_deref());
        if self.json {
            return print_json(&jobs);
        }
        let mut text = String::new();
        if self.long && !self.noheader && self.format.is_none() {
            text += &jiff::Zoned::now().strftime("%a %b %d %H:%M:%S %Y\n").to_string();
        }
        if !self.noheader {
            text += &headings(&parts);
        }
        for job in jobs {
            text += &rows(&parts, job);
        }
        write_out(&text)?;
        Ok(0)
    }

    /// Lists what runs in jobs.
    async fn list_steps(self) -> Done {
        let named = words(self.steps.as_slice());
        let bad_format = |name| {
            SlurmFailure::Message(format!(
                "squeue: error: Invalid job step format specification: {name}"
            ))
        };
        let parts = match (&self.named_format, &self.format) {
            (Some(names), _) => of_names(names, running_steps::COLUMNS).map_err(bad_format)?,
            (None, Some(codes)) => of_codes(codes, running_steps::COLUMNS),
            (None, None) => of_codes(running_steps::FORMAT, running_steps::COLUMNS),
        };
        let of_step = |name: &String| name.split('.').next().unwrap_or_default().to_owned();
        let jobs: Vec<String> = words(&self.jobs).iter().chain(&named).map(of_step).collect();
        if let Some(job) = jobs.iter().find(|job| parse_job(job).is_none()) {
            return Err(SlurmFailure::Message(format!("squeue: error: Invalid job id: {job}")));
        }
        let session = connect()?;
        let mut users = words(&self.user);
        if self.me {
            users.push(session.client.who_am_i().await?.user);
        }
        let filter = RecordFilter {
            jobs: (!jobs.is_empty()).then(|| jobs.join(",")),
            user: (!users.is_empty()).then(|| users.join(",")),
            name: Some(words(&self.name).join(",")).filter(|names| !names.is_empty()),
            specs: true,
            runs: true,
            ..RecordFilter::default()
        };
        let mut jobs = gather(session.client.records(&filter).await?);
        let shown = JobFilterLists::of(&self);
        jobs.retain(|job| shown.has(job));
        let mut text = if self.noheader { String::new() } else { headings(&parts) };
        for step in running_steps::running_steps(jobs) {
            if named.is_empty() || named.iter().any(|name| step.is_named(name)) {
                text += &row(&parts, &step);
            }
        }
        write_out(&text)?;
        Ok(0)
    }

    fn states(&self) -> Result<StateFilter, SlurmFailure> {
        let given = words(&self.states);
        if !given.is_empty() {
            return StateFilter::parse(&given)
                .map_err(|unknown| SlurmFailure::Message(format!("squeue: error: {unknown}")));
        }
        Ok(StateFilter::Only(vec![
            SlurmState::Pending,
            SlurmState::Configuring,
            SlurmState::Running,
            SlurmState::Completing,
        ]))
    }

    fn parts(&self) -> Result<Vec<Part<SlurmJob>>, SlurmFailure> {
        let own = std::env::var("SQUEUE_FORMAT").ok();
        match (&self.named_format, &self.format) {
            (Some(names), _) => of_names(names, COLUMNS).map_err(|name| {
                SlurmFailure::Message(format!(
                    "squeue: error: Invalid job format specification: {name}"
                ))
            }),
            (None, Some(codes)) => Ok(of_codes(codes, COLUMNS)),
            (None, None) if self.start => Ok(of_codes(START, COLUMNS)),
            (None, None) if self.long => Ok(of_codes(LONG, COLUMNS)),
            (None, None) => Ok(of_codes(own.as_deref().unwrap_or(DEFAULT), COLUMNS)),
        }
    }
}

/// The letters of columns in which the tasks of one record differ.
const OF_TASKS: &str = "iAK";

/// Draws a line for each task that a job stands for. What does not differ is drawn once: lists have tens of thousands of
/// tasks.
fn rows(parts: &[Part<SlurmJob>], mut job: SlurmJob) -> String {
    let more = std::mem::take(&mut job.record.more);
    if more == 0 || !job.waiting.is_empty() {
        return row(parts, &job);
    }
    let differs = |part: &Part<SlurmJob>| match part {
        Part::Text(_) => false,
        Part::Column(column, ..) => column.code.is_some_and(|code| OF_TASKS.contains(code)),
    };
    let drawn: Vec<_> =
        parts.iter().map(|part| (part, (!differs(part)).then(|| part.draw(&job)))).collect();
    let mut text = String::new();
    for _ in 0..=more {
        for (part, same) in &drawn {
            match same {
                Some(same) => text.push_str(same),
                None => text += &part.draw(&job),
            }
        }
        text.push('\n');
        job.next_task();
    }
    text
}

/// The lists of the command line, read once for all jobs.
struct JobFilterLists {
    accounts: Vec<String>,
    partitions: Vec<String>,
    nodes: Option<Vec<String>>,
    only_waiting: bool,
}

impl JobFilterLists {
    fn of(squeue: &Squeue) -> Self {
        let list = squeue.nodelist.as_deref();
        Self {
            accounts: words(&squeue.accounts),
            partitions: words(&squeue.partition),
            nodes: list.map(|list| hosts::expand(list).unwrap_or_default()),
            only_waiting: squeue.start,
        }
    }

    fn has(&self, job: &SlurmJob) -> bool {
        let among = |list: &[String], name: &str| list.is_empty() || list.iter().any(|n| n == name);
        among(&self.accounts, &job.record.account)
            && (self.partitions.is_empty() || among(&self.partitions, &job.partition()))
            && (!self.only_waiting || job.state == SlurmState::Pending)
            && self.nodes.as_ref().is_none_or(|nodes| {
                job.state.is_allocated() && job.nodes.iter().any(|node| nodes.contains(node))
            })
    }
}

/// Reads the name of a job.
pub fn parse_job(text: &str) -> Option<JobRef> {
    text.parse().ok()
}

fn includes_ended(states: &StateFilter) -> bool {
    SlurmState::ALL.into_iter().any(|state| state.is_over() && states.has(state))
}

/// Returns whether a column shows what only the request has: such answers are larger.
fn needs_specs(parts: &[Part<SlurmJob>]) -> bool {
    const PLAIN: &str = "iAFKjutTMrRNSVaPD";
    parts.iter().any(|part| match part {
        Part::Text(_) => false,
        Part::Column(column, ..) => !column.code.is_some_and(|code| PLAIN.contains(code)),
    })
}

/// Orders jobs as Slurm does by default: by state, then by priority, then by number.
fn order(jobs: &mut [SlurmJob], sort: Option<&str>) {
    jobs.sort_by_key(|job| (job.state, std::cmp::Reverse(job.priority()), job.raw_id()));
    let keys: Vec<&str> =
        sort.unwrap_or_default().split(',').filter(|key| !key.is_empty()).collect();
    for key in keys.into_iter().rev() {
        let descending = key.starts_with('-');
        let Some(code) = key.trim_start_matches(['-', '+']).chars().next() else { continue };
        let Some(column) = COLUMNS.iter().find(|column| column.code == Some(code)) else {
            continue;
        };
        jobs.sort_by(|one, other| {
            let by = match code {
                'i' | 'A' | 'F' => one.raw_id().cmp(&other.raw_id()),
                'p' | 'Q' => one.priority().cmp(&other.priority()),
                'M' => one.elapsed().cmp(&other.elapsed()),
                't' | 'T' => one.state.cmp(&other.state),
                _ => (column.cell)(one).cmp(&(column.cell)(other)),
            };
            if descending { by.reverse() } else { by }
        });
    }
}

fn limit(job: &SlurmJob) -> String {
    job.time_limit().map_or_else(|| "UNLIMITED".to_owned(), short_span)
}

fn time_left(job: &SlurmJob) -> String {
    let left = job.time_limit().map(|limit| limit.saturating_sub(job.elapsed()));
    left.map_or_else(|| "UNLIMITED".to_owned(), short_span)
}

fn or_null(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(|| "(null)".to_owned())
}

fn start(job: &SlurmJob) -> String {
    let started = job.record.started_at.filter(|_| job.state != SlurmState::Pending);
    local(started, "N/A")
}

fn end(job: &SlurmJob) -> String {
    let expected = job
        .time_limit()
        .zip(job.record.started_at)
        .map(|(limit, start)| start.saturating_add(time::Duration::seconds(clamped(limit))));
    match job.state {
        SlurmState::Pending => "N/A".to_owned(),
        _ => local(job.record.ended_at.or(expected), "N/A"),
    }
}

/// The columns: letter, name, heading of the letter, heading of the name.
static COLUMNS: &[Column<SlurmJob>] = &[
    column(Some('i'), "JobArrayID", "JOBID", "JOBID", SlurmJob::id),
    column(Some('A'), "JobID", "JOBID", "JOBID", |job| job.raw_id().to_string()),
    column(Some('F'), "ArrayJobID", "ARRAY_JOB_ID", "ARRAY_JOB_ID", |job| {
        job.array_id().to_string()
    }),
    column(Some('K'), "ArrayTaskID", "ARRAY_TASK_ID", "ARRAY_TASK_ID", SlurmJob::task_id),
    column(Some('j'), "Name", "NAME", "NAME", |job| job.record.name.clone()),
    column(Some('u'), "UserName", "USER", "USER", |job| job.record.user.clone()),
    column(Some('U'), "UserID", "UID", "USER", |job| uid(&job.record.user).to_string()),
    column(Some('t'), "StateCompact", "ST", "ST", |job| job.state.short().to_owned()),
    column(Some('T'), "State", "STATE", "STATE", |job| job.state.long().to_owned()),
    column(Some('M'), "TimeUsed", "TIME", "TIME", |job| short_span(job.elapsed())),
    column(Some('l'), "TimeLimit", "TIME_LIMIT", "TIME_LIMIT", limit),
    column(Some('L'), "TimeLeft", "TIME_LEFT", "TIME_LEFT", time_left),
    column(Some('D'), "NumNodes", "NODES", "NODES", |job| job.node_count().to_string()),
    column(Some('C'), "NumCPUs", "CPUS", "CPUS", |job| job.cpus().to_string()),
    column(Some('m'), "MinMemory", "MIN_MEMORY", "MIN_MEMORY", SlurmJob::memory),
    column(Some('b'), "tres-per-node", "TRES_PER_NODE", "TRES_PER_NODE", SlurmJob::gres),
    column(
        Some('R'),
        "ReasonList",
        "NODELIST(REASON)",
        "NODELIST(REASON)",
        SlurmJob::nodes_or_reason,
    ),
    column(Some('N'), "NodeList", "NODELIST", "NODELIST", SlurmJob::node_list),
    column(Some('r'), "Reason", "REASON", "REASON", |job| reason(&job.record)),
    column(Some('P'), "Partition", "PARTITION", "PARTITION", SlurmJob::partition),
    column(Some('a'), "Account", "ACCOUNT", "ACCOUNT", |job| job.record.account.clone()),
    column(Some('q'), "QOS", "QOS", "QOS", |job| job.qos().to_owned()),
    column(Some('Q'), "PriorityLong", "PRIORITY", "PRIORITY", |job| job.priority().to_string()),
    column(Some('p'), "Priority", "PRIORITY", "PRIORITY", |job| {
        format!("0.{:014}", job.priority())
    }),
    column(Some('S'), "StartTime", "START_TIME", "START_TIME", start),
    column(Some('e'), "EndTime", "END_TIME", "END_TIME", end),
    column(Some('V'), "SubmitTime", "SUBMIT_TIME", "SUBMIT_TIME", |job| {
        local(Some(job.record.submitted_at), "N/A")
    }),
    column(Some('Z'), "WorkDir", "WORK_DIR", "WORKDIR", |job| {
        job.request.work_dir.clone().unwrap_or_default()
    }),
    column(Some('k'), "Comment", "COMMENT", "COMMENT", |job| {
        or_null(job.comment().map(str::to_owned).as_ref())
    }),
    column(Some('o'), "Command", "COMMAND", "COMMAND", |job| {
        or_null(job.request.work_dir.as_ref().map(|_| &job.record.name))
    }),
    column(Some('B'), "BatchHost", "EXEC_HOST", "EXEC_HOST", |job| {
        job.nodes
            .first()
            .cloned()
            .filter(|_| job.state != SlurmState::Pending)
            .unwrap_or_else(|| "n/a".to_owned())
    }),
    column(Some('E'), "Dependency", "DEPENDENCY", "DEPENDENCY", SlurmJob::dependency),
    column(Some('f'), "Feature", "FEATURES", "FEATURES", |job| {
        or_null(job.request.gpu_model.as_ref())
    }),
    column(Some('g'), "GroupName", "GROUP", "GROUP", |job| job.record.user.clone()),
    column(Some('h'), "OverSubscribe", "OVER_SUBSCRIBE", "OVER_SUBSCRIBE", |_| "OK".to_owned()),
    column(Some('n'), "ReqNodes", "REQ_NODES", "REQ_NODES", |job| {
        hosts::compress(&job.request.nodelist)
    }),
    column(Some('x'), "ExcNodes", "EXC_NODES", "EXC_NODES", |job| {
        hosts::compress(&job.request.exclude)
    }),
    column(Some('G'), "GroupID", "GROUP", "GROUP", |job| uid(&job.record.user).to_string()),
    column(Some('H'), "Sockets", "SOCKETS", "SOCKETS", |_| "*".to_owned()),
    column(Some('I'), "Cores", "CORES", "CORES", |_| "*".to_owned()),
    column(Some('J'), "Threads", "THREADS", "THREADS", |_| "*".to_owned()),
    column(Some('O'), "Contiguous", "CONTIGUOUS", "CONTIGUOUS", |_| "0".to_owned()),
    column(Some('W'), "Licenses", "LICENSES", "LICENSES", |_| "(null)".to_owned()),
    column(Some('X'), "CoreSpec", "CORE_SPEC", "CORE_SPEC", |_| "N/A".to_owned()),
    column(Some('z'), "SCT", "S:C:T", "S:C:T", |_| "*:*:*".to_owned()),
    column(Some('v'), "Reservation", "RESERVATION", "RESERVATION", |_| "(null)".to_owned()),
    column(Some('w'), "WCKey", "WCKEY", "WCKEY", |_| "(null)".to_owned()),
    column(Some('Y'), "SchedNodes", "SCHEDNODES", "SCHEDNODES", |_| "(null)".to_owned()),
    column(Some('c'), "MinCpus", "MIN_CPUS", "MIN_CPUS", |job| {
        job.request.cpus.unwrap_or(1).to_string()
    }),
    column(Some('d'), "MinTmpDisk", "MIN_TMP_DISK", "MIN_TMP_DISK", |_| "0".to_owned()),
    column(Some('y'), "Nice", "NICE", "NICE", |job| job.queue_rank().nice.to_string()),
    column(None, "NumTasks", "TASKS", "TASKS", |job| job.tasks().to_string()),
    column(None, "Nodes", "NODELIST", "NODELIST", SlurmJob::node_list),
    column(None, "cpus-per-task", "CPUS_PER_TASK", "CPUS_PER_TASK", |job| {
        job.cpus_per_task().to_string()
    }),
    column(None, "gres", "TRES_PER_NODE", "TRES_PER_NODE", SlurmJob::gres),
    column(None, "tres-per-job", "TRES_PER_JOB", "TRES_PER_JOB", |_| "N/A".to_owned()),
    column(None, "tres-per-task", "TRES_PER_TASK", "TRES_PER_TASK", |_| "N/A".to_owned()),
    column(None, "Deadline", "DEADLINE", "DEADLINE", |job| local(job.request.deadline, "N/A")),
    column(None, "EligibleTime", "ELIGIBLE_TIME", "ELIGIBLE_TIME", |job| {
        local(Some(job.eligible_at()), "N/A")
    }),
    column(None, "AccrueTime", "ACCRUE_TIME", "ACCRUE_TIME", |job| {
        local(Some(job.eligible_at()), "N/A")
    }),
    column(None, "PendingTime", "PENDING_TIME", "PENDING_TIME", |job| {
        let until = job.record.started_at.or(job.record.ended_at).unwrap_or_else(now);
        secs_between(job.record.submitted_at, until).to_string()
    }),
    column(None, "Requeue", "REQUEUE", "REQUEUE", |job| u8::from(job.is_requeued()).to_string()),
    column(None, "RestartCnt", "RESTART_COUNT", "RESTART_COUNT", |job| {
        job.record.attempts.saturating_sub(1).to_string()
    }),
    column(None, "BatchFlag", "BATCH_FLAG", "BATCH_FLAG", |_| "1".to_owned()),
    column(None, "Cluster", "CLUSTER", "CLUSTER", |_| "tessera".to_owned()),
    column(None, "MaxCPUs", "MAX_CPUS", "MAX_CPUS", |_| "0".to_owned()),
    column(None, "MaxNodes", "MAX_NODES", "MAX_NODES", |_| "0".to_owned()),
    column(None, "Reboot", "REBOOT", "REBOOT", |_| "0".to_owned()),
    column(None, "STDIN", "STDIN", "STDIN", |_| "/dev/null".to_owned()),
    column(None, "STDOUT", "STDOUT", "STDOUT", |job| {
        job.request.stdout.clone().unwrap_or_default()
    }),
    column(None, "STDERR", "STDERR", "STDERR", |job| {
        job.request.stderr.clone().unwrap_or_default()
    }),
    column(None, "tres-alloc", "TRES_ALLOC", "TRES_ALLOC", SlurmJob::tres),
    column(None, "ExitCode", "EXIT_CODE", "EXIT_CODE", SlurmJob::exit_code),
];

fn print_json(jobs: &[SlurmJob]) -> Done {
    let jobs: Vec<_> = jobs.iter().map(to_json).collect();
    let document = json!({ "meta": meta(), "errors": [], "jobs": jobs });
    let text = serde_json::to_string_pretty(&document).map_err(std::io::Error::from)?;
    write_out(&format!("{text}\n"))?;
    Ok(0)
}

/// The header that Slurm puts before each JSON answer.
pub fn meta() -> serde_json::Value {
    json!({
        "plugin": { "type": "openapi/v0.0.38", "name": "Tessera" },
        "Slurm": { "version": { "major": "22", "micro": "8", "minor": "05" }, "release": "22.05.8" },
    })
}

fn to_json(job: &SlurmJob) -> serde_json::Value {
    let unix =
        |at: Option<time::OffsetDateTime>| at.map_or(0, time::OffsetDateTime::unix_timestamp);
    let array = job.record.array_index;
    json!({
        "account": job.record.account,
        "array_job_id": array.map_or(0, |_| job.record.submission),
        "array_task_id": array,
        "array_max_tasks": 0,
        "array_task_string": "",
        "batch_flag": true,
        "batch_host": job.nodes.first().cloned().unwrap_or_default(),
        "cluster": "tessera",
        "command": job.record.name,
        "comment": job.comment().unwrap_or_default(),
        "cpus": job.cpus(),
        "current_working_directory": job.request.work_dir.clone().unwrap_or_default(),
        "dependency": Some(job.dependency()).filter(|text| text != "(null)").unwrap_or_default(),
        "end_time": unix(job.record.ended_at),
        "exit_code": code_of(&job.exit_code()),
        "group_id": uid(&job.record.user),
        "job_id": job.raw_id(),
        "job_state": job.state.long(),
        "name": job.record.name,
        "nodes": job.node_list(),
        "node_count": job.node_count(),
        "partition": job.partition(),
        "priority": job.priority(),
        "requeue": job.is_requeued(),
        "restart_cnt": job.record.attempts.saturating_sub(1),
        "standard_error": job.request.stderr.clone().or_else(|| job.request.stdout.clone()).unwrap_or_default(),
        "standard_output": job.request.stdout.clone().unwrap_or_default(),
        "start_time": unix(job.record.started_at),
        "state_description": "",
        "state_reason": reason(&job.record),
        "submit_time": unix(Some(job.record.submitted_at)),
        "qos": job.qos(),
        "tasks": job.tasks(),
        "time_limit": job.time_limit().map(minutes),
        "tres_per_node": job.gres(),
        "tres_req_str": job.tres(),
        "tres_alloc_str": if job.state.is_allocated() { job.tres() } else { String::new() },
        "user_id": uid(&job.record.user),
        "user_name": job.record.user,
    })
}

/// Returns the wait status of `code:signal`.
pub fn code_of(text: &str) -> u32 {
    let (code, signal) = text.split_once(':').unwrap_or((text, "0"));
    let (code, signal): (u32, u32) = (code.parse().unwrap_or(0), signal.parse().unwrap_or(0));
    code * 256 + signal
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::super::job::samples::{record, records};
    use super::*;

    fn lines(squeue: &str, jobs: Vec<tessera_api_types::JobRecord>) -> Vec<String> {
        let arguments = Squeue::try_parse_from(squeue.split_whitespace()).unwrap();
        let parts = arguments.parts().unwrap();
        let mut jobs = gather(records(jobs));
        if !arguments.array {
            jobs = collapse(jobs);
        }
        order(&mut jobs, arguments.sort.as_deref());
        let rows = jobs.iter().map(|job| row(&parts, job));
        [headings(&parts)].into_iter().chain(rows).collect()
    }

    /// Headings and cells as recorded from Slurm 22.05.8.
    #[test]
    fn the_default_columns_are_those_of_slurm() {
        let mut first = record(50, 50, Some(0));
        (first.state, first.node) = ("running".to_owned(), Some("g3".to_owned()));
        let waiting = [6, 9, 12].map(|index| record(50 + u64::from(index), 50, Some(index)));

        let lines = lines("squeue", [first].into_iter().chain(waiting).collect());

        assert_eq!(
            lines.concat(),
            concat!(
                "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n",
                "       50_[6,9,12]       gpu    train      ada PD       0:00      1 (Resources)\n",
                "              50_0       gpu    train      ada  R       0:00      1 g3\n",
            )
        );
    }

    #[test]
    fn one_line_for_each_task_and_the_formats_of_tools() {
        let jobs = || vec![record(52, 50, Some(6)), record(53, 50, Some(9))];

        assert_eq!(
            lines("squeue -r -h -o %i|%T", jobs())[1..],
            ["50_6|PENDING\n", "50_9|PENDING\n"]
        );
        let folded = || vec![tessera_api_types::JobRecord { more: 2, ..record(52, 50, Some(6)) }];
        let parts = of_codes("%.6i|%F|%A|%K|%t\n", COLUMNS);
        let drawn = |jobs: Vec<SlurmJob>| -> String {
            jobs.into_iter().map(|job| rows(&parts, job)).collect()
        };
        let expected = "  50_6|50|52|6|PD\n\n  50_7|50|53|7|PD\n\n  50_8|50|54|8|PD\n\n";
        assert_eq!(drawn(gather(records(folded()))), expected);
        assert_eq!(drawn(unfold(gather(records(folded())))), expected);
        assert_eq!(drawn(collapse(gather(records(folded())))), "50_[6-|50|50|6-8|PD\n\n");
        assert_eq!(
            lines("squeue --array --sort=-i --format=%A|%F|%K|%t", jobs())[1],
            "53|50|9|PD\n"
        );
        let named = lines("squeue -r -O JobID,JobArrayID,State:.12", jobs());
        assert_eq!(named[0], format!("{:<20}{:<20}{:>12}\n", "JOBID", "JOBID", "STATE"));
        assert_eq!(named[1], format!("{:<20}{:<20}{:>12}\n", "52", "50_6", "PENDING"));
    }

    #[test]
    fn parsl_nextflow_and_cromwell_are_understood() {
        for line in [
            vec!["squeue", "--noheader", "--format=%i %t", "--job", "1,2,3"],
            vec!["squeue", "--noheader", "-o", "%i %t", "-t", "all", "-p", "gpu", "-u", "ada"],
            vec!["squeue", "-j", "42"],
            vec!["squeue", "--format=%i|%T", "--states=all", "--noheader", "--name", "uuid"],
        ] {
            let parser = <Squeue as clap::CommandFactory>::command()
                .infer_long_args(true)
                .args_override_self(true);
            let matches = parser.try_get_matches_from(&line).unwrap();
            Squeue::from_arg_matches(&matches).unwrap();
        }
    }

    #[test]
    fn a_wait_status_is_made_of_code_and_signal() {
        assert_eq!([code_of("7:0"), code_of("0:9")], [7 * 256, 9]);
    }
}
