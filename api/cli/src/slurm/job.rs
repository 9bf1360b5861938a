//! One line of Slurm's listings: a job, a task, a gang, or the waiting tasks of an array.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use tessera_api_types::{JobRecord, JobRecords, RankUpdateView, RankView, RequestRecord};
use tessera_model::number::clamped;
use time::OffsetDateTime;

use super::hosts;
use super::state::{self, SlurmState};
use super::times::{now, secs_between};

/// Bytes of Slurm's `M`.
const MIB: u64 = 1 << 20;

/// A job as Slurm shows it.
#[derive(Clone, Debug)]
pub struct SlurmJob {
    /// The job; for a gang, its first member.
    pub record: JobRecord,
    /// What it requested.
    pub request: RequestRecord,
    /// Its nodes while it has an allocation, and after.
    pub nodes: Vec<String>,
    /// Indexes of the waiting tasks that this line stands for.
    pub waiting: Vec<u32>,
    pub state: SlurmState,
}

/// Groups records: a gang is one job, and every task is a separate job.
pub fn gather(records: JobRecords) -> Vec<SlurmJob> {
    let requests: BTreeMap<u64, RequestRecord> =
        records.specs.into_iter().map(|spec| (spec.submission, spec)).collect();
    let mut jobs: Vec<SlurmJob> = Vec::with_capacity(records.jobs.len());
    for record in records.jobs {
        let node = record.node.clone();
        match jobs.last_mut() {
            Some(last) if record.rank.is_some() && is_same_task(&last.record, &record) => {
                last.nodes.extend(node.filter(|node| !last.nodes.contains(node)));
            }
            _ => {
                let request = requests.get(&record.submission).cloned();
                jobs.push(SlurmJob {
                    state: SlurmState::of(&record),
                    request: request.unwrap_or_else(|| unknown_request(record.submission)),
                    nodes: node.into_iter().collect(),
                    waiting: Vec::new(),
                    record,
                });
            }
        }
    }
    jobs
}

/// Returns whether two records belong to one job, or to one task of an array.
fn is_same_task(one: &JobRecord, other: &JobRecord) -> bool {
    (one.submission, one.array_index) == (other.submission, other.array_index)
}

/// Returns what is shown of a request without its specification.
fn unknown_request(submission: u64) -> RequestRecord {
    RequestRecord {
        submission,
        tasks: 1,
        gpu: String::new(),
        gpus: 1,
        nodes: 1,
        class: String::new(),
        processes: None,
        ntasks: None,
        cpus_per_task: None,
        queue_rank: RankView { priority: 5, ..RankView::default() },
        cpus: None,
        host_memory_bytes: None,
        time_limit_secs: None,
        requeue: true,
        comment: None,
        partition: None,
        qos: None,
        begin: None,
        deadline: None,
        gpu_model: None,
        nodelist: Vec::new(),
        exclude: Vec::new(),
        dependency: None,
        work_dir: None,
        stdout: None,
        stderr: None,
    }
}

/// Gives every task its own line, even if several share a record.
pub fn unfold(jobs: Vec<SlurmJob>) -> Vec<SlurmJob> {
    let mut lines = Vec::with_capacity(jobs.len());
    for mut job in jobs {
        let more = std::mem::take(&mut job.record.more);
        for _ in 0..more {
            lines.push(job.clone());
            job.next_task();
        }
        lines.push(job);
    }
    lines
}

/// Puts the waiting tasks of each array into one line, as Slurm does.
pub fn collapse(jobs: Vec<SlurmJob>) -> Vec<SlurmJob> {
    let mut lines: Vec<SlurmJob> = Vec::new();
    // Tasks that were updated alone have separate lines, as in Slurm.
    let mut line_of: BTreeMap<(u64, bool, RankUpdateView, Option<String>), usize> = BTreeMap::new();
    for mut job in jobs {
        let index = job.record.array_index.filter(|_| job.state == SlurmState::Pending);
        let Some(index) = index else {
            lines.push(job);
            continue;
        };
        let JobRecord { submission, queue_rank, ref dependency, .. } = job.record;
        let key = (submission, job.record.state == "held", queue_rank, dependency.clone());
        match line_of.get(&key).and_then(|line| lines.get_mut(*line)) {
            Some(line) => line.waiting.extend(index..=index + job.record.more),
            None => {
                line_of.insert(key, lines.len());
                job.waiting.extend(index..=index + job.record.more);
                lines.push(job);
            }
        }
    }
    lines
}

impl SlurmJob {
    /// Becomes the next one of the tasks that its record stands for.
    pub fn next_task(&mut self) {
        self.record.id = self.record.id.saturating_add(1);
        self.record.array_index = self.record.array_index.map(|index| index.saturating_add(1));
    }

    /// Returns `42`, `42_7` or `42_[1-5]`.
    pub fn id(&self) -> String {
        let array = self.record.submission;
        match (self.waiting.is_empty(), self.record.array_index) {
            (false, _) => format!("{array}_[{}{}]", ranges(&self.waiting), self.at_once()),
            (true, Some(index)) => format!("{array}_{index}"),
            (true, None) => self.raw_id().to_string(),
        }
    }

    /// Returns `%4` if four tasks of its array may run at a time.
    fn at_once(&self) -> String {
        self.record.array_limit.map_or_else(String::new, |limit| format!("%{limit}"))
    }

    /// Returns the unique number of the job or task; waiting tasks have that of their array.
    pub fn raw_id(&self) -> u64 {
        let is_gang = self.record.rank.is_some() && self.record.array_index.is_none();
        match self.waiting.is_empty() && !is_gang {
            true => self.record.id,
            false => self.record.submission,
        }
    }

    /// Returns the number of the array, or of the job.
    pub fn array_id(&self) -> u64 {
        match self.record.array_index {
            Some(_) => self.record.submission,
            None => self.raw_id(),
        }
    }

    /// Returns the index of its task, or of the waiting ones.
    pub fn task_id(&self) -> String {
        match (self.waiting.is_empty(), self.record.array_index) {
            (false, _) => ranges(&self.waiting),
            (true, Some(index)) => index.to_string(),
            (true, None) => "N/A".to_owned(),
        }
    }

    /// Returns its nodes as one list; empty before it has any.
    pub fn node_list(&self) -> String {
        if self.state == SlurmState::Pending {
            return String::new();
        }
        hosts::compress(&self.nodes)
    }

    /// Returns its nodes, or in brackets why it has none.
    pub fn nodes_or_reason(&self) -> String {
        let nodes = self.node_list();
        if self.state.is_allocated() || (self.state == SlurmState::Completed && !nodes.is_empty()) {
            return nodes;
        }
        match self.state {
            SlurmState::Cancelled if !nodes.is_empty() => nodes,
            SlurmState::Cancelled => "()".to_owned(),
            _ => format!("({})", state::reason(&self.record)),
        }
    }

    /// Returns the number of its nodes.
    pub fn node_count(&self) -> u32 {
        match self.state {
            SlurmState::Pending => self.request.nodes,
            _ => clamped::<u32>(self.nodes.len()).max(1),
        }
    }

    /// Returns how long it has run, in seconds.
    pub fn elapsed(&self) -> u64 {
        match self.record.started_at {
            Some(start) if self.state != SlurmState::Pending => {
                secs_between(start, self.record.ended_at.unwrap_or_else(now))
            }
            _ => 0,
        }
    }

    /// Returns its time limit in seconds, if it has one.
    pub fn time_limit(&self) -> Option<u64> {
        let updated = self.record.time_limit_secs;
        updated.map_or(self.request.time_limit_secs, |secs| Some(secs).filter(|secs| *secs > 0))
    }

    /// Returns its priority: a larger number is served first, as in Slurm.
    pub fn priority(&self) -> u64 {
        let rank = self.queue_rank().priority;
        u64::from(9_u8.saturating_sub(rank)) * 1_000 + 1
    }

    /// Returns what orders it in the queue, after updates.
    pub fn queue_rank(&self) -> RankView {
        self.record.queue_rank.over(self.request.queue_rank)
    }

    /// Returns its processors.
    pub fn cpus(&self) -> u32 {
        match self.request.cpus {
            Some(cpus) => cpus.saturating_mul(self.processes()),
            None => self.tasks(),
        }
    }

    /// Returns the number of its tasks: one on each node, unless its options give another number.
    pub fn tasks(&self) -> u32 {
        self.request.ntasks.unwrap_or_else(|| self.processes())
    }

    /// Returns the processors of each of its tasks.
    pub fn cpus_per_task(&self) -> u32 {
        self.request.cpus_per_task.unwrap_or(1)
    }

    /// Returns the least number of processors of one of its nodes.
    pub fn cpus_on_node(&self) -> u32 {
        self.cpus().div_euclid(self.request.nodes.max(1)).max(1)
    }

    /// Returns the number of processes that share what is limited for each.
    pub fn processes(&self) -> u32 {
        self.request.processes.unwrap_or(self.request.gpus).max(1)
    }

    /// Returns its host memory on each node, as `16G`; `0` for no limit.
    pub fn memory(&self) -> String {
        let nodes = u64::from(self.request.nodes.max(1));
        let each = u64::from(self.processes()).div_euclid(nodes).max(1);
        megabytes(self.request.host_memory_bytes.unwrap_or(0).saturating_mul(each))
    }

    /// Returns what it uses, as `cpu=1,mem=4G,node=1,billing=1,gres/gpu=1`.
    pub fn tres(&self) -> String {
        let mut tres = format!("cpu={}", self.cpus());
        if let Some(bytes) = self.request.host_memory_bytes {
            let all = bytes.saturating_mul(u64::from(self.processes()));
            tres += &format!(",mem={}", megabytes(all));
        }
        format!(
            "{tres},node={},billing={},gres/gpu={}",
            self.node_count(),
            self.cpus(),
            self.request.gpus
        )
    }

    /// Returns the GPUs of each node, as `gres:gpu:2`.
    pub fn gres(&self) -> String {
        format!("gres:gpu:{}", self.request.gpus.div_euclid(self.request.nodes.max(1)).max(1))
    }

    /// Returns exit code and signal as accounting shows them.
    pub fn exit_code(&self) -> String {
        exit_code(self.state, self.record.outcome.as_deref(), self.record.exit_code.as_deref())
    }

    /// Returns the conditions that it waits for, as Slurm shows them; nothing once it has started.
    pub fn dependency(&self) -> String {
        let waits = self.state == SlurmState::Pending;
        let updated = self.record.dependency.as_deref();
        let dependency = updated.or(self.request.dependency.as_deref());
        let Some(dependency) = dependency.filter(|text| waits && !text.is_empty()) else {
            return "(null)".to_owned();
        };
        let state = match self.record.reason.as_deref() {
            Some("dependency_never_satisfied") => "(failed)",
            // No round has looked at it yet, or one found that it waits.
            None | Some("dependency") => "(unfulfilled)",
            // What it waits for is another matter now.
            _ => return "(null)".to_owned(),
        };
        let separator = if dependency.contains('?') { "?" } else { "," };
        let conditions = dependency.split(separator).map(|condition| format!("{condition}{state}"));
        conditions.collect::<Vec<_>>().join(separator)
    }

    /// Returns its comment, after updates.
    pub fn comment(&self) -> Option<&str> {
        let comment = self.record.comment.as_deref().or(self.request.comment.as_deref());
        comment.filter(|comment| !comment.is_empty())
    }

    /// Returns whether it runs again after its node was lost.
    pub fn is_requeued(&self) -> bool {
        self.record.requeue.unwrap_or(self.request.requeue)
    }

    /// Returns the earliest start, if it has one.
    pub fn begin(&self) -> Option<OffsetDateTime> {
        self.record.begin.or(self.request.begin)
    }

    /// Returns from when on it could have started.
    pub fn eligible_at(&self) -> OffsetDateTime {
        let submitted = self.record.submitted_at;
        self.begin().map_or(submitted, |begin| begin.max(submitted))
    }

    /// Returns its quality of service.
    pub fn qos(&self) -> &str {
        self.request.qos.as_deref().unwrap_or("normal")
    }

    /// Returns its partition.
    pub fn partition(&self) -> String {
        let named = self.record.partition.as_ref().or(self.request.partition.as_ref());
        named.cloned().unwrap_or_else(|| super::PARTITION.to_owned())
    }
}

/// Returns exit code and signal of a job or a run in Slurm's way.
pub fn exit_code(state: SlurmState, outcome: Option<&str>, code: Option<&str>) -> String {
    match (state, outcome) {
        // Slurm reports the job, which the signal did not reach.
        (SlurmState::Cancelled | SlurmState::Timeout, _) => "0:0",
        (SlurmState::OutOfMemory, _) => "0:125",
        (SlurmState::Failed, Some("launch_failed")) => "0:53",
        _ => code.unwrap_or("0:0"),
    }
    .to_owned()
}

/// Writes bytes as Slurm does: `100M`, `16G`.
pub fn megabytes(bytes: u64) -> String {
    let mib = bytes / MIB;
    match mib {
        0 => "0".to_owned(),
        _ if mib.is_multiple_of(1_024) => format!("{}G", mib / 1_024),
        _ => format!("{mib}M"),
    }
}

/// Writes indexes as `0-3,7`.
pub fn ranges(indexes: &[u32]) -> String {
    let mut sorted = indexes.to_vec();
    sorted.sort_unstable();
    let mut list: Vec<(u32, u32)> = Vec::new();
    for index in sorted {
        match list.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(index) => *last = index,
            _ => list.push((index, index)),
        }
    }
    let text = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    list.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Returns a user's number, if this machine knows the user; otherwise what Slurm shows for nobody.
pub fn uid(user: &str) -> u32 {
    // Read once: lists have tens of thousands of jobs.
    static NUMBERS: OnceLock<BTreeMap<String, u32>> = OnceLock::new();
    let numbers = NUMBERS.get_or_init(|| {
        let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let entry = |line: &str| {
            let mut fields = line.split(':');
            Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?))
        };
        text.lines().filter_map(entry).collect()
    });
    numbers.get(user).copied().unwrap_or(NOBODY)
}

/// `NO_VAL` of Slurm.
const NOBODY: u32 = 4_294_967_294;

/// Returns seconds as whole minutes, as Slurm counts limits.
pub fn minutes(secs: u64) -> u32 {
    clamped(secs.div_ceil(60))
}

#[cfg(test)]
pub mod samples {
    use super::*;

    /// A job that waits.
    pub fn record(id: u64, submission: u64, index: Option<u32>) -> JobRecord {
        JobRecord {
            id,
            more: 0,
            submission,
            array_index: index,
            rank: None,
            name: "train".to_owned(),
            user: "ada".to_owned(),
            account: "lab".to_owned(),
            state: "queued".to_owned(),
            outcome: None,
            reason: Some("resources".to_owned()),
            attempts: 0,
            submitted_at: OffsetDateTime::UNIX_EPOCH,
            placed_at: None,
            started_at: None,
            ended_at: None,
            exit_code: None,
            node: None,
            gpu_index: None,
            queue_rank: RankUpdateView::default(),
            time_limit_secs: None,
            dependency: None,
            comment: None,
            requeue: None,
            array_limit: None,
            begin: None,
            partition: None,
            runs: Vec::new(),
        }
    }

    /// The same jobs as an answer.
    pub fn records(jobs: Vec<JobRecord>) -> JobRecords {
        JobRecords { jobs, specs: Vec::new(), truncated: false }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{record, records};
    use super::*;

    #[test]
    fn waiting_tasks_are_one_line_and_others_have_their_own() {
        let mut running = record(50, 50, Some(0));
        running.state = "running".to_owned();
        let tasks = [3, 4, 5, 9].map(|index| record(50 + u64::from(index), 50, Some(index)));
        let all: Vec<_> = [running].into_iter().chain(tasks).collect();

        let lines = collapse(gather(records(all)));

        let ids: Vec<_> = lines.iter().map(SlurmJob::id).collect();
        assert_eq!(ids, ["50_0", "50_[3-5,9]"]);
        assert_eq!((lines[1].raw_id(), lines[1].task_id()), (50, "3-5,9".to_owned()));
    }

    #[test]
    fn what_updates_changed_of_the_rank_stands_over_what_was_submitted() {
        let updated = JobRecord {
            queue_rank: RankUpdateView { priority: None, nice: Some(100) },
            ..record(50, 50, None)
        };
        let jobs = gather(records(vec![updated]));

        assert_eq!(jobs[0].queue_rank(), RankView { priority: 5, nice: 100 });
        assert_eq!(jobs[0].priority(), 4_001);
    }

    #[test]
    fn a_record_of_many_tasks_is_one_line_or_one_for_each() {
        let folded = JobRecord { more: 2, ..record(54, 50, Some(4)) };
        let jobs = || gather(records(vec![record(50, 50, Some(0)), folded.clone()]));

        let short: Vec<_> = collapse(jobs()).iter().map(SlurmJob::id).collect();
        let long: Vec<_> = unfold(jobs()).iter().map(|job| (job.id(), job.raw_id())).collect();

        assert_eq!(short, ["50_[0,4-6]"]);
        let expected = [("50_0", 50), ("50_4", 54), ("50_5", 55), ("50_6", 56)];
        assert_eq!(long, expected.map(|(id, raw)| (id.to_owned(), raw)));
    }

    #[test]
    fn each_task_of_an_array_of_gangs_is_one_job() {
        let member = |id: u64, index: u32, rank: u32, state: &str| {
            let mut member = record(id, 7, Some(index));
            (member.rank, member.state) = (Some(rank), state.to_owned());
            (member.node, member.attempts) = (Some(format!("n{rank}")), 1);
            member
        };
        let of_task =
            |id, index, state| [member(id, index, 0, state), member(id + 1, index, 1, state)];
        let tasks = [of_task(7, 1, "running"), of_task(9, 4, "queued"), of_task(11, 5, "queued")];
        let records = JobRecords { jobs: tasks.concat(), specs: Vec::new(), truncated: false };

        let lines = collapse(gather(records));

        let ids: Vec<_> = lines.iter().map(SlurmJob::id).collect();
        assert_eq!(ids, ["7_1", "7_[4-5]"]);
        assert_eq!((lines[0].raw_id(), lines[0].nodes.len()), (7, 2));
    }

    #[test]
    fn a_gang_is_one_job_on_all_its_nodes() {
        let member = |rank: u32, node: &str| {
            let mut member = record(7 + u64::from(rank), 7, None);
            (member.rank, member.state) = (Some(rank), "running".to_owned());
            member.node = Some(node.to_owned());
            member
        };

        let jobs = gather(records(vec![member(0, "g1"), member(1, "g1"), member(2, "g2")]));

        assert_eq!(jobs.len(), 1);
        assert_eq!((jobs[0].id(), jobs[0].node_list()), ("7".to_owned(), "g[1-2]".to_owned()));
    }

    #[test]
    fn exit_codes_are_those_that_slurm_reports() {
        let code = |state, outcome, code| exit_code(state, Some(outcome), code);

        assert_eq!(code(SlurmState::Failed, "failed", Some("7:0")), "7:0");
        assert_eq!(code(SlurmState::Failed, "launch_failed", None), "0:53");
        assert_eq!(code(SlurmState::Cancelled, "cancelled", Some("0:15")), "0:0");
        assert_eq!(code(SlurmState::OutOfMemory, "out_of_memory", Some("1:0")), "0:125");
    }

    #[test]
    fn memory_is_written_in_megabytes_or_gigabytes() {
        assert_eq!([megabytes(100 << 20), megabytes(16 << 30), megabytes(0)], ["100M", "16G", "0"]);
    }
}
