//! Figures of GPUs and attempts over time.

use std::collections::BTreeMap;

use actix_web::get;
use actix_web::web::{Data, Json};
use tessera_api_types::{
    AttemptSeries, ClusterSeries, GpuDetails, GpuSeries, JobFigures, JobSeries, SeriesPoint,
    SeriesQuery,
};
use tessera_model::spec::BadField;
use tessera_model::{Bytes, GpuId, JobRef, Millis};
use time::OffsetDateTime;

use super::error::ApiError;
use super::extract::{Named, Params};
use super::gpu_names::{GpuName, find_gpu};
use super::identity::Caller;
use super::openapi::{GpuPath, JobPath, LookupProblems, Problems};
use super::state::{State, no_job};
use crate::figures::GpuSnapshot;
use crate::figures::series::{POINTS_MAX, Point};

/// How far back a query looks by default.
const SINCE_SECS: u64 = 3_600;
/// Points in an answer by default: as many as a table has columns for.
const POINTS: u32 = 60;
/// Farther back than anything is kept.
const SINCE_SECS_MAX: u64 = 1 << 32;

/// Returns the figures of all GPUs over time.
#[utoipa::path(
    tag = "cluster",
    operation_id = "list_series",
    params(SeriesQuery),
    responses((status = 200, description = "The figures.", body = ClusterSeries), Problems),
    security(("bearer" = [])),
)]
#[get("/series")]
pub(super) async fn list_series(
    _caller: Caller,
    query: Params<SeriesQuery>,
    state: Data<State>,
) -> Result<Json<ClusterSeries>, ApiError> {
    let part = SeriesPart::of(&query.0)?;
    let fresh = state.ports.figures.fresh();
    let gpus = state.nodes().await?.into_iter().flat_map(|node| node.gpus);
    let items = gpus.filter_map(|gpu| {
        let id: GpuId = gpu.id.parse().ok()?;
        Some(of_gpu(&state, &gpu, &id, part, &fresh))
    });
    Ok(Json(ClusterSeries { items: items.collect() }))
}

/// Returns one GPU's figures over time.
#[utoipa::path(
    tag = "cluster",
    operation_id = "get_gpu_series",
    params(GpuPath, SeriesQuery),
    responses(
        (status = 200, description = "The figures.", body = GpuSeries),
        Problems, LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/gpus/{gpu}/series")]
pub(super) async fn show_gpu_series(
    _caller: Caller,
    gpu: Named<GpuName>,
    query: Params<SeriesQuery>,
    state: Data<State>,
) -> Result<Json<GpuSeries>, ApiError> {
    let part = SeriesPart::of(&query.0)?;
    let (gpu, id) = find_gpu(&state, &gpu.0).await?;
    let fresh = state.ports.figures.fresh();
    Ok(Json(of_gpu(&state, &gpu, &id, part, &fresh)))
}

/// Returns a job's figures over time, attempt by attempt.
///
/// They are kept until an hour after an attempt's end, and not over restarts of the controller.
#[utoipa::path(
    tag = "jobs",
    operation_id = "get_job_series",
    params(JobPath, SeriesQuery),
    responses(
        (status = 200, description = "The figures.", body = JobSeries),
        Problems, LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/jobs/{job}/series")]
pub(super) async fn show_job_series(
    caller: Caller,
    job: Named<JobRef>,
    query: Params<SeriesQuery>,
    state: Data<State>,
) -> Result<Json<JobSeries>, ApiError> {
    let part = SeriesPart::of(&query.0)?;
    let detail = state.reads().detail(job.0, &caller.jobs()).await?.ok_or_else(|| no_job(job.0))?;
    let attempts = detail.attempt_list.iter().filter_map(|attempt| {
        let id = attempt.id.parse().ok()?;
        let (step, points) = state.ports.figures.attempt(id, part.since, part.points);
        Some(AttemptSeries {
            number: attempt.number,
            id: attempt.id.clone(),
            step_secs: step.get() / 1_000,
            points: with_power(&points, step),
        })
    });
    Ok(Json(JobSeries { job_id: detail.job.id, attempts: attempts.collect() }))
}

/// Which part of the figures is requested.
#[derive(Clone, Copy, Debug)]
struct SeriesPart {
    since: Millis,
    points: u32,
}

impl SeriesPart {
    fn of(query: &SeriesQuery) -> Result<Self, ApiError> {
        let points = query.points.unwrap_or(POINTS);
        if !(1..=POINTS_MAX).contains(&points) {
            let expected = format!("1 to {POINTS_MAX}");
            return Err(BadField::new("points", format!("{points} points"), expected).into());
        }
        let since = query.since_secs.unwrap_or(SINCE_SECS);
        if since == 0 {
            return Err(BadField::new("since_secs", "0", "at least 1").into());
        }
        Ok(Self { since: Millis::from_secs(since.min(SINCE_SECS_MAX)), points })
    }
}

fn of_gpu(
    state: &State,
    gpu: &GpuDetails,
    id: &GpuId,
    part: SeriesPart,
    fresh: &BTreeMap<GpuId, GpuSnapshot>,
) -> GpuSeries {
    let (step, points) = state.ports.figures.of_gpu(id, part.since, part.points);
    let jobs = fresh.get(id).into_iter().flat_map(|shown| &shown.figures.attempts);
    let jobs = jobs.map(|figures| JobFigures {
        job_id: figures.job.number(),
        attempt: figures.attempt.to_string(),
        memory_bytes: figures.memory_used.map(Bytes::get),
        activity: figures.activity.map(|share| thousandths(share.into())),
        energy_joules: figures.energy_mj.map(thousandths),
    });
    GpuSeries {
        gpu: gpu.id.clone(),
        node: gpu.node.clone(),
        index: gpu.index,
        memory_total_bytes: gpu.memory_bytes,
        step_secs: step.get() / 1_000,
        points: points.iter().map(shown).collect(),
        jobs: jobs.collect(),
    }
}

fn shown(point: &Point) -> SeriesPoint {
    SeriesPoint {
        at: moment(point.start),
        memory_bytes: point.memory.mean(),
        memory_max_bytes: point.memory.max(),
        activity: point.activity.mean().map(thousandths),
        activity_max: point.activity.max().map(thousandths),
        power_watts: point.power_mw.mean().map(thousandths),
        energy_joules: point.energy_mj.map(thousandths),
    }
}

/// Adds what an attempt drew between two neighbouring points: millijoules in milliseconds are
/// watts.
fn with_power(points: &[Point], step: Millis) -> Vec<SeriesPoint> {
    let mut shown: Vec<_> = points.iter().map(shown).collect();
    for (pair, shown) in points.windows(2).zip(shown.iter_mut().skip(1)) {
        let [before, now] = pair else { continue };
        let neighbours = now.start.minus(before.start) == step;
        let gained =
            now.energy_mj.zip(before.energy_mj).map(|(now, before)| now.saturating_sub(before));
        shown.power_watts = gained
            .filter(|_| neighbours)
            .map(|gained| thousandths(gained * 1_000 / step.get().max(1)));
    }
    shown
}

fn thousandths(number: u64) -> f64 {
    std::time::Duration::from_millis(number).as_secs_f64()
}

fn moment(unix: Millis) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix.get()) * 1_000_000)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
