//! `sprio`: the priorities of waiting jobs.

use clap::{ArgAction, Parser};
use tessera_api_types::RecordFilter;

use super::columns::{Column, column, headings, of_codes, row};
use super::job::{SlurmJob, collapse, gather, uid};
use super::squeue::parse_job;
use super::state::SlurmState;
use super::{Done, SlurmFailure, VERSION, connect, words, write_out};

const DEFAULT: &str = "%.15i %9r %.10Y %.10S";
const LONG: &str = "%.15i %9r %.8u %.10Y %.10S %.10A %.10B %.10F %.10J %.10P %.10Q %.11N %.20T";

/// Shows the priorities of waiting jobs, as Slurm's sprio does.
#[derive(Parser)]
#[command(disable_help_flag = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of sprio")]
pub struct Sprio {
    /// Show only these jobs, separated by commas
    #[arg(short, long, value_name = "JOBS")]
    jobs: Vec<String>,
    /// Show only jobs of these users
    #[arg(short, long, value_name = "USERS")]
    user: Vec<String>,
    /// Show only jobs of these partitions
    #[arg(short, long, value_name = "PARTITIONS")]
    partition: Vec<String>,
    /// Columns by letters, such as "%.15i %Y"
    #[arg(short = 'o', long, value_name = "FORMAT")]
    format: Option<String>,
    /// More columns
    #[arg(short, long)]
    long: bool,
    /// Omit the headings
    #[arg(short = 'h', long)]
    noheader: bool,
    /// Accepted: a job's place in the queue is no sum of weighted parts
    #[arg(short, long)]
    norm: bool,
    /// Show the weights instead of jobs
    #[arg(short, long)]
    weights: bool,
    /// Accepted: there is one cluster
    #[arg(short = 'M', long, value_name = "CLUSTERS")]
    clusters: Option<String>,
    /// Accepted
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

impl Sprio {
    /// Shows the priorities.
    pub async fn run(self) -> Done {
        if self.version {
            write_out(&format!("{VERSION}\n"))?;
            return Ok(0);
        }
        let parts = of_codes(
            self.format.as_deref().unwrap_or(if self.long { LONG } else { DEFAULT }),
            COLUMNS,
        );
        if self.weights {
            let head = if self.noheader { String::new() } else { headings(&parts) };
            write_out(&format!("{head}        Weights                               1\n"))?;
            return Ok(0);
        }
        let named = words(&self.jobs);
        if let Some(job) = named.iter().find(|job| parse_job(job).is_none()) {
            return Err(SlurmFailure::Message(format!("sprio: error: Invalid job id: {job}")));
        }
        let users = words(&self.user);
        let filter = RecordFilter {
            jobs: (!named.is_empty()).then(|| named.join(",")),
            user: (!users.is_empty()).then(|| users.join(",")),
            specs: true,
            fold: true,
            ..RecordFilter::default()
        };
        let jobs = collapse(gather(connect()?.client.records(&filter).await?));
        let partitions = words(&self.partition);
        let is_shown = |job: &&SlurmJob| {
            // Slurm has no priorities for jobs that are held.
            job.state == SlurmState::Pending
                && job.record.state != "held"
                && (partitions.is_empty() || partitions.contains(&job.partition()))
        };
        let shown: Vec<_> = jobs.iter().filter(is_shown).collect();
        if shown.is_empty() && !(named.is_empty() && users.is_empty()) {
            write_out("Unable to find jobs matching user/id(s) specified\n")?;
            return Ok(0);
        }
        let head = if self.noheader { String::new() } else { headings(&parts) };
        let lines = shown.into_iter().map(|job| row(&parts, job));
        write_out(&lines.fold(head, |text, line| text + &line))?;
        Ok(0)
    }
}

/// Slurm adds weighted parts up. Here a job has its user's priority, and the rest decides among equals.
const NO_PART: fn(&SlurmJob) -> String = |_| "0".to_owned();

static COLUMNS: &[Column<SlurmJob>] = &[
    column(Some('i'), "jobid", "JOBID", "JOBID", |job| job.raw_id().to_string()),
    column(Some('r'), "partitionname", "PARTITION", "PARTITION", SlurmJob::partition),
    column(Some('u'), "username", "USER", "USER", |job| job.record.user.clone()),
    column(Some('o'), "account", "ACCOUNT", "ACCOUNT", |job| job.record.account.clone()),
    column(Some('n'), "qosname", "QOSNAME", "QOSNAME", |_| "normal".to_owned()),
    column(Some('U'), "uid", "UID", "UID", |job| uid(&job.record.user).to_string()),
    column(Some('Y'), "priority", "PRIORITY", "PRIORITY", |job| job.priority().to_string()),
    column(Some('y'), "normpriority", "PRIORITY", "PRIORITY", |job| {
        // As a part of the largest number.
        format!("0.{:010}", job.priority().saturating_mul(1_000_000))
    }),
    column(Some('S'), "site", "SITE", "SITE", |job| job.priority().to_string()),
    column(Some('A'), "age", "AGE", "AGE", NO_PART),
    column(Some('a'), "normage", "AGE", "AGE", NO_PART),
    column(Some('B'), "assoc", "ASSOC", "ASSOC", NO_PART),
    column(Some('b'), "normassoc", "ASSOC", "ASSOC", NO_PART),
    column(Some('F'), "fairshare", "FAIRSHARE", "FAIRSHARE", NO_PART),
    column(Some('f'), "normfairshare", "FAIRSHARE", "FAIRSHARE", NO_PART),
    column(Some('J'), "jobsize", "JOBSIZE", "JOBSIZE", NO_PART),
    column(Some('j'), "normjobsize", "JOBSIZE", "JOBSIZE", NO_PART),
    column(Some('P'), "partition", "PARTITION", "PARTITION", NO_PART),
    column(Some('p'), "normpartition", "PARTITION", "PARTITION", NO_PART),
    column(Some('Q'), "qos", "QOS", "QOS", NO_PART),
    column(Some('q'), "normqos", "QOS", "QOS", NO_PART),
    column(Some('N'), "nice", "NICE", "NICE", |job| job.queue_rank().nice.to_string()),
    column(Some('T'), "tres", "TRES", "TRES", |_| String::new()),
];

#[cfg(test)]
mod tests {
    use super::super::job::samples::{record, records};
    use super::*;

    #[test]
    fn a_waiting_job_has_its_priority_in_slurms_columns() {
        let jobs = gather(records(vec![record(42, 42, None)]));

        let parts = of_codes(DEFAULT, COLUMNS);

        assert_eq!(headings(&parts), "          JOBID PARTITION   PRIORITY       SITE\n");
        assert_eq!(row(&parts, &jobs[0]), "             42 gpu             4001       4001\n");
        assert_eq!(row(&of_codes("%y", COLUMNS), &jobs[0]), "0.4001000000\n");
    }
}
