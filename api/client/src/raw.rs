//! Pages as they are, for tools that only pass them on.

use super::http::ApiCall;
use super::{ApiClient, ClientError};

impl ApiClient {
    /// Returns the text of any page that takes `GET`, such as `metrics` or `v1/layouts?limit=5`.
    ///
    /// # Errors
    ///
    /// As for every other page.
    pub async fn page(&self, path: &str) -> Result<String, ClientError> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let mut call = ApiCall::get(path);
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            call = call.query(name, value);
        }
        self.http.text(call).await
    }
}
