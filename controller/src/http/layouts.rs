//! Layouts that operators plan and apply.

use actix_web::web::{Data, Json};
use actix_web::{HttpResponse, get, post};
use serde::Deserialize;
use tessera_api::types::{
    Gpu, LayoutApplied, LayoutChange, LayoutOutlook, LayoutPlan, LayoutRequest, ProfileOutlook,
};
use tessera_model::mig::{First, Slot, Wanted};
use tessera_model::spec::BadField;
use tessera_model::{JobId, Millis, PlanId};
use time::OffsetDateTime;

use super::error::ApiError;
use super::extract::{JsonBody, Named, Params};
use super::gpu_names::{GpuName, find_gpu};
use super::metrics;
use super::openapi::{BodyProblems, ChangeProblems, GpuPath, LookupProblems, PlanPath, Problems};
use super::operator::check_asker;
use super::state::State;
use crate::ports::ToPlacer;
use crate::ports::operator::{GpuOutlook, LayoutWish, OperatorDone, OperatorOrder};

/// Returns a GPU with its layout: what stands, and who runs where.
#[utoipa::path(
    tag = "operators",
    operation_id = "show_layout",
    params(GpuPath),
    responses((status = 200, description = "The GPU.", body = Gpu), Problems, LookupProblems),
    security(("bearer" = [])),
)]
#[get("/gpus/{gpu}/layout")]
pub(super) async fn show_layout(
    gpu: Named<GpuName>,
    state: Data<State>,
) -> Result<Json<Gpu>, ApiError> {
    Ok(Json(find_gpu(&state, &gpu.0).await?.0))
}

/// Which layout to plan.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PlanParams {
    /// All instances that shall stand: `3g.20gb,2x1g.5gb,2g.10gb@4`, or `empty`; with several
    /// compute instances in one GPU instance `1c+2c.3g.20gb`.
    layout: String,
}

/// Tells what a layout would take, without changing anything.
///
/// Instances without a first memory slice are placed where they leave the most full layouts
/// reachable. Refused if something in use has no place in the layout.
#[utoipa::path(
    tag = "operators",
    operation_id = "plan_layout",
    params(GpuPath, PlanParams),
    responses(
        (status = 200, description = "The plan.", body = LayoutPlan),
        Problems, LookupProblems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/gpus/{gpu}/layout/plan")]
pub(super) async fn plan_layout(
    gpu: Named<GpuName>,
    params: Params<PlanParams>,
    state: Data<State>,
) -> Result<Json<LayoutPlan>, ApiError> {
    let wanted = wanted(&params.0.layout)?;
    let (gpu, id) = find_gpu(&state, &gpu.0).await?;
    let draft = state.ask(|reply| ToPlacer::DraftLayout { gpu: id, wanted, reply }).await??;
    Ok(Json(LayoutPlan {
        gpu: gpu.id,
        node: gpu.node,
        index: gpu.index,
        layout: draft.layout,
        kept: draft.kept,
        steps: draft.steps,
        predicted_secs: draft.cost.duration().as_secs_f64(),
        reachability_after: draft.reachability_after,
    }))
}

/// Gives a GPU a layout: orders the plan that makes it.
///
/// What is in use is never touched. The layout is a wish: it stays until jobs need another,
/// unless it is pinned. Asking for what stands, or for what is being made, changes nothing.
#[utoipa::path(
    tag = "operators",
    operation_id = "apply_layout",
    params(GpuPath),
    request_body = LayoutRequest,
    responses(
        (status = 200, description = "It stands already.", body = LayoutApplied),
        (status = 202, description = "Its plan is committed and under way.", body = LayoutApplied),
        Problems, LookupProblems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/gpus/{gpu}/layout")]
pub(super) async fn apply_layout(
    gpu: Named<GpuName>,
    body: JsonBody,
    state: Data<State>,
) -> Result<HttpResponse, ApiError> {
    let LayoutRequest { layout, pin, by, reason } = body.parse()?;
    check_asker(&by, reason.as_deref())?;
    let wanted = wanted(&layout)?;
    let id = find_gpu(&state, &gpu.0).await?.1;
    let wish = LayoutWish { gpu: id.clone(), wanted, pin, by, reason };
    let order = OperatorOrder::Apply(wish);
    let done = state.ask(|reply| ToPlacer::Operate { order, reply }).await???;
    let applied = |state: &str, plan: Option<PlanId>| LayoutApplied {
        gpu: id.to_string(),
        state: state.to_owned(),
        plan: plan.map(|plan| plan.to_string()),
    };
    Ok(match done {
        OperatorDone::Ordered { plan } => {
            metrics::count_operator("layout", "said");
            HttpResponse::Accepted().json(applied("ordered", Some(plan)))
        }
        OperatorDone::Stands | OperatorDone::Said { .. } => {
            HttpResponse::Ok().json(applied("stands", None))
        }
    })
}

/// Tells what can still be made of a GPU, and what must end first for the rest.
#[utoipa::path(
    tag = "operators",
    operation_id = "layout_outlook",
    params(GpuPath),
    responses(
        (status = 200, description = "The outlook.", body = LayoutOutlook),
        Problems, LookupProblems, ChangeProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/gpus/{gpu}/layout/outlook")]
pub(super) async fn show_outlook(
    gpu: Named<GpuName>,
    state: Data<State>,
) -> Result<Json<LayoutOutlook>, ApiError> {
    let (gpu, id) = find_gpu(&state, &gpu.0).await?;
    let mut jobs: Vec<_> = gpu.instances.iter().filter_map(|instance| instance.job_id).collect();
    jobs.extend(gpu.instances.iter().flat_map(|i| &i.sharers).map(|sharer| sharer.job_id));
    jobs.extend(gpu.instances.iter().flat_map(|i| &i.parts).filter_map(|part| part.job_id));
    let ends = state.reads().expected_ends(jobs).await?;
    let outlook = state.ask(|reply| ToPlacer::Outlook { gpu: id, ends, reply }).await??;
    let profiles =
        outlook.profiles.iter().map(|(name, what)| profile(name, what, &outlook)).collect();
    Ok(Json(LayoutOutlook { gpu: gpu.id, node: gpu.node, index: gpu.index, profiles }))
}

/// Returns one change of a layout.
#[utoipa::path(
    tag = "history",
    operation_id = "get_layout_change",
    params(PlanPath),
    responses(
        (status = 200, description = "The change.", body = LayoutChange),
        Problems, LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/layouts/{plan}")]
pub(super) async fn show_layout_change(
    plan: Named<PlanId>,
    state: Data<State>,
) -> Result<Json<LayoutChange>, ApiError> {
    let plan = plan.0;
    let found = state.reads().layout(plan).await?;
    found.map(Json).ok_or_else(|| ApiError::NotFound { what: format!("there is no change {plan}") })
}

fn wanted(text: &str) -> Result<Wanted, ApiError> {
    text.parse().map_err(|bad: tessera_model::ids::BadId| {
        BadField::new("layout", format!("{text:?} is no layout"), bad.expected).into()
    })
}

fn profile(name: &str, what: &tessera_model::mig::Outlook, outlook: &GpuOutlook) -> ProfileOutlook {
    let (idle, busy, stuck) = GpuOutlook::in_the_way(&what.first);
    let call = |slots: &[Slot]| -> Vec<String> {
        slots.iter().filter_map(|slot| Some(outlook.names.get(slot)?.0.clone())).collect()
    };
    let jobs: Vec<JobId> = busy
        .iter()
        .filter_map(|slot| outlook.names.get(slot))
        .flat_map(|(_, jobs)| jobs.iter().copied())
        .collect();
    let (first, ready) = match &what.first {
        First::Now => ("now", None),
        First::AfterIdle { .. } => ("after_idle", None),
        First::AfterBusy { ready, .. } => ("after_busy", *ready),
        First::Blocked { .. } => ("blocked", None),
    };
    let ready_at = ready.and_then(moment);
    let (idle, busy, stuck) = (call(idle), call(busy), call(stuck));
    let text = sentence(what, &idle, &busy, &stuck, &jobs, ready_at);
    ProfileOutlook {
        profile: name.to_owned(),
        now: what.now,
        after_idle: what.after_idle,
        first: first.to_owned(),
        idle,
        busy,
        stuck,
        job_ids: jobs.iter().map(|job| job.number()).collect(),
        ready_at,
        text,
    }
}

fn sentence(
    what: &tessera_model::mig::Outlook,
    idle: &[String],
    busy: &[String],
    stuck: &[String],
    jobs: &[JobId],
    ready: Option<OffsetDateTime>,
) -> String {
    let and = |names: &[String]| names.join(" and ");
    match &what.first {
        First::Now => format!("{} can be made at once", what.now),
        First::AfterIdle { .. } => {
            format!("{} can be made where {} stands idle", what.after_idle, and(idle))
        }
        First::AfterBusy { .. } => {
            let numbers: Vec<_> = jobs.iter().map(ToString::to_string).collect();
            let who = match numbers.is_empty() {
                true => format!("{} comes free", and(busy)),
                false => format!("job {} on {} ends", numbers.join(" and "), and(busy)),
            };
            let when = match ready
                .and_then(|at| at.format(&time::format_description::well_known::Rfc3339).ok())
            {
                Some(at) => format!("expected by {at}"),
                None => "nobody knows when".to_owned(),
            };
            format!("none until {who} ({when})")
        }
        First::Blocked { .. } if stuck.is_empty() => "this GPU never holds one".to_owned(),
        First::Blocked { .. } => format!("none until a person sees to {}", and(stuck)),
    }
}

fn moment(unix: Millis) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix.get()) * 1_000_000).ok()
}
