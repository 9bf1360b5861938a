//! Interactive sessions: WebSocket connections that are carried to the nodes of jobs.

use std::time::Duration;

use actix_web::web::{self, Bytes, Data};
use actix_web::{HttpRequest, HttpResponse, get};
use actix_ws::{AggregatedMessage, AggregatedMessageStream, CloseCode, CloseReason, Closed};
use futures_util::StreamExt as _;
use serde::Deserialize;
use tessera_api_types::{SessionCommand, SessionEvent, SessionOpening};
use tessera_frames::cluster::{
    FromSession, LogStream, SESSION_CHUNK_BYTES_MAX, SESSION_START_BYTES_MAX, SessionName,
    SessionProgram, SessionRequest, SessionSignal, SessionStart, ToSession,
};
use tessera_model::JobRef;
use tessera_model::batch::TerminalSize;
use tessera_model::life::ProgramExit;
use tessera_model::spec::BadField;
use tokio::time::{Instant, interval, sleep_until, timeout};
use uuid::Uuid;

use super::error::ApiError;
use super::extract::Params;
use super::identity::Caller;
use super::limits::Place;
use super::logs;
use super::openapi::{ChangeProblems, JobPath, LookupProblems, Problems};
use super::state::{State, no_job};
use crate::ports::{SessionLink, ToPlacer};
use crate::store::reads::LogSource;

/// How long a client may take to send its first message.
const OPENING_WITHIN: Duration = Duration::from_secs(10);
/// How often a quiet client is requested to prove that it is there; proxies cut connections that are silent for a
/// minute.
const PING_EVERY: Duration = Duration::from_secs(20);
/// How long a client may be silent.
const SILENT_FOR: Duration = Duration::from_secs(60);
/// How long a client may take to read the rest and close the connection, once the program has ended.
const CLOSED_WITHIN: Duration = Duration::from_secs(10);
/// Longest message of a client: its first one with its environment.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// The name of the session of an interactive job's own program.
const MAIN: &str = "main";

/// Whether to wait.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SessionParams {
    /// Whether to wait for a job that has not started yet.
    #[serde(default)]
    wait: bool,
}

/// The session in the route's path.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only describes the parameter, which is read from the path")]
struct SessionPath {
    /// `main` for the program of an interactive job, or a UUID that the client generates. A client
    /// that connects again under the same UUID continues with the same program.
    #[param(pattern = "^(main|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$")]
    session: String,
}

/// Joins an interactive session in a running job, over a WebSocket connection.
///
/// The first message of the client is a `SessionOpening` as text, further ones are `SessionCommand` as text, and
/// its input is binary. It gets `SessionEvent` as text, and output as binary: one byte that is 1 for standard output
/// or 2 for standard error, and then the output. A program runs as the job's user, within the limits of the job. A
/// client that closes the connection ends the session. After any other break it may come back for a minute.
#[utoipa::path(
    tag = "jobs",
    operation_id = "join_session",
    params(JobPath, SessionPath, SessionParams),
    responses(
        (status = 101, description = "The connection is a WebSocket from now on."),
        Problems, LookupProblems, ChangeProblems,
    ),
    security(("bearer" = [])),
)]
#[get("/jobs/{job}/sessions/{session}")]
pub(super) async fn join(
    caller: Caller,
    params: Params<SessionParams>,
    request: HttpRequest,
    body: web::Payload,
    state: Data<State>,
) -> Result<HttpResponse, ApiError> {
    // An extractor of both would describe them a second time.
    let path = request.match_info();
    let job = path.query("job").parse::<JobRef>();
    let job = job.map_err(|bad| ApiError::from(bad_job(&bad.to_string())))?;
    let name = parse_name(path.query("session"))?;
    check_own_job(&caller, job)?;
    let place = state.open_session(&caller)?;
    let known = state.reads().job(job, &caller.jobs()).await?.ok_or_else(|| no_job(job))?;
    if !caller.may_act_for(&known.user) {
        return Err(ApiError::Forbidden {
            problem: format!("job {job} belongs to {}", known.user),
            expected: "its own user, or an operator".to_owned(),
        });
    }
    let source = logs::find_begun(&state, job, &caller.jobs(), params.0.wait).await?;
    if source.ended {
        return Err(ApiError::WrongState {
            problem: format!("job {job} is not running: its attempt {} has ended", source.number),
            expected: "a running job".into(),
        });
    }
    let is_own = *caller.name == *known.user;
    let (response, client, messages) = actix_ws::handle(&request, body).map_err(|_| {
        let problem = "the request does not begin a WebSocket connection";
        BadField::new("Upgrade", problem, "Upgrade: websocket, with its version and key")
    })?;
    let messages = messages
        .max_frame_size(MESSAGE_BYTES_MAX)
        .aggregate_continuations()
        .max_continuation_size(MESSAGE_BYTES_MAX);
    let conversation = Conversation { client, messages, _place: place };
    actix_web::rt::spawn(conversation.run(state, source, name, is_own));
    Ok(response)
}

/// A process of a job, without a token, reaches that job only.
pub(super) fn check_own_job(caller: &Caller, job: JobRef) -> Result<(), ApiError> {
    let Some(own) = caller.job() else { return Ok(()) };
    match job {
        JobRef::Job(job) if own.has(job) => Ok(()),
        _ => Err(ApiError::Forbidden {
            problem: format!("a process of job {} requests something of another job", own.first),
            expected: "its own job".to_owned(),
        }),
    }
}

fn bad_job(problem: &str) -> BadField {
    BadField::new("job", problem.to_owned(), "42, or 42_7 for a task of an array")
}

fn parse_name(text: &str) -> Result<SessionName, BadField> {
    match text {
        MAIN => Ok(SessionName::Main),
        other => Uuid::try_parse(other).map(SessionName::Other).map_err(|_| {
            BadField::new("session", format!("{other:?} names no session"), "`main` or a UUID")
        }),
    }
}

/// One client's connection.
struct Conversation {
    client: actix_ws::Session,
    messages: AggregatedMessageStream,
    _place: Place,
}

/// Why a conversation ends.
enum Ending {
    /// The session has ended, or accepts no client.
    Final,
    /// The client has gone.
    ClientGone,
    /// The node's connection broke: the client may come back.
    NodeGone,
}

impl Conversation {
    async fn run(mut self, state: Data<State>, source: LogSource, name: SessionName, is_own: bool) {
        let refusal = match self.open(&state, &source, name, is_own).await {
            Ok(Some(link)) => {
                self.carry(link).await;
                return;
            }
            // The client is gone.
            Ok(None) => return,
            Err(refusal) => refusal,
        };
        if self.send(&refusal).await.is_ok() {
            let _ = self.client.close(None).await;
        }
    }

    /// Reads the client's first message, and opens the session on the node.
    async fn open(
        &mut self,
        state: &State,
        source: &LogSource,
        name: SessionName,
        is_own: bool,
    ) -> Result<Option<SessionLink>, SessionEvent> {
        let refused = |reason: String| SessionEvent::Refused { reason, retry: false };
        let opening = loop {
            match timeout(OPENING_WITHIN, self.messages.next()).await {
                Ok(Some(Ok(AggregatedMessage::Text(text)))) => break text,
                Ok(Some(Ok(AggregatedMessage::Ping(_) | AggregatedMessage::Pong(_)))) => {}
                Ok(Some(Ok(_))) => {
                    return Err(refused(
                        "the first message has to be an opening, as text".to_owned(),
                    ));
                }
                Ok(Some(Err(_)) | None) | Err(_) => return Ok(None),
            }
        };
        let opening: SessionOpening = serde_json::from_str(&opening)
            .map_err(|error| refused(format!("the opening can't be read: {error}")))?;
        if opening.port.is_some() && !is_own {
            return Err(refused("only the job's own user may connect to its ports".to_owned()));
        }
        let request = requested(source, name, opening).map_err(|bad| {
            refused(format!("{}: {}; expected {}", bad.field, bad.problem, bad.expected))
        })?;
        let node = source.node;
        let opened = state.query(|reply| ToPlacer::OpenSession { node, request, reply }).await;
        match opened {
            Ok(Some(link)) => Ok(Some(link)),
            Ok(None) => Err(SessionEvent::Refused {
                reason: format!("node {}, where the job runs, is not connected", source.node_name),
                retry: true,
            }),
            Err(error) => Err(SessionEvent::Refused { reason: error.to_string(), retry: true }),
        }
    }

    /// Carries messages both ways until either side has enough.
    async fn carry(mut self, mut link: SessionLink) {
        let mut pings = interval(PING_EVERY);
        let mut silent_at = Instant::now() + SILENT_FOR;
        // Known with the first answer; a client that sends input before that breaks the rules.
        let mut sent = None;
        let ending = loop {
            let done = tokio::select! {
                frame = link.from.recv() => match frame {
                    Some(frame) => {
                        if matches!(frame, FromSession::Ended { .. }) {
                            // The client closes the connection once it has read all. Then the session is forgotten.
                            silent_at = Instant::now() + CLOSED_WITHIN;
                        }
                        self.pass_back(frame, &mut sent).await
                    }
                    None => Some(Ending::NodeGone),
                },
                message = self.messages.next() => {
                    silent_at = Instant::now() + SILENT_FOR;
                    match message {
                        Some(Ok(message)) => self.pass_on(message, &link, &mut sent).await,
                        Some(Err(_)) | None => Some(Ending::ClientGone),
                    }
                }
                _ = pings.tick() => {
                    self.client.ping(b"").await.is_err().then_some(Ending::ClientGone)
                }
                // Not a client that left, but one that can't be reached: it may come back.
                () = sleep_until(silent_at) => Some(Ending::NodeGone),
            };
            if let Some(ending) = done {
                break ending;
            }
        };
        match ending {
            Ending::Final => drop(self.client.close(Some(CloseCode::Normal.into())).await),
            // Sent before the link is dropped. A node that is gone ends the session by itself.
            Ending::ClientGone => drop(link.to.send(ToSession::HangUp).await),
            Ending::NodeGone => {
                let reason = CloseReason { code: CloseCode::Restart, description: None };
                drop(self.client.close(Some(reason)).await);
            }
        }
    }

    async fn send(&mut self, event: &SessionEvent) -> Result<(), Closed> {
        let text = serde_json::to_string(event).unwrap_or_default();
        self.client.text(text).await
    }

    /// Passes on what came from the node.
    async fn pass_back(&mut self, frame: FromSession, sent: &mut Option<u64>) -> Option<Ending> {
        let event = match frame {
            FromSession::Output { stream, bytes, .. } => {
                let number = match stream {
                    LogStream::Stdout => 1,
                    LogStream::Stderr => 2,
                };
                let message: Bytes = [&[number], bytes.as_slice()].concat().into();
                let passed = self.client.binary(message).await;
                return passed.is_err().then_some(Ending::ClientGone);
            }
            FromSession::Joined { offset, input, terminal } => {
                *sent = Some(input);
                SessionEvent::Joined { offset, input, terminal }
            }
            FromSession::Taken { total } => SessionEvent::Taken { total },
            FromSession::Ended { exit, detail } => SessionEvent::Ended {
                exit_code: exit.and_then(|exit| match exit {
                    ProgramExit::Code(code) => Some(code),
                    ProgramExit::Signal(_) => None,
                }),
                signal: exit.and_then(|exit| match exit {
                    ProgramExit::Signal(signal) => Some(signal),
                    ProgramExit::Code(_) => None,
                }),
                detail,
            },
            FromSession::Refused { reason, retry } => SessionEvent::Refused { reason, retry },
            FromSession::Replaced => SessionEvent::Replaced,
        };
        let is_last = matches!(event, SessionEvent::Refused { .. } | SessionEvent::Replaced);
        match self.send(&event).await {
            Ok(()) => is_last.then_some(Ending::Final),
            Err(_) => Some(Ending::ClientGone),
        }
    }

    /// Passes on what came from the client.
    async fn pass_on(
        &mut self,
        message: AggregatedMessage,
        link: &SessionLink,
        sent: &mut Option<u64>,
    ) -> Option<Ending> {
        let frames = match message {
            AggregatedMessage::Binary(bytes) => {
                let Some(offset) = sent else { return Some(Ending::ClientGone) };
                let mut frames = Vec::new();
                for piece in bytes.chunks(SESSION_CHUNK_BYTES_MAX) {
                    frames.push(ToSession::Input { offset: *offset, bytes: piece.to_vec() });
                    *offset += piece.len() as u64;
                }
                frames
            }
            AggregatedMessage::Text(text) => match command(&text, *sent) {
                Ok(frame) => vec![frame],
                Err(bad) => {
                    let reason = bad.to_string();
                    let refusal = SessionEvent::Refused { reason, retry: false };
                    let _ = self.send(&refusal).await;
                    return Some(Ending::ClientGone);
                }
            },
            AggregatedMessage::Ping(bytes) => {
                return self.client.pong(&bytes).await.is_err().then_some(Ending::ClientGone);
            }
            AggregatedMessage::Pong(_) => return None,
            AggregatedMessage::Close(_) => return Some(Ending::ClientGone),
        };
        for frame in frames {
            if link.to.send(frame).await.is_err() {
                return Some(Ending::NodeGone);
            }
        }
        None
    }
}

/// Why a command of a client is refused.
#[derive(Debug, thiserror::Error)]
enum BadCommand {
    /// It is no command.
    #[error("the command can't be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// The client sent no beginning of its input.
    #[error("the input ends before it has begun")]
    NoInput,
    /// A terminal has no such size.
    #[error("{0}")]
    Size(String),
    /// Sessions don't pass this signal on.
    #[error("{0:?} is not a signal for sessions: HUP, INT, QUIT, TERM, USR1, USR2 or KILL")]
    Signal(String),
}

/// Turns a command of a client into a frame.
fn command(text: &str, sent: Option<u64>) -> Result<ToSession, BadCommand> {
    let command: SessionCommand = serde_json::from_str(text)?;
    match command {
        SessionCommand::EndOfInput => {
            let length = sent.ok_or(BadCommand::NoInput)?;
            Ok(ToSession::EndOfInput { length })
        }
        SessionCommand::Resize { rows, columns } => {
            let size = TerminalSize::parse("resize", rows, columns)
                .map_err(|bad| BadCommand::Size(bad.problem))?;
            Ok(ToSession::Resize(size))
        }
        SessionCommand::Signal { signal } => {
            let known = [
                ("HUP", SessionSignal::Hup),
                ("INT", SessionSignal::Int),
                ("QUIT", SessionSignal::Quit),
                ("TERM", SessionSignal::Term),
                ("USR1", SessionSignal::Usr1),
                ("USR2", SessionSignal::Usr2),
                ("KILL", SessionSignal::Kill),
            ];
            let found = known.into_iter().find(|(name, _)| *name == signal);
            let found = found.ok_or(BadCommand::Signal(signal))?;
            Ok(ToSession::Signal(found.1))
        }
        SessionCommand::Taken { total } => Ok(ToSession::Taken { total }),
    }
}

/// Turns an opening into the request for the node.
fn requested(
    source: &LogSource,
    session: SessionName,
    opening: SessionOpening,
) -> Result<SessionRequest, BadField> {
    let SessionOpening { program, port, terminal, env, offset } = opening;
    let bad = |field, problem: &str, expected: &str| {
        Err(BadField::new(field, problem.to_owned(), expected.to_owned()))
    };
    let has_nul = |text: &String| text.contains('\0');
    if program.iter().any(has_nul) {
        return bad("program", "a word has a NUL byte", "text");
    }
    for (name, value) in &env {
        if name.is_empty() || name.contains('=') || has_nul(name) || has_nul(value) {
            return bad("env", "this is not an environment variable", "names without `=` and NUL");
        }
        // By these a node finds the processes of a job.
        if name.starts_with("TESSERA_") {
            return bad("env", "variables of Tessera belong to the job", "other names");
        }
    }
    let words = program.iter().map(|word| word.len() + 8).sum::<usize>();
    let variables = env.iter().map(|(name, value)| name.len() + value.len() + 16).sum::<usize>();
    if words + variables > SESSION_START_BYTES_MAX {
        return bad("program", "program and environment are too long together", "at most 48 KiB");
    }
    let size = terminal.map(|terminal| terminal.size()).transpose()?;
    let what = match (program.is_empty(), port) {
        (false, None) => Some(SessionProgram::Command(program)),
        (true, Some(0)) => return bad("port", "there is no port 0", "1 to 65535"),
        (true, Some(port)) => Some(SessionProgram::Connect(port)),
        (true, None) => None,
        (false, Some(_)) => {
            return bad(
                "port",
                "it is given together with a \
                                                program",
                "one of both",
            );
        }
    };
    if what.is_some() && session == SessionName::Main {
        return bad("program", "the session `main` is that of the job's own program", "a UUID");
    }
    let is_connection = matches!(what, Some(SessionProgram::Connect(_)));
    let start = what.map(|program| SessionStart {
        program,
        terminal: size.is_some() && !is_connection,
        env: env.into_iter().collect(),
    });
    Ok(SessionRequest { attempt: source.attempt, session, start, offset, size })
}
