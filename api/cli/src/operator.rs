//! Administrative overrides of nodes, GPUs and slices: `tessera drain`, `undrain`, `quarantine`,
//! `clear`; and the actions of operators: `tessera events`.

mod doctor;

use std::time::Duration;

use clap::Args;

pub use self::doctor::Doctor;
use super::failure::CommandFailure;
use super::session::{CommandSession, moment, or_dash, table};
use tessera_api_types::{
    AdminOverrideView, ClusterEvents, GpuDetails, NodeDetails, OperatorRequest, OperatorResult,
};
use tessera_client::OperatorVerb;

/// How often progress is read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Args)]
pub struct Drain {
    /// A node, or one of its GPUs: node-a, node-a:0, or a prefix of a GPU's UUID
    #[arg(value_name = "NODE[:GPU]")]
    target: String,
    /// The reason, shown to users
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Wait until no job runs there
    #[arg(long)]
    wait: bool,
}

impl Drain {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let target = find_target(session, &self.target).await?;
        let request = OperatorRequest { reason: self.reason, ..OperatorRequest::default() };
        let result = target.send(session, OperatorVerb::Drain, &request).await?;
        if !session.json && !result.changed {
            session.remark(&format!("{} was already drained", target.name()));
        }
        if self.wait {
            wait_until_empty(session, &target).await?;
        }
        print_result(
            session,
            &result,
            &format!("{} is drained: no new job starts there", target.name()),
        )
    }
}

#[derive(Args)]
pub struct Undrain {
    /// A node, or one of its GPUs: node-a, node-a:0, or a prefix of a GPU's UUID
    #[arg(value_name = "NODE[:GPU]")]
    target: String,
}

impl Undrain {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let target = find_target(session, &self.target).await?;
        let request = OperatorRequest::default();
        let result = target.send(session, OperatorVerb::Undrain, &request).await?;
        print_result(
            session,
            &result,
            &unchanged(result, &target.name(), "undrained", "not drained"),
        )
    }
}

#[derive(Args)]
pub struct Quarantine {
    /// A GPU, or one of its slices: node-a:0, node-a:0/4, node-a:0/2g.10gb@4
    #[arg(value_name = "GPU[/SLICE]")]
    target: String,
    /// The reason, shown to users and operators
    #[arg(long, value_name = "TEXT", required = true)]
    reason: String,
}

impl Quarantine {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let (gpu, slice) = split(&self.target);
        let request =
            OperatorRequest { reason: Some(self.reason), slice, ..OperatorRequest::default() };
        let result = session.client.send_to_gpu(gpu, OperatorVerb::Quarantine, &request).await?;
        let text = unchanged(result, &self.target, "quarantined", "already quarantined");
        print_result(session, &result, &text)
    }
}

#[derive(Args)]
pub struct Clear {
    /// A node, a GPU, or one of its slices: node-a, node-a:0, node-a:0/4, node-a:0/2g.10gb@4
    #[arg(value_name = "NODE|GPU[/SLICE]")]
    target: String,
}

impl Clear {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let nodes = session.client.nodes().await?.items;
        if nodes.iter().any(|node| node.name == self.target) {
            let request = OperatorRequest::default();
            let node = &self.target;
            let result = session.client.send_to_node(node, OperatorVerb::Clear, &request).await?;
            let name = format!("node {node}");
            let text =
                unchanged(result, &name, "cleared; start its agent again", "not quarantined");
            return print_result(session, &result, &text);
        }
        let (gpu, slice) = split(&self.target);
        let request = OperatorRequest { slice, ..OperatorRequest::default() };
        let result = session.client.send_to_gpu(gpu, OperatorVerb::Clear, &request).await?;
        let text = match result.changed {
            true => format!("{} is cleared; its node checks it again", self.target),
            false => {
                format!("{} was not quarantined; its node checks it again", self.target)
            }
        };
        print_result(session, &result, &text)
    }
}

#[derive(Args)]
pub struct Events {
    /// List only actions on this node
    #[arg(value_name = "NODE")]
    node: Option<String>,
    /// Maximum number to list, the newest first
    #[arg(long, value_name = "N", default_value_t = 30)]
    limit: u32,
}

impl Events {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let events = session.client.cluster_events(self.node.as_deref(), self.limit).await?;
        session.print(&events, draw_events)?;
        Ok(0)
    }
}

fn draw_events(events: &ClusterEvents) -> String {
    let rows = events.items.iter().map(|event| {
        vec![moment(event.at), event.kind.clone(), or_dash(event.by.as_ref()), event.text.clone()]
    });
    table(Some(&["WHEN", "ACTION", "BY", "TEXT"]), rows)
}

/// Describes an override in force: `drained (maintenance, by ada)`.
pub fn describe_override(what: &str, set: &AdminOverrideView) -> String {
    match &set.reason {
        Some(reason) => format!("{what} ({reason}, by {})", set.by),
        None => format!("{what} (by {})", set.by),
    }
}

/// Prints the result of a request that succeeded.
pub fn print_result(
    session: &CommandSession,
    result: &OperatorResult,
    text: &str,
) -> Result<u8, CommandFailure> {
    session.print(result, |_| format!("{text}\n"))?;
    Ok(0)
}

fn unchanged(result: OperatorResult, name: &str, done: &str, before: &str) -> String {
    if result.changed { format!("{name} is {done}") } else { format!("{name} was {before}") }
}

/// Splits `node-a:0/2g.10gb@4` at the slash.
fn split(text: &str) -> (&str, Option<String>) {
    match text.split_once('/') {
        Some((gpu, slice)) if !slice.is_empty() => (gpu, Some(slice.to_owned())),
        Some(_) | None => (text, None),
    }
}

/// The node or GPU to drain.
enum DrainTarget {
    Node(String),
    Gpu(Box<GpuDetails>),
}

impl DrainTarget {
    fn name(&self) -> String {
        match self {
            Self::Node(node) => format!("node {node}"),
            Self::Gpu(gpu) => format!("{}:{}", gpu.node, gpu.index),
        }
    }

    async fn send(
        &self,
        session: &CommandSession,
        verb: OperatorVerb,
        request: &OperatorRequest,
    ) -> Result<OperatorResult, CommandFailure> {
        Ok(match self {
            Self::Node(node) => session.client.send_to_node(node, verb, request).await?,
            Self::Gpu(gpu) => session.client.send_to_gpu(&gpu.id, verb, request).await?,
        })
    }
}

/// Finds the node or the GPU that `name` names.
async fn find_target(session: &CommandSession, name: &str) -> Result<DrainTarget, CommandFailure> {
    let nodes = session.client.nodes().await?.items;
    if nodes.iter().any(|node| node.name == name) {
        return Ok(DrainTarget::Node(name.to_owned()));
    }
    let gpu_like = name.contains(':') || name.starts_with("GPU-");
    match session.client.layout(name).await {
        Ok(gpu) => Ok(DrainTarget::Gpu(Box::new(gpu))),
        Err(error) if gpu_like || error.status() != Some(404) => Err(error.into()),
        Err(_) => Err(CommandFailure::refused(format!(
            "there is no node or GPU {name}: nodes are {}",
            names(&nodes)
        ))),
    }
}

fn names(nodes: &[NodeDetails]) -> String {
    let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

async fn wait_until_empty(
    session: &CommandSession,
    target: &DrainTarget,
) -> Result<(), CommandFailure> {
    let mut last = None;
    loop {
        let jobs = jobs_on(session, target).await?;
        if last.as_ref() != Some(&jobs) {
            let numbers: Vec<_> = jobs.iter().map(ToString::to_string).collect();
            match jobs.len() {
                0 => session.remark(&format!("no job runs on {}", target.name())),
                1 => session.remark(&format!("job {} is still running", numbers.join(", "))),
                many => session
                    .remark(&format!("{many} jobs are still running: {}", numbers.join(", "))),
            }
        }
        if jobs.is_empty() {
            return Ok(());
        }
        last = Some(jobs);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn jobs_on(
    session: &CommandSession,
    target: &DrainTarget,
) -> Result<Vec<u64>, CommandFailure> {
    let gpus = match target {
        DrainTarget::Node(node) => session.client.node(node).await?.gpus,
        DrainTarget::Gpu(gpu) => vec![session.client.layout(&gpu.id).await?],
    };
    let instances = || gpus.iter().flat_map(|gpu| &gpu.instances);
    let mut jobs: Vec<_> = instances().filter_map(|instance| instance.job_id).collect();
    jobs.extend(instances().flat_map(|i| &i.sharers).map(|sharer| sharer.job_id));
    jobs.sort_unstable();
    jobs.dedup();
    Ok(jobs)
}
