//! The names by which people call GPUs and nodes.

use std::str::FromStr;

use tessera_api_types::{GpuDetails, NodeDetails};
use tessera_model::ids::BadId;
use tessera_model::spec::BadField;
use tessera_model::{GpuId, NodeName};

use super::error::ApiError;
use super::state::State;

/// Maximum number of names that an error lists: more are of no help.
const LISTED_MAX: usize = 12;

/// What a person calls a GPU: its UUID, the beginning of it, or `node:index`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GpuName(String);

impl FromStr for GpuName {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let fits = (1..=128).contains(&text.len()) && !text.chars().any(char::is_whitespace);
        fits.then(|| Self(text.to_owned())).ok_or_else(|| BadId {
            kind: "GpuName",
            text: text.to_owned(),
            expected: "node:index, a GPU's UUID, or a prefix of one",
        })
    }
}

/// Finds a GPU by any of its names.
pub(super) async fn find_gpu(
    state: &State,
    name: &GpuName,
) -> Result<(GpuDetails, GpuId), ApiError> {
    let gpus: Vec<GpuDetails> =
        state.nodes().await?.into_iter().flat_map(|node| node.gpus).collect();
    let gpu = resolve(&gpus, &name.0)?.clone();
    let id = gpu.id.parse().map_err(|_| ApiError::Internal)?;
    Ok((gpu, id))
}

/// Finds a node.
pub(super) async fn find_node(state: &State, name: &NodeName) -> Result<NodeDetails, ApiError> {
    let nodes = state.nodes().await?;
    let names: Vec<_> = nodes.iter().map(|node| node.name.clone()).collect();
    let found = nodes.into_iter().find(|node| node.name == name.as_str());
    found.ok_or_else(|| {
        let there = match names.is_empty() {
            true => "no node has registered yet".to_owned(),
            false => format!("there are {}", listed(&names)),
        };
        ApiError::NotFound { what: format!("there is no node {name}: {there}") }
    })
}

fn resolve<'g>(gpus: &'g [GpuDetails], name: &str) -> Result<&'g GpuDetails, ApiError> {
    if let Some(gpu) = gpus.iter().find(|gpu| gpu.id == name || short(gpu) == name) {
        return Ok(gpu);
    }
    let begins = |id: &str| {
        let id = id.to_ascii_lowercase();
        let prefix = name.to_ascii_lowercase();
        id.starts_with(&prefix) || id.strip_prefix("gpu-").is_some_and(|id| id.starts_with(&prefix))
    };
    let found: Vec<_> = gpus.iter().filter(|gpu| begins(&gpu.id)).collect();
    match &found[..] {
        [gpu] => Ok(gpu),
        [] => Err(ApiError::NotFound { what: unknown(gpus, name) }),
        several => {
            let names: Vec<_> =
                several.iter().map(|gpu| format!("{} ({})", short(gpu), gpu.id)).collect();
            let problem = format!("{name:?} could be {}", listed(&names));
            Err(BadField::new("gpu", problem, "a longer prefix, or node:index").into())
        }
    }
}

fn unknown(gpus: &[GpuDetails], name: &str) -> String {
    let node = name.rsplit_once(':').map(|(node, _)| node);
    let of_node: Vec<_> =
        gpus.iter().filter(|gpu| Some(gpu.node.as_str()) == node).map(short).collect();
    if !of_node.is_empty() {
        return format!("there is no GPU {name}: that node has {}", listed(&of_node));
    }
    let all: Vec<_> = gpus.iter().map(short).collect();
    match all.is_empty() {
        true => format!("there is no GPU {name}: none has been reported yet"),
        false => format!("there is no GPU {name}: there are {}", listed(&all)),
    }
}

fn short(gpu: &GpuDetails) -> String {
    format!("{}:{}", gpu.node, gpu.index)
}

fn listed(names: &[String]) -> String {
    let shown = names.iter().take(LISTED_MAX).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
