//! Descriptions of differences between decisions.

use tessera_model::JobId;

use super::DecisionDifference;
use crate::decision::{Decision, Explanation};

/// Returns how two lists of decisions differ; `at` is the index of the first difference.
pub(super) fn difference(
    recorded: &[Decision],
    decided: &[Decision],
    at: usize,
) -> DecisionDifference {
    let (then, now) = (recorded.get(at), decided.get(at));
    let job = then.or(now).and_then(job_of);
    // Both may have a decision about the same job, but at different indices.
    let about = |list: &[Decision]| list.iter().find(|d| job_of(d) == job).cloned();
    let (then, now) = match job {
        Some(_) => (about(recorded), about(decided)),
        None => (then.cloned(), now.cloned()),
    };
    let nothing = || "there is no decision".to_owned();
    let (mut was, mut is) =
        (then.as_ref().map_or_else(nothing, brief), now.as_ref().map_or_else(nothing, brief));
    if let (Some(then), Some(now), true) = (&then, &now, was == is) {
        (was, is) = match then == now {
            true => ("it is decided earlier".to_owned(), "it is decided later".to_owned()),
            false => reasons(why(then), why(now)),
        };
    }
    DecisionDifference { job, recorded: was, decided: is }
}

const fn job_of(decision: &Decision) -> Option<JobId> {
    match decision {
        Decision::Start { job, .. } | Decision::Wait { job, .. } => Some(*job),
        Decision::Preempt { preemption, .. } => Some(preemption.job),
        Decision::Reshape { .. } => None,
    }
}

const fn why(decision: &Decision) -> &Explanation {
    match decision {
        Decision::Start { why, .. }
        | Decision::Wait { why, .. }
        | Decision::Reshape { why, .. }
        | Decision::Preempt { why, .. } => why,
    }
}

/// Returns the decision without its reasons.
fn brief(decision: &Decision) -> String {
    match decision {
        Decision::Start { place, why, .. } => {
            let chosen = why.candidates.iter().find(|candidate| candidate.chosen);
            let target = match chosen {
                Some(c) => format!("{} of GPU {} of {}", c.profile, c.gpu_index, c.node),
                None => format!("GPU {}", place.gpu),
            };
            let start = place.slot.map_or_else(String::new, |slot| format!("@{}", slot.start));
            let steps = place.steps.len();
            format!("it starts on {target}{start}, after {steps} layout steps")
        }
        Decision::Wait { reason, .. } => format!("it waits: {}", reason.word()),
        Decision::Preempt { preemption, .. } => {
            let jobs: Vec<String> =
                preemption.sent_back.iter().map(|job| job.to_string()).collect();
            format!("jobs are sent back on GPU {}: {}", preemption.place.gpu, jobs.join(", "))
        }
        Decision::Reshape { reshape, .. } => {
            let placements: Vec<String> = reshape
                .placements
                .iter()
                .map(|placed| match placed.slot {
                    Some(slot) => format!("job {} at {}", placed.job, slot.start),
                    None => format!("job {}", placed.job),
                })
                .collect();
            format!("GPU {} gets a new layout: {}", reshape.gpu, placements.join(", "))
        }
    }
}

/// Quotes the first part in which two explanations differ.
fn reasons(then: &Explanation, now: &Explanation) -> (String, String) {
    let quoted = |text: &str| format!("because {text:?}");
    if then.summary != now.summary {
        return (quoted(&then.summary), quoted(&now.summary));
    }
    if then.would_start_if != now.would_start_if {
        let or = |text: &Option<String>| {
            text.as_ref().map_or_else(
                || "no condition under which it would start".to_owned(),
                |t| format!("it would start if {t:?}"),
            )
        };
        return (or(&then.would_start_if), or(&now.would_start_if));
    }
    let differs = |at: &usize| then.candidates.get(*at) != now.candidates.get(*at);
    let longest = then.candidates.len().max(now.candidates.len());
    let candidate = |why: &Explanation, at: usize| match why.candidates.get(at) {
        Some(c) => format!(
            "candidate {}: {} of GPU {} of {}, {}",
            at + 1,
            c.profile,
            c.gpu_index,
            c.node,
            c.verdict
        ),
        None => format!("{at} candidates"),
    };
    match (0..longest).find(differs) {
        Some(at) => (candidate(then, at), candidate(now, at)),
        None => ("other details".to_owned(), "other details".to_owned()),
    }
}
