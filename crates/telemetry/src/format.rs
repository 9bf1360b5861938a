//! Log lines that name the trace that they belong to.

use std::fmt;

use opentelemetry::trace::{TraceContextExt, TraceId};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// A format of log lines, with the current trace's id added to each.
#[derive(Debug)]
pub(crate) struct WithTraceId<F> {
    inner: F,
    style: Style,
}

#[derive(Clone, Copy, Debug)]
enum Style {
    /// At the end of the line, like any other field.
    Text,
    /// As the object's first member.
    Json,
}

impl<F> WithTraceId<F> {
    pub(crate) fn text(inner: F) -> Self {
        Self { inner, style: Style::Text }
    }

    pub(crate) fn json(inner: F) -> Self {
        Self { inner, style: Style::Json }
    }
}

impl<S, N, F> FormatEvent<S, N> for WithTraceId<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Some(trace) = current_trace(ctx) else {
            return self.inner.format_event(ctx, writer, event);
        };
        let mut line = String::with_capacity(256);
        self.inner.format_event(ctx, Writer::new(&mut line), event)?;
        match (self.style, line.strip_prefix('{')) {
            (Style::Json, Some(members)) => {
                write!(writer, "{{\"trace_id\":\"{trace}\",{members}")
            }
            (Style::Json, None) | (Style::Text, _) => {
                writeln!(writer, "{} trace_id={trace}", line.trim_end())
            }
        }
    }
}

fn current_trace<S, N>(ctx: &FmtContext<'_, S, N>) -> Option<TraceId>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    let span = ctx.lookup_current()?.id();
    let context = tracing::dispatcher::get_default(|dispatch| {
        tracing_opentelemetry::get_otel_context(&span, dispatch)
    })?;
    let trace = context.span().span_context().trace_id();
    (trace != TraceId::INVALID).then_some(trace)
}
