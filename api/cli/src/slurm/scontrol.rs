//! `scontrol`: shows and changes jobs and nodes.

use clap::Parser;
use tessera_api_types::{OperatorRequest, UpdateRequest};
use tessera_client::{ClientError, JobVerb, OperatorVerb};
use tessera_model::JobRef;

use super::processes::processes;
use super::times::now;
use super::{Done, SlurmFailure, VERSION, connect, hosts, show, write_out};
use crate::clock_time::ClockTime;
use crate::jobs::parse_jobs;
use crate::session::CommandSession;
use crate::span::TimeLimit;

/// How often `wait_job` looks at a job.
const JOB_LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(500);

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
    /// show, write, listpids, hold, release, requeue, wait_job, update, ping, version and their arguments
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
        let is_word = |word: &&str| !word.starts_with('-') || *word == "-";
        let words: Vec<&str> = self.words.iter().map(String::as_str).filter(is_word).collect();
        let command = words.first().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
        let rest = words.get(1..).unwrap_or_default();
        match command.as_str() {
            _ if self.version => version(),
            "version" => version(),
            "ping" => ping().await,
            "show" => self.show(rest).await,
            "hold" | "uhold" => act(rest, JobVerb::Hold).await,
            "release" => act(rest, JobVerb::Release).await,
            "requeue" => act(jobs_to_requeue(rest), JobVerb::Requeue).await,
            "requeuehold" => {
                let jobs = jobs_to_requeue(rest);
                match act(jobs, JobVerb::Requeue).await? {
                    0 => act(jobs, JobVerb::Hold).await,
                    code => Ok(code),
                }
            }
            "update" => update(rest).await,
            "write" => write(rest).await,
            "listpids" => listpids(rest),
            "wait_job" => wait_job(rest).await,
            "completing" => Ok(0),
            "reconfigure" | "shutdown" | "takeover" | "setdebug" | "reboot" | "create"
            | "delete" | "abort" | "power" | "top" | "notify" => message(&format!(
                "{command} is not supported: an operator manages the cluster by its settings and by tessera"
            )),
            "" => {
                message("scontrol: error: no command: write show, hold, release, requeue or update")
            }
            "suspend" | "resume" => suspend(&command, rest).await,
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
            "hostlist" => hostlist(name, false),
            "hostlistsorted" => hostlist(name, true),
            "config" => show::config(),
            word if is_short_for(word, "jobs") => {
                show::jobs(name, self.details, self.oneliner).await
            }
            word if is_short_for(word, "nodes") => show::nodes(name, self.oneliner).await,
            word if is_short_for(word, "partitions") => show::partition(self.oneliner).await,
            "step" | "steps" => show::steps(name, self.oneliner).await,
            word if is_short_for(word, "reservations") => {
                write_out("No reservations in the system\n")?;
                Ok(0)
            }
            word if is_short_for(word, "licenses") => {
                write_out("No licenses configured in Slurm.\n")?;
                Ok(0)
            }
            "topology" => message("scontrol: error: No topology information available"),
            "daemons" => {
                write_out("slurmctld slurmd\n")?;
                Ok(0)
            }
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

fn hostlist(list: Option<String>, is_sorted: bool) -> Done {
    let Some(mut list) = list.filter(|list| !list.is_empty()) else {
        return message("scontrol: error: host list is empty");
    };
    if list.starts_with('/') {
        // One name a line.
        list = match std::fs::read_to_string(&list) {
            Ok(text) => text.split_whitespace().collect::<Vec<_>>().join(","),
            Err(error) => {
                return message(&format!("scontrol: error: Could not open file {list}: {error}"));
            }
        };
    }
    let mut names =
        hosts::expand(&list).map_err(|bad| SlurmFailure::Message(format!("{bad}: {list}")))?;
    if is_sorted {
        names.sort_by_key(|name| hosts::order(name));
        names.dedup();
    }
    write_out(&format!("{}\n", hosts::compress(&names)))?;
    Ok(0)
}

/// Leaves out the words that may precede the jobs of `requeue`: `incomplete` and `State=SpecialExit`.
fn jobs_to_requeue<'w>(rest: &'w [&'w str]) -> &'w [&'w str] {
    let is_option = |word: &str| {
        let word = word.to_ascii_lowercase();
        word == "incomplete" || word.starts_with("state=")
    };
    let options = rest.iter().take_while(|word| is_option(word)).count();
    rest.get(options..).unwrap_or_default()
}

/// `scontrol write batch_script 42 [FILE]`: the script as it was submitted.
async fn write(rest: &[&str]) -> Done {
    let [what, job, file @ ..] = rest else {
        return message("too few arguments for keyword:write");
    };
    if !is_short_for(&what.to_ascii_lowercase(), "batch_script") {
        return message(&format!("invalid write argument:{what}"));
    }
    let Some(number) = super::squeue::parse_job(job) else {
        return message("scontrol: error: job id is not valid");
    };
    let script = match connect()?.client.script(number).await {
        Ok(script) => script,
        Err(failed) if failed.status() == Some(404) => {
            return message(
                "scontrol: error: job script retrieval failed: Invalid job id specified",
            );
        }
        Err(failed) => {
            return message(&format!("scontrol: error: job script retrieval failed: {failed}"));
        }
    };
    let name = match file.first() {
        Some(&"-") => {
            write_out(&script)?;
            return Ok(0);
        }
        Some(name) => (*name).to_owned(),
        None => format!("slurm-{job}.sh"),
    };
    let written = std::fs::write(&name, &script).and_then(|()| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&name, std::fs::Permissions::from_mode(0o700))
    });
    if let Err(error) = written {
        return message(&format!("scontrol: error: failed to open file `{name}`: {error}"));
    }
    write_out(&format!("batch script for job {job} written to {name}\n"))?;
    Ok(0)
}

/// `scontrol listpids [42[.0]]`: the processes of jobs on this node.
fn listpids(rest: &[&str]) -> Done {
    let of = rest.first().copied();
    let (job, step) = match of.and_then(|word| word.split_once('.')) {
        Some((job, step)) => (Some(job), Some(step)),
        None => (of, None),
    };
    let mut found = processes();
    found.retain(|process| {
        job.is_none_or(|job| process.job.to_string() == job)
            && step.is_none_or(|step| process.step_name() == step)
    });
    if found.is_empty()
        && let Some(job) = job
    {
        let node = std::env::var("SLURMD_NODENAME").unwrap_or_else(|_| "(null)".to_owned());
        eprintln!("There are no steps for job {job} on node {node}.");
    }
    let line = |cells: [&str; 5]| {
        let [pid, job, step, local, global] = cells;
        format!("{pid:<8} {job:<8} {step:<8} {local:<7} {global}\n")
    };
    let mut text = line(["PID", "JOBID", "STEPID", "LOCALID", "GLOBALID"]);
    for process in &found {
        let number = |number: Option<u32>| {
            let text = number.map_or_else(|| "-".to_owned(), |number| number.to_string());
            format!("{text:<8}")
        };
        text += &line([
            &process.pid.to_string(),
            &process.job.to_string(),
            &process.step_name(),
            number(process.task.map(|(local, _)| local)).trim_end(),
            &number(process.task.map(|(_, rank)| rank)),
        ]);
    }
    write_out(&text)?;
    Ok(u8::from(found.is_empty() && job.is_some()))
}

/// `scontrol wait_job 42`: waits until a job has its nodes.
async fn wait_job(rest: &[&str]) -> Done {
    let Some(word) = rest.first() else {
        return message("too few arguments for keyword:wait_job");
    };
    let Some(job) = super::squeue::parse_job(word) else {
        return message(&format!("Invalid job id specified for job {word}"));
    };
    let client = connect()?.client;
    loop {
        let view = match client.job(job).await {
            Ok(found) => found.job,
            Err(failed) if failed.status() == Some(404) => {
                return message(&format!("Invalid job id specified for job {word}"));
            }
            Err(failed) => return Err(failed.into()),
        };
        match view.state.as_str() {
            "queued" | "held" | "placing" | "starting" => {}
            "running" | "stopping" => {
                eprintln!("scontrol: Nodes are ready for job {word}");
                return Ok(0);
            }
            _ => return message(&format!("scontrol: Job {word} no longer running")),
        }
        tokio::time::sleep(JOB_LOOK_EVERY).await;
    }
}

/// `scontrol suspend 42`, which Slurm offers to operators only. A stopped program would keep its GPU memory, so nobody
/// else could use the slice. The message names what is right instead.
async fn suspend(command: &str, rest: &[&str]) -> Done {
    if rest.is_empty() {
        return message(&format!("too few arguments for keyword:{command}"));
    }
    let client = connect()?.client;
    for word in split_jobs(&rest.join(",")) {
        let Some(job) = super::squeue::parse_job(&word) else {
            return message(&format!("Invalid job id specified for job {word}"));
        };
        match client.job(job).await {
            Ok(_) => {}
            Err(failed) if failed.status() == Some(404) => {
                return message(&format!("Invalid job id specified for job {word}"));
            }
            Err(failed) => return Err(failed.into()),
        }
    }
    let signal = if command == "suspend" { "STOP" } else { "CONT" };
    message(&format!(
        "Requested operation not supported on this system: a stopped job would keep its slice and its GPU memory. \
         Write scontrol requeue JOB to give them to others, or scancel --full --signal={signal} JOB for its processes"
    ))
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
            "timelimit" => match value.strip_prefix('+').or_else(|| value.strip_prefix('-')) {
                Some(span) => {
                    let span: TimeLimit = span.parse().map_err(|_| unreadable())?;
                    let secs = span.secs().ok_or_else(unreadable)?;
                    let now = show::time_limit(&job).await?.ok_or_else(unreadable)?;
                    let next = match value.starts_with('+') {
                        true => now.checked_add(secs),
                        false => now.checked_sub(secs).filter(|secs| *secs > 0),
                    };
                    change.time_limit_secs = Some(next.ok_or_else(unreadable)?);
                }
                None => {
                    let limit: TimeLimit = value.parse().map_err(|_| unreadable())?;
                    change.time_limit_secs = Some(limit.secs().unwrap_or(0));
                }
            },
            "deadline" => {
                let at = value.parse::<ClockTime>().ok().and_then(|time| time.after_now().ok());
                change.deadline = Some(at.ok_or_else(unreadable)?);
            }
            "dependency" => change.dependency = Some((*value).to_owned()),
            "jobname" | "name" => change.name = Some((*value).to_owned()),
            "comment" => change.comment = Some((*value).to_owned()),
            "requeue" => {
                let on_lost = match *value {
                    "0" => "fail",
                    "1" => "requeue",
                    _ => return Err(unreadable()),
                };
                change.on_lost = Some(on_lost.to_owned());
            }
            "starttime" | "eligibletime" => {
                let at: ClockTime = value.parse().map_err(|_| unreadable())?;
                change.begin = Some(at.after_now().map_err(|_| unreadable())?);
            }
            "arraytaskthrottle" => {
                change.array_limit = Some(value.parse().map_err(|_| unreadable())?);
            }
            "partition" | "qos" | "account" | "numnodes" | "numcpus" | "numtasks"
            | "minmemorynode" | "minmemorycpu" | "gres" | "trespernode" | "features"
            | "reqnodelist" | "excnodelist" => {
                return message(&format!(
                    "Update of this parameter is not supported: {word}\nRequest aborted\n\
                     What a job requests of the cluster was checked at its submit: cancel the job and submit it again"
                ));
            }
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
    fn the_words_before_the_jobs_of_requeue_are_left_out() {
        assert_eq!(jobs_to_requeue(&["Incomplete", "42"]), ["42"]);
        assert_eq!(jobs_to_requeue(&["State=SpecialExit", "42,43"]), ["42,43"]);
        assert_eq!(jobs_to_requeue(&["42_1"]), ["42_1"]);
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
