//! What GPUs draw now, as their nodes last said. Decides nothing, and is lost with the process:
//! nodes tell it anew every few seconds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tessera_model::{AttemptId, GpuId, NodeName};
use tessera_wire::frames::{AttemptFigures, GpuFigures};

/// Figures that were not renewed for so long are no more shown: nodes send them every five
/// seconds, by default.
const FRESH: Duration = Duration::from_secs(60);
/// Most GPUs: a bound for agents gone wrong, far above any cluster.
const GPUS_MAX: usize = 65_536;

/// One GPU's newest figures.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Its node.
    pub node: NodeName,
    /// What the node said.
    pub figures: Arc<GpuFigures>,
    heard: Instant,
}

/// Every GPU's newest figures.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<BTreeMap<GpuId, Shown>>>);

impl Board {
    /// Takes in what a node says.
    pub fn show(&self, node: &NodeName, figures: GpuFigures) {
        let mut board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if board.len() >= GPUS_MAX && !board.contains_key(&figures.gpu) {
            board.retain(|_, shown| shown.heard.elapsed() < FRESH);
            if board.len() >= GPUS_MAX {
                return;
            }
        }
        let (gpu, figures) = (figures.gpu.clone(), Arc::new(figures));
        board.insert(gpu, Shown { node: node.clone(), figures, heard: Instant::now() });
    }

    /// Returns what is fresh, by GPU.
    pub fn fresh(&self) -> BTreeMap<GpuId, Shown> {
        let mut board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        board.retain(|_, shown| shown.heard.elapsed() < FRESH);
        board.clone()
    }

    /// Returns what is fresh of one running attempt.
    pub fn of_attempt(&self, attempt: AttemptId) -> Option<AttemptFigures> {
        let board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = board.values().filter(|shown| shown.heard.elapsed() < FRESH);
        fresh.flat_map(|shown| &shown.figures.attempts).find(|f| f.attempt == attempt).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_model::Millis;

    fn figures(gpu: &str, power_mw: u64) -> GpuFigures {
        GpuFigures {
            gpu: gpu.parse().unwrap(),
            at_unix: Millis::new(1),
            memory_used: None,
            power_mw: Some(power_mw),
            activity: None,
            attempts_mj: 0,
            other_mj: 0,
            idle_mj: 0,
            slices: Vec::new(),
            attempts: Vec::new(),
        }
    }

    #[test]
    fn the_newest_figures_of_a_gpu_stand() {
        let board = Board::default();
        let node = "n1".parse().unwrap();

        board.show(&node, figures("GPU-1", 32_000));
        board.show(&node, figures("GPU-1", 50_000));
        board.show(&node, figures("GPU-2", 40_000));

        let fresh = board.fresh();
        assert_eq!(fresh.len(), 2);
        assert_eq!(fresh[&"GPU-1".parse().unwrap()].figures.power_mw, Some(50_000));
    }
}
