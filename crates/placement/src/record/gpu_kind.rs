//! Kinds of GPUs, under which answers are recorded.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tessera_model::mig::Geometry;

use crate::view::{ClusterView, GpuView, MigView};

/// GPUs with equal predictions: one model with one geometry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GpuKind {
    pub(super) model: String,
    pub(super) mig: Option<Arc<MigView>>,
}

impl GpuKind {
    fn of(gpu: &GpuView) -> Self {
        Self { model: gpu.model.clone(), mig: gpu.mig.clone() }
    }

    pub(super) fn record(&self) -> GpuKindRecord {
        let geometry = self.mig.as_ref().map(|mig| mig.geometry.clone());
        GpuKindRecord { model: self.model.clone(), geometry }
    }

    fn is_kind_of(&self, gpu: &GpuView) -> bool {
        // Pointers are compared first, since the views of one round share them.
        self.mig == gpu.mig && self.model == gpu.model
    }
}

/// A kind of GPU in its stored form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuKindRecord {
    /// The driver's name for the board.
    pub model: String,
    /// Its geometry; none where MIG is off.
    pub geometry: Option<Geometry>,
}

/// Returns the number of a GPU's kind, counted from 0.
pub(super) fn number_of(kinds: &[GpuKind], gpu: &GpuView) -> Option<u32> {
    let found = kinds.iter().position(|kind| kind.is_kind_of(gpu))?;
    u32::try_from(found).ok()
}

/// Adds the kinds of a view's GPUs that are new.
pub(super) fn add_kinds(kinds: &mut Vec<GpuKind>, cluster: &ClusterView) {
    for gpu in &cluster.gpus {
        if number_of(kinds, gpu).is_none() {
            kinds.push(GpuKind::of(gpu));
        }
    }
}
