//! Problem details (RFC 9457) of every response that is not a success: what was wrong, what was
//! expected.

use std::borrow::Cow;

use actix_web::http::StatusCode;
use actix_web::http::header::{ALLOW, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use actix_web::{HttpResponse, ResponseError};
use tessera_api_types::ProblemDetails;
use tessera_model::ids::BadId;
use tessera_model::spec::BadField;

use crate::requests::RequestError;
use crate::store::StoreError;
use tessera_control::commands::operator::{OperatorRefusal, RefusalKind};

/// The media type of problems.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// How long clients should wait when something is unavailable for a moment.
const RETRY_AFTER_SECS: HeaderValue = HeaderValue::from_static("1");

/// What went wrong with a request: one variant for each stable kind of problem.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The body is not JSON.
    #[error("the body is not valid JSON: {problem}")]
    BadJson {
        /// The parser's message.
        problem: String,
    },
    /// A field, a parameter or a header breaks a rule.
    #[error("{}: {}", .0.field, .0.problem)]
    BadField(BadField),
    /// A field or parameter that does not exist.
    #[error("{field}: this field does not exist")]
    UnknownField {
        /// Its name.
        field: String,
        /// The fields that exist.
        expected: String,
    },
    /// No GPU that ever registered can hold the job.
    #[error("no registered GPU can hold this job: it requests {requested}")]
    ImpossibleRequest {
        /// The field with the request.
        field: &'static str,
        /// What the job requests.
        requested: String,
        /// What would be possible.
        expected: String,
    },
    /// The job is more likely to be late than in time, and its user requested a refusal then.
    #[error("the deadline would probably be missed: {forecast}")]
    LateDeadline {
        /// What is expected.
        forecast: String,
    },
    /// The job exceeds a quota by itself.
    #[error("this job exceeds the quota of {whose}: it requests {requested}")]
    BeyondQuota {
        /// The field with the request.
        field: &'static str,
        /// What the job requests.
        requested: String,
        /// The account or user with the quota.
        whose: String,
        /// What would be possible.
        expected: String,
    },
    /// There is no such thing, or no such route.
    #[error("{what}")]
    NotFound {
        /// A sentence for people.
        what: String,
    },
    /// The job is in a state that doesn't take the command.
    #[error("{problem}")]
    WrongState {
        /// What can't be done, for people.
        problem: String,
        /// What would be right.
        expected: Cow<'static, str>,
    },
    /// Another resource or job prevents it, until an administrator or a job's end clears that.
    #[error("{problem}")]
    Conflict {
        /// A sentence for people.
        problem: String,
    },
    /// An administrator's request was refused.
    #[error(transparent)]
    Operator(#[from] OperatorRefusal),
    /// The idempotency key was used before for another request.
    #[error("the idempotency key was used before for a different request")]
    KeyReused,
    /// The caller is not authenticated.
    #[error("{problem}")]
    Unauthorized {
        /// What is missing or wrong.
        problem: String,
    },
    /// The caller may not do this.
    #[error("{problem}")]
    Forbidden {
        /// A sentence for people.
        problem: String,
        /// What would be allowed, or who is.
        expected: String,
    },
    /// The caller takes more than its part.
    #[error("{reason}")]
    RateLimited {
        /// The limit that was reached, for people.
        reason: &'static str,
    },
    /// The body did not arrive in time.
    #[error("the body did not arrive within {secs} seconds")]
    TooSlow {
        /// The deadline.
        secs: u64,
    },
    /// The body is longer than any job may be.
    #[error("the body is longer than {limit} bytes")]
    TooLarge {
        /// The most.
        limit: usize,
    },
    /// The body's media type is not JSON.
    #[error("{problem}")]
    UnsupportedMediaType {
        /// The media type, for people.
        problem: String,
    },
    /// The route takes other methods.
    #[error("this route does not support {method}")]
    MethodNotAllowed {
        /// The request's method.
        method: String,
        /// The supported methods.
        allowed: String,
    },
    /// The service is not available at the moment.
    #[error("{reason}")]
    Unavailable {
        /// The reason, for people.
        reason: String,
    },
    /// There are more requests than can be served now.
    #[error("{reason}")]
    Overloaded {
        /// The limit that was reached, for people.
        reason: &'static str,
    },
    /// A defect of the controller; the details are in its log.
    #[error("an internal error occurred; see the controller's log")]
    Internal,
}

impl ApiError {
    /// Returns the problem of a parameter that can't be parsed.
    pub fn bad_id(field: &str, bad: &BadId) -> Self {
        Self::BadField(BadField::new(field, format!("{:?} is not valid", bad.text), bad.expected))
    }

    /// Returns the stable word of the kind, and its title.
    const fn kind(&self) -> (&'static str, &'static str) {
        match self {
            Self::BadJson { .. } => ("bad-json", "The body is not valid JSON"),
            Self::BadField(_) => ("bad-field", "A field breaks a rule"),
            Self::UnknownField { .. } => ("unknown-field", "The field does not exist"),
            Self::ImpossibleRequest { .. }
            | Self::BeyondQuota { .. }
            | Self::LateDeadline { .. } => ("impossible-request", "The job can never run"),
            Self::NotFound { .. } => ("not-found", "Not found"),
            Self::WrongState { .. } => ("wrong-state", "The job's state does not allow this"),
            Self::Conflict { .. } => ("conflict", "The request conflicts with the current state"),
            Self::Operator(refused) => match refused.kind {
                RefusalKind::NotFound => ("not-found", "Not found"),
                RefusalKind::Impossible => ("impossible-request", "The GPU does not support this"),
                RefusalKind::InTheWay => {
                    ("conflict", "The request conflicts with the current state")
                }
                RefusalKind::Changing => ("changing", "The GPU is being changed"),
            },
            Self::KeyReused => ("key-reused", "The idempotency key was used before"),
            Self::Unauthorized { .. } => ("unauthorized", "The caller is not known"),
            Self::Forbidden { .. } => ("forbidden", "The caller may not do this"),
            Self::RateLimited { .. } => ("rate-limited", "Too many requests from one caller"),
            Self::TooSlow { .. } => ("too-slow", "The body did not arrive in time"),
            Self::TooLarge { .. } => ("too-large", "The body is too large"),
            Self::UnsupportedMediaType { .. } => {
                ("unsupported-media-type", "The body's type is not supported")
            }
            Self::MethodNotAllowed { .. } => ("method-not-allowed", "Method not allowed"),
            Self::Unavailable { .. } => ("unavailable", "Temporarily unavailable"),
            Self::Overloaded { .. } => ("overloaded", "Too many requests"),
            Self::Internal => ("internal", "Internal error"),
        }
    }

    fn expected(&self) -> Option<String> {
        let text: Cow<'_, str> = match self {
            Self::BadField(bad) => bad.expected.as_str().into(),
            Self::UnknownField { expected, .. }
            | Self::ImpossibleRequest { expected, .. }
            | Self::BeyondQuota { expected, .. } => expected.as_str().into(),
            Self::LateDeadline { .. } => {
                "a later deadline, or late = accept to have the job accepted".into()
            }
            Self::WrongState { expected, .. } => expected.as_ref().into(),
            Self::Operator(refused) => return refused.expected.clone(),
            Self::BadJson { .. } => "one JSON object, as /openapi.json describes it".into(),
            Self::KeyReused => "a new key for a new request".into(),
            Self::Unauthorized { .. } => "Authorization: Bearer and a personal token (tessera token create, \
                                          tessera login), or the controller's Unix socket, which needs none"
                .into(),
            Self::Forbidden { expected, .. } => expected.as_str().into(),
            Self::TooSlow { .. } => "the whole body at once".into(),
            Self::TooLarge { limit } => format!("at most {limit} bytes").into(),
            Self::UnsupportedMediaType { .. } => "Content-Type: application/json".into(),
            Self::MethodNotAllowed { allowed, .. } => allowed.as_str().into(),
            Self::Unavailable { .. } | Self::Overloaded { .. } | Self::RateLimited { .. } => {
                "try again later".into()
            }
            Self::NotFound { .. } | Self::Conflict { .. } | Self::Internal => return None,
        };
        Some(text.into_owned())
    }

    fn field(&self) -> Option<String> {
        match self {
            Self::BadField(bad) => Some(bad.field.clone()),
            Self::UnknownField { field, .. } => Some(field.clone()),
            Self::ImpossibleRequest { field, .. } | Self::BeyondQuota { field, .. } => {
                Some((*field).to_owned())
            }
            Self::LateDeadline { .. } => Some("deadline".to_owned()),
            _ => None,
        }
    }

    /// Writes the problem, naming the request's trace if it is known.
    pub fn problem(&self, trace_id: Option<String>) -> ProblemDetails {
        let (word, title) = self.kind();
        ProblemDetails {
            kind: format!("urn:tessera:problem:{word}"),
            title: title.to_owned(),
            status: self.status_code().as_u16(),
            detail: self.to_string(),
            field: self.field(),
            expected: self.expected(),
            trace_id,
        }
    }

    /// Answers with the problem.
    pub fn answer(&self, trace_id: Option<String>) -> HttpResponse {
        let mut answer = HttpResponse::build(self.status_code());
        answer.content_type(PROBLEM_JSON);
        if let Some(header) = self.header() {
            answer.insert_header(header);
        }
        answer.body(serde_json::to_vec(&self.problem(trace_id)).unwrap_or_default())
    }

    fn header(&self) -> Option<(HeaderName, HeaderValue)> {
        match self {
            Self::Unavailable { .. } | Self::Overloaded { .. } | Self::RateLimited { .. } => {
                Some((RETRY_AFTER, RETRY_AFTER_SECS))
            }
            Self::Unauthorized { .. } => {
                Some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")))
            }
            Self::MethodNotAllowed { allowed, .. } => {
                HeaderValue::from_str(allowed).ok().map(|allowed| (ALLOW, allowed))
            }
            _ => None,
        }
    }
}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        match self {
            Self::BadJson { .. } | Self::BadField(_) | Self::UnknownField { .. } => {
                StatusCode::BAD_REQUEST
            }
            Self::ImpossibleRequest { .. }
            | Self::BeyondQuota { .. }
            | Self::LateDeadline { .. }
            | Self::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Operator(refused) => match refused.kind {
                RefusalKind::NotFound => StatusCode::NOT_FOUND,
                RefusalKind::Impossible => StatusCode::UNPROCESSABLE_ENTITY,
                RefusalKind::InTheWay | RefusalKind::Changing => StatusCode::CONFLICT,
            },
            Self::NotFound { .. } => StatusCode::NOT_FOUND,
            Self::WrongState { .. } | Self::Conflict { .. } => StatusCode::CONFLICT,
            Self::Unauthorized { .. } => StatusCode::UNAUTHORIZED,
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::RateLimited { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::TooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Unavailable { .. } | Self::Overloaded { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn error_response(&self) -> HttpResponse {
        self.answer(None)
    }
}

impl From<BadField> for ApiError {
    fn from(bad: BadField) -> Self {
        Self::BadField(bad)
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::KeyReused => Self::KeyReused,
            RequestError::Unavailable { reason } => Self::Unavailable { reason },
            RequestError::Overloaded => {
                Self::Overloaded { reason: "too many requests are waiting" }
            }
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::KeyReused => Self::KeyReused,
            StoreError::Unavailable { action, ref cause } => {
                tracing::warn!(action, %cause, "database did not answer a read");
                Self::Unavailable { reason: "the database does not respond".to_owned() }
            }
            StoreError::Deposed { .. } => {
                Self::Unavailable { reason: "another controller leads".to_owned() }
            }
            StoreError::RolledBack { .. } => Self::Unavailable {
                reason: "the database was rolled back; placement is on hold until old leases have expired".to_owned(),
            },
            StoreError::Conflict { .. } | StoreError::Corrupt { .. } => {
                tracing::error!(%error, "read failed");
                Self::Internal
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_what_was_wrong_and_what_was_expected() {
        let error = ApiError::from(BadField::new("priority", "10 is out of range", "0 to 9"));

        let problem = error.problem(Some("abc".into()));

        assert_eq!(problem.kind, "urn:tessera:problem:bad-field");
        assert_eq!(problem.status, 400);
        assert_eq!(problem.detail, "priority: 10 is out of range");
        assert_eq!(problem.field.as_deref(), Some("priority"));
        assert_eq!(problem.expected.as_deref(), Some("0 to 9"));
    }
}
