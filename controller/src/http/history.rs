//! What was decided and changed.

use actix_web::get;
use actix_web::web::{Data, Json};
use serde::Deserialize;
use tessera_api_types::{DecisionPage, DecisionView, LayoutPlans, PastJobs, RecordedRounds};
use tessera_model::spec::BadField;
use tessera_model::{DecisionId, GpuId, JobId};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::error::ApiError;
use super::extract::{Named, Params, read_id};
use super::gpu_names::find_gpu;
use super::identity::Caller;
use super::openapi::{DecisionPath, LookupProblems, Problems};
use super::state::State;
use crate::principal::JobScope;
use crate::store::reads::{PageSize, PastQuery, RoundsFrom};

/// Which decisions to list.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DecisionFilter {
    /// Only those about this job.
    job: Option<u64>,
    /// How many to return: 1 to 1,000, by default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the last page ended.
    cursor: Option<String>,
}

/// Lists recorded decisions, newest first.
#[utoipa::path(
    tag = "history",
    operation_id = "list_decisions",
    params(DecisionFilter),
    responses((status = 200, description = "A page of decisions.", body = DecisionPage), Problems),
    security(("bearer" = [])),
)]
#[get("/decisions")]
pub(super) async fn list_decisions(
    caller: Caller,
    filter: Params<DecisionFilter>,
    state: Data<State>,
) -> Result<Json<DecisionPage>, ApiError> {
    let DecisionFilter { job, limit, cursor } = filter.0;
    let job: Option<JobId> = job.map(|job| read_id("job", &job.to_string())).transpose()?;
    let before: Option<DecisionId> =
        cursor.as_deref().map(|text| read_id("cursor", text)).transpose()?;
    let size = PageSize::parse(limit)?;
    Ok(Json(state.reads().decisions(job, &caller.jobs(), before, size).await?))
}

/// Returns one recorded decision.
#[utoipa::path(
    tag = "history",
    operation_id = "get_decision",
    params(DecisionPath),
    responses(
        (status = 200, description = "The decision.", body = DecisionView),
        Problems, LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/decisions/{decision}")]
pub(super) async fn show_decision(
    caller: Caller,
    decision: Named<DecisionId>,
    state: Data<State>,
) -> Result<Json<DecisionView>, ApiError> {
    let id = decision.0;
    let found = state.reads().decision(id, &caller.jobs()).await?;
    found.map(Json).ok_or_else(|| ApiError::NotFound { what: format!("there is no decision {id}") })
}

/// Which layout plans to list.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LayoutFilter {
    /// Only those of this GPU: its UUID, or `node:index`.
    gpu: Option<String>,
    /// How many to return: 1 to 1,000, by default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the last page ended.
    cursor: Option<String>,
}

/// Letters of a GPU's UUID as the driver writes it, `GPU-` and all.
const WHOLE_UUID: usize = 40;

/// Lists layout plans, newest first.
#[utoipa::path(
    tag = "history",
    operation_id = "list_layout_changes",
    params(LayoutFilter),
    responses(
        (status = 200, description = "A page of layout plans.", body = LayoutPlans),
        Problems, LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/layouts")]
pub(super) async fn list_layouts(
    _caller: Caller,
    filter: Params<LayoutFilter>,
    state: Data<State>,
) -> Result<Json<LayoutPlans>, ApiError> {
    let LayoutFilter { gpu, limit, cursor } = filter.0;
    let gpu: Option<GpuId> = match gpu {
        None => None,
        // It may be the UUID of a GPU that is gone, so the present GPUs are not searched for it.
        Some(text) if text.len() == WHOLE_UUID => Some(read_id("gpu", &text)?),
        Some(text) => Some(find_gpu(&state, &read_id("gpu", &text)?).await?.1),
    };
    let before = cursor.as_deref().map(str::parse).transpose()?;
    let size = PageSize::parse(limit)?;
    Ok(Json(state.reads().layouts(gpu, before, size).await?))
}

/// Which recorded rounds to list.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RoundFilter {
    /// Begins with the chain that was being written at this time (RFC 3339); by default, or if
    /// nothing is that old, with the oldest round.
    since: Option<String>,
    /// How many to return at most: 1 to 1,000, by default 100. A page of large rounds has fewer.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the last page ended; `since` is ignored then.
    cursor: Option<String>,
}

/// Lists recorded rounds of the placement, oldest first: what the policy saw, and what it decided.
#[utoipa::path(
    tag = "history",
    operation_id = "list_placement_rounds",
    params(RoundFilter),
    responses((status = 200, description = "A page of rounds.", body = RecordedRounds), Problems),
    security(("bearer" = [])),
)]
#[get("/placement-rounds")]
pub(super) async fn list_rounds(
    _caller: Caller,
    filter: Params<RoundFilter>,
    state: Data<State>,
) -> Result<Json<RecordedRounds>, ApiError> {
    let RoundFilter { since, limit, cursor } = filter.0;
    let from = match (cursor, since) {
        (Some(cursor), _) => RoundsFrom::Round(read_cursor('p', &cursor)?),
        (None, Some(since)) => RoundsFrom::Time(read_time("since", &since)?),
        (None, None) => RoundsFrom::Round(0),
    };
    Ok(Json(state.reads().rounds(from, PageSize::parse(limit)?).await?))
}

/// Which jobs of the past to list.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PastFilter {
    /// Accepted at this time or later, RFC 3339.
    since: String,
    /// Accepted at this time or earlier; by default now.
    until: Option<String>,
    /// Only this user's.
    user: Option<String>,
    /// How many to return: 1 to 1,000, by default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the last page ended.
    cursor: Option<String>,
}

/// Lists the jobs of a period with their runs, oldest first: what simulations replay.
#[utoipa::path(
    tag = "history",
    operation_id = "list_past_jobs",
    params(PastFilter),
    responses((status = 200, description = "A page of jobs.", body = PastJobs), Problems),
    security(("bearer" = [])),
)]
#[expect(clippy::disallowed_methods, reason = "a search without an end reaches to the present")]
#[get("/history")]
pub(super) async fn list_past_jobs(
    caller: Caller,
    filter: Params<PastFilter>,
    state: Data<State>,
) -> Result<Json<PastJobs>, ApiError> {
    let PastFilter { since, until, user, limit, cursor } = filter.0;
    let scope = match user {
        // A user gets nothing about others.
        Some(user) if caller.sees(&user) => JobScope::of(vec![user]),
        Some(_) => JobScope::of(Vec::new()),
        None => caller.jobs(),
    };
    let query = PastQuery {
        since: read_time("since", &since)?,
        until: match until {
            Some(until) => read_time("until", &until)?,
            None => OffsetDateTime::now_utc(),
        },
        scope,
        after: cursor.map_or(Ok(0), |cursor| read_cursor('h', &cursor))?,
        size: PageSize::parse(limit)?,
    };
    Ok(Json(state.reads().past(query).await?))
}

pub(super) fn read_cursor(letter: char, text: &str) -> Result<i64, BadField> {
    let place = text.strip_prefix(letter).and_then(|hex| i64::from_str_radix(hex, 16).ok());
    place.filter(|place| *place >= 0).ok_or_else(|| {
        let what = format!("{text:?} is not a cursor of this list");
        BadField::new("cursor", what, "the next_cursor of the previous page")
    })
}

/// Reads a moment.
pub(super) fn read_time(field: &str, text: &str) -> Result<OffsetDateTime, BadField> {
    OffsetDateTime::parse(text, &Rfc3339).map_err(|_| {
        let what = format!("{text:?} is not a valid time");
        BadField::new(field, what, "RFC 3339, such as 2026-11-21T20:00:00Z")
    })
}
