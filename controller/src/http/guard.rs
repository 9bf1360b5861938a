//! What is done around every request: the caller, the headers, the counting, the audit, and the form of
//! errors that the framework makes by itself.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use actix_web::body::{BoxBody, EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use actix_web::http::{Method, StatusCode};
use actix_web::middleware::Next;
use actix_web::{Error, HttpRequest, HttpResponse, web};
use tessera_model::spec::BadField;

use super::browsers::{self, Channel};
use super::endings;
use super::error::{ApiError, PROBLEM_JSON};
use super::identity::{self, Peer};
use super::metrics;
use super::state::State;
use crate::principal::{AuditRecord, Principal};

/// The hottest route, known without a search.
const SUBMIT_ROUTE: &str = "/v1/jobs";
/// The route of reports about steps: what a job starts in itself is no change of a caller's, and a script may start
/// thousands.
const STEPS_ROUTE: &str = "/v1/jobs/{job}/steps";
/// Where the pages of the documentation lie.
const DOCS: &str = "/docs";

const ANSWERS_POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
const DOCS_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
     frame-ancestors 'none'",
);

const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-resource-policy");

type Answer<B> = ServiceResponse<EitherBody<B, BoxBody>>;

/// Lets a request of a known caller through to its handler, and finishes its answer.
#[expect(clippy::disallowed_methods, reason = "measures how long a request took, for the metrics")]
pub(super) async fn guard<B: MessageBody + 'static>(
    state: web::Data<State>,
    request: ServiceRequest,
    next: Next<B>,
) -> Result<Answer<B>, Error> {
    let began = Instant::now();
    let route = route_of(&request);
    let method = request.method().clone();
    let peer = Peer::of(request.request());
    let admitted = admit(&state, &request, peer.as_ref()).await;
    metrics::count_admission(began.elapsed());
    let (mut answer, caller) = match admitted {
        Ok(caller) => {
            if let Some(caller) = &caller {
                identity::keep(&request, caller);
            }
            let answer = passed(request, next).await?;
            let answer = match &caller {
                Some(caller) => endings::bound(answer, &state, caller),
                None => answer,
            };
            (answer, caller)
        }
        Err(refusal) => (refused(request, &refusal), None),
    };
    harden(&mut answer);
    let source = peer.as_ref().map(Peer::source);
    if is_audited(caller.as_deref(), (&route, &method), answer.status())
        && (caller.is_some() || state.rates.admits_entry(source))
    {
        state.ports.audit.record(entry(&answer, peer.as_ref(), caller.as_deref()));
    }
    metrics::count_request(&route, method.as_str(), answer.status().as_str(), began.elapsed());
    Ok(answer)
}

/// Finds out who calls. An open path needs nobody.
async fn admit(
    state: &State,
    request: &ServiceRequest,
    peer: Option<&Peer>,
) -> Result<Option<Arc<Principal>>, ApiError> {
    let path = request.path();
    // Load balancers and process managers look at these, by whatever name.
    if is_health(path) {
        return Ok(None);
    }
    let Some(peer) = peer else {
        let problem = "nothing is known of this connection's other end".to_owned();
        return Err(ApiError::Unauthorized { problem });
    };
    let channel = match peer {
        Peer::Process { .. } | Peer::Job(_) => Channel::Socket,
        Peer::Address { encrypted: true, .. } => Channel::Encrypted,
        Peer::Address { encrypted: false, .. } => Channel::Plain,
    };
    let hosts = &state.ports.live().hosts;
    browsers::check(channel, request.method(), request.uri(), request.headers(), hosts)?;
    if is_open(path) {
        return Ok(None);
    }
    match identity::authenticate(state, peer, request.headers()).await {
        Ok(caller) => {
            state.rates.count(&caller)?;
            Ok(Some(Arc::new(caller)))
        }
        Err(refusal @ ApiError::Unauthorized { .. }) => {
            state.rates.count_failure(peer.source())?;
            Err(refusal)
        }
        Err(other) => Err(other),
    }
}

/// Changes and sessions are recorded, and what was refused for lack of a name or a role. Accepted submits are recorded by
/// their commit, where those of one caller share an entry: there may be thousands a second. What nobody in particular
/// sends to an open path changes nothing, and no limit counts it: it must not fill the log.
fn is_audited(
    caller: Option<&Principal>,
    (route, method): (&str, &Method),
    status: StatusCode,
) -> bool {
    let refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let reads = *method == Method::GET || *method == Method::HEAD;
    let limited = status == StatusCode::TOO_MANY_REQUESTS;
    // A session is a change, although its request has the form of a read.
    let opens = status == StatusCode::SWITCHING_PROTOCOLS;
    let changes =
        caller.is_some() && !(reads || limited || route == SUBMIT_ROUTE || route == STEPS_ROUTE);
    refused || opens || changes
}

fn entry<B>(answer: &Answer<B>, peer: Option<&Peer>, caller: Option<&Principal>) -> AuditRecord {
    let request = answer.request();
    let route = request.match_pattern();
    AuditRecord {
        principal: caller.map(|caller| Arc::clone(&caller.name)),
        role: caller.map(|caller| caller.role),
        origin: match (caller, peer) {
            (Some(caller), _) => caller.proof.to_string(),
            (None, Some(peer)) => peer.source().to_string(),
            (None, None) => "an unknown connection".to_owned(),
        },
        action: format!("{} {}", request.method(), route.as_deref().unwrap_or("no route")),
        object: request.path().to_owned(),
        status: answer.status().as_u16(),
    }
}

async fn passed<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<Answer<B>, Error> {
    // No clone of the request may be held here: routing needs to be its only owner.
    let answer = next.call(request).await?;
    if answer.status().is_client_error() || answer.status().is_server_error() {
        Ok(as_problem(answer))
    } else {
        Ok(answer.map_into_left_body())
    }
}

fn refused<B>(request: ServiceRequest, refusal: &ApiError) -> Answer<B> {
    let trace_id = trace_id_of(request.request());
    request.into_response(refusal.answer(trace_id).map_into_right_body())
}

/// Exact paths, so that no other spelling is a way around the names of callers.
fn is_health(path: &str) -> bool {
    matches!(path, "/healthz" | "/livez" | "/readyz")
}

/// Returns whether a path reveals nothing of the cluster: the description of the API.
fn is_open(path: &str) -> bool {
    matches!(path, "/openapi.json" | DOCS) || path.starts_with("/docs/")
}

fn route_of(request: &ServiceRequest) -> Cow<'static, str> {
    if request.path() == SUBMIT_ROUTE {
        return Cow::Borrowed(SUBMIT_ROUTE);
    }
    // Paths that no route has share one label: anybody can make up any number of them.
    request.match_pattern().map_or(Cow::Borrowed("none"), Cow::Owned)
}

/// Puts an error into the form that all errors have, and names its trace.
fn as_problem<B: MessageBody + 'static>(answer: ServiceResponse<B>) -> Answer<B> {
    let is_problem = answer
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|media_type| media_type.as_bytes() == PROBLEM_JSON.as_bytes());
    let restated = match answer.response().error() {
        Some(error) => restated(error, answer.status(), answer.request()),
        None if is_problem => return answer.map_into_left_body(),
        None => by_status(answer.status()).answer(trace_id_of(answer.request())),
    };
    answer.into_response(restated.map_into_right_body())
}

fn restated(error: &Error, status: StatusCode, request: &HttpRequest) -> HttpResponse {
    let trace_id = trace_id_of(request);
    match error.as_error::<ApiError>() {
        Some(error) => error.answer(trace_id),
        None => by_status(status).answer(trace_id),
    }
}

fn by_status(status: StatusCode) -> ApiError {
    match status {
        StatusCode::NOT_FOUND => ApiError::NotFound { what: "this path does not exist".to_owned() },
        StatusCode::PAYLOAD_TOO_LARGE => {
            ApiError::TooLarge { limit: super::extract::BODY_BYTES_MAX }
        }
        status if status.is_client_error() => ApiError::from(BadField::new(
            "request",
            "it is not a valid request",
            "a request as /openapi.json describes it",
        )),
        _ => ApiError::Internal,
    }
}

fn trace_id_of(request: &HttpRequest) -> Option<String> {
    let context = request.headers().get("traceparent")?.to_str().ok()?;
    tessera_telemetry::context::is_traceparent(context)
        .then(|| context.split('-').nth(1).map(str::to_owned))
        .flatten()
}

fn harden<B>(answer: &mut Answer<B>) {
    let docs = answer.request().path().starts_with(DOCS);
    let headers = answer.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CROSS_ORIGIN_RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(CONTENT_SECURITY_POLICY, if docs { DOCS_POLICY } else { ANSWERS_POLICY });
    if !docs {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}
