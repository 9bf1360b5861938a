//! Every answer that is not a success, as RFC 9457 has it: what was wrong, and what would be
//! right.

use std::borrow::Cow;

use actix_web::http::StatusCode;
use actix_web::http::header::{ALLOW, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use actix_web::{HttpResponse, ResponseError};
use tessera_api::types::Problem;
use tessera_model::ids::BadId;
use tessera_model::spec::BadField;

use crate::ports::PortError;
use crate::ports::operator::{OperatorRefused, RefusedKind};
use crate::store::StoreError;

/// The media type of problems.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// Pause that clients are asked for when something is missing for a moment.
const RETRY_AFTER_SECS: HeaderValue = HeaderValue::from_static("1");

/// What went wrong with a request: one variant for each stable kind of problem.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The body is no JSON.
    #[error("the body is not valid JSON: {problem}")]
    BadJson {
        /// What the parser met.
        problem: String,
    },
    /// A field, a parameter or a header breaks a rule.
    #[error("{}: {}", .0.field, .0.problem)]
    BadField(BadField),
    /// A field or parameter that there is not.
    #[error("{field}: there is no such field")]
    UnknownField {
        /// Its name.
        field: String,
        /// Which ones there are.
        expected: String,
    },
    /// No GPU that was ever seen could hold the job.
    #[error("no GPU that was ever seen can hold this job: it asks for {asked}")]
    ImpossibleRequest {
        /// The field that asks for it.
        field: &'static str,
        /// What it asks for.
        asked: String,
        /// What would be possible.
        expected: String,
    },
    /// A quota would never let the job start.
    #[error("the quota of {whose} never lets this job start: it asks for {asked}")]
    BeyondQuota {
        /// The field that asks for it.
        field: &'static str,
        /// What it asks for.
        asked: String,
        /// Whose quota.
        whose: String,
        /// What would be possible.
        expected: String,
    },
    /// There is no such thing, or no such route.
    #[error("{what}")]
    NotFound {
        /// What there is not, for people.
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
    /// Something stands in the way that a person can clear.
    #[error("{problem}")]
    Conflict {
        /// What.
        problem: String,
    },
    /// An operator's order is not carried out.
    #[error(transparent)]
    Operator(#[from] OperatorRefused),
    /// The idempotency key was used before for another request.
    #[error("the idempotency key was used before for a different request")]
    KeyReused,
    /// No token, or the wrong one.
    #[error("the request carries no valid bearer token")]
    Unauthorized,
    /// The body is longer than any job may be.
    #[error("the body is longer than {limit} bytes")]
    TooLarge {
        /// The most.
        limit: usize,
    },
    /// The body is said to be something else than JSON.
    #[error("{problem}")]
    UnsupportedMediaType {
        /// What it is said to be, for people.
        problem: String,
    },
    /// The route takes other methods.
    #[error("{method} can't be used on this route")]
    MethodNotAllowed {
        /// What was tried.
        method: String,
        /// What can be used.
        allowed: String,
    },
    /// Something is missing for a while.
    #[error("{reason}")]
    Unavailable {
        /// What, for people.
        reason: String,
    },
    /// More is asked for than can be served now.
    #[error("{reason}")]
    Overloaded {
        /// Of what, for people.
        reason: &'static str,
    },
    /// A defect of ours; its details are in the log.
    #[error("the controller met a defect of its own; its log says more")]
    Internal,
}

impl ApiError {
    /// Says that a parameter is not what it should be.
    pub fn bad_id(field: &str, bad: &BadId) -> Self {
        Self::BadField(BadField::new(
            field,
            format!("{:?} can't be understood", bad.text),
            bad.expected,
        ))
    }

    /// Returns the stable word for the kind, and the kind in words.
    const fn kind(&self) -> (&'static str, &'static str) {
        match self {
            Self::BadJson { .. } => ("bad-json", "The body is not valid JSON"),
            Self::BadField(_) => ("bad-field", "A field breaks a rule"),
            Self::UnknownField { .. } => ("unknown-field", "There is no such field"),
            Self::ImpossibleRequest { .. } | Self::BeyondQuota { .. } => {
                ("impossible-request", "The job could never run")
            }
            Self::NotFound { .. } => ("not-found", "Not found"),
            Self::WrongState { .. } => ("wrong-state", "The job's state doesn't allow it"),
            Self::Conflict { .. } => ("conflict", "Something stands in the way"),
            Self::Operator(refused) => match refused.kind {
                RefusedKind::NotFound => ("not-found", "Not found"),
                RefusedKind::Impossible => ("impossible-request", "The GPU could never do it"),
                RefusedKind::InTheWay => ("conflict", "Something stands in the way"),
                RefusedKind::Changing => ("changing", "It is being changed"),
            },
            Self::KeyReused => ("key-reused", "The idempotency key was used before"),
            Self::Unauthorized => ("unauthorized", "A token is needed"),
            Self::TooLarge { .. } => ("too-large", "The body is too large"),
            Self::UnsupportedMediaType { .. } => {
                ("unsupported-media-type", "The body's type is not supported")
            }
            Self::MethodNotAllowed { .. } => ("method-not-allowed", "Method not allowed"),
            Self::Unavailable { .. } => ("unavailable", "Not available now"),
            Self::Overloaded { .. } => ("overloaded", "Too much to do"),
            Self::Internal => ("internal", "Internal error"),
        }
    }

    fn expected(&self) -> Option<String> {
        let text: Cow<'_, str> = match self {
            Self::BadField(bad) => bad.expected.as_str().into(),
            Self::UnknownField { expected, .. }
            | Self::ImpossibleRequest { expected, .. }
            | Self::BeyondQuota { expected, .. } => expected.as_str().into(),
            Self::WrongState { expected, .. } => expected.as_ref().into(),
            Self::Operator(refused) => return refused.expected.clone(),
            Self::BadJson { .. } => "one JSON object, as /openapi.json describes it".into(),
            Self::KeyReused => "a new key for a new request".into(),
            Self::Unauthorized => "Authorization: Bearer and the controller's token".into(),
            Self::TooLarge { limit } => format!("at most {limit} bytes").into(),
            Self::UnsupportedMediaType { .. } => "Content-Type: application/json".into(),
            Self::MethodNotAllowed { allowed, .. } => allowed.as_str().into(),
            Self::Unavailable { .. } | Self::Overloaded { .. } => "try again later".into(),
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
            _ => None,
        }
    }

    /// Writes the problem, naming the request's trace if it is known.
    pub fn problem(&self, trace_id: Option<String>) -> Problem {
        let (word, title) = self.kind();
        Problem {
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
            Self::Unavailable { .. } | Self::Overloaded { .. } => {
                Some((RETRY_AFTER, RETRY_AFTER_SECS))
            }
            Self::Unauthorized => Some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
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
            Self::ImpossibleRequest { .. } | Self::BeyondQuota { .. } | Self::KeyReused => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            Self::Operator(refused) => match refused.kind {
                RefusedKind::NotFound => StatusCode::NOT_FOUND,
                RefusedKind::Impossible => StatusCode::UNPROCESSABLE_ENTITY,
                RefusedKind::InTheWay | RefusedKind::Changing => StatusCode::CONFLICT,
            },
            Self::NotFound { .. } => StatusCode::NOT_FOUND,
            Self::WrongState { .. } | Self::Conflict { .. } => StatusCode::CONFLICT,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
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

impl From<PortError> for ApiError {
    fn from(error: PortError) -> Self {
        match error {
            PortError::KeyReused => Self::KeyReused,
            PortError::Unavailable { reason } => Self::Unavailable { reason },
            PortError::Overloaded => Self::Overloaded { reason: "too many requests are waiting" },
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::KeyReused => Self::KeyReused,
            StoreError::Unavailable { action, ref cause } => {
                tracing::warn!(action, %cause, "database did not answer a read");
                Self::Unavailable { reason: "the database doesn't answer".to_owned() }
            }
            StoreError::Deposed { .. } => {
                Self::Unavailable { reason: "another controller leads".to_owned() }
            }
            StoreError::SetBack { .. } => Self::Unavailable {
                reason: "the database was set back, stock is being taken".to_owned(),
            },
            StoreError::Moved { .. } | StoreError::Corrupt { .. } => {
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
    fn a_problem_says_what_was_wrong_and_what_would_be_right() {
        let error = ApiError::from(BadField::new("priority", "10 is out of range", "0 to 9"));

        let problem = error.problem(Some("abc".into()));

        assert_eq!(problem.kind, "urn:tessera:problem:bad-field");
        assert_eq!(problem.status, 400);
        assert_eq!(problem.detail, "priority: 10 is out of range");
        assert_eq!(problem.field.as_deref(), Some("priority"));
        assert_eq!(problem.expected.as_deref(), Some("0 to 9"));
    }
}
