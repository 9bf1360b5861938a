//! One session: a program's streams, the kept part of them, and the client that has them now.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::event::PollFlags;
use rustix::process::Signal;
use tessera_agent_core::shepherd::verdict::exit_of;
use tessera_frames::cluster::{
    FromSession, SESSION_CHUNK_BYTES_MAX, SessionName, SessionRequest, SessionSignal, ToSession,
};
use tessera_launch::client::LauncherProcess;
use tessera_launch::order::{Reply, Request};
use tessera_launch::socket::Received;
use tessera_model::life::ProgramExit;
use tessera_model::{AttemptId, Millis};

use super::buffers::{InputBuffer, OutputBuffer};
use super::channel::Channel;
use super::client::SessionClient;

/// How long a session waits for its client to come back: longer than an agent or a controller takes to restart.
pub const ALONE_FOR: Millis = Millis::from_secs(60);
/// How long a program may take to end after its client is gone.
const HANG_UP_GRACE: Millis = Millis::from_secs(5);

/// What the owner of the attempt's own program has to do for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MainEffect {
    /// Signal the program and its process group.
    Signal(i32),
    /// Kills the program.
    Kill,
}

/// How a session's program ended.
#[derive(Clone, Debug)]
struct SessionEnd {
    exit: Option<ProgramExit>,
    detail: String,
    /// On the boot clock.
    at: Millis,
}

#[derive(Debug)]
pub struct Session {
    pub attempt: AttemptId,
    /// Which one.
    pub name: SessionName,
    channel: Channel,
    /// Whether it has a terminal, even after that was closed.
    terminal: bool,
    /// What started the program; the attempt's own program has its shepherd's.
    launcher: Option<LauncherProcess>,
    output: OutputBuffer,
    input: InputBuffer,
    /// How much of the input the client knows to be taken.
    confirmed: u64,
    client: Option<JoinedClient>,
    /// Since when it has no client.
    alone_since: Millis,
    /// When it is killed, since its client is gone.
    kill_at: Option<Millis>,
    hung_up: bool,
    end: Option<SessionEnd>,
    /// The attempt's output file, for its own program.
    log: Option<File>,
}

#[derive(Debug)]
struct JoinedClient {
    connection: SessionClient,
    /// The next byte of output that it is sent.
    next: u64,
    is_notified: bool,
}

impl Session {
    /// Makes a session of a program that is being started.
    pub fn new(
        (attempt, name): (AttemptId, SessionName),
        channel: Channel,
        launcher: Option<LauncherProcess>,
        log: Option<File>,
        now: Millis,
    ) -> Self {
        Self {
            attempt,
            name,
            terminal: channel.is_terminal(),
            channel,
            launcher,
            output: OutputBuffer::default(),
            input: InputBuffer::default(),
            confirmed: 0,
            client: None,
            alone_since: now,
            kill_at: None,
            hung_up: false,
            end: None,
            log,
        }
    }

    /// Returns whether its program runs, and is not the attempt's own.
    pub fn is_running_session(&self) -> bool {
        self.end.is_none() && self.name != SessionName::Main
    }

    /// Accepts a client. An earlier one is disconnected: the newest has the terminal.
    pub fn join(&mut self, mut connection: SessionClient, request: &SessionRequest) {
        if let Some(mut before) = self.client.take() {
            before.connection.queue(&FromSession::Replaced);
            before.connection.flush();
        }
        let offset = self.output.join(request.offset);
        self.confirmed = self.input.taken();
        connection.queue(&FromSession::Joined {
            offset,
            input: self.input.received(),
            terminal: self.terminal,
        });
        if let Some(size) = request.size {
            self.channel.resize(size);
        }
        self.client = Some(JoinedClient { connection, next: offset, is_notified: false });
    }

    /// Records how the attempt's own program ended.
    pub fn main_ended(&mut self, exit: Option<ProgramExit>, detail: String, now: Millis) {
        self.end.get_or_insert(SessionEnd { exit, detail, at: now });
    }

    /// Ends a session with its attempt; the launcher takes the program with it.
    pub fn abandon(&mut self, now: Millis) -> Option<LauncherProcess> {
        if self.end.is_none() {
            let detail = "the job has ended".to_owned();
            self.end = Some(SessionEnd { exit: None, detail, at: now });
        }
        self.launcher.take()
    }

    /// Returns what `poll` takes. Outputs are left out while there is no capacity for them, since one whose other end is
    /// closed would wake the shepherd forever.
    pub fn poll_on(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let mut fds: Vec<_> =
            self.client.iter().map(|client| client.connection.poll_on()).collect();
        if self.output.capacity() > 0 {
            let outputs = self.channel.outputs.iter();
            fds.extend(outputs.map(|(_, file)| (file.as_fd(), PollFlags::IN)));
        }
        if let Some(input) = &self.channel.input
            && !self.input.front().is_empty()
        {
            fds.push((input.as_fd(), PollFlags::OUT));
        }
        let launcher = self.launcher.iter().map(|launcher| launcher.socket.descriptor());
        fds.extend(launcher.map(|socket| (socket, PollFlags::IN)));
        fds
    }

    /// Returns when [`Self::work`] has something to do although nothing happened.
    pub fn next_deadline(&self) -> Option<Millis> {
        let alone = match (&self.client, self.hung_up && self.end.is_none()) {
            (Some(_), _) | (None, true) => None,
            (None, false) => {
                let since =
                    self.end.as_ref().map_or(self.alone_since, |end| end.at.max(self.alone_since));
                Some(since.plus(ALONE_FOR))
            }
        };
        [alone, self.kill_at].into_iter().flatten().min()
    }

    /// Returns whether it is no longer needed.
    pub fn is_over(&self, now: Millis) -> bool {
        let Some(end) = &self.end else { return false };
        match &self.client {
            // It closes its side once it has read everything.
            Some(client) => {
                client.is_notified && client.connection.is_flushed() && !client.connection.is_open()
            }
            None => {
                self.hung_up
                    || self.output.is_taken() && end.at < self.alone_since
                    || end.at.max(self.alone_since).plus(ALONE_FOR) <= now
            }
        }
    }

    /// Does everything that is possible without waiting.
    pub fn work(&mut self, now: Millis) -> Vec<MainEffect> {
        let mut effects = Vec::new();
        self.receive_replies(now);
        self.listen(now, &mut effects);
        self.feed();
        // Capacity that one step frees serves the other.
        self.read_outputs();
        self.report();
        self.look_at_clock(now, &mut effects);
        effects
    }

    fn receive_replies(&mut self, now: Millis) {
        while let Some(launcher) = &self.launcher {
            let (exit, detail) = match launcher.socket.receive_reply() {
                Ok(Received::Nothing) => return,
                Ok(Received::Message(Reply::Failed { detail, .. }, _)) => (None, detail),
                Ok(Received::Message(Reply::Ended { status, .. }, _)) => {
                    (Some(exit_of(status)), String::new())
                }
                Ok(Received::Message(_, _)) => continue,
                Ok(Received::End) | Err(_) => (None, "its launcher died".to_owned()),
            };
            self.end.get_or_insert(SessionEnd { exit, detail, at: now });
            if let Some(launcher) = self.launcher.take() {
                // It ends with its connection, and has nothing left to do.
                launcher.dismiss().reap();
            }
        }
    }

    fn listen(&mut self, now: Millis, effects: &mut Vec<MainEffect>) {
        while let Some(client) = &mut self.client {
            let Some(frame) = client.connection.receive() else { break };
            match frame {
                ToSession::Input { offset, bytes } => {
                    if self.input.push(offset, &bytes).is_err() {
                        let reason = "the client breaks the rules of a session".to_owned();
                        client.connection.queue(&FromSession::Refused { reason, retry: false });
                        client.connection.flush();
                        self.leave(now);
                    }
                }
                ToSession::EndOfInput { length } => self.input.end(length),
                ToSession::Resize(size) => self.channel.resize(size),
                ToSession::Signal(signal) => self.signal(number_of(signal), effects),
                ToSession::Taken { total } => self.output.confirm(total),
                ToSession::HangUp => {
                    self.leave(now);
                    self.close_terminal(now, effects);
                }
            }
        }
        if self.client.as_ref().is_some_and(|client| !client.connection.is_open()) {
            self.leave(now);
        }
    }

    fn leave(&mut self, now: Millis) {
        self.client = None;
        self.alone_since = now;
    }

    /// Writes waiting input, as far as the program takes it.
    fn feed(&mut self) {
        while let Some(input) = &mut self.channel.input {
            if self.input.front().is_empty() {
                break;
            }
            match input.write(self.input.front()) {
                Ok(written) if written > 0 => self.input.consume(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The program reads no more.
                Ok(_) | Err(_) => self.channel.input = None,
            }
        }
        if self.input.is_over() {
            self.channel.end_input();
        }
        if self.channel.input.is_none() {
            // So that a client that writes more is not kept waiting.
            self.input.discard();
        }
    }

    fn read_outputs(&mut self) {
        let mut chunk = [0; SESSION_CHUNK_BYTES_MAX];
        let (output, log) = (&mut self.output, &mut self.log);
        self.channel.outputs.retain_mut(|(stream, file)| {
            loop {
                let free = output.capacity().min(chunk.len());
                if free == 0 {
                    return true;
                }
                match file.read(&mut chunk[..free]) {
                    Ok(read) if read > 0 => {
                        output.push(*stream, &chunk[..read]);
                        // A full disk does not stop the session; the log then lacks this output.
                        let _ = log.iter_mut().try_for_each(|log| log.write_all(&chunk[..read]));
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // A terminal whose program is gone gives an error.
                    Ok(_) | Err(_) => return false,
                }
            }
        });
    }

    /// Sends the client what it lacks.
    fn report(&mut self) {
        let taken = self.input.taken();
        let Some(client) = &mut self.client else { return };
        if taken > self.confirmed {
            self.confirmed = taken;
            client.connection.queue(&FromSession::Taken { total: taken });
        }
        while client.connection.has_capacity()
            && let Some((stream, bytes)) = self.output.next(client.next)
        {
            let (offset, bytes) = (client.next, bytes.to_vec());
            client.next += bytes.len() as u64;
            client.connection.queue(&FromSession::Output { stream, offset, bytes });
        }
        // Without capacity for output a program that has ended may have written more.
        let is_drained = client.next == self.output.end() && self.output.capacity() > 0;
        if let Some(end) = self.end.as_ref().filter(|_| is_drained && !client.is_notified) {
            client.is_notified = true;
            let (exit, detail) = (end.exit, end.detail.clone());
            client.connection.queue(&FromSession::Ended { exit, detail });
        }
        client.connection.flush();
    }

    fn look_at_clock(&mut self, now: Millis, effects: &mut Vec<MainEffect>) {
        if self.end.is_some() {
            return;
        }
        if self.client.is_none() && !self.hung_up && self.alone_since.plus(ALONE_FOR) <= now {
            self.close_terminal(now, effects);
        }
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill_at = None;
            match &self.launcher {
                Some(launcher) => drop(launcher.socket.request(&Request::Kill, &[])),
                None => effects.push(MainEffect::Kill),
            }
        }
    }

    /// Ends the program as a closed terminal does: its user is gone.
    fn close_terminal(&mut self, now: Millis, effects: &mut Vec<MainEffect>) {
        if self.hung_up || self.end.is_some() {
            self.hung_up = true;
            return;
        }
        self.hung_up = true;
        self.kill_at = Some(now.plus(HANG_UP_GRACE));
        self.channel.close();
        self.input.discard();
        self.signal(Signal::HUP.as_raw(), effects);
        // A stopped program couldn't handle it.
        self.signal(Signal::CONT.as_raw(), effects);
    }

    fn signal(&self, number: i32, effects: &mut Vec<MainEffect>) {
        if self.end.is_some() {
            return;
        }
        match (&self.launcher, self.name) {
            // If the launcher is gone, so is its program.
            (Some(launcher), _) => drop(launcher.socket.request(&Request::Signal(number), &[])),
            (None, SessionName::Main) => effects.push(MainEffect::Signal(number)),
            (None, SessionName::Other(_)) => {}
        }
    }
}

const fn number_of(signal: SessionSignal) -> i32 {
    match signal {
        SessionSignal::Hup => Signal::HUP,
        SessionSignal::Int => Signal::INT,
        SessionSignal::Quit => Signal::QUIT,
        SessionSignal::Term => Signal::TERM,
        SessionSignal::Usr1 => Signal::USR1,
        SessionSignal::Usr2 => Signal::USR2,
        SessionSignal::Kill => Signal::KILL,
    }
    .as_raw()
}
