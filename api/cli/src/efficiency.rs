//! `tessera efficiency`: what tasks requested, what they used, and what to request.

use clap::Args;
use tessera_api_types::{EfficiencyQuery, EfficiencyReport, TaskEfficiency};
use tessera_model::Bytes;

use super::clock_time::ClockTime;
use super::failure::CommandFailure;
use super::session::{CommandSession, moment, or_dash, table};
use super::span::Elapsed;

/// Compares what the runs of tasks requested with what they used: GPU memory and time. It also shows what to request.
#[derive(Args)]
pub struct Efficiency {
    /// Start of the period, such as 2027-01-01; by default seven days ago
    #[arg(long, visible_alias = "start", value_name = "TIME")]
    since: Option<ClockTime>,
    /// Only the tasks of these users
    #[arg(short, long, value_name = "USERS")]
    user: Option<String>,
}

impl Efficiency {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let since = self.since.map(|time| time.in_the_past().map_err(CommandFailure::usage));
        let query = EfficiencyQuery { since: since.transpose()?, user: self.user };
        session.print(&session.client.efficiency(&query).await?, draw)?;
        Ok(0)
    }
}

fn draw(report: &EfficiencyReport) -> String {
    let header =
        ["USER", "TASK", "RUNS", "GIVEN", "USED", "MEM USED", "UNUSED", "LIMIT", "RAN", "REQUEST"];
    let rows = report.tasks.iter().map(cells);
    format!("runs since {}\n\n{}", moment(report.since), table(Some(&header), rows))
}

fn cells(task: &TaskEfficiency) -> Vec<String> {
    let share = task.used_bytes.map(|used| {
        let percent = u128::from(used) * 100 / u128::from(task.given_bytes.max(1));
        format!("{percent} %")
    });
    vec![
        task.user.clone(),
        task.name.clone(),
        task.runs.to_string(),
        Bytes::new(task.given_bytes).to_string(),
        or_dash(task.used_bytes.map(Bytes::new)),
        or_dash(share),
        format!("{:.1} GiBh", task.unused_gib_hours),
        or_dash(task.limit_secs.map(Elapsed)),
        Elapsed(task.ran_secs).to_string(),
        advice(task),
    ]
}

/// Returns the options that would have sufficed, where they request less than the given ones.
fn advice(task: &TaskEfficiency) -> String {
    let memory = task.request_bytes.filter(|bytes| *bytes < task.given_bytes);
    let memory = memory.map(|bytes| format!("--vram {}M", bytes >> 20));
    let time = task.request_limit_secs.filter(|secs| task.limit_secs.is_none_or(|l| *secs < l));
    let time = time.map(|secs| format!("--time {}", secs / 60));
    let options: Vec<String> = memory.into_iter().chain(time).collect();
    if options.is_empty() { "-".to_owned() } else { options.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn task() -> TaskEfficiency {
        TaskEfficiency {
            user: "ada".to_owned(),
            name: "train".to_owned(),
            runs: 9,
            measured: 8,
            given_bytes: 10 * GIB,
            used_bytes: Some(4 * GIB),
            unused_gib_hours: 12.0,
            limit_secs: Some(36_000),
            ran_secs: 3_000,
            request_bytes: Some(5 * GIB),
            request_limit_secs: Some(4_500),
        }
    }

    #[test]
    fn a_line_compares_the_request_with_the_use_and_advises() {
        let cells = cells(&task());

        assert_eq!(cells[3..7], ["10 GiB", "4 GiB", "40 %", "12.0 GiBh"]);
        assert_eq!(cells[9], "--vram 5120M --time 75");
    }

    #[test]
    fn no_advice_would_request_more() {
        let tight = TaskEfficiency { given_bytes: 4 * GIB, limit_secs: Some(4_500), ..task() };

        assert_eq!(advice(&tight), "-");
        let unknown = TaskEfficiency { request_bytes: None, request_limit_secs: None, ..task() };
        assert_eq!(advice(&unknown), "-");
    }
}
