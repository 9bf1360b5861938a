//! The simulated GPUs: `8xa100-40gb,2xa30-24gb`.

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_model::mig::{Layout, ProfileId, catalog};
use tessera_model::number::clamped;
use tessera_model::{Bytes, NodeName};
use tessera_placement::power::PowerCap;
use tessera_placement::{
    AdminOverride, ClusterView, GpuView, InstanceState, InstanceView, MigView,
};

/// Maximum number of GPUs of one cluster. Chosen: twelve times the largest that was measured.
pub const GPUS_MAX: usize = 100_000;

/// GPUs of one node, as `node0001` and so on: as many as Dyna-P's nodes have (20 with 8 A100-40GB each).
pub const GPUS_PER_NODE: usize = 8;

/// The GPUs of a cluster.
#[derive(Clone, Debug)]
pub struct GpuFleet {
    /// Catalogue keys, one a GPU.
    pub keys: Vec<&'static str>,
    /// The cluster view before the first event.
    pub view: ClusterView,
}

/// Why a text is not a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{part:?} is not a part of a cluster: {why}; write COUNTxMODEL,…, such as \
     8xa100-40gb,2xa30-24gb"
)]
pub struct FleetError {
    /// What was read.
    pub part: String,
    /// What is wrong with it.
    pub why: String,
}

/// Why a GPU can't be cut into a layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The model knows no such profile.
    #[error("{model} has no profile {name:?}: write some of {}, such as 3g.20gb,2g.10gb,2g.10gb on an A100", known.join(", "))]
    Profile {
        /// The GPU.
        model: String,
        /// What was read.
        name: String,
        /// The existing ones.
        known: Vec<String>,
    },
    /// The instances can't coexist.
    #[error(
        "a GPU of {model} can't be cut into {profiles}; `tessera mig states {model}` lists the \
         possible layouts"
    )]
    Together {
        /// The GPU.
        model: String,
        /// What was read.
        profiles: String,
    },
}

impl GpuFleet {
    /// Reads a cluster, with MIG on and nothing cut.
    ///
    /// # Errors
    ///
    /// [`FleetError`] names the part and states what would be right.
    pub fn parse(text: &str) -> Result<Self, FleetError> {
        let mut keys = Vec::new();
        for part in text.split(',').map(str::trim) {
            let bad = |why: String| FleetError { part: part.to_owned(), why };
            let (count, model) = part.split_once('x').unwrap_or(("1", part));
            let (count, model) = match count.parse::<usize>() {
                Ok(count) => (count, model),
                Err(_) => (1, part),
            };
            let model = catalog::find(model).map_err(|unknown| bad(unknown.to_string()))?;
            if count == 0 || keys.len() + count > GPUS_MAX {
                return Err(bad(format!("there may be 1 to {GPUS_MAX} GPUs")));
            }
            keys.extend(std::iter::repeat_n(model.key.as_str(), count));
        }
        Self::of(keys)
    }

    /// Builds a cluster of catalogue keys.
    ///
    /// # Errors
    ///
    /// [`FleetError`] for a model that can't be planned with.
    pub fn of(keys: Vec<&'static str>) -> Result<Self, FleetError> {
        let mut rules: BTreeMap<&str, Arc<MigView>> = BTreeMap::new();
        let mut gpus = Vec::new();
        for (number, key) in keys.iter().enumerate() {
            let bad = |why: String| FleetError { part: (*key).to_owned(), why };
            let model = catalog::find(key).map_err(|unknown| bad(unknown.to_string()))?;
            let mig = match rules.get(key) {
                Some(mig) => Arc::clone(mig),
                None => {
                    let mig = MigView::new(model.geometry()).map_err(|e| bad(e.to_string()))?;
                    Arc::clone(rules.entry(*key).or_insert(Arc::new(mig)))
                }
            };
            let largest = mig.largest().map_or(Bytes::ZERO, |p| p.memory);
            let node = number / GPUS_PER_NODE;
            gpus.push(GpuView {
                id: format!("GPU-{number:08}").parse().map_err(|_| bad("too many".into()))?,
                node: node_name(node).ok_or_else(|| bad("too many".into()))?,
                index: clamped(number % GPUS_PER_NODE),
                model: (*key).to_owned(),
                memory: model.memory.unwrap_or(largest),
                sms: model.sms,
                mig: Some(mig),
                mps: true,
                kernel: false,
                available: true,
                changing: false,
                instances: Vec::new(),
                operator: AdminOverride::default(),
                part: 0,
            });
        }
        Ok(Self { keys, view: gpus.into() })
    }

    /// Limits the power that all GPUs may draw together.
    #[must_use]
    pub fn with_power_cap(mut self, cap: Option<PowerCap>) -> Self {
        self.view.power_cap = cap;
        self
    }

    /// Cuts every GPU into the same instances, by profile names.
    ///
    /// # Errors
    ///
    /// [`LayoutError`] if a GPU can't be cut in this way.
    pub fn cut(&mut self, profiles: &str) -> Result<(), LayoutError> {
        for gpu in &mut self.view.gpus {
            let Some(mig) = gpu.mig.as_deref() else { continue };
            let mut requested = Vec::new();
            for name in profiles.split(',').map(str::trim) {
                let named = name.parse().ok().and_then(|name| mig.geometry.by_name(&name));
                let profile = named.ok_or_else(|| LayoutError::Profile {
                    model: gpu.model.clone(),
                    name: name.to_owned(),
                    known: mig.plain().map(|profile| profile.name.to_string()).collect(),
                })?;
                requested.push(profile.id);
            }
            let layout = arranged(mig, &requested).ok_or_else(|| LayoutError::Together {
                model: gpu.model.clone(),
                profiles: profiles.to_owned(),
            })?;
            gpu.instances = layout
                .into_iter()
                .filter_map(|slot| {
                    let memory = mig.geometry.profile(slot.profile)?.memory;
                    Some(InstanceView { slot: Some(slot), memory, state: InstanceState::Idle })
                })
                .collect();
        }
        Ok(())
    }

    /// Returns each model once.
    pub fn models(&self) -> Vec<&'static str> {
        let mut models = self.keys.clone();
        models.sort_unstable();
        models.dedup();
        models
    }
}

/// Finds starts for instances of these profiles: the part of a full layout that has them.
fn arranged(mig: &MigView, requested: &[ProfileId]) -> Option<Layout> {
    mig.full().iter().find_map(|layout| {
        let mut left = requested.to_vec();
        let mut taken = Layout::new();
        for slot in layout {
            if let Some(at) = left.iter().position(|id| *id == slot.profile) {
                left.swap_remove(at);
                taken.insert(*slot);
            }
        }
        left.is_empty().then_some(taken)
    })
}

fn node_name(number: usize) -> Option<NodeName> {
    format!("node{number:05}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_counts_of_models() {
        let fleet = GpuFleet::parse("2xa100-40gb, a30-24gb").unwrap();
        assert_eq!(fleet.keys, ["a100-40gb", "a100-40gb", "a30-24gb"]);
        assert!(Arc::ptr_eq(
            fleet.view.gpus[0].mig.as_ref().unwrap(),
            fleet.view.gpus[1].mig.as_ref().unwrap()
        ));
    }

    #[test]
    fn an_invalid_cluster_is_refused_with_the_expected_form() {
        let refused = GpuFleet::parse("8xa100-41gb").unwrap_err().to_string();
        assert!(refused.contains("a100-40gb"), "{refused}");
        assert!(GpuFleet::parse("0xa30-24gb").is_err());
        assert!(GpuFleet::parse("").is_err());
    }

    #[test]
    fn an_invalid_layout_is_refused_with_the_expected_form() {
        let mut fleet = GpuFleet::parse("a100-40gb").unwrap();
        let refused = fleet.cut("9g.9gb").unwrap_err().to_string();
        assert!(refused.contains("3g.20gb, 4g.20gb"), "{refused}");
        let refused = fleet.cut("4g.20gb,4g.20gb").unwrap_err().to_string();
        assert!(refused.contains("can't be cut into 4g.20gb,4g.20gb"), "{refused}");
        assert!(fleet.cut("4g.20gb,2g.10gb").is_ok());
    }
}
