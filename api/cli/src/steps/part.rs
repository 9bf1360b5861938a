//! A step's part on one node: starts the node's processes, passes on what they write and how they end, and ends them
//! when the caller is gone.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::ChildStdin;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::Allocation;
use super::environment::{on_node, variables};
use super::exchange::{BadMessage, FromPart, MessageBuffer, PartOrder, ToPart};
use super::gpus::{StepGpus, busy};
use super::own_number::{command_of, plain};
use super::pmi::{RankSocket, relay};
use crate::failure::CommandFailure;

/// Maximum number of bytes of a process's output in one message.
const CHUNK: usize = 16 * 1024;
/// Messages that wait for the caller.
const WAITING: usize = 64;
/// How long processes have to exit when the caller is gone: less than the node gives this program.
const GONE_GRACE: Duration = Duration::from_secs(3);
/// How long output is read that a process's own children still hold open after its end.
const REST_WITHIN: Duration = Duration::from_secs(2);
/// How much later than its processes this program may learn of a signal to all of them, on a busy machine.
const SIGNALLED_WITHIN: Duration = Duration::from_millis(50);
/// Where processes run if their folder does not exist, as in Slurm.
pub const NO_FOLDER: &str = "/tmp";

enum PartEvent {
    /// The caller sent something; `None` if it is gone.
    Message(Option<Result<ToPart, BadMessage>>),
    Ended(usize, ExitStatus),
    Signalled(i32),
    /// A request of a process's MPI library.
    Request(usize, Vec<u8>),
    GoneOver,
}

/// The processes of a part.
#[derive(Default)]
struct PartTasks {
    groups: BTreeMap<usize, Pid>,
    /// Groups of processes that have ended, which may have left others.
    ended: Vec<Pid>,
    inputs: Vec<ChildStdin>,
    outputs: JoinSet<()>,
    /// Where answers to the MPI libraries of processes go.
    answers: BTreeMap<usize, mpsc::UnboundedSender<Vec<u8>>>,
}

impl PartTasks {
    fn signal(&self, number: Signal) {
        for group in self.groups.values() {
            // A process that has ended needs no signal.
            let _ = kill_process_group(*group, number);
        }
    }
}

/// Runs a part for the caller at this process's standard input and output.
///
/// # Errors
///
/// [`CommandFailure`] if this is not inside a job, or the caller breaks the rules.
pub async fn run_part() -> Result<u8, CommandFailure> {
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let allocation = Allocation::find(environment.collect())
        .ok_or_else(|| CommandFailure::usage("only a step starts its parts"))?;
    let (events, mut received) = mpsc::channel(WAITING);
    let mut signals = listen(&events)?;
    read_caller(events.clone());
    let (to_caller, written) = write_caller();
    let Some(PartEvent::Message(Some(Ok(ToPart::Order(order))))) = received.recv().await else {
        return Err(CommandFailure::usage("a part of a step needs a command first"));
    };
    let mut part = Part { order: *order, allocation, to_caller, events };
    part.fill_environment();
    let ended = part.run(&mut received).await;
    signals.abort_all();
    drop(part);
    // The last messages are on their way before this process ends.
    let _ = tokio::task::spawn_blocking(move || written.recv()).await;
    ended
}

struct Part {
    order: PartOrder,
    allocation: Allocation,
    to_caller: mpsc::Sender<FromPart>,
    events: mpsc::Sender<PartEvent>,
}

impl Part {
    /// Adds what belongs to this node to the environment of the caller.
    fn fill_environment(&mut self) {
        self.order.environment = on_node(&self.order.environment, &self.allocation.environment);
    }

    async fn run(&self, received: &mut mpsc::Receiver<PartEvent>) -> Result<u8, CommandFailure> {
        let Some(gpus) = self.take_gpus(received).await? else { return Ok(1) };
        self.report(FromPart::Ready).await;
        loop {
            match received.recv().await {
                Some(PartEvent::Message(Some(Ok(ToPart::Go)))) => break,
                Some(PartEvent::Message(
                    Some(Ok(ToPart::Signal(_) | ToPart::Order(_)) | Err(_)) | None,
                ))
                | None => return Ok(1),
                Some(_) => {}
            }
        }
        let mut tasks = PartTasks::default();
        self.start(&mut tasks, gpus.devices()).await;
        self.forward_output(tasks, received).await;
        Ok(0)
    }

    /// Waits for the GPUs of this node; `None` if the caller is gone before.
    async fn take_gpus(
        &self,
        received: &mut mpsc::Receiver<PartEvent>,
    ) -> Result<Option<StepGpus>, CommandFailure> {
        std::fs::create_dir_all(&self.allocation.folder)?;
        let needed = self.order.gpus.filter(|_| self.order.node.is_some());
        let (notes, mut noted) = mpsc::channel(1);
        let taken = StepGpus::take((needed, self.order.overlap), &self.allocation, || {
            // There is one.
            let _ = notes.try_send(busy(&self.order.facts.job));
        });
        tokio::pin!(taken);
        loop {
            tokio::select! {
                taken = &mut taken => return Ok(Some(taken?)),
                Some(note) = noted.recv() => self.report(FromPart::Note(note)).await,
                event = received.recv() => match event {
                    Some(PartEvent::Signalled(_)) => {}
                    _ => return Ok(None),
                },
            }
        }
    }

    async fn report(&self, message: FromPart) {
        // A caller that is gone shows at its other end.
        let _ = self.to_caller.send(message).await;
    }

    async fn start(&self, tasks: &mut PartTasks, devices: Option<&[String]>) {
        let Some(node) = self.order.node else { return };
        let layout = &self.order.facts.layout;
        let ranks = layout.nodes.get(node).map_or(&[][..], |node| &node.ranks);
        let folder = self.folder().await;
        for (local, (rank, words)) in ranks.iter().zip(&self.order.programs).enumerate() {
            let base = (self.order.environment.clone(), devices);
            let all = variables(&self.order.facts, (node, local), &self.allocation, base);
            let mut command = command_of(words);
            command.env_clear().envs(all).current_dir(&folder);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            // Its own group: it is signalled once, and whole.
            command.process_group(0).kill_on_drop(false);
            let socket =
                self.order.pmi.then(|| RankSocket::give(&mut command, *rank, &self.order.facts));
            let socket = match socket.transpose() {
                Ok(socket) => socket,
                Err(error) => {
                    let reason = format!("no socket for MPI: {}", plain(&error));
                    self.report(FromPart::NotStarted { rank: *rank, reason }).await;
                    continue;
                }
            };
            match command.spawn() {
                Ok(child) => {
                    if let Some(socket) = socket {
                        let (rank, events) = (*rank, self.events.clone());
                        let event = move |bytes| PartEvent::Request(rank, bytes);
                        tasks.answers.insert(rank, relay(socket.keep(), events, event));
                    }
                    self.record_start(tasks, *rank, child);
                }
                Err(error) => {
                    let program = words.first().map_or("", String::as_str);
                    let reason = format!("execve(): {program}: {}", plain(&error));
                    self.report(FromPart::NotStarted { rank: *rank, reason }).await;
                }
            }
        }
    }

    fn record_start(&self, tasks: &mut PartTasks, rank: usize, mut child: tokio::process::Child) {
        let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        tasks.groups.extend(pid.map(|pid| (rank, pid)));
        tasks.inputs.extend(child.stdin.take());
        if let Some(out) = child.stdout.take() {
            tasks.outputs.spawn(pass_on(out, (rank, false), self.to_caller.clone()));
        }
        if let Some(err) = child.stderr.take() {
            tasks.outputs.spawn(pass_on(err, (rank, true), self.to_caller.clone()));
        }
        let events = self.events.clone();
        tokio::spawn(async move {
            let status = child.wait().await.unwrap_or_else(|_| ExitStatus::from_raw(0xff00));
            let _ = events.send(PartEvent::Ended(rank, status)).await;
        });
    }

    /// Returns where the processes run.
    async fn folder(&self) -> PathBuf {
        let folder = self.order.folder.clone();
        match no_folder(&self.allocation.node, &folder) {
            None => folder,
            Some(note) => {
                self.report(FromPart::Note(note)).await;
                Path::new(NO_FOLDER).to_owned()
            }
        }
    }

    /// Passes on signals that ended the processes here, and are not reported yet: processes on other nodes wait for
    /// them.
    async fn pass_last_signals(&self, received: &mut mpsc::Receiver<PartEvent>) {
        // Only on the caller's node.
        if !self.allocation.environment.contains_key("SLURM_STEP_ID") {
            return;
        }
        let deadline = Instant::now() + SIGNALLED_WITHIN;
        while let Ok(Some(event)) = timeout_at(deadline, received.recv()).await {
            if let PartEvent::Signalled(number) = event {
                self.report(FromPart::Signalled(number)).await;
            }
        }
    }

    /// Forwards output until all processes have ended.
    async fn forward_output(&self, mut tasks: PartTasks, received: &mut mpsc::Receiver<PartEvent>) {
        let mut input = Some(feed(std::mem::take(&mut tasks.inputs), self.to_caller.clone()));
        let mut gone: Option<Instant> = None;
        // A part without processes listens until its caller closes it.
        while !tasks.groups.is_empty() || (self.order.node.is_none() && gone.is_none()) {
            let event = tokio::select! {
                event = received.recv() => event.unwrap_or(PartEvent::Message(None)),
                () = until(gone) => PartEvent::GoneOver,
            };
            match event {
                PartEvent::Message(Some(Ok(ToPart::Input(bytes)))) => {
                    // Output after the end is discarded.
                    let _ = input.as_ref().map(|input| input.send(bytes));
                }
                PartEvent::Message(Some(Ok(ToPart::EndOfInput))) => input = None,
                PartEvent::Message(Some(Ok(ToPart::Signal(number)))) => {
                    if let Some(number) = Signal::from_named_raw(number) {
                        tasks.signal(number);
                    }
                }
                PartEvent::Message(Some(Ok(ToPart::Answer { rank, bytes }))) => {
                    // A process that is gone needs no answer.
                    let _ = tasks.answers.get(&rank).map(|answers| answers.send(bytes));
                }
                PartEvent::Request(rank, bytes) => {
                    self.report(FromPart::Request { rank, bytes }).await;
                }
                PartEvent::Message(Some(Ok(ToPart::Go | ToPart::Order(_)))) => {}
                PartEvent::Message(Some(Err(_)) | None) if gone.is_none() => {
                    gone = Some(Instant::now() + GONE_GRACE);
                    tasks.signal(Signal::TERM);
                    // A stopped process could not handle it.
                    tasks.signal(Signal::CONT);
                }
                PartEvent::Message(Some(Err(_)) | None) => {}
                PartEvent::GoneOver => {
                    tasks.signal(Signal::KILL);
                    gone = Some(Instant::now() + GONE_GRACE);
                }
                PartEvent::Signalled(number) if gone.is_none() => {
                    self.report(FromPart::Signalled(number)).await;
                }
                PartEvent::Signalled(_) => {}
                PartEvent::Ended(rank, status) => {
                    tasks.answers.remove(&rank);
                    tasks.ended.extend(tasks.groups.remove(&rank));
                    self.report(FromPart::Ended { rank, status: status.into_raw() }).await;
                }
            }
        }
        self.pass_last_signals(received).await;
        let all = async { while tasks.outputs.join_next().await.is_some() {} };
        let _ = timeout(REST_WITHIN, all).await;
        for group in &tasks.ended {
            // Processes that a process left behind end with the step.
            let _ = kill_process_group(*group, Signal::KILL);
        }
    }
}

/// Returns why processes can't run in a folder of this node, as Slurm reports it; `None` if they can.
pub fn no_folder(node: &str, folder: &Path) -> Option<String> {
    let why = match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => return None,
        Ok(_) => "Not a directory".to_owned(),
        Err(error) => plain(&error),
    };
    let path = folder.display();
    Some(format!(
        "slurmstepd-{node}: error: couldn't chdir to `{path}': {why}: going to {NO_FOLDER} instead"
    ))
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Copies what a process writes to the caller.
async fn pass_on(
    mut from: impl AsyncRead + Unpin,
    (rank, is_error): (usize, bool),
    to: mpsc::Sender<FromPart>,
) {
    let mut bytes = vec![0; CHUNK];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        let piece = FromPart::Output { rank, is_error, bytes: bytes[..read].to_vec() };
        if to.send(piece).await.is_err() {
            return;
        }
    }
}

/// Copies input to all processes, and reports how much they have. The caller limits what is under way.
fn feed(
    mut inputs: Vec<ChildStdin>,
    to_caller: mpsc::Sender<FromPart>,
) -> mpsc::UnboundedSender<Vec<u8>> {
    let (pieces, mut received) = mpsc::unbounded_channel::<Vec<u8>>();
    tokio::spawn(async move {
        while let Some(piece) = received.recv().await {
            for input in &mut inputs {
                // One that has closed its input gets no more of it.
                let _ = input.write_all(&piece).await;
            }
            let _ = to_caller.send(FromPart::Taken(piece.len())).await;
        }
    });
    pieces
}

/// Reads the caller's messages on its own thread, since a read of standard input can't be cancelled.
fn read_caller(events: mpsc::Sender<PartEvent>) {
    std::thread::spawn(move || {
        let mut buffer = MessageBuffer::default();
        let mut bytes = vec![0; CHUNK];
        let mut input = std::io::stdin().lock();
        loop {
            let read = match input.read(&mut bytes) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Ok(read) if read > 0 => read,
                Ok(_) | Err(_) => break,
            };
            buffer.push(&bytes[..read]);
            while let Some(message) = buffer.next_to_part().transpose() {
                let is_bad = message.is_err();
                if events.blocking_send(PartEvent::Message(Some(message))).is_err() || is_bad {
                    return;
                }
            }
        }
        let _ = events.blocking_send(PartEvent::Message(None));
    });
}

/// Writes messages to the caller on its own thread; the second return value notifies once all
/// are written.
fn write_caller() -> (mpsc::Sender<FromPart>, std::sync::mpsc::Receiver<()>) {
    let (messages, mut received) = mpsc::channel::<FromPart>(WAITING);
    let (done, written) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut output = std::io::stdout().lock();
        while let Some(message) = received.blocking_recv() {
            let sent = output.write_all(&message.encode()).and_then(|()| output.flush());
            if sent.is_err() {
                break;
            }
        }
        drop(done);
    });
    (messages, written)
}

/// Listens to signals. Those to the job's steps reach the local processes, too, and the caller
/// passes them on to other nodes. No signal ends this program itself.
fn listen(events: &mpsc::Sender<PartEvent>) -> Result<JoinSet<()>, CommandFailure> {
    let mut tasks = JoinSet::new();
    for (kind, number) in [
        (SignalKind::terminate(), Signal::TERM),
        (SignalKind::interrupt(), Signal::INT),
        (SignalKind::hangup(), Signal::HUP),
        (SignalKind::quit(), Signal::QUIT),
        (SignalKind::user_defined1(), Signal::USR1),
        (SignalKind::user_defined2(), Signal::USR2),
    ] {
        let mut received = signal(kind)?;
        let events = events.clone();
        tasks.spawn(async move {
            while received.recv().await.is_some() {
                let _ = events.send(PartEvent::Signalled(number.as_raw())).await;
            }
        });
    }
    Ok(tasks)
}
