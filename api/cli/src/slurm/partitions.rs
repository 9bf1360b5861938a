//! Partitions: those that the operator's settings define, and the default one.

use tessera_api_types::{ClusterInfo, NodeDetails, PartitionView};
use tessera_model::place::is_model;

use super::{PARTITION, hosts};

/// A partition with its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    pub name: String,
    /// Whether it is the default partition.
    pub is_default: bool,
    nodes: Option<Vec<String>>,
    gpu_model: Option<String>,
}

impl Partition {
    /// Returns the partitions of a cluster, the default one first.
    pub fn all(info: &ClusterInfo) -> Vec<Self> {
        let defined = |name: &str| info.partitions.iter().any(|one| one.name == name);
        let default = (!defined(PARTITION)).then(|| Self::everywhere(PARTITION));
        default.into_iter().chain(info.partitions.iter().map(Self::of)).collect()
    }

    fn everywhere(name: &str) -> Self {
        Self { name: name.to_owned(), is_default: true, nodes: None, gpu_model: None }
    }

    fn of(view: &PartitionView) -> Self {
        Self {
            name: view.name.clone(),
            is_default: view.name == PARTITION,
            nodes: view.nodes.as_deref().map(|list| hosts::expand(list).unwrap_or_default()),
            gpu_model: view.gpu_model.clone(),
        }
    }

    /// Returns whether a node belongs to it.
    pub fn has(&self, node: &NodeDetails) -> bool {
        let has_model = |model: &String| node.gpus.iter().any(|gpu| is_model(&gpu.model, model));
        self.nodes.as_ref().is_none_or(|nodes| nodes.contains(&node.name))
            && self.gpu_model.as_ref().is_none_or(has_model)
    }
}

/// Returns the names of the partitions that a node belongs to.
pub fn names_of(partitions: &[Partition], node: &NodeDetails) -> Vec<String> {
    partitions.iter().filter(|one| one.has(node)).map(|one| one.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(partitions: Vec<PartitionView>) -> ClusterInfo {
        let about = serde_json::json!({
            "version": "1", "controller": "c", "policy": "p", "epoch": 1, "nodes": {}, "gpus": 0,
        });
        ClusterInfo { partitions, ..serde_json::from_value(about).unwrap() }
    }

    fn node(name: &str) -> NodeDetails {
        serde_json::from_value(serde_json::json!({
            "name": name, "id": "1", "state": "available", "agent_version": "1", "cores": 2,
            "memory_bytes": 1, "generation": 1, "last_seen_at": null, "gpus": [],
        }))
        .unwrap()
    }

    #[test]
    fn nodes_are_in_the_default_partition_and_in_those_that_name_them() {
        let view = |name: &str, nodes: Option<&str>| PartitionView {
            name: name.to_owned(),
            nodes: nodes.map(str::to_owned),
            gpu_model: None,
        };
        let plain = Partition::all(&info(Vec::new()));
        let named = Partition::all(&info(vec![view("a100", Some("g[1-2]")), view("long", None)]));

        assert_eq!(names_of(&plain, &node("g3")), ["gpu"]);
        assert_eq!(names_of(&named, &node("g3")), ["gpu", "long"]);
        assert_eq!(names_of(&named, &node("g1")), ["gpu", "a100", "long"]);
    }
}
