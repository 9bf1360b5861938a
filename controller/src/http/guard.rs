//! What is done around every request: the token, the headers, the counting, and the form of
//! errors that the framework makes by itself.

use std::borrow::Cow;
use std::time::Instant;

use actix_web::body::{BoxBody, EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use actix_web::middleware::Next;
use actix_web::{Error, HttpRequest, HttpResponse, web};
use sha2::{Digest, Sha256};
use tessera_model::spec::BadField;

use super::error::{ApiError, PROBLEM_JSON};
use super::metrics;
use super::state::State;

/// The hottest route, known without a search.
const SUBMIT_ROUTE: &str = "/v1/jobs";
/// Where the pages of the documentation lie.
const DOCS: &str = "/docs";

const ANSWERS_POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
const DOCS_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
     frame-ancestors 'none'",
);

type Answer<B> = ServiceResponse<EitherBody<B, BoxBody>>;

/// Lets a request through to its handler, and finishes its answer.
#[expect(clippy::disallowed_methods, reason = "measures how long a request took, for the metrics")]
pub(super) async fn guard<B: MessageBody + 'static>(
    state: web::Data<State>,
    request: ServiceRequest,
    next: Next<B>,
) -> Result<Answer<B>, Error> {
    let began = Instant::now();
    let route = route_of(&request);
    let method = request.method().clone();
    let mut answer = if is_open(request.path()) || carries_token(request.headers(), &state) {
        passed(request, next).await?
    } else {
        refused(request)
    };
    harden(&mut answer);
    metrics::count_request(&route, method.as_str(), answer.status().as_str(), began.elapsed());
    Ok(answer)
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

fn refused<B>(request: ServiceRequest) -> Answer<B> {
    let trace_id = trace_id_of(request.request());
    request.into_response(ApiError::Unauthorized.answer(trace_id).map_into_right_body())
}

/// Only the exact paths that reveal nothing of the cluster are open. All others need the token,
/// so that no other spelling of a path is a way around it.
fn is_open(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/openapi.json" | DOCS) || path.starts_with("/docs/")
}

fn carries_token(headers: &HeaderMap, state: &State) -> bool {
    let Some(expected) = &state.token else { return true };
    let token = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map_or("", |(_, token)| token.trim());
    let given: [u8; 32] = Sha256::digest(token).into();
    // Every byte is looked at, whatever the first difference: the time taken tells nothing.
    given.iter().zip(expected).fold(0, |different, (a, b)| different | (a ^ b)) == 0
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
    headers.insert(CONTENT_SECURITY_POLICY, if docs { DOCS_POLICY } else { ANSWERS_POLICY });
    if !docs {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}
