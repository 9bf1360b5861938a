//! `tessera explain`: why a job waits, or why it was placed where it runs.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use tessera_model::{Bytes, JobRef};

use super::failure::CommandFailure;
use super::jobs::parse_one_job;
use super::session::{CommandSession, moment, or_dash, table};
use super::span::Elapsed;
use tessera_api_types::{
    CandidateView, ColocationPredictionView, JobExplanation, MemoryPredictionView, PredictionView,
};

#[derive(Args)]
pub struct ExplainJob {
    /// The job, such as 42 or 42_7
    #[arg(value_name = "JOB", value_parser = parse_one_job)]
    job: JobRef,
}

impl ExplainJob {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let explain = session.client.explain(self.job).await?;
        // Tasks of arrays are named as in the queue.
        let detail = match session.json {
            false => session.client.job(self.job).await.ok(),
            true => None,
        };
        let name = detail.map(|detail| detail.job.name_id);
        session.print(&explain, |explain| draw(explain, name.as_deref()))?;
        Ok(0)
    }
}

/// Draws the explanation: the summary first, then its reasons.
pub fn draw(explain: &JobExplanation, name: Option<&str>) -> String {
    let reason = explain.reason.as_deref().map(|word| format!(" ({word})")).unwrap_or_default();
    let name = name.map_or_else(|| explain.job_id.to_string(), str::to_owned);
    let mut text = format!("Job {name} is {}{reason}.\n", explain.state);
    let _ = writeln!(text, "{}", sentence(&explain.summary));
    if let Some(condition) = &explain.would_start_if {
        let _ = writeln!(text, "{}", sentence(&format!("It would start if {condition}")));
    }
    for alternative in &explain.alternatives {
        let _ = writeln!(
            text,
            "{}",
            sentence(&format!("If {}, it {}", alternative.change, alternative.effect))
        );
    }
    if let Some(start) = &explain.expected_start {
        let _ = writeln!(text, "{}", sentence(&format!("Expected to start: {start}")));
    }
    match explain.jobs_ahead {
        None | Some(0) => {}
        Some(1) => text.push_str("1 job is ahead of it in the queue.\n"),
        Some(jobs) => {
            let _ = writeln!(text, "{jobs} jobs are ahead of it in the queue.");
        }
    }
    if let Some(prediction) = &explain.prediction {
        let _ = writeln!(text, "{}", sentence(&capitalised(&describe_prediction(prediction))));
    }
    if let Some(deadline) = &explain.deadline {
        let _ = writeln!(text, "Deadline {}: {}.", moment(deadline.at), deadline.text);
    }
    if let Some(size) = &explain.size {
        let bytes = size.memory_bytes.map(|bytes| format!(" ({})", Bytes::new(bytes)));
        let _ = writeln!(text, "Its size{} {}.", bytes.unwrap_or_default(), size.text);
    }
    if let Some(memory) = &explain.memory_prediction {
        let _ = writeln!(text, "{}", sentence(&capitalised(&describe_memory_prediction(memory))));
    }
    let when = explain.decided_at.map(|at| format!(" at {}", moment(at))).unwrap_or_default();
    let decision = explain.decision.as_deref().map(|id| format!(", decision {id}"));
    let decision = decision.unwrap_or_default();
    let _ = writeln!(text, "Decided by policy {}{when}{decision}.", explain.policy);
    text.push_str(&candidates(&explain.candidates, explain.candidates_left_out));
    text
}

/// Describes a predicted run time and its outcome.
pub fn describe_prediction(prediction: &PredictionView) -> String {
    let basis = match prediction.basis.as_str() {
        "same_slice" => "on such slices",
        "learned" => "on other slices, and a model trained on other tasks",
        "other_slice" => "on other slices of such GPUs",
        "compared_models" => "on GPUs of other models, as other tasks compare on both",
        "other_model" => "on GPUs of other models",
        _ => "",
    };
    let (low, middle, high) = (prediction.low_secs, prediction.expected_secs, prediction.high_secs);
    let mut text = match prediction.runs {
        0 => format!("expected to take at most {}, by its time limit", seconds(high)),
        runs => {
            let s = if runs == 1 { "" } else { "s" };
            format!(
                "expected to take {} ({} to {}), based on {runs} earlier run{s} {basis}",
                seconds(middle),
                seconds(low),
                seconds(high)
            )
        }
    };
    if let Some(ran) = prediction.ran_secs {
        let _ = write!(text, "; it took {}", seconds(ran));
    }
    text
}

/// Describes a predicted memory use and its outcome.
pub fn describe_memory_prediction(prediction: &MemoryPredictionView) -> String {
    let (low, high) = (Bytes::new(prediction.low_bytes), Bytes::new(prediction.high_bytes));
    let runs = prediction.runs;
    let s = if runs == 1 { "" } else { "s" };
    let mut text = format!(
        "expected to use at most {} of GPU memory ({} to {}), based on {runs} earlier run{s}",
        Bytes::new(prediction.estimate_bytes),
        low,
        high
    );
    if prediction.cautious {
        text.push_str(", raised by half, since recent runs exceeded their predictions too often");
    }
    if let Some(slice) = prediction.ran_out_of_bytes {
        let _ = write!(text, "; it ran out of the {} of its slice", Bytes::new(slice));
    } else if let Some(peak) = prediction.peak_bytes {
        let _ = write!(text, "; it used {}", Bytes::new(peak));
    }
    text
}

/// Describes a predicted speed with co-runners and its outcome.
pub fn describe_colocation(prediction: &ColocationPredictionView) -> String {
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    let with = match prediction.co_runners {
        0 => "without co-runners".to_owned(),
        1 => "with 1 co-runner".to_owned(),
        more => format!("with {more} co-runners"),
    };
    let mut text = format!(
        "expected to run at {} ({} to {}) of its speed alone, {with}",
        percent(prediction.speed),
        percent(prediction.low),
        percent(prediction.high)
    );
    if let (Some(speed), Some(mean)) = (prediction.measured, prediction.co_runners_mean) {
        let _ = write!(text, "; it ran at {}, with {mean:.1} on average", percent(speed));
    }
    text
}

/// Shows short times with tenths.
fn seconds(secs: f64) -> String {
    match Duration::try_from_secs_f64(secs) {
        Ok(time) if time >= Duration::from_secs(60) => Elapsed(time.as_secs()).to_string(),
        _ => format!("{secs:.1} s"),
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Ends a text as a sentence ends.
pub fn sentence(text: &str) -> String {
    if text.ends_with('.') { text.to_owned() } else { format!("{text}.") }
}

/// Draws the placements that were considered.
pub fn candidates(candidates: &[CandidateView], left_out: u32) -> String {
    if candidates.is_empty() {
        return String::new();
    }
    let header = ["", "NODE", "GPU", "PLACEMENT", "MEMORY", "LAYOUTS LEFT", "VERDICT"];
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
        let _ = writeln!(text, "and {left_out} more placements");
    }
    text
}
