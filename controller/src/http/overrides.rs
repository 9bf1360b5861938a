//! Administrative overrides: draining, quarantining and pinning nodes, GPUs and slices.

use actix_web::post;
use actix_web::web::{Data, Json};
use tessera_api_types::{OperatorRequest, OperatorResult};
use tessera_model::NodeName;
use tessera_model::spec::BadField;

use super::error::ApiError;
use super::extract::{JsonBody, Named};
use super::gpu_names::{GpuName, find_gpu, find_node};
use super::identity::Caller;
use super::metrics;
use super::openapi::{BodyProblems, ChangeProblems, GpuPath, LookupProblems, NodePath, Problems};
use super::state::State;
use crate::ports::ToPlacer;
use crate::principal::Role;
use tessera_control::commands::operator::{
    InstanceName, OperatorCommand, OperatorOutcome, OverrideKind, OverrideScope,
};

/// Longest name of an administrator, in bytes.
const BY_MAX: usize = 64;
/// Longest reason, in bytes: a sentence or two.
const REASON_MAX: usize = 400;

/// Whether an override is set or cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OverrideChange {
    Set,
    Clear,
}

/// Defines handlers that set or clear an override. A doc comment is the route's REST documentation.
macro_rules! override_handlers {
    ($($(#[$doc:meta])+ $handler:ident: $operation:tt, $route:tt, $params:ident,
       $change:ident($target:ty, $kind:ident, $how:ident);)+) => { $(
        $(#[$doc])+
        #[utoipa::path(
            tag = "operators",
            operation_id = $operation,
            params($params),
            request_body = OperatorRequest,
            responses(
                (status = 200, description = "It is committed.", body = OperatorResult),
                Problems, LookupProblems, ChangeProblems, BodyProblems,
            ),
            security(("bearer" = [])),
        )]
        #[post($route)]
        pub(super) async fn $handler(
            caller: Caller,
            target: Named<$target>,
            body: JsonBody,
            state: Data<State>,
        ) -> Result<Json<OperatorResult>, ApiError> {
            $change(&state, &target.0, (&caller, &body), OverrideKind::$kind, OverrideChange::$how).await
        }
    )+ };
}

override_handlers! {
    /// Drains a node: no new attempt starts there, and running ones finish. Draining it again is harmless.
    drain_node: "drain_node", "/nodes/{name}/drain", NodePath, change_node(NodeName, Drained, Set);

    /// Ends the drain of a node: attempts may start there again.
    undrain_node: "undrain_node", "/nodes/{name}/undrain", NodePath, change_node(NodeName, Drained, Clear);

    /// Clears the quarantine of a node that claimed numbers that the controller never assigned. Its
    /// agent has to be started again, with its own state.
    clear_node: "clear_node", "/nodes/{name}/clear", NodePath, change_node(NodeName, Quarantined, Clear);

    /// Drains a GPU: no new attempt starts there, and running ones finish.
    drain_gpu: "drain_gpu", "/gpus/{gpu}/drain", GpuPath, change_gpu(GpuName, Drained, Set);

    /// Ends the drain of a GPU: attempts may start there again.
    undrain_gpu: "undrain_gpu", "/gpus/{gpu}/undrain", GpuPath, change_gpu(GpuName, Drained, Clear);

    /// Quarantines a GPU, or one of its slices, until it is cleared: no attempt starts there, and no
    /// instance is created or destroyed there for a job.
    quarantine: "quarantine_gpu", "/gpus/{gpu}/quarantine", GpuPath, change_gpu(GpuName, Quarantined, Set);

    /// Clears a quarantine. The node forgets the faults and stuck instances of the GPU or slice, and
    /// examines it again.
    clear: "clear_gpu", "/gpus/{gpu}/clear", GpuPath, change_gpu(GpuName, Quarantined, Clear);

    /// Pins a GPU's layout: jobs use its slices, and no policy changes them.
    pin: "pin_layout", "/gpus/{gpu}/pin", GpuPath, change_gpu(GpuName, Pinned, Set);

    /// Unpins a GPU's layout: policies may change it for jobs again.
    unpin: "unpin_layout", "/gpus/{gpu}/unpin", GpuPath, change_gpu(GpuName, Pinned, Clear);
}

async fn change_node(
    state: &State,
    name: &NodeName,
    (caller, body): (&Caller, &JsonBody),
    kind: OverrideKind,
    change: OverrideChange,
) -> Result<Json<OperatorResult>, ApiError> {
    let request = read_request(caller, body)?;
    if request.slice.is_some() {
        return Err(BadField::new("slice", "a node has no slices", "the route of a GPU").into());
    }
    find_node(state, name).await?;
    send_change(state, kind, OverrideScope::Node(name.clone()), request, change).await
}

async fn change_gpu(
    state: &State,
    name: &GpuName,
    (caller, body): (&Caller, &JsonBody),
    kind: OverrideKind,
    change: OverrideChange,
) -> Result<Json<OperatorResult>, ApiError> {
    let request = read_request(caller, body)?;
    let gpu = find_gpu(state, name).await?.1;
    let on = match &request.slice {
        None => OverrideScope::Gpu(gpu),
        Some(_) if kind != OverrideKind::Quarantined => {
            let problem = "only a quarantine can apply to a slice";
            return Err(BadField::new("slice", problem, "the whole GPU").into());
        }
        Some(text) => OverrideScope::Slice(gpu, parse_slice(text)?),
    };
    send_change(state, kind, on, request, change).await
}

async fn send_change(
    state: &State,
    kind: OverrideKind,
    on: OverrideScope,
    request: OperatorRequest,
    change: OverrideChange,
) -> Result<Json<OperatorResult>, ApiError> {
    let OperatorRequest { by, reason, .. } = request;
    let (command, counted) = match change {
        OverrideChange::Set => (OperatorCommand::SetOverride { kind, on, by, reason }, "set"),
        OverrideChange::Clear => (OperatorCommand::ClearOverride { kind, on, by }, "cleared"),
    };
    let done = state.query(|reply| ToPlacer::Operate { command, reply }).await???;
    let changed = matches!(done, OperatorOutcome::OverrideApplied { changed: true });
    if changed {
        metrics::count_admin_change(kind.word(), counted);
    }
    Ok(Json(OperatorResult { changed }))
}

fn read_request(caller: &Caller, body: &JsonBody) -> Result<OperatorRequest, ApiError> {
    let mut request: OperatorRequest = body.parse()?;
    request.by = check_admin(caller, request.by, request.reason.as_deref())?;
    Ok(request)
}

/// Checks the reason, and the name of the sender: the caller, or another one that an administrator names.
/// Returns the name.
pub(super) fn check_admin(
    caller: &Caller,
    by: String,
    reason: Option<&str>,
) -> Result<String, ApiError> {
    let by = if by.is_empty() { caller.name.to_string() } else { by };
    let clean = |text: &str| !text.trim().is_empty() && !text.chars().any(char::is_control);
    if !clean(&by) || by.len() > BY_MAX {
        let expected = format!("a name of 1 to {BY_MAX} bytes on one line");
        return Err(BadField::new(
            "by",
            "the administrator's name is missing or not valid",
            expected,
        )
        .into());
    }
    if reason.is_some_and(|reason| !clean(reason) || reason.len() > REASON_MAX) {
        let expected = format!("1 to {REASON_MAX} bytes on one line, or no reason at all");
        return Err(BadField::new("reason", "the reason is not valid", expected).into());
    }
    if *by != *caller.name && caller.role < Role::Admin {
        return Err(ApiError::Forbidden {
            problem: format!("{} can't send a request in the name of {by}", caller.name),
            expected: "by to be absent, or the caller's own name".to_owned(),
        });
    }
    Ok(by)
}

fn parse_slice(text: &str) -> Result<InstanceName, ApiError> {
    let bad = || {
        let expected = "a first memory slice (4), a profile with it (2g.10gb@4), or a MIG UUID";
        BadField::new("slice", format!("{text:?} is not the name of a slice"), expected)
    };
    if let Ok(start) = text.parse() {
        return Ok(InstanceName::At(start));
    }
    if let Some((profile, start)) = text.split_once('@') {
        let profile = profile.parse().map_err(|_| bad())?;
        return Ok(InstanceName::Named(profile, start.parse().map_err(|_| bad())?));
    }
    text.parse().map(InstanceName::Id).map_err(|_| bad().into())
}
