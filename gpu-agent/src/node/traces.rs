//! The spans of attempts that the node sends to a trace collector.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tessera_frames::cluster::{ExitRecord, LaunchOrder};
use tessera_model::life::Outcome;
use tessera_model::{AttemptId, Millis};
use tessera_telemetry::context::{self, FinishedSpan};
use tessera_telemetry::{exporting, names};
use tracing::Span;

use tessera_agent_core::ledger::AttemptFacts;

/// Spans of launches that are under way; no more than there are attempts.
#[derive(Debug, Default)]
pub(super) struct LaunchSpans {
    open: BTreeMap<AttemptId, Span>,
}

impl LaunchSpans {
    /// Opens the span of a launch; returns the context that the program continues.
    pub(super) fn begin(&mut self, order: &LaunchOrder) -> Option<String> {
        let parent = order.traceparent.as_deref();
        if !exporting() {
            // Nobody would see the span: the program's own spans still get their trace.
            return parent.map(context::child_traceparent);
        }
        let span = tracing::info_span!(
            names::span::LAUNCH,
            { names::attribute::JOB_ID } = order.job.number(),
            { names::attribute::ATTEMPT_ID } = %order.attempt,
            { names::attribute::JOB_ATTEMPT } = order.number,
        );
        if let Some(parent) = parent {
            context::set_parent(&span, parent);
        }
        let own = context::traceparent(&span);
        self.open.insert(order.attempt, span);
        own.or_else(|| parent.map(str::to_owned))
    }

    /// Closes the span of a launch.
    pub(super) fn end(&mut self, attempt: AttemptId) {
        self.open.remove(&attempt);
    }
}

/// Sends the span of an attempt that ran, once it has ended.
pub(super) fn attempt_ended(facts: &AttemptFacts, record: &ExitRecord) {
    if !exporting() || record.started_unix == Millis::ZERO {
        return;
    }
    let problem = (record.outcome != Outcome::Succeeded)
        .then(|| format!("{}: {}", record.outcome, record.detail));
    context::record(FinishedSpan {
        name: names::span::ATTEMPT,
        parent: facts.traceparent.as_deref(),
        links: &[],
        started: wall(record.started_unix),
        ended: wall(record.ended_unix),
        attributes: vec![
            (names::attribute::JOB_ID, facts.job.to_string()),
            (names::attribute::ATTEMPT_ID, facts.attempt.to_string()),
            (names::attribute::ATTEMPT_OUTCOME, record.outcome.to_string()),
        ],
        problem,
    });
}

fn wall(unix: Millis) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(unix.get())
}
