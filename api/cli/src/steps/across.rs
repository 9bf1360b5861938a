//! A step over several nodes, from its caller's side: one part on each node, whose processes are started together and
//! signalled together.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::environment::{StepFacts, exported};
use super::exchange::{FromPart, PartOrder, ToPart};
use super::output::StepOutput;
use super::own_number::NOT_STARTED;
use super::pmi::{RankAction, RankExchange};
use super::tasks::{KILL_AFTER, StepEnd, aborted, after, listen, report_end};
use super::transport::{Connected, PartLink, connect_here, connect_there};
use super::{Allocation, StepPlan};
use crate::failure::CommandFailure;
use crate::interactive::LocalInput;

/// Maximum amount of input on its way to each part.
const WINDOW: usize = 256 * 1024;
/// Maximum number of waiting events; while it is reached, parts hold back their output.
const EVENTS: usize = 256;
/// How long parts have to send the rest, once all processes have ended.
const REST_WITHIN: Duration = Duration::from_secs(5);
/// How long killed processes may take to be reported: a node that does not answer is given up.
const KILLED_WITHIN: Duration = Duration::from_secs(10);

/// An event of a step.
pub enum AcrossEvent {
    /// A part has sent something.
    Message(usize, FromPart),
    /// A part or its connection has ended; with the reason, if it did not end by itself.
    Closed(usize, Option<String>),
    /// This process was signalled.
    Signalled(Signal),
    /// The time that the others may run after the first end has passed.
    WaitOver,
    /// The grace of the processes has passed.
    KillNow,
    /// No caller waits any longer.
    GiveUp,
}

/// One part, as its caller knows it.
struct StepPart {
    node: String,
    link: PartLink,
    /// Ranks that have not ended.
    open: BTreeSet<usize>,
    is_ready: bool,
    is_closed: bool,
    /// Input that its processes don't have yet.
    under_way: usize,
    /// Whether it is on the caller's own node.
    is_here: bool,
    order: Option<PartOrder>,
}

/// A step over several nodes.
pub struct StepAcross<'s> {
    /// Its command.
    pub plan: &'s StepPlan,
    /// Where it was called.
    pub allocation: &'s Allocation,
    /// Settings that its processes share.
    pub facts: StepFacts,
}

impl StepAcross<'_> {
    /// Starts the processes on all nodes, and waits until all have ended. Returns how the one with the largest exit
    /// code ended.
    pub async fn run(self) -> Result<StepEnd, CommandFailure> {
        let output = StepOutput::open(self.plan, self.allocation, &self.facts)?;
        let (events, received) = mpsc::channel(EVENTS);
        let mut signals = listen(&events, AcrossEvent::Signalled)?;
        let parts = self.connect(&events)?;
        let exchange = || RankExchange::new(&self.facts.space_name(), &self.facts.layout);
        let run = RunningStep {
            exchange: self.plan.pmi.then(exchange),
            plan: self.plan,
            step: format!("{}.{}", self.facts.job, self.facts.number),
            parts,
            events,
            output,
            end: StepEnd::default(),
            is_started: false,
            is_ending: false,
            is_timed: false,
        };
        let end = run.run_until_end(received).await;
        signals.abort_all();
        Ok(end)
    }

    fn connect(&self, events: &mpsc::Sender<AcrossEvent>) -> Result<Vec<StepPart>, CommandFailure> {
        let folder = match &self.plan.folder {
            Some(folder) => folder.clone(),
            None => std::env::current_dir()?,
        };
        let environment = exported(self.plan.export.as_deref(), self.allocation);
        let mut parts = Vec::new();
        let nodes = &self.facts.layout.nodes;
        for (index, node) in nodes.iter().enumerate() {
            let programs = node.ranks.iter().filter_map(|rank| self.plan.programs.get(*rank));
            let order = PartOrder {
                facts: self.facts.clone(),
                node: Some(index),
                programs: programs.cloned().collect(),
                environment: environment.clone(),
                folder: folder.clone(),
                gpus: self.plan.gpus.as_ref().and_then(|gpus| gpus.get(index).copied()),
                overlap: self.plan.overlap,
                pmi: self.plan.pmi,
            };
            let is_here = node.name == self.allocation.node;
            let to = Connected { index, events: events.clone() };
            let link = match is_here {
                true => connect_here(to, &self.facts)?,
                false => connect_there(to, &node.name, self.allocation)?,
            };
            parts.push(StepPart {
                node: node.name.clone(),
                link,
                open: node.ranks.iter().copied().collect(),
                is_ready: false,
                is_closed: false,
                under_way: 0,
                is_here,
                order: Some(order),
            });
        }
        if !parts.iter().any(|part| part.is_here) {
            parts.push(self.listener(events)?);
        }
        Ok(parts)
    }

    /// Starts a part without processes on this node: signals to the job's steps come to it.
    fn listener(&self, events: &mpsc::Sender<AcrossEvent>) -> Result<StepPart, CommandFailure> {
        let to = Connected { index: self.facts.layout.nodes.len(), events: events.clone() };
        let order = PartOrder {
            facts: self.facts.clone(),
            node: None,
            programs: Vec::new(),
            environment: BTreeMap::new(),
            folder: std::env::temp_dir(),
            gpus: None,
            overlap: true,
            pmi: false,
        };
        Ok(StepPart {
            node: self.allocation.node.clone(),
            link: connect_here(to, &self.facts)?,
            open: BTreeSet::new(),
            is_ready: false,
            is_closed: false,
            under_way: 0,
            is_here: true,
            order: Some(order),
        })
    }
}

struct RunningStep<'s> {
    /// How its processes find each other; `None` if they don't.
    exchange: Option<RankExchange>,
    plan: &'s StepPlan,
    step: String,
    parts: Vec<StepPart>,
    events: mpsc::Sender<AcrossEvent>,
    output: StepOutput,
    end: StepEnd,
    is_started: bool,
    is_ending: bool,
    is_timed: bool,
}

impl RunningStep<'_> {
    async fn run_until_end(mut self, mut received: mpsc::Receiver<AcrossEvent>) -> StepEnd {
        let mut input = LocalInput::of_stdin();
        let mut is_input_over = false;
        self.order_next();
        while self.parts.iter().any(|part| !part.open.is_empty()) {
            let has_capacity =
                self.is_started && self.parts.iter().all(|part| part.under_way < WINDOW);
            tokio::select! {
                event = received.recv() => match event {
                    Some(AcrossEvent::GiveUp) | None => break,
                    Some(event) => self.take(event),
                },
                piece = input.next(), if has_capacity && !is_input_over => {
                    is_input_over = piece.is_none();
                    self.pass_input(piece);
                }
            }
        }
        self.drain(received).await;
        self.output.finish_all();
        self.end
    }

    /// Receives what parts still have to send.
    async fn drain(&mut self, mut received: mpsc::Receiver<AcrossEvent>) {
        for part in &mut self.parts {
            part.link.close();
        }
        let rest = async {
            while self.parts.iter().any(|part| !part.is_closed) {
                match received.recv().await {
                    Some(AcrossEvent::Message(_, FromPart::Output { rank, is_error, bytes })) => {
                        self.output.write((rank, is_error), &bytes);
                    }
                    Some(AcrossEvent::Closed(part, _)) => self.parts[part].is_closed = true,
                    Some(_) => {}
                    None => return,
                }
            }
        };
        let _ = timeout(REST_WITHIN, rest).await;
    }

    /// Sends orders. Steps that take GPUs take them node by node, in the same order. Otherwise two
    /// steps that each hold some of the GPUs that both need would wait for each other forever.
    fn order_next(&mut self) {
        let takes = self.plan.gpus.is_some() && !self.plan.overlap;
        for part in &mut self.parts {
            if let Some(order) = part.order.take() {
                part.link.send(&ToPart::Order(Box::new(order)));
            }
            if takes && !part.is_ready && !part.is_closed {
                return;
            }
        }
        if !self.is_started && self.parts.iter().all(|part| part.is_ready || part.is_closed) {
            self.is_started = true;
            self.send_all(&ToPart::Go);
        }
    }

    fn send_all(&self, message: &ToPart) {
        for part in self.parts.iter().filter(|part| !part.is_closed) {
            part.link.send(message);
        }
    }

    fn pass_input(&mut self, piece: Option<Vec<u8>>) {
        let Some(piece) = piece else { return self.send_all(&ToPart::EndOfInput) };
        for part in self.parts.iter_mut().filter(|part| !part.open.is_empty() && !part.is_closed) {
            part.under_way += piece.len();
        }
        self.send_all(&ToPart::Input(piece));
    }

    fn take(&mut self, event: AcrossEvent) {
        match event {
            AcrossEvent::Message(part, message) => self.take_message(part, message),
            AcrossEvent::Closed(part, reason) => self.take_close(part, reason),
            AcrossEvent::Signalled(number) => self.signal(number.as_raw()),
            AcrossEvent::WaitOver => {
                eprintln!("srun: First task exited {}s ago", self.plan.wait_secs.unwrap_or(0));
                self.kill();
            }
            AcrossEvent::KillNow => self.kill(),
            AcrossEvent::GiveUp => {}
        }
    }

    fn take_message(&mut self, part: usize, message: FromPart) {
        match message {
            FromPart::Ready => {
                self.parts[part].is_ready = true;
                self.order_next();
            }
            FromPart::Note(text) => eprintln!("{text}"),
            FromPart::Output { rank, is_error, bytes } => {
                self.output.write((rank, is_error), &bytes);
            }
            FromPart::Taken(length) => {
                let part = &mut self.parts[part];
                part.under_way = part.under_way.saturating_sub(length);
            }
            FromPart::Ended { rank, status } => {
                self.record_end(part, rank, ExitStatus::from_raw(status));
            }
            FromPart::NotStarted { rank, reason } => {
                eprintln!("slurmstepd-{}: error: {reason}", self.parts[part].node);
                self.parts[part].open.remove(&rank);
                self.end = self.end.max(StepEnd::exited(NOT_STARTED));
                self.end_all();
            }
            FromPart::Signalled(number) => {
                // The processes on the caller's node received it themselves.
                let others = self.parts.iter().filter(|part| !part.is_here && !part.is_closed);
                others.for_each(|part| part.link.send(&ToPart::Signal(number)));
            }
            FromPart::Request { rank, bytes } => self.take_request(rank, &bytes),
        }
    }

    fn take_request(&mut self, rank: usize, bytes: &[u8]) {
        let actions = self.exchange.iter_mut().flat_map(|exchange| exchange.take(rank, bytes));
        for action in actions.collect::<Vec<_>>() {
            match action {
                RankAction::Answer { rank, bytes } => {
                    let of_rank = |part: &&StepPart| part.open.contains(&rank);
                    if let Some(part) = self.parts.iter().find(of_rank) {
                        part.link.send(&ToPart::Answer { rank, bytes });
                    }
                }
                RankAction::Abort { rank, reason } => {
                    eprintln!("{}", aborted(rank, &reason));
                    self.end_all();
                }
            }
        }
    }

    fn record_end(&mut self, part: usize, rank: usize, status: ExitStatus) {
        let part = &mut self.parts[part];
        part.open.remove(&rank);
        if part.open.is_empty() {
            // Its processes accept no more.
            part.under_way = 0;
        }
        self.output.finish(rank);
        self.end = self.end.max(report_end(&part.node, rank, status, self.is_ending));
        let are_left = self.parts.iter().any(|part| !part.open.is_empty());
        // With MPI the others would wait for it forever.
        let is_missed = self.exchange.as_ref().is_some_and(|exchange| exchange.is_missed(rank));
        let ends_all = self.plan.kill_on_bad_exit || is_missed;
        if !status.success() && ends_all && !self.is_ending && are_left {
            eprintln!("srun: launch/slurm: _step_signal: Terminating StepId={}", self.step);
            self.end_all();
        }
        if let Some(secs) = self.plan.wait_secs.filter(|_| are_left && !self.is_timed) {
            self.is_timed = true;
            after(Duration::from_secs(secs), AcrossEvent::WaitOver, &self.events);
        }
    }

    /// Records that a part has ended. If some of its processes have not ended, its node is lost to
    /// the step.
    fn take_close(&mut self, part: usize, reason: Option<String>) {
        let part = &mut self.parts[part];
        part.is_closed = true;
        part.under_way = 0;
        let lost = std::mem::take(&mut part.open);
        if !lost.is_empty() {
            self.end = self.end.max(StepEnd::exited(1));
            // Parts that have not started their processes end without them.
            if !self.is_ending {
                let reason = reason.unwrap_or_else(|| "its part of the step ended".to_owned());
                eprintln!("srun: error: Node failure on {}: {reason}", part.node);
                self.end_all();
            }
        }
        self.order_next();
    }

    /// Ends all processes: with time to clean up.
    fn end_all(&mut self) {
        if !self.is_ending {
            self.is_ending = true;
            self.signal(Signal::TERM.as_raw());
            after(KILL_AFTER, AcrossEvent::KillNow, &self.events);
        }
    }

    fn kill(&mut self) {
        self.is_ending = true;
        self.signal(Signal::KILL.as_raw());
        after(KILLED_WITHIN, AcrossEvent::GiveUp, &self.events);
    }

    /// Signals all processes; parts that have not started any end.
    fn signal(&self, number: i32) {
        self.send_all(&ToPart::Signal(number));
    }
}
