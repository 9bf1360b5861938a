//! `tessera queue`: what `squeue` is to a batch scheduler.

mod format;
mod starts;

use clap::{ArgAction, Args};
use format::QueueFormat;
use tessera_model::JobRef;
use tessera_model::life::JobState;
use time::OffsetDateTime;

use super::failure::CommandFailure;
use super::jobs::parse_jobs;
use super::session::{CommandSession, or_dash, table};
use super::span::Elapsed;
use tessera_api_types::{GangView, JobFilter, JobPage, JobView};

const HEADER: &[&str] =
    &["JOBID", "NAME", "USER", "ST", "TIME", "CLASS", "REQUEST", "GPU", "NODE(REASON)"];

/// Lists jobs, running ones first.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Queue {
    /// List only jobs of this user
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// List only your own jobs
    #[arg(long, conflicts_with = "user")]
    me: bool,
    /// List only these jobs, such as 42, 42_7 or 42_[1-5]
    #[arg(short, long, value_name = "JOBS", value_delimiter = ',')]
    jobs: Vec<String>,
    /// Show when waiting jobs are expected to start
    #[arg(long)]
    start: bool,
    /// List only jobs in these states: PD, CF, R, CG, CD, F, CA, TO, their long names, or `all`;
    /// by default all that have not ended
    #[arg(short = 't', long = "states", value_name = "STATES", value_parser = parse_states)]
    states: Option<StateList>,
    /// List only jobs with this name
    #[arg(short, long, value_name = "NAME")]
    name: Option<String>,
    /// List only jobs on this node
    #[arg(short = 'w', long, value_name = "NODE")]
    node: Option<String>,
    /// List only tasks of this array
    #[arg(long, value_name = "JOB")]
    array: Option<u64>,
    /// Maximum number of jobs, the newest first
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    limit: usize,
    /// Columns: codes as in squeue, or names separated by commas (jobid,name,user,state,why). The
    /// codes are %i %j %u %t %T %M %R %N %r %V %S %e %Q %b %A %F %K, with widths as in %.10i.
    /// Without headings (-h), columns are not padded
    #[arg(short = 'o', long, value_name = "FORMAT")]
    format: Option<QueueFormat>,
    /// Omit the line of headings
    #[arg(short = 'h', long)]
    noheader: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// A list of states as the API takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateList(pub String);

/// A word that is not a job state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{word:?} is not a state; write PD, CF, R, CG, CD, F, CA, TO, all, active, or {}",
    JobState::ALL.iter().map(|state| state.word()).collect::<Vec<_>>().join(", ")
)]
pub struct UnknownState {
    word: String,
}

/// Parses states: Slurm's short and long names, or Tessera's.
///
/// # Errors
///
/// [`UnknownState`] lists what can be written.
pub fn parse_states(text: &str) -> Result<StateList, UnknownState> {
    let mut words = Vec::new();
    for word in text.split(',').map(str::trim) {
        let found = states_named(word);
        if found.is_empty() {
            return Err(UnknownState { word: word.to_owned() });
        }
        words.extend(found);
    }
    words.dedup();
    Ok(StateList(words.join(",")))
}

fn states_named(word: &str) -> Vec<&'static str> {
    let lower = word.to_ascii_lowercase();
    if lower == "active" {
        return vec!["active"];
    }
    let slurm = match lower.as_str() {
        "pending" => "PD",
        "configuring" => "CF",
        "completing" => "CG",
        "completed" => "CD",
        "timeout" => "TO",
        _ => word,
    };
    let named = |state: &&JobState| {
        lower == "all" || lower == state.word() || slurm.eq_ignore_ascii_case(state.short())
    };
    JobState::ALL.iter().filter(named).map(|state| state.word()).collect()
}

impl Queue {
    #[expect(clippy::disallowed_methods, reason = "measures the time that the user waits")]
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let user = match self.me {
            true => Some(session.client.who_am_i().await?.user),
            false => self.user.clone(),
        };
        let active = || "active".to_owned();
        let filter = JobFilter {
            state: Some(self.states.as_ref().map_or_else(active, |StateList(list)| list.clone())),
            user,
            name: self.name.clone(),
            array: self.array,
            node: self.node.clone(),
            ..JobFilter::default()
        };
        let page = match self.jobs.is_empty() {
            true => session.client.all_jobs(&filter, self.limit).await?,
            false => self.named(session).await?,
        };
        if self.start {
            return starts::show(session, &page).await;
        }
        let header = (!self.noheader).then_some(HEADER);
        let now = OffsetDateTime::now_utc();
        session.print(&page, |page| match &self.format {
            None => draw(page, header, now),
            Some(format) => format.draw(&in_order(page), header.is_some(), now),
        })?;
        if !session.json && page.next_cursor.is_some() {
            session.remark(&format!(
                "only the newest {} jobs are shown; --limit shows more",
                page.items.len()
            ));
        }
        Ok(0)
    }
}

impl Queue {
    /// Looks up the named jobs. For a named array, all tasks are listed.
    async fn named(&self, session: &CommandSession) -> Result<JobPage, CommandFailure> {
        let mut items: Vec<JobView> = Vec::new();
        for word in split_at_commas(&self.jobs) {
            for job in parse_jobs(&word).map_err(CommandFailure::usage)?.0 {
                let found = session.client.job(job).await?.job;
                match (job, found.array_id) {
                    (JobRef::Job(id), Some(array)) if id.number() == array => {
                        let tasks = JobFilter { array: Some(array), ..JobFilter::default() };
                        items.extend(session.client.all_jobs(&tasks, self.limit).await?.items);
                    }
                    _ => items.push(found),
                }
            }
        }
        Ok(JobPage { items, next_cursor: None })
    }
}

/// Rejoins words whose brackets were split at a comma: `42_[1`, `5]`.
fn split_at_commas(words: &[String]) -> Vec<String> {
    let mut whole: Vec<String> = Vec::new();
    for word in words {
        match whole.last_mut().filter(|last| last.contains('[') && !last.contains(']')) {
            Some(last) => {
                last.push(',');
                last.push_str(word);
            }
            None => whole.push(word.clone()),
        }
    }
    whole
}

/// Draws a page of jobs as a table; waiting tasks of one array share a line.
pub fn draw(page: &JobPage, header: Option<&[&str]>, now: OffsetDateTime) -> String {
    let mut rows: Vec<(QueueRow, &JobView)> = Vec::new();
    for job in in_order(page) {
        match rows.last_mut() {
            Some((row, last)) if row.takes(last, job) => row.end_with(job),
            _ => rows.push((QueueRow::of(job), job)),
        }
    }
    table(header, rows.iter().map(|(row, job)| row.cells(job, now)))
}

fn in_order(page: &JobPage) -> Vec<&JobView> {
    let mut jobs: Vec<&JobView> = page.items.iter().collect();
    jobs.sort_by_key(|job| (rank(job), job.id));
    jobs
}

/// Orders running jobs first, then waiting ones, then ended ones.
fn rank(job: &JobView) -> u8 {
    match job.state_short.as_str() {
        "R" | "CG" => 0,
        "CF" => 1,
        "PD" => 2,
        _ => 3,
    }
}

/// One line: a job, or consecutive tasks of one array that wait for the same reason.
struct QueueRow {
    first_index: Option<u32>,
    last_index: Option<u32>,
    /// The last member, if the tasks are gangs.
    last_member: Option<GangView>,
}

impl QueueRow {
    fn of(job: &JobView) -> Self {
        let last_member = job.gang.filter(|gang| gang.in_array);
        Self { first_index: job.array_index, last_index: job.array_index, last_member }
    }

    const fn end_with(&mut self, job: &JobView) {
        self.last_index = job.array_index;
        self.last_member = job.gang;
    }

    fn takes(&self, first: &JobView, next: &JobView) -> bool {
        let member = next.gang.filter(|gang| gang.in_array).map(|gang| gang.rank);
        let follows = match (self.last_index, next.array_index, member, self.last_member) {
            (Some(last), Some(index), Some(1..), Some(member)) => {
                index == last && next.gang.is_some_and(|gang| gang.rank == member.rank + 1)
            }
            (Some(last), Some(index), ..) => last.checked_add(1) == Some(index),
            (None, ..) | (_, None, ..) => false,
        };
        follows
            && first.state_short == "PD"
            && (first.array_id, &first.state, &first.reason)
                == (next.array_id, &next.state, &next.reason)
    }

    fn cells(&self, job: &JobView, now: OffsetDateTime) -> Vec<String> {
        vec![
            self.name(job),
            job.name.chars().take(24).collect(),
            job.user.clone(),
            job.state_short.clone(),
            elapsed(job, now),
            job.class.clone(),
            job.gpu_request.clone(),
            placement(job),
            node_or_reason(job),
        ]
    }

    fn name(&self, job: &JobView) -> String {
        match (job.array_id, self.first_index, self.last_index) {
            (Some(array), Some(first), Some(last)) if last > first => {
                format!("{array}_[{first}-{last}]")
            }
            _ => job.name_id.clone(),
        }
    }
}

fn elapsed(job: &JobView, now: OffsetDateTime) -> String {
    match job.started_at {
        Some(start) if rank(job) != 2 => {
            Elapsed::between(start, job.ended_at.unwrap_or(now)).to_string()
        }
        Some(_) | None => "0:00".to_owned(),
    }
}

/// Shows GPU and profile of a job that has a placement: `0:1g.5gb`.
fn placement(job: &JobView) -> String {
    match (&job.profile, job.gpu_index) {
        _ if job.state_short == "PD" => "-".to_owned(),
        (Some(profile), Some(index)) => format!("{index}:{profile}"),
        (Some(profile), None) => profile.clone(),
        (None, index) => or_dash(index),
    }
}

fn node_or_reason(job: &JobView) -> String {
    match (&job.node, &job.reason) {
        (Some(node), _) if rank(job) < 2 => node.clone(),
        (_, Some(reason)) => format!("({})", in_camel_case(reason)),
        (Some(node), None) => node.clone(),
        (None, None) => "(None)".to_owned(),
    }
}

/// Writes a reason as batch schedulers do: `bad_constraints` becomes `BadConstraints`.
fn in_camel_case(reason: &str) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str())
    };
    reason.split('_').filter_map(capital).collect()
}

#[cfg(test)]
mod tests;
