//! Orders to the node's GPUs, and the events that they report.

use std::collections::BTreeSet;

use tessera_frames::cluster::{PlanEnd, PlanOrder, ToController};
use tessera_model::GpuId;
use tessera_model::mig::{PlanStep, Slot};

use super::AgentNode;
use crate::messages::gpu::{GpuEvent, GpuOrder};
use crate::messages::telemetry::TelemetryEvent;

impl AgentNode {
    pub(super) fn on_gpu(&mut self, event: GpuEvent) {
        match event {
            GpuEvent::Numbered(gpu, numbers) => {
                self.gpu_numbers.insert(gpu, numbers);
            }
            GpuEvent::Changed(report) => {
                let known = self.gpus.insert(report.gpu.clone(), (*report).clone());
                if known.as_ref() != Some(&*report) {
                    self.send_telemetry(TelemetryEvent::Gpu(report.clone()));
                    self.send(ToController::Gpu(*report));
                }
            }
            GpuEvent::PlanEnded { gpu, plan, end } => {
                self.plans.remove(&gpu);
                self.send(ToController::PlanEnded { plan, gpu, end });
            }
            GpuEvent::Struck(strike) => self.on_struck(strike),
            GpuEvent::MigModeEnded { gpu, problem } => {
                self.send(ToController::MigModeEnded { gpu, problem });
            }
        }
    }

    pub(super) fn apply_plan(&mut self, order: PlanOrder) {
        let (gpu, plan) = (order.gpu.clone(), order.plan);
        if self.plans.get(&gpu).is_some_and(|(running, _)| *running == plan) {
            return;
        }
        // A newly partitioned instance has other devices afterwards.
        let leaving: BTreeSet<Slot> = order
            .steps
            .iter()
            .filter_map(|step| match step {
                PlanStep::Destroy(slot) | PlanStep::Cut(slot, _) => Some(*slot),
                PlanStep::Create(_) => None,
            })
            .collect();
        let busy = leaving.iter().find(|slot| self.attempts.uses(&gpu, Some(**slot)));
        let refused = if self.plans.contains_key(&gpu) {
            Some("another plan is under way".to_owned())
        } else if !self.gpus.contains_key(&gpu) {
            Some(format!("the node has no GPU {gpu}"))
        } else {
            busy.map(|slot| format!("an attempt runs on memory slice {}", slot.start))
        };
        let refused = refused.or_else(|| {
            self.gpu_port.try_send(GpuOrder::Apply(order)).err().map(|_| "too many plans".into())
        });
        match refused {
            Some(reason) => {
                self.send(ToController::PlanEnded { plan, gpu, end: PlanEnd::Refused { reason } });
            }
            None => {
                self.plans.insert(gpu, (plan, leaving));
            }
        }
    }

    pub(super) fn clear(&mut self, gpu: GpuId, slot: Option<Slot>) {
        if self.gpu_port.try_send(GpuOrder::Clear { gpu: gpu.clone(), slot }).is_err() {
            tracing::warn!(%gpu, "too many orders are queued: an operator's request is dropped");
        }
    }

    pub(super) fn set_mig_mode(&mut self, gpu: GpuId, on: bool) {
        let problem = if self.attempts.uses(&gpu, None) {
            Some("attempts run on this GPU".to_owned())
        } else if self.plans.contains_key(&gpu) {
            Some("a plan is under way on this GPU".to_owned())
        } else {
            let order = GpuOrder::SetMigMode { gpu: gpu.clone(), on };
            self.gpu_port.try_send(order).err().map(|_| "too many orders".to_owned())
        };
        if problem.is_some() {
            self.send(ToController::MigModeEnded { gpu, problem });
        }
    }
}
