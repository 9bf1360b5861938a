//! Restrictions on where a job may run: nodes, models of GPUs, and features that an operator
//! declares.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::ids::NodeName;
use crate::spec::BadField;

/// Maximum number of nodes that one list may name.
pub const LISTED_NODES_MAX: usize = 4_096;

/// Restrictions of a job to some of the cluster's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PlaceFilter {
    /// The model of the GPU, as its user writes it, such as `a100`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The only nodes that it may run on; all, if empty.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub nodes: BTreeSet<NodeName>,
    /// Nodes that it may not run on.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub exclude: BTreeSet<NodeName>,
}

impl PlaceFilter {
    /// Returns whether it restricts nothing.
    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether a job may run on a GPU of this model on this node.
    pub fn allows(&self, node: &NodeName, board: &str) -> bool {
        (self.nodes.is_empty() || self.nodes.contains(node))
            && !self.exclude.contains(node)
            && self.model.as_ref().is_none_or(|model| is_model(board, model))
    }

    /// Returns the restrictions in the form of the command's options.
    pub fn text(&self) -> String {
        let list = |nodes: &BTreeSet<NodeName>| {
            nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        };
        let model = self.model.as_ref().map(|model| format!("a GPU of model {model}"));
        let nodes = (!self.nodes.is_empty()).then(|| format!("nodes {}", list(&self.nodes)));
        let exclude =
            (!self.exclude.is_empty()).then(|| format!("no node of {}", list(&self.exclude)));
        let all: Vec<String> = [model, nodes, exclude].into_iter().flatten().collect();
        all.join(", ")
    }
}

/// Returns whether a board is of a model in the form that users write: `a100`, `a100_80gb`, `h100`,
/// `2080ti`, `nvidia_a100-sxm4-40gb`. All words of the model have to be words of the board's name,
/// or to begin one.
pub fn is_model(board: &str, model: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        let lower = text.to_ascii_lowercase();
        let parts =
            lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
        parts
            .filter(|part| {
                !matches!(*part, "nvidia" | "tesla" | "geforce" | "rtx" | "gtx" | "quadro")
            })
            .map(str::to_owned)
            .collect()
    };
    let (board, model) = (words(board), words(model));
    // "RTX 2080 Ti" is written 2080ti, and rtx2080ti.
    let joined = board.concat();
    let bare = |word: &str| {
        let stripped = ["rtx", "gtx"].iter().find_map(|prefix| word.strip_prefix(prefix));
        stripped.unwrap_or(word).to_owned()
    };
    let has = |word: &String| {
        let word = bare(word);
        let begins = |part: &String| match part.strip_prefix(&*word) {
            // "a10" is no A100, and "l4" no L40.
            Some(rest) => !rest.starts_with(|c: char| c.is_ascii_digit()),
            None => false,
        };
        board.iter().any(begins) || (word.len() > 4 && joined.starts_with(&*word))
    };
    !model.is_empty() && model.iter().all(has)
}

/// Reads a list of nodes in the format of batch schedulers: `n1,n2`, `gpu[1-3,07]`,
/// `rack[1-2]node[1-4]`.
///
/// # Errors
///
/// [`BadField`] names `field` and what is wrong with the list.
pub fn node_list(field: &str, text: &str) -> Result<BTreeSet<NodeName>, BadField> {
    let bad = |problem: String| {
        BadField::new(field, problem, "names of nodes such as n1,n2 or gpu[1-3,7]")
    };
    let mut nodes = BTreeSet::new();
    for word in split_outside_brackets(text) {
        let names = expand(word).ok_or_else(|| bad(format!("{word:?} is no name of nodes")))?;
        for name in names {
            let node = name.parse().map_err(|_| bad(format!("{name:?} is no name of a node")))?;
            nodes.insert(node);
            if nodes.len() > LISTED_NODES_MAX {
                return Err(bad(format!("it names more than {LISTED_NODES_MAX} nodes")));
            }
        }
    }
    Ok(nodes)
}

fn split_outside_brackets(text: &str) -> Vec<&str> {
    let (mut words, mut depth, mut from) = (Vec::new(), 0_u32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                words.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    words.push(text[from..].trim());
    words.retain(|word| !word.is_empty());
    words
}

/// Expands the first brackets of a name, and those behind them; `None` if they can't be read.
fn expand(word: &str) -> Option<Vec<String>> {
    let Some((before, rest)) = word.split_once('[') else {
        return (!word.contains(']')).then(|| vec![word.to_owned()]);
    };
    let (ranges, after) = rest.split_once(']')?;
    let tails = expand(after)?;
    let mut names = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let width = first.len();
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        let many = usize::try_from(last.checked_sub(first)?).ok()?.checked_add(1)?;
        if many.checked_mul(tails.len())?.checked_add(names.len())? > LISTED_NODES_MAX {
            return None;
        }
        for number in first..=last {
            names.extend(tails.iter().map(|tail| format!("{before}{number:0width$}{tail}")));
        }
    }
    Some(names)
}

/// Returns names in the format of batch schedulers, with numbers in brackets: `g[1-3],a7`. The
/// order of the names' prefixes is kept.
pub fn compressed(nodes: &[NodeName]) -> String {
    let mut groups: Vec<(String, usize)> = Vec::new();
    let mut numbers: BTreeMap<(String, usize), BTreeSet<u64>> = BTreeMap::new();
    let mut whole: BTreeSet<(String, usize)> = BTreeSet::new();
    for node in nodes {
        let name = node.as_str();
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (prefix, number) = name.split_at(name.len() - digits);
        let (key, number) = match number.parse::<u64>() {
            Ok(number) => {
                let width = if digits_of(number) == digits { 0 } else { digits };
                ((prefix.to_owned(), width), Some(number))
            }
            Err(_) => ((name.to_owned(), 0), None),
        };
        if !groups.contains(&key) {
            groups.push(key.clone());
        }
        match number {
            Some(number) => {
                numbers.entry(key).or_default().insert(number);
            }
            None => {
                whole.insert(key);
            }
        }
    }
    let mut words = Vec::new();
    for key in groups {
        if whole.contains(&key) {
            words.push(key.0.clone());
        }
        if let Some(numbers) = numbers.get(&key) {
            words.push(format!("{}{}", key.0, bracketed(numbers, key.1)));
        }
    }
    words.join(",")
}

fn digits_of(number: u64) -> usize {
    number.to_string().len()
}

fn bracketed(numbers: &BTreeSet<u64>, width: usize) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let run = |(first, last): &(u64, u64)| match first == last {
        true => format!("{first:0width$}"),
        false => format!("{first:0width$}-{last:0width$}"),
    };
    match runs.as_slice() {
        [(first, last)] if first == last => format!("{first:0width$}"),
        runs => format!("[{}]", runs.iter().map(run).collect::<Vec<_>>().join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_recognized_as_users_write_them() {
        for (board, model, is) in [
            ("NVIDIA A100-SXM4-40GB", "a100", true),
            ("NVIDIA A100-SXM4-40GB", "A100", true),
            ("NVIDIA A100-SXM4-80GB", "a100_80gb", true),
            ("NVIDIA A100-SXM4-40GB", "a100_80gb", false),
            ("NVIDIA A100-SXM4-40GB", "nvidia_a100-sxm4-40gb", true),
            ("NVIDIA A100-SXM4-40GB", "a10", false),
            ("NVIDIA A100-SXM4-40GB", "h100", false),
            ("NVIDIA H100 80GB HBM3", "h100", true),
            ("NVIDIA L40S", "l4", false),
            ("NVIDIA L40S", "l40s", true),
            ("NVIDIA GeForce RTX 2080 Ti", "2080ti", true),
            ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti", true),
            ("NVIDIA GeForce RTX 3090", "rtx_3090", true),
            ("NVIDIA GeForce RTX 3090", "", false),
        ] {
            assert_eq!(is_model(board, model), is, "{board} {model}");
        }
    }

    #[test]
    fn lists_of_nodes_are_expanded_and_compressed_as_slurm_does() {
        let list = |text: &str| -> Vec<String> {
            node_list("nodelist", text).unwrap().iter().map(ToString::to_string).collect()
        };
        assert_eq!(list("g[1-3,07],a7"), ["a7", "g07", "g1", "g2", "g3"]);
        assert_eq!(list("r[1-2]n[1-2]"), ["r1n1", "r1n2", "r2n1", "r2n2"]);
        assert!(node_list("nodelist", "g[1-").is_err());
        assert!(node_list("nodelist", "g[1-99999999]").is_err());
        let names = |names: &[&str]| -> Vec<NodeName> {
            names.iter().map(|name| name.parse().unwrap()).collect()
        };
        assert_eq!(compressed(&names(&["g1", "g2", "g3", "a7"])), "g[1-3],a7");
        assert_eq!(compressed(&names(&["g1", "g3"])), "g[1,3]");
        assert_eq!(compressed(&names(&["g07", "g08", "g10", "login"])), "g[07-08],g10,login");
    }
}
