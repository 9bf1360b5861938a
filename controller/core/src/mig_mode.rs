//! Switches of a GPU's MIG mode, which administrators request: sent to its node, and answered with what the
//! node reports.

use crate::commands::operator::{OperatorOutcome, OperatorRefusal, RefusalKind};
use crate::round::{CommandAnswers, RoundEffect};
use crate::state::inventory::NodeInventory;
use crate::state::layouts::{LayoutRequests, PendingMigMode};
use crate::state::overrides::refused;
use tessera_frames::cluster::ToAgent;
use tessera_model::{GpuId, Millis};

/// How long a node's answer is awaited. The driver resets the GPU for it, which takes seconds; clients wait
/// twice as long.
const ANSWER_WAITS: Millis = Millis::from_secs(15);

/// Maximum number of switches that wait for answers at a time.
const SWITCHES_MAX: usize = 256;

/// Sends a switch to its node. Returns why that is not possible.
pub(crate) fn send_mig_mode(
    inventory: &NodeInventory,
    layouts: &mut LayoutRequests,
    epoch: u64,
    pending: PendingMigMode,
    effects: &mut Vec<RoundEffect>,
) -> Result<(), OperatorRefusal> {
    let known = inventory.find_gpu(&pending.gpu)?;
    if !inventory.is_ready(known.node) {
        let problem = format!("the node of {} is not connected", pending.gpu);
        return Err(refused(RefusalKind::InTheWay, problem));
    }
    if layouts.mig_modes.len() >= SWITCHES_MAX {
        return Err(refused(RefusalKind::Changing, "too many MIG modes are being switched"));
    }
    let frame = ToAgent::SetMigMode { epoch, gpu: pending.gpu.clone(), on: pending.on };
    effects.push(RoundEffect::Send { node: known.node, frame: Box::new(frame) });
    layouts.mig_modes.push(pending);
    Ok(())
}

/// Answers the switches of a GPU with its node's report.
pub(crate) fn answer_mig_mode(
    layouts: &mut LayoutRequests,
    gpu: &GpuId,
    problem: Option<&str>,
    answers: &mut CommandAnswers,
) {
    let (ended, waiting) = std::mem::take(&mut layouts.mig_modes)
        .into_iter()
        .partition(|p: &PendingMigMode| p.gpu == *gpu);
    layouts.mig_modes = waiting;
    for PendingMigMode { token, on, .. } in ended {
        let answer = match problem {
            None => Ok(OperatorOutcome::MigModeSet),
            Some(problem) => {
                let mode = if on { "on" } else { "off" };
                let problem = format!("the MIG mode of {gpu} can't be switched {mode}: {problem}");
                Err(OperatorRefusal {
                    expected: Some(
                        "a GPU without jobs and, to switch MIG off, without instances: drain it, and \
                         destroy its instances with `tessera mig apply`"
                            .to_owned(),
                    ),
                    ..refused(RefusalKind::InTheWay, problem)
                })
            }
        };
        answers.operators.push((token, answer));
    }
}

/// Answers the switches whose nodes were silent for too long, or are no longer connected.
pub(crate) fn give_up_mig_modes(
    inventory: &NodeInventory,
    layouts: &mut LayoutRequests,
    now: Millis,
    answers: &mut CommandAnswers,
) {
    layouts.mig_modes.retain(|pending| {
        let connected =
            inventory.gpus.get(&pending.gpu).is_some_and(|known| inventory.is_ready(known.node));
        if connected && now < pending.until {
            return true;
        }
        let problem = format!(
            "the node of {} has not answered: whether its MIG mode was switched is not known; \
             check it with `tessera gpus`",
            pending.gpu
        );
        answers.operators.push((pending.token, Err(refused(RefusalKind::Changing, problem))));
        false
    });
}

impl PendingMigMode {
    /// A switch that is requested now.
    pub(crate) const fn new(token: u64, gpu: GpuId, on: bool, now: Millis) -> Self {
        Self { token, gpu, on, until: now.plus(ANSWER_WAITS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(name: &str) -> GpuId {
        name.parse().unwrap()
    }

    #[test]
    fn a_nodes_answer_reaches_all_requests_for_its_gpu_and_no_others() {
        let mut layouts = LayoutRequests::default();
        for (token, name) in [(1, "GPU-1"), (2, "GPU-2"), (3, "GPU-1")] {
            let pending = PendingMigMode::new(token, gpu(name), false, Millis::ZERO);
            layouts.mig_modes.push(pending);
        }
        let mut answers = CommandAnswers::default();

        answer_mig_mode(
            &mut layouts,
            &gpu("GPU-1"),
            Some("attempts run on this GPU"),
            &mut answers,
        );

        let tokens: Vec<u64> = answers.operators.iter().map(|(token, _)| *token).collect();
        assert_eq!(tokens, [1, 3]);
        let refused = answers.operators[0].1.clone().unwrap_err();
        assert!(refused.problem.contains("switched off: attempts run on this GPU"), "{refused}");
        answer_mig_mode(&mut layouts, &gpu("GPU-2"), None, &mut answers);
        assert_eq!(answers.operators[2], (2, Ok(OperatorOutcome::MigModeSet)));
        assert!(layouts.mig_modes.is_empty());
    }

    #[test]
    fn requests_to_a_silent_node_time_out() {
        let mut layouts = LayoutRequests::default();
        layouts.mig_modes.push(PendingMigMode::new(1, gpu("GPU-1"), true, Millis::ZERO));
        let mut answers = CommandAnswers::default();

        give_up_mig_modes(&NodeInventory::default(), &mut layouts, Millis::ZERO, &mut answers);

        let refused = answers.operators[0].1.clone().unwrap_err();
        assert!(refused.problem.contains("has not answered"), "{refused}");
    }
}
