//! The agent's HTTP server: its metrics, and whether it is alive. Off
//! unless an address is given; it serves nothing that would require a token.

use std::net::TcpListener;
use std::time::Duration;

use actix_web::dev::Server;
use actix_web::web::{self, Data};
use actix_web::{App, HttpResponse, HttpServer};
use tessera_telemetry::exposition::Exposition;

use crate::kernel::SharedNumbers;
use crate::telemetry::SharedTelemetry;
use crate::telemetry::health::NodeHealth;
use crate::telemetry::metrics;

/// How long a client may take to send a request's head.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of connections at once: a few collectors'.
const CONNECTIONS_MAX: usize = 32;

/// Serves until the agent ends.
///
/// # Errors
///
/// The system's error about the listener.
pub fn serve(
    listener: TcpListener,
    node: String,
    shared: SharedTelemetry,
    kernels: Option<SharedNumbers>,
    health: NodeHealth,
) -> std::io::Result<Server> {
    let source = Data::new(MetricsSource { node, shared, kernels, health });
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

/// The sources of the metrics.
struct MetricsSource {
    node: String,
    shared: SharedTelemetry,
    kernels: Option<SharedNumbers>,
    health: NodeHealth,
}

async fn prometheus(source: Data<MetricsSource>) -> HttpResponse {
    let MetricsSource { node, shared, kernels, health } = &**source;
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
