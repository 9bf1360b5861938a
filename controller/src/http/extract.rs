//! Requests' parts, read into types once; whatever is wrong with them names the part at fault.

use std::collections::BTreeMap;
use std::future::{Ready, ready};
use std::str::FromStr;
use std::time::Duration;

use actix_web::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use actix_web::web::{Bytes, Payload, Query};
use actix_web::{FromRequest, HttpRequest, dev};
use futures_util::future::LocalBoxFuture;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tessera_model::ids::BadId;
use tessera_model::spec::BadField;
use tokio::time::timeout;

use super::error::ApiError;

/// Longest body: above the largest job that passes the checks, in any JSON notation of it.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;

/// How long a body may take: a client that sends it byte by byte must not keep a connection
/// forever.
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// A body that is declared as JSON, whole and not longer than [`BODY_BYTES_MAX`].
pub(crate) struct JsonBody(Bytes);

impl JsonBody {
    /// Returns the bytes as they came.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads the body.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        // A list would be taken for the fields in their order, which is never intended.
        if self.0.trim_ascii_start().first() != Some(&b'{') {
            return Err(ApiError::BadJson { problem: "it is not a JSON object".to_owned() });
        }
        serde_json::from_slice(&self.0).map_err(|error| field_at_fault::<T>(&self.0, &error))
    }
}

impl FromRequest for JsonBody {
    type Error = ApiError;
    type Future = LocalBoxFuture<'static, Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, payload: &mut dev::Payload) -> Self::Future {
        let checked = check_head(request);
        let payload = Payload::from_request(request, payload).into_inner();
        Box::pin(async move {
            checked?;
            let cut_short = |_| ApiError::BadJson { problem: "the body was cut short".to_owned() };
            let whole = payload.map_err(cut_short)?.to_bytes_limited(BODY_BYTES_MAX);
            timeout(BODY_WITHIN, whole)
                .await
                .map_err(|_| ApiError::TooSlow { secs: BODY_WITHIN.as_secs() })?
                .map_err(|_| ApiError::TooLarge { limit: BODY_BYTES_MAX })?
                .map(Self)
                .map_err(cut_short)
        })
    }
}

fn check_head(request: &HttpRequest) -> Result<(), ApiError> {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let media_type = header(&CONTENT_TYPE);
    let essence = media_type.map(|text| text.split(';').next().unwrap_or_default().trim());
    if !essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
        return Err(ApiError::UnsupportedMediaType {
            problem: match media_type {
                Some(text) => format!("the body's media type is {text:?}"),
                None => "the request has no Content-Type header".to_owned(),
            },
        });
    }
    let length = header(&CONTENT_LENGTH).and_then(|text| text.parse::<u64>().ok());
    match length.map(usize::try_from) {
        Some(Ok(0..=BODY_BYTES_MAX)) | None => Ok(()),
        Some(_) => Err(ApiError::TooLarge { limit: BODY_BYTES_MAX }),
    }
}

/// Finds out which field made a body unreadable: it is read again, field by field.
fn field_at_fault<T: DeserializeOwned>(body: &[u8], error: &serde_json::Error) -> ApiError {
    let Ok(fields) = serde_json::from_slice::<BTreeMap<String, Value>>(body) else {
        return ApiError::BadJson { problem: error.to_string() };
    };
    // A field that stands alone may make serde miss the others; the fault is the field's.
    let all_optional = serde_json::from_str::<T>("{}").is_ok();
    for (name, value) in fields {
        let alone = Value::Object([(name.clone(), value)].into_iter().collect());
        if let Err(error) = serde_json::from_value::<T>(alone)
            && (all_optional || !error.to_string().starts_with("missing field"))
        {
            return of_field(&name, &error.to_string());
        }
    }
    let text = error.to_string();
    match in_backticks(&text) {
        Some(name) => of_field(name, &text),
        None => ApiError::BadJson { problem: text },
    }
}

/// Turns serde's words on a field into ours.
fn of_field(name: &str, problem: &str) -> ApiError {
    let problem = problem.split(" at line ").next().unwrap_or(problem);
    if let Some(rest) = problem.strip_prefix("unknown field ") {
        let unknown = in_backticks(rest).unwrap_or(name);
        let expected = rest.split_once(", ").map_or("", |(_, expected)| expected);
        let path = if unknown == name { name.to_owned() } else { format!("{name}.{unknown}") };
        return ApiError::UnknownField { field: path, expected: expected.replace('`', "") };
    }
    let (problem, expected) = match problem.split_once(", expected ") {
        Some((problem, expected)) => (problem, expected),
        None => (problem, "see /openapi.json"),
    };
    BadField::new(name, problem.replace('`', ""), expected.replace('`', "")).into()
}

fn in_backticks(text: &str) -> Option<&str> {
    text.split('`').nth(1)
}

/// A query string, read into a type.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest for Params<T> {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut dev::Payload) -> Self::Future {
        let text = request.query_string();
        ready(match Query::<T>::from_query(text) {
            Ok(query) => Ok(Self(query.into_inner())),
            Err(error) => Err(param_at_fault::<T>(text, &error.to_string())),
        })
    }
}

fn param_at_fault<T: DeserializeOwned>(text: &str, whole: &str) -> ApiError {
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let name = pair.split('=').next().unwrap_or(pair);
        if let Err(error) = Query::<T>::from_query(pair) {
            return of_param(name, &error.to_string());
        }
    }
    of_param(in_backticks(whole).unwrap_or("query"), whole)
}

fn of_param(name: &str, problem: &str) -> ApiError {
    let problem = problem.strip_prefix("Query deserialize error: ").unwrap_or(problem);
    of_field(name, problem)
}

/// The one name in a route's path, read into a type.
#[derive(Clone, Debug)]
pub(crate) struct Named<T>(pub(crate) T);

impl<T: FromStr<Err = BadId>> FromRequest for Named<T> {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut dev::Payload) -> Self::Future {
        let mut names = request.match_info().iter();
        let (field, text) = names.next().expect("a route with this part has a name in its path");
        ready(read_id(field, text).map(Self))
    }
}

/// Reads an id that came as text.
pub(crate) fn read_id<T: FromStr<Err = BadId>>(field: &str, text: &str) -> Result<T, ApiError> {
    text.parse().map_err(|bad| ApiError::bad_id(field, &bad))
}

#[cfg(test)]
mod tests {
    use tessera_api_types::{JobFilter, MigModeRequest, SubmitRequest};

    use super::*;

    fn fault<T: DeserializeOwned>(body: &str) -> tessera_api_types::ProblemDetails {
        let error = JsonBody(Bytes::copy_from_slice(body.as_bytes())).parse::<T>();
        error.err().expect("the body is wrong").problem(None)
    }

    #[test]
    fn a_wrong_body_names_the_field_at_fault() {
        for (body, kind, field) in [
            (r#"{"command":["/bin/true"],"prioriti":3}"#, "unknown-field", Some("prioriti")),
            (r#"{"command":["/bin/true"],"priority":"high"}"#, "bad-field", Some("priority")),
            (r#"{"command":["/bin/true"],"priority":-1}"#, "bad-field", Some("priority")),
            (r#"{"command":"/bin/true"}"#, "bad-field", Some("command")),
            (r#"{"array":{"first":0}}"#, "bad-field", Some("array")),
            (r#"{"array":{"first":0,"last":1,"step":2}}"#, "unknown-field", Some("array.step")),
            (r#"{"name":"a","name":"b"}"#, "bad-field", Some("name")),
            (r#"{"name":"a""#, "bad-json", None),
            ("[]", "bad-json", None),
            ("", "bad-json", None),
        ] {
            let problem = fault::<SubmitRequest>(body);

            assert_eq!(problem.kind, format!("urn:tessera:problem:{kind}"), "{body}");
            assert_eq!(problem.field.as_deref(), field, "{body}");
        }
    }

    #[test]
    fn a_missing_field_is_named() {
        assert_eq!(fault::<MigModeRequest>("{}").field.as_deref(), Some("on"));
        assert_eq!(fault::<MigModeRequest>(r#"{"on":1}"#).field.as_deref(), Some("on"));
    }

    #[test]
    fn a_wrong_parameter_is_named() {
        for (query, field) in [
            ("limit=many", "limit"),
            ("user=a&limits=3", "limits"),
            ("limit=1&limit=2", "limit"),
            ("array=-1", "array"),
        ] {
            let error = Query::<JobFilter>::from_query(query).err().unwrap().to_string();
            let problem = param_at_fault::<JobFilter>(query, &error).problem(None);

            assert_eq!(problem.field.as_deref(), Some(field), "{problem:?}");
            assert_eq!(problem.status, 400);
        }
    }
}
