//! W3C trace contexts as plain strings, so that they can travel in a database column, a frame or
//! an environment variable.
//!
//! A span's ids are fixed when it is first entered, logged in, or when its context is read. So set
//! its parent right after making it.

use std::time::SystemTime;

use opentelemetry::trace::{
    Link, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId,
    TraceState, Tracer,
};
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Returns the context that children of `span` continue; `None` if the span is filtered out or
/// no logs were set up.
pub fn traceparent(span: &Span) -> Option<String> {
    let context = span.context();
    let span = context.span();
    let ids = span.span_context();
    ids.is_valid().then(|| written(ids))
}

/// Returns the current span's context.
pub fn current_traceparent() -> Option<String> {
    traceparent(&Span::current())
}

/// Returns the trace's id alone, as problem reports and log lines name it.
pub fn trace_id(span: &Span) -> Option<String> {
    let context = span.context();
    let trace = context.span().span_context().trace_id();
    (trace != TraceId::INVALID).then(|| trace.to_string())
}

/// Makes its own context, without the cost of a span: for paths that are too hot for one.
pub fn new_traceparent() -> String {
    let ids = RandomIdGenerator::default();
    written(&context_of(ids.new_trace_id(), ids.new_span_id(), TraceFlags::SAMPLED))
}

/// Makes a context within the trace that `parent` names, without the cost of a span; a new trace
/// if `parent` is none.
pub fn child_traceparent(parent: &str) -> String {
    match parse(parent) {
        Some(ids) => {
            let child = RandomIdGenerator::default().new_span_id();
            written(&context_of(ids.trace_id(), child, ids.trace_flags()))
        }
        None => new_traceparent(),
    }
}

/// Returns whether a string from outside is a trace context that can be continued.
pub fn is_traceparent(text: &str) -> bool {
    parse(text).is_some()
}

/// Makes `span` a child of the span that `parent` names. Does nothing if `parent` is none: a
/// foreign header must never break a request.
pub fn set_parent(span: &Span, parent: &str) {
    if let Some(ids) = parse(parent) {
        // Fails only if the span is filtered out or has been used before.
        let _ = span.set_parent(Context::new().with_remote_span_context(ids));
    }
}

/// Links `span` to the span that `other` names, without being its child: for one span that
/// serves many jobs.
pub fn link(span: &Span, other: &str) {
    if let Some(ids) = parse(other) {
        span.add_link(ids);
    }
}

/// Adds an event with attributes to `span`.
pub fn event(
    span: &Span,
    name: &'static str,
    attributes: impl IntoIterator<Item = (&'static str, String)>,
) {
    let attributes = attributes.into_iter().map(|(key, value)| KeyValue::new(key, value));
    span.add_event(name, attributes.collect());
}

/// Something that lasted too long to hold a span open, reported once it is over: an attempt may take
/// days and outlive the process that began it.
#[derive(Clone, Debug)]
pub struct FinishedSpan<'a> {
    /// What it was, the same for all of its kind: `job.attempt`.
    pub name: &'static str,
    /// What it continues.
    pub parent: Option<&'a str>,
    /// What else it has to do with.
    pub links: &'a [&'a str],
    /// When it began.
    pub started: SystemTime,
    /// When it ended.
    pub ended: SystemTime,
    /// What is to be known of it, by names of [`crate::names::attribute`].
    pub attributes: Vec<(&'static str, String)>,
    /// What went wrong, if something did.
    pub problem: Option<String>,
}

/// Records something that is over.
pub fn record(finished: FinishedSpan<'_>) {
    let parent = match finished.parent.and_then(parse) {
        Some(ids) => Context::new().with_remote_span_context(ids),
        None => Context::new(),
    };
    let links = finished.links.iter().filter_map(|other| parse(other));
    let builder = SpanBuilder::from_name(finished.name)
        .with_kind(SpanKind::Consumer)
        .with_start_time(finished.started)
        .with_links(links.map(|ids| Link::new(ids, Vec::new(), 0)).collect())
        .with_attributes(
            finished.attributes.into_iter().map(|(key, value)| KeyValue::new(key, value)),
        );
    let span = global::tracer("tessera").build_with_context(builder, &parent);
    let context = Context::new().with_span(span);
    if let Some(problem) = finished.problem {
        context.span().set_status(Status::error(problem));
    }
    context.span().end_with_timestamp(finished.ended);
}

fn context_of(trace: TraceId, span: SpanId, flags: TraceFlags) -> SpanContext {
    SpanContext::new(trace, span, flags, true, TraceState::NONE)
}

fn written(ids: &SpanContext) -> String {
    format!("00-{}-{}-{:02x}", ids.trace_id(), ids.span_id(), ids.trace_flags().to_u8() & 1)
}

/// Reads a `traceparent` of version 00, or of a later version as far as 00 goes.
///
/// # Source
///
/// W3C Trace Context, level 1, section 3.2.
fn parse(text: &str) -> Option<SpanContext> {
    let mut parts = text.split('-');
    let [version, trace, span, flags] =
        [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    let lower_hex = |part: &str, digits: usize| {
        part.len() == digits && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let well_formed = lower_hex(version, 2)
        && lower_hex(trace, 32)
        && lower_hex(span, 16)
        && lower_hex(flags, 2)
        && version != "ff"
        && (version != "00" || parts.next().is_none());
    if !well_formed {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()? & 1);
    let ids = context_of(TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?, flags);
    ids.is_valid().then_some(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_context_is_one_that_others_can_continue() {
        let one = new_traceparent();
        let other = new_traceparent();

        assert!(is_traceparent(&one), "{one}");
        assert_ne!(one, other);
    }

    #[test]
    fn a_child_stays_in_its_parents_trace() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

        let child = child_traceparent(parent);

        assert_eq!(child[..36], parent[..36]);
        assert_ne!(child[36..52], parent[36..52]);
        assert!(child.ends_with("-01"));
    }

    #[test]
    fn strings_that_are_no_contexts_are_not_taken_for_any() {
        for text in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-extra",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert!(!is_traceparent(text), "{text:?}");
        }
        assert!(is_traceparent("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more"));
    }
}
