//! Nodes, the overview of the cluster, and switching the MIG mode.

use std::fmt::Write as _;

use clap::{Args, ValueEnum};
use tessera_model::Bytes;
use tessera_model::isolation::IsolationGap;
use tessera_model::number::index;

use super::failure::CommandFailure;
use super::operator::describe_override;
use super::session::{CommandSession, fields, moment, or_dash, table, write_out};
use tessera_api_types::{ClusterInfo, JobCounts, NodeDetails, NodeListing};

#[derive(Args)]
pub struct NodeList {
    /// Show only this node
    #[arg(value_name = "NODE")]
    name: Option<String>,
}

impl NodeList {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        match self.name {
            Some(name) => session.print(&session.client.node(&name).await?, |node| {
                draw(std::slice::from_ref(node))
            })?,
            None => session
                .print(&session.client.nodes().await?, |NodeListing { items }| draw(items))?,
        }
        Ok(0)
    }
}

fn draw(nodes: &[NodeDetails]) -> String {
    let header =
        ["NODE", "STATE", "GPUS", "BUSY", "CORES", "MEMORY", "SHARE", "AGENT", "LAST SEEN"];
    table(
        Some(&header),
        nodes.iter().map(|node| {
            vec![
                node.name.clone(),
                state(node),
                models(node),
                busy(node),
                node.cores.to_string(),
                Bytes::new(node.memory_bytes).to_string(),
                // The support for `submit --share` there.
                if node.mps { "mps" } else { "-" }.to_owned(),
                node.agent_version.clone(),
                or_dash(node.last_seen_at.map(moment)),
            ]
        }),
    )
}

/// The state, and the overrides that operators set for the node or for GPUs of it.
fn state(node: &NodeDetails) -> String {
    let mut text = node.state.clone();
    if let Some(word) = &node.drained {
        let _ = write!(text, ", {}", describe_override("drained", word));
    }
    if let Some(word) = &node.quarantined {
        let _ = write!(text, ", {}", describe_override("quarantined", word));
    }
    for (what, count) in [
        ("drained", node.gpus.iter().filter(|gpu| gpu.drained.is_some()).count()),
        ("quarantined", node.gpus.iter().filter(|gpu| gpu.quarantined.is_some()).count()),
    ] {
        if count > 0 {
            let _ = write!(text, ", {count} GPU{} {what}", if count == 1 { "" } else { "s" });
        }
    }
    text
}

fn models(node: &NodeDetails) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for gpu in &node.gpus {
        match counts.iter_mut().find(|(model, _)| *model == gpu.model) {
            Some((_, count)) => *count += 1,
            None => counts.push((&gpu.model, 1)),
        }
    }
    let texts: Vec<_> = counts.iter().map(|(model, count)| format!("{count}x {model}")).collect();
    if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
}

/// Shows how many of the instances have a job.
fn busy(node: &NodeDetails) -> String {
    let instances = || node.gpus.iter().flat_map(|gpu| &gpu.instances);
    let taken = instances().filter(|instance| instance.job_id.is_some()).count();
    format!("{taken} of {} slices", instances().count())
}

#[derive(Args)]
pub struct Info {}

impl Info {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let info = session.client.info().await?;
        if session.json {
            session.print(&info, |_| String::new())?;
            return Ok(0);
        }
        let counts = session.client.counts().await?;
        write_out(&glance(&info, &counts))?;
        Ok(0)
    }
}

fn glance(info: &ClusterInfo, counts: &JobCounts) -> String {
    let nodes = info.nodes.iter().filter(|(_, count)| **count > 0);
    let nodes: Vec<_> = nodes.map(|(state, count)| format!("{count} {state}")).collect();
    fields(vec![
        (
            "Controller",
            Some(format!("{} (version {}, epoch {})", info.controller, info.version, info.epoch)),
        ),
        ("Policy", Some(info.policy.clone())),
        ("Nodes", Some(if nodes.is_empty() { "none".to_owned() } else { nodes.join(", ") })),
        ("GPUs", Some(info.gpus.to_string())),
        ("Jobs", Some(by_state(counts))),
        ("Sharing", Some(sharing(&info.shared_gpus))),
        ("Share default", Some(share_default(&info.share_default))),
        ("Not enforced", not_enforced(info)),
    ])
}

/// Maximum number of nodes that are named for one gap; the JSON lists all.
const NAMED_NODES_MAX: usize = 5;

/// Describes which limits and protections jobs don't have, and where.
fn not_enforced(info: &ClusterInfo) -> Option<String> {
    let count: usize = info.nodes.values().map(|count| index(u64::from(*count))).sum();
    let describe = |(word, nodes): (&String, &Vec<String>)| {
        // A controller of a later release may send other values.
        let gap = IsolationGap::from_word(word).map_or(word.as_str(), |gap| gap.describe());
        let named = nodes.iter().take(NAMED_NODES_MAX).cloned().collect::<Vec<_>>().join(", ");
        match nodes.len() {
            all if all == count && count > 1 => format!("on all nodes, {gap}"),
            more if more > NAMED_NODES_MAX => {
                format!("on {named} and {} more, {gap}", more - NAMED_NODES_MAX)
            }
            _ => format!("on {named}, {gap}"),
        }
    };
    let texts: Vec<_> = info.isolation_gaps.iter().map(describe).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Describes how a job without `--share` is treated.
fn share_default(word: &str) -> String {
    let what = match word {
        "auto" => {
            "a job may share a slice with another job of the same user where a benefit is predicted"
        }
        _ => "a job has its slice to itself",
    };
    format!("{word}: without --share, {what}")
}

/// Describes the states of requests for one GPU.
fn sharing(partitions: &[String]) -> String {
    match partitions {
        [] => "a job that requests one GPU gets all of it".to_owned(),
        [all, ..] if all == "*" => "a job that requests one GPU gets a slice of one".to_owned(),
        some => format!("in {}, a job that requests one GPU gets a slice of one", some.join(", ")),
    }
}

/// Shows how many jobs are in each state that has any.
pub fn by_state(counts: &JobCounts) -> String {
    let states = counts.by_state.iter().filter(|(_, count)| **count > 0);
    let states: Vec<_> = states.map(|(state, count)| format!("{count} {state}")).collect();
    match states.is_empty() {
        true => counts.total.to_string(),
        false => format!("{} ({})", counts.total, states.join(", ")),
    }
}

/// A GPU's MIG mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MigModeArg {
    On,
    Off,
}

/// Switches the MIG mode of a GPU. The GPU must be empty, since the driver resets it.
#[derive(Args)]
pub struct MigMode {
    /// node-a:0, or a GPU's UUID or a prefix of it
    #[arg(value_name = "GPU")]
    gpu: String,
    /// The new mode
    mode: MigModeArg,
}

impl MigMode {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        session.client.set_mig_mode(&self.gpu, self.mode == MigModeArg::On).await?;
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(gaps: serde_json::Value) -> ClusterInfo {
        serde_json::from_value(serde_json::json!({
            "version": "1", "controller": "c", "policy": "tessera", "epoch": 1, "gpus": 0,
            "nodes": { "available": 7, "lost": 1 }, "isolation_gaps": gaps,
        }))
        .unwrap()
    }

    #[test]
    fn what_jobs_do_not_have_is_stated_with_the_nodes_that_lack_it() {
        let nodes: Vec<_> = (1..=8).map(|number| format!("n{number}")).collect();
        let gaps = serde_json::json!({
            "memory_limit": ["n1", "n2"], "private_tmp": nodes, "task_limit": nodes[..7], "new": ["n3"],
        });

        let text = not_enforced(&info(gaps)).unwrap();

        assert_eq!(
            text,
            "on n1, n2, --mem is no limit; on n3, new; on all nodes, jobs share /tmp; \
             on n1, n2, n3, n4, n5 and 2 more, processes of a job are not limited (tasks_max)"
        );
        assert_eq!(not_enforced(&info(serde_json::json!({}))), None);
    }
}
