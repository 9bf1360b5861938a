//! How large a slice a job of unknown length gets.
//!
//! Such a job may turn out the longest, and then it would run on alone. It may also hold for days what others
//! need. Two rules decide, from what is seen of the cluster. Both take a slice of the part `s` of a GPU to have
//! `s^p` of its speed, with [`SPEED_POWER`] for `p`.
//!
//! - **Room for those who come** ([`BusyCluster::others`]). The jobs that run are counted by their speeds, which
//!   add up to `a`: on whole GPUs so many would run at once. On slices of the part `s` they are `a s^-p`, and take
//!   `a s^(1-p)` GPUs. So that all have room on `G` GPUs, `s` is `(G/a)^(1/(1-p))`. In a quiet cluster a job gets
//!   a whole GPU, and the busier it is the smaller are the slices.
//! - **Small only if many wait** ([`BusyCluster::least_part`]). By Little's law waiting and running times relate
//!   as the numbers of jobs that wait and that run, `W` and `R`. Smaller slices shorten the wait by `s^(1-p)`, and
//!   lengthen the run by `s^-p`. The run counts twice: in the mean, and because the job may end last. Then the
//!   sum is least at the present size if `W/R` is `2p/(1-p)`. Below that, larger slices are better.

use super::sizes::SPEED_POWER;

/// How often the run counts against the wait. Derived: once for the mean, and once for the makespan. The planner
/// of batches weighs them so, too.
const RUN_COUNTS: f64 = 2.0;

/// Sizes that are kept as long as few jobs wait: how many of them a GPU holds, and the part of a GPU that they are
/// at least. Halves of an A100 are its 3g and 4g, and thirds its 2g. Smaller ones have no such limit.
const KEPT: [(f64, f64); 2] = [(2.0, 0.4), (3.0, 0.2)];

/// Jobs that come while one runs, where nothing else shows how many. Chosen: one more than the job itself, so that
/// nobody takes a cluster of one GPU for itself.
const NEXT: f64 = 1.0;

/// How busy the cluster is as a round begins.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BusyCluster {
    /// The jobs that run, by their speeds: one counts for a job on a whole GPU of the fastest model.
    pub(super) running: f64,
    /// How many jobs wait.
    pub(super) waiting: f64,
    /// The GPUs, in the same unit.
    pub(super) gpus: f64,
}

impl BusyCluster {
    /// Returns for how many others a job leaves room that may run for long, while others come.
    pub(super) fn others(&self) -> f64 {
        let gpus = self.gpus.max(f64::MIN_POSITIVE);
        let load = (self.running + 1.0 + NEXT) / gpus;
        let rest = 1.0 - SPEED_POWER;
        SPEED_POWER / rest * gpus * load.powf(1.0 / rest)
    }

    /// Returns the part of a GPU that a job gets at least, with so many jobs waiting.
    pub(super) fn least_part(&self) -> f64 {
        let waiting = self.waiting / self.gpus.max(f64::MIN_POSITIVE);
        let bearable = RUN_COUNTS * SPEED_POWER / (1.0 - SPEED_POWER);
        let kept = KEPT.iter().find(|(held, _)| waiting < bearable * held);
        kept.map_or(0.0, |(_, part)| *part)
    }
}
