//! The memory of jobs over time, and how well tasks use theirs.

use actix_web::get;
use actix_web::web::{Data, Json};
use tessera_api_types::{
    AttemptMemoryView, EfficiencyQuery, EfficiencyReport, JobDetail, JobMemory,
};
use tessera_model::{Bytes, JobId, JobRef};
use time::OffsetDateTime;

use super::error::ApiError;
use super::extract::{Named, Params};
use super::identity::Caller;
use super::openapi::{JobPath, LookupProblems, Problems};
use super::state::{State, no_job};
use crate::ports::ToPlacer;
use crate::store::reads::{band_view, growth_view, points_of};
use tessera_control::answers::LiveMemory;

/// The default period of a report.
const PERIOD: time::Duration = time::Duration::days(7);

/// Returns the GPU memory of a job's attempts over time, with the predicted band while it runs, and the sizes of
/// slices around it.
#[utoipa::path(
    tag = "jobs",
    operation_id = "show_job_memory",
    params(JobPath),
    responses(
        (status = 200, description = "The memory of its attempts.", body = JobMemory),
        Problems, LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/jobs/{job}/memory")]
pub(super) async fn show_job_memory(
    caller: Caller,
    job: Named<JobRef>,
    state: Data<State>,
) -> Result<Json<JobMemory>, ApiError> {
    let detail = state.reads().detail(job.0, &caller.jobs()).await?.ok_or_else(|| no_job(job.0))?;
    let number = JobId::from_number(detail.job.id);
    let mut attempts = state.reads().memory_of(detail.job.id).await?;
    let gpu = detail.attempt_list.last().and_then(|attempt| attempt.gpu.parse().ok());
    let overview =
        state.query(|reply| ToPlacer::DescribeMemory { job: number, gpu, reply }).await?;
    if let Some(live) = overview.live {
        add_live(&mut attempts, &detail, &live);
    }
    let sizes_bytes = overview.sizes.into_iter().map(Bytes::get).collect();
    Ok(Json(JobMemory { job_id: detail.job.id, sizes_bytes, attempts }))
}

/// Adds what is known about the running attempt to what the store has.
fn add_live(attempts: &mut Vec<AttemptMemoryView>, detail: &JobDetail, live: &LiveMemory) {
    let id = live.attempt.to_string();
    let Some(running) = detail.attempt_list.iter().find(|attempt| attempt.id == id) else { return };
    let kept = attempts.iter().position(|attempt| attempt.id == id).map(|at| attempts.remove(at));
    attempts.push(AttemptMemoryView {
        number: running.number,
        id,
        capacity_bytes: running.gpu_memory_given_bytes.unwrap_or_default(),
        unit: live.curve.unit.word().to_owned(),
        memory_prediction: Some(live.mode.word().to_owned()),
        preallocated: live.preallocated,
        moved: live.moving,
        points: points_of(&live.curve),
        forecast: live.forecast.as_ref().map(growth_view).or(kept.and_then(|kept| kept.forecast)),
        band: live.band.iter().map(band_view).collect(),
        outcome: None,
    });
}

/// Compares what the runs of tasks requested with what they used, and advises what to request.
///
/// A user gets their own tasks, and a coordinator those of the account's members.
#[utoipa::path(
    tag = "cluster",
    operation_id = "show_efficiency",
    params(EfficiencyQuery),
    responses((status = 200, description = "The report.", body = EfficiencyReport), Problems),
    security(("bearer" = [])),
)]
#[get("/efficiency")]
pub(super) async fn show_efficiency(
    caller: Caller,
    query: Params<EfficiencyQuery>,
    state: Data<State>,
) -> Result<Json<EfficiencyReport>, ApiError> {
    let since = query.0.since.unwrap_or_else(|| now() - PERIOD);
    let users = visible(query.0.user.as_deref(), caller.jobs().users());
    let tasks = state.reads().efficiency(since, users).await?;
    Ok(Json(EfficiencyReport { since, tasks }))
}

#[expect(clippy::disallowed_methods, reason = "a report looks back from now")]
fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// Returns whose tasks are reported: of the requested users those that the caller may see.
fn visible(requested: Option<&str>, scope: Option<&[String]>) -> Option<Vec<String>> {
    let requested = requested.map(|users| users.split(',').filter(|user| !user.is_empty()));
    match (requested, scope) {
        (Some(users), scope) => {
            let may_see = |user: &str| scope.is_none_or(|scope| scope.iter().any(|s| s == user));
            Some(users.filter(|user| may_see(user)).map(str::to_owned).collect())
        }
        (None, scope) => scope.map(<[String]>::to_vec),
    }
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn nobody_gets_the_tasks_of_users_beyond_the_own_scope() {
        let own = ["ada".to_owned()];

        assert_eq!(visible(Some("ada,bob"), Some(&own)), Some(vec!["ada".to_owned()]));
        assert_eq!(visible(None, Some(&own)), Some(vec!["ada".to_owned()]));
        assert_eq!(visible(Some("bob"), None), Some(vec!["bob".to_owned()]));
        assert_eq!(visible(None, None), None);
    }
}
