//! `tessera gpus`: the layout of every GPU, drawn.

mod availability;
pub(super) mod bar;
mod layout;

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use tessera_model::Bytes;

use super::failure::CommandFailure;
use super::operator::describe_override;
use super::session::{CommandSession, OutputScreen, moment};
use tessera_api_types::{
    ComputeView, FaultView, GpuDetails, GpuListing, InstanceDetails, JobFilter, SharerView,
};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct GpuList {
    #[command(subcommand)]
    verb: Option<GpuVerb>,
    /// Show only GPUs of this node
    #[arg(short = 'w', long, value_name = "NODE")]
    node: Option<String>,
    /// Show their UUIDs too
    #[arg(long)]
    uuid: bool,
}

#[derive(Subcommand)]
enum GpuVerb {
    /// Show, plan and apply layouts by hand
    Layout(layout::LayoutArgs),
}

impl GpuList {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        if let Some(GpuVerb::Layout(verb)) = self.verb {
            return verb.run(session).await;
        }
        let mut gpus = session.client.gpus().await?;
        if let Some(node) = &self.node {
            gpus.items.retain(|gpu| gpu.node == *node);
        }
        let ids = if self.uuid { UuidDisplay::Shown } else { UuidDisplay::Hidden };
        let names = if session.json { JobNames::new() } else { names(session, &gpus).await? };
        session.print(&gpus, |gpus| draw(gpus, ids, &names, session.screen))?;
        Ok(0)
    }
}

/// Display names of the jobs that have a slice, by number.
type JobNames = BTreeMap<u64, String>;

/// Fetches the names of array tasks, since a layout contains only their numbers.
async fn names(session: &CommandSession, gpus: &GpuListing) -> Result<JobNames, CommandFailure> {
    let mut instances = gpus.items.iter().flat_map(|gpu| &gpu.instances);
    let used = |instance: &InstanceDetails| {
        let taken = instance.parts.iter().any(|part| part.job_id.is_some());
        instance.job_id.is_some() || !instance.sharers.is_empty() || taken
    };
    if !instances.any(used) {
        return Ok(JobNames::new());
    }
    let state = Some("placing,starting,running,stopping".to_owned());
    let filter = JobFilter { state, ..JobFilter::default() };
    let page = session.client.all_jobs(&filter, SLICES_MAX).await?;
    Ok(page.items.into_iter().map(|job| (job.id, job.name_id)).collect())
}

/// Above the number of running jobs in any cluster that is displayed in a terminal.
const SLICES_MAX: usize = 10_000;

/// Whether UUIDs are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UuidDisplay {
    /// Below each GPU's name.
    Shown,
    /// Not shown, since they are long and seldom needed.
    Hidden,
}

/// Draws all GPUs, one below the other, and a legend.
fn draw(gpus: &GpuListing, ids: UuidDisplay, names: &JobNames, screen: OutputScreen) -> String {
    if gpus.items.is_empty() {
        return "No GPU has been reported yet.\n".to_owned();
    }
    let mut text: String = gpus.items.iter().map(|gpu| draw_one(gpu, ids, names, screen)).collect();
    text.push_str(&screen.paint("2", LEGEND));
    text.push('\n');
    text
}

const LEGEND: &str = "width = memory slices; number and name = the job; idle = instance without \
                      a job; · = not partitioned";

fn draw_one(gpu: &GpuDetails, ids: UuidDisplay, names: &JobNames, screen: OutputScreen) -> String {
    let title = format!("{} GPU {}", gpu.node, gpu.index);
    let mut text = format!(
        "{}  {}, {}, MIG {}",
        screen.paint("1", &title),
        gpu.model,
        Bytes::new(gpu.memory_bytes),
        gpu.mig,
    );
    if gpu.health != "healthy" {
        let why = gpu.health_text.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
        text.push_str(&screen.paint("31", &format!("  {}{why}", gpu.health)));
    }
    for (what, set) in
        [("drained", &gpu.drained), ("quarantined", &gpu.quarantined), ("pinned", &gpu.pinned)]
    {
        if let Some(set) = set {
            text.push_str(&screen.paint("33", &format!("  {}", describe_override(what, set))));
        }
    }
    if gpu.changing {
        text.push_str(&screen.paint("33", "  (a layout plan is running)"));
    }
    text.push('\n');
    if ids == UuidDisplay::Shown {
        text.push_str(&format!("{}\n", gpu.id));
    }
    text.push_str(&bar::draw(gpu, names, screen));
    gpu.instances.iter().for_each(|instance| text.push_str(&sharers(instance, names)));
    gpu.instances.iter().for_each(|instance| text.push_str(&parts(instance, names)));
    gpu.instances.iter().for_each(|instance| text.push_str(&trouble(instance)));
    let older = gpu.faults.len().saturating_sub(FAULTS_SHOWN);
    gpu.faults.iter().skip(older).for_each(|seen| text.push_str(&fault(seen)));
    if older > 0 {
        text.push_str(&format!("{older} older faults: tessera gpus --json\n"));
    }
    if let Some(line) = availability::line(gpu) {
        text.push_str(&line);
        text.push('\n');
    }
    text.push('\n');
    text
}

/// Maximum number of faults that are listed below a GPU: the newest.
const FAULTS_SHOWN: usize = 3;

/// Describes what is wrong with an instance.
fn trouble(instance: &InstanceDetails) -> String {
    let Some(trouble) = &instance.trouble else { return String::new() };
    let InstanceDetails { profile, start, state, .. } = instance;
    format!("{profile} at {start} is {state}: {trouble}\n")
}

/// Describes a fault of a GPU.
pub(super) fn fault(fault: &FaultView) -> String {
    let place = fault.start.map(|start| format!(" at {start}")).unwrap_or_default();
    let times = if fault.times > 1 { format!(", {} times", fault.times) } else { String::new() };
    let action = fault.action.replace('_', " ");
    format!("{} {}{place}{times}: {} ({action})\n", moment(fault.at), fault.cause, fault.text)
}

/// Lists the jobs that share an instance, with their shares.
fn sharers(instance: &InstanceDetails, names: &JobNames) -> String {
    let one = |sharer: &SharerView| {
        let number = names.get(&sharer.job_id).cloned();
        let number = number.unwrap_or_else(|| sharer.job_id.to_string());
        let name = sharer.job_name.as_deref().unwrap_or_default();
        let memory = Bytes::new(sharer.memory_bytes);
        match sharer.sm_percent {
            Some(sm) => format!("{number} {name} {sm} % {memory}"),
            None => format!("{number} {name} {memory}"),
        }
    };
    let Some(first) = instance.sharers.first() else { return String::new() };
    let all: Vec<_> = instance.sharers.iter().map(one).collect();
    let (profile, start, user) = (&instance.profile, instance.start, &first.user);
    format!("{profile} at {start} is shared by {user}: {}\n", all.join(", "))
}

/// Lists the compute instances of an instance, with their jobs.
fn parts(instance: &InstanceDetails, names: &JobNames) -> String {
    let one = |part: &ComputeView| {
        let size = format!("{}c at {}", part.slices, part.start);
        match part.job_id {
            Some(job) => {
                let number = names.get(&job).cloned().unwrap_or_else(|| job.to_string());
                format!("{size}: {number} {}", part.job_name.as_deref().unwrap_or_default())
            }
            None => format!("{size}: free"),
        }
    };
    if instance.parts.is_empty() {
        return String::new();
    }
    let all: Vec<_> = instance.parts.iter().map(one).collect();
    let (profile, start) = (&instance.profile, instance.start);
    let of = instance.parts.iter().find_map(|part| part.user.as_ref());
    let of = of.map(|user| format!(" of {user}")).unwrap_or_default();
    let memory = Bytes::new(instance.memory_bytes);
    format!("{profile} at {start} is split, its {memory} shared{of}: {}\n", all.join(", "))
}

#[cfg(test)]
mod tests;
