//! Nodes' certificates and the authority that signs them: invitations, revocation, replacement.

use std::time::Duration;

use actix_web::web::{Data, Json};
use actix_web::{HttpResponse, get, post};
use serde::Deserialize;
use tessera_api_types::{
    AuthorityView, FormerAuthorityView, InvitationRequest, NodeCertificateList, NodeInvitation,
    NodeRevoked, RotationRequest,
};
use tessera_model::NodeName;
use tessera_model::spec::BadField;
use tessera_wire::authority::{AuthorityFacts, RotateError};
use tessera_wire::kernel_identity::to_hex;

use super::error::ApiError;
use super::extract::{JsonBody, Named, Params};
use super::identity::Caller;
use super::openapi::{BodyProblems, ChangeProblems, LookupProblems, NodePath, Problems};
use super::state::State;
use crate::node_certificates::{CertificateError, Invitation, moment};

/// How long an invitation is valid by default: as long as it takes to log in to the machine.
const INVITED_SECS: u64 = 900;
/// Longest time that an invitation is valid.
const INVITED_SECS_MAX: u64 = 86_400;
/// How long a replaced authority is trusted by default.
const FORMER_SECS: u64 = 7 * 86_400;
/// Longest time that a replaced authority is trusted.
const FORMER_SECS_MAX: u64 = 90 * 86_400;

/// Invites a machine to join the cluster as a node. The token is returned only here, and is
/// accepted once.
///
/// A name that a node had before may be invited again: it keeps its history, and gets a new certificate.
#[utoipa::path(
    tag = "operators",
    operation_id = "invite_node",
    params(NodePath),
    request_body = InvitationRequest,
    responses(
        (status = 201, description = "The invitation.", body = NodeInvitation),
        Problems, LookupProblems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/nodes/{name}/invite")]
pub(super) async fn invite_node(
    caller: Caller,
    name: Named<NodeName>,
    body: JsonBody,
    state: Data<State>,
) -> Result<HttpResponse, ApiError> {
    let InvitationRequest { valid_secs } = body.parse()?;
    let valid = seconds("valid_secs", valid_secs, INVITED_SECS, INVITED_SECS_MAX)?;
    let certificates = &state.ports.certificates;
    let invited = certificates.invite(name.0.clone(), caller.name.to_string(), valid).await;
    let Invitation { token, expires_at } = invited.map_err(refused)?;
    Ok(HttpResponse::Created().json(NodeInvitation {
        node: name.0.to_string(),
        command: certificates.command(&token),
        controller: certificates.address().to_owned(),
        authority: to_hex(&token.authority().0),
        token: token.text().to_owned(),
        expires_at,
    }))
}

/// Revokes all certificates of a node: it is disconnected at once, and can join again only with
/// another invitation. Its jobs end with its lease.
#[utoipa::path(
    tag = "operators",
    operation_id = "revoke_node",
    params(NodePath),
    responses(
        (status = 200, description = "They are revoked.", body = NodeRevoked),
        Problems, LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/nodes/{name}/revoke")]
pub(super) async fn revoke_node(
    caller: Caller,
    name: Named<NodeName>,
    state: Data<State>,
) -> Result<Json<NodeRevoked>, ApiError> {
    let revoked = state.ports.certificates.revoke(name.0.clone(), caller.name.to_string()).await?;
    let node = name.0.to_string();
    match revoked {
        Some(certificates) => Ok(Json(NodeRevoked { node, certificates })),
        None => Err(ApiError::NotFound { what: format!("there is no node {node}") }),
    }
}

/// Which certificates to list.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CertificateFilter {
    /// Only those of the node with this name.
    #[param(pattern = "^[A-Za-z0-9][A-Za-z0-9.-]{0,62}$")]
    node: Option<String>,
}

/// Lists nodes' certificates, newest first.
#[utoipa::path(
    tag = "operators",
    operation_id = "list_node_certificates",
    params(CertificateFilter),
    responses((status = 200, description = "The certificates.", body = NodeCertificateList), Problems),
    security(("bearer" = [])),
)]
#[get("/node-certificates")]
pub(super) async fn list_node_certificates(
    _caller: Caller,
    filter: Params<CertificateFilter>,
    state: Data<State>,
) -> Result<Json<NodeCertificateList>, ApiError> {
    let node = filter.0.node;
    if let Some(name) = &node
        && name.parse::<NodeName>().is_err()
    {
        let problem = format!("{name:?} is not the name of a node");
        return Err(BadField::new("node", problem, "the name of a node, such as node-a").into());
    }
    Ok(Json(NodeCertificateList { items: state.ports.certificates.list(node).await? }))
}

/// Shows the authority that signs certificates, with what clients need to trust it.
#[utoipa::path(
    tag = "cluster",
    operation_id = "show_authority",
    responses(
        (status = 200, description = "The authority.", body = AuthorityView),
        Problems, ChangeProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/authority")]
pub(super) async fn show_authority(
    _caller: Caller,
    state: Data<State>,
) -> Result<Json<AuthorityView>, ApiError> {
    state.ports.certificates.authority().map(|facts| Json(view(facts))).map_err(refused)
}

/// Replaces the authority by a new one. Both are trusted for some time. Meanwhile, connected nodes
/// get certificates of the new one by themselves, and jobs continue to run.
#[utoipa::path(
    tag = "operators",
    operation_id = "rotate_authority",
    request_body = RotationRequest,
    responses(
        (status = 200, description = "The new authority signs from now on.", body = AuthorityView),
        Problems, ChangeProblems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/authority/rotate")]
pub(super) async fn rotate_authority(
    _caller: Caller,
    body: JsonBody,
    state: Data<State>,
) -> Result<Json<AuthorityView>, ApiError> {
    let RotationRequest { trust_former_secs } = body.parse()?;
    let trusted = seconds("trust_former_secs", trust_former_secs, FORMER_SECS, FORMER_SECS_MAX)?;
    if state.epoch() == 0 {
        let reason = "only the controller that leads replaces the authority".to_owned();
        return Err(ApiError::Unavailable { reason });
    }
    let facts = state.ports.certificates.rotate(trusted).await.map_err(refused)?;
    Ok(Json(view(facts)))
}

fn seconds(
    field: &'static str,
    given: Option<u64>,
    default: u64,
    most: u64,
) -> Result<Duration, BadField> {
    match given.unwrap_or(default) {
        secs if (1..=most).contains(&secs) => Ok(Duration::from_secs(secs)),
        secs => Err(BadField::new(
            field,
            format!("{secs} is out of range"),
            format!("1 to {most} seconds"),
        )),
    }
}

fn view(facts: AuthorityFacts) -> AuthorityView {
    AuthorityView {
        fingerprint: to_hex(&facts.fingerprint.0),
        expires_at: moment(facts.expires),
        former: facts.former.map(|(fingerprint, until)| FormerAuthorityView {
            fingerprint: to_hex(&fingerprint.0),
            trusted_until: moment(until),
        }),
        certificates: facts.certificates,
    }
}

fn refused(error: CertificateError) -> ApiError {
    let conflict = |problem: String, expected: &'static str| ApiError::WrongState {
        problem,
        expected: expected.into(),
    };
    match error {
        CertificateError::Store(error) => error.into(),
        CertificateError::NoAuthority => conflict(
            error.to_string(),
            "identity/ca.key in the data folder of the controller that leads",
        ),
        CertificateError::TooManyInvitations => {
            conflict(error.to_string(), "fewer: wait until some have expired")
        }
        CertificateError::Rotate(RotateError::UnderWay { until }) => ApiError::WrongState {
            problem: "the authority was replaced before, and the former one is still trusted"
                .to_owned(),
            expected: format!("to wait until {}", moment(until)).into(),
        },
        CertificateError::Rotate(RotateError::Tls(_))
        | CertificateError::Tls(_)
        | CertificateError::Revoked => {
            tracing::error!(%error, "a certificate could not be made");
            ApiError::Internal
        }
    }
}
