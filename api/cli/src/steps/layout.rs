//! Which processes of a step run on which nodes of its job.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tessera_model::NodeName;
use tessera_model::number::clamped;
use tessera_model::place::compressed;

/// The nodes of a step, and its processes on each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepLayout {
    /// The nodes, in the order of the job's.
    pub nodes: Vec<StepNode>,
}

/// One node of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepNode {
    pub name: String,
    /// The ranks of its processes.
    pub ranks: Vec<usize>,
}

/// Which nodes a step requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRequest {
    /// How many; `None` if it states none.
    pub count: Option<usize>,
    /// Those that it names.
    pub named: BTreeSet<String>,
    /// Those that it excludes.
    pub excluded: BTreeSet<String>,
    /// The first one that it may use, by its number in the job.
    pub first: usize,
    /// How many processes it names; fewer nodes are enough for fewer processes.
    pub tasks: Option<usize>,
}

/// How ranks follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    /// Each node has consecutive ranks.
    #[default]
    Block,
    /// Consecutive ranks are on consecutive nodes.
    Cyclic,
    /// As cyclic, but with so many ranks at a time.
    Plane(usize),
}

/// Nodes that a job does not have, or more processes than fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLayout {
    /// It requests more nodes than there are.
    #[error("the step requests {requested} nodes, and {held} of the job's can be used for it")]
    TooManyNodes {
        /// How many it requests.
        requested: usize,
        /// How many it may use.
        held: usize,
    },
    /// It names a node that is not one of the job's.
    #[error("{node} is not one of the job's nodes, which are {held}")]
    NotOfTheJob {
        node: String,
        /// The job's nodes.
        held: String,
    },
    /// More processes than the limits for each node allow.
    #[error("{tasks} processes don't fit on {nodes} nodes with at most {each} on each")]
    TooManyTasks {
        /// How many processes.
        tasks: usize,
        /// How many nodes.
        nodes: usize,
        /// How many each may have.
        each: usize,
    },
}

impl NodeRequest {
    /// Returns whether a node is excluded.
    pub fn excludes(&self, node: &str) -> bool {
        self.excluded.contains(node)
    }

    /// Chooses nodes of a job, in its order: those that are named, then the first of the others.
    ///
    /// # Errors
    ///
    /// [`BadLayout`] if the job has too few, or not those.
    pub fn choose(&self, held: &[String]) -> Result<Vec<String>, BadLayout> {
        let stranger = self.named.iter().chain(&self.excluded).find(|name| !held.contains(*name));
        // Slurm ignores excluded nodes that the job does not have, and scripts that exclude broken
        // nodes rely on this.
        if let Some(node) = stranger.filter(|name| self.named.contains(*name)) {
            let held = held.join(", ");
            return Err(BadLayout::NotOfTheJob { node: node.clone(), held });
        }
        let usable: Vec<&String> = held
            .iter()
            .skip(self.first)
            .filter(|name| !self.excluded.contains(*name) || self.named.contains(*name))
            .collect();
        let named = self.named.len();
        let usual = match self.tasks {
            _ if named > 0 => named,
            Some(tasks) => tasks.min(usable.len()),
            None => usable.len(),
        };
        let count = self.count.unwrap_or(usual).max(named).max(1);
        let others = usable.iter().filter(|name| !self.named.contains(**name));
        let others = others.take(count - named).map(|name| (*name).clone());
        let chosen: BTreeSet<String> = self.named.iter().cloned().chain(others).collect();
        if chosen.len() < count {
            return Err(BadLayout::TooManyNodes { requested: count, held: chosen.len() });
        }
        Ok(held.iter().filter(|name| chosen.contains(*name)).cloned().collect())
    }
}

impl StepLayout {
    /// Gives each node its ranks: as even as possible, or `each` to every node until none is left.
    ///
    /// # Errors
    ///
    /// [`BadLayout::TooManyTasks`].
    pub fn spread(
        nodes: Vec<String>,
        tasks: usize,
        each: Option<usize>,
        distribution: Distribution,
    ) -> Result<Self, BadLayout> {
        let count = nodes.len().max(1);
        let most = each.unwrap_or(usize::MAX);
        if tasks > most.saturating_mul(count) {
            return Err(BadLayout::TooManyTasks { tasks, nodes: count, each: most });
        }
        let mut sizes: Vec<usize> = match each {
            Some(each) => {
                (0..count).map(|node| tasks.saturating_sub(node * each).min(each)).collect()
            }
            None => {
                (0..count).map(|node| tasks / count + usize::from(node < tasks % count)).collect()
            }
        };
        let mut ranks: Vec<Vec<usize>> = vec![Vec::new(); count];
        let (mut rank, mut node) = (0, 0);
        while rank < tasks {
            let take = match distribution {
                Distribution::Block => sizes[node],
                Distribution::Cyclic => sizes[node].min(1),
                Distribution::Plane(size) => sizes[node].min(size.max(1)),
            };
            sizes[node] -= take;
            ranks[node].extend(rank..rank + take);
            rank += take;
            node = (node + 1) % count;
        }
        let used = nodes.into_iter().zip(ranks).filter(|(_, ranks)| !ranks.is_empty());
        Ok(Self { nodes: used.map(|(name, ranks)| StepNode { name, ranks }).collect() })
    }

    /// Returns how many processes there are.
    pub fn tasks(&self) -> usize {
        self.nodes.iter().map(|node| node.ranks.len()).sum()
    }

    /// Returns the place of a process: its node's number in the step, and its own number there.
    pub fn place(&self, rank: usize) -> Option<(usize, usize)> {
        let local = |node: &StepNode| node.ranks.iter().position(|own| *own == rank);
        self.nodes.iter().enumerate().find_map(|(index, node)| Some((index, local(node)?)))
    }

    /// Returns the nodes' names as Slurm writes them: `n[1-2]`.
    pub fn node_list(&self) -> String {
        let names: Option<Vec<NodeName>> =
            self.nodes.iter().map(|node| node.name.parse().ok()).collect();
        match names {
            Some(names) => compressed(&names),
            None => self.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(","),
        }
    }

    /// Returns how many processes each node has, as Slurm writes it: `4(x2),1`.
    pub fn tasks_per_node(&self) -> String {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for node in &self.nodes {
            match runs.last_mut() {
                Some((size, times)) if *size == node.ranks.len() => *times += 1,
                _ => runs.push((node.ranks.len(), 1)),
            }
        }
        let word = |(size, times): (usize, usize)| match times {
            1 => size.to_string(),
            times => format!("{size}(x{times})"),
        };
        runs.into_iter().map(word).collect::<Vec<_>>().join(",")
    }
}

/// Returns a node's share of a step's total; the first nodes get one more if it can't be divided
/// evenly.
pub fn share(total: u32, nodes: usize, node: usize) -> u32 {
    let nodes = clamped::<u32>(nodes).max(1);
    total / nodes + u32::from(clamped::<u32>(node) < total % nodes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(count: usize) -> Vec<String> {
        (1..=count).map(|number| format!("n{number}")).collect()
    }

    fn ranks(
        tasks: usize,
        nodes: usize,
        each: Option<usize>,
        how: Distribution,
    ) -> Vec<Vec<usize>> {
        let layout = StepLayout::spread(names(nodes), tasks, each, how).unwrap();
        layout.nodes.into_iter().map(|node| node.ranks).collect()
    }

    #[test]
    fn ranks_are_spread_in_blocks_or_in_turn() {
        use Distribution::{Block, Cyclic, Plane};

        assert_eq!(ranks(4, 2, None, Block), [vec![0, 1], vec![2, 3]]);
        assert_eq!(ranks(3, 2, None, Block), [vec![0, 1], vec![2]]);
        assert_eq!(ranks(4, 2, None, Cyclic), [vec![0, 2], vec![1, 3]]);
        assert_eq!(ranks(3, 2, Some(2), Cyclic), [vec![0, 2], vec![1]]);
        assert_eq!(ranks(5, 3, Some(2), Block), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(ranks(8, 2, None, Plane(2)), [vec![0, 1, 4, 5], vec![2, 3, 6, 7]]);
        let full = StepLayout::spread(names(2), 5, Some(2), Block);
        assert_eq!(full, Err(BadLayout::TooManyTasks { tasks: 5, nodes: 2, each: 2 }));
    }

    #[test]
    fn nodes_are_chosen_by_name_and_by_number() {
        let request = NodeRequest::default();
        let chosen = |request: NodeRequest| request.choose(&names(3)).map(|all| all.join(","));
        let set = |list: &[&str]| list.iter().map(ToString::to_string).collect::<BTreeSet<_>>();

        assert_eq!(chosen(request.clone()).unwrap(), "n1,n2,n3");
        assert_eq!(chosen(NodeRequest { tasks: Some(2), ..request.clone() }).unwrap(), "n1,n2");
        assert_eq!(chosen(NodeRequest { named: set(&["n3"]), ..request.clone() }).unwrap(), "n3");
        let two = NodeRequest { count: Some(2), named: set(&["n3"]), ..request.clone() };
        assert_eq!(chosen(two).unwrap(), "n1,n3");
        let other = NodeRequest { excluded: set(&["n1", "n9"]), ..request.clone() };
        assert_eq!(chosen(other).unwrap(), "n2,n3");
        assert_eq!(chosen(NodeRequest { first: 1, ..request.clone() }).unwrap(), "n2,n3");
        let stranger = chosen(NodeRequest { named: set(&["n9"]), ..request.clone() }).unwrap_err();
        assert!(stranger.to_string().contains("n1, n2, n3"), "{stranger}");
        let many = chosen(NodeRequest { count: Some(4), ..request }).unwrap_err();
        assert_eq!(many, BadLayout::TooManyNodes { requested: 4, held: 3 });
    }

    #[test]
    fn lists_are_written_as_slurm_does() {
        let layout = StepLayout::spread(names(3), 8, None, Distribution::Block).unwrap();

        assert_eq!(
            (layout.node_list(), layout.tasks_per_node()),
            ("n[1-3]".into(), "3(x2),2".into())
        );
        assert_eq!(layout.place(4), Some((1, 1)));
        assert_eq!((share(5, 2, 0), share(5, 2, 1)), (3, 2));
    }

    proptest! {
        #[test]
        fn every_rank_is_on_one_node_and_nodes_differ_by_one_at_most(
            tasks in 1_usize..200,
            nodes in 1_usize..20,
            cyclic: bool,
        ) {
            let how = if cyclic { Distribution::Cyclic } else { Distribution::Block };
            let layout = StepLayout::spread(names(nodes), tasks, None, how).unwrap();
            let mut all: Vec<usize> =
                layout.nodes.iter().flat_map(|node| node.ranks.clone()).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..tasks).collect::<Vec<_>>());
            let sizes = layout.nodes.iter().map(|node| node.ranks.len());
            let (least, most) = (sizes.clone().min().unwrap(), sizes.max().unwrap());
            prop_assert!(most - least <= 1);
            prop_assert_eq!(layout.tasks(), tasks);
        }
    }
}
