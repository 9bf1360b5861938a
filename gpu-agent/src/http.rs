//! The agent's HTTP server: its metrics, and whether it is alive. Off unless an address is given.
//!
//! Metrics need a bearer token ([`ScrapeTokens`]), on loopback as well: other accounts of the machine
//! reach that, too. `/healthz` reveals nothing about users and needs none.

use std::io::{self, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use actix_web::dev::Server;
use actix_web::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use actix_web::web::{self, Data};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer};
use rand::TryRngCore as _;
use subtle::ConstantTimeEq as _;
use tessera_telemetry::exposition::Exposition;
use tessera_wire::kernel_identity::to_hex;

use crate::kernel::SharedNumbers;
use crate::telemetry::SharedTelemetry;
use crate::telemetry::health::NodeHealth;
use crate::telemetry::metrics;

/// How long a client may take to send a request's head.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of connections at once: a few collectors'.
const CONNECTIONS_MAX: usize = 32;

/// The name of the file of tokens in the data folder, unless the settings name another file.
pub const TOKEN_FILE: &str = "metrics-token";

/// The tokens that may read the metrics: the lines of a file.
///
/// The file is read at each request, so that a token can be replaced without a restart, and two are valid
/// while it is.
#[derive(Clone, Debug)]
pub struct ScrapeTokens {
    file: PathBuf,
}

impl ScrapeTokens {
    /// Opens the given file, which must have a token. Without one, uses the file in the data folder,
    /// and writes a random token into it if there is none yet.
    ///
    /// # Errors
    ///
    /// The file can't be read or written, or has no token.
    pub fn open(given: Option<&Path>, data: &Path) -> io::Result<Self> {
        let file = given.map_or_else(|| data.join(TOKEN_FILE), Path::to_path_buf);
        // An empty one is what a machine that lost its power left behind.
        let is_written = file.metadata().is_ok_and(|found| found.len() > 0);
        if given.is_none() && !is_written {
            write_random(&file)?;
        }
        let tokens = Self { file };
        if tokens.read()?.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} has no token; write one into its first line", tokens.file.display()),
            ));
        }
        Ok(tokens)
    }

    /// Returns the file of the tokens.
    pub fn file(&self) -> &Path {
        &self.file
    }

    fn read(&self) -> io::Result<Vec<String>> {
        let text = std::fs::read_to_string(&self.file).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.file.display()))
        })?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        Ok(lines.map(str::to_owned).collect())
    }

    /// Returns whether an `Authorization` header has one of the tokens. All are compared in constant time.
    fn accepts(&self, header: &[u8]) -> bool {
        let Some(given) = header.strip_prefix(b"Bearer ") else { return false };
        let tokens = self.read().unwrap_or_else(|error| {
            tracing::warn!(%error, "the tokens of collectors can't be read, so none is accepted");
            Vec::new()
        });
        tokens.iter().fold(false, |found, token| found | bool::from(token.as_bytes().ct_eq(given)))
    }
}

/// Writes a random token of 256 bits, which only the agent's account can read.
fn write_random(file: &Path) -> io::Result<()> {
    let mut bytes = [0_u8; 32];
    rand::rngs::OsRng.try_fill_bytes(&mut bytes).map_err(io::Error::other)?;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(file)?.write_all(format!("{}\n", to_hex(&bytes)).as_bytes())
}

/// Serves until the agent ends.
///
/// # Errors
///
/// The system's error about the listener.
pub fn serve(
    listener: TcpListener,
    tokens: ScrapeTokens,
    node: String,
    shared: SharedTelemetry,
    kernels: Option<SharedNumbers>,
    health: NodeHealth,
) -> std::io::Result<Server> {
    let source = Data::new(MetricsSource { tokens, node, shared, kernels, health });
    let app = move || {
        App::new()
            .app_data(source.clone())
            .route("/metrics", web::get().to(prometheus))
            .route("/healthz", web::get().to(healthz))
    };
    let server = HttpServer::new(app)
        .workers(1)
        .max_connections(CONNECTIONS_MAX)
        .client_request_timeout(REQUEST_WITHIN)
        .shutdown_timeout(0)
        .disable_signals();
    Ok(server.listen(listener)?.run())
}

struct MetricsSource {
    tokens: ScrapeTokens,
    node: String,
    shared: SharedTelemetry,
    kernels: Option<SharedNumbers>,
    health: NodeHealth,
}

async fn prometheus(request: HttpRequest, source: Data<MetricsSource>) -> HttpResponse {
    let MetricsSource { tokens, node, shared, kernels, health } = &**source;
    let header = request.headers().get(AUTHORIZATION);
    if !header.is_some_and(|header| tokens.accepts(header.as_bytes())) {
        return HttpResponse::Unauthorized()
            .insert_header((WWW_AUTHENTICATE, "Bearer"))
            .content_type("text/plain; charset=utf-8")
            .body("send a token of the agent's http_token_file: Authorization: Bearer TOKEN\n");
    }
    let mut metrics = shared.with(|state| metrics::collect(node, state, kernels.as_ref()));
    health.write(&mut metrics, node);
    match metrics.encode() {
        Ok(text) => HttpResponse::Ok().content_type(Exposition::CONTENT_TYPE).body(text),
        Err(error) => {
            tracing::error!(%error, "the metrics can't be encoded");
            HttpResponse::InternalServerError().finish()
        }
    }
}

async fn healthz() -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; charset=utf-8").body("ok\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn without_a_file_of_tokens_a_random_one_is_made_that_only_the_agent_reads() {
        let data = tempfile::tempdir().unwrap();

        let tokens = ScrapeTokens::open(None, data.path()).unwrap();

        let mode = std::fs::metadata(tokens.file()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let token = tokens.read().unwrap().remove(0);
        assert_eq!(token.len(), 64);
        assert!(tokens.accepts(format!("Bearer {token}").as_bytes()));
        let again = ScrapeTokens::open(None, data.path()).unwrap();
        assert_eq!(again.read().unwrap(), [token], "a restart keeps the token");

        std::fs::write(tokens.file(), "").unwrap();
        let reopened = ScrapeTokens::open(None, data.path()).unwrap();
        assert_eq!(reopened.read().unwrap()[0].len(), 64, "an empty file gets another one");
    }

    #[test]
    fn a_token_that_is_replaced_in_the_file_is_refused_at_the_next_request() {
        let data = tempfile::tempdir().unwrap();
        let file = data.path().join("tokens");
        std::fs::write(&file, "old\nnew\n").unwrap();
        let tokens = ScrapeTokens::open(Some(&file), data.path()).unwrap();
        assert!(tokens.accepts(b"Bearer old") && tokens.accepts(b"Bearer new"));

        std::fs::write(&file, "new\n").unwrap();

        assert!(!tokens.accepts(b"Bearer old") && tokens.accepts(b"Bearer new"));
        for wrong in [&b"Bearer ne"[..], b"Bearer newer", b"Bearer ", b"new", b"Basic new", b""] {
            assert!(!tokens.accepts(wrong), "{wrong:?}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(!tokens.accepts(b"Bearer new"), "without the file nobody is let in");
    }

    #[test]
    fn a_given_file_without_a_token_is_an_error_that_names_it() {
        let data = tempfile::tempdir().unwrap();
        let file = data.path().join("tokens");
        std::fs::write(&file, "\n  \n").unwrap();

        let empty = ScrapeTokens::open(Some(&file), data.path()).unwrap_err();
        let missing = ScrapeTokens::open(Some(&data.path().join("no")), data.path()).unwrap_err();

        assert!(empty.to_string().contains("tokens has no token"), "{empty}");
        assert!(missing.to_string().contains("/no: "), "{missing}");
    }
}
