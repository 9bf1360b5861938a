//! `scontrol show`: jobs, nodes, the partition and the settings.

use tessera_api_types::{NodeDetails, RecordFilter};

use super::job::{SlurmJob, gather, uid};
use super::partitions::{Partition, names_of};
use super::running_steps::{RunningStep, running_steps};
use super::sinfo::NodeLoad;
use super::squeue::parse_job;
use super::state::{SlurmState, reason};
use super::times::{local, long_span};
use super::{Done, SlurmFailure, connect, scontrol, write_out};
use crate::submit::SCRIPT_VARIABLE;

/// Joins the lines of a record: as Slurm does, or on one line.
fn record(lines: &[String], oneliner: bool) -> String {
    match oneliner {
        true => lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ") + "\n",
        false => lines.join("\n   ") + "\n\n",
    }
}

/// Shows a job, or all that have not ended.
pub async fn jobs(name: Option<String>, details: bool, oneliner: bool) -> Done {
    let invalid =
        || SlurmFailure::Message("slurm_load_jobs error: Invalid job id specified".to_owned());
    if name.as_deref().is_some_and(|name| parse_job(name).is_none()) {
        return Err(invalid());
    }
    let filter = RecordFilter {
        recent_secs: Some(super::squeue::RECENT_SECS),
        jobs: name.clone(),
        reasons: true,
        specs: true,
        ..RecordFilter::default()
    };
    let found = gather(connect()?.client.records(&filter).await?);
    if found.is_empty() && name.is_some() {
        return Err(invalid());
    }
    let text = match found.is_empty() {
        true => "No jobs in the system\n".to_owned(),
        false => found.iter().map(|job| record(&job_lines(job, details), oneliner)).collect(),
    };
    write_out(&text)?;
    Ok(0)
}

/// Returns the script of a job, if this process is in it: from elsewhere only its name is known.
fn own_script(job: u64) -> Option<String> {
    let own: u64 = std::env::var("TESSERA_JOB_ID").ok()?.parse().ok()?;
    std::env::var(SCRIPT_VARIABLE).ok().filter(|_| own == job)
}

/// Returns exit code and signal of the script: accounting shows none of a cancelled job.
fn own_exit(job: &SlurmJob) -> String {
    match (&job.record.exit_code, job.state) {
        (Some(code), SlurmState::Cancelled) => code.clone(),
        _ => job.exit_code(),
    }
}

/// Returns the time limit of a job in seconds, if it has one.
pub async fn time_limit(job: &str) -> Result<Option<u64>, SlurmFailure> {
    let filter =
        RecordFilter { jobs: Some(job.to_owned()), specs: true, ..RecordFilter::default() };
    let found = gather(connect()?.client.records(&filter).await?);
    Ok(found.first().and_then(SlurmJob::time_limit))
}

/// Shows what runs in jobs: their scripts, and the steps that `srun` started.
pub async fn steps(name: Option<String>, oneliner: bool) -> Done {
    let job = name.as_deref().map(|name| name.split('.').next().unwrap_or_default().to_owned());
    let missing =
        || SlurmFailure::Message("slurm_get_job_steps error: Invalid job id specified".to_owned());
    if job.as_deref().is_some_and(|job| parse_job(job).is_none()) {
        return Err(missing());
    }
    let filter = RecordFilter { jobs: job, specs: true, runs: true, ..RecordFilter::default() };
    let mut shown = running_steps(gather(connect()?.client.records(&filter).await?));
    if let Some(name) = &name {
        shown.retain(|step| step.is_named(name));
        if shown.is_empty() {
            return Err(missing());
        }
    }
    let text: String = shown.iter().map(|step| record(&step_lines(step), oneliner)).collect();
    write_out(&text)?;
    Ok(0)
}

fn step_lines(step: &RunningStep) -> Vec<String> {
    let job = &step.job;
    let limit = job.time_limit().map_or_else(|| "UNLIMITED".to_owned(), long_span);
    let start = local(step.started_at(), "Unknown");
    let user = uid(&job.record.user);
    let nodes = step.nodes();
    let count = super::hosts::expand(&nodes).map_or(1, |names| names.len());
    let cpus = step.tasks().saturating_mul(job.cpus_per_task());
    vec![
        format!("StepId={} UserId={user} StartTime={start} TimeLimit={limit}", step.id()),
        format!("State=RUNNING Partition={} NodeList={nodes}", job.partition()),
        format!(
            "Nodes={count} CPUs={cpus} Tasks={} Name={} Network=(null)",
            step.tasks(),
            step.name()
        ),
        format!("TRES=cpu={cpus},node={count}"),
        "ResvPorts=(null)".to_owned(),
        "CPUFreqReq=Default".to_owned(),
        "SrunHost:Pid=(null):0".to_owned(),
    ]
}

/// Fills in the patterns of an output file, as far as they are the same on every node.
fn named_file(pattern: &str, job: &SlurmJob) -> String {
    let record = &job.record;
    let mut text = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let (width, coded) = after.split_at(digits);
        let width = width.parse::<usize>().unwrap_or(0).min(10);
        let code = coded.chars().next();
        let number = |number: u64| format!("{number:0width$}");
        let value = match code {
            Some('j' | 'J') => Some(number(job.raw_id())),
            Some('A') => Some(number(job.array_id())),
            Some('a') => record.array_index.map(|index| number(index.into())),
            Some('x') => Some(record.name.clone()),
            Some('u') => Some(record.user.clone()),
            Some('n' | 't') => Some(number(0)),
            Some('s') => Some("batch".to_owned()),
            Some('N') => job.nodes.first().cloned(),
            Some('%') => Some("%".to_owned()),
            _ => None,
        };
        match (value, code) {
            (Some(value), Some(code)) => {
                text.push_str(&value);
                rest = &coded[code.len_utf8()..];
            }
            _ => {
                text.push('%');
                rest = after;
            }
        }
    }
    text + rest
}

fn list_or_null(nodes: &[String]) -> String {
    match nodes {
        [] => "(null)".to_owned(),
        nodes => super::hosts::compress(nodes),
    }
}

fn job_lines(job: &SlurmJob, details: bool) -> Vec<String> {
    let (record, request) = (&job.record, &job.request);
    let array = record.array_index.map_or_else(String::new, |index| {
        let throttle = record
            .array_limit
            .map_or_else(String::new, |limit| format!(" ArrayTaskThrottle={limit}"));
        format!(" ArrayJobId={} ArrayTaskId={index}{throttle}", record.submission)
    });
    let number = uid(&record.user);
    let limit = job.time_limit().map_or_else(|| "UNLIMITED".to_owned(), long_span);
    let ends = job.time_limit().zip(record.started_at).and_then(|(limit, start)| {
        start.checked_add(time::Duration::seconds(i64::try_from(limit).ok()?))
    });
    let batch_host = match job.nodes.first().filter(|_| job.state != SlurmState::Pending) {
        Some(node) => vec![format!("BatchHost={node}")],
        None => Vec::new(),
    };
    let nodes = job.node_list();
    let (nodes, count) = match nodes.is_empty() {
        true => ("(null)".to_owned(), format!("{0}-{0}", request.nodes)),
        false => (nodes, job.node_count().to_string()),
    };
    let mut lines = vec![
        format!("JobId={}{array} JobName={}", job.raw_id(), record.name),
        format!("UserId={0}({number}) GroupId={0}({number}) MCS_label=N/A", record.user),
        format!(
            "Priority={} Nice={} Account={} QOS={}",
            job.priority(),
            job.queue_rank().nice,
            record.account,
            job.qos()
        ),
        format!(
            "JobState={} Reason={} Dependency={}",
            job.state.long(),
            reason(record),
            job.dependency()
        ),
        format!(
            "Requeue={} Restarts={} BatchFlag=1 Reboot=0 ExitCode={}",
            u8::from(job.is_requeued()),
            record.attempts.saturating_sub(1),
            own_exit(job)
        ),
        format!("RunTime={} TimeLimit={limit} TimeMin=N/A", long_span(job.elapsed())),
        format!(
            "SubmitTime={} EligibleTime={}",
            local(Some(record.submitted_at), "Unknown"),
            local(Some(job.eligible_at()), "Unknown")
        ),
        format!(
            "StartTime={} EndTime={} Deadline={}",
            // One that waits for a time shows that, as in Slurm.
            local(record.started_at.or_else(|| job.begin()), "Unknown"),
            local(record.ended_at.or(ends), "Unknown"),
            local(request.deadline, "N/A")
        ),
        format!("Partition={} AllocNode:Sid=N/A", job.partition()),
        format!(
            "ReqNodeList={} ExcNodeList={}",
            list_or_null(&request.nodelist),
            list_or_null(&request.exclude)
        ),
        format!("NodeList={nodes}"),
    ];
    lines.extend(batch_host);
    lines.extend([
        format!(
            "NumNodes={count} NumCPUs={} NumTasks={} CPUs/Task={} ReqB:S:C:T=0:0:*:*",
            job.cpus(),
            job.tasks(),
            job.cpus_per_task()
        ),
        format!("TRES={}", job.tres()),
        format!(
            "MinCPUsNode={} MinMemoryNode={} MinTmpDiskNode=0",
            job.cpus_on_node(),
            job.memory()
        ),
        format!("Features={} DelayBoot=00:00:00", request.gpu_model.as_deref().unwrap_or("(null)")),
        "OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)".to_owned(),
        format!("Command={}", own_script(record.id).unwrap_or_else(|| record.name.clone())),
        format!("WorkDir={}", request.work_dir.as_deref().unwrap_or("(null)")),
    ]);
    if let Some(comment) = job.comment() {
        lines.push(format!("Comment={comment} "));
    }
    let file = |pattern: &Option<String>| pattern.as_deref().map(|text| named_file(text, job));
    let output = file(&request.stdout).unwrap_or_default();
    lines.push(format!("StdErr={}", file(&request.stderr).unwrap_or_else(|| output.clone())));
    lines.push("StdIn=/dev/null".to_owned());
    lines.push(format!("StdOut={output}"));
    lines.push("Power=".to_owned());
    lines.push(format!("TresPerNode={}", job.gres()));
    if details && let (Some(node), Some(gpu)) = (&record.node, record.gpu_index) {
        lines.push(format!("JOB_GRES=gpu:{}", request.gpus));
        lines.push(format!("  Nodes={node} CPU_IDs=N/A Mem=0 GRES=gpu:1(IDX:{gpu})"));
    }
    lines
}

/// Shows nodes.
pub async fn nodes(name: Option<String>, oneliner: bool) -> Done {
    let requested = name
        .as_deref()
        .map(super::hosts::expand)
        .transpose()
        .map_err(|bad| SlurmFailure::Message(bad.to_string()))?;
    let session = connect()?;
    let partitions = Partition::all(&session.client.info().await?);
    let all = session.client.nodes().await?.items;
    let mut text = String::new();
    for node in &all {
        if requested.as_ref().is_none_or(|requested| requested.contains(&node.name)) {
            text += &record(&node_lines(node, &names_of(&partitions, node)), oneliner);
        }
    }
    if let Some(missing) =
        requested.iter().flatten().find(|name| !all.iter().any(|node| node.name == **name))
    {
        write_out(&text)?;
        return Err(SlurmFailure::Message(format!("Node {missing} not found")));
    }
    write_out(&text)?;
    Ok(0)
}

fn node_lines(node: &NodeDetails, partitions: &[String]) -> Vec<String> {
    let load = NodeLoad::of(node);
    let memory = node.memory_bytes >> 20;
    vec![
        format!("NodeName={} Arch=x86_64 CoresPerSocket={}", node.name, node.cores),
        format!("CPUAlloc={} CPUEfctv={1} CPUTot={1} CPULoad=N/A", load.cpus_used, node.cores),
        format!("AvailableFeatures={}", load.features()),
        format!("ActiveFeatures={}", load.features()),
        format!("Gres={}", load.gres()),
        format!("NodeAddr={0} NodeHostName={0} Version={1}", node.name, node.agent_version),
        format!("RealMemory={memory} AllocMem=0 FreeMem=N/A Sockets=1 Boards=1"),
        format!(
            "State={} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A",
            load.long()
        ),
        format!("Partitions={} ", partitions.join(",")),
        format!("LastBusyTime={}", local(node.last_seen_at, "Unknown")),
        format!(
            "CfgTRES=cpu={0},mem={memory}M,billing={0},gres/gpu={1}",
            node.cores,
            node.gpus.len()
        ),
        format!("AllocTRES={}", load.allocated()),
        "CapWatts=n/a".to_owned(),
        match &node.drained {
            Some(drained) => format!("Reason={}", drained.reason.as_deref().unwrap_or("drained")),
            None => "CurrentWatts=0 AveWatts=0".to_owned(),
        },
    ]
}

/// Shows the partitions.
pub async fn partition(oneliner: bool) -> Done {
    let session = connect()?;
    let partitions = Partition::all(&session.client.info().await?);
    let nodes = session.client.nodes().await?.items;
    let mut text = String::new();
    for partition in partitions {
        let own: Vec<_> = nodes.iter().filter(|node| partition.has(node)).collect();
        text += &record(&partition_lines(&partition, &own), oneliner);
    }
    write_out(&text)?;
    Ok(0)
}

fn partition_lines(partition: &Partition, nodes: &[&NodeDetails]) -> Vec<String> {
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let cores: u64 = nodes.iter().map(|node| u64::from(node.cores)).sum();
    let gpus: usize = nodes.iter().map(|node| node.gpus.len()).sum();
    let default = if partition.is_default { "YES" } else { "NO" };
    vec![
        format!("PartitionName={}", partition.name),
        "AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL".to_owned(),
        format!("AllocNodes=ALL Default={default} QoS=N/A"),
        "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO".to_owned(),
        "MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED"
            .to_owned(),
        format!("Nodes={}", super::hosts::compress(&names)),
        "PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO".to_owned(),
        format!("State=UP TotalCPUs={cores} TotalNodes={} SelectTypeParameters=NONE", nodes.len()),
        format!("TRES=cpu={cores},node={},billing={cores},gres/gpu={gpus}", nodes.len()),
    ]
}

/// Shows the settings that clients read.
pub fn config() -> Done {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let recent = format!("{} sec", super::squeue::RECENT_SECS);
    let version = super::VERSION.trim_start_matches("slurm-wlm ");
    let settings = [
        ("AccountingStorageType", "accounting_storage/slurmdbd"),
        ("ClusterName", "tessera"),
        ("GresTypes", "gpu"),
        ("MaxArraySize", "10000"),
        ("MaxJobCount", "1000000"),
        ("MinJobAge", recent.as_str()),
        ("SchedulerType", "sched/tessera"),
        ("SelectType", "select/tessera"),
        ("SLURM_VERSION", version),
        ("SlurmctldHost[0]", host.trim()),
    ];
    let lines = settings.map(|(name, value)| format!("{name:<23} = {value}\n"));
    let head = format!("Configuration data as of {}\n", scontrol::current_time());
    write_out(&(head + &lines.concat()))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::super::job::minutes;
    use super::super::job::samples::{record as job, records};
    use super::*;

    #[test]
    fn a_job_has_the_lines_that_scripts_search() {
        let mut running = job(51, 50, Some(1));
        running.state = "running".to_owned();
        running.node = Some("g3".to_owned());
        let jobs = gather(records(vec![running]));

        let text = record(&job_lines(&jobs[0], false), false);

        for line in [
            "JobId=51 ArrayJobId=50 ArrayTaskId=1 JobName=train",
            "JobState=RUNNING Reason=None Dependency=(null)",
            "Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0",
            "BatchHost=g3",
            "NodeList=g3",
            "StdIn=/dev/null",
        ] {
            assert!(text.lines().any(|found| found.trim() == line), "{line} is not in\n{text}");
        }
        assert!(record(&job_lines(&jobs[0], false), true).lines().count() == 1);
    }

    #[test]
    fn output_files_are_named_as_they_are_on_the_disk() {
        let mut running = job(51, 50, Some(3));
        running.node = Some("g3".to_owned());
        let job = &gather(records(vec![running]))[0];

        let named = |pattern: &str| named_file(pattern, job);

        assert_eq!(named("/d/%x-%A_%4a.out"), "/d/train-50_0003.out");
        assert_eq!(named("slurm-%j.out %u %N %% %z%"), "slurm-51.out ada g3 % %z%");
    }

    #[test]
    fn limits_are_counted_in_minutes() {
        assert_eq!([minutes(60), minutes(61)], [1, 2]);
    }
}
