use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{env, io};

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::format::WithTraceId;

/// How long the last spans may take to reach the collector when a program ends.
const FLUSH_WITHIN: Duration = Duration::from_secs(3);

/// The default log filter.
const DEFAULT_LOG: &str = "info";

/// Of libraries that are at work all the time only their troubles are logged, unless somebody
/// names them.
const QUIET: &str = "hyper=warn,reqwest=warn,h2=warn,opentelemetry=warn,actix_server=warn";

static EXPORTING: AtomicBool = AtomicBool::new(false);

/// Why logs and traces could not be set up. All are mistakes in the environment, save the last.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// `TESSERA_LOG` or `RUST_LOG` can't be understood.
    #[error("{variable}={text:?} is no log filter, such as info or tessera_controller=debug")]
    Filter {
        /// Which of the two.
        variable: &'static str,
        /// Its event.
        text: String,
        /// Where it goes wrong.
        #[source]
        cause: ParseError,
    },

    /// `TESSERA_LOG_FORMAT` names no format.
    #[error("TESSERA_LOG_FORMAT={text:?} is no log format; it is text or json")]
    Format {
        /// Its event.
        text: String,
    },

    /// The exporter's settings can't be used.
    #[error("failed to set up the trace exporter for OTEL_EXPORTER_OTLP_ENDPOINT")]
    Exporter(#[source] ExporterBuildError),

    /// The process has set up its logs before.
    #[error("logs are set up already")]
    Twice(#[source] TryInitError),
}

/// Keeps traces flowing; its end sends the last spans.
///
/// Dropping it may block for three seconds: let it live until `main` ends, outside of any
/// async runtime.
#[derive(Debug)]
#[must_use = "dropping it ends the traces"]
pub struct TelemetryGuard {
    provider: SdkTracerProvider,
}

impl TelemetryGuard {
    /// Sends what has not been sent yet, for three seconds at most. Blocks: call it off
    /// the async threads.
    pub fn flush(&self) {
        if let Err(error) = self.provider.force_flush() {
            tracing::warn!(%error, "last spans not sent");
        }
    }
}

impl Drop for TelemetryGuard {
    fn drop(&mut self) {
        EXPORTING.store(false, Ordering::Relaxed);
        // An unreachable collector is no reason to report an error at exit.
        let _ = self.provider.shutdown_with_timeout(FLUSH_WITHIN);
    }
}

/// Returns whether spans are sent to a collector. Where they are not, a hot path may save the
/// microsecond that a span costs and call [`crate::context::new_traceparent`] instead.
pub fn exporting() -> bool {
    EXPORTING.load(Ordering::Relaxed)
}

/// Sets up logs and traces of this process.
///
/// Logs go to standard error: filtered by `TESSERA_LOG`, else `RUST_LOG`, else `info`; as text,
/// or as JSON where `TESSERA_LOG_FORMAT=json`. Traces go to the collector that
/// `OTEL_EXPORTER_OTLP_ENDPOINT` names (OTLP over HTTP), nowhere without it. The other standard
/// variables hold as well: `OTEL_SERVICE_NAME` (by default `service`), `OTEL_TRACES_SAMPLER`,
/// `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_BSP_…`, `OTEL_SDK_DISABLED`.
///
/// # Errors
///
/// [`InitError`] reports which variable is wrong.
pub fn init(service: &'static str) -> Result<TelemetryGuard, InitError> {
    // The exporter's HTTP client takes the process's provider, also where it encrypts nothing. A second call
    // in one process finds it there already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let provider = tracer_provider(service)?;
    let spans = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer(service))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(exported());

    let registry = tracing_subscriber::registry().with(spans);
    let filter = log_filter()?;
    match env::var("TESSERA_LOG_FORMAT").as_deref() {
        Ok("json") => {
            let format = WithTraceId::json(fmt::format().json().flatten_event(true));
            let lines = fmt::layer()
                .json()
                .with_writer(io::stderr)
                .event_format(format)
                .with_filter(filter);
            registry.with(lines).try_init()
        }
        Ok("text" | "") | Err(_) => {
            let coloured = io::stderr().is_terminal();
            let lines = fmt::layer()
                .with_ansi(coloured)
                .with_writer(io::stderr)
                .event_format(WithTraceId::text(fmt::format().with_ansi(coloured)))
                .with_filter(filter);
            registry.with(lines).try_init()
        }
        Ok(text) => return Err(InitError::Format { text: text.to_owned() }),
    }
    .map_err(InitError::Twice)?;

    opentelemetry::global::set_tracer_provider(provider.clone());
    Ok(TelemetryGuard { provider })
}

/// The SDK reads sampler, limits, queue lengths and resource attributes from the environment by
/// itself. Its queue is bounded, and a full one drops spans instead of making anyone wait.
fn tracer_provider(service: &'static str) -> Result<SdkTracerProvider, InitError> {
    let builder = SdkTracerProvider::builder().with_resource(resource(service));
    if !is_export_configured() {
        return Ok(builder.build());
    }
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .build()
        .map_err(InitError::Exporter)?;
    EXPORTING.store(true, Ordering::Relaxed);
    Ok(builder.with_batch_exporter(exporter).build())
}

fn is_export_configured() -> bool {
    let set = |name| env::var(name).is_ok_and(|value| !value.is_empty());
    let is_value = |name, word| env::var(name).is_ok_and(|value| value.eq_ignore_ascii_case(word));
    (set("OTEL_EXPORTER_OTLP_ENDPOINT") || set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
        && !is_value("OTEL_SDK_DISABLED", "true")
        && !is_value("OTEL_TRACES_EXPORTER", "none")
}

fn resource(service: &'static str) -> Resource {
    let named = env::var("OTEL_SERVICE_NAME").is_ok_and(|name| !name.is_empty())
        || env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|list| list.contains("service.name="));
    let builder = Resource::builder()
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("process.pid", i64::from(std::process::id())));
    if named { builder.build() } else { builder.with_service_name(service).build() }
}

/// Spans of the exporter's own crates are left out, or it would trace itself forever.
fn exported() -> Targets {
    ["hyper", "reqwest", "h2", "opentelemetry", "actix_http", "actix_server", "quinn"]
        .into_iter()
        .fold(Targets::new().with_default(LevelFilter::INFO), |targets, silent| {
            targets.with_target(silent, LevelFilter::OFF)
        })
}

fn log_filter() -> Result<EnvFilter, InitError> {
    for variable in ["TESSERA_LOG", "RUST_LOG"] {
        if let Ok(text) = env::var(variable)
            && !text.is_empty()
        {
            return EnvFilter::builder().parse(&text).map_err(|cause| InitError::Filter {
                variable,
                text,
                cause,
            });
        }
    }
    Ok(EnvFilter::new(format!("{QUIET},{DEFAULT_LOG}")))
}
