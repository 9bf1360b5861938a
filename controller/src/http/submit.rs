//! Submits: the one route that has to keep up with tens of thousands of requests a second.

use std::borrow::Cow;
use std::sync::Arc;

use actix_web::http::header::{HeaderMap, LOCATION};
use actix_web::{HttpRequest, HttpResponse, post, web};
use sha2::{Digest, Sha256};
use tessera_api_types::{ArrayRange, DeadlineView, SubmitRequest, SubmitResponse};
use tessera_control::answers::DeadlineForecast;
use tessera_model::batch::ArrayRules;
use tessera_model::number::clamped;
use tessera_model::share::SharingMode;
use tessera_model::spec::{ARRAY_TASKS_MAX, BadField, GpuRequest, JobSpec};
use tessera_model::{GangShape, Millis};
use tessera_placement::{
    ClusterView, Feasibility, GangFeasibility, could_ever_fit, fair, gang_could_ever_fit,
};
use tessera_telemetry::{context, names};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing::{Instrument, Span};

use super::dependency::DependencyText;
use super::error::ApiError;
use super::extract::JsonBody;
use super::identity::Caller;
use super::metrics;
use super::openapi::{BodyProblems, Problems};
use super::state::{State, send};
use crate::clock;
use crate::ports::SubmitCall;
use crate::requests::{AcceptedSubmission, Idempotency, NewSubmission};
use tessera_control::accounts::Accounts;
use tessera_control::site::{SiteRequest, check_place};

/// The header that makes a repeated submit harmless.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The header that marks a submit that was accepted before.
const REPLAYED: &str = "idempotency-replayed";
/// Longest idempotency key, in bytes.
const KEY_BYTES_MAX: usize = 255;
/// Largest index of a task: the store keeps indexes as signed 32-bit integers.
const INDEX_MAX: u32 = 0x7fff_ffff;

/// Submits a job, or an array of jobs.
///
/// The response follows the commit: an accepted job is not lost. With an `Idempotency-Key`, repeating
/// a submit is harmless: the same key and body of the same caller return the same job. The job belongs to
/// the caller; operators may name another `user`.
#[utoipa::path(
    tag = "jobs",
    operation_id = "submit_job",
    request_body = SubmitRequest,
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 printable ASCII characters; the same key and body are accepted once."),
        ("traceparent" = Option<String>, Header, description = "W3C trace context that the job continues."),
    ),
    responses(
        (status = 201, description = "Accepted and committed.", body = SubmitResponse, headers(
            ("Location" = String, description = "Where the job is."),
            ("Idempotency-Replayed" = Option<String>, description = "`true` if an earlier request with this key was accepted."),
        ), links(
            ("get_job" = (operation_id = "get_job", parameters(("job" = "$response.body#/job_id")))),
            ("explain_job" = (operation_id = "explain_job", parameters(("job" = "$response.body#/job_id")))),
            ("list_job_events" = (operation_id = "list_job_events", parameters(("job" = "$response.body#/job_id")))),
            ("hold_job" = (operation_id = "hold_job", parameters(("job" = "$response.body#/job_id")))),
            ("release_job" = (operation_id = "release_job", parameters(("job" = "$response.body#/job_id")))),
            ("update_job" = (operation_id = "update_job", parameters(("job" = "$response.body#/job_id")))),
            ("show_job_memory" = (operation_id = "show_job_memory", parameters(("job" = "$response.body#/job_id")))),
            ("get_job_series" = (operation_id = "get_job_series", parameters(("job" = "$response.body#/job_id")))),
            ("read_job_logs" = (operation_id = "read_job_logs", parameters(("job" = "$response.body#/job_id")))),
            ("requeue_job" = (operation_id = "requeue_job", parameters(("job" = "$response.body#/job_id")))),
            ("cancel_job" = (operation_id = "cancel_job", parameters(("job" = "$response.body#/job_id")))),
            ("delete_job" = (operation_id = "delete_job", parameters(("job" = "$response.body#/job_id")))),
        )),
        Problems,
        BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/jobs")]
pub(super) async fn submit(
    caller: Caller,
    request: HttpRequest,
    body: JsonBody,
    state: web::Data<State>,
) -> Result<HttpResponse, ApiError> {
    let key = idempotency(request.headers(), body.bytes())?;
    let (span, traceparent) = trace(request.headers());
    let mut parsed: SubmitRequest = body.parse()?;
    let user = parsed.user.get_or_insert_with(|| caller.name.to_string());
    if !caller.may_act_for(user) {
        return Err(ApiError::Forbidden {
            problem: format!("{} can't submit a job of {user}", caller.name),
            expected: "user to be absent, or the caller's own name; operators act for others"
                .to_owned(),
        });
    }
    let (tasks, array_first) = tasks_of(parsed.array, &parsed.array_indexes)?;
    let (hold, is_array) = (parsed.hold, array_first.is_some());
    let site = SiteRequest {
        constraint: parsed.constraint.take(),
        has_class: parsed.class.is_some(),
        has_priority: parsed.priority.is_some(),
        has_share: parsed.share.is_some(),
        exclusive: parsed.exclusive,
    };
    let test_only = parsed.test_only;
    let refuse_late = refuses_late(parsed.late.as_deref(), parsed.deadline.is_some())?;
    let is_repeated =
        parsed.dependency.is_some() && is_repeated(&state, &caller, key.as_ref()).await?;
    let waits_for = DependencyText {
        text: parsed.dependency.take(),
        cancel_if_never: parsed.kill_on_invalid_dep,
        // What was accepted before stays accepted, even if a job has been removed since.
        ignore_unknown: parsed.ignore_unknown_jobs || is_repeated,
        array_first,
    };
    let mut spec = parsed.into_spec()?;
    let (dependency, ignored) = waits_for.look_up(&state, &caller, &spec).await?;
    spec.dependency = dependency;
    let mut remarks = apply_site(&state, &site, &mut spec)?;
    remarks.extend(ignored);
    remarks.extend(mail_remark(&state, &spec));
    let (tasks, array_first) = match spec.gang {
        None => (tasks, array_first),
        Some(shape) if is_array => {
            let first = array_first.unwrap_or(0);
            (array_of_gangs(&mut spec.array, first, tasks, shape)?, array_first)
        }
        // Its members are named by their ranks, as tasks are by their indexes.
        Some(shape) => (shape.members(), Some(0)),
    };
    check_feasible(&state, &caller, &spec, key.as_ref()).await?;
    let spec = Arc::new(spec);
    let late = LateRule { hold, refuse_late };
    let deadline = forecast_deadline(&state, &caller, &spec, late, key.as_ref()).await?;
    if test_only {
        return tested(&state, spec, tasks, late, SubmitNotes { remarks, deadline }).await;
    }
    let submission = NewSubmission {
        spec,
        tasks,
        array_first,
        hold,
        idempotency: key,
        traceparent,
        principal: Arc::clone(&caller.name),
        role: caller.role,
        origin: caller.proof.to_string(),
    };
    let accepted = accept(&state, submission).instrument(span).await?;
    Ok(created(accepted, hold, SubmitNotes { remarks, deadline }))
}

/// Returns the remark for a user who requests mail where none is sent.
fn mail_remark(state: &State, spec: &JobSpec) -> Option<String> {
    let is_unsent = spec.mail.is_some() && !state.ports.about.sends_mail;
    is_unsent.then(|| "no mail is sent: this cluster's operator has not configured it".to_owned())
}

/// Returns whether a submit was accepted under this key before.
async fn is_repeated(
    state: &State,
    caller: &Caller,
    key: Option<&Idempotency>,
) -> Result<bool, ApiError> {
    let Some(key) = key else { return Ok(false) };
    Ok(state.reads().key_is_used(caller.name.to_string(), key.key.clone()).await?)
}

/// What a response states in addition to the numbers.
struct SubmitNotes {
    remarks: Vec<String>,
    deadline: Option<DeadlineView>,
}

/// Applies the operator's settings to a job, and checks that the cluster has the places that it names.
fn apply_site(
    state: &State,
    request: &SiteRequest,
    spec: &mut JobSpec,
) -> Result<Vec<String>, ApiError> {
    let shape = Arc::clone(&state.ports.shape.borrow());
    let remarks = state.ports.live().site.apply(request, spec, &shape.view)?;
    if shape.known && !spec.allow_pending {
        check_place(&spec.place, &shape.view)?;
    }
    Ok(remarks)
}

/// How far ahead a deadline is that only serves a forecast: ten years.
const NO_DEADLINE_MS: u64 = 10 * 365 * 86_400 * 1_000;

/// Answers a request that is only checked: what would happen, and when.
async fn tested(
    state: &State,
    spec: Arc<JobSpec>,
    tasks: u32,
    late: LateRule,
    mut notes: SubmitNotes,
) -> Result<HttpResponse, ApiError> {
    if !late.hold && notes.deadline.is_none() {
        let mut probe = (*spec).clone();
        let now = clock::unix();
        probe.deadline = Some(now.plus(Millis::new(NO_DEADLINE_MS)));
        if let Some(forecast) = state.forecast_deadline(Arc::new(probe)).await? {
            notes.remarks.push(forecast.text);
        }
    }
    Ok(HttpResponse::Ok().json(SubmitResponse {
        job_id: 0,
        tasks,
        state: if late.hold { "held" } else { "queued" }.to_owned(),
        remarks: notes.remarks,
        deadline: notes.deadline,
    }))
}

/// Reads what is done with a job that is probably late: whether it is refused.
fn refuses_late(late: Option<&str>, has_deadline: bool) -> Result<bool, BadField> {
    let bad = |problem: String| Err(BadField::new("late", problem, "accept or refuse"));
    match late {
        Some(_) if !has_deadline => bad("it applies to a deadline, and none is given".into()),
        None | Some("accept") => Ok(false),
        Some("refuse") => Ok(true),
        Some(other) => bad(format!("{other:?} is unknown")),
    }
}

/// What a submit states in addition to the deadline itself.
#[derive(Clone, Copy)]
struct LateRule {
    /// Whether the job is held: then it is not known when it starts.
    hold: bool,
    /// Whether it is refused if it is more likely late than in time.
    refuse_late: bool,
}

/// Returns what is expected of a job's deadline, if it has one. Refuses it if the deadline is over, or if the
/// job is probably late and its user requested a refusal then.
async fn forecast_deadline(
    state: &State,
    caller: &Caller,
    spec: &Arc<JobSpec>,
    late: LateRule,
    key: Option<&Idempotency>,
) -> Result<Option<DeadlineView>, ApiError> {
    let Some(deadline) = spec.deadline else { return Ok(None) };
    // The response of a submit that was accepted before is the same again.
    if let Some(key) = key
        && state.reads().key_is_used(caller.name.to_string(), key.key.clone()).await?
    {
        return Ok(None);
    }
    let now = check_deadline(deadline)?;
    if late.hold {
        return Ok(None);
    }
    let Some(forecast) = state.forecast_deadline(Arc::clone(spec)).await? else { return Ok(None) };
    let view = deadline_view(&forecast, now);
    match view {
        Some(view)
            if late.refuse_late
                && forecast.probability.is_some_and(|probability| probability < HALF) =>
        {
            Err(ApiError::LateDeadline { forecast: view.text })
        }
        view => Ok(view),
    }
}

/// Refuses a deadline that is over. Returns the present time.
pub(super) fn check_deadline(deadline: Millis) -> Result<Millis, BadField> {
    let now = clock::unix();
    if deadline <= now {
        let over = format!("{} is over", rfc3339(deadline));
        return Err(BadField::new("deadline", over, format!("a time after {}", rfc3339(now))));
    }
    Ok(now)
}

/// A probability of one half, in millionths.
const HALF: u64 = 500_000;

/// Shows what is expected of a deadline.
pub(super) fn deadline_view(forecast: &DeadlineForecast, now_unix: Millis) -> Option<DeadlineView> {
    let probability =
        forecast.probability.and_then(|probability| u32::try_from(probability / 10_000).ok());
    let expected_end = forecast.ends_in.and_then(|ends_in| at_unix(now_unix.plus(ends_in)));
    let text = match probability {
        Some(probability) => format!(
            "it will be met with a probability of {probability} %: \
                                      {}",
            forecast.text
        ),
        None => format!("whether it will be met is not known: {}", forecast.text),
    };
    Some(DeadlineView {
        at: at_unix(forecast.deadline_unix)?,
        probability_percent: probability,
        expected_end,
        text,
    })
}

/// Returns a time of the wall clock; `None` after the year 9999.
pub(super) fn at_unix(at: Millis) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.get()) * 1_000_000).ok()
}

fn rfc3339(at: Millis) -> String {
    let text = at_unix(at).and_then(|at| at.replace_nanosecond(0).ok()?.format(&Rfc3339).ok());
    text.unwrap_or_else(|| format!("{} ms after 1970", at.get()))
}

async fn accept(state: &State, submission: NewSubmission) -> Result<AcceptedSubmission, ApiError> {
    let accepted = send(&state.ports.submits, |reply| SubmitCall { submission, reply })
        .await
        .map_err(|error| state.explained(error))??;
    if !accepted.replayed {
        metrics::count_submit(accepted.tasks);
    }
    Span::current().record(names::attribute::JOB_ID, accepted.job.number());
    Ok(accepted)
}

fn created(accepted: AcceptedSubmission, hold: bool, notes: SubmitNotes) -> HttpResponse {
    let mut answer = HttpResponse::Created();
    answer.insert_header((LOCATION, format!("/v1/jobs/{}", accepted.job)));
    if accepted.replayed {
        answer.insert_header((REPLAYED, "true"));
    }
    answer.json(SubmitResponse {
        job_id: accepted.job.number(),
        tasks: accepted.tasks,
        state: if hold { "held" } else { "queued" }.to_owned(),
        remarks: notes.remarks,
        deadline: notes.deadline,
    })
}

fn idempotency(headers: &HeaderMap, body: &[u8]) -> Result<Option<Idempotency>, BadField> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let bytes = value.as_bytes();
    let printable = bytes.iter().all(|byte| (0x20..0x7f).contains(byte));
    match value.to_str() {
        Ok(key) if printable && (1..=KEY_BYTES_MAX).contains(&bytes.len()) => {
            let body_hash = Sha256::digest(body).into();
            Ok(Some(Idempotency { key: key.to_owned(), body_hash }))
        }
        _ => Err(BadField::new(
            "Idempotency-Key",
            "it is empty, too long, or has characters that are not printable ASCII",
            format!("1 to {KEY_BYTES_MAX} printable ASCII characters"),
        )),
    }
}

/// Continues the caller's trace, or begins one. A span is made only where spans are sent
/// somewhere: it would cost more than the rest of the handler.
fn trace(headers: &HeaderMap) -> (Span, Option<String>) {
    let given = headers
        .get("traceparent")
        .and_then(|value| value.to_str().ok())
        .filter(|text| context::is_traceparent(text));
    if tessera_telemetry::exporting() {
        let span = tracing::info_span!(
            names::span::SUBMIT,
            otel.kind = "server",
            tessera.job.id = tracing::field::Empty
        );
        if let Some(parent) = given {
            context::set_parent(&span, parent);
        }
        if let Some(own) = context::traceparent(&span) {
            return (span, Some(own));
        }
    }
    (Span::none(), Some(given.map_or_else(context::new_traceparent, str::to_owned)))
}

fn tasks_of(array: Option<ArrayRange>, indexes: &[u32]) -> Result<(u32, Option<u32>), BadField> {
    let bad = |problem: String, expected: String| Err(BadField::new("array", problem, expected));
    if let (Some(first), Some(last)) = (indexes.first(), indexes.last()) {
        let tasks = clamped::<u32>(indexes.len());
        return match tasks {
            _ if array.is_some() => {
                bad("array and array_indexes are given".into(), "one of them".into())
            }
            _ if *last > INDEX_MAX => bad(format!("it has {last}"), format!("at most {INDEX_MAX}")),
            0..=ARRAY_TASKS_MAX => Ok((tasks, Some(*first))),
            _ => bad(format!("{tasks} tasks are too many"), format!("at most {ARRAY_TASKS_MAX}")),
        };
    }
    let Some(ArrayRange { first, last }) = array else { return Ok((1, None)) };
    match last.checked_sub(first) {
        None => bad(format!("last is {last} and first is {first}"), "last not below first".into()),
        Some(_) if last > INDEX_MAX => {
            bad(format!("last is {last}"), format!("at most {INDEX_MAX}"))
        }
        Some(ARRAY_TASKS_MAX..) => bad(
            format!("{first} to {last} are too many tasks"),
            format!("at most {ARRAY_TASKS_MAX} tasks"),
        ),
        Some(more) => Ok((more + 1, Some(first))),
    }
}

/// Returns how many jobs an array of gangs has, and lists its indexes, which distinguish it from a gang.
fn array_of_gangs(
    rules: &mut ArrayRules,
    first: u32,
    tasks: u32,
    shape: GangShape,
) -> Result<u32, BadField> {
    let members = shape.members();
    match tasks.checked_mul(members) {
        Some(jobs @ ..=ARRAY_TASKS_MAX) => {
            if rules.indexes.is_empty() {
                rules.indexes = (first..first.saturating_add(tasks)).collect();
            }
            Ok(jobs)
        }
        Some(_) | None => Err(BadField::new(
            "array",
            format!("{tasks} tasks of {members} GPUs or slices each are too many"),
            format!("at most {} tasks of that size", ARRAY_TASKS_MAX / members.max(1)),
        )),
    }
}

/// Refuses a job that no registered GPU can hold, unless it may wait for one.
async fn check_feasible(
    state: &State,
    caller: &Caller,
    spec: &JobSpec,
    key: Option<&Idempotency>,
) -> Result<(), ApiError> {
    if spec.allow_pending {
        return Ok(());
    }
    let shape = Arc::clone(&state.ports.shape.borrow());
    if !shape.known {
        return Ok(());
    }
    let view = match spec.place.is_open() {
        true => Cow::Borrowed(&shape.view),
        false => Cow::Owned(shape.view.within(&spec.place)),
    };
    let verdict = could_ever_fit(&view, &spec.gpu, spec.share);
    let beyond = beyond_quota(&state.ports.live().accounts, &view, spec);
    let gang = spec.gang.map(|gang| (gang, gang_could_ever_fit(&view, &spec.gpu, gang)));
    let fits = gang.as_ref().is_none_or(|(_, verdict)| *verdict == GangFeasibility::Yes);
    let fits = fits && matches!(verdict, Feasibility::Yes | Feasibility::OnlyUnavailable);
    if fits && beyond.is_none() {
        return Ok(());
    }
    // The same submit may have been accepted when the cluster had other GPUs: then the response is the
    // same again.
    if let Some(key) = key
        && state.reads().key_is_used(caller.name.to_string(), key.key.clone()).await?
    {
        return Ok(());
    }
    if let Some(refused) = beyond.filter(|_| fits) {
        return Err(refused);
    }
    let (largest, profiles) = match (verdict, gang) {
        (Feasibility::Never { largest, profiles }, _) => (largest, profiles),
        (Feasibility::Yes | Feasibility::OnlyUnavailable, Some((gang, verdict))) => {
            return Err(impossible_gang(spec, gang, &verdict));
        }
        (Feasibility::NoSharing | Feasibility::Yes | Feasibility::OnlyUnavailable, _) => {
            return Err(no_sharing(spec));
        }
    };
    let largest = largest.map_or_else(
        || "the cluster has no GPU".to_owned(),
        |largest| format!("at most {largest} ({} bytes)", largest.get()),
    );
    let profiles = match profiles.as_slice() {
        [] => String::new(),
        names => format!(", or one of the profiles {}", names.join(", ")),
    };
    let mig_off = with_mig_off(&spec.gpu);
    Err(ApiError::ImpossibleRequest {
        field: gpu_field(&spec.gpu),
        requested: spec.gpu.to_string(),
        expected: format!(
            "{largest}{profiles}{mig_off}; or allow_pending to wait for hardware that is added later"
        ),
    })
}

/// Refuses a job that exceeds a quota of its user or account by itself.
fn beyond_quota(accounts: &Accounts, view: &ClusterView, spec: &JobSpec) -> Option<ApiError> {
    // A sharer may find a slice that its user has already.
    let alone = spec.share.part().is_none();
    let least = alone.then(|| fair::least(view, &spec.gpu)).flatten()?;
    let members = spec.gang.map_or(1, GangShape::members);
    let takes = least.saturating_mul(members);
    let limit = accounts.limits(&spec.user).filter(|limit| limit.slices < takes);
    let limit = limit.min_by_key(|limit| limit.slices)?;
    let (field, requested) = match spec.gang {
        Some(gang) => ("gang", format!("{gang} with {} each", spec.gpu)),
        None => (gpu_field(&spec.gpu), spec.gpu.to_string()),
    };
    let each = if members > 1 { format!(" ({least} for each GPU)") } else { String::new() };
    let expected = format!(
        "at most {} compute slices at once, which is the quota of {}; this job takes {takes}{each}. \
         Request less, or have an administrator raise the quota, or set allow_pending to wait \
         for that",
        limit.slices, limit.name
    );
    let whose = limit.name.to_string();
    Some(ApiError::BeyondQuota { field, requested, whose, expected })
}

const fn gpu_field(request: &GpuRequest) -> &'static str {
    match request {
        GpuRequest::Memory(_) | GpuRequest::Unknown => "gpu_memory_bytes",
        GpuRequest::Profile(_) | GpuRequest::Compute(_) => "gpu_profile",
        GpuRequest::Whole | GpuRequest::Unpartitioned => "gpu_whole",
    }
}

fn no_sharing(spec: &JobSpec) -> ApiError {
    ApiError::ImpossibleRequest {
        field: "share",
        requested: spec.share.word().to_owned(),
        expected: match spec.share {
            SharingMode::Kernel(_) => {
                "exclusive: no registered agent has the shim of the kernel plane \
                 (kernel-shim/libcuda.so.1 next to it); or allow_pending to wait for one"
            }
            SharingMode::Exclusive | SharingMode::Auto | SharingMode::Mps(_) => {
                "exclusive: no registered node has NVIDIA's MPS control program \
                 (nvidia-cuda-mps-control); or allow_pending to wait for one"
            }
        }
        .to_owned(),
    }
}

/// Returns what several whole GPUs need in addition to their number.
const fn with_mig_off(request: &GpuRequest) -> &'static str {
    match request {
        GpuRequest::Unpartitioned => {
            "; several whole GPUs need MIG off, since GPUs with MIG on can't reach each other's memory: \
             an operator switches it with tessera mig-mode GPU off, and --gpus 1g.5gb:2 requests slices"
        }
        _ => "",
    }
}

fn impossible_gang(spec: &JobSpec, gang: GangShape, verdict: &GangFeasibility) -> ApiError {
    let GangFeasibility::Never { on_one_node, nodes, instead } = verdict else {
        return ApiError::Internal;
    };
    let mig_off = with_mig_off(&spec.gpu);
    let found = match (*on_one_node, *nodes) {
        (0, _) => "no node has a suitable GPU".to_owned(),
        (most, _) if most < gang.per_node() => format!(
            "the largest node has {most} suitable {}",
            if most == 1 { "GPU" } else { "GPUs" }
        ),
        (_, nodes) => format!(
            "{nodes} {} {} suitable GPUs",
            if nodes == 1 { "node has" } else { "nodes have" },
            gang.per_node()
        ),
    };
    let instead = match instead {
        Some(other) => format!(
            "nodes = {} and gpus_per_node = {} would fit (--gpus {} --nodes {})",
            other.nodes(),
            other.per_node(),
            other.members(),
            other.nodes()
        ),
        None => "fewer GPUs".to_owned(),
    };
    ApiError::ImpossibleRequest {
        field: "gang",
        requested: format!("{gang} with {} each", spec.gpu),
        expected: format!(
            "{found}: {instead}{mig_off}; or allow_pending to wait for hardware that is added later"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_counts_both_of_its_ends() {
        assert_eq!(tasks_of(None, &[]), Ok((1, None)));
        assert_eq!(tasks_of(Some(ArrayRange { first: 3, last: 3 }), &[]), Ok((1, Some(3))));
        assert_eq!(
            tasks_of(Some(ArrayRange { first: 0, last: 9_999 }), &[]),
            Ok((10_000, Some(0)))
        );
    }

    #[test]
    fn an_array_that_is_empty_too_long_or_too_far_out_is_refused() {
        for (first, last) in [(1, 0), (0, 10_000), (u32::MAX, u32::MAX), (0, u32::MAX)] {
            assert!(tasks_of(Some(ArrayRange { first, last }), &[]).is_err(), "{first} to {last}");
        }
    }
}
