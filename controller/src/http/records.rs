//! Many jobs at once, for accounting and for Slurm's commands.

use actix_web::get;
use actix_web::web::{Data, Json};
use tessera_api_types::{JobRecord, JobRecords, RecordFilter, RequestRecord};
use time::OffsetDateTime;

use super::error::ApiError;
use super::extract::Params;
use super::identity::Caller;
use super::openapi::Problems;
use super::state::State;
use crate::store::reads::RecordQuery;

/// Lists jobs by number, many at once, with what they requested and their runs.
///
/// A user gets the jobs of others, too, as in other batch systems, but without exit codes, runs and
/// paths.
#[utoipa::path(
    tag = "jobs",
    operation_id = "list_records",
    params(RecordFilter),
    responses((status = 200, description = "The jobs.", body = JobRecords), Problems),
    security(("bearer" = [])),
)]
#[get("/records")]
pub(super) async fn list_records(
    caller: Caller,
    filter: Params<RecordFilter>,
    state: Data<State>,
) -> Result<Json<JobRecords>, ApiError> {
    // The store finds the reasons of a few named jobs as fast.
    let is_long = filter.0.reasons && filter.0.jobs.is_none();
    let query = RecordQuery::parse(filter.0, now())?;
    let reasons = if is_long { state.wait_reasons().await } else { None };
    let mut records = state.reads().records(query, reasons).await?;
    let accounts = &state.ports.live().accounts;
    let mut foreign = std::collections::HashSet::new();
    for job in &mut records.jobs {
        job.account = accounts.account_of(&job.user).unwrap_or(&job.user).to_owned();
        if !caller.sees(&job.user) {
            foreign.insert(job.submission);
            hide_run(job);
        }
    }
    records.specs.iter_mut().filter(|spec| foreign.contains(&spec.submission)).for_each(hide_paths);
    Ok(Json(records))
}

#[expect(clippy::disallowed_methods, reason = "recent jobs ended within a time before now")]
fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

fn hide_run(job: &mut JobRecord) {
    job.exit_code = None;
    job.comment = None;
    job.runs.clear();
}

fn hide_paths(spec: &mut RequestRecord) {
    spec.work_dir = None;
    spec.stdout = None;
    spec.stderr = None;
    spec.comment = None;
}
