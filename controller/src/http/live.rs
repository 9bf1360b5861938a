//! Moves of jobs as they happen, as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use actix_web::web::{Bytes, Data};
use actix_web::{HttpResponse, get};
use futures_util::Stream;
use futures_util::stream::unfold;
use serde_json::json;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::time::timeout;

use super::error::ApiError;
use super::identity::Caller;
use super::limits::Place;
use super::openapi::Problems;
use super::state::State;
use tessera_control::commands::JobStateChange;

/// How often a silent stream shows that it lives, so that proxies don't cut it.
const SIGN_OF_LIFE_EVERY: Duration = Duration::from_secs(15);

/// Streams state changes of jobs as they happen, as server-sent events.
///
/// `event: job` with `{"job_id", "state", "attempt"}`. After `event: missed` the listener was
/// too slow and should list the jobs anew.
#[utoipa::path(
    tag = "jobs",
    operation_id = "watch_jobs",
    responses(
        (status = 200, description = "The events.", content_type = "text/event-stream", body = String),
        Problems,
    ),
    security(("bearer" = [])),
)]
#[get("/events")]
pub(super) async fn watch_jobs(
    caller: Caller,
    state: Data<State>,
) -> Result<HttpResponse, ApiError> {
    let place = state.subscribe(&caller)?;
    Ok(HttpResponse::Ok()
        .content_type("text/event-stream")
        .streaming(stream_changes(state.ports.job_changes.subscribe(), place)))
}

fn stream_changes(
    changes: Receiver<JobStateChange>,
    place: Place,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    // The first piece opens the stream: listeners know at once that they are heard.
    let opened = Some(Bytes::from_static(b": connected\n\n"));
    unfold((opened, changes, place), |(opened, mut changes, place)| async move {
        let piece = match opened {
            Some(piece) => piece,
            None => match timeout(SIGN_OF_LIFE_EVERY, changes.recv()).await {
                Ok(Ok(change)) => event(change),
                Ok(Err(RecvError::Lagged(_))) => Bytes::from_static(b"event: missed\ndata: {}\n\n"),
                Ok(Err(RecvError::Closed)) => return None,
                Err(_) => Bytes::from_static(b": alive\n\n"),
            },
        };
        Some((Ok(piece), (None, changes, place)))
    })
}

fn event(change: JobStateChange) -> Bytes {
    let data = json!({
        "job_id": change.job.number(),
        "state": change.state.word(),
        "attempt": change.attempt.map(|attempt| attempt.to_string()),
    });
    Bytes::from(format!("event: job\ndata: {data}\n\n"))
}
