//! Requests of operators: administrative overrides, layouts, events and checks of nodes.

use super::http::{ApiCall, segment};
use super::{ApiClient, ClientError};
use tessera_api_types::{
    ClusterEvents, DoctorReport, GpuAvailabilityView, GpuDetails, LayoutApplied, LayoutPlan,
    LayoutRequest, OperatorRequest, OperatorResult, PlanPreviewView,
};

/// The administrative overrides of nodes, GPUs and slices, and their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorVerb {
    /// No new jobs start; running ones finish. For nodes and GPUs.
    Drain,
    /// Ends a drain.
    Undrain,
    /// Out of use until cleared. For GPUs and slices.
    Quarantine,
    /// Ends a quarantine, and clears the recorded faults.
    Clear,
    /// The layout is not changed for jobs. For GPUs.
    Pin,
    /// Ends a pin.
    Unpin,
}

impl OperatorVerb {
    /// Returns the verb's name in the route.
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

impl ApiClient {
    /// Sets or clears an override of a node: [`OperatorVerb::Drain`] or [`OperatorVerb::Undrain`].
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such node.
    pub async fn send_to_node(
        &self,
        node: &str,
        verb: OperatorVerb,
        request: &OperatorRequest,
    ) -> Result<OperatorResult, ClientError> {
        let path = format!("v1/nodes/{}/{}", segment(node), verb.word());
        self.http.json(ApiCall::post(&path).body(request)).await
    }

    /// Sets or clears an override of a GPU, or of one of its slices.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such GPU or slice, or if its state forbids it.
    pub async fn send_to_gpu(
        &self,
        gpu: &str,
        verb: OperatorVerb,
        request: &OperatorRequest,
    ) -> Result<OperatorResult, ClientError> {
        let path = format!("v1/gpus/{}/{}", segment(gpu), verb.word());
        self.http.json(ApiCall::post(&path).body(request)).await
    }

    /// Returns a GPU with its layout; `gpu` is any of its names.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if no GPU, or more than one, has that name.
    pub async fn layout(&self, gpu: &str) -> Result<GpuDetails, ClientError> {
        self.fetch(&format!("v1/gpus/{}/layout", segment(gpu))).await
    }

    /// Previews the plan for a layout.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] states what prevents it, and what is possible.
    pub async fn plan_layout(
        &self,
        gpu: &str,
        layout: &str,
    ) -> Result<PlanPreviewView, ClientError> {
        let path = format!("v1/gpus/{}/layout/plan", segment(gpu));
        self.http.json(ApiCall::get(&path).query("layout", layout)).await
    }

    /// Applies a layout to a GPU; returns when its plan is committed.
    ///
    /// # Errors
    ///
    /// As [`ApiClient::plan_layout`].
    pub async fn apply_layout(
        &self,
        gpu: &str,
        request: &LayoutRequest,
    ) -> Result<LayoutApplied, ClientError> {
        let path = format!("v1/gpus/{}/layout", segment(gpu));
        self.http.json(ApiCall::post(&path).body(request)).await
    }

    /// Returns which instances can still be created on a GPU.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such GPU, or it is not partitioned.
    pub async fn layout_availability(&self, gpu: &str) -> Result<GpuAvailabilityView, ClientError> {
        self.fetch(&format!("v1/gpus/{}/layout/availability", segment(gpu))).await
    }

    /// Returns one layout plan.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with status 404 if there is no such plan.
    pub async fn layout_plan(&self, plan: &str) -> Result<LayoutPlan, ClientError> {
        self.fetch(&format!("v1/layouts/{}", segment(plan))).await
    }

    /// Lists actions of operators, newest first.
    ///
    /// # Errors
    ///
    /// As everywhere.
    pub async fn cluster_events(
        &self,
        node: Option<&str>,
        limit: u32,
    ) -> Result<ClusterEvents, ClientError> {
        let call = ApiCall::get("v1/cluster-events").query("limit", limit);
        self.http.json(call.maybe("node", node)).await
    }

    /// Makes a node check its own readiness.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if there is no such node, or if it is not connected.
    pub async fn doctor(&self, node: &str) -> Result<DoctorReport, ClientError> {
        self.fetch(&format!("v1/nodes/{}/doctor", segment(node))).await
    }
}
