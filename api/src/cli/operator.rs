//! What operators say of nodes, GPUs and slices: `tessera drain`, `undrain`, `quarantine`,
//! `clear`, and what they did: `tessera events`.

mod doctor;

use std::time::Duration;

use clap::Args;

pub use self::doctor::Doctor;
use super::failure::Failure;
use super::session::{Session, moment, or_dash, table};
use crate::client::OperatorVerb;
use crate::types::{ClusterEvents, Gpu, Node, OperatorRequest, OperatorResult, OperatorWord};

/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Says who gives an order: the user of this process.
pub fn whoami() -> String {
    let named = |name: &str| std::env::var(name).ok().filter(|user| !user.trim().is_empty());
    named("USER").or_else(|| named("LOGNAME")).unwrap_or_else(|| "unknown".to_owned())
}

#[derive(Args)]
pub struct Drain {
    /// A node, or one of its GPUs: node-a, node-a:0, or the beginning of a GPU's UUID
    #[arg(value_name = "NODE[:GPU]")]
    target: String,
    /// Why, for those who wonder
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Wait until nothing runs there any more
    #[arg(long)]
    wait: bool,
}

impl Drain {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        let target = find(session, &self.target).await?;
        let request = OperatorRequest { by: whoami(), reason: self.reason, slice: None };
        let result = target.tell(session, OperatorVerb::Drain, &request).await?;
        if !session.json && !result.changed {
            session.remark(&format!("{} was drained before", target.name()));
        }
        if self.wait {
            wait_until_empty(session, &target).await?;
        }
        said(session, &result, &format!("{} is drained: nothing new starts there", target.name()))
    }
}

#[derive(Args)]
pub struct Undrain {
    /// A node, or one of its GPUs: node-a, node-a:0, or the beginning of a GPU's UUID
    #[arg(value_name = "NODE[:GPU]")]
    target: String,
}

impl Undrain {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        let target = find(session, &self.target).await?;
        let request = OperatorRequest { by: whoami(), ..OperatorRequest::default() };
        let result = target.tell(session, OperatorVerb::Undrain, &request).await?;
        said(session, &result, &unchanged(result, &target.name(), "undrained", "not drained"))
    }
}

#[derive(Args)]
pub struct Quarantine {
    /// A GPU, or one of its slices: node-a:0, node-a:0/4, node-a:0/2g.10gb@4
    #[arg(value_name = "GPU[/SLICE]")]
    target: String,
    /// Why: whoever clears it wants to know
    #[arg(long, value_name = "TEXT", required = true)]
    reason: String,
}

impl Quarantine {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        let (gpu, slice) = split(&self.target);
        let request = OperatorRequest { by: whoami(), reason: Some(self.reason), slice };
        let result = session.client.tell_gpu(gpu, OperatorVerb::Quarantine, &request).await?;
        let text = unchanged(result, &self.target, "quarantined", "quarantined before");
        said(session, &result, &text)
    }
}

#[derive(Args)]
pub struct Clear {
    /// A GPU, or one of its slices: node-a:0, node-a:0/4, node-a:0/2g.10gb@4
    #[arg(value_name = "GPU[/SLICE]")]
    target: String,
}

impl Clear {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        let (gpu, slice) = split(&self.target);
        let request = OperatorRequest { by: whoami(), reason: None, slice };
        let result = session.client.tell_gpu(gpu, OperatorVerb::Clear, &request).await?;
        let text = match result.changed {
            true => format!("{} is cleared; its node looks at it again", self.target),
            false => {
                format!("{} was not quarantined; its node looks at it again", self.target)
            }
        };
        said(session, &result, &text)
    }
}

#[derive(Args)]
pub struct Events {
    /// Only those on this node
    #[arg(value_name = "NODE")]
    node: Option<String>,
    /// At most so many, the newest
    #[arg(long, value_name = "N", default_value_t = 30)]
    limit: u32,
}

impl Events {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        let events = session.client.cluster_events(self.node.as_deref(), self.limit).await?;
        session.print(&events, draw_events)?;
        Ok(0)
    }
}

fn draw_events(events: &ClusterEvents) -> String {
    let rows = events.items.iter().map(|event| {
        vec![moment(event.at), event.kind.clone(), or_dash(event.by.as_ref()), event.text.clone()]
    });
    table(Some(&["WHEN", "WHAT", "BY", "TEXT"]), rows)
}

/// Shows a word in force: `drained (maintenance, by ada)`.
pub fn in_words(what: &str, word: &OperatorWord) -> String {
    match &word.reason {
        Some(reason) => format!("{what} ({reason}, by {})", word.by),
        None => format!("{what} (by {})", word.by),
    }
}

/// Answers an order that was carried out.
pub fn said(session: &Session, result: &OperatorResult, text: &str) -> Result<u8, Failure> {
    session.print(result, |_| format!("{text}\n"))?;
    Ok(0)
}

fn unchanged(result: OperatorResult, name: &str, done: &str, before: &str) -> String {
    if result.changed { format!("{name} is {done}") } else { format!("{name} was {before}") }
}

/// Splits `node-a:0/2g.10gb@4` at the slash; UUIDs of GPUs have none after their beginning.
fn split(text: &str) -> (&str, Option<String>) {
    match text.split_once('/') {
        Some((gpu, slice)) if !slice.is_empty() => (gpu, Some(slice.to_owned())),
        Some(_) | None => (text, None),
    }
}

/// What a drain is about.
enum Target {
    Node(String),
    Gpu(Box<Gpu>),
}

impl Target {
    fn name(&self) -> String {
        match self {
            Self::Node(node) => format!("node {node}"),
            Self::Gpu(gpu) => format!("{}:{}", gpu.node, gpu.index),
        }
    }

    async fn tell(
        &self,
        session: &Session,
        verb: OperatorVerb,
        request: &OperatorRequest,
    ) -> Result<OperatorResult, Failure> {
        Ok(match self {
            Self::Node(node) => session.client.tell_node(node, verb, request).await?,
            Self::Gpu(gpu) => session.client.tell_gpu(&gpu.id, verb, request).await?,
        })
    }
}

/// Finds out whether a word names a node or a GPU.
async fn find(session: &Session, word: &str) -> Result<Target, Failure> {
    let nodes = session.client.nodes().await?.items;
    if nodes.iter().any(|node| node.name == word) {
        return Ok(Target::Node(word.to_owned()));
    }
    let gpu_like = word.contains(':') || word.starts_with("GPU-");
    match session.client.layout(word).await {
        Ok(gpu) => Ok(Target::Gpu(Box::new(gpu))),
        Err(error) if gpu_like || error.status() != Some(404) => Err(error.into()),
        Err(_) => Err(Failure::Refused(format!(
            "there is no node or GPU {word}: nodes are {}",
            names(&nodes)
        ))),
    }
}

fn names(nodes: &[Node]) -> String {
    let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

async fn wait_until_empty(session: &Session, target: &Target) -> Result<(), Failure> {
    let mut last = None;
    loop {
        let jobs = jobs_on(session, target).await?;
        if last.as_ref() != Some(&jobs) {
            let numbers: Vec<_> = jobs.iter().map(ToString::to_string).collect();
            match jobs.len() {
                0 => session.remark(&format!("nothing runs on {}", target.name())),
                1 => session.remark(&format!("job {} still runs", numbers.join(", "))),
                many => session.remark(&format!("{many} jobs still run: {}", numbers.join(", "))),
            }
        }
        if jobs.is_empty() {
            return Ok(());
        }
        last = Some(jobs);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn jobs_on(session: &Session, target: &Target) -> Result<Vec<u64>, Failure> {
    let gpus = match target {
        Target::Node(node) => session.client.node(node).await?.gpus,
        Target::Gpu(gpu) => vec![session.client.layout(&gpu.id).await?],
    };
    let instances = || gpus.iter().flat_map(|gpu| &gpu.instances);
    let mut jobs: Vec<_> = instances().filter_map(|instance| instance.job_id).collect();
    jobs.extend(instances().flat_map(|i| &i.sharers).map(|sharer| sharer.job_id));
    jobs.sort_unstable();
    jobs.dedup();
    Ok(jobs)
}
