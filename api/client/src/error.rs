//! Why a request failed.

use std::fmt;

use tessera_api_types::ProblemDetails;

/// Why a call failed, one variant for each thing that a caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is invalid: correct it.
    #[error(
        "{address:?} is not the address of a controller, such as unix:///run/tessera/api.sock or \
         https://gpu.example.org:7070"
    )]
    BadAddress {
        /// What was given.
        address: String,
    },

    /// The authority's file contains no certificate: correct it.
    #[error("the file with the cluster's authority holds no certificate (PEM)")]
    BadAuthority,

    /// Nobody answers there: start the controller, or correct the address.
    #[error(
        "no controller answers at {address} ({reason}); is it running, and is TESSERA_URL \
             right?"
    )]
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// The result of the last try.
        reason: String,
        /// The same, for programs.
        #[source]
        cause: reqwest::Error,
    },

    /// The controller refused: change the request.
    #[error("{}", RefusalText(.0))]
    Refused(Box<ProblemDetails>),

    /// The answer breaks the contract: something else listens there, or versions differ.
    #[error("the answer from {address} is not from a controller of this version: {detail}")]
    Unexpected {
        /// Who answered.
        address: String,
        /// What was wrong with the answer.
        detail: String,
    },
}

impl ClientError {
    /// Returns the HTTP status of a refusal.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused(problem) => Some(problem.status),
            Self::BadAddress { .. }
            | Self::BadAuthority
            | Self::Unreachable { .. }
            | Self::Unexpected { .. } => None,
        }
    }
}

/// A problem as a sentence: what was wrong, what would be right, where to read more.
struct RefusalText<'a>(&'a ProblemDetails);

impl fmt::Display for RefusalText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProblemDetails { title, detail, field, expected, trace_id, .. } = self.0;
        match (detail.is_empty(), field) {
            (true, _) => f.write_str(title)?,
            (false, Some(field)) if !detail.contains(field.as_str()) => {
                write!(f, "{field}: {detail}")?;
            }
            (false, _) => f.write_str(detail)?,
        }
        if let Some(expected) = expected
            && !detail.contains(expected.as_str())
        {
            write!(f, "; expected {expected}")?;
        }
        if let Some(trace) = trace_id {
            write!(f, " (trace {trace})")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem() -> ProblemDetails {
        ProblemDetails {
            kind: "urn:tessera:problem:bad-field".into(),
            title: "a field breaks a rule".into(),
            status: 422,
            detail: "10 is out of range".into(),
            field: Some("priority".into()),
            expected: Some("0 (highest) to 9 (lowest)".into()),
            trace_id: None,
        }
    }

    #[test]
    fn a_refusal_names_the_field_and_what_would_be_right() {
        let text = ClientError::Refused(Box::new(problem())).to_string();

        assert_eq!(text, "priority: 10 is out of range; expected 0 (highest) to 9 (lowest)");
    }

    #[test]
    fn a_refusal_without_details_shows_its_title() {
        let bare =
            ProblemDetails { detail: String::new(), field: None, expected: None, ..problem() };

        assert_eq!(ClientError::Refused(Box::new(bare)).to_string(), "a field breaks a rule");
    }
}
