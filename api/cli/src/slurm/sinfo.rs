//! `sinfo`: partitions and nodes.

use std::collections::BTreeMap;

use clap::{ArgAction, Parser};
use serde_json::json;
use tessera_api_types::NodeDetails;

use super::columns::{Column, Part, column, headings, of_codes, of_names, row};
use super::partitions::{Partition, names_of};
use super::squeue::meta;
use super::{Done, SlurmFailure, VERSION, connect, hosts, words, write_out};
use tessera_model::number::clamped;

const DEFAULT: &str = "%#9P %.5a %.10l %.6D %.6t %N";
const SUMMARY: &str = "%#9P %.5a %.10l %.16F %N";
const LONG: &str = "%#9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N";
const NODES: &str = "%#N %.6D %#P %6t";
const REASONS: &str = "%20E %9u %19H %N";

/// Lists partitions and nodes, as Slurm's sinfo does.
#[derive(Parser)]
#[command(disable_help_flag = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of sinfo")]
pub struct Sinfo {
    /// Columns by letters, such as "%P %t %N"
    #[arg(short = 'o', long, value_name = "FORMAT")]
    format: Option<String>,
    /// Columns by names, such as NodeList,Gres:30
    #[arg(short = 'O', long = "Format", value_name = "FORMAT")]
    named_format: Option<String>,
    /// Omit the line of headings
    #[arg(short = 'h', long)]
    noheader: bool,
    /// One line for each node
    #[arg(short = 'N', long = "Node")]
    node: bool,
    /// Numbers of nodes only
    #[arg(short, long)]
    summarize: bool,
    /// List nodes that are out of use, with the reason
    #[arg(short = 'R', long)]
    list_reasons: bool,
    /// More columns
    #[arg(short, long)]
    long: bool,
    /// List only these nodes
    #[arg(short, long, value_name = "NODES")]
    nodes: Option<String>,
    /// List only nodes in these states
    #[arg(short = 't', long, value_name = "STATES")]
    states: Vec<String>,
    /// List only this partition
    #[arg(short, long, value_name = "PARTITION")]
    partition: Vec<String>,
    /// Accepted: numbers are always exact
    #[arg(short, long)]
    exact: bool,
    /// Accepted: all partitions are listed
    #[arg(short, long)]
    all: bool,
    /// Accepted
    #[arg(short = 'r', long)]
    responding: bool,
    /// Accepted: there is one cluster
    #[arg(short = 'M', long, value_name = "CLUSTERS")]
    clusters: Option<String>,
    /// Print JSON in Slurm's format
    #[arg(long)]
    json: bool,
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

/// A node, and which parts of it are in use.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeLoad {
    node: NodeDetails,
    gpus_used: Vec<u32>,
    /// Processors in use: one for each job, since not every job has its own number.
    pub cpus_used: u32,
}

impl NodeLoad {
    /// Looks at a node.
    pub fn of(node: &NodeDetails) -> Self {
        let busy = |gpu: &tessera_api_types::GpuDetails| {
            gpu.instances.iter().any(|instance| holders(instance) > 0)
        };
        let gpus_used = node.gpus.iter().filter(|gpu| busy(gpu)).map(|gpu| gpu.index).collect();
        let jobs: usize = node.gpus.iter().flat_map(|gpu| &gpu.instances).map(holders).sum();
        let cpus_used = clamped::<u32>(jobs).min(node.cores);
        Self { node: node.clone(), gpus_used, cpus_used }
    }

    /// Returns the compact word of the node's state.
    pub fn short(&self) -> &'static str {
        let busy = !self.gpus_used.is_empty();
        let full = self.gpus_used.len() == self.node.gpus.len();
        match (self.node.state.as_str(), self.node.drained.is_some(), busy, full) {
            ("available", true, true, _) => "drng",
            ("available", true, false, _) => "drain",
            ("available", false, true, true) => "alloc",
            ("available", false, true, false) => "mix",
            ("available", false, false, _) => "idle",
            ("silent", ..) => "unk*",
            _ => "down*",
        }
    }

    /// Returns the long word.
    pub fn long(&self) -> &'static str {
        match self.short() {
            "drng" => "DRAINING",
            "drain" => "IDLE+DRAIN",
            "alloc" => "ALLOCATED",
            "mix" => "MIXED",
            "idle" => "IDLE",
            "unk*" => "UNKNOWN*",
            _ => "DOWN*",
        }
    }

    /// Returns the GPUs by model: `gpu:a100:2`.
    pub fn gres(&self) -> String {
        self.by_model(|_| true, |_| String::new())
    }

    /// Returns the GPUs in use: `gpu:a100:1(IDX:0)`.
    fn gres_used(&self) -> String {
        let used = |gpu: &tessera_api_types::GpuDetails| self.gpus_used.contains(&gpu.index);
        self.by_model(used, |indexes| match indexes {
            [] => "(IDX:N/A)".to_owned(),
            indexes => format!("(IDX:{})", super::job::ranges(indexes)),
        })
    }

    fn by_model(
        &self,
        counts: impl Fn(&tessera_api_types::GpuDetails) -> bool,
        suffix: impl Fn(&[u32]) -> String,
    ) -> String {
        let mut models: Vec<(String, Vec<u32>)> = Vec::new();
        for gpu in &self.node.gpus {
            let model = short_model(&gpu.model);
            let place = match models.iter().position(|(known, _)| *known == model) {
                Some(place) => place,
                None => {
                    models.push((model, Vec::new()));
                    models.len() - 1
                }
            };
            if let Some((_, indexes)) = models.get_mut(place).filter(|_| counts(gpu)) {
                indexes.push(gpu.index);
            }
        }
        if models.is_empty() {
            return "(null)".to_owned();
        }
        let text = |(model, indexes): &(String, Vec<u32>)| {
            format!("gpu:{model}:{}{}", indexes.len(), suffix(indexes))
        };
        models.iter().map(text).collect::<Vec<_>>().join(",")
    }

    /// Returns the models of its GPUs, which are its features.
    pub fn features(&self) -> String {
        let mut models: Vec<_> = self.node.gpus.iter().map(|gpu| short_model(&gpu.model)).collect();
        models.sort();
        models.dedup();
        if models.is_empty() { "(null)".to_owned() } else { models.join(",") }
    }

    /// Returns what is in use: `cpu=1,gres/gpu=1`.
    pub fn allocated(&self) -> String {
        match self.gpus_used.len() {
            0 => String::new(),
            gpus => format!("cpu={},gres/gpu={gpus}", self.cpus_used),
        }
    }
}

fn holders(instance: &tessera_api_types::InstanceDetails) -> usize {
    let parts = instance.parts.iter().filter(|part| part.job_id.is_some()).count();
    usize::from(instance.job_id.is_some()) + instance.sharers.len() + parts
}

/// Returns the short name of a GPU model that scripts use: `NVIDIA A100-SXM4-40GB` is an `a100`.
pub fn short_model(model: &str) -> String {
    let lower = model.to_ascii_lowercase();
    let words = lower.split([' ', '-', '_']);
    let is_model = |word: &&str| {
        word.chars().any(|c| c.is_ascii_digit())
            && !word.ends_with("gb")
            && !word.starts_with("sxm")
    };
    let found = words.filter(|word| !["nvidia", "tesla", "geforce", "graphics"].contains(word));
    let found: Vec<&str> = found.collect();
    let named = found.iter().copied().find(is_model).or_else(|| found.first().copied());
    named.unwrap_or("gpu").to_owned()
}

/// Nodes with the same values, on one line.
struct Group {
    /// The partition's name.
    partition: String,
    /// Whether it is the default partition.
    is_default: bool,
    nodes: Vec<NodeLoad>,
}

impl Group {
    fn of(partition: &Partition, nodes: Vec<NodeLoad>) -> Self {
        Self { partition: partition.name.clone(), is_default: partition.is_default, nodes }
    }

    fn first(&self) -> Option<&NodeLoad> {
        self.nodes.first()
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.nodes.iter().map(|load| load.node.name.as_str()).collect();
        hosts::compress(&names)
    }

    /// Counts nodes as allocated/idle/other/total.
    fn counts(&self) -> String {
        let of =
            |words: &[&str]| self.nodes.iter().filter(|load| words.contains(&load.short())).count();
        let (busy, idle) = (of(&["alloc", "mix", "drng"]), of(&["idle"]));
        let all = self.nodes.len();
        format!("{busy}/{idle}/{}/{all}", all - busy - idle)
    }

    /// Counts processors in the same way.
    fn processors(&self) -> String {
        let all: u64 = self.nodes.iter().map(|load| u64::from(load.node.cores)).sum();
        let used: u64 = self.nodes.iter().map(|load| u64::from(load.cpus_used)).sum();
        let is_out = |load: &&NodeLoad| matches!(load.short(), "drain" | "down*" | "unk*");
        let out: u64 = self.nodes.iter().filter(is_out).map(|l| u64::from(l.node.cores)).sum();
        format!("{used}/{}/{out}/{all}", all.saturating_sub(used).saturating_sub(out))
    }

    fn of_first(&self, text: impl Fn(&NodeLoad) -> String) -> String {
        self.first().map(text).unwrap_or_default()
    }

    fn reason(&self) -> String {
        self.of_first(|load| match (&load.node.drained, load.short()) {
            (Some(drained), _) => drained.reason.clone().unwrap_or_else(|| "drained".to_owned()),
            (None, "down*" | "unk*") => "Not responding".to_owned(),
            (None, _) => "none".to_owned(),
        })
    }
}

static COLUMNS: &[Column<Group>] = &[
    column(Some('P'), "Partition", "PARTITION", "PARTITION", |group| {
        format!("{}{}", group.partition, if group.is_default { "*" } else { "" })
    }),
    column(Some('R'), "PartitionName", "PARTITION", "PARTITION", |group| group.partition.clone()),
    column(Some('a'), "Available", "AVAIL", "AVAIL", |_| "up".to_owned()),
    column(Some('l'), "Time", "TIMELIMIT", "TIMELIMIT", |_| "infinite".to_owned()),
    column(Some('L'), "DefaultTime", "DEFAULTTIME", "DEFAULTTIME", |_| "n/a".to_owned()),
    column(Some('D'), "Nodes", "NODES", "NODES", |group| group.nodes.len().to_string()),
    column(Some('t'), "StateCompact", "STATE", "STATE", |group| {
        group.of_first(|l| l.short().to_owned())
    }),
    column(Some('T'), "StateLong", "STATE", "STATE", |group| {
        group.of_first(|l| l.long().to_ascii_lowercase())
    }),
    column(Some('N'), "NodeList", "NODELIST", "NODELIST", Group::names),
    column(Some('n'), "NodeHost", "HOSTNAMES", "HOSTNAMES", |group| {
        group.of_first(|l| l.node.name.clone())
    }),
    column(Some('o'), "NodeAddr", "NODE_ADDR", "NODE_ADDR", |group| {
        group.of_first(|l| l.node.name.clone())
    }),
    column(Some('G'), "Gres", "GRES", "GRES", |group| group.of_first(NodeLoad::gres)),
    column(None, "GresUsed", "GRES_USED", "GRES_USED", |group| group.of_first(NodeLoad::gres_used)),
    column(Some('c'), "CPUs", "CPUS", "CPUS", |group| group.of_first(|l| l.node.cores.to_string())),
    column(Some('C'), "CPUsState", "CPUS(A/I/O/T)", "CPUS(A/I/O/T)", Group::processors),
    column(Some('m'), "Memory", "MEMORY", "MEMORY", |group| {
        group.of_first(|l| (l.node.memory_bytes >> 20).to_string())
    }),
    column(Some('e'), "FreeMem", "FREE_MEM", "FREE_MEM", |_| "N/A".to_owned()),
    column(None, "AllocMem", "ALLOCMEM", "ALLOCMEM", |_| "0".to_owned()),
    column(Some('f'), "Features", "AVAIL_FEATURES", "AVAIL_FEATURES", |group| {
        group.of_first(NodeLoad::features)
    }),
    column(Some('b'), "Features_act", "ACTIVE_FEATURES", "ACTIVE_FEATURES", |group| {
        group.of_first(NodeLoad::features)
    }),
    column(Some('F'), "NodeAIOT", "NODES(A/I/O/T)", "NODES(A/I/O/T)", Group::counts),
    column(Some('A'), "NodeAI", "NODES(A/I)", "NODES(A/I)", |group| {
        group.counts().splitn(3, '/').take(2).collect::<Vec<_>>().join("/")
    }),
    column(Some('E'), "Reason", "REASON", "REASON", Group::reason),
    column(Some('u'), "User", "USER", "USER", |group| {
        group.of_first(|l| {
            l.node.drained.as_ref().map_or_else(|| "Unknown".to_owned(), |d| d.by.clone())
        })
    }),
    column(Some('H'), "Timestamp", "TIMESTAMP", "TIMESTAMP", |group| {
        group.of_first(|l| super::times::local(l.node.last_seen_at, "Unknown"))
    }),
    column(Some('O'), "CPUsLoad", "CPU_LOAD", "CPU_LOAD", |_| "N/A".to_owned()),
    column(Some('d'), "Disk", "TMP_DISK", "TMP_DISK", |_| "0".to_owned()),
    column(Some('w'), "Weight", "WEIGHT", "WEIGHT", |_| "1".to_owned()),
    column(Some('s'), "Size", "JOB_SIZE", "JOB_SIZE", |_| "1-infinite".to_owned()),
    column(Some('r'), "Root", "ROOT", "ROOT", |_| "no".to_owned()),
    column(Some('h'), "OverSubscribe", "OVERSUBS", "OVERSUBS", |_| "NO".to_owned()),
    column(Some('g'), "Groups", "GROUPS", "GROUPS", |_| "all".to_owned()),
    column(Some('z'), "SocketCoreThread", "S:C:T", "S:C:T", |group| {
        group.of_first(|l| format!("1:{}:1", l.node.cores))
    }),
    column(Some('X'), "Sockets", "SOCKETS", "SOCKETS", |_| "1".to_owned()),
    column(Some('Y'), "Cores", "CORES", "CORES", |group| {
        group.of_first(|l| l.node.cores.to_string())
    }),
    column(Some('Z'), "Threads", "THREADS", "THREADS", |_| "1".to_owned()),
    column(Some('B'), "MaxCPUsPerNode", "MAX_CPUS_PER_NODE", "MAX_CPUS_PER_NODE", |_| {
        "UNLIMITED".to_owned()
    }),
    column(Some('I'), "PriorityJobFactor", "PRIO_JOB_FACTOR", "PRIO_JOB_FACTOR", |_| {
        "1".to_owned()
    }),
    column(Some('p'), "PriorityTier", "PRIO_TIER", "PRIO_TIER", |_| "1".to_owned()),
    column(Some('M'), "PreemptMode", "PREEMPT_MODE", "PREEMPT_MODE", |_| "OFF".to_owned()),
    column(Some('S'), "AllocNodes", "ALLOCNODES", "ALLOCNODES", |_| "all".to_owned()),
    column(Some('V'), "Cluster", "CLUSTER", "CLUSTER", |_| "N/A".to_owned()),
    column(Some('v'), "Version", "VERSION", "VERSION", |_| {
        super::VERSION.trim_start_matches("slurm-wlm ").to_owned()
    }),
];

impl Sinfo {
    /// Lists the nodes.
    pub async fn run(self) -> Done {
        if self.version {
            write_out(&format!("{VERSION}\n"))?;
            return Ok(0);
        }
        let session = connect()?;
        let mut partitions = Partition::all(&session.client.info().await?);
        let mut nodes = session.client.nodes().await?.items;
        let names: Vec<Vec<String>> =
            nodes.iter().map(|node| names_of(&partitions, node)).collect();
        let named = words(&self.partition);
        partitions.retain(|one| named.is_empty() || named.contains(&one.name));
        let requested = self.nodes.as_deref().map(|list| hosts::expand(list).unwrap_or_default());
        let states: Vec<String> =
            words(&self.states).iter().map(|state| state.to_ascii_lowercase()).collect();
        let partitions_of: BTreeMap<String, Vec<String>> =
            nodes.iter().map(|node| node.name.clone()).zip(names).collect();
        nodes.retain(|node| {
            requested.as_ref().is_none_or(|requested| requested.contains(&node.name))
        });
        nodes.retain(|node| partitions.iter().any(|partition| partition.has(node)));
        let format = self.format(&nodes)?;
        if self.json {
            return print_json(&nodes, &partitions_of);
        }
        let mut groups = Vec::new();
        for partition in &partitions {
            let own = nodes.iter().filter(|node| partition.has(node));
            let mut loads: Vec<NodeLoad> = own.map(NodeLoad::of).collect();
            loads.retain(|load| states.is_empty() || states.iter().any(|state| is_in(load, state)));
            if self.list_reasons {
                loads.retain(|load| load.node.drained.is_some() || load.short().ends_with('*'));
            }
            let each = self.node || by_node(&format);
            let mut found = group(partition, loads, each, self.summarize || !by_state(&format));
            if found.is_empty() && !self.list_reasons && self.states.is_empty() {
                // A partition without nodes is listed, too.
                found.push(Group::of(partition, Vec::new()));
            }
            groups.append(&mut found);
        }
        let mut text = String::new();
        if !self.noheader {
            text += &headings(&format);
        }
        for group in &groups {
            text += &row(&format, group);
        }
        write_out(&text)?;
        Ok(0)
    }

    fn format(&self, nodes: &[NodeDetails]) -> Result<Vec<Part<Group>>, SlurmFailure> {
        if let Some(names) = &self.named_format {
            return of_names(names, COLUMNS).map_err(|name| {
                SlurmFailure::Message(format!(
                    "sinfo: error: Invalid node format specification: {name}"
                ))
            });
        }
        let codes = match &self.format {
            Some(codes) => codes.as_str(),
            None if self.list_reasons => REASONS,
            None if self.summarize => SUMMARY,
            None if self.node => NODES,
            None if self.long => LONG,
            None => DEFAULT,
        };
        // A `#` makes a column as wide as its widest cell.
        let widest = nodes.iter().map(|node| node.name.len()).max().unwrap_or(0).max(8);
        let codes = codes.replace("%#N", &format!("%{widest}N")).replace("%#", "%");
        Ok(of_codes(&codes, COLUMNS))
    }
}

fn is_in(load: &NodeLoad, state: &str) -> bool {
    let short = load.short().trim_end_matches('*');
    let long = load.long().to_ascii_lowercase();
    short == state
        || long.trim_end_matches('*').split('+').any(|word| word == state)
        || (state == "drain" && load.node.drained.is_some())
}

fn has(format: &[Part<Group>], codes: &str) -> bool {
    format.iter().any(|part| match part {
        Part::Text(_) => false,
        Part::Column(column, ..) => match column.code {
            Some(code) => codes.contains(code),
            None => codes.contains('G'),
        },
    })
}

/// Returns whether a format names single nodes.
fn by_node(format: &[Part<Group>]) -> bool {
    has(format, "noOeu")
}

/// Returns whether a format shows something in which nodes differ.
fn by_state(format: &[Part<Group>]) -> bool {
    has(format, "tTGcmfbnoEuH")
}

/// Groups nodes with the same values, or all nodes.
fn group(partition: &Partition, loads: Vec<NodeLoad>, each: bool, all: bool) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for load in loads {
        let alike = |one: &NodeLoad| {
            (one.short(), one.gres(), one.node.cores)
                == (load.short(), load.gres(), load.node.cores)
        };
        let same = |group: &&mut Group| all || group.first().is_some_and(alike);
        match groups.iter_mut().find(same).filter(|_| !each) {
            Some(group) => group.nodes.push(load),
            None => groups.push(Group::of(partition, vec![load])),
        }
    }
    groups
}

fn print_json(nodes: &[NodeDetails], partitions: &BTreeMap<String, Vec<String>>) -> Done {
    let nodes = nodes.iter().map(NodeLoad::of).map(|load| {
        json!({
            "name": load.node.name,
            "hostname": load.node.name,
            "address": load.node.name,
            "state": load.long().to_ascii_lowercase(),
            "cpus": load.node.cores,
            "alloc_cpus": load.cpus_used,
            "idle_cpus": load.node.cores.saturating_sub(load.cpus_used),
            "real_memory": load.node.memory_bytes >> 20,
            "gres": load.gres(),
            "gres_used": load.gres_used(),
            "features": load.features(),
            "partitions": partitions.get(&load.node.name),
            "reason": load.node.drained.as_ref().and_then(|drained| drained.reason.clone()),
        })
    });
    let nodes: Vec<_> = nodes.collect();
    let document = json!({ "meta": meta(), "errors": [], "nodes": nodes });
    let text = serde_json::to_string_pretty(&document).map_err(std::io::Error::from)?;
    write_out(&format!("{text}\n"))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeDetails {
        serde_json::from_value(json!({
            "name": name, "id": "1", "state": "available", "agent_version": "1", "cores": 2,
            "memory_bytes": 6000_u64 << 20, "generation": 1, "last_seen_at": null, "gpus": [],
        }))
        .unwrap()
    }

    #[test]
    fn the_default_table_is_that_of_slurm() {
        let sinfo = Sinfo::try_parse_from(["sinfo"]).unwrap();
        let nodes = ["g1", "g2"].map(node);
        let loads: Vec<_> = nodes.iter().map(NodeLoad::of).collect();
        let format = sinfo.format(&nodes).unwrap();
        let about = json!({
            "version": "1", "controller": "c", "policy": "p", "epoch": 1, "nodes": {}, "gpus": 0,
        });
        let partitions = Partition::all(&serde_json::from_value(about).unwrap());
        let groups = group(&partitions[0], loads, false, false);

        let text: String = groups.iter().map(|group| row(&format, group)).collect();

        assert_eq!(headings(&format), "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n");
        assert_eq!(text, "gpu*         up   infinite      2   idle g[1-2]\n");
    }

    #[test]
    fn models_have_the_words_that_scripts_use() {
        let models = [
            "NVIDIA A100-SXM4-40GB",
            "NVIDIA H100 80GB HBM3",
            "Tesla V100-PCIE-16GB",
            "NVIDIA GeForce RTX 2080 Ti",
            "NVIDIA A30",
        ];

        assert_eq!(models.map(short_model), ["a100", "h100", "v100", "2080", "a30"]);
    }
}
