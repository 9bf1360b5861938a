//! `tessera explain`: why a job waits, or went where it went.

use std::fmt::Write as _;

use clap::Args;
use tessera_model::{Bytes, JobRef};

use super::failure::Failure;
use super::jobs::one_job;
use super::session::{Session, moment, or_dash, table};
use crate::types::{CandidateView, Explain};

#[derive(Args)]
pub struct ExplainJob {
    /// The job, such as 42 or 42_7
    #[arg(value_name = "JOB", value_parser = one_job)]
    job: JobRef,
}

impl ExplainJob {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        let explain = session.client.explain(self.job).await?;
        session.print(&explain, draw)?;
        Ok(0)
    }
}

/// Draws the explanation: the sentence first, then what it rests on.
pub fn draw(explain: &Explain) -> String {
    let reason = explain.reason.as_deref().map(|word| format!(" ({word})")).unwrap_or_default();
    let mut text = format!("Job {} is {}{reason}.\n", explain.job_id, explain.state);
    let _ = writeln!(text, "{}", sentence(&explain.summary));
    if let Some(condition) = &explain.would_start_if {
        let _ = writeln!(text, "{}", sentence(&format!("It would start if {condition}")));
    }
    match explain.jobs_ahead {
        None | Some(0) => {}
        Some(1) => text.push_str("1 job stands before it in the queue.\n"),
        Some(jobs) => {
            let _ = writeln!(text, "{jobs} jobs stand before it in the queue.");
        }
    }
    let when = explain.decided_at.map(|at| format!(" at {}", moment(at))).unwrap_or_default();
    let decision = explain.decision.as_deref().map(|id| format!(", decision {id}"));
    let decision = decision.unwrap_or_default();
    let _ = writeln!(text, "Decided by policy {}{when}{decision}.", explain.policy);
    text.push_str(&candidates(&explain.candidates, explain.candidates_left_out));
    text
}

/// Ends a text as a sentence ends.
pub fn sentence(text: &str) -> String {
    if text.ends_with('.') { text.to_owned() } else { format!("{text}.") }
}

/// Draws the places that were considered.
pub fn candidates(candidates: &[CandidateView], left_out: u32) -> String {
    if candidates.is_empty() {
        return String::new();
    }
    let header = ["", "NODE", "GPU", "PLACE", "MEMORY", "LAYOUTS LEFT", "VERDICT"];
    let rows = candidates.iter().map(|candidate| {
        let start = candidate.start_slice.map(|start| format!("@{start}")).unwrap_or_default();
        vec![
            if candidate.chosen { "*" } else { "" }.to_owned(),
            candidate.node.clone(),
            candidate.gpu_index.to_string(),
            format!("{}{start}", candidate.profile),
            Bytes::new(candidate.memory_bytes).to_string(),
            or_dash(candidate.reachability_after),
            candidate.verdict.clone(),
        ]
    });
    let mut text = format!("\n{}", table(Some(&header), rows));
    if left_out > 0 {
        let _ = writeln!(text, "and {left_out} more places");
    }
    text
}
