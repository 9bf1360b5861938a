//! Nodes' certificates, and the authority that signs them.

use super::http::{ApiCall, segment};
use super::{ApiClient, ClientError};
use tessera_api_types::{
    AuthorityView, InvitationRequest, NodeCertificateList, NodeInvitation, NodeRevoked,
    RotationRequest,
};

impl ApiClient {
    /// Invites a machine to join as a node; the token is returned only here.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if the caller is not an operator.
    pub async fn invite_node(
        &self,
        node: &str,
        request: &InvitationRequest,
    ) -> Result<NodeInvitation, ClientError> {
        let path = format!("v1/nodes/{}/invite", segment(node));
        self.http.json(ApiCall::post(&path).body(request)).await
    }

    /// Revokes all certificates of a node.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there never was such a node.
    pub async fn revoke_node(&self, node: &str) -> Result<NodeRevoked, ClientError> {
        let path = format!("v1/nodes/{}/revoke", segment(node));
        self.http.json(ApiCall::post(&path).body(&serde_json::json!({}))).await
    }

    /// Lists certificates, newest first: of a node, or all.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if the caller is not an operator.
    pub async fn node_certificates(
        &self,
        node: Option<&str>,
    ) -> Result<NodeCertificateList, ClientError> {
        self.http.json(ApiCall::get("v1/node-certificates").maybe("node", node)).await
    }

    /// Returns the authority of the cluster.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if the controller has none.
    pub async fn authority(&self) -> Result<AuthorityView, ClientError> {
        self.fetch("v1/authority").await
    }

    /// Replaces the authority of the cluster.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if it was replaced a short while ago.
    pub async fn rotate_authority(
        &self,
        request: &RotationRequest,
    ) -> Result<AuthorityView, ClientError> {
        self.http.json(ApiCall::post("v1/authority/rotate").body(request)).await
    }
}
