//! The settings of a slice's queue.

use serde::{Deserialize, Serialize};

use crate::admission::ResourceNeed;
use crate::fikit::EPSILON;
use crate::predict::GapPredictor;
use crate::time::Nanos;

/// How the sessions of a slice share its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum KernelSharing {
    /// One task at a time (the software-exclusive mode that FIKIT §5 proposes). The first session
    /// to join runs until it leaves. Then the waiting session of highest priority follows.
    Exclusive,
    /// Interleaved kernels: fillers run only while the holder leaves the device idle (FIKIT).
    Interleaved,
    /// Kernels also run at the same time, if SMs, shared memory and bandwidth are free (MMK). This
    /// needs MPS.
    Colocated {
        /// What the kernels that run at the same time may need together, of the slice.
        capacity: ResourceNeed,
    },
}

/// What a grant covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantSize {
    /// One kernel, as in FIKIT: each is chosen by best fit, and each costs a round trip.
    Kernel,
    /// The gap: best fit chooses the session, which may then fill the gap without more requests.
    Gap,
}

/// When a waiting launch is granted although no resources are free (MMK Listing 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ageing {
    /// `DURATION` of the listing: the threshold at a share of 100 %, in kernel time of the
    /// holders.
    pub duration: Nanos,
    /// The longest wait by the clock, whatever the holders run. After it, a launch is due: it is
    /// granted as soon as its cost is saved.
    pub wait_max: Nanos,
    /// Share of the time that is saved for due launches, in thousandths. It bounds what all of them
    /// together cost the holder, and it pays for all kernels that run without a grant.
    pub cost_thousandths: u64,
}

/// All settings of one slice's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueRules {
    /// How sessions share the device.
    pub sharing: KernelSharing,
    /// What a grant covers.
    pub grants: GrantSize,
    /// How gaps are predicted.
    pub predictor: GapPredictor,
    /// Gaps up to this are not filled: ε of FIKIT's Algorithm 1.
    pub epsilon: Nanos,
    /// Whether the holder's return ends a gap's grants. Off only in comparisons.
    pub early_stop: bool,
    /// Maximum number of kernels of all fillers in the device's queue. It bounds the delay of a
    /// returning holder (XSched §7.3: preemption takes this many kernels' time).
    pub in_flight: u16,
    /// The same in a gap for kernels that take no longer than a context switch. Otherwise the device idles while the host
    /// notices the end of each and launches the next one. A returning holder waits for these instead of one.
    pub in_flight_short: u16,
    /// The same for short kernels while a holder was admitted and has no session yet. Two keep the device busy.
    pub in_flight_while_expected: u16,
    /// Longest duration of a grant: a session that dies with one blocks the device no longer.
    pub grant_max: Nanos,
    /// A holder counts as absent after the device was idle for this long, and for longer than in
    /// all its gaps.
    pub lapse: Nanos,
    /// The time of one context switch of the device. A gap is filled only if it is longer than two
    /// switches. An H200 needed 153 µs (docs/benchmarks.md). It is zero if all sessions share a context (MPS), or in a model without this cost.
    pub switch: Nanos,
    /// Share of the time that filling gaps may cost holders, in thousandths: context switches, and
    /// kernels of fillers that still run after a holder's return.
    pub fill_cost_thousandths: u64,
    /// Whether a holder brings the device back to its context before its gap ends. The fillers' time ends by one switch
    /// earlier, and the holder need not wait for the switch (docs/kernel-plane.md).
    pub recall: bool,
    /// Whether grants are also given before a gap begins, if the holder's launches so far repeat an earlier course
    /// ([`crate::course`]). The session then needs no message when the gap begins.
    pub ahead: bool,
    /// While a holder counts as absent, kernels may run that take at most this many thousandths of
    /// its absence.
    pub lapse_thousandths: u64,
    /// In a gap longer than all earlier ones, kernels may run that take at most this many
    /// thousandths of the elapsed time. Zero turns this off.
    pub probe_thousandths: u64,
    /// By how much device time the holder may be ahead of a waiting session of its priority before that one becomes the
    /// holder. `None`: all of them launch freely, and the driver shares the device by time slices.
    pub alternate_after: Option<Nanos>,
    /// The limit on starvation, if there is one.
    pub ageing: Option<Ageing>,
    /// A session that sends nothing for this long counts as dead.
    pub session_lease: Nanos,
}

impl Default for QueueRules {
    /// Returns the rules with the best measured results: see `docs/kernel-plane.md`.
    fn default() -> Self {
        Self {
            sharing: KernelSharing::Interleaved,
            grants: GrantSize::Gap,
            predictor: GapPredictor::Pairs { risk_thousandths: 350 },
            epsilon: EPSILON,
            early_stop: true,
            in_flight: 1,
            in_flight_short: 2,
            in_flight_while_expected: 2,
            grant_max: Nanos::from_millis(5),
            lapse: Nanos::from_millis(8),
            switch: Nanos::from_micros(150),
            fill_cost_thousandths: 30,
            recall: true,
            ahead: true,
            lapse_thousandths: 250,
            probe_thousandths: 100,
            alternate_after: None,
            ageing: Some(Ageing {
                duration: Nanos::from_millis(50),
                wait_max: Nanos::from_millis(100),
                cost_thousandths: 20,
            }),
            session_lease: Nanos::from_millis(1_000),
        }
    }
}

impl QueueRules {
    /// Returns the rules for a device without context switches, such as one behind an MPS server.
    #[must_use]
    pub const fn without_switches(self) -> Self {
        Self { switch: Nanos::ZERO, ..self }
    }

    /// Returns the rules for a slice with an MPS server beneath. There are no context switches, and
    /// kernels that fit on the slice together run at the same time.
    #[must_use]
    pub fn over_mps(self) -> Self {
        let sharing = match self.sharing {
            KernelSharing::Interleaved => {
                KernelSharing::Colocated { capacity: ResourceNeed::WHOLE }
            }
            chosen @ (KernelSharing::Exclusive | KernelSharing::Colocated { .. }) => chosen,
        };
        Self { sharing, ..self.without_switches() }
    }

    /// Returns FIKIT as in the paper: mean gaps, one grant a kernel, as many at once as fit, no
    /// ageing, and no grants after a gap's predicted end.
    pub fn paper() -> Self {
        Self {
            grants: GrantSize::Kernel,
            predictor: GapPredictor::Mean,
            in_flight: u16::MAX,
            lapse: Nanos::MAX,
            probe_thousandths: 0,
            switch: Nanos::ZERO,
            fill_cost_thousandths: 1_000,
            recall: false,
            ahead: false,
            ageing: None,
            ..Self::default()
        }
    }
}
