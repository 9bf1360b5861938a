//! The caller's own name, personal tokens, and the audit log.

use super::http::{ApiCall, segment};
use super::{ApiClient, ClientError};
use tessera_api_types::{
    AuditFilter, AuditPage, TokenCreated, TokenList, TokenRequest, TokenView, WhoAmI,
};

impl ApiClient {
    /// Returns who the caller is to the controller.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 401 if nothing proves the caller's name.
    pub async fn who_am_i(&self) -> Result<WhoAmI, ClientError> {
        self.fetch("v1/whoami").await
    }

    /// Creates a personal token; its secret is returned only here.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] states which tokens the caller may create.
    pub async fn create_token(&self, request: &TokenRequest) -> Result<TokenCreated, ClientError> {
        self.http.json(ApiCall::post("v1/tokens").body(request)).await
    }

    /// Lists personal tokens: the caller's, or for administrators those of a user, or all.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if the caller may not see them.
    pub async fn tokens(&self, user: Option<&str>, all: bool) -> Result<TokenList, ClientError> {
        let call = ApiCall::get("v1/tokens").maybe("user", user);
        self.http.json(call.maybe("all", all.then_some(true))).await
    }

    /// Revokes a personal token.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if the caller has no such token.
    pub async fn revoke_token(&self, id: &str) -> Result<TokenView, ClientError> {
        self.http.json(ApiCall::delete(&format!("v1/tokens/{}", segment(id)))).await
    }

    /// Lists entries of the audit log, newest first.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if the caller is not an administrator.
    pub async fn audit(&self, filter: &AuditFilter) -> Result<AuditPage, ClientError> {
        self.http.json(ApiCall::get("v1/audit").queries(filter)).await
    }
}
