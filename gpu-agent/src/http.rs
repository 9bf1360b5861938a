//! What this node's agent tells programs that ask: its metrics, and whether it is alive. Off
//! unless an address is given; it tells nothing that would need a token.

use std::net::TcpListener;
use std::time::Duration;

use actix_web::dev::Server;
use actix_web::web::{self, Data};
use actix_web::{App, HttpResponse, HttpServer};
use tessera_telemetry::exposition::Exposition;

use crate::kernel::Board;
use crate::telemetry::Shared;
use crate::telemetry::metrics;

/// How long a client may take to send a request's head.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// Most connections at once: a few collectors'.
const CONNECTIONS_MAX: usize = 32;

/// Serves until the agent ends.
///
/// # Errors
///
/// What the system says about the listener.
pub fn serve(
    listener: TcpListener,
    node: String,
    shared: Shared,
    kernels: Option<Board>,
) -> std::io::Result<Server> {
    let source = Data::new((node, shared, kernels));
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

async fn prometheus(source: Data<(String, Shared, Option<Board>)>) -> HttpResponse {
    let (node, shared, kernels) = &**source;
    let text = shared.with(|state| metrics::exposition(node, state, kernels.as_ref()));
    HttpResponse::Ok().content_type(Exposition::CONTENT_TYPE).body(text)
}

async fn healthz() -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; charset=utf-8").body("ok\n")
}
