//! `tessera show`: all details of a job.

use std::fmt::Write as _;

use clap::Args;
use tessera_model::number::clamped;
use tessera_model::{Bytes, JobRef};
use time::OffsetDateTime;

use super::explain::{describe_colocation, describe_memory_prediction, describe_prediction};
use super::failure::CommandFailure;
use super::gpus::fault;
use super::jobs::parse_one_job;
use super::memory_curve;
use super::session::{CommandSession, fields, moment, or_dash, table};
use super::span::Elapsed;
use super::spark;
use tessera_api_types::{
    AttemptView, GpuListing, JobDetail, JobEvents, JobFilter, JobSeries, JobView, KernelQueueUse,
    SeriesQuery,
};

#[derive(Args)]
pub struct Show {
    /// The job, such as 42 or 42_7
    #[arg(value_name = "JOB", value_parser = parse_one_job)]
    job: JobRef,
    /// Show its events instead
    #[arg(long)]
    events: bool,
    /// Show the GPU memory of its attempts over time instead, with its prediction
    #[arg(long, conflicts_with = "events")]
    memory: bool,
}

impl Show {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        if self.events {
            let events = session.client.events(self.job).await?;
            session.print(&events, draw_events)?;
        } else if self.memory {
            let memory = session.client.job_memory(self.job).await?;
            session.print(&memory, memory_curve::draw)?;
        } else {
            let detail = session.client.job(self.job).await?;
            let more = if session.json { String::new() } else { self.more(session, &detail).await };
            session.print(&detail, |detail| draw(detail) + &more)?;
        }
        Ok(0)
    }
}

impl Show {
    /// Describes what is not part of the job itself. What can't be fetched is omitted, since the
    /// job itself was requested.
    async fn more(&self, session: &CommandSession, detail: &JobDetail) -> String {
        let query = SeriesQuery { since_secs: Some(u64::from(u32::MAX)), points: Some(COLUMNS) };
        let series = match detail.job.started_at {
            Some(_) => session.client.job_series(self.job, &query).await.ok(),
            None => None,
        };
        let memory = match detail.job.started_at {
            Some(_) => session.client.job_memory(self.job).await.ok(),
            None => None,
        };
        let failed = detail.attempt_list.iter().any(|a| FAULTY.contains(&a.state.as_str()));
        let gang = members(session, &detail.job).await;
        let gpus = if failed { session.client.gpus().await.ok() } else { None };
        draw_members(&gang)
            + &series.map(|series| lines(&series)).unwrap_or_default()
            + &memory.map(|memory| memory_curve::newest(&memory)).unwrap_or_default()
            + &gpus.map(|gpus| faults(detail, &gpus)).unwrap_or_default()
    }
}

/// Reads the members of a job's gang, by rank. Members that can't be read are left out, since they
/// are only additional output.
async fn members(session: &CommandSession, job: &JobView) -> Vec<JobView> {
    let mut found = Vec::new();
    let Some((array, gang)) = job.array_id.zip(job.gang) else { return found };
    let mut filter = JobFilter { array: Some(array), limit: Some(1_000), ..JobFilter::default() };
    let is_of_gang = |other: &JobView| !gang.in_array || other.array_index == job.array_index;
    let size = clamped::<usize>(gang.size);
    while found.len() < size {
        let Ok(page) = session.client.jobs(&filter).await else { break };
        found.extend(page.items.into_iter().filter(is_of_gang));
        filter.cursor = page.next_cursor;
        if filter.cursor.is_none() {
            break;
        }
    }
    found.reverse();
    found
}

/// Draws a gang's members.
fn draw_members(members: &[JobView]) -> String {
    if members.is_empty() {
        return String::new();
    }
    let header = ["RANK", "JOB", "STATE", "NODE", "GPU", "EXIT"];
    let row = |job: &JobView| {
        vec![
            or_dash(job.gang.map(|gang| gang.rank)),
            job.name_id.clone(),
            job.state.clone(),
            or_dash(job.node.clone()),
            or_dash(job.gpu_index),
            or_dash(job.exit_code.clone()),
        ]
    };
    format!("\n{}", table(Some(&header), members.iter().map(row)))
}

/// Width of a drawn line in columns.
const COLUMNS: u32 = 40;
/// States that a GPU's fault may have caused.
const FAULTY: [&str; 3] = ["failed", "lost", "collateral"];

/// Draws the newest attempt's time series.
fn lines(series: &JobSeries) -> String {
    let Some(attempt) = series.attempts.last().filter(|a| a.points.len() > 1) else {
        return String::new();
    };
    let width = (COLUMNS as usize).min(attempt.points.len());
    let peak = attempt.points.iter().filter_map(|point| point.memory_max_bytes).max();
    let memory =
        spark::figure(&attempt.points, attempt.step_secs, |p| p.memory_bytes.map(spark::bytes));
    let busy = spark::figure(&attempt.points, attempt.step_secs, |p| p.activity);
    let most = busy.iter().flatten().copied().fold(0.0, f64::max);
    let (number, step) = (attempt.number, Elapsed(attempt.step_secs));
    let mut text = format!("\nattempt {number} over time, {step} each column\n");
    if let Some(peak) = peak {
        let line = spark::line(&memory, spark::bytes(peak), width);
        let _ = writeln!(text, "memory {line}  at most {}", Bytes::new(peak));
    }
    let line = spark::line(&busy, most, width);
    let _ = writeln!(text, "busy   {line}  at most {:.0} % of the GPU", most * 100.0);
    text
}

/// Lists the GPU faults that affected the job's attempts.
fn faults(detail: &JobDetail, gpus: &GpuListing) -> String {
    let mut text = String::new();
    for attempt in &detail.attempt_list {
        let all = gpus.items.iter().filter(|gpu| gpu.id == attempt.gpu).flat_map(|gpu| &gpu.faults);
        for seen in all.filter(|fault| fault.attempts.contains(&attempt.id)) {
            let _ = write!(text, "attempt {}: GPU fault {}", attempt.number, fault(seen));
        }
    }
    text
}

fn in_array(job: &JobView) -> bool {
    job.gang.is_some_and(|gang| gang.in_array)
}

fn draw(detail: &JobDetail) -> String {
    let job = &detail.job;
    let reason = match (&job.reason, &job.reason_text) {
        (Some(word), Some(text)) => Some(format!("{word}: {text}")),
        (word, text) => text.clone().or_else(|| word.clone()),
    };
    let array = job.array_id.filter(|_| job.gang.is_none() || in_array(job));
    let gang = job.array_id.zip(job.gang).map(|(id, gang)| {
        format!("{id}, rank {} of {} on {} node(s)", gang.rank, gang.size, gang.nodes)
    });
    let mut text = fields(vec![
        ("Job", Some(format!("{} ({})", job.name_id, job.name))),
        ("Array", array.map(|array| format!("{array}, index {}", or_dash(job.array_index)))),
        ("Gang", gang),
        ("User", Some(job.user.clone())),
        ("State", Some(format!("{} ({})", job.state, job.state_short))),
        ("Reason", reason),
        ("Exit code", job.exit_code.clone()),
        (
            "Requests",
            Some(format!("{}, {}, priority {}", job.gpu_request, job.class, job.priority)),
        ),
        (
            "Nice",
            Some(detail.queue_rank.nice).filter(|nice| *nice > 0).map(|nice| nice.to_string()),
        ),
        ("Runs", Some(detail.program.clone())),
        ("In", detail.work_dir.clone()),
        ("Environment", (!detail.env_names.is_empty()).then(|| detail.env_names.join(" "))),
        ("Time limit", detail.time_limit_secs.map(|secs| Elapsed(secs).to_string())),
        (
            "Idle timeout",
            detail.idle_timeout_secs.map(|secs| {
                format!(
                    "{}, then {}",
                    Elapsed(secs),
                    detail.idle_action.as_deref().unwrap_or("end")
                )
            }),
        ),
        ("Container", detail.container.clone()),
        ("Waits for", detail.dependency.clone()),
        ("Deadline", detail.deadline.map(|at| deadline_text(at, job.ended_at))),
        ("Retries left", (detail.retries_left > 0).then(|| detail.retries_left.to_string())),
        ("Memory prediction", detail.memory_prediction.clone()),
        ("Out of memory", (detail.oom_count > 0).then(|| oom_text(detail))),
        ("Needs", predicted_text(detail)),
        ("First kernel", first_kernel_text(detail)),
        ("Submitted", Some(moment(job.submitted_at))),
        ("Started", job.started_at.map(moment)),
        ("Ended", job.ended_at.map(moment)),
        ("Trace", detail.traceparent.clone()),
    ]);
    if !detail.attempt_list.is_empty() {
        let header = [
            "ATTEMPT", "STATE", "NODE", "GPU", "SLICE", "STARTED", "RAN", "EXIT", "CPU", "RSS",
            "GPU MEM", "ENERGY",
        ];
        let rows = detail.attempt_list.iter().map(attempt_row);
        let _ = write!(text, "\n{}", table(Some(&header), rows));
        for attempt in &detail.attempt_list {
            if let Some(detail) = &attempt.detail {
                let _ = writeln!(text, "attempt {}: {detail}", attempt.number);
            }
            if let Some(shares) = share_text(attempt) {
                let _ = writeln!(text, "attempt {}: {shares}", attempt.number);
            }
            if let Some(prediction) = &attempt.prediction {
                let _ = writeln!(
                    text,
                    "attempt {}: {}",
                    attempt.number,
                    describe_prediction(prediction)
                );
            }
            if let Some(memory) = &attempt.memory_prediction {
                let _ = writeln!(
                    text,
                    "attempt {}: {}",
                    attempt.number,
                    describe_memory_prediction(memory)
                );
            }
            if let Some(colocation) = &attempt.colocation_prediction {
                let _ = writeln!(
                    text,
                    "attempt {}: {}",
                    attempt.number,
                    describe_colocation(colocation)
                );
            }
            if let Some(kernel) = &attempt.kernel {
                let _ = writeln!(text, "attempt {}: {}", attempt.number, queue_line(kernel));
            }
        }
    }
    text
}

/// Describes how an attempt uses its slice, if it may share it.
fn share_text(attempt: &AttemptView) -> Option<String> {
    match (attempt.share.as_deref()?, attempt.sm_percent) {
        ("mps", Some(percent)) => {
            Some(format!("may share its slice under MPS, with {percent} % of the multiprocessors"))
        }
        ("mps", None) => Some("may share its slice under MPS".to_owned()),
        ("kernel", None) => Some("may share its slice kernel by kernel".to_owned()),
        ("kernel", Some(percent)) => Some(format!(
            "may share its slice kernel by kernel, with {percent} % of the multiprocessors if MPS is below"
        )),
        ("kernel:exclusive", _) => {
            Some("may share its slice, but never runs next to another job there".to_owned())
        }
        _ => None,
    }
}

/// Describes an attempt's counters in its slice's kernel queue, in one line.
fn queue_line(kernel: &KernelQueueUse) -> String {
    if kernel.processes == 0 {
        return "no kernel was intercepted: its programs bypass the shim, or launched none"
            .to_owned();
    }
    let mut parts = vec![format!("{} kernels reported", kernel.launches)];
    if kernel.launches_unreported > 0 {
        parts.push(format!("{} launches not reported", kernel.launches_unreported));
    }
    if kernel.ungranted > 0 {
        parts.push(format!("{} without a grant", kernel.ungranted));
    }
    if kernel.records_lost > 0 {
        parts.push(format!("{} records lost, so these counts are too low", kernel.records_lost));
    }
    if kernel.gaps_seen > 0 {
        let (seen, filled, early) = (kernel.gaps_seen, kernel.gaps_filled, kernel.early_stops);
        parts.push(format!("{seen} gaps seen, {filled} filled, {early} stopped early"));
    }
    // All launches of a filler count as filled, whatever they were granted for.
    let elsewhere = kernel.colocated.saturating_add(kernel.aged).saturating_add(kernel.ungranted);
    let in_gaps = kernel.filled_kernels.saturating_sub(elsewhere);
    if in_gaps > 0 {
        parts.push(format!("{in_gaps} ran in gaps"));
    }
    if kernel.aged > 0 {
        parts.push(format!("{} granted by age", kernel.aged));
    }
    if let (Some(given), Some(used)) = (kernel.grants_ahead, kernel.grants_ahead_used)
        && given > 0
    {
        parts.push(format!("{used} of {given} grants ahead of gaps used"));
    }
    if kernel.colocated > 0 {
        parts.push(format!("{} next to running kernels", kernel.colocated));
    }
    if kernel.overshoots > 0 {
        let (times, most) = (kernel.overshoots, kernel.overshoot_secs_max * 1e3);
        parts.push(format!("{times} overshot into the holder's time, by {most:.3} ms at most"));
    }
    if kernel.waits > 0 {
        let (all, most) = (kernel.waited_secs, kernel.waited_secs_max * 1e3);
        parts.push(format!("waited {all:.1} s, {most:.1} ms at most"));
    }
    if let Some(progress) = kernel.progress {
        parts.push(format!("progress {:.0} %", progress * 100.0));
    }
    match kernel.processes_raised {
        None => {}
        Some(raised) if raised >= kernel.processes => {
            parts.push("its session threads have raised priority".to_owned());
        }
        Some(raised) => parts
            .push(format!("{raised} of {} session threads have raised priority", kernel.processes)),
    }
    parts.join("; ")
}

fn attempt_row(attempt: &AttemptView) -> Vec<String> {
    let start_slice = attempt.start_slice.map(|start| format!("@{start}")).unwrap_or_default();
    let ran = match (attempt.started_at, attempt.ended_at) {
        (Some(start), Some(end)) => Elapsed::between(start, end).to_string(),
        _ => "-".to_owned(),
    };
    let cpu = match (attempt.user_secs, attempt.system_secs) {
        (Some(user), Some(system)) => Some(format!("{:.1}s", user + system)),
        _ => None,
    };
    vec![
        attempt.number.to_string(),
        attempt.state.clone(),
        attempt.node.clone(),
        or_dash(attempt.gpu_index),
        format!("{}{start_slice}", attempt.profile),
        or_dash(attempt.started_at.map(moment)),
        ran,
        or_dash(attempt.exit_code.as_deref()),
        or_dash(cpu),
        or_dash(attempt.max_rss_bytes.map(Bytes::new)),
        gpu_memory(attempt),
        or_dash(attempt.gpu_energy_joules.map(|joules| format!("{joules:.1} J"))),
    ]
}

/// Shows an attempt's peak memory and the memory of its slice.
fn gpu_memory(attempt: &AttemptView) -> String {
    let used = or_dash(attempt.gpu_memory_peak_bytes.or(attempt.gpu_memory_bytes).map(Bytes::new));
    match attempt.gpu_memory_given_bytes {
        Some(given) => format!("{used} of {}", Bytes::new(given)),
        None => used,
    }
}

/// Describes the memory that a job requests after a prediction that it would run out.
fn predicted_text(detail: &JobDetail) -> Option<String> {
    let bytes = detail.memory_estimate_bytes.filter(|_| detail.oom_count == 0)?;
    Some(format!("at least {} of GPU memory, by a prediction", Bytes::new(bytes)))
}

/// Describes what a job had allocated before its first kernel, as the watch observed it.
fn first_kernel_text(detail: &JobDetail) -> Option<String> {
    let held = Bytes::new(detail.memory_before_launch_bytes?);
    let needs = match detail.launch_multiprocessors {
        Some(1) => ", and one multiprocessor is enough for it".to_owned(),
        Some(number) => format!(", and {number} multiprocessors are enough for it"),
        None => String::new(),
    };
    Some(format!("{held} of GPU memory was allocated before it{needs} (by the watch)"))
}

/// Describes how often a job ran out of memory, and what follows.
fn oom_text(detail: &JobDetail) -> String {
    let times = match detail.oom_count {
        1 => "once".to_owned(),
        times => format!("{times} times"),
    };
    let needs = detail
        .memory_estimate_bytes
        .map(|bytes| format!(", so that it needs at least {} of GPU memory", Bytes::new(bytes)));
    format!("{times}{} (policy {})", needs.unwrap_or_default(), detail.oom_policy)
}

fn draw_events(events: &JobEvents) -> String {
    let header = ["WHEN", "STATE", "ATTEMPT", "EVENT"];
    let rows = events.items.iter().map(|event| {
        vec![moment(event.at), event.state.clone(), or_dash(event.attempt), event.text.clone()]
    });
    table(Some(&header), rows)
}

/// Describes a deadline, and whether the job was done by then.
fn deadline_text(deadline: OffsetDateTime, ended: Option<OffsetDateTime>) -> String {
    let outcome = match ended {
        None => "",
        Some(ended) if ended <= deadline => " (met)",
        Some(_) => " (missed)",
    };
    format!("{}{outcome}", moment(deadline))
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;
    use tessera_api_types::{AttemptSeries, SeriesPoint};

    fn point(number: i64) -> SeriesPoint {
        SeriesPoint {
            at: OffsetDateTime::from_unix_timestamp(5 * number).unwrap(),
            memory_bytes: Some(u64::try_from(number).unwrap() << 30),
            memory_max_bytes: Some(u64::try_from(number).unwrap() << 30),
            activity: Some(0.25),
            activity_max: Some(0.5),
            power_watts: None,
            energy_joules: None,
        }
    }

    fn queue_use(processes: u64, launches_unreported: u64) -> KernelQueueUse {
        KernelQueueUse {
            processes,
            launches: 40,
            launches_unreported,
            gaps_seen: 0,
            gaps_filled: 0,
            early_stops: 0,
            overshoots: 0,
            overshoot_secs_max: 0.0,
            filled_kernels: 0,
            filled_secs: 0.0,
            waits: 0,
            waited_secs: 0.0,
            waited_secs_max: 0.0,
            progress: None,
            aged: 0,
            ungranted: 0,
            drifts: 0,
            records_lost: 0,
            memory_peak_bytes: 0,
            colocated: 0,
            processes_raised: None,
            grants_ahead: None,
            grants_ahead_used: None,
        }
    }

    #[test]
    fn what_the_queue_was_not_told_of_is_shown_only_if_there_is_any() {
        let lossy = KernelQueueUse { ungranted: 2, records_lost: 5, ..queue_use(1, 3) };

        assert_eq!(queue_line(&queue_use(1, 0)), "40 kernels reported");
        let colocated = KernelQueueUse { filled_kernels: 9, colocated: 7, ..queue_use(1, 0) };
        assert_eq!(
            queue_line(&colocated),
            "40 kernels reported; 2 ran in gaps; 7 next to running kernels"
        );
        assert_eq!(
            queue_line(&lossy),
            "40 kernels reported; 3 launches not reported; 2 without a grant; 5 records lost, so these \
             counts are too low"
        );
        let raised =
            |processes_raised| queue_line(&KernelQueueUse { processes_raised, ..queue_use(2, 0) });
        assert_eq!(
            [raised(Some(2)), raised(Some(0))],
            [
                "40 kernels reported; its session threads have raised priority",
                "40 kernels reported; 0 of 2 session threads have raised priority"
            ]
        );
        let ahead =
            KernelQueueUse { grants_ahead: Some(9), grants_ahead_used: Some(7), ..queue_use(1, 0) };
        assert_eq!(queue_line(&ahead), "40 kernels reported; 7 of 9 grants ahead of gaps used");
        assert_eq!(
            queue_line(&queue_use(0, 0)),
            "no kernel was intercepted: its programs bypass the shim, or launched none"
        );
    }

    #[test]
    fn kernels_granted_by_age_are_shown_and_not_counted_as_kernels_in_gaps() {
        let aged = KernelQueueUse { filled_kernels: 9, aged: 5, ungranted: 1, ..queue_use(1, 0) };

        assert_eq!(
            queue_line(&aged),
            "40 kernels reported; 1 without a grant; 3 ran in gaps; 5 granted by age"
        );
        let only_aged = KernelQueueUse { filled_kernels: 5, aged: 5, ..queue_use(1, 0) };
        assert_eq!(queue_line(&only_aged), "40 kernels reported; 5 granted by age");
    }

    #[test]
    fn the_newest_attempts_figures_are_drawn_if_there_are_several() {
        let attempt = |number, points: i64| AttemptSeries {
            number,
            id: "att_1".into(),
            step_secs: 5,
            points: (1..=points).map(point).collect(),
        };
        let series = |last| JobSeries { job_id: 7, attempts: vec![attempt(1, 9), last] };

        let text = lines(&series(attempt(2, 4)));

        assert!(text.contains("attempt 2 over time"), "{text}");
        assert!(text.contains("memory ▃▅▇█  at most 4 GiB"), "{text}");
        assert!(text.contains("busy   ████  at most 25 % of the GPU"), "{text}");
        assert_eq!(lines(&series(attempt(2, 1))), "");
    }
}
