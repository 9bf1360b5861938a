//! Traces of the placer's decisions: one span for each placement, in the trace of the
//! job's submit.

use std::collections::HashMap;
use std::time::UNIX_EPOCH;

use tessera_model::{AttemptId, JobId};
use tessera_telemetry::context::{self, FinishedSpan};
use tessera_telemetry::names;

use tessera_control::rows::snapshot::LaunchSpec;
use tessera_control::rows::transitions::Reservation;

use crate::{clock, process_metrics};

/// Writes a span for each placement, and returns the trace context that each launch continues.
pub fn placed(
    reservations: &[Reservation],
    launch_specs: &HashMap<JobId, LaunchSpec>,
) -> HashMap<AttemptId, String> {
    let mut traces = HashMap::with_capacity(reservations.len());
    for reservation in reservations {
        if let Some(spec) = launch_specs.get(&reservation.job).filter(|_| reservation.number == 1) {
            trace_wait(reservation, spec);
        }
        let span = tracing::info_span!(
            names::span::PLACE,
            { names::attribute::JOB_ID } = %reservation.job,
            { names::attribute::JOB_ATTEMPT } = reservation.number,
            { names::attribute::DECISION_ID } = %reservation.decision,
            { names::attribute::DECISION_OUTCOME } = "placed",
            { names::attribute::MIG_PROFILE } = reservation.profile,
            { names::attribute::MIG_START } = reservation.place.slot.map(|slot| u64::from(slot.start)),
            { names::attribute::CANDIDATES_CONSIDERED } = reservation.why.candidates.len(),
            { names::attribute::HW_ID } = %reservation.place.gpu,
        );
        if let Some(submit) =
            launch_specs.get(&reservation.job).and_then(|s| s.traceparent.as_deref())
        {
            context::set_parent(&span, submit);
        }
        // Bounded by the explanation itself.
        for candidate in reservation.why.candidates.iter().filter(|c| !c.chosen) {
            let attributes = [
                (names::attribute::REASON, candidate.verdict.clone()),
                (names::attribute::HW_ID, candidate.gpu.to_string()),
                (names::attribute::MIG_PROFILE, candidate.profile.clone()),
            ];
            context::event(&span, names::event::CANDIDATE_REJECTED, attributes);
        }
        if let Some(traceparent) = context::traceparent(&span) {
            traces.insert(reservation.attempt, traceparent);
        }
    }
    traces
}

/// Reports how long a job waited for its first attempt.
fn trace_wait(reservation: &Reservation, spec: &LaunchSpec) {
    process_metrics::count_wait(spec.waited);
    if !tessera_telemetry::exporting() {
        return;
    }
    let ended = UNIX_EPOCH + clock::unix().duration();
    context::record(FinishedSpan {
        name: names::span::WAIT,
        parent: spec.traceparent.as_deref(),
        links: &[],
        started: ended - spec.waited.duration(),
        ended,
        attributes: vec![
            (names::attribute::JOB_ID, reservation.job.to_string()),
            (names::attribute::DECISION_ID, reservation.decision.to_string()),
            (names::attribute::WAIT_REASONS, reservation.waited_for.join(",")),
        ],
        problem: None,
    });
}
