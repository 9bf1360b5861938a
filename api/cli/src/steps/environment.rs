//! The variables of a step's processes, as Slurm sets them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Allocation;
use super::gpus::GpuBinding;
use super::layout::StepLayout;
use super::own_number::TASK_PID;
use tessera_model::number::clamped;

/// Settings that all processes of a step share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFacts {
    /// The job's number.
    pub job: String,
    /// The step's number.
    pub number: u64,
    /// The ranks of each node.
    pub layout: StepLayout,
    /// How the node is reached where the step was called.
    pub address: String,
    /// GPUs of each process; `None` if each sees those of the step.
    pub gpus_per_task: Option<u32>,
    /// Which GPUs of the step each process sees, unless each has its own.
    pub binding: GpuBinding,
    /// Processors of each process, if its user names them.
    pub cpus_per_task: Option<u32>,
    /// How its user spreads ranks over nodes, if that is named.
    pub distribution: Option<String>,
    /// What the caller's new files are not to allow, as four digits.
    pub umask: String,
    /// Variables of options that only have these. Absent in orders of an older caller.
    #[serde(default)]
    pub named: BTreeMap<String, String>,
}

impl StepFacts {
    /// Returns the name of the space in which the step's processes find each other.
    pub fn space_name(&self) -> String {
        format!("step_{}.{}", self.job, self.number)
    }
}

/// Variables that belong to a node, and to no other.
const OF_NODE: [&str; 5] =
    ["HOSTNAME", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_TMPDIR", "CUDA_VISIBLE_DEVICES"];

/// Returns the part of the caller's environment that a process on `node` gets. The node's own
/// folders and devices replace those of the caller's node.
pub fn on_node(
    called: &BTreeMap<String, String>,
    node: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let is_of_node = |name: &str| {
        OF_NODE.contains(&name)
            || name.starts_with("CUDA_MPS_")
            || (name.starts_with("TESSERA_") && !name.starts_with("TESSERA_JOB_"))
    };
    let mut all = called.clone();
    // One that the user chose stays, as it is the same on each node.
    if called.get("TMPDIR").is_none_or(|own| called.get("SLURM_TMPDIR") == Some(own)) {
        all.extend(node.get("TMPDIR").map(|own| ("TMPDIR".to_owned(), own.clone())));
    }
    all.extend(
        node.iter().filter(|(name, _)| is_of_node(name)).map(|(n, v)| (n.clone(), v.clone())),
    );
    all
}

/// Returns the variables of process number `local` on node number `node` of the step. `base` is what is exported to it,
/// and `devices` are the GPUs of the step there; `None` if it sees all of the job.
pub fn variables(
    facts: &StepFacts,
    (node, local): (usize, usize),
    allocation: &Allocation,
    (base, devices): (BTreeMap<String, String>, Option<&[String]>),
) -> BTreeMap<String, String> {
    let mut all = base;
    let layout = &facts.layout;
    let ranks = layout.nodes.get(node).map_or(&[][..], |node| &node.ranks);
    let rank = ranks.get(local).copied().unwrap_or_default();
    let (tasks, nodes) = (layout.tasks().to_string(), layout.nodes.len().to_string());
    let number = facts.number.to_string();
    let gtids: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    // Slurm's name for its default.
    let usual = || if layout.tasks() > layout.nodes.len() { "block" } else { "cyclic" };
    let named = facts.distribution.as_deref();
    let distribution = match named.and_then(|how| how.strip_prefix("plane=")) {
        Some(size) => {
            all.insert("SLURM_DIST_PLANESIZE".to_owned(), size.to_owned());
            "plane".to_owned()
        }
        None => named.unwrap_or_else(usual).to_owned(),
    };
    for (name, value) in &facts.named {
        // As under Slurm, the job's own number of tasks on a node stays.
        if name == "SLURM_JOB_NAME" || !all.contains_key(name) {
            all.insert(name.clone(), value.clone());
        }
    }
    if let Some(cpus) = facts.cpus_per_task {
        all.insert("SLURM_CPUS_PER_TASK".to_owned(), cpus.to_string());
    }
    let counted = |name: &str| all.get(name).and_then(|text| text.parse::<usize>().ok());
    let most = layout.nodes.iter().map(|node| node.ranks.len()).max().unwrap_or(0);
    let cpus = match (counted("SLURM_CPUS_PER_TASK"), counted("SLURM_CPUS_ON_NODE")) {
        (Some(each), _) => each.saturating_mul(ranks.len()),
        // The job has its processors by GPUs, or all of the node.
        (None, Some(held)) if held > most => held,
        (None, _) => ranks.len(),
    };
    // The number of the script's process, which is not this one's ([`super::own_number`]).
    all.remove(TASK_PID);
    for (name, value) in [
        ("SLURM_PROCID", rank.to_string()),
        ("SLURM_LOCALID", local.to_string()),
        ("SLURM_NODEID", node.to_string()),
        ("SLURM_NTASKS", tasks.clone()),
        ("SLURM_NPROCS", tasks.clone()),
        ("SLURM_NNODES", nodes.clone()),
        ("SLURM_JOB_ID", facts.job.clone()),
        ("SLURM_JOBID", facts.job.clone()),
        ("SLURM_STEP_ID", number.clone()),
        ("SLURM_STEPID", number),
        ("SLURM_STEP_NODELIST", layout.node_list()),
        ("SLURM_STEP_NUM_NODES", nodes),
        ("SLURM_STEP_NUM_TASKS", tasks),
        ("SLURM_STEP_TASKS_PER_NODE", layout.tasks_per_node()),
        ("SLURM_TASKS_PER_NODE", layout.tasks_per_node()),
        ("SLURM_GTIDS", gtids.join(",")),
        ("SLURM_LAUNCH_NODE_IPADDR", facts.address.clone()),
        ("SLURM_SRUN_COMM_HOST", facts.address.clone()),
        ("SLURM_DISTRIBUTION", distribution),
        ("SLURM_UMASK", facts.umask.clone()),
        ("SLURM_CPUS_ON_NODE", cpus.to_string()),
        ("SLURMD_NODENAME", allocation.node.clone()),
        ("SLURM_TOPOLOGY_ADDR", allocation.node.clone()),
        // The GPUs that steps of this one may use.
        ("TESSERA_DEVICES", allocation.devices.join(",")),
    ] {
        all.insert(name.to_owned(), value);
    }
    let held = devices.unwrap_or(&allocation.devices);
    let bound = facts.binding.of(local, held);
    let own: Vec<String> = match (facts.gpus_per_task, bound) {
        (Some(each), _) if devices.is_some() => {
            let each = clamped::<usize>(each);
            held.iter().skip(local * each).take(each).cloned().collect()
        }
        (None, Some(bound)) => bound,
        (None | Some(_), _) => held.to_vec(),
    };
    if devices.is_none() && allocation.devices.is_empty() {
        return all;
    }
    let index = |device: &String| allocation.devices.iter().position(|one| one == device);
    let indexes: Vec<String> =
        own.iter().filter_map(index).map(|index| index.to_string()).collect();
    all.insert("CUDA_VISIBLE_DEVICES".to_owned(), own.join(","));
    all.insert("SLURM_GPUS_ON_NODE".to_owned(), held.len().to_string());
    all.insert("SLURM_STEP_GPUS".to_owned(), indexes.join(","));
    all
}

/// Returns the variables that a step exports: all, or those that its user names and what Tessera sets.
pub fn exported(export: Option<&str>, allocation: &Allocation) -> BTreeMap<String, String> {
    let words: Vec<&str> =
        export.unwrap_or("ALL").split(',').filter(|word| !word.is_empty()).collect();
    let all = words.iter().any(|word| word.eq_ignore_ascii_case("ALL"));
    let is_ours = |name: &str| {
        ["SLURM_", "TESSERA_", "CUDA_"].iter().any(|prefix| name.starts_with(prefix))
            || ["PATH", "HOME", "USER", "SHELL", "TMPDIR"].contains(&name)
    };
    let mut variables: BTreeMap<String, String> = allocation
        .environment
        .iter()
        .filter(|(name, _)| all || is_ours(name) || words.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let given = words.iter().filter_map(|word| word.split_once('='));
    variables.extend(given.map(|(name, value)| (name.to_owned(), value.to_owned())));
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_process_has_the_callers_variables_and_its_own_nodes_folders_and_devices() {
        let called = map(&[
            ("MASTER_ADDR", "n1"),
            ("TESSERA_NODE", "n1"),
            ("TESSERA_JOB_ID", "40"),
            ("TESSERA_TOKEN", "own"),
            ("SLURM_TMPDIR", "/t/1"),
            ("TMPDIR", "/t/1"),
        ]);
        let node = map(&[
            ("TESSERA_NODE", "n2"),
            ("TESSERA_JOB_ID", "41"),
            ("SLURM_TMPDIR", "/t/2"),
            ("TMPDIR", "/t/2"),
            ("LANG", "C"),
        ]);

        let all = on_node(&called, &node);

        let expected = map(&[
            ("MASTER_ADDR", "n1"),
            ("TESSERA_NODE", "n2"),
            ("TESSERA_JOB_ID", "40"),
            ("TESSERA_TOKEN", "own"),
            ("SLURM_TMPDIR", "/t/2"),
            ("TMPDIR", "/t/2"),
        ]);
        assert_eq!(all, expected);
        let chosen = BTreeMap::from([("TMPDIR".to_owned(), "/scratch".to_owned())]);
        assert_eq!(on_node(&chosen, &node)["TMPDIR"], "/scratch");
    }
}
