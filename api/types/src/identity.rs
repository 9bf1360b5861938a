//! Who calls: the caller's own name, personal tokens, and the log of what callers did.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};

/// The caller, as the controller knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhoAmI {
    /// Name of the account that the caller acts as.
    pub user: String,
    /// `metrics`, `user`, `operator` or `admin`.
    pub role: String,
    /// What proves the name: `socket`, `token`, or `oidc` for a token of the configured issuer.
    pub proof: String,
    /// Members of the accounts that the user coordinates: their jobs count as the user's own.
    #[serde(default)]
    pub coordinates: Vec<String>,
}

/// A personal token to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// What its user calls it, such as the machine that it is for: 1 to 64 bytes on one line.
    pub name: String,
    /// `metrics`, `user`, `operator` or `admin`, at most the caller's own; by default `user`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The user that it belongs to; only administrators create tokens for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// How long it is valid, in seconds: at least 60, at most 366 days; by default 90 days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_secs: Option<u64>,
}

/// A personal token. Its secret is not kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// Its public part, by which it is revoked.
    pub id: String,
    /// What its user calls it.
    pub name: String,
    /// The user that it belongs to.
    pub user: String,
    /// What it may do: `metrics`, `user`, `operator` or `admin`.
    pub role: String,
    /// Who created it.
    pub created_by: String,
    /// When it was created.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it expires.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
    /// When it was last used, to the minute.
    #[serde(with = "time::serde::rfc3339::option")]
    pub last_used_at: Option<OffsetDateTime>,
    /// When it was revoked.
    #[serde(with = "time::serde::rfc3339::option")]
    pub revoked_at: Option<OffsetDateTime>,
}

/// A new token with its secret, which is shown only here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// The token without its secret part.
    pub token: TokenView,
    /// The secret: `Authorization: Bearer` and this.
    pub secret: String,
}

/// Personal tokens, newest first; at most 1,000.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// The tokens, including those that have expired or were revoked.
    pub items: Vec<TokenView>,
}

/// One entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Its number, which rises with time.
    pub entry: u64,
    /// When it was recorded.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Who called; absent if the caller could not prove a name.
    pub principal: Option<String>,
    /// The caller's role.
    pub role: Option<String>,
    /// What proved the name, and from where the call came.
    pub origin: String,
    /// Method and route, such as `POST /v1/jobs/{job}/cancel`.
    pub action: String,
    /// The path that was called. For accepted submits, the paths of their jobs, such as
    /// `/v1/jobs/17-24,30`.
    pub object: String,
    /// The HTTP status of the response.
    pub status: u16,
}

/// A page of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    /// The entries, newest first.
    pub items: Vec<AuditEntry>,
    /// Give it as `cursor` to get the next page; absent on the last.
    pub next_cursor: Option<String>,
}

/// Which entries of the audit log a page contains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct AuditFilter {
    /// Only calls of this user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Number of entries to return: 1 to 1,000, by default 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}
