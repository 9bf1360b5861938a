//! Layouts that administrators plan and apply.

use actix_web::web::{Data, Json};
use actix_web::{HttpResponse, get, post};
use serde::Deserialize;
use tessera_api_types::{
    GpuAvailabilityView, GpuDetails, LayoutApplied, LayoutPlan, LayoutRequest, PlanPreviewView,
    ProfileAvailabilityView,
};
use tessera_model::mig::{DesiredLayout, FirstOpening, Slot};
use tessera_model::spec::BadField;
use tessera_model::{JobId, Millis, PlanId};
use time::OffsetDateTime;

use super::error::ApiError;
use super::extract::{JsonBody, Named, Params};
use super::gpu_names::{GpuName, find_gpu};
use super::identity::Caller;
use super::metrics;
use super::openapi::{BodyProblems, ChangeProblems, GpuPath, LookupProblems, PlanPath, Problems};
use super::overrides::check_admin;
use super::state::State;
use crate::ports::ToPlacer;
use tessera_control::commands::operator::{
    GpuAvailability, LayoutCommand, OperatorCommand, OperatorOutcome,
};

/// Returns a GPU with its layout: its instances, and the jobs on them.
#[utoipa::path(
    tag = "operators",
    operation_id = "show_layout",
    params(GpuPath),
    responses((status = 200, description = "The GPU.", body = GpuDetails), Problems, LookupProblems),
    security(("bearer" = [])),
)]
#[get("/gpus/{gpu}/layout")]
pub(super) async fn show_layout(
    _caller: Caller,
    gpu: Named<GpuName>,
    state: Data<State>,
) -> Result<Json<GpuDetails>, ApiError> {
    Ok(Json(find_gpu(&state, &gpu.0).await?.0))
}

/// Which layout to plan.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PlanParams {
    /// All instances of the layout: `3g.20gb,2x1g.5gb,2g.10gb@4`, or `empty`; with several
    /// compute instances in one GPU instance `1c+2c.3g.20gb`.
    layout: String,
}

/// Returns the plan for a layout without carrying it out.
///
/// Instances without a first memory slice are placed where they leave the most full layouts
/// reachable. Refused if something in use has no place in the layout.
#[utoipa::path(
    tag = "operators",
    operation_id = "plan_layout",
    params(GpuPath, PlanParams),
    responses(
        (status = 200, description = "The plan.", body = PlanPreviewView),
        Problems, LookupProblems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/gpus/{gpu}/layout/plan")]
pub(super) async fn plan_layout(
    _caller: Caller,
    gpu: Named<GpuName>,
    params: Params<PlanParams>,
    state: Data<State>,
) -> Result<Json<PlanPreviewView>, ApiError> {
    let desired = read_layout(&params.0.layout)?;
    let (gpu, id) = find_gpu(&state, &gpu.0).await?;
    let preview =
        state.query(|reply| ToPlacer::PreviewLayout { gpu: id, desired, reply }).await??;
    Ok(Json(PlanPreviewView {
        gpu: gpu.id,
        node: gpu.node,
        index: gpu.index,
        layout: preview.layout,
        kept: preview.kept,
        steps: preview.steps,
        predicted_secs: preview.cost.duration().as_secs_f64(),
        reachability_after: preview.reachability_after,
    }))
}

/// Applies a layout to a GPU: starts the plan that creates it.
///
/// Instances in use are never changed. The layout stays until jobs need another one, unless it is
/// pinned. A request for a layout that exists, or is being created, changes nothing.
#[utoipa::path(
    tag = "operators",
    operation_id = "apply_layout",
    params(GpuPath),
    request_body = LayoutRequest,
    responses(
        (status = 200, description = "The GPU has this layout already.", body = LayoutApplied),
        (status = 202, description = "Its plan is committed and under way.", body = LayoutApplied, links(
            ("get_layout_plan" = (operation_id = "get_layout_plan", parameters(("plan" = "$response.body#/plan")))),
        )),
        Problems, LookupProblems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/gpus/{gpu}/layout")]
pub(super) async fn apply_layout(
    caller: Caller,
    gpu: Named<GpuName>,
    body: JsonBody,
    state: Data<State>,
) -> Result<HttpResponse, ApiError> {
    let LayoutRequest { layout, pin, by, reason } = body.parse()?;
    let by = check_admin(&caller, by, reason.as_deref())?;
    let desired = read_layout(&layout)?;
    let id = find_gpu(&state, &gpu.0).await?.1;
    let command = LayoutCommand { gpu: id.clone(), desired, pin, by, reason };
    let command = OperatorCommand::ApplyLayout(command);
    let done = state.query(|reply| ToPlacer::Operate { command, reply }).await???;
    let applied = |state: &str, plan: Option<PlanId>| LayoutApplied {
        gpu: id.to_string(),
        state: state.to_owned(),
        plan: plan.map(|plan| plan.to_string()),
    };
    Ok(match done {
        OperatorOutcome::Planned { plan } => {
            metrics::count_admin_change("layout", "requested");
            HttpResponse::Accepted().json(applied("planned", Some(plan)))
        }
        OperatorOutcome::Stands
        | OperatorOutcome::MigModeSet
        | OperatorOutcome::OverrideApplied { .. } => {
            HttpResponse::Ok().json(applied("in_place", None))
        }
    })
}

/// Returns which instances a GPU still has capacity for, and what must end first for others.
#[utoipa::path(
    tag = "operators",
    operation_id = "layout_availability",
    params(GpuPath),
    responses(
        (status = 200, description = "What is available.", body = GpuAvailabilityView),
        Problems, LookupProblems, ChangeProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/gpus/{gpu}/layout/availability")]
pub(super) async fn show_availability(
    _caller: Caller,
    gpu: Named<GpuName>,
    state: Data<State>,
) -> Result<Json<GpuAvailabilityView>, ApiError> {
    let (gpu, id) = find_gpu(&state, &gpu.0).await?;
    let mut jobs: Vec<_> = gpu.instances.iter().filter_map(|instance| instance.job_id).collect();
    jobs.extend(gpu.instances.iter().flat_map(|i| &i.sharers).map(|sharer| sharer.job_id));
    jobs.extend(gpu.instances.iter().flat_map(|i| &i.parts).filter_map(|part| part.job_id));
    let ends = state.reads().expected_ends(jobs).await?;
    let availability =
        state.query(|reply| ToPlacer::ListAvailability { gpu: id, ends, reply }).await??;
    let profiles = availability
        .profiles
        .iter()
        .map(|(name, what)| profile(name, what, &availability))
        .collect();
    Ok(Json(GpuAvailabilityView { gpu: gpu.id, node: gpu.node, index: gpu.index, profiles }))
}

/// Returns one layout plan.
#[utoipa::path(
    tag = "history",
    operation_id = "get_layout_plan",
    params(PlanPath),
    responses(
        (status = 200, description = "The plan.", body = LayoutPlan),
        Problems, LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/layouts/{plan}")]
pub(super) async fn show_layout_plan(
    _caller: Caller,
    plan: Named<PlanId>,
    state: Data<State>,
) -> Result<Json<LayoutPlan>, ApiError> {
    let plan = plan.0;
    let found = state.reads().layout(plan).await?;
    found
        .map(Json)
        .ok_or_else(|| ApiError::NotFound { what: format!("there is no layout plan {plan}") })
}

fn read_layout(text: &str) -> Result<DesiredLayout, ApiError> {
    text.parse().map_err(|bad: tessera_model::ids::BadId| {
        BadField::new("layout", format!("{text:?} is not a layout"), bad.expected).into()
    })
}

fn profile(
    name: &str,
    what: &tessera_model::mig::ProfileAvailability,
    availability: &GpuAvailability,
) -> ProfileAvailabilityView {
    let (idle, busy, stuck) = GpuAvailability::in_the_way(&what.first);
    let call = |slots: &[Slot]| -> Vec<String> {
        slots.iter().filter_map(|slot| Some(availability.names.get(slot)?.0.clone())).collect()
    };
    let jobs: Vec<JobId> = busy
        .iter()
        .filter_map(|slot| availability.names.get(slot))
        .flat_map(|(_, jobs)| jobs.iter().copied())
        .collect();
    let (first, ready) = match &what.first {
        FirstOpening::Now => ("now", None),
        FirstOpening::AfterIdle { .. } => ("after_idle", None),
        FirstOpening::AfterBusy { ready, .. } => ("after_busy", *ready),
        FirstOpening::Blocked { .. } => ("blocked", None),
    };
    let ready_at = ready.and_then(moment);
    let (idle, busy, stuck) = (call(idle), call(busy), call(stuck));
    let text = sentence(what, &idle, &busy, &stuck, &jobs, ready_at);
    ProfileAvailabilityView {
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
    what: &tessera_model::mig::ProfileAvailability,
    idle: &[String],
    busy: &[String],
    stuck: &[String],
    jobs: &[JobId],
    ready: Option<OffsetDateTime>,
) -> String {
    let and = |names: &[String]| names.join(" and ");
    match &what.first {
        FirstOpening::Now => format!("{} can be created at once", what.now),
        FirstOpening::AfterIdle { .. } => {
            format!("{} can be created in place of the idle {}", what.after_idle, and(idle))
        }
        FirstOpening::AfterBusy { .. } => {
            let numbers: Vec<_> = jobs.iter().map(ToString::to_string).collect();
            let event = match numbers.is_empty() {
                true => format!("{} becomes free", and(busy)),
                false => format!("job {} on {} ends", numbers.join(" and "), and(busy)),
            };
            let when = match ready
                .and_then(|at| at.format(&time::format_description::well_known::Rfc3339).ok())
            {
                Some(at) => format!("expected by {at}"),
                None => "the time is not known".to_owned(),
            };
            format!("none until {event} ({when})")
        }
        FirstOpening::Blocked { .. } if stuck.is_empty() => {
            "this GPU does not support it".to_owned()
        }
        FirstOpening::Blocked { .. } => {
            format!("none until an administrator examines {}", and(stuck))
        }
    }
}

fn moment(unix: Millis) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix.get()) * 1_000_000).ok()
}
