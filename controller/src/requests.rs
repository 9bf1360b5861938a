//! What HTTP handlers request of the store and of the placer, and why a request is refused.

use std::sync::Arc;

use crate::principal::Role;
use tessera_model::JobId;
use tessera_model::spec::JobSpec;

/// A submit that has passed every check.
#[derive(Debug)]
pub struct NewSubmission {
    /// What to run.
    pub spec: Arc<JobSpec>,
    /// How many tasks: 1 for a single job.
    pub tasks: u32,
    /// Index of the first task; `None` for a single job.
    pub array_first: Option<u32>,
    /// Whether it waits for a release.
    pub hold: bool,
    /// The client's key and the SHA-256 of its request, if it gave one.
    pub idempotency: Option<Idempotency>,
    /// W3C trace context of the request.
    pub traceparent: Option<String>,
    /// Who submits it: its user, or an operator who acts for its user. Keys are unique for each.
    pub principal: Arc<str>,
    /// The role of who submits it.
    pub role: Role,
    /// What proved that name, and from where.
    pub origin: String,
}

/// What makes a repeated submit harmless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// The client's key.
    pub key: String,
    /// SHA-256 of the request's body.
    pub body_hash: [u8; 32],
}

/// A submit that is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptedSubmission {
    /// Number of the first (or only) job.
    pub job: JobId,
    /// How many tasks.
    pub tasks: u32,
    /// Whether it was committed by an earlier request with the same key.
    pub replayed: bool,
}

/// Why a submit or a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The key was used before for another request.
    #[error("the idempotency key was used before for a different request")]
    KeyReused,
    /// The database doesn't answer, or another controller leads: try again later.
    #[error("{reason}")]
    Unavailable {
        /// What is missing, for people.
        reason: String,
    },
    /// More requests are waiting than can be held: try again later.
    #[error("too many requests are waiting")]
    Overloaded,
}
