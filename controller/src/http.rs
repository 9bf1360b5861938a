//! The REST API: parses at the edge, reads from the store, commands what runs behind the ports.

pub mod access;
mod audit;
mod browsers;
mod change_log;
mod cluster;
mod cluster_events;
mod commands;
mod dependency;
mod doctor;
mod endings;
mod error;
mod explain;
mod extract;
mod figures;
mod gpu_names;
mod guard;
mod health;
mod history;
mod identity;
mod jobs;
mod kernel_routes;
mod layouts;
mod limits;
mod live;
mod logs;
mod memory;
pub mod metrics;
mod node_certificates;
mod openapi;
mod overrides;
mod power;
mod predictions;
mod records;
mod report;
mod routes;
mod series;
mod sessions;
mod state;
mod steps;
mod submit;
mod tokens;
mod usage;
mod wait;
mod watch;

use std::time::Duration;

use actix_web::dev::Server;
use actix_web::middleware::from_fn;
use actix_web::{App, HttpServer, web};

pub use self::error::ApiError;
pub use self::metrics::registry;
use self::state::State;
use crate::connections::ConnectionCaps;
use crate::listeners::{self, Listeners};
use crate::ports::Ports;

/// How long an idle connection is kept: longer than clients' pauses, shorter than a firewall's
/// timeout.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// How long a client may take to send a request's head.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// How long a closing connection may linger.
const DISCONNECT_WITHIN: Duration = Duration::from_secs(1);
/// How long requests that are under way may take when the server stops.
const STOP_WITHIN_SECS: u64 = 2;
/// Connections from one source: a proxy or a machine with many users has fewer.
const CONNECTIONS_EACH_MAX: usize = 1_024;
/// Below two, one slow answer would hold up everybody.
const WORKERS_MIN: usize = 2;

/// Serves the API on the given listeners until the server is stopped.
///
/// # Errors
///
/// What the system reports about the listeners.
pub fn serve(ports: Ports, on: Listeners) -> std::io::Result<Server> {
    let state = web::Data::new(State::new(ports));
    let workers = std::thread::available_parallelism().map_or(WORKERS_MIN, usize::from);
    let app = move || routes::route(App::new().app_data(state.clone()).wrap(from_fn(guard::guard)));
    // The other half of the files is for the database, the nodes and outputs.
    let all = listeners::open_files_max() / 2;
    let caps = ConnectionCaps::new(all, CONNECTIONS_EACH_MAX.min(all.div_ceil(2)));
    let Listeners { unix, tcp, tls, unread_for, job_calls } = on;
    let unread_for = unread_for.unwrap_or(listeners::UNREAD_FOR);
    let mut server = HttpServer::new(app)
        .workers(workers.max(WORKERS_MIN))
        .keep_alive(KEEP_ALIVE)
        .client_request_timeout(REQUEST_WITHIN)
        .client_disconnect_timeout(DISCONNECT_WITHIN)
        // A client that disconnects ends its request: no wait for a job outlives its client.
        .h1_allow_half_closed(false)
        .tcp_nodelay(true)
        .shutdown_timeout(STOP_WITHIN_SECS)
        .disable_signals()
        // Before any listener: a connection without a recorded peer is not served.
        .on_connect(move |connection, data| {
            identity::note_peer(&caps, unread_for, job_calls.as_ref(), connection, data);
        });
    for listener in unix {
        server = server.listen_uds(listener)?;
    }
    for listener in tcp {
        server = match &tls {
            Some(tls) => server.listen_rustls_0_23(listener, tls.clone())?,
            None => server.listen(listener)?,
        };
    }
    Ok(server.run())
}

/// Describes the API, as OpenAPI 3.1.
pub fn openapi() -> utoipa::openapi::OpenApi {
    openapi::OPENAPI.clone()
}
