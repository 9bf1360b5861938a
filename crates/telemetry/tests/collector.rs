//! What a collector receives. One test, because a process sets up its logs once.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tessera_telemetry::{context, names};

/// Answers OTLP over HTTP on a free port, and passes on the spans.
fn collect() -> (String, mpsc::Receiver<Span>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (sender, spans) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let sender = sender.clone();
            thread::spawn(move || {
                let mut stream = BufReader::new(stream.unwrap());
                while let Some(body) = read_request(&mut stream) {
                    let request = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
                    let scopes = request.resource_spans.into_iter().flat_map(|r| r.scope_spans);
                    scopes.flat_map(|s| s.spans).for_each(|span| sender.send(span).unwrap());
                    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                    stream.get_mut().write_all(answer.as_bytes()).unwrap();
                }
            });
        }
    });
    (endpoint, spans)
}

fn read_request(stream: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(_) => {}
            None if line.trim_end().is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}

#[test]
fn spans_reach_the_collector_joined_across_processes() {
    let (endpoint, spans) = collect();
    // Sound here: no other thread of this process reads the environment yet.
    unsafe { std::env::set_var("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint) };
    let guard = tessera_telemetry::init("telemetry-test").unwrap();
    assert!(tessera_telemetry::exporting());

    let submit = tracing::info_span!(names::span::SUBMIT, otel.kind = "server");
    let carried = context::traceparent(&submit).unwrap();
    drop(submit);
    let place = tracing::info_span!(names::span::PLACE);
    context::link(&place, &carried);
    context::event(
        &place,
        names::event::CANDIDATE_REJECTED,
        [(names::attribute::REASON, "taken".to_owned())],
    );
    let place_ids = context::traceparent(&place).unwrap();
    drop(place);
    let launch = tracing::info_span!(names::span::LAUNCH);
    context::set_parent(&launch, &carried);
    launch.in_scope(|| tracing::info!("launched"));
    drop(launch);
    context::record(context::FinishedSpan {
        name: names::span::ATTEMPT,
        parent: Some(&carried),
        links: &[&place_ids],
        started: SystemTime::UNIX_EPOCH + Duration::from_secs(100),
        ended: SystemTime::UNIX_EPOCH + Duration::from_secs(250),
        attributes: vec![(names::attribute::JOB_ID, "7".to_owned())],
        problem: None,
    });
    drop(guard);

    let mut got: Vec<Span> = spans.try_iter().collect();
    got.sort_by(|a, b| a.name.cmp(&b.name));
    let [attempt, launch, place, submit] = got.as_slice() else {
        panic!("four spans were made, these arrived: {got:?}");
    };
    assert!(carried.contains(&hex(&submit.trace_id)) && carried.contains(&hex(&submit.span_id)));
    assert_eq!((&launch.trace_id, &launch.parent_span_id), (&submit.trace_id, &submit.span_id));
    assert_eq!((&attempt.trace_id, &attempt.parent_span_id), (&submit.trace_id, &submit.span_id));
    assert_eq!(attempt.end_time_unix_nano - attempt.start_time_unix_nano, 150_000_000_000);
    assert_eq!(attempt.links[0].span_id, place.span_id);
    assert_ne!(place.trace_id, submit.trace_id);
    assert_eq!(place.links[0].span_id, submit.span_id);
    assert_eq!(place.events[0].name, names::event::CANDIDATE_REJECTED);
    assert_eq!(launch.events.len(), 1, "a log line is an event of its span");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
