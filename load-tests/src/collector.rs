//! A small OTLP collector that keeps what it receives.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

/// A span, and the service that sent it.
#[derive(Clone, Debug)]
pub struct ReceivedSpan {
    /// The service's name.
    pub service: String,
    /// The span as the collector decoded it.
    pub span: Span,
}

impl ReceivedSpan {
    /// Returns an attribute as text.
    pub fn attribute(&self, name: &str) -> Option<String> {
        attribute(&self.span.attributes, name)
    }
}

/// Returns an attribute as text.
pub fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    attributes.iter().find(|pair| pair.key == name).and_then(|pair| text(pair.value.as_ref()?))
}

/// A collector on a free port.
#[derive(Debug)]
pub struct Collector {
    endpoint: String,
    spans: Arc<Mutex<Vec<ReceivedSpan>>>,
}

impl Collector {
    /// Starts it. It serves until the process ends.
    ///
    /// # Panics
    ///
    /// If no port is free.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("it is bound"));
        let spans = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&spans);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let into = Arc::clone(&into);
                // A peer that closes the connection has nothing more to send.
                thread::spawn(move || serve(stream, &into).ok());
            }
        });
        Self { endpoint, spans }
    }

    /// Returns the value for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// Returns the spans so far.
    ///
    /// # Panics
    ///
    /// Never: nothing panics while it holds the lock.
    pub fn spans(&self) -> MutexGuard<'_, Vec<ReceivedSpan>> {
        self.spans.lock().expect("nothing panics while it holds the lock")
    }
}

fn serve(stream: TcpStream, into: &Mutex<Vec<ReceivedSpan>>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(body) = read_body(&mut stream)? {
        let request = ExportTraceServiceRequest::decode(body.as_slice())?;
        for resource in request.resource_spans {
            let attributes = resource.resource.map(|r| r.attributes).unwrap_or_default();
            let service = attribute(&attributes, "service.name").unwrap_or_default();
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let received = spans.map(|span| ReceivedSpan { service: service.clone(), span });
            into.lock().expect("nothing panics while it holds the lock").extend(received);
        }
        stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
    }
    Ok(())
}

fn read_body(stream: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(Some(body))
}

/// Returns an attribute's type, as OpenTelemetry calls it.
pub fn type_of(pair: &KeyValue) -> &'static str {
    match pair.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(_)) => "string",
        Some(Value::IntValue(_)) => "int",
        Some(Value::DoubleValue(_)) => "double",
        Some(Value::BoolValue(_)) => "bool",
        _ => "other",
    }
}

fn text(value: &AnyValue) -> Option<String> {
    match value.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        Value::DoubleValue(number) => Some(number.to_string()),
        Value::BoolValue(yes) => Some(yes.to_string()),
        other => Some(format!("{other:?}")),
    }
}
