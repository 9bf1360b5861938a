//! A session from the client's side. It outlives connections: after a break, the client rejoins it
//! and continues at the same byte.

use std::collections::VecDeque;
use std::time::Duration;

use tessera_api_types::{SessionCommand, SessionEvent, SessionOpening};
use tessera_client::{
    ApiClient, ClientError, RetryPatience, SessionBroken, SessionMessage, SessionReceiver,
    SessionSender,
};
use tessera_model::JobRef;
use tessera_model::number::index;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::input::LocalInput;
use super::terminal::{LocalTerminal, local_size, write_all};
use crate::failure::CommandFailure;

/// Maximum input that is sent before the session has confirmed it, as the API states it.
const WINDOW: u64 = 256 * 1024;
/// Amount of output that is confirmed at once.
const CONFIRM_EVERY: u64 = 32 * 1024;
/// How long a session waits for its client to come back, as the API states it.
const COME_BACK_WITHIN: Duration = Duration::from_secs(60);
/// Timeout of a single try.
const AT_ONCE: RetryPatience = RetryPatience { total: Duration::ZERO, ..RetryPatience::BRIEF };
/// Pauses between tries to reconnect.
const PAUSE: Duration = Duration::from_millis(250);

/// The destination of output.
pub trait Output {
    /// Takes a piece of standard output.
    ///
    /// # Errors
    ///
    /// Its reader has closed it.
    fn stdout(&mut self, bytes: Vec<u8>) -> impl Future<Output = std::io::Result<()>>;
    /// Takes a piece of standard error.
    ///
    /// # Errors
    ///
    /// Its reader has closed it.
    fn stderr(&mut self, bytes: Vec<u8>) -> impl Future<Output = std::io::Result<()>>;
}

/// Collects what a program prints.
#[derive(Default)]
pub struct Collected(pub Vec<u8>);

impl Output for Collected {
    async fn stdout(&mut self, bytes: Vec<u8>) -> std::io::Result<()> {
        self.0.extend_from_slice(&bytes);
        Ok(())
    }

    async fn stderr(&mut self, _: Vec<u8>) -> std::io::Result<()> {
        Ok(())
    }
}

/// This process's own streams.
pub struct OwnOutput;

impl Output for OwnOutput {
    async fn stdout(&mut self, bytes: Vec<u8>) -> std::io::Result<()> {
        write_all(std::io::stdout().lock(), &bytes)
    }

    async fn stderr(&mut self, bytes: Vec<u8>) -> std::io::Result<()> {
        write_all(std::io::stderr().lock(), &bytes)
    }
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// Its program ended with this exit code: 128 and the signal's number for one that a signal ended.
    Exited(u8),
    /// Its program could not be started, or the session is lost; with the reason.
    NotStarted(String),
    /// Another client has taken it over.
    Replaced,
    /// This process was signalled before the session began; with the resulting exit code.
    Interrupted(u8),
}

/// A session with its input, and with what the other side has not confirmed.
pub struct Conversation {
    client: ApiClient,
    job: JobRef,
    session: String,
    opening: SessionOpening,
    /// Whether to wait for a job that has not started.
    waits: bool,
    /// Whether this process's signals and its terminal's keys go to the session.
    is_here: bool,
    raw: Option<LocalTerminal>,
    /// Notified once the session has begun.
    begun: Option<oneshot::Sender<()>>,
    input: LocalInput,
    /// Input that the session has not confirmed.
    unconfirmed: VecDeque<u8>,
    /// The number of its first byte.
    confirmed: u64,
    is_input_over: bool,
    /// Position of the next byte of output; `None` before the first one.
    received: Option<u64>,
    acknowledged: u64,
    /// Whether the current connection has joined the session.
    has_joined: bool,
    /// Why it was not joined the last time.
    refusal: String,
}

/// Signals that are passed on to the program.
struct Signals(Option<Listening>);

struct Listening {
    interrupt: Signal,
    terminate: Signal,
    quit: Signal,
    hang_up: Signal,
    resize: Signal,
}

/// One of the signals that are listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Noticed {
    Resized,
    /// Its name and number.
    Other(&'static str, u8),
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self(Some(Listening {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::quit())?,
            hang_up: signal(SignalKind::hangup())?,
            resize: signal(SignalKind::window_change())?,
        })))
    }

    /// Waits for the next one.
    async fn next(&mut self) -> Noticed {
        let Some(on) = &mut self.0 else { return std::future::pending().await };
        tokio::select! {
            _ = on.interrupt.recv() => Noticed::Other("INT", 2),
            _ = on.terminate.recv() => Noticed::Other("TERM", 15),
            _ = on.quit.recv() => Noticed::Other("QUIT", 3),
            _ = on.hang_up.recv() => Noticed::Other("HUP", 1),
            _ = on.resize.recv() => Noticed::Resized,
        }
    }

    /// Waits for one that ends this process; returns the resulting exit code.
    async fn next_end(&mut self) -> u8 {
        loop {
            if let Noticed::Other(_, number) = self.next().await {
                return 128 + number;
            }
        }
    }
}

impl Conversation {
    /// Prepares a session with this input.
    pub fn new(
        client: ApiClient,
        (job, session): (JobRef, String),
        opening: SessionOpening,
        input: LocalInput,
    ) -> Self {
        Self {
            client,
            job,
            session,
            opening,
            waits: false,
            is_here: false,
            raw: None,
            begun: None,
            input,
            unconfirmed: VecDeque::new(),
            confirmed: 0,
            is_input_over: false,
            received: None,
            acknowledged: 0,
            has_joined: false,
            refusal: "the connection to the session broke".to_owned(),
        }
    }

    /// Waits for a job that has not started yet.
    #[must_use]
    pub const fn waiting(mut self) -> Self {
        self.waits = true;
        self
    }

    /// Forwards this process's signals to the session, and its terminal's keys if it has one.
    #[must_use]
    pub const fn here(mut self) -> Self {
        self.is_here = true;
        self
    }

    /// Sends a notice once the session has begun.
    #[must_use]
    pub fn notifying(mut self, begun: oneshot::Sender<()>) -> Self {
        self.begun = Some(begun);
        self
    }

    /// Exchanges messages until the session has ended. A signalled program decides for itself what
    /// to do.
    ///
    /// # Errors
    ///
    /// [`CommandFailure`] if the session can't be joined, or this process's own output can't be written.
    pub async fn run(mut self, output: &mut impl Output) -> Result<SessionEnd, CommandFailure> {
        let mut signals = if self.is_here { Signals::listen()? } else { Signals(None) };
        let mut lost_at = None;
        loop {
            let joined = tokio::select! {
                joined = self.join(lost_at.is_some()) => joined,
                code = signals.next_end() => return Ok(SessionEnd::Interrupted(code)),
            };
            let broken = match joined {
                Ok((mut sender, mut receiver)) => {
                    match self.talk(&mut sender, &mut receiver, output, &mut signals).await {
                        Ok(Some(end)) => {
                            sender.close().await;
                            return Ok(end);
                        }
                        Ok(None) => {
                            if std::mem::take(&mut self.has_joined) {
                                lost_at = None;
                            }
                            None
                        }
                        Err(error) => {
                            // Our own output is closed, so the session ends.
                            sender.close().await;
                            return Err(error);
                        }
                    }
                }
                Err(error) => Some(error),
            };
            let lost = *lost_at.get_or_insert_with(Instant::now);
            match broken {
                // Before the first session, the client's own timeout applies.
                Some(error)
                    if self.received.is_none()
                        || is_final(&error)
                        || lost.elapsed() > COME_BACK_WITHIN =>
                {
                    return Err(error.into());
                }
                None if lost.elapsed() > COME_BACK_WITHIN => {
                    return Err(CommandFailure::refused(self.refusal));
                }
                Some(_) | None => tokio::select! {
                    () = sleep(PAUSE) => {}
                    code = signals.next_end() => return Ok(SessionEnd::Interrupted(code)),
                },
            }
        }
    }

    async fn join(&self, is_again: bool) -> Result<(SessionSender, SessionReceiver), ClientError> {
        let opening = SessionOpening {
            offset: self.received,
            terminal: self.opening.terminal.map(|_| local_size()),
            ..self.opening.clone()
        };
        let client = match is_again {
            // The caller of this has its own deadline.
            true => self.client.with_patience(AT_ONCE),
            false => self.client.clone(),
        };
        client.join_session(self.job, &self.session, &opening, self.waits).await
    }

    /// Exchanges messages until the session has ended, or the connection breaks (`None`).
    async fn talk(
        &mut self,
        sender: &mut SessionSender,
        receiver: &mut SessionReceiver,
        output: &mut impl Output,
        signals: &mut Signals,
    ) -> Result<Option<SessionEnd>, CommandFailure> {
        let mut is_ready = false;
        let mut is_end_sent = false;
        loop {
            // The session refuses more than its window, and a piece may be as large as any.
            let has_capacity = self.unconfirmed.len() + LocalInput::PIECE_MAX <= index(WINDOW);
            let sent = tokio::select! {
                message = receiver.next() => {
                    let Ok(message) = message else { return Ok(None) };
                    match self.take(message, sender, output).await? {
                        Step::Over(end) => return Ok(Some(end)),
                        Step::Retry => return Ok(None),
                        Step::Ready => {
                            is_ready = true;
                            if self.is_input_over {
                                is_end_sent = true;
                                sender.command(&SessionCommand::EndOfInput).await
                            } else {
                                Ok(())
                            }
                        }
                        Step::Sent(sent) => sent,
                    }
                }
                piece = self.input.next(), if is_ready && has_capacity && !self.is_input_over => match piece {
                    Some(piece) => {
                        self.unconfirmed.extend(&piece);
                        sender.input(piece).await
                    }
                    None => {
                        self.is_input_over = true;
                        if is_end_sent { Ok(()) } else {
                            is_end_sent = true;
                            sender.command(&SessionCommand::EndOfInput).await
                        }
                    }
                },
                noticed = signals.next() => match noticed {
                    Noticed::Resized if self.opening.terminal.is_some() => {
                        let size = local_size();
                        let (rows, columns) = (size.rows, size.columns);
                        sender.command(&SessionCommand::Resize { rows, columns }).await
                    }
                    Noticed::Resized => Ok(()),
                    // A closed terminal also ends the session, whatever its program does about it.
                    Noticed::Other(name, number) if !is_ready || name == "HUP" => {
                        return Ok(Some(SessionEnd::Interrupted(128 + number)));
                    }
                    Noticed::Other(name, _) => {
                        let signal = name.to_owned();
                        sender.command(&SessionCommand::Signal { signal }).await
                    }
                },
            };
            if sent.is_err() {
                return Ok(None);
            }
        }
    }

    async fn take(
        &mut self,
        message: SessionMessage,
        sender: &mut SessionSender,
        output: &mut impl Output,
    ) -> Result<Step, CommandFailure> {
        let length = match message {
            SessionMessage::Stdout(bytes) => {
                let length = bytes.len() as u64;
                output.stdout(bytes).await?;
                length
            }
            SessionMessage::Stderr(bytes) => {
                let length = bytes.len() as u64;
                output.stderr(bytes).await?;
                length
            }
            SessionMessage::Event(event) => return Ok(self.take_event(event, sender).await),
        };
        let total = self.received.unwrap_or_default() + length;
        self.received = Some(total);
        if total - self.acknowledged < CONFIRM_EVERY {
            return Ok(Step::Sent(Ok(())));
        }
        self.acknowledged = total;
        Ok(Step::Sent(sender.command(&SessionCommand::Taken { total }).await))
    }

    async fn take_event(&mut self, event: SessionEvent, sender: &mut SessionSender) -> Step {
        match event {
            SessionEvent::Joined { offset, input, terminal } => {
                if terminal && self.is_here && self.raw.is_none() {
                    self.raw = LocalTerminal::make_raw();
                }
                self.has_joined = true;
                if let Some(begun) = self.begun.take() {
                    // The receiver may be gone.
                    let _ = begun.send(());
                }
                self.received = Some(offset);
                self.acknowledged = offset;
                if self.confirmed == 0 && self.unconfirmed.is_empty() {
                    // Another client may have sent input before.
                    self.confirmed = input;
                }
                self.confirm(input);
                let again: Vec<u8> = self.unconfirmed.iter().copied().collect();
                for piece in again.chunks(16 * 1024) {
                    if let Err(broken) = sender.input(piece.to_vec()).await {
                        return Step::Sent(Err(broken));
                    }
                }
                Step::Ready
            }
            SessionEvent::Taken { total } => {
                self.confirm(total);
                Step::Sent(Ok(()))
            }
            SessionEvent::Ended { exit_code: Some(code), .. } => {
                Step::Over(SessionEnd::Exited(code))
            }
            SessionEvent::Ended { signal: Some(signal), .. } => {
                Step::Over(SessionEnd::Exited(128_u8.saturating_add(signal)))
            }
            SessionEvent::Ended { detail, .. } => Step::Over(SessionEnd::NotStarted(detail)),
            SessionEvent::Refused { reason, retry: true } => {
                self.refusal = reason;
                Step::Retry
            }
            SessionEvent::Refused { reason, .. } => Step::Over(SessionEnd::NotStarted(reason)),
            SessionEvent::Replaced => Step::Over(SessionEnd::Replaced),
        }
    }

    /// Discards input that the session has confirmed.
    fn confirm(&mut self, total: u64) {
        let new = total.saturating_sub(self.confirmed);
        let new = index(new).min(self.unconfirmed.len());
        self.unconfirmed.drain(..new);
        self.confirmed += new as u64;
    }
}

/// The effect of a message.
enum Step {
    Over(SessionEnd),
    Retry,
    Ready,
    Sent(Result<(), SessionBroken>),
}

/// Returns whether another try would be useless.
fn is_final(error: &ClientError) -> bool {
    matches!(error.status(), Some(400..=499) if error.status() != Some(429))
}
