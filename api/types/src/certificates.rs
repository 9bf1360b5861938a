//! Nodes' certificates: invitations to join, what was issued, and the authority that signs.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// The request for an invitation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InvitationRequest {
    /// How long its token is valid, in seconds: 1 to 86,400; by default 900.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_secs: Option<u64>,
}

/// An invitation for one machine, with its token, which is shown only here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeInvitation {
    /// The name that the machine gets.
    pub node: String,
    /// The token, which is accepted once.
    pub token: String,
    /// When the token expires.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
    /// The controller's address for agents, as far as it knows that itself.
    pub controller: String,
    /// SHA-256 of the authority's certificate, in hexadecimal digits. It is part of the token, too.
    pub authority: String,
    /// The command that joins the cluster, to be run on the machine.
    pub command: String,
}

/// One certificate that was issued to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeCertificateView {
    /// Its serial number, in hexadecimal digits.
    pub serial: String,
    /// The node's name.
    pub node: String,
    /// The name of the authority that signed it.
    pub authority: String,
    /// When it was issued.
    #[serde(with = "time::serde::rfc3339")]
    pub issued_at: OffsetDateTime,
    /// When it expires.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
    /// When it was revoked.
    #[serde(with = "time::serde::rfc3339::option")]
    pub revoked_at: Option<OffsetDateTime>,
    /// Who revoked it.
    pub revoked_by: Option<String>,
}

/// Certificates of nodes, newest first; at most 1,000.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeCertificateList {
    /// The certificates that were issued to nodes or presented by them, including revoked ones.
    pub items: Vec<NodeCertificateView>,
}

/// The result of revoking a node's certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeRevoked {
    /// The node's name.
    pub node: String,
    /// How many certificates were valid until now.
    pub certificates: u64,
}

/// The authority of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuthorityView {
    /// SHA-256 of its certificate, in hexadecimal digits.
    pub fingerprint: String,
    /// When it expires.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
    /// The previous authority, while it is still trusted.
    pub former: Option<FormerAuthorityView>,
    /// The certificates of all trusted authorities (PEM), the newest first. `--ca` accepts them.
    pub certificates: String,
}

/// An authority that was replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FormerAuthorityView {
    /// SHA-256 of its certificate, in hexadecimal digits.
    pub fingerprint: String,
    /// Until when it is trusted.
    #[serde(with = "time::serde::rfc3339")]
    pub trusted_until: OffsetDateTime,
}

/// The request to replace the authority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotationRequest {
    /// How long the current authority is trusted along with the new one, in seconds: 1 to
    /// 7,776,000; by default 604,800, which are 7 days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_former_secs: Option<u64>,
}
