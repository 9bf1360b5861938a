//! What the queue knows of one session.

use tessera_model::spec::{Class, Priority};

use crate::action::Role;
use crate::admission::Need;
use crate::counters::Counters;
use crate::event::Join;
use crate::ids::{KernelIndex, SessionId};
use crate::lease::Lease;
use crate::measure::Recorder;
use crate::predict::Correction;
use crate::time::Nanos;
use crate::waiting::Request;

/// Since when a session waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hunger {
    /// On the clock.
    pub at: Nanos,
    /// On the clock of what holders launched.
    pub served: Nanos,
}

/// A lease, and what it was given for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    /// The launch that waits for it, until it is reported.
    pub request: Option<Request>,
    /// What was set aside on the device.
    pub reserved: Option<Need>,
}

/// A gap of a holder, from its predicted or sure beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenGap {
    /// The kernel before the last.
    pub before: Option<KernelIndex>,
    /// The kernel that it follows.
    pub kernel: KernelIndex,
    /// When the device became idle, or should.
    pub from: Nanos,
    /// When it should end at the earliest, as told first; nothing if not worth filling.
    pub told: Option<Nanos>,
    /// Whether another session launched in it.
    pub filled: bool,
}

/// One process that is connected.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub id: SessionId,
    pub task: usize,
    pub priority: Priority,
    pub class: Class,
    pub share_thousandths: u32,
    pub role: Role,
    /// Whether it was told its role.
    pub is_told: bool,
    pub alive_until: Nanos,
    pub last: Option<KernelIndex>,
    /// A holder's; one that never launched has none.
    pub gap: Option<OpenGap>,
    /// When it last did something that shows that it is at work.
    pub active_at: Nanos,
    pub lease: Option<Lease>,
    pub given: Given,
    pub hunger: Option<Hunger>,
    pub correction: Correction,
    pub recorder: Recorder,
    pub counters: Counters,
}

impl Session {
    pub fn new(join: &Join, task: usize, now: Nanos, alive_until: Nanos) -> Self {
        Self {
            id: join.session,
            task,
            priority: join.priority,
            class: join.class,
            share_thousandths: join.share_thousandths,
            role: Role::Ask,
            is_told: false,
            alive_until,
            last: None,
            gap: None,
            active_at: now,
            lease: None,
            given: Given { request: None, reserved: None },
            hunger: None,
            correction: Correction::default(),
            recorder: Recorder::default(),
            counters: Counters::default(),
        }
    }
}
