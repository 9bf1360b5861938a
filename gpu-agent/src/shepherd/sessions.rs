//! Interactive sessions of a shepherd's attempt. They live here, since a shepherd outlives agents:
//! a client whose agent restarts continues with the same program.
//!
//! Each session except that of the attempt's own program has its own launcher, which starts the
//! program as the attempt's account, in the attempt's control group and with its folders. Agents
//! reach sessions over a socket next to the shepherd's own, with one connection for each client.

mod buffers;
mod channel;
mod client;
mod session;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::event::PollFlags;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use tessera_frames::cluster::{
    FromSession, SessionName, SessionProgram, SessionRequest, SessionStart,
};
use tessera_launch::client::{EndingLauncher, LauncherProcess};
use tessera_launch::order::{Order, Output, Program, Request};
use tessera_model::batch::TerminalSize;
use tessera_model::life::ProgramExit;
use tessera_model::{AttemptId, Millis};
use uuid::Uuid;

pub use self::channel::{Channel, ProgramEnd};
use self::client::SessionClient;
pub use self::session::MainEffect;
use self::session::Session;

/// Maximum number of sessions of one attempt: people have a few, and a browser that is forwarded
/// opens a dozen connections.
const SESSIONS_MAX: usize = 128;
/// Maximum number of clients that have not named a session.
const GREETINGS_MAX: usize = 16;
/// How long such a client may take.
const GREETING_WITHIN: Millis = Millis::from_secs(5);
/// The size of a terminal if its client states none.
const USUAL_SIZE: TerminalSize = TerminalSize { rows: 24, columns: 80 };

/// What sessions of a running attempt are started from.
#[derive(Clone, Copy)]
pub struct SessionGround<'a> {
    /// The launcher's program.
    pub launch: &'a Path,
    /// The attempt that the sessions belong to.
    pub attempt: AttemptId,
    /// What its own program was started from.
    pub order: &'a Order,
    /// The lease page, the control group if there is one, and groups of version 1.
    pub descriptors: &'a [BorrowedFd<'a>],
}

/// All sessions of a shepherd.
#[derive(Debug)]
pub struct Sessions {
    listener: UnixListener,
    greetings: Vec<(SessionClient, Millis)>,
    sessions: Vec<Session>,
}

impl Sessions {
    /// Listens in `folder`, the data folder.
    ///
    /// # Errors
    ///
    /// The socket can't be made.
    pub fn open(folder: &Path, id: Uuid) -> io::Result<Self> {
        let listener = UnixListener::bind(socket_path(folder, id))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, greetings: Vec::new(), sessions: Vec::new() })
    }

    /// Returns whether there are none, including none whose end a client may still request.
    pub fn are_over(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Returns whether programs of sessions run in an attempt, in addition to its own.
    pub fn run_in(&self, attempt: AttemptId) -> bool {
        self.sessions
            .iter()
            .any(|session| session.attempt == attempt && session.is_running_session())
    }

    /// Adds the session of an attempt's own program.
    pub fn add_main(
        &mut self,
        attempt: AttemptId,
        channel: Channel,
        log: Option<File>,
        now: Millis,
    ) {
        self.sessions.push(Session::new((attempt, SessionName::Main), channel, None, log, now));
    }

    /// Records how an attempt's own program ended.
    pub fn main_ended(
        &mut self,
        attempt: AttemptId,
        exit: Option<ProgramExit>,
        detail: &str,
        now: Millis,
    ) {
        let main = |session: &&mut Session| {
            session.attempt == attempt && session.name == SessionName::Main
        };
        if let Some(session) = self.sessions.iter_mut().find(main) {
            session.main_ended(exit, detail.to_owned(), now);
        }
    }

    /// Ends all other sessions of an attempt with it. Nothing of them runs any more when this returns.
    pub fn end_all(&mut self, attempt: AttemptId, now: Millis) {
        let of_attempt = self.sessions.iter_mut().filter(|session| session.attempt == attempt);
        let launchers: Vec<_> = of_attempt.filter_map(|session| session.abandon(now)).collect();
        // All connections first, so that they end at the same time.
        let ended: Vec<_> = launchers.into_iter().map(LauncherProcess::dismiss).collect();
        ended.into_iter().for_each(EndingLauncher::reap);
    }

    /// Returns what `poll` takes.
    pub fn poll_on(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let mut fds = vec![(self.listener.as_fd(), PollFlags::IN)];
        fds.extend(self.greetings.iter().map(|(client, _)| client.poll_on()));
        fds.extend(self.sessions.iter().flat_map(Session::poll_on));
        fds
    }

    /// Returns when [`Self::work`] has something to do although nothing happened.
    pub fn next_deadline(&self) -> Option<Millis> {
        let greetings = self.greetings.iter().map(|(_, until)| *until);
        greetings.chain(self.sessions.iter().filter_map(Session::next_deadline)).min()
    }

    /// Does everything that is possible without waiting; returns what is to be done with the
    /// attempt's own program.
    pub fn work(&mut self, ground: Option<SessionGround<'_>>, now: Millis) -> Vec<MainEffect> {
        self.accept(now);
        for (mut client, until) in std::mem::take(&mut self.greetings) {
            match client.receive::<SessionRequest>() {
                Some(request) => self.accept_client(client, &request, ground, now),
                None if client.is_open() && now < until => self.greetings.push((client, until)),
                None => {}
            }
        }
        let effects = self.sessions.iter_mut().flat_map(|session| session.work(now)).collect();
        self.sessions.retain(|session| !session.is_over(now));
        effects
    }

    fn accept(&mut self, now: Millis) {
        while let Ok((stream, _)) = self.listener.accept() {
            let trusted = socket_peercred(&stream)
                .is_ok_and(|peer| peer.uid.is_root() || peer.uid == geteuid());
            if trusted
                && self.greetings.len() < GREETINGS_MAX
                && let Ok(client) = SessionClient::new(stream)
            {
                self.greetings.push((client, now.plus(GREETING_WITHIN)));
            }
        }
    }

    fn accept_client(
        &mut self,
        mut client: SessionClient,
        request: &SessionRequest,
        ground: Option<SessionGround<'_>>,
        now: Millis,
    ) {
        let is_it = |session: &&mut Session| {
            (session.attempt, session.name) == (request.attempt, request.session)
        };
        if let Some(session) = self.sessions.iter_mut().find(is_it) {
            session.join(client, request);
            return;
        }
        match self.start(request, ground, now) {
            Ok(mut session) => {
                session.join(client, request);
                self.sessions.push(session);
            }
            Err(Refusal { reason, retry }) => {
                client.queue(&FromSession::Refused { reason, retry });
                client.flush();
            }
        }
    }

    fn start(
        &self,
        request: &SessionRequest,
        ground: Option<SessionGround<'_>>,
        now: Millis,
    ) -> Result<Session, Refusal> {
        let final_ = |reason: &str| Refusal { reason: reason.to_owned(), retry: false };
        let Some(start) = &request.start else {
            return Err(final_(match request.session {
                SessionName::Main => {
                    "its program has neither a terminal nor an open input: it was not started \
                                      with `tessera run`"
                }
                SessionName::Other(_) => "the session has ended",
            }));
        };
        let ground = ground.filter(|ground| ground.attempt == request.attempt);
        let ground = ground.ok_or_else(|| Refusal {
            reason: "the job's program does not run now".to_owned(),
            retry: true,
        })?;
        if self.sessions.len() >= SESSIONS_MAX {
            return Err(final_("the job has the maximum number of sessions: close some"));
        }
        let by_node = |error: io::Error| Refusal {
            reason: format!("the node could not start the session: {error}"),
            retry: false,
        };
        let size = start.terminal.then(|| request.size.unwrap_or(USUAL_SIZE));
        let (channel, end) = Channel::open(size).map_err(by_node)?;
        let order = order(ground.order, start, &end);
        let launcher = LauncherProcess::start(ground.launch).map_err(by_node)?;
        let mut descriptors = ground.descriptors.to_vec();
        descriptors.extend([end.input.as_fd(), end.stdout.as_fd()]);
        descriptors.extend(end.stderr.as_ref().map(|stderr| stderr.as_fd()));
        let request_ = Request::Start(Box::new(order));
        launcher.socket.request(&request_, &descriptors).map_err(by_node)?;
        let whose = (request.attempt, request.session);
        Ok(Session::new(whose, channel, Some(launcher), None, now))
    }
}

/// Why a session is not started.
struct Refusal {
    reason: String,
    retry: bool,
}

/// Makes the order for a session from that of its attempt's own program.
fn order(of_attempt: &Order, start: &SessionStart, end: &ProgramEnd) -> Order {
    let is_set = |variable: &&String| {
        !start.env.iter().any(|(name, _)| {
            variable.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('='))
        })
    };
    let environment = of_attempt.environment.iter().filter(is_set).cloned();
    let own = start.env.iter().map(|(name, value)| format!("{name}={value}"));
    Order {
        program: match &start.program {
            SessionProgram::Command(words) => Program::Command(words.clone()),
            SessionProgram::Connect(port) => Program::Connect(*port),
        },
        environment: environment.chain(own).collect(),
        stdin: end.kind,
        input: None,
        stdout: Output::Given,
        stderr: end.stderr_output(),
        joins: true,
        append: false,
        headline: None,
        ..of_attempt.clone()
    }
}

/// Returns where agents reach the sessions of a shepherd.
pub fn socket_path(data: &Path, id: Uuid) -> PathBuf {
    data.join("shepherds").join(format!("{}.tty", id.simple()))
}
