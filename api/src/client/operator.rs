//! What operators ask of a controller.

use super::http::{Call, segment};
use super::{Client, ClientError};
use crate::types::{
    ClusterEvents, DoctorReport, Gpu, LayoutApplied, LayoutChange, LayoutOutlook, LayoutPlan,
    LayoutRequest, OperatorRequest, OperatorResult,
};

/// What an operator may say of a node, a GPU or a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorVerb {
    /// No new work; what runs finishes. For nodes and GPUs.
    Drain,
    /// New work again.
    Undrain,
    /// Out of use until it is cleared. For GPUs and slices.
    Quarantine,
    /// In use again, its faults forgotten.
    Clear,
    /// The layout stays as it is. For GPUs.
    Pin,
    /// The layout follows the jobs again.
    Unpin,
}

impl OperatorVerb {
    /// Returns the word in the route.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Undrain => "undrain",
            Self::Quarantine => "quarantine",
            Self::Clear => "clear",
            Self::Pin => "pin",
            Self::Unpin => "unpin",
        }
    }
}

impl Client {
    /// Says something of a whole node: [`OperatorVerb::Drain`] or [`OperatorVerb::Undrain`].
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such node.
    pub async fn tell_node(
        &self,
        node: &str,
        verb: OperatorVerb,
        request: &OperatorRequest,
    ) -> Result<OperatorResult, ClientError> {
        let path = format!("v1/nodes/{}/{}", segment(node), verb.word());
        self.http.json(Call::post(&path).body(request)).await
    }

    /// Says something of a GPU, or of one of its slices.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such GPU or slice, or something is in the way.
    pub async fn tell_gpu(
        &self,
        gpu: &str,
        verb: OperatorVerb,
        request: &OperatorRequest,
    ) -> Result<OperatorResult, ClientError> {
        let path = format!("v1/gpus/{}/{}", segment(gpu), verb.word());
        self.http.json(Call::post(&path).body(request)).await
    }

    /// Returns a GPU with its layout, by any of its names.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if no GPU, or more than one, has that name.
    pub async fn layout(&self, gpu: &str) -> Result<Gpu, ClientError> {
        self.fetch(&format!("v1/gpus/{}/layout", segment(gpu))).await
    }

    /// Tells what a layout would take.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] says what stands in the way, and what would be possible.
    pub async fn plan_layout(&self, gpu: &str, layout: &str) -> Result<LayoutPlan, ClientError> {
        let path = format!("v1/gpus/{}/layout/plan", segment(gpu));
        self.http.json(Call::get(&path).query("layout", layout)).await
    }

    /// Gives a GPU a layout; returns once its plan is committed.
    ///
    /// # Errors
    ///
    /// As [`Client::plan_layout`].
    pub async fn apply_layout(
        &self,
        gpu: &str,
        request: &LayoutRequest,
    ) -> Result<LayoutApplied, ClientError> {
        let path = format!("v1/gpus/{}/layout", segment(gpu));
        self.http.json(Call::post(&path).body(request)).await
    }

    /// Tells what can still be made of a GPU.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such GPU, or it is not partitioned.
    pub async fn layout_outlook(&self, gpu: &str) -> Result<LayoutOutlook, ClientError> {
        self.fetch(&format!("v1/gpus/{}/layout/outlook", segment(gpu))).await
    }

    /// Returns one change of a layout.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such change.
    pub async fn layout_change(&self, plan: &str) -> Result<LayoutChange, ClientError> {
        self.fetch(&format!("v1/layouts/{}", segment(plan))).await
    }

    /// Lists what operators did, newest first.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn cluster_events(
        &self,
        node: Option<&str>,
        limit: u32,
    ) -> Result<ClusterEvents, ClientError> {
        let call = Call::get("v1/cluster-events").query("limit", limit);
        self.http.json(call.maybe("node", node)).await
    }

    /// Lets a machine look at itself.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such machine, or it is not connected.
    pub async fn doctor(&self, node: &str) -> Result<DoctorReport, ClientError> {
        self.fetch(&format!("v1/nodes/{}/doctor", segment(node))).await
    }
}
