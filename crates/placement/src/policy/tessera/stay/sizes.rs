//! The slices that a job may have, its time on each, and the cost of each for other jobs.

use tessera_model::Millis;
use tessera_model::mig::Profile;

pub(in super::super) use super::super::rounding::float;
use super::super::rounding::whole_ms;
use crate::predictor::{Knowledge, Predictor, RunTime};
use crate::request::SliceRequest;
use crate::view::{ClusterView, GpuKinds, GpuView, MigView, QueuedJob};

/// The power of its size with which the speed of a slice grows, for a job about which nothing is known. It is
/// the mean of MISO's 32 measured training jobs. On 1, 2, 3 and 4 of 7 slices they have 0.34, 0.50, 0.68 and
/// 0.75 of their full speed. These are powers of 0.56, 0.56, 0.45 and 0.51.
const SPEED_POWER: f64 = 0.53;

/// How long a job takes on the fastest GPU of the cluster if nothing is known about it. Chosen; only the
/// comparison with jobs that are known depends on it.
pub(super) const UNKNOWN_MS: f64 = 3_600_000.0;

/// How many times as long as expected one run in ten may take at most if a job's times count as known. Chosen on seeds 301
/// to 320, on which jobs of one name have nothing in common: plans on such times were worse than none.
const SURE: f64 = 1.5;

/// The least part of a job's speed that remains, whatever it gives up for energy.
const MOST_SPARED: f64 = 0.01;

/// Multiprocessors of a GPU that reports none. Chosen: about those of an A100.
const SMS: u16 = 100;

/// GPUs that are alike: one model with one geometry, on which the same jobs may run.
#[derive(Debug)]
pub(super) struct GpuKind<'c> {
    /// One of them.
    pub(super) view: &'c GpuView,
    /// How many may take jobs.
    pub(super) count: u32,
    /// Multiprocessors.
    sms: f64,
}

impl<'c> GpuKind<'c> {
    pub(super) fn mig(&self) -> Option<&'c MigView> {
        self.view.mig.as_deref()
    }

    /// Returns which part of the GPU other jobs can't use because of an instance.
    pub(super) fn part(&self, profile: Option<&Profile>) -> f64 {
        let (Some(profile), Some(whole)) = (profile, self.mig().and_then(MigView::largest)) else {
            return 1.0;
        };
        let of = |own: u8, all: u8| f64::from(own) / f64::from(all.max(1));
        let compute = of(profile.compute_slices, whole.compute_slices);
        compute.max(of(profile.memory_slices, whole.memory_slices))
    }

    /// Returns the part of the GPU that the smallest instance with so many multiprocessors takes; all of it, if none has.
    pub(super) fn part_with(&self, multiprocessors: u16) -> f64 {
        let profiles = self.mig().into_iter().flat_map(MigView::plain);
        let enough = profiles.filter(|one| self.sms_of(Some(one)) >= f64::from(multiprocessors));
        enough.map(|one| self.part(Some(one))).fold(1.0, f64::min)
    }

    /// Returns the multiprocessors of an instance.
    pub(super) fn sms_of(&self, profile: Option<&Profile>) -> f64 {
        profile.map_or(self.sms, |profile| sms_of(self.view, profile))
    }
}

/// Returns the multiprocessors of an instance on a GPU.
pub(in super::super) fn sms_of(gpu: &GpuView, profile: &Profile) -> f64 {
    let all = sms(gpu);
    let whole = gpu.mig.as_deref().and_then(MigView::largest);
    whole.map_or(all, |whole| {
        all * f64::from(profile.compute_slices) / f64::from(whole.compute_slices.max(1))
    })
}

fn sms(gpu: &GpuView) -> f64 {
    f64::from(gpu.sms.unwrap_or(SMS).max(1))
}

/// Returns the ratio of a job's time on `to` multiprocessors to that on `from`, if nothing is known about it.
pub(in super::super) fn usual_stretch(from: f64, to: f64) -> f64 {
    (from / to).powf(SPEED_POWER)
}

/// Returns the kinds of GPUs, and the kind of each GPU by its place in the view.
pub(super) fn kinds(cluster: &ClusterView) -> (Vec<GpuKind<'_>>, Vec<usize>) {
    let GpuKinds { first, kind_of } = cluster.gpu_kinds();
    let of = |at: usize| {
        let view = &cluster.gpus[at];
        GpuKind { view, count: 0, sms: sms(view) }
    };
    let mut kinds: Vec<GpuKind<'_>> = first.into_iter().map(of).collect();
    for (view, kind) in cluster.gpus.iter().zip(&kind_of) {
        kinds[*kind].count += u32::from(view.available);
    }
    // Ordered by their properties: the order in which the cluster lists its GPUs must not matter.
    let mut order: Vec<usize> = (0..kinds.len()).collect();
    order.sort_by_key(|kind| {
        let view = kinds[*kind].view;
        (&view.model, view.memory, view.part)
    });
    let number = |kind: usize| order.iter().position(|own| *own == kind).unwrap_or(kind);
    let kind_of = kind_of.into_iter().map(number).collect();
    let mut sorted: Vec<(usize, GpuKind<'_>)> =
        kinds.into_iter().enumerate().map(|(kind, gpu)| (number(kind), gpu)).collect();
    sorted.sort_by_key(|(number, _)| *number);
    (sorted.into_iter().map(|(_, gpu)| gpu).collect(), kind_of)
}

/// One size that a job may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct SizeOption<'c> {
    /// Which kind of GPU.
    pub(super) kind: usize,
    /// The profile; `None` for a GPU with MIG off.
    pub(super) profile: Option<&'c Profile>,
    /// How long the job is expected to take there, in milliseconds.
    pub(super) ms: f64,
    /// How many times as long one run in ten takes at least: 1 or more.
    pub(super) late: f64,
    /// The cost of the place, in milliseconds: the job's own time, and the time for which others can't use
    /// its part of the cluster.
    pub(super) cost: f64,
}

/// What is known of a job that waits.
#[derive(Debug)]
pub(super) struct SizedJob<'c> {
    /// Every size, the cheapest first.
    pub(super) options: Vec<SizeOption<'c>>,
    /// Its shortest time anywhere, in milliseconds.
    pub(super) least_ms: f64,
    /// Whether any of its times is known, and runs hardly differ ([`SURE`]).
    pub(super) known: bool,
    /// Whether it has times that differ too much to plan with. They still decide about the order of service.
    pub(super) is_vague: bool,
    /// Sizes of at least this part of a GPU come first, because it may run for long.
    pub(super) prefers: Option<f64>,
    /// Sizes with at least so many multiprocessors come first, because its first kernel needs them.
    pub(super) multiprocessors: Option<u16>,
    /// Whether only whole GPUs are considered, because that meets all deadlines.
    pub(super) is_due: bool,
    /// How many watts the power cap leaves, if that is too little for some of its sizes. Those are left out.
    pub(super) watts: Option<u64>,
}

impl<'c> SizedJob<'c> {
    /// Returns a job with a deadline that gets one of these whole GPUs.
    pub(super) const fn due(options: Vec<SizeOption<'c>>, least_ms: f64) -> Self {
        let (prefers, multiprocessors) = (None, None);
        let (known, is_vague, is_due) = (true, false, true);
        let watts = None;
        Self { options, least_ms, known, is_vague, prefers, multiprocessors, is_due, watts }
    }
}

/// Returns the sizes that suit a job, the cheapest first.
///
/// `others` is how many more jobs request places while this one runs. The cost of a place is
/// `t (1 + others · part · v / Σv)`: the time of the job, and the time for which all others can't use its
/// part of the cluster. `v` is the job's speed on a whole GPU, so that a GPU on which it is slow counts for
/// as much less. `thrift` is the part of its speed that a job gives up for a slice that is a whole GPU
/// smaller, as a fraction of one. Alone in the cluster, a job gets the fastest place. With many others, it
/// gets the one on which it uses the least.
pub(super) fn sized<'c>(
    kinds: &[GpuKind<'c>],
    knowledge: Knowledge<'_>,
    job: &QueuedJob,
    others: f64,
    thrift: f64,
) -> SizedJob<'c> {
    let request = SliceRequest::of(&job.gpu, None);
    let facts = knowledge.jobs.facts(job.id);
    let limit = facts.limit;
    let mut found: Vec<SizeOption<'c>> = Vec::new();
    let mut measured: Vec<bool> = Vec::new();
    let mut known = false;
    let is_open = |gpu: &GpuKind<'_>| gpu.count > 0 && gpu.view.is_allowed(job);
    for (kind, gpu) in kinds.iter().enumerate().filter(|(_, gpu)| is_open(gpu)) {
        for profile in suitable(gpu, &request) {
            let time = match (gpu.mig(), profile) {
                (Some(_), Some(profile)) => time_of(knowledge.predictor, job, gpu.view, profile),
                (_, _) => None,
            };
            known |= time.is_some();
            measured.push(time.is_some_and(|run| run.is_measured));
            let ms = time.map_or(f64::NAN, |run| float(run.time));
            let late = time.map_or(1.0, |run| float(run.latest) / float(run.time).max(1.0));
            found.push(SizeOption { kind, profile, ms, late: late.max(1.0), cost: 0.0 });
        }
    }
    let fastest = kinds.iter().map(|gpu| gpu.sms).fold(1.0, f64::max);
    // A deadline needs a time, however uncertain: the user gets the probability that it is met.
    let is_vague = known && facts.deadline.is_none() && found.iter().all(|one| !is_sure(one));
    let whole = match is_vague {
        true => whole_time(kinds, &found, &measured, fastest),
        false => None,
    };
    known &= !is_vague;
    if known {
        expect_usual_speeds(kinds, &mut found, &measured);
        expect_on_unpartitioned(kinds, &mut found);
        // If other sizes have a time and this one has none, the job can't run on it.
        found.retain(|option| option.ms.is_finite());
    } else {
        // It can't run on a size without a time, as above.
        found.retain(|option| !is_vague || option.ms.is_finite() || option.profile.is_none());
        let usual = limit.map_or(UNKNOWN_MS, float).min(UNKNOWN_MS);
        let whole = whole.unwrap_or(usual);
        for option in &mut found {
            let sms = kinds[option.kind].sms_of(option.profile);
            option.ms = whole * usual_stretch(fastest, sms);
        }
    }
    // The effect of energy on a job of unknown speeds can't be computed.
    if known {
        let fastest = found.iter().min_by(|a, b| a.ms.total_cmp(&b.ms)).copied();
        // It may be the only size that meets a deadline.
        let fastest = fastest.filter(|_| facts.deadline.is_some());
        spare(kinds, &mut found, thrift);
        let is_spared = |fastest: &SizeOption<'c>| found.iter().all(|left| left.ms > fastest.ms);
        found.extend(fastest.filter(is_spared));
    }
    price(kinds, &mut found, others, if known { thrift } else { 0.0 });
    let least_ms = found.iter().map(|option| option.ms).fold(f64::INFINITY, f64::min);
    let (prefers, multiprocessors) = (None, None);
    let (is_due, watts) = (false, None);
    SizedJob { options: found, least_ms, known, is_vague, prefers, multiprocessors, is_due, watts }
}

/// Returns whether a size has a time from which runs hardly differ.
fn is_sure(option: &SizeOption<'_>) -> bool {
    option.ms.is_finite() && option.late <= SURE
}

/// Returns the time on a whole GPU of the fastest kind, from those that were measured.
fn whole_time(
    kinds: &[GpuKind<'_>],
    options: &[SizeOption<'_>],
    measured: &[bool],
    fastest: f64,
) -> Option<f64> {
    let runs = options.iter().zip(measured).filter(|(one, is)| **is && one.ms.is_finite());
    let whole =
        runs.map(|(one, _)| one.ms / usual_stretch(fastest, kinds[one.kind].sms_of(one.profile)));
    whole.min_by(f64::total_cmp)
}

/// Returns the whole GPUs on which a job may run and has a time, one for each kind. GPUs with MIG off have no
/// predicted times.
pub(super) fn on_whole_gpus<'c>(
    kinds: &[GpuKind<'c>],
    knowledge: Knowledge<'_>,
    job: &QueuedJob,
) -> Vec<SizeOption<'c>> {
    let request = SliceRequest::of(&job.gpu, None);
    let whole = |(kind, gpu): (usize, &GpuKind<'c>)| {
        let largest = gpu.mig()?.largest()?;
        let mut suits = suitable(gpu, &request).into_iter().flatten();
        let profile = suits.find(|profile| profile.id == largest.id)?;
        let run = time_of(knowledge.predictor, job, gpu.view, profile)?;
        let ms = float(run.time);
        let late = (float(run.latest) / ms.max(1.0)).max(1.0);
        Some(SizeOption { kind, profile: Some(profile), ms, late, cost: ms })
    };
    let open =
        kinds.iter().enumerate().filter(|(_, gpu)| gpu.count > 0 && gpu.view.is_allowed(job));
    open.filter_map(whole).collect()
}

/// Replaces guessed times by those that jobs usually have: the time on the nearest size on which the task
/// ran, scaled by [`SPEED_POWER`]. Sizes of the same kind of GPU are nearer than all others.
///
/// A guess assumes that a larger slice is no faster, and that a smaller one is slower in proportion. With it,
/// each task would keep the size on which it first ran.
fn expect_usual_speeds(kinds: &[GpuKind<'_>], options: &mut [SizeOption<'_>], measured: &[bool]) {
    let sms = |option: &SizeOption<'_>| kinds[option.kind].sms_of(option.profile);
    let seen: Vec<(usize, f64, f64)> = options
        .iter()
        .zip(measured)
        .filter(|(_, measured)| **measured)
        .map(|(option, _)| (option.kind, sms(option), option.ms))
        .collect();
    let guessed = options.iter_mut().zip(measured).filter(|(_, measured)| !**measured);
    for (option, _) in guessed.filter(|(option, _)| option.ms.is_finite()) {
        let own = sms(option);
        let distance =
            |(kind, from, _): &(usize, f64, f64)| (*kind != option.kind, (from / own).ln().abs());
        let nearest = seen.iter().min_by(|a, b| {
            let (a, b) = (distance(a), distance(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        if let Some((_, from, ms)) = nearest {
            option.ms = ms * usual_stretch(*from, own);
        }
    }
}

/// Gives GPUs with MIG off the time on the nearest size in multiprocessors, scaled by [`SPEED_POWER`].
///
/// Predictions are about profiles, so there are none for these GPUs. A job that fits their memory runs there as on
/// any instance.
fn expect_on_unpartitioned(kinds: &[GpuKind<'_>], options: &mut [SizeOption<'_>]) {
    let sms = |option: &SizeOption<'_>| kinds[option.kind].sms_of(option.profile);
    let known: Vec<(f64, f64)> = options
        .iter()
        .filter(|option| option.ms.is_finite())
        .map(|option| (sms(option), option.ms))
        .collect();
    let unknown =
        options.iter_mut().filter(|option| option.profile.is_none() && option.ms.is_nan());
    for option in unknown {
        let own = sms(option);
        let distance = |(from, _): &(f64, f64)| (from / own).ln().abs();
        let nearest = known.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        if let Some((from, ms)) = nearest {
            option.ms = ms * usual_stretch(*from, own);
        }
    }
}

/// Removes the sizes on which a job is hardly faster than on a smaller one of the same kind of GPU.
fn spare(kinds: &[GpuKind<'_>], options: &mut Vec<SizeOption<'_>>, thrift: f64) {
    let served = |option: &SizeOption<'_>| {
        let part = kinds[option.kind].part(option.profile);
        (option.kind, part, option.ms / (1.0 - thrift * part).max(MOST_SPARED))
    };
    let all: Vec<(usize, f64, f64)> = options.iter().map(served).collect();
    options.retain(|option| {
        let (own, part, ms) = served(option);
        let spares = |(kind, smaller, as_fast): &(usize, f64, f64)| {
            *kind == own && *smaller < part && *as_fast <= ms
        };
        !all.iter().any(spares)
    });
}

/// Computes what each size costs, and puts the cheapest first. Equals are ordered by their properties, never
/// by the order in which the cluster lists its GPUs.
pub(super) fn price(
    kinds: &[GpuKind<'_>],
    options: &mut [SizeOption<'_>],
    others: f64,
    thrift: f64,
) {
    let mut whole = vec![f64::INFINITY; kinds.len()];
    for option in options.iter() {
        let part = kinds[option.kind].part(option.profile);
        // A job that doesn't run on a whole GPU, or has no time there, counts with its largest slice.
        if option.ms * part < whole[option.kind] || part >= 1.0 {
            whole[option.kind] = if part >= 1.0 { option.ms } else { option.ms * part };
        }
    }
    let speed = |kind: usize| 1.0 / whole[kind].max(1.0);
    let all: f64 =
        kinds.iter().enumerate().map(|(kind, gpu)| f64::from(gpu.count) * speed(kind)).sum();
    for option in options.iter_mut() {
        let own = kinds[option.kind].part(option.profile);
        let part = own * speed(option.kind) / all.max(f64::MIN_POSITIVE);
        option.cost = option.ms * (1.0 + others * part) / (1.0 - thrift * own).max(MOST_SPARED);
    }
    let size = |option: &SizeOption<'_>| {
        let slices = option.profile.map_or(u8::MAX, |profile| profile.memory_slices);
        (slices, option.profile.map_or(0, |profile| profile.compute_slices))
    };
    options.sort_by(|a, b| {
        a.cost.total_cmp(&b.cost).then_with(|| size(a).cmp(&size(b))).then_with(|| {
            let name = |option: &SizeOption<'_>| &kinds[option.kind].view.model;
            name(a).cmp(name(b))
        })
    });
}

fn time_of(
    predictor: &dyn Predictor,
    job: &QueuedJob,
    gpu: &GpuView,
    profile: &Profile,
) -> Option<RunTime> {
    predictor.predict_run(job.id, gpu, profile)
}

/// Returns the profiles of a kind of GPU on which a request may be served.
fn suitable<'c>(gpu: &GpuKind<'c>, request: &SliceRequest) -> Vec<Option<&'c Profile>> {
    match (gpu.mig(), request) {
        (None, request) => {
            request.suits_unpartitioned(gpu.view.memory).then_some(None).into_iter().collect()
        }
        (Some(mig), SliceRequest::AtLeast(least)) => {
            mig.plain().filter(|profile| profile.memory >= *least).map(Some).collect()
        }
        (Some(mig), request) => request.tight(mig).into_iter().map(Some).collect(),
    }
}

/// Converts a floating-point time to milliseconds of the clock.
pub(in super::super) fn millis(ms: f64) -> Millis {
    Millis::new(whole_ms(ms))
}
