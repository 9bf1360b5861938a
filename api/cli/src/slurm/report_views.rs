//! `seff` and `sreport`: how well a job used its resources, and what accounts used.

use clap::{ArgAction, Parser};
use tessera_api_types::{RecordFilter, ReportQuery, RunRecord};

use super::job::{SlurmJob, gather};
use super::squeue::parse_job;
use super::times::{long_span, now, read, secs_between};
use super::{Done, SlurmFailure, VERSION, connect, write_out};

/// Shows how well a job used its resources.
#[derive(Parser)]
pub struct Seff {
    /// Accepted
    #[arg(short, long, action = ArgAction::Count)]
    debug: u8,
    /// Number of the job, or of a task
    job: String,
}

impl Seff {
    /// Shows the job.
    pub async fn run(self) -> Done {
        if parse_job(&self.job).is_none() {
            return Err(SlurmFailure::Message(format!("Job not found: {}", self.job)));
        }
        let filter = RecordFilter {
            jobs: Some(self.job.clone()),
            specs: true,
            runs: true,
            ..RecordFilter::default()
        };
        let found = gather(connect()?.client.records(&filter).await?);
        let Some(job) = found.first() else {
            return Err(SlurmFailure::Message(format!("Job not found: {}", self.job)));
        };
        write_out(&efficiency(job))?;
        Ok(0)
    }
}

/// Returns `part` of `whole` in percent with two digits.
fn percent(part: u64, whole: u64) -> String {
    match (u128::from(part) * 10_000).checked_div(u128::from(whole)) {
        None => "0.00%".to_owned(),
        Some(hundredths) => format!("{}.{:02}%", hundredths / 100, hundredths % 100),
    }
}

fn gigabytes(bytes: u64) -> String {
    let hundredths = u128::from(bytes) * 100 / (1 << 30);
    format!("{}.{:02} GB", hundredths / 100, hundredths % 100)
}

fn efficiency(job: &SlurmJob) -> String {
    let run: Option<&RunRecord> = job.record.runs.last();
    let wall =
        run.and_then(|run| Some(secs_between(run.started_at?, run.ended_at.unwrap_or_else(now))));
    let (wall, cpus) = (wall.unwrap_or(0), u64::from(job.cpus()));
    let used = run.map_or(0, |run| {
        run.user_ms.unwrap_or(0).saturating_add(run.system_ms.unwrap_or(0)) / 1_000
    });
    let core_walltime = wall.saturating_mul(cpus);
    let memory = run.and_then(|run| run.max_rss_bytes).unwrap_or(0);
    let limit = job.request.host_memory_bytes.unwrap_or(0);
    let state = format!("{} (exit code {})", job.state.long(), code(&job.exit_code()));
    let array = match job.record.array_index {
        Some(_) => format!("Array Job ID: {}\n", job.id()),
        None => String::new(),
    };
    let mut text = format!(
        "Job ID: {}\n{array}Cluster: tessera\nUser/Group: {1}/{1}\nState: {state}\nCores: {cpus}\n\
         CPU Utilized: {2}\nCPU Efficiency: {3} of {4} core-walltime\n\
         Job Wall-clock time: {5}\nMemory Utilized: {6}\nMemory Efficiency: {7} of {8}\n",
        job.raw_id(),
        job.record.user,
        long_span(used),
        percent(used, core_walltime),
        long_span(core_walltime),
        long_span(wall),
        gigabytes(memory),
        percent(memory, limit),
        gigabytes(limit),
    );
    if let Some(run) = run {
        text += &format!("GPU: {} on {}\n", run.profile, run.node);
        if let Some(peak) = run.gpu_memory_peak_bytes {
            text += &format!("GPU Memory Utilized: {}\n", gigabytes(peak));
        }
        if let Some(energy) = run.gpu_energy_millijoules {
            text += &format!("GPU Energy: {} J\n", energy / 1_000);
        }
    }
    text
}

fn code(exit: &str) -> &str {
    exit.split(':').next().unwrap_or("0")
}

/// Shows what accounts and users used, as Slurm's sreport does.
#[derive(Parser)]
pub struct Sreport {
    /// Omit the headings
    #[arg(short, long)]
    noheader: bool,
    /// Separate columns by |, with one at the end
    #[arg(short, long)]
    parsable: bool,
    /// Separate columns by |
    #[arg(short = 'P', long)]
    parsable2: bool,
    /// Unit of times: Seconds, Minutes or Hours
    #[arg(short, long, value_name = "UNIT", default_value = "Minutes")]
    time: String,
    /// Accepted: GPUs are counted
    #[arg(short = 'T', long, value_name = "TRES")]
    tres: Option<String>,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    /// Report such as: cluster AccountUtilizationByUser, with start=TIME end=TIME
    words: Vec<String>,
}

impl Sreport {
    /// Shows the report.
    pub async fn run(self) -> Done {
        if self.version {
            write_out(&format!("{VERSION}\n"))?;
            return Ok(0);
        }
        let kind = self.words.get(1).map(|word| word.to_ascii_lowercase()).unwrap_or_default();
        if !["accountutilizationbyuser", "userutilizationbyaccount", "topusage"]
            .contains(&kind.as_str())
        {
            return Err(SlurmFailure::Message(
                "sreport: error: write: sreport cluster AccountUtilizationByUser (or \
                 UserUtilizationByAccount), or sreport user TopUsage; tessera report shows more"
                    .to_owned(),
            ));
        }
        let of = |name: &str| {
            self.words.iter().find_map(|word| {
                let (key, value) = word.split_once('=')?;
                key.eq_ignore_ascii_case(name).then(|| value.to_owned())
            })
        };
        let query = ReportQuery {
            since: of("start").as_deref().map(read).transpose()?,
            until: of("end").as_deref().map(read).transpose()?,
            by: Some("account,user".to_owned()),
            user: of("user").or_else(|| of("users")),
        };
        let report = connect()?.client.report(&query).await?;
        let divisor = match self.time.to_ascii_lowercase().chars().next() {
            Some('s') => 1_000,
            Some('h') => 3_600_000,
            _ => 60_000,
        };
        let rows = report.lines.iter().map(|line| {
            [
                "tessera".to_owned(),
                line.account.clone().unwrap_or_default(),
                line.user.clone().unwrap_or_default(),
                line.user.clone().unwrap_or_default(),
                "gres/gpu".to_owned(),
                (line.figures.gpu_ms / divisor).to_string(),
            ]
        });
        let rows: Vec<[String; 6]> = rows.collect();
        write_out(&self.draw(&rows))?;
        Ok(0)
    }

    fn draw(&self, rows: &[[String; 6]]) -> String {
        const HEADINGS: [&str; 6] =
            ["Cluster", "Account", "Login", "Proper Name", "TRES Name", "Used"];
        const WIDTHS: [usize; 6] = [9, 15, 9, 15, 14, 8];
        let line = |cells: &[String; 6]| match (self.parsable2, self.parsable) {
            (true, _) => cells.join("|") + "\n",
            (false, true) => cells.join("|") + "|\n",
            (false, false) => {
                let padded = cells.iter().zip(WIDTHS);
                padded.map(|(cell, width)| format!("{cell:>width$} ")).collect::<String>() + "\n"
            }
        };
        let mut text = String::new();
        if !self.noheader {
            text += &line(&HEADINGS.map(str::to_owned));
            if !self.parsable && !self.parsable2 {
                text += &line(&WIDTHS.map(|width| "-".repeat(width)));
            }
        }
        text + &rows.iter().map(line).collect::<String>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_shown_in_percent() {
        assert_eq!([percent(1, 3), percent(2, 1), percent(1, 0)], ["33.33%", "200.00%", "0.00%"]);
        assert_eq!(gigabytes(3 << 29), "1.50 GB");
    }
}
