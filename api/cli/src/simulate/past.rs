//! Turns a controller's history into a workload, a cluster and the recorded outcome.
//!
//! Pure. Unknown values are filled in by declared rules, and each rule is listed in [`RecordedHistory::notes`].

mod accounts;
mod gangs;
mod recorded;

use std::collections::BTreeMap;

use tessera_model::mig::catalog;
use tessera_model::number::clamped;
use tessera_model::{Bytes, Millis};
use tessera_placement::{Basis, Empirical, Estimator, SliceKind};
use tessera_simulator::cluster::fleet::{FleetError, GpuFleet};
use tessera_simulator::cluster::job::{JobClass, SimulatedJob, SliceTimes};
use tessera_simulator::cluster::metrics::RunOutcome;
use tessera_simulator::cluster::workload::Workload;
use time::OffsetDateTime;

pub use self::accounts::PastAccounts;
use self::recorded::recorded;
use super::period::HistoryPeriod;
use tessera_api_types::{PastAttempt, PastJob};

/// The assumed cost of a migration, as in the controller without measurements. Source: MISO's
/// controllers were measured at 30 s.
const RESTORE_MS: u64 = 30_000;

/// A GPU of the recorded cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastGpu {
    /// Its UUID.
    pub id: String,
    /// Its node's name.
    pub node: String,
    /// The driver's name of the GPU model.
    pub model: String,
    /// Whether it was partitioned.
    pub mig: bool,
}

/// A history, ready to be simulated.
#[derive(Debug)]
pub struct RecordedHistory {
    /// The jobs that users submitted.
    pub workload: Workload,
    /// The recorded GPUs.
    pub fleet: GpuFleet,
    /// The same as `8xa100-40gb,…`.
    pub cluster: String,
    /// The recorded outcome.
    pub recorded: RunOutcome,
    /// Unknown values, and what was assumed instead.
    pub notes: Vec<String>,
}

/// Numbers of jobs with unknown values, by what is unknown.
#[derive(Debug, Default)]
struct HistoryGaps {
    never_ran: u64,
    waiting: u64,
    running: u64,
    without_success: u64,
    shared: u64,
    restarted: u64,
    by_rule: u64,
    movable: u64,
    elsewhere: u64,
    named: u64,
    torn: u64,
    limited: u64,
}

/// A job of the simulation, and its record.
struct KnownJob {
    past: PastJob,
    job: SimulatedJob,
}

/// Builds a history from the controller's records.
///
/// # Errors
///
/// [`FleetError`] if a GPU is of no model of the catalogue.
pub fn past(
    mut jobs: Vec<PastJob>,
    gpus: &[PastGpu],
    accounts: &PastAccounts,
    period: &HistoryPeriod,
) -> Result<RecordedHistory, FleetError> {
    jobs.sort_by_key(|job| (job.submitted_at, job.id));
    let fleet = fleet(gpus)?;
    let models = models(gpus);
    let tasks = learned(&jobs);
    // The period starts with the first submit: idle time before it is not part of the makespan.
    let since = jobs.first().map_or(period.since, |first| first.submitted_at);
    let name = period.describe();
    let period = &HistoryPeriod { since, until: period.until };
    let mut gaps = HistoryGaps::default();
    let mut known: Vec<KnownJob> = jobs
        .into_iter()
        .filter_map(|past| {
            let mut job = job(&past, period, &models, &tasks, &mut gaps)?;
            accounts.charge(&mut job);
            Some(KnownJob { past, job })
        })
        .collect();
    gaps.torn = gangs::link_gangs(&mut known);
    let recorded = recorded(&known, gpus, &fleet, period);
    gaps.elsewhere = known.iter().filter(|known| ran_elsewhere(&known.past, gpus)).count() as u64;
    let (cluster, mut notes) = (named(&fleet.keys), gaps.notes(gpus));
    let jobs: Vec<SimulatedJob> = known.into_iter().map(|known| known.job).collect();
    notes.extend(accounts.notes(&jobs));
    Ok(RecordedHistory { workload: Workload::new(name, jobs), fleet, cluster, recorded, notes })
}

fn fleet(gpus: &[PastGpu]) -> Result<GpuFleet, FleetError> {
    let key = |gpu: &PastGpu| {
        catalog::find(&gpu.model)
            .map(|model| model.key.as_str())
            .map_err(|unknown| FleetError { part: gpu.model.clone(), why: unknown.to_string() })
    };
    let mut fleet = GpuFleet::of(gpus.iter().map(key).collect::<Result<_, _>>()?)?;
    // Node names and indexes are kept, so that gangs fit as recorded.
    let mut on_node: BTreeMap<&str, u32> = BTreeMap::new();
    for (seen, gpu) in fleet.view.gpus.iter_mut().zip(gpus) {
        let bad = |why: &dyn std::fmt::Display| FleetError {
            part: gpu.node.clone(),
            why: why.to_string(),
        };
        seen.node = gpu.node.parse().map_err(|why| bad(&why))?;
        let count = on_node.entry(&gpu.node).or_default();
        seen.index = *count;
        *count += 1;
    }
    Ok(fleet)
}

/// The driver's name of each model of the catalogue that the cluster has.
fn models(gpus: &[PastGpu]) -> BTreeMap<&'static str, &str> {
    let key = |gpu: &PastGpu| Some(catalog::find(&gpu.model).ok()?.key.as_str());
    gpus.iter().filter_map(|gpu| Some((key(gpu)?, gpu.model.as_str()))).collect()
}

fn named(keys: &[&str]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for key in keys {
        match counts.iter_mut().find(|(known, _)| known == key) {
            Some((_, number)) => *number += 1,
            None => counts.push((key, 1)),
        }
    }
    let parts: Vec<String> = counts.iter().map(|(key, number)| format!("{number}x{key}")).collect();
    parts.join(",")
}

/// Learns from every successful run without co-runners, as the controller does.
fn learned(jobs: &[PastJob]) -> Empirical {
    let mut tasks = Empirical::default();
    for job in jobs {
        let runs = started(job);
        let (Some(task), [only]) = (&job.task, runs.as_slice()) else { continue };
        if let (Some(kind), Some(ran), true) = (kind(only), ran(only), succeeded(job, only)) {
            tasks.learn(task, &kind, ran);
        }
    }
    tasks
}

fn succeeded(job: &PastJob, attempt: &PastAttempt) -> bool {
    job.state == "succeeded" && attempt.state == "succeeded" && !attempt.shared
}

fn started(job: &PastJob) -> Vec<&PastAttempt> {
    job.attempts.iter().filter(|attempt| attempt.started_at.is_some()).collect()
}

fn ran(attempt: &PastAttempt) -> Option<Millis> {
    Some(Millis::new(between(attempt.started_at?, attempt.ended_at?)))
}

/// Returns milliseconds, zero if the clocks disagree.
fn between(from: OffsetDateTime, to: OffsetDateTime) -> u64 {
    clamped((to - from).whole_milliseconds())
}

/// Returns the kind of slice that an attempt had, and its compute slices.
fn slice(attempt: &PastAttempt) -> Option<(&'static str, u8, SliceKind)> {
    let name = attempt.gpu_model.as_deref()?;
    let model = catalog::find(name).ok()?;
    let geometry = model.geometry();
    let whole = geometry.largest()?.compute_slices.max(1);
    let profile = attempt.profile.parse().ok().and_then(|name| geometry.by_name(&name));
    let slices = profile.map_or(whole, |profile| profile.compute_slices);
    let part = u16::from(slices) * 1_000 / u16::from(whole);
    let profile = attempt.profile.clone();
    Some((&model.key, slices, SliceKind { model: name.to_owned(), profile, part }))
}

fn kind(attempt: &PastAttempt) -> Option<SliceKind> {
    slice(attempt).map(|(_, _, kind)| kind)
}

/// Builds a job from its record; `None` if no run time is known.
fn job(
    past: &PastJob,
    period: &HistoryPeriod,
    models: &BTreeMap<&'static str, &str>,
    tasks: &Empirical,
    gaps: &mut HistoryGaps,
) -> Option<SimulatedJob> {
    let runs = started(past);
    let measured = runs.last().and_then(|last| {
        let (key, slices, kind) = slice(last)?;
        let millis = worked(past, &runs, period);
        Some((key, slices, kind, Millis::new(millis.max(1))))
    });
    let task = past.task.as_deref().unwrap_or_default();
    let mut own = Empirical::default();
    if let Some((_, _, kind, ran)) = &measured {
        own.learn("", kind, *ran);
    }
    let mut ruled = false;
    let times = models.iter().filter_map(|(key, name)| {
        let mut times = SliceTimes::new();
        for (slices, on) in kinds(key, name) {
            let known = tasks.predict(task, &on).filter(|known| known.basis == Basis::SameSlice);
            let found = known.or_else(|| own.predict("", &on)).or_else(|| tasks.predict(task, &on));
            let Some(found) = found else { continue };
            ruled |= found.basis != Basis::SameSlice;
            times.entry(slices).or_insert(found.expected.get().max(1));
        }
        if let Some((measured_key, slices, _, ran)) = &measured
            && measured_key == key
        {
            times.insert(*slices, ran.get());
        }
        (!times.is_empty()).then(|| ((*key).to_owned(), times))
    });
    let times: BTreeMap<String, SliceTimes> = times.collect();
    if times.is_empty() {
        gaps.never_ran += 1;
        return None;
    }
    gaps.count(past, &runs, ruled);
    let (requested, used) = memory(past, models);
    Some(SimulatedJob {
        name: past.name.clone(),
        user: past.user.clone(),
        account: None,
        shares: 1,
        submit_ms: between(period.since, past.submitted_at),
        class: if past.class == "online" { JobClass::Online } else { JobClass::Offline },
        priority: past.priority,
        deadline_ms: past.deadline.map(|deadline| between(period.since, deadline)),
        limit_ms: past.time_limit_secs.map(|limit| limit.saturating_mul(1_000).max(1)),
        place: None,
        times,
        requested,
        memory_at_start: used,
        memory_at_end: used,
        demand: None,
        busy: None,
        transfer: 0,
        power_milliwatts: None,
        start_up_ms: 0,
        restore_ms: past.movable.then_some(RESTORE_MS),
        iterations: None,
        gang: None,
    })
}

/// Returns one slice kind for each size of a model's slices: that with the least memory.
fn kinds(key: &str, name: &str) -> Vec<(u8, SliceKind)> {
    let Some(geometry) = catalog::models().get(key).map(catalog::GpuModel::geometry) else {
        return Vec::new();
    };
    let whole = u16::from(geometry.largest().map_or(1, |largest| largest.compute_slices.max(1)));
    let plain = geometry.plain();
    let mut profiles: Vec<_> = geometry.profiles.iter().filter(|p| plain.contains(&p.id)).collect();
    profiles.sort_by_key(|profile| (profile.compute_slices, profile.memory));
    profiles.dedup_by_key(|profile| profile.compute_slices);
    let kind = |profile: &&tessera_model::mig::Profile| {
        let part = u16::from(profile.compute_slices) * 1_000 / whole;
        let profile_name = profile.name.to_string();
        let on = SliceKind { model: name.to_owned(), profile: profile_name, part };
        (profile.compute_slices, on)
    };
    profiles.iter().map(kind).collect()
}

/// Returns how long a job worked: its last run, and earlier ones that it checkpointed. A job that
/// is still running counts until the period's end.
fn worked(past: &PastJob, runs: &[&PastAttempt], period: &HistoryPeriod) -> u64 {
    let span = |attempt: &&PastAttempt| {
        let end = attempt.ended_at.unwrap_or(period.until);
        attempt.started_at.map_or(0, |began| between(began, end))
    };
    let Some((last, before)) = runs.split_last() else { return 0 };
    let saved = before.iter().filter(|run| past.movable && run.state == "preempted");
    span(last) + saved.map(span).sum::<u64>()
}

/// Returns the memory that a job requested, and its measured use.
fn memory(past: &PastJob, models: &BTreeMap<&'static str, &str>) -> (Bytes, Bytes) {
    let geometries =
        || models.keys().filter_map(|key| Some(catalog::models().get(*key)?.geometry()));
    let profile = past.gpu_profile.as_deref().and_then(|name| name.parse().ok());
    let of_profile = profile
        .and_then(|name| geometries().find_map(|geometry| Some(geometry.by_name(&name)?.memory)));
    let of_whole = past
        .gpu_whole
        .then(|| geometries().filter_map(|geometry| Some(geometry.largest()?.memory)).min());
    let peak = past.attempts.iter().filter_map(|attempt| attempt.gpu_memory_peak_bytes).max();
    let peak = peak.filter(|bytes| *bytes > 0).map(Bytes::new);
    let request = past.gpu_memory_bytes.map(Bytes::new).or(of_profile).or(of_whole.flatten());
    let requested = request.unwrap_or(Bytes::from_mib(1));
    // A job can't have used more than its slice has.
    (requested, peak.filter(|_| request.is_some()).map_or(requested, |peak| peak.min(requested)))
}

/// Returns whether a job ran on a GPU that is not simulated.
fn ran_elsewhere(past: &PastJob, gpus: &[PastGpu]) -> bool {
    past.attempts.iter().any(|attempt| gpus.iter().all(|gpu| gpu.id != attempt.gpu))
}

impl HistoryGaps {
    fn count(&mut self, past: &PastJob, runs: &[&PastAttempt], ruled: bool) {
        self.by_rule += u64::from(ruled);
        self.movable += u64::from(past.movable);
        let requests = !matches!(past.share.as_str(), "exclusive" | "auto");
        self.shared += u64::from(requests || runs.iter().any(|run| run.shared));
        self.restarted += u64::from(runs.len() > 1);
        self.named += u64::from(past.gpu_profile.is_some());
        self.limited += u64::from(past.time_limit_secs.is_some());
        match (past.state.as_str(), runs.is_empty()) {
            ("succeeded", _) => {}
            ("failed" | "cancelled" | "timed_out", _) => self.without_success += 1,
            (_, true) => self.waiting += 1,
            (_, false) => self.running += 1,
        }
    }

    fn notes(&self, gpus: &[PastGpu]) -> Vec<String> {
        let whole = gpus.iter().filter(|gpu| !gpu.mig).count() as u64;
        let counted = [
            (
                self.by_rule,
                "jobs' run times are measured on their own slices only. On others they are predicted \
                 as in the controller: from runs of the same task, or else by a rule. By that \
                 rule a larger slice is not faster, and a smaller one is proportionally slower",
            ),
            (self.never_ran, "jobs never ran, and their tasks are unknown: left out"),
            (
                self.waiting,
                "jobs were still waiting at the period's end: they are simulated with the run times \
                 of their tasks; in the recorded row they end with the period",
            ),
            (
                self.running,
                "jobs were still running at the period's end: their time until then is used as \
                 their run time",
            ),
            (
                self.without_success,
                "jobs failed, were cancelled or ran out of time: they are simulated for as long \
                 as they ran",
            ),
            (
                self.shared,
                "jobs requested to share a slice: their measured times with co-runners are used as \
                 times without",
            ),
            (
                self.restarted,
                "jobs ran more than once: checkpointed work counts as work on their last slice, \
                 lost work does not count",
            ),
            (
                self.limited,
                "jobs have time limits: one that would run longer, such as on a smaller slice, ends there \
                 unfinished, as in a controller (TIMED OUT)",
            ),
            (self.torn, "jobs belong to gangs with an unknown member: left out"),
            (
                self.named,
                "jobs requested a profile: they are simulated with a request for its memory",
            ),
            (
                self.movable,
                "jobs can be migrated: each migration is assumed to cost 30 s, as in the controller \
                 without measurements",
            ),
            (
                self.elsewhere,
                "jobs ran on GPUs that were added after the start of the period: the simulated \
                 cluster does not have these",
            ),
            (whole, "GPUs had MIG off: they are simulated with MIG on"),
        ];
        let mut notes: Vec<String> = counted
            .into_iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, text)| format!("{number} {text}"))
            .collect();
        notes.push(
            "dependencies, earliest starts, limits of arrays, --nice, requested nodes and processors are \
             not part of the simulation"
                .to_owned(),
        );
        notes.push(
            "the recorded row counts the energy of jobs, not of idle GPUs; jobs that were submitted \
             before the period are not included, although they may have held GPUs"
                .to_owned(),
        );
        notes
    }
}

#[cfg(test)]
mod tests;
