//! One connection to the controller, from hello to goodbye.

use std::net::IpAddr;

use tessera_frames::cluster::{Hello, PROTOCOL_VERSION, ToController, Welcome};
use tessera_model::lease::LeaseTerms;
use tessera_model::{ControllerId, Millis, NodeName};
use tokio::sync::mpsc;

use super::{AgentNode, FatalRefusal};
use crate::disk::NodeState;
use crate::messages::LinkEvent;
use crate::sys::clock;

/// An established connection.
#[derive(Debug)]
pub(super) struct ControllerSession {
    port: mpsc::Sender<ToController>,
    stage: SessionStage,
}

#[derive(Debug)]
enum SessionStage {
    Greeting,
    /// Attempts of another generation are being killed: nothing continues before they are dead
    /// (rule F11).
    Clearing(Welcome),
    Live {
        terms: LeaseTerms,
        renew_at: Millis,
    },
}

/// Why a controller's welcome is refused.
#[derive(Debug, thiserror::Error)]
enum WelcomeRefusal {
    #[error("it speaks protocol {theirs}, this agent {PROTOCOL_VERSION}")]
    OtherProtocol { theirs: u16 },
    #[error("this node belongs to {own}")]
    OtherController { own: ControllerId },
    #[error("its epoch {theirs} is older than {highest}, obeyed before")]
    OlderEpoch { theirs: u64, highest: u64 },
    #[error("it takes this node for {name}")]
    OtherNode { name: NodeName },
}

impl AgentNode {
    pub(super) fn on_link(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Up { port, local } => {
                self.session = Some(ControllerSession { port, stage: SessionStage::Greeting });
                let hello = self.hello(local);
                self.push(hello);
            }
            LinkEvent::Frame(frame) if self.session.is_some() => self.handle_frame(frame),
            LinkEvent::Frame(_) => {}
            LinkEvent::Down => self.session = None,
        }
    }

    fn hello(&self, local: Option<IpAddr>) -> ToController {
        let named = || local.map_or_else(|| self.facts.name.to_string(), |local| local.to_string());
        ToController::Hello(Hello {
            protocol: PROTOCOL_VERSION,
            software: env!("CARGO_PKG_VERSION").to_owned(),
            boot: self.facts.boot,
            process: self.facts.process,
            generation: self.state.generation,
            highest_epoch: self.state.highest_epoch,
            receipt: self.state.receipt.clone(),
            controller: self.state.controller,
            cores: self.facts.cores,
            memory: self.facts.memory,
            mps: self.facts.mps.is_some(),
            kernel: self.has_kernel_queues(),
            address: self.facts.address.clone().unwrap_or_else(named),
            isolation_gaps: self.facts.isolation_gaps.clone(),
        })
    }

    /// Sends a frame, once the session is live. Earlier events are part of the inventory.
    pub(super) fn send(&mut self, frame: ToController) {
        if self.is_live() {
            self.push(frame);
        }
    }

    /// Returns whether a controller is connected.
    pub(super) fn is_live(&self) -> bool {
        self.session.as_ref().is_some_and(|s| matches!(s.stage, SessionStage::Live { .. }))
    }

    pub(super) fn push(&mut self, frame: ToController) {
        let refused = self.session.as_ref().and_then(|session| session.port.try_send(frame).err());
        if let Some(refused) = refused {
            // The next session begins with the complete state, so nothing is lost.
            tracing::warn!(%refused, "the controller doesn't keep up: connecting again");
            self.session = None;
        }
    }

    pub(super) fn accept_welcome(&mut self, welcome: Welcome) {
        if let Err(refusal) = self.check_welcome(&welcome) {
            let reason = refusal.to_string();
            tracing::error!(reason, controller = %welcome.controller, "the controller is refused");
            self.session = None;
            return;
        }
        let state = NodeState {
            highest_epoch: welcome.epoch,
            controller: Some(welcome.controller),
            receipt: welcome.receipt.clone(),
            ..self.state.clone()
        };
        if state != self.state && !self.remember(state) {
            self.session = None;
            return;
        }
        if welcome.generation != self.state.generation {
            let (old, new) = (self.state.generation, welcome.generation);
            tracing::info!(old, new, "the node has a new generation");
            let effects = self.attempts.kill_other_generations(welcome.generation);
            self.act(effects);
        }
        if let Some(session) = &mut self.session {
            session.stage = SessionStage::Clearing(welcome);
        }
    }

    fn check_welcome(&self, welcome: &Welcome) -> Result<(), WelcomeRefusal> {
        if welcome.protocol != PROTOCOL_VERSION {
            return Err(WelcomeRefusal::OtherProtocol { theirs: welcome.protocol });
        }
        if let Some(own) = self.state.controller
            && own != welcome.controller
        {
            return Err(WelcomeRefusal::OtherController { own });
        }
        if welcome.epoch < self.state.highest_epoch {
            let (theirs, highest) = (welcome.epoch, self.state.highest_epoch);
            return Err(WelcomeRefusal::OlderEpoch { theirs, highest });
        }
        if welcome.node != self.facts.name {
            return Err(WelcomeRefusal::OtherNode { name: welcome.node.clone() });
        }
        Ok(())
    }

    /// Advances the session: from clearing to live once nothing old is alive, and from one renewal
    /// to the next.
    pub(super) fn keep_session(&mut self) {
        let now = clock::boot_now();
        let go_live = match self.session.as_ref().map(|session| &session.stage) {
            Some(SessionStage::Clearing(welcome))
                if !self.attempts.others_alive(welcome.generation) =>
            {
                Some(welcome.clone())
            }
            Some(SessionStage::Live { renew_at, .. }) if *renew_at <= now => {
                self.renew(now);
                None
            }
            Some(
                SessionStage::Clearing(_) | SessionStage::Greeting | SessionStage::Live { .. },
            )
            | None => None,
        };
        if let Some(welcome) = go_live {
            self.go_live(&welcome, now);
        }
    }

    fn go_live(&mut self, welcome: &Welcome, now: Millis) {
        if welcome.generation != self.state.generation {
            let state = NodeState { generation: welcome.generation, ..self.state.clone() };
            if !self.remember(state) {
                self.session = None;
                return;
            }
            self.lease_deadline = Millis::ZERO;
            self.write_lease();
        }
        if let Some(session) = &mut self.session {
            session.stage = SessionStage::Live { terms: welcome.lease, renew_at: now };
        }
        tracing::info!(
            controller = %welcome.controller,
            epoch = welcome.epoch,
            generation = welcome.generation,
            "welcomed"
        );
        for report in self.gpus.values().cloned().collect::<Vec<_>>() {
            self.push(ToController::Gpu(report));
        }
        // Before the ends, which count what was refused.
        for needs in self.needs.values().copied().collect::<Vec<_>>() {
            self.push(ToController::Needs(needs));
        }
        for report in self.attempts.reports() {
            self.push(report);
        }
        self.push(ToController::InventoryDone);
        self.renew(now);
    }

    fn renew(&mut self, now: Millis) {
        let generation = self.state.generation;
        if let Some(ControllerSession { stage: SessionStage::Live { terms, renew_at }, .. }) =
            &mut self.session
        {
            *renew_at = now.plus(terms.renew_every());
            self.push(ToController::Renew { sent: now, generation });
        }
    }

    /// Accepts another lease: it counts from the time at which it was requested (rule F6).
    pub(super) fn accept_renewal(&mut self, sent: Millis, generation: u64) {
        let Some(ControllerSession { stage: SessionStage::Live { terms, .. }, .. }) = &self.session
        else {
            return;
        };
        // An echo from the future is not one of ours.
        if generation != self.state.generation || sent > clock::boot_now() {
            return;
        }
        let deadline = terms.node_deadline(sent);
        if deadline > self.lease_deadline {
            self.lease_deadline = deadline;
            self.write_lease();
        }
    }

    pub(super) fn accept_refusal(&mut self, reason: String, retry: bool) {
        self.session = None;
        if retry {
            tracing::warn!(reason, "the controller refused this session, trying again");
            return;
        }
        tracing::error!(reason, "the controller refused this node for good");
        if let Some(fatal) = self.fatal.take() {
            let _ = fatal.send(FatalRefusal { reason });
        }
    }
}
