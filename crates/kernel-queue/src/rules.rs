//! How a slice's queue is set up.

use serde::{Deserialize, Serialize};

use crate::admission::Need;
use crate::fill::EPSILON;
use crate::predict::GapPredictor;
use crate::time::Nanos;

/// How the sessions of a slice share its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Sharing {
    /// One task at a time: the others wait until it leaves (the software-exclusive mode that
    /// FIKIT §5 wishes for). The first to come is first; who waits is taken by priority.
    Exclusive,
    /// Kernels in turns: others run only while the holder's device is idle (FIKIT).
    Turns,
    /// Also beside each other, where SMs, shared memory and bandwidth are left (MMK). Needs MPS.
    Beside {
        /// What the slice has.
        capacity: Need,
    },
}

/// What a grant covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantSize {
    /// One kernel, as in FIKIT: each is chosen by best fit, and each costs a round trip.
    Kernel,
    /// The gap: best fit chooses who begins, who then spends what is left without asking.
    Gap,
}

/// When a launch that waits goes although nothing is free (MMK Listing 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ageing {
    /// `DURATION` of the listing: the threshold, in kernel time of those who go first, at a share
    /// of 100 %.
    pub duration: Nanos,
    /// Longest wait on the clock, whatever the others run.
    pub wait_max: Nanos,
    /// Of 1,000 units of time, at most so many go to aged launches: what the holder may lose.
    pub cost_thousandths: u64,
}

/// All settings of one slice's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rules {
    /// Who may run beside whom.
    pub sharing: Sharing,
    /// What a grant covers.
    pub grants: GrantSize,
    /// How gaps are predicted.
    pub predictor: GapPredictor,
    /// Gaps up to this are not filled: ε of FIKIT's Algorithm 1.
    pub epsilon: Nanos,
    /// Whether the holder's return ends a gap's grants. Off only to show what that costs.
    pub early_stop: bool,
    /// Kernels that fillers may have in the device's queue, all together. This bounds what a
    /// holder's return waits for (XSched §7.3: preemption takes this many kernels' time).
    pub in_flight: u16,
    /// Longest that any grant lasts: what a session that dies with one can hold up.
    pub grant_max: Nanos,
    /// When a holder's silence, beyond every gap it ever had, counts as absence.
    pub lapse: Nanos,
    /// In a gap that outlasted every one before, a kernel may run that takes at most so many
    /// thousandths of the time elapsed. Zero turns this off.
    pub probe_thousandths: u64,
    /// The valve against starvation, if there shall be one.
    pub ageing: Option<Ageing>,
    /// Without any word for so long, a session counts as dead.
    pub session_lease: Nanos,
}

impl Default for Rules {
    /// The rules that measured best: see `docs/kernel-plane.md`.
    fn default() -> Self {
        Self {
            sharing: Sharing::Turns,
            grants: GrantSize::Gap,
            predictor: GapPredictor::Pairs { risk_thousandths: 400 },
            epsilon: EPSILON,
            early_stop: true,
            in_flight: 1,
            grant_max: Nanos::from_millis(5),
            lapse: Nanos::from_millis(8),
            probe_thousandths: 100,
            ageing: Some(Ageing {
                duration: Nanos::from_millis(50),
                wait_max: Nanos::from_millis(100),
                cost_thousandths: 20,
            }),
            session_lease: Nanos::from_millis(1_000),
        }
    }
}

impl Rules {
    /// FIKIT as in the paper: mean gaps, a grant a kernel, as many at once as fit, no ageing and
    /// nothing after a gap's predicted end.
    pub fn paper() -> Self {
        Self {
            grants: GrantSize::Kernel,
            predictor: GapPredictor::Mean,
            in_flight: u16::MAX,
            lapse: Nanos::MAX,
            probe_thousandths: 0,
            ageing: None,
            ..Self::default()
        }
    }
}
