//! `scancel`: cancels jobs, or sends them signals.

use clap::{ArgAction, Parser};
use tessera_api_types::{JobRecord, RecordFilter};
use tessera_client::{ClientError, JobVerb};
use tessera_model::JobRef;

use super::signals::{self, SignalTarget};
use super::state::{SlurmState, StateFilter};
use super::{Done, SlurmFailure, VERSION, connect, words, write_out};
use crate::jobs::parse_jobs;
use crate::session::CommandSession;

/// Cancels jobs, or sends them signals, as Slurm's scancel does. Unknown jobs and jobs that have
/// ended are not errors.
#[derive(Parser)]
#[command(disable_help_flag = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of scancel")]
pub struct Scancel {
    /// Jobs such as 42, 42_7 or 42_[1-5]
    jobs: Vec<String>,
    /// Jobs of this user
    #[arg(short, long, value_name = "USER")]
    user: Vec<String>,
    /// Your own jobs
    #[arg(long)]
    me: bool,
    /// Jobs with this name
    #[arg(short, long = "name", visible_alias = "jobname", value_name = "NAME")]
    name: Vec<String>,
    /// Jobs in this state: PENDING, RUNNING or SUSPENDED
    #[arg(short = 't', long, value_name = "STATE")]
    state: Vec<String>,
    /// Jobs of this account
    #[arg(short = 'A', long, value_name = "ACCOUNT")]
    account: Vec<String>,
    /// Accepted: jobs of all partitions are cancelled
    #[arg(short, long, value_name = "PARTITION")]
    partition: Vec<String>,
    /// Send this signal to the job's steps. KILL ends the job, as without this option
    #[arg(short, long, value_name = "SIGNAL")]
    signal: Option<String>,
    /// The signal goes to the script's shell only
    #[arg(short, long)]
    batch: bool,
    /// The signal goes to the script's shell and to the steps
    #[arg(short, long)]
    full: bool,
    /// Accepted: nothing is printed on success
    #[arg(short = 'Q', long)]
    quiet: bool,
    /// Accepted
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    /// Accepted: there is one cluster
    #[arg(short = 'M', long, value_name = "CLUSTERS")]
    clusters: Option<String>,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

impl Scancel {
    /// Cancels or signals the jobs.
    pub async fn run(self) -> Done {
        if self.version {
            write_out(&format!("{VERSION}\n"))?;
            return Ok(0);
        }
        let filters = [&self.user, &self.name, &self.state, &self.account, &self.partition];
        let filtered = self.me || filters.iter().any(|filter| !filter.is_empty());
        if self.jobs.is_empty() && !filtered {
            return message("scancel: error: No job identification provided");
        }
        let states = StateFilter::parse(&words(&self.state))
            .map_err(|bad| SlurmFailure::Message(format!("scancel: error: {bad}")))?;
        let signal = match self.signal.as_deref().map(signal_named) {
            None => None,
            Some(Some(signal)) => Some(signal),
            Some(None) => {
                let word = self.signal.as_deref().unwrap_or_default();
                return message(&format!("Unknown job signal: {word}"));
            }
        };
        let mut named: Vec<JobRef> = Vec::new();
        for word in words_of_jobs(&self.jobs) {
            match parse_jobs(&word) {
                Ok(jobs) => named.extend(jobs.0),
                Err(_) => {
                    return message(&format!("scancel: error: Invalid job id {word}"));
                }
            }
        }
        let session = connect()?;
        let targets = match filtered {
            false => named,
            true => self.matching(&session, &named, &states).await?,
        };
        // A job ends by KILL as by a cancel.
        if let Some(number) = signal.filter(|number| *number != 9) {
            let target = match (self.full, self.batch) {
                (true, _) => SignalTarget::All,
                (false, true) => SignalTarget::Script,
                (false, false) => SignalTarget::Steps,
            };
            return signals::send(&session, &targets, number, target).await;
        }
        let mut code = 0;
        for job in targets {
            if let Err(failed) = session.client.act(job, JobVerb::Cancel).await {
                code = code.max(judge(job, &failed)?);
            }
        }
        Ok(code)
    }

    async fn matching(
        &self,
        session: &CommandSession,
        named: &[JobRef],
        states: &StateFilter,
    ) -> Result<Vec<JobRef>, SlurmFailure> {
        let mut users = words(&self.user);
        let who = session.client.who_am_i().await?;
        if self.me || (users.is_empty() && who.role == "user") {
            // Those of others would not be found.
            users.push(who.user);
        }
        let jobs = named.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let filter = RecordFilter {
            jobs: (!named.is_empty()).then_some(jobs),
            user: (!users.is_empty()).then(|| users.join(",")),
            name: (!self.name.is_empty()).then(|| words(&self.name).join(",")),
            ..RecordFilter::default()
        };
        let records = session.client.records(&filter).await?;
        let accounts = words(&self.account);
        let meant = |job: &&JobRecord| {
            let state = SlurmState::of(job);
            !state.is_over()
                && (self.state.is_empty() || states.has(state.accounted()) || states.has(state))
                && (accounts.is_empty() || accounts.contains(&job.account))
                // One member represents its gang.
                && job.rank.unwrap_or(0) == 0
        };
        let jobs = records.jobs.iter().filter(meant);
        Ok(jobs.map(reference).collect())
    }
}

/// Names one job. The number of an array's first task would mean the whole array.
fn reference(job: &JobRecord) -> JobRef {
    let number = tessera_model::JobId::from_number;
    match job.array_index {
        Some(index) => JobRef::Task { array: number(job.submission), index },
        None => JobRef::Job(number(job.id)),
    }
}

/// Splits the words at commas and blanks outside of brackets: `1,2_[3,4]`.
fn words_of_jobs(given: &[String]) -> Vec<String> {
    let mut words = Vec::new();
    for text in given {
        let (mut word, mut inside) = (String::new(), false);
        for letter in text.chars() {
            match letter {
                '[' | ']' => {
                    inside = letter == '[';
                    word.push(letter);
                }
                ',' | ' ' if !inside => words.push(std::mem::take(&mut word)),
                _ => word.push(letter),
            }
        }
        words.push(word);
    }
    words.retain(|word| !word.is_empty());
    words
}

/// As in Slurm, an unknown or ended job is not an error, but another user's job is.
fn judge(job: JobRef, failed: &ClientError) -> Result<u8, SlurmFailure> {
    match failed.status() {
        Some(404 | 409) => Ok(0),
        Some(403) => {
            eprintln!("scancel: error: Kill job error on job id {job}: Access/permission denied");
            Ok(1)
        }
        Some(_) => {
            eprintln!("scancel: error: Kill job error on job id {job}: {failed}");
            Ok(1)
        }
        None => Err(SlurmFailure::Message(format!("scancel: error: {failed}"))),
    }
}

fn message(text: &str) -> Done {
    Err(SlurmFailure::Message(text.to_owned()))
}

/// Signals by number and name, as `kill -l` has them.
const SIGNALS: &[(&str, u8)] = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("URG", 23),
    ("WINCH", 28),
];

/// Returns the number of a signal, which may be named with or without its prefix.
fn signal_named(text: &str) -> Option<i32> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let known = |(word, number): &&(&str, u8)| *word == name || text == number.to_string();
    SIGNALS.iter().find(known).map(|(_, number)| i32::from(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_named_and_numbered() {
        assert_eq!(signal_named("SIGTERM"), Some(15));
        assert_eq!(signal_named("usr2"), Some(12));
        assert_eq!(signal_named("10"), Some(10));
        assert_eq!(signal_named("FOO"), None);
    }

    #[test]
    fn commas_in_brackets_do_not_separate_jobs() {
        let given = ["1,2_[3,5-6] 7".to_owned(), "8".to_owned()];

        assert_eq!(words_of_jobs(&given), ["1", "2_[3,5-6]", "7", "8"]);
    }

    #[test]
    fn options_may_follow_jobs() {
        let scancel = Scancel::try_parse_from(["scancel", "64", "--signal", "USR2"]).unwrap();

        assert_eq!(
            (scancel.jobs, scancel.signal.as_deref()),
            (vec!["64".to_owned()], Some("USR2"))
        );
    }
}
