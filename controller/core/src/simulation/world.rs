//! The whole cluster in one thread: a controller over the store, machines, and the connections
//! between them. Each method is one kind of event.

use std::collections::{BTreeMap, VecDeque};

use tessera_frames::cluster::{ToAgent, ToController};
use tessera_model::life::Outcome;
use tessera_model::{AttemptId, BootId, GpuId, JobId, Millis};
use tessera_placement::record::RoundReplay;
use uuid::Uuid;

use super::leader::Controller;
use super::machine::{Death, Machine};
use super::random::RandomNumbers;
use super::store::Store;
use crate::commands::JobCommand;
use crate::input::Input;

/// The duration of leases: short, so that many expire.
pub(super) const LEASE: Millis = Millis::from_secs(20);

/// One connection, from its hello until both sides know that it broke.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) node: usize,
    pub(super) up: VecDeque<ToController>,
    pub(super) down: VecDeque<ToAgent>,
    /// Whether each side still considers it open.
    pub(super) agent_holds: bool,
    pub(super) controller_holds: bool,
    pub(super) broken: bool,
}

/// The whole simulated cluster.
#[derive(Debug)]
pub(super) struct World {
    pub(super) random: RandomNumbers,
    pub(super) now: Millis,
    pub(super) store: Store,
    pub(super) controller: Controller,
    pub(super) machines: Vec<Machine>,
    pub(super) links: BTreeMap<u64, Link>,
    pub(super) policy: &'static str,
    /// Reads the records of committed rounds.
    pub(super) replay: RoundReplay,
    /// Whether the first machine has two GPUs without faults.
    pub(super) both_gpus: bool,
    pub(super) ids: u128,
    pub(super) tokens: BTreeMap<u64, Vec<JobId>>,
    pub(super) counts: BTreeMap<&'static str, u64>,
    /// The last events, for the report of a failure.
    pub(super) history: VecDeque<String>,
}

impl World {
    /// Counts an event that must occur in some run, and remembers it.
    pub(super) fn note(&mut self, what: &'static str, detail: impl std::fmt::Debug) {
        *self.counts.entry(what).or_default() += 1;
        self.history.push_back(format!("{} {what} {detail:?}", self.now.get()));
        if self.history.len() > 80 {
            self.history.pop_front();
        }
    }

    /// Time passes; shepherds and agents notice.
    pub(super) fn pass(&mut self, span: Millis) {
        self.now = self.now.plus(span);
        for node in 0..self.machines.len() {
            let now = self.now;
            let alive = self.machines[node].processes.len();
            let mut frames = self.machines[node].fence(now);
            if self.machines[node].processes.len() < alive {
                self.note("a shepherd fenced", node);
            }
            frames.extend(self.machines[node].keep_session(now));
            self.send_frames(node, frames);
        }
    }

    /// Sends an agent's frames on its connection.
    pub(super) fn send_frames(&mut self, node: usize, frames: Vec<ToController>) {
        let link = self.links.values_mut().find(|link| link.node == node && link.agent_holds);
        if let Some(link) = link
            && !link.broken
        {
            link.up.extend(frames);
        }
    }

    /// An agent connects and sends its hello.
    pub(super) fn connect(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        let hello = machine.hello();
        let Some(agent) = machine.agent.as_mut().filter(|agent| agent.is_alone()) else { return };
        agent.connected();
        self.ids += 1;
        let session = u64::try_from(self.ids).unwrap();
        let link = Link {
            node,
            up: VecDeque::from([ToController::Hello(hello)]),
            down: VecDeque::new(),
            agent_holds: true,
            controller_holds: true,
            broken: false,
        };
        self.links.insert(session, link);
        self.note("an agent connected", (node, session));
    }

    /// A connection breaks. Each side notices that at its own time, and frames under way may be
    /// lost.
    pub(super) fn break_link(&mut self, session: u64) {
        let keep = self.random.happens(50);
        let Some(link) = self.links.get_mut(&session) else { return };
        link.broken = true;
        link.down.clear();
        if !keep {
            link.up.clear();
        }
        self.note("a connection broke", session);
    }

    /// The agent notices that its connection broke.
    pub(super) fn agent_notices(&mut self, session: u64) {
        let Some(link) = self.links.get_mut(&session) else { return };
        link.agent_holds = false;
        let node = link.node;
        if let Some(agent) = &mut self.machines[node].agent {
            agent.disconnected();
        }
        self.forget_link(session);
    }

    /// The controller notices that a connection broke after it has read all received frames.
    pub(super) fn controller_notices(&mut self, session: u64) {
        let Some(link) = self.links.get_mut(&session) else { return };
        if !link.up.is_empty() {
            return;
        }
        link.controller_holds = false;
        let node = self.machines[link.node].identity.id;
        if self.controller.sessions.get(&node).is_some_and(|current| *current != session) {
            self.note("an old connection's end arrived after the new one", session);
        }
        if self.controller.sessions.get(&node) == Some(&session) {
            self.controller.sessions.remove(&node);
        }
        self.input(Input::Closed { node, session });
        self.forget_link(session);
    }

    fn forget_link(&mut self, session: u64) {
        self.links.retain(|id, link| *id != session || link.agent_holds || link.controller_holds);
    }

    /// The controller reads the next frames of a connection.
    pub(super) fn deliver_up(&mut self, session: u64) {
        let Some(link) = self.links.get_mut(&session) else { return };
        let Some(frame) = link.up.pop_front() else { return };
        let identity = self.machines[link.node].identity.clone();
        let node = identity.id;
        match frame {
            ToController::Hello(hello) if self.controller.reloading.is_some() => {
                self.note("an agent connected during a reload", hello.generation);
                self.refuse(session);
            }
            ToController::Hello(hello) => {
                let hello = Box::new(hello);
                self.input(Input::Hello { peer: identity, session, hello });
            }
            ToController::Renew { sent, generation } => {
                let (now, unix) = (self.now, Millis::ZERO);
                let cluster = &mut self.controller.cluster;
                let granted = cluster.renew_lease(node, session, sent, generation, now, unix);
                self.links.get_mut(&session).unwrap().down.extend(granted);
            }
            frame => self.input(Input::Frame { node, session, frame: Box::new(frame) }),
        }
    }

    /// An agent reads the next frame of its connection.
    pub(super) fn deliver_down(&mut self, session: u64) {
        let Some(link) = self.links.get_mut(&session).filter(|link| link.agent_holds) else {
            return;
        };
        let node = link.node;
        let Some(frame) = link.down.pop_front() else { return };
        let ends = matches!(frame, ToAgent::Refused { .. });
        if let ToAgent::Launch(order) = &frame {
            let known = self.store.attempts.get(&order.attempt);
            assert!(known.is_some(), "a launch was sent that was never committed (V6)");
            // A queue within the process delivers before any network does.
            while !self.controller.submitted.is_empty() {
                self.announce_submitted();
            }
        }
        let now = self.now;
        let mut frames = self.machines[node].receive(frame, now);
        frames.extend(self.machines[node].keep_session(now));
        self.send_frames(node, frames);
        if ends {
            let link = self.links.get_mut(&session).unwrap();
            (link.broken, link.agent_holds) = (true, false);
            link.down.clear();
            self.forget_link(session);
        }
    }

    pub(super) fn refuse(&mut self, session: u64) {
        if let Some(link) = self.links.get_mut(&session)
            && !link.broken
        {
            let reason = String::new();
            link.down.push_back(ToAgent::Refused { reason, retry: true });
        }
    }

    /// A user commands a few jobs.
    pub(super) fn command(&mut self, command: JobCommand, jobs: Vec<JobId>) {
        if self.controller.reloading.is_some() {
            return;
        }
        self.ids += 1;
        let token = u64::try_from(self.ids).unwrap();
        self.tokens.insert(token, jobs.clone());
        self.input(Input::Command { token, command, jobs });
    }

    /// A process ends, by itself or by a signal.
    pub(super) fn exit(&mut self, node: usize, attempt: AttemptId, outcome: Outcome) {
        let Some(process) = self.machines[node].processes.get(&attempt) else { return };
        let outcome = match process.dying {
            None => outcome,
            Some(Death::Cancelled) => Outcome::Cancelled,
            Some(Death::Preempted) => Outcome::Preempted,
            Some(Death::Revoked) => Outcome::NotStarted,
            Some(Death::OldGeneration) => Outcome::Lost,
        };
        let frames = self.machines[node].exit(attempt, outcome);
        self.send_frames(node, frames);
        let frames = self.machines[node].keep_session(self.now);
        self.send_frames(node, frames);
        self.note("a process ended", (attempt, outcome));
    }

    /// The agent's process dies; its connection breaks with it.
    pub(super) fn crash_agent(&mut self, node: usize) {
        if self.machines[node].agent.take().is_none() {
            return;
        }
        self.note("an agent crashed", node);
        self.cut(node);
    }

    /// The machine reboots.
    pub(super) fn reboot(&mut self, node: usize) {
        self.ids += 1;
        let boot = BootId::from_uuid(Uuid::from_u128(self.ids));
        self.machines[node].reboot(boot);
        self.note("a machine rebooted", node);
        self.cut(node);
    }

    fn cut(&mut self, node: usize) {
        let held = |link: &Link| link.node == node && link.agent_holds;
        let cut: Vec<_> = self.links.iter().filter(|(_, l)| held(l)).map(|(s, _)| *s).collect();
        for session in cut {
            self.break_link(session);
            self.links.get_mut(&session).unwrap().agent_holds = false;
            self.forget_link(session);
        }
    }

    /// A plan advances by one step.
    pub(super) fn step_plan(&mut self, node: usize, gpu: &GpuId, fail: bool) {
        let frames = self.machines[node].step_plan(gpu, fail);
        self.send_frames(node, frames);
    }
}
