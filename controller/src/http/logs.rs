//! Outputs of jobs, from the nodes where they were written.

use std::io;
use std::time::Duration;

use actix_web::web::{Bytes, Data};
use actix_web::{HttpResponse, get};
use futures_util::Stream;
use futures_util::stream::unfold;
use serde::Deserialize;
use tessera_frames::cluster::{LogReply, LogRequest, LogStream};
use tessera_model::JobRef;
use tessera_model::spec::BadField;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::error::ApiError;
use super::extract::{Named, Params};
use super::identity::Caller;
use super::limits::Place;
use super::openapi::{ChangeProblems, JobPath, LookupProblems, Problems};
use super::state::{State, no_job};
use crate::ports::ToPlacer;
use crate::principal::JobScope;
use crate::store::reads::LogSource;

/// How long a node may take to begin with an output that is there.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);
/// How long to wait for a first piece before a followed output is announced without one.
const FIRST_PIECE_WITHIN: Duration = Duration::from_secs(1);
/// How often a request that waits for a start looks by itself.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Which output, and from where.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LogParams {
    /// Standard output (the default) or standard error.
    #[param(inline)]
    #[serde(default)]
    stream: Stream_,
    /// Which attempt, by number; by default the newest.
    #[param(minimum = 1)]
    attempt: Option<u32>,
    /// First byte to return.
    #[serde(default)]
    offset: u64,
    /// Whether to continue until the attempt has ended, and to wait for one that has not begun.
    #[serde(default)]
    follow: bool,
}

/// Which of a program's two outputs.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum Stream_ {
    /// Standard output.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
}

/// Returns a job's output as text, piece by piece as it comes.
///
/// The answer's chunks end where the output ends. A connection that ends without the last chunk
/// means that the node was lost: repeat the request from the offset that was reached.
#[utoipa::path(
    tag = "jobs",
    operation_id = "read_job_logs",
    params(
        JobPath,
        LogParams,
    ),
    responses(
        (status = 200, description = "The output.", content_type = "text/plain", body = String),
        Problems, LookupProblems, ChangeProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/jobs/{job}/logs")]
pub(super) async fn logs(
    caller: Caller,
    job: Named<JobRef>,
    params: Params<LogParams>,
    state: Data<State>,
) -> Result<HttpResponse, ApiError> {
    let job = job.0;
    let params = params.0;
    let place = state.read_log(&caller)?;
    let source = find(&state, job, &caller.jobs(), params).await?;
    let mut replies = open(&state, &source, params).await?;
    let first = first_piece(&mut replies, &source, params.follow).await?;
    Ok(HttpResponse::Ok()
        .content_type("text/plain; charset=utf-8")
        .insert_header(("tessera-attempt", source.number.to_string()))
        .streaming(pieces(first, replies, place)))
}

/// Finds the attempt; when following, waits for it to begin.
async fn find(
    state: &State,
    job: JobRef,
    scope: &JobScope,
    params: LogParams,
) -> Result<LogSource, ApiError> {
    if params.attempt == Some(0) {
        let problem = "attempts are counted from 1";
        return Err(BadField::new("attempt", problem, "1 or more").into());
    }
    let known = state.reads().job(job, scope).await?.ok_or_else(|| no_job(job))?;
    let number = tessera_model::JobId::from_number(known.id);
    let watching = state.watch.on(number)?;
    loop {
        let moved = watching.moved();
        // The job is read before its attempt: an attempt that ends in between is found, not missed.
        let now = state.reads().job(job, scope).await?.ok_or_else(|| no_job(job))?;
        let source = state.reads().log_source(number, params.attempt).await?;
        match source {
            Some(source) if source.started || source.ended => return Ok(source),
            None if params.attempt.is_some_and(|requested| requested <= now.attempts) => {
                return Err(ApiError::Internal);
            }
            Some(_) | None if now.ended_at.is_some() => return Err(never_ran(job, params)),
            Some(_) | None if !params.follow => return Err(not_yet(job, &now.state, params)),
            // Woken or not, the next look decides.
            Some(_) | None => drop(timeout(LOOK_EVERY, moved).await),
        }
    }
}

/// Finds the newest attempt of a job; with `wait`, waits for it to begin.
pub(super) async fn find_begun(
    state: &State,
    job: JobRef,
    scope: &JobScope,
    wait: bool,
) -> Result<LogSource, ApiError> {
    let params = LogParams { stream: Stream_::Stdout, attempt: None, offset: 0, follow: wait };
    find(state, job, scope, params).await
}

fn never_ran(job: JobRef, params: LogParams) -> ApiError {
    match params.attempt {
        Some(number) => ApiError::NotFound { what: format!("job {job} has no attempt {number}") },
        None => ApiError::NotFound { what: format!("job {job} ended without ever running") },
    }
}

fn not_yet(job: JobRef, state: &str, params: LogParams) -> ApiError {
    let what = params.attempt.map(|number| format!("attempt {number} of ")).unwrap_or_default();
    ApiError::WrongState {
        problem: format!("{what}job {job} has not run yet: it is {state}"),
        expected: "follow=true waits for its output".into(),
    }
}

async fn open(
    state: &State,
    source: &LogSource,
    params: LogParams,
) -> Result<mpsc::Receiver<LogReply>, ApiError> {
    let request = LogRequest {
        attempt: source.attempt,
        stream: match params.stream {
            Stream_::Stdout => LogStream::Stdout,
            Stream_::Stderr => LogStream::Stderr,
        },
        offset: params.offset,
        follow: params.follow,
    };
    let node = source.node;
    let opened = state.query(|reply| ToPlacer::OpenLog { node, request, reply }).await?;
    opened.ok_or_else(|| ApiError::Unavailable {
        reason: format!("node {}, which has the output, is not connected", source.node_name),
    })
}

/// Waits for the first piece, so that what is wrong can still be returned as a problem.
async fn first_piece(
    replies: &mut mpsc::Receiver<LogReply>,
    source: &LogSource,
    follow: bool,
) -> Result<Option<LogReply>, ApiError> {
    let node = &source.node_name;
    let patience = if follow { FIRST_PIECE_WITHIN } else { BEGIN_WITHIN };
    match timeout(patience, replies.recv()).await {
        Ok(Some(LogReply::Unknown { reason })) => Err(ApiError::NotFound {
            what: format!("node {node} does not have this output: {reason}"),
        }),
        Ok(Some(reply @ (LogReply::Chunk { .. } | LogReply::End { .. }))) => Ok(Some(reply)),
        Ok(None) => Err(ApiError::Unavailable {
            reason: format!("node {node} disconnected before it sent anything"),
        }),
        Err(_) if follow => Ok(None),
        Err(_) => Err(ApiError::Unavailable {
            reason: format!("node {node} did not send anything in time"),
        }),
    }
}

/// Hands on the pieces. An error ends the connection without the last chunk, so that a cut
/// output is never taken for a whole one.
fn pieces(
    first: Option<LogReply>,
    replies: mpsc::Receiver<LogReply>,
    place: Place,
) -> impl Stream<Item = io::Result<Bytes>> {
    unfold(Some((first, replies, place)), |source| async move {
        let (first, mut replies, place) = source?;
        let reply = match first {
            Some(reply) => Some(reply),
            None => replies.recv().await,
        };
        match reply {
            Some(LogReply::Chunk { bytes, .. }) => {
                Some((Ok(Bytes::from(bytes)), Some((None, replies, place))))
            }
            Some(LogReply::End { .. }) => None,
            Some(LogReply::Unknown { reason }) => Some((Err(io::Error::other(reason)), None)),
            None => Some((Err(io::Error::other("the node disconnected")), None)),
        }
    })
}
