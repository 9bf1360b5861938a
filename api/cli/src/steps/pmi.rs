//! How the processes of a step with MPI find each other: PMI-1, as MPICH and Intel MPI speak it, and PMI-2, as Slurm's
//! `libpmi2` does.
//!
//! Each process inherits a socket, and `PMI_FD` has its number. Over it the library learns its rank, leaves what others
//! have to know in a space of keys and values, and waits at a barrier for all. The space is where the step was called;
//! the parts on nodes only carry bytes. This module decides what is answered, [`socket`] is the processes' end.

mod lines;
mod pairs;
mod socket;

use std::collections::BTreeMap;

use super::layout::StepLayout;

pub use self::socket::{RankSocket, relay};

/// Longest key that libraries may use, which they are notified of.
const KEY_MAX: usize = 64;
/// Longest value that libraries may use, which they are notified of.
const VALUE_MAX: usize = 1_024;
/// Maximum number of keys of a step: 64 for each of the largest step's ranks.
const KEYS_MAX: usize = 1 << 20;
/// Maximum length of an unfinished message: that of the form with a length of six digits, which nothing comes near.
const MESSAGE_MAX: usize = 1 << 20;
/// The key under which libraries look for the node of each rank.
const MAPPING: &str = "PMI_process_mapping";

/// Bytes that are no message of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum MalformedMessage {
    #[error("a message of PMI is too long")]
    TooLong,
    #[error("a message of PMI-2 has no length")]
    NoLength,
}

/// What follows from a message of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankAction {
    /// This process gets an answer.
    Answer {
        rank: usize,
        /// What it gets.
        bytes: Vec<u8>,
    },
    /// A process ends the step (`MPI_Abort`).
    Abort {
        rank: usize,
        /// Its reason, for people.
        reason: String,
    },
}

/// A request, whichever form it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RankRequest {
    /// The library names its version.
    Init { version: u32 },
    /// The library of version 2 needs its rank.
    FullInit,
    /// It needs the lengths of the longest names.
    Maxes,
    /// It needs to know which of several programs it is.
    AppNumber,
    /// It needs the name of the space.
    SpaceName,
    /// It needs the number of processes that there could be.
    UniverseSize,
    /// It leaves a value for others.
    Put { key: String, value: String },
    /// It looks for a value.
    Get { key: String },
    /// It leaves a value for the processes of its node.
    PutOnNode { key: String, value: String },
    /// It looks for a value of its node; `waits` until there is one.
    GetOnNode { key: String, waits: bool },
    /// It looks for a fact about the step.
    GetOfJob { key: String },
    /// It waits for all others.
    Barrier,
    /// It offers a port under a name.
    Publish { name: String, port: String },
    /// It withdraws that.
    Unpublish { name: String },
    /// It looks for a port.
    LookUp { name: String },
    /// It requests more processes, which no step can start.
    Spawn,
    /// It ends by itself.
    Finalize,
    /// It ends the step.
    Abort { reason: String },
    /// A command that is not known.
    Unknown { command: String },
    /// A part of a longer request, which needs no answer.
    Unfinished,
}

/// An answer, before it has a form.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RankReply {
    Done,
    Refused(&'static str),
    Init { version: u32 },
    FullInit { rank: usize, size: usize },
    Maxes,
    AppNumber,
    SpaceName(String),
    UniverseSize(usize),
    Found(String),
    Absent,
}

/// The form of a process's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RankForm {
    /// Lines of words, as in PMI-1. The first line of version 2 is one, too.
    #[default]
    Lines,
    /// Pairs behind a length, as in PMI-2.
    Pairs,
}

/// A command as it came, with what its answer repeats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReceivedCommand {
    command: String,
    /// The thread that waits for the answer.
    thread: Option<String>,
}

/// One process.
#[derive(Debug, Default)]
struct RankClient {
    form: RankForm,
    buffer: Vec<u8>,
    /// The barrier at which it waits.
    at_barrier: Option<ReceivedCommand>,
    /// The value of its node for which it waits.
    waits_for: Option<(String, ReceivedCommand)>,
    /// How much of a request over several lines was read.
    spawn: lines::SpawnLines,
    has_begun: bool,
    has_finished: bool,
}

/// What the processes of a step know of each other.
#[derive(Debug)]
pub struct RankExchange {
    /// The name of the space.
    name: String,
    /// The node of each rank.
    nodes: Vec<usize>,
    clients: Vec<RankClient>,
    space: BTreeMap<String, String>,
    of_nodes: BTreeMap<(usize, String), String>,
    ports: BTreeMap<String, String>,
}

impl RankExchange {
    /// Begins with the processes of a step; `name` is that of their space.
    pub fn new(name: &str, layout: &StepLayout) -> Self {
        let mut nodes = vec![0; layout.tasks()];
        for (index, node) in layout.nodes.iter().enumerate() {
            for rank in &node.ranks {
                nodes[*rank] = index;
            }
        }
        let space = BTreeMap::from([(MAPPING.to_owned(), mapping(&nodes))]);
        let clients = nodes.iter().map(|_| RankClient::default()).collect();
        let (of_nodes, ports) = Default::default();
        Self { name: name.to_owned(), nodes, clients, space, of_nodes, ports }
    }

    /// Returns whether a process has begun with MPI and not ended that: the others wait for it.
    pub fn is_missed(&self, rank: usize) -> bool {
        self.clients.get(rank).is_some_and(|client| client.has_begun && !client.has_finished)
    }

    /// Takes what a process sent, and returns what follows.
    pub fn take(&mut self, rank: usize, bytes: &[u8]) -> Vec<RankAction> {
        let mut actions = Vec::new();
        let Some(client) = self.clients.get_mut(rank) else { return actions };
        client.buffer.extend_from_slice(bytes);
        while let Some(client) = self.clients.get_mut(rank) {
            let taken = match client.form {
                RankForm::Lines => lines::next(&mut client.buffer, &mut client.spawn),
                RankForm::Pairs => pairs::next(&mut client.buffer),
            };
            match taken {
                Ok(Some((received, request))) => self.answer(rank, received, request, &mut actions),
                Ok(None) => break,
                Err(malformed) => {
                    client.buffer.clear();
                    actions.push(RankAction::Abort { rank, reason: malformed.to_string() });
                    break;
                }
            }
        }
        actions
    }

    fn answer(
        &mut self,
        rank: usize,
        received: ReceivedCommand,
        request: RankRequest,
        actions: &mut Vec<RankAction>,
    ) {
        let reply = match request {
            RankRequest::Unfinished => return,
            RankRequest::Abort { reason } => {
                actions.push(RankAction::Abort { rank, reason });
                return;
            }
            RankRequest::Init { version } => self.init(rank, version),
            RankRequest::FullInit => RankReply::FullInit { rank, size: self.nodes.len() },
            RankRequest::Maxes => RankReply::Maxes,
            RankRequest::AppNumber => RankReply::AppNumber,
            RankRequest::SpaceName => RankReply::SpaceName(self.name.clone()),
            RankRequest::UniverseSize => RankReply::UniverseSize(self.nodes.len()),
            RankRequest::Put { key, value } => put(&mut self.space, key, value),
            RankRequest::Get { key } => found(self.space.get(&key)),
            RankRequest::PutOnNode { key, value } => {
                let reply = self.put_on_node(rank, &key, value);
                self.answer_waiting((self.nodes[rank], &key), actions);
                reply
            }
            RankRequest::GetOnNode { key, waits } => {
                let place = (self.nodes[rank], key);
                match self.of_nodes.get(&place) {
                    None if waits => {
                        self.clients[rank].waits_for = Some((place.1, received));
                        return;
                    }
                    value => found(value),
                }
            }
            RankRequest::GetOfJob { key } if key == "universeSize" => {
                RankReply::Found(self.nodes.len().to_string())
            }
            RankRequest::GetOfJob { key } => found(self.space.get(&key).filter(|_| key == MAPPING)),
            RankRequest::Publish { name, port } => match self.ports.contains_key(&name) {
                true => RankReply::Refused("the name is taken"),
                false => put(&mut self.ports, name, port),
            },
            RankRequest::Unpublish { name } => match self.ports.remove(&name) {
                Some(_) => RankReply::Done,
                None => RankReply::Refused("there is no such name"),
            },
            RankRequest::LookUp { name } => found(self.ports.get(&name)),
            RankRequest::Spawn => {
                RankReply::Refused("a step starts no more processes: let mpirun start the program")
            }
            RankRequest::Barrier => {
                self.clients[rank].at_barrier = Some(received);
                self.open_barrier(actions);
                return;
            }
            RankRequest::Finalize => {
                self.clients[rank].has_finished = true;
                RankReply::Done
            }
            RankRequest::Unknown { command: _ } => RankReply::Refused("unknown command"),
        };
        actions.push(self.reply(rank, &received, &reply));
        if matches!(reply, RankReply::Init { version: 2 }) {
            self.clients[rank].form = RankForm::Pairs;
        }
    }

    fn init(&mut self, rank: usize, version: u32) -> RankReply {
        match version {
            1 | 2 => {
                self.clients[rank].has_begun = true;
                RankReply::Init { version }
            }
            _ => RankReply::Refused("only PMI-1 and PMI-2 are served"),
        }
    }

    fn reply(&self, rank: usize, received: &ReceivedCommand, reply: &RankReply) -> RankAction {
        let bytes = match self.clients[rank].form {
            RankForm::Lines => lines::write(received, reply),
            RankForm::Pairs => pairs::write(received, reply),
        };
        RankAction::Answer { rank, bytes }
    }

    fn put_on_node(&mut self, rank: usize, key: &str, value: String) -> RankReply {
        if self.of_nodes.len() >= KEYS_MAX || key.len() > KEY_MAX || value.len() > VALUE_MAX {
            return RankReply::Refused(TOO_LONG);
        }
        self.of_nodes.insert((self.nodes[rank], key.to_owned()), value);
        RankReply::Done
    }

    /// Answers the processes of a node that wait for a value which is there now.
    fn answer_waiting(&mut self, (node, key): (usize, &str), actions: &mut Vec<RankAction>) {
        let Some(value) = self.of_nodes.get(&(node, key.to_owned())).cloned() else { return };
        for rank in 0..self.clients.len() {
            let waits = |(wanted, _): &mut (String, ReceivedCommand)| wanted == key;
            if self.nodes[rank] != node {
                continue;
            }
            if let Some((_, received)) = self.clients[rank].waits_for.take_if(waits) {
                actions.push(self.reply(rank, &received, &RankReply::Found(value.clone())));
            }
        }
    }

    /// Lets all go on, once all are there.
    fn open_barrier(&mut self, actions: &mut Vec<RankAction>) {
        if self.clients.iter().any(|client| client.at_barrier.is_none()) {
            return;
        }
        for rank in 0..self.clients.len() {
            if let Some(received) = self.clients[rank].at_barrier.take() {
                actions.push(self.reply(rank, &received, &RankReply::Done));
            }
        }
    }
}

const TOO_LONG: &str = "the key or the value is too long, or there are too many";

fn put(space: &mut BTreeMap<String, String>, key: String, value: String) -> RankReply {
    if space.len() >= KEYS_MAX || key.len() > KEY_MAX || value.len() > VALUE_MAX {
        return RankReply::Refused(TOO_LONG);
    }
    space.insert(key, value);
    RankReply::Done
}

fn found(value: Option<&String>) -> RankReply {
    value.map_or(RankReply::Absent, |value| RankReply::Found(value.clone()))
}

/// Writes the node of each rank as libraries read it: blocks of (first node, nodes, ranks on each).
fn mapping(nodes: &[usize]) -> String {
    let mut blocks: Vec<(usize, usize, usize)> = Vec::new();
    for run in nodes.chunk_by(|one, next| one == next) {
        match blocks.last_mut() {
            Some((first, count, each)) if *each == run.len() && *first + *count == run[0] => {
                *count += 1;
            }
            _ => blocks.push((run[0], 1, run.len())),
        }
    }
    let words = blocks.iter().map(|(first, count, each)| format!(",({first},{count},{each})"));
    format!("(vector{})", words.collect::<String>())
}

#[cfg(test)]
mod tests;
