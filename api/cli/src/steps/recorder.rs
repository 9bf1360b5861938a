//! Accounting of steps: their caller reports the start and the end of each to the controller, for `sacct`, `squeue -s` and
//! `scontrol show step`.
//!
//! A step never waits for its accounting to start, and it runs as well without a controller. Only its end waits for the
//! answer, for a short time: a script may look at what it just ran. A short step is reported once, at its end, since
//! scripts start thousands of them.

use std::path::Path;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use tessera_api_types::StepReport;
use tessera_client::{ApiClient, RetryPatience};
use tessera_model::number::clamped;
use tessera_model::{JobId, JobRef};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::tasks::StepEnd;
use super::transport::client;
use super::{Allocation, StepPlan};

/// How long the end of a step waits for the answers to its reports.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

/// How long a step has run when its start is reported.
const LISTED_AFTER: Duration = Duration::from_millis(200);

/// Longest name that the controller accepts, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The variable with the number of the attempt.
const ATTEMPT: &str = "TESSERA_ATTEMPT_ID";

/// A step whose start was reported.
pub struct StepRecorder {
    to: Option<(ApiClient, JobRef)>,
    report: StepReport,
    started: Instant,
    /// The report of the start, which the one of the end has to follow.
    begun: Option<JoinHandle<()>>,
}

impl StepRecorder {
    /// Begins to report a step. Nothing is reported where there is no way to the controller.
    pub fn start(plan: &StepPlan, allocation: &Allocation, number: u64) -> Self {
        let job = allocation.job.parse().map(|job| JobRef::Job(JobId::from_number(job))).ok();
        let attempt = allocation.environment.get(ATTEMPT).cloned();
        let report = StepReport {
            attempt: attempt.clone().unwrap_or_default(),
            step: clamped(number),
            name: name_of(plan),
            tasks: clamped(plan.layout.tasks()),
            nodes: plan.layout.node_list(),
            ..StepReport::default()
        };
        let found = attempt.and_then(|_| client(allocation).ok());
        let to = found.map(|client| client.with_patience(RetryPatience::BRIEF)).zip(job);
        let begun = to.clone().map(|(client, job)| {
            let mut report = report.clone();
            tokio::spawn(async move {
                tokio::time::sleep(LISTED_AFTER).await;
                report.ran_ms = clamped(LISTED_AFTER.as_millis());
                let _ = client.report_step(job, &report).await;
            })
        });
        Self { to, report, started: Instant::now(), begun }
    }

    /// Reports the end of the step.
    pub async fn finish(mut self, end: StepEnd) {
        let Some((client, job)) = self.to.take() else { return };
        self.report.ran_ms = clamped(self.started.elapsed().as_millis());
        self.report.exit_code = Some(end.accounted());
        if let Ok(used) = getrusage(UsageWho::RUSAGE_CHILDREN) {
            let ms = |time: nix::sys::time::TimeVal| u64::try_from(time.num_milliseconds()).ok();
            self.report.user_ms = ms(used.user_time());
            self.report.system_ms = ms(used.system_time());
            self.report.max_rss_bytes = u64::try_from(used.max_rss()).ok().map(|kib| kib << 10);
        }
        let begun = self.begun.take();
        let is_short = self.started.elapsed() < LISTED_AFTER;
        let answers = async {
            match begun {
                Some(begun) if is_short => begun.abort(),
                Some(begun) => drop(begun.await),
                None => {}
            }
            let _ = client.report_step(job, &self.report).await;
        };
        let _ = timeout(ANSWERED_WITHIN, answers).await;
    }
}

/// Returns a step's name: that of its program, unless its user gives one.
fn name_of(plan: &StepPlan) -> String {
    let program = plan.programs.first().and_then(|words| words.first());
    let program = program.map_or("", String::as_str);
    let file = Path::new(program).file_name().map(|name| name.to_string_lossy().into_owned());
    let own = file.unwrap_or_else(|| program.to_owned());
    reportable(plan.named.get("SLURM_JOB_NAME").unwrap_or(&own))
}

/// Returns the part of a name that the controller accepts: a step with an unusual name is accounted for, too.
fn reportable(name: &str) -> String {
    let plain: String = name.chars().filter(|letter| !letter.is_control()).collect();
    match plain[..plain.floor_char_boundary(NAME_BYTES_MAX)].trim() {
        "" => "step".to_owned(),
        kept => kept.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_becomes_one_that_the_controller_accepts() {
        assert_eq!(reportable("train"), "train");
        assert_eq!(reportable("a\nb"), "ab");
        assert_eq!(reportable("\t"), "step");
        assert_eq!(reportable(&"\u{e9}".repeat(200)).len(), NAME_BYTES_MAX);
    }
}
