//! `scontrol`: shows and changes jobs and nodes.

use clap::Parser;
use tessera_api_types::{OperatorRequest, UpdateRequest};
use tessera_client::{ClientError, JobVerb, OperatorVerb};
use tessera_model::JobRef;

use super::times::now;
use super::{Done, SlurmFailure, VERSION, connect, hosts, show, write_out};
use crate::clock_time::ClockTime;
use crate::jobs::parse_jobs;
use crate::session::CommandSession;
use crate::span::TimeLimit;

/// Shows and changes jobs and nodes, as Slurm's scontrol does.
#[derive(Parser)]
pub struct Scontrol {
    /// One line for each record
    #[arg(short, long)]
    oneliner: bool,
    /// More details
    #[arg(short, long)]
    details: bool,
    /// Accepted: everything is shown
    #[arg(short, long)]
    all: bool,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    /// show, hold, release, requeue, update, ping, version and their arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

impl Scontrol {
    /// Carries out the command.
    pub async fn run(mut self) -> Done {
        // Options may also follow the command.
        for word in &self.words {
            self.oneliner |= matches!(word.as_str(), "-o" | "--oneliner");
            self.details |= matches!(word.as_str(), "-d" | "-dd" | "--details");
        }
        let words: Vec<&str> =
            self.words.iter().map(String::as_str).filter(|word| !word.starts_with('-')).collect();
        let command = words.first().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
        let rest = words.get(1..).unwrap_or_default();
        match command.as_str() {
            _ if self.version => version(),
            "version" => version(),
            "ping" => ping().await,
            "show" => self.show(rest).await,
            "hold" | "uhold" => act(rest, JobVerb::Hold).await,
            "release" => act(rest, JobVerb::Release).await,
            "requeue" => act(rest, JobVerb::Requeue).await,
            "requeuehold" => {
                act(rest, JobVerb::Requeue).await?;
                act(rest, JobVerb::Hold).await
            }
            "update" => update(rest).await,
            "" => {
                message("scontrol: error: no command: write show, hold, release, requeue or update")
            }
            "suspend" | "resume" => message("Requested operation not supported on this system"),
            other => message(&format!("invalid keyword: {other}")),
        }
    }

    async fn show(&self, rest: &[&str]) -> Done {
        let (what, names) = match rest.split_first() {
            Some((what, names)) => (what.to_ascii_lowercase(), names),
            None => return message("too few arguments for keyword:show"),
        };
        // `show job=42` is `show job 42`.
        let (what, name) = match what.split_once('=') {
            Some((what, name)) => (what.to_owned(), Some(name.to_owned())),
            None => (what, names.first().map(|name| (*name).to_owned())),
        };
        match what.as_str() {
            "hostnames" | "hostname" => hostnames(name),
            "hostlist" | "hostlistsorted" => hostlist(name),
            "config" => show::config(),
            word if is_short_for(word, "jobs") => {
                show::jobs(name, self.details, self.oneliner).await
            }
            word if is_short_for(word, "nodes") => show::nodes(name, self.oneliner).await,
            word if is_short_for(word, "partitions") => show::partition(self.oneliner).await,
            other => message(&format!("invalid entity:{other} for keyword:show ")),
        }
    }
}

/// Returns whether a word is the beginning of a keyword: `part` means `partitions`.
fn is_short_for(word: &str, keyword: &str) -> bool {
    !word.is_empty() && keyword.starts_with(word)
}

fn version() -> Done {
    write_out(&format!("{VERSION}\n"))?;
    Ok(0)
}

async fn ping() -> Done {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let state = match connect()?.client.info().await {
        Ok(_) => "UP",
        Err(_) => "DOWN",
    };
    write_out(&format!("Slurmctld(primary) at {} is {state}\n", host.trim()))?;
    Ok(u8::from(state == "DOWN"))
}

fn hostnames(list: Option<String>) -> Done {
    let list = list.or_else(|| std::env::var("SLURM_JOB_NODELIST").ok());
    let Some(list) = list.filter(|list| !list.is_empty()) else {
        return message("scontrol: error: host list is empty");
    };
    match hosts::expand(&list) {
        Ok(names) => write_out(&names.iter().map(|name| format!("{name}\n")).collect::<String>())?,
        Err(bad) => return message(&format!("{bad}: {list}")),
    }
    Ok(0)
}

fn hostlist(list: Option<String>) -> Done {
    let Some(list) = list.filter(|list| !list.is_empty()) else {
        return message("scontrol: error: host list is empty");
    };
    let names =
        hosts::expand(&list).map_err(|bad| SlurmFailure::Message(format!("{bad}: {list}")))?;
    write_out(&format!("{}\n", hosts::compress(&names)))?;
    Ok(0)
}

/// Applies a verb to each job; messages are those of Slurm.
async fn act(words: &[&str], verb: JobVerb) -> Done {
    let list = words.join(",");
    if list.is_empty() {
        return message(&format!("too few arguments for keyword:{}", verb.word()));
    }
    let session = connect()?;
    let mut code = 0;
    for word in split_jobs(&list) {
        let word = word.trim_start_matches("jobid=").trim_start_matches("JobId=");
        let Ok(jobs) = parse_jobs(word) else {
            eprintln!("Invalid job id specified for job {word}");
            code = 1;
            continue;
        };
        for job in jobs.0 {
            if let Err(failed) = session.client.act(job, verb).await {
                eprintln!("{}", refusal(&session, job, verb, &failed).await?);
                code = 1;
            }
        }
    }
    Ok(code)
}

/// Splits at commas outside of brackets.
fn split_jobs(list: &str) -> Vec<String> {
    let (mut words, mut inside) = (vec![String::new()], false);
    for letter in list.chars() {
        match letter {
            ',' if !inside => words.push(String::new()),
            _ => {
                inside = (inside || letter == '[') && letter != ']';
                if let Some(word) = words.last_mut() {
                    word.push(letter);
                }
            }
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Returns why a job was refused, in Slurm's wording.
async fn refusal(
    session: &CommandSession,
    job: JobRef,
    verb: JobVerb,
    failed: &ClientError,
) -> Result<String, SlurmFailure> {
    match failed.status() {
        None => Err(SlurmFailure::Message(format!("scontrol: error: {failed}"))),
        Some(404) => Ok(format!("Invalid job id specified for job {job}")),
        Some(403) => Ok(format!("Access/permission denied for job {job}")),
        Some(409) if verb == JobVerb::Requeue => {
            let view = session.client.job(job).await?.job;
            match view.ended_at {
                None => Ok(format!("Job is pending execution for job {job}")),
                // A job that has ended keeps its end.
                Some(_) => Ok(format!("Requested operation is presently disabled for job {job}")),
            }
        }
        Some(_) => Ok(format!("{failed} for job {job}")),
    }
}

/// `scontrol update JobId=42 TimeLimit=60`, or of a node.
async fn update(words: &[&str]) -> Done {
    let mut fields = Vec::new();
    for word in words {
        let Some((key, value)) = word.split_once('=') else {
            return message(&format!("Invalid input: {word}\nRequest aborted"));
        };
        fields.push((key.to_ascii_lowercase(), value, *word));
    }
    let of = |name: &str| {
        fields.iter().find(|(key, ..)| key == name).map(|(_, value, _)| (*value).to_owned())
    };
    if let Some(node) = of("nodename") {
        return update_node(&node, of("state"), of("reason")).await;
    }
    let Some(job) = of("jobid").or_else(|| of("job")) else {
        return message("No valid entity in update command");
    };
    let mut change = UpdateRequest::default();
    for (key, value, word) in &fields {
        let unreadable =
            || SlurmFailure::Message(format!("Invalid input: {word}\nRequest aborted"));
        match key.as_str() {
            "jobid" | "job" => {}
            "timelimit" => {
                let limit: TimeLimit = value.parse().map_err(|_| unreadable())?;
                change.time_limit_secs = Some(limit.secs().unwrap_or(0));
            }
            "deadline" => {
                let at = value.parse::<ClockTime>().ok().and_then(|time| time.after_now().ok());
                change.deadline = Some(at.ok_or_else(unreadable)?);
            }
            "dependency" => change.dependency = Some((*value).to_owned()),
            "nice" => change.nice = Some(value.parse().map_err(|_| unreadable())?),
            "priority" => change.priority = Some(priority(value).ok_or_else(unreadable)?),
            _ => {
                return message(&format!(
                    "Update of this parameter is not supported: {word}\nRequest aborted"
                ));
            }
        }
    }
    let session = connect()?;
    let jobs = parse_jobs(&job)
        .map_err(|_| SlurmFailure::Message(format!("Invalid job id specified for job {job}")))?;
    let mut code = 0;
    for job in jobs.0 {
        if let Err(failed) = session.client.update(job, &change).await {
            eprintln!("{}", refusal(&session, job, JobVerb::Hold, &failed).await?);
            code = 1;
        }
    }
    Ok(code)
}

/// Reads a priority as `squeue` shows it: a larger number is served first, in steps of 1,000.
fn priority(text: &str) -> Option<u8> {
    let number: u64 = text.parse().ok()?;
    u8::try_from(9_u64.saturating_sub(number / 1_000)).ok()
}

async fn update_node(node: &str, state: Option<String>, reason: Option<String>) -> Done {
    let state = state.unwrap_or_default().to_ascii_lowercase();
    let verb = match state.as_str() {
        "drain" => OperatorVerb::Drain,
        "resume" | "undrain" | "idle" => OperatorVerb::Undrain,
        other => {
            return message(&format!(
                "Invalid input: State={other}\nRequest aborted\n\
                 valid states are DRAIN, RESUME and UNDRAIN"
            ));
        }
    };
    let session = connect()?;
    let nodes = hosts::expand(node)
        .map_err(|bad| SlurmFailure::Message(format!("{bad}: {node}\nRequest aborted")))?;
    let mut code = 0;
    for node in nodes {
        let request = OperatorRequest { reason: reason.clone(), ..OperatorRequest::default() };
        if let Err(failed) = session.client.send_to_node(&node, verb, &request).await {
            eprintln!("slurm_update error: {failed}");
            code = 1;
        }
    }
    Ok(code)
}

fn message(text: &str) -> Done {
    Err(SlurmFailure::Message(text.to_owned()))
}

/// Returns the current time, for `scontrol show config`.
pub fn current_time() -> String {
    super::times::local(Some(now()), "Unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_split_at_commas_outside_of_brackets() {
        assert_eq!(split_jobs("1,2_[3,4],5"), ["1", "2_[3,4]", "5"]);
    }

    #[test]
    fn keywords_may_be_cut_short() {
        assert!(is_short_for("part", "partitions") && is_short_for("job", "jobs"));
        assert!(!is_short_for("", "jobs") && !is_short_for("jobx", "jobs"));
    }

    #[test]
    fn a_shown_priority_reads_back() {
        for rank in 0..=9_u8 {
            let shown = u64::from(9 - rank) * 1_000 + 1;
            assert_eq!(priority(&shown.to_string()), Some(rank));
        }
    }
}
