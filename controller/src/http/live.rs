//! State changes of jobs as they happen, as server-sent events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::time::Duration;

use actix_web::web::{Bytes, Data};
use actix_web::{HttpRequest, HttpResponse, get};
use futures_util::Stream;
use futures_util::stream::unfold;
use serde::Deserialize;
use serde_json::json;
use tessera_model::life::JobState;
use tessera_model::spec::BadField;
use tessera_model::{ControllerId, JobId};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, timeout_at};

use super::change_log::{ChangeLog, Piece};
use super::error::ApiError;
use super::extract::{Params, read_id};
use super::identity::Caller;
use super::limits::Place;
use super::openapi::Problems;
use super::state::State;
use crate::principal::JobScope;
use crate::store::Reads;
use tessera_control::commands::JobStateChange;

/// How often a silent stream shows that it is alive, so that proxies don't cut it.
const SIGN_OF_LIFE_EVERY: Duration = Duration::from_secs(15);
/// The header with the last event that a listener has.
const LAST_EVENT_ID: &str = "Last-Event-ID";
/// Maximum number of jobs that one stream remembers.
const JOBS_KNOWN_MAX: usize = 100_000;

/// Which changes a stream has.
#[derive(Clone, Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventFilter {
    /// Only changes of these jobs, by number, separated by commas.
    jobs: Option<String>,
    /// Only changes to these states, separated by commas.
    state: Option<String>,
    /// Only changes of this user's jobs.
    user: Option<String>,
}

/// A filter, read once.
#[derive(Clone, Debug, Default)]
struct RequestedChanges {
    jobs: Option<BTreeSet<JobId>>,
    states: Option<BTreeSet<JobState>>,
    user: Option<String>,
}

impl RequestedChanges {
    fn read(filter: EventFilter) -> Result<Self, ApiError> {
        let words = |list: String| list.split(',').map(str::to_owned).collect::<Vec<_>>();
        let jobs = filter.jobs.map(|list| {
            words(list).iter().map(|word| read_id("jobs", word.trim())).collect::<Result<_, _>>()
        });
        let state = |word: &String| word.trim().parse::<JobState>().map_err(|_| unknown(word));
        let states =
            filter.state.map(|list| words(list).iter().map(state).collect::<Result<_, _>>());
        Ok(Self { jobs: jobs.transpose()?, states: states.transpose()?, user: filter.user })
    }

    fn has(&self, change: &JobStateChange) -> bool {
        self.jobs.as_ref().is_none_or(|jobs| jobs.contains(&change.job))
            && self.states.as_ref().is_none_or(|states| states.contains(&change.state))
    }
}

fn unknown(word: &str) -> BadField {
    let states: Vec<_> = JobState::ALL.iter().map(|state| state.word()).collect();
    BadField::new(
        "state",
        format!("{word:?} is not a state"),
        format!("some of {}, separated by commas", states.join(", ")),
    )
}

/// Streams state changes of jobs as they happen, as server-sent events.
///
/// `event: job` with `{"job_id", "state", "attempt"}`; a new job comes as `queued`. Users see their
/// own jobs; operators see all. Each event has an `id`.
/// A listener that was disconnected sends the last one as the header `Last-Event-ID`, and gets what
/// came since. After `event: missed` some changes are lost: list the jobs again.
#[utoipa::path(
    tag = "jobs",
    operation_id = "watch_jobs",
    params(
        EventFilter,
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that the listener has."),
    ),
    responses(
        (status = 200, description = "The events.", content_type = "text/event-stream", body = String),
        Problems,
    ),
    security(("bearer" = [])),
)]
#[get("/events")]
pub(super) async fn watch_jobs(
    caller: Caller,
    filter: Params<EventFilter>,
    request: HttpRequest,
    state: Data<State>,
) -> Result<HttpResponse, ApiError> {
    let requested = RequestedChanges::read(filter.0)?;
    let place = state.subscribe(&caller)?;
    let news = state.change_log.subscribe();
    let given = request.headers().get(LAST_EVENT_ID).and_then(|id| id.to_str().ok());
    let controller = state.ports.about.controller;
    let (seen, missed) = match given.map(|id| number_of(id, controller)) {
        None => (state.change_log.newest(), false),
        Some(Some(number)) => (number, false),
        // An event of another controller, or of this one before it was started again.
        Some(None) => (state.change_log.newest(), true),
    };
    let mut first = String::from(": connected\n\n");
    if missed {
        write_missed(&mut first, controller, seen);
    }
    let stream = ChangeStream {
        waiting: [first].into(),
        seen,
        news,
        state,
        requested,
        scope: caller.jobs(),
        known: BTreeMap::new(),
        _place: place,
    };
    Ok(HttpResponse::Ok().content_type("text/event-stream").streaming(stream.pieces()))
}

/// Returns the number in an event's id, if this controller wrote it.
fn number_of(id: &str, controller: ControllerId) -> Option<u64> {
    let (by, number) = id.rsplit_once('/')?;
    (by == controller.to_string()).then(|| number.parse().ok()).flatten()
}

fn write_missed(text: &mut String, controller: ControllerId, number: u64) {
    let _ = write!(text, "id: {controller}/{number}\nevent: missed\ndata: {{}}\n\n");
}

struct ChangeStream {
    waiting: VecDeque<String>,
    /// The last change that was looked at.
    seen: u64,
    news: Receiver<u64>,
    state: Data<State>,
    requested: RequestedChanges,
    /// Whose jobs the listener may see.
    scope: JobScope,
    /// Which jobs the listener gets, by whose they are, as far as is known. Whose a job is never changes.
    known: BTreeMap<JobId, bool>,
    _place: Place,
}

impl ChangeStream {
    fn pieces(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        unfold(self, |mut stream| async move {
            let piece = stream.next().await?;
            Some((Ok(Bytes::from(piece)), stream))
        })
    }

    async fn next(&mut self) -> Option<String> {
        // Changes of others don't delay it: not even its time shows that something happened.
        let alive = Instant::now() + SIGN_OF_LIFE_EVERY;
        loop {
            if let Some(piece) = self.waiting.pop_front() {
                return Some(piece);
            }
            self.news.mark_unchanged();
            let log: &ChangeLog = &self.state.change_log;
            match log.after(self.seen) {
                Piece::Missed(newest) => return Some(self.missed(newest)),
                Piece::Changes(first, changes) => {
                    if self.take(first, &changes).await.is_none() {
                        let newest = self.state.change_log.newest();
                        return Some(self.missed(newest));
                    }
                }
                Piece::Nothing => match timeout_at(alive, self.news.changed()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return None,
                    Err(_) => return Some(": alive\n\n".to_owned()),
                },
            }
        }
    }

    /// Continues after a change, and requests the listener to list the jobs again.
    fn missed(&mut self, newest: u64) -> String {
        self.seen = newest;
        let mut text = String::new();
        write_missed(&mut text, self.state.ports.about.controller, newest);
        text
    }

    /// Writes the changes that the listener gets; `None` if the store did not answer.
    async fn take(&mut self, first: u64, changes: &[JobStateChange]) -> Option<()> {
        let is_open = self.scope == JobScope::everyone() && self.requested.user.is_none();
        if !is_open {
            self.learn_jobs(changes).await?;
        }
        let controller = self.state.ports.about.controller;
        let mut text = String::new();
        for (number, change) in (first..).zip(changes) {
            self.seen = number;
            let is_theirs = is_open || self.known.get(&change.job) == Some(&true);
            if is_theirs && self.requested.has(change) {
                text += &event(&format!("{controller}/{number}"), change);
            }
        }
        if !text.is_empty() {
            self.waiting.push_back(text);
        }
        Some(())
    }

    /// Looks up whose jobs these are; `None` if the store did not answer.
    async fn learn_jobs(&mut self, changes: &[JobStateChange]) -> Option<()> {
        if self.known.len() > JOBS_KNOWN_MAX {
            self.known.clear();
        }
        let jobs: BTreeSet<JobId> = changes.iter().map(|change| change.job).collect();
        let unknown: Vec<JobId> =
            jobs.into_iter().filter(|job| !self.known.contains_key(job)).collect();
        if unknown.is_empty() {
            return Some(());
        }
        let reads: &Reads = self.state.reads();
        let mut within = reads.within(unknown.clone(), self.scope.clone()).await.ok()?;
        if let Some(user) = &self.requested.user {
            let users: BTreeMap<_, _> =
                reads.users_of(unknown.clone()).await.ok()?.into_iter().collect();
            within.retain(|job| users.get(job) == Some(user));
        }
        self.known.extend(unknown.into_iter().map(|job| (job, within.contains(&job))));
        Some(())
    }
}

fn event(id: &str, change: &JobStateChange) -> String {
    let data = json!({
        "job_id": change.job.number(),
        "state": change.state.word(),
        "attempt": change.attempt.map(|attempt| attempt.to_string()),
    });
    format!("id: {id}\nevent: job\ndata: {data}\n\n")
}
