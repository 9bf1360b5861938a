//! What the placer tells of its decisions: one span for each placement, in the trace of the
//! job's submit.

use std::collections::HashMap;

use tessera_model::{AttemptId, JobId};

use tessera_control::rows::snapshot::LaunchSpec;
use tessera_control::rows::transitions::Reservation;

/// Writes a span for each placement, and returns the trace context that each launch continues.
pub fn placed(
    reservations: &[Reservation],
    sheets: &HashMap<JobId, LaunchSpec>,
) -> HashMap<AttemptId, String> {
    let mut traces = HashMap::with_capacity(reservations.len());
    for reservation in reservations {
        let span = tracing::info_span!(
            "job.place",
            tessera.job.id = %reservation.job,
            tessera.job.attempt = reservation.number,
            tessera.decision.id = %reservation.decision,
            tessera.decision.outcome = "placed",
            tessera.mig.profile = reservation.profile,
            tessera.mig.placement.start = reservation.place.slot.map(|slot| u64::from(slot.start)),
            tessera.candidates.considered = reservation.why.candidates.len(),
            hw.id = %reservation.place.gpu,
        );
        if let Some(submit) = sheets.get(&reservation.job).and_then(|s| s.traceparent.as_deref()) {
            tessera_telemetry::context::set_parent(&span, submit);
        }
        // Bounded by the explanation itself.
        for candidate in reservation.why.candidates.iter().filter(|c| !c.chosen) {
            let attributes = [
                ("reason", candidate.verdict.clone()),
                ("hw.id", candidate.gpu.to_string()),
                ("tessera.mig.profile", candidate.profile.clone()),
            ];
            tessera_telemetry::context::event(&span, "candidate.rejected", attributes);
        }
        if let Some(context) = tessera_telemetry::context::traceparent(&span) {
            traces.insert(reservation.attempt, context);
        }
    }
    traces
}
