//! A shepherd's one loop: its agent, its attempt, its lease, its timer.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tessera_agent_core::companion::CompanionMemory;
use tessera_frames::cluster::{AttemptStatus, ExitRecord};
use tessera_launch::client::LauncherProcess;
use tessera_launch::order::{Reply, Request};
use tessera_launch::prepare::{PrepareError, private_tmp};
use tessera_launch::socket::{Received, Socket};
use tessera_model::life::Outcome;
use tessera_model::{AttemptId, BootId, Bytes, Millis};
use uuid::Uuid;

use super::files;
use super::group::{self, Group};
use super::job::{ReportedEnd, RunningAttempt, Surroundings, never_ran};
use super::limits::Controllers;
use super::memory_pipe::SparePipe;
use super::now::{self, NowFile};
use super::protocol::{
    AccountNumbers, FromShepherd, ShepherdHello, SpawnOrder, ToShepherd, VERSION,
};
use super::record::{self, StoredExitRecord};
use super::sessions::{self, MainEffect, SessionGround, Sessions};
use super::socket::{AgentSocket, SocketInput};
use crate::lease_page::LeasePage;
use crate::sys::clock;
use crate::sys::identity::ProcessIdentity;
use tessera_agent_core::shepherd::verdict::Signalled;
use tessera_agent_core::shepherd::{HeldAttempt, KillReason};

/// How often the lease page is read at least. A new generation, and the end of a suspend, are
/// noticed within this time even if no agent sends it.
const PAGE_READ_EVERY: Millis = Millis::from_secs(5);
/// How long the agent may take to journal an end before the shepherd puts it on disk itself. A
/// record that could not be written is tried again as often.
const KEEP_AFTER: Millis = Millis::from_secs(5);
/// Maximum number of ends that a shepherd holds: with one more it takes no attempt until the agent
/// has journalled some, or it has put them on disk.
pub const ENDS_MAX: usize = 64;

/// How often an attempt that should be dead is killed again.
const KILL_RETRY: Millis = Millis::from_secs(1);

/// A shepherd's place on disk.
#[derive(Clone, Debug)]
pub struct ShepherdLocation {
    /// The agent's data folder.
    pub data: PathBuf,
    /// The shepherd's name.
    pub id: Uuid,
    /// The control group to make its own in.
    pub groups: Option<PathBuf>,
    /// The launcher's program.
    pub launch: PathBuf,
}

/// One shepherd.
pub struct Shepherd {
    place: ShepherdLocation,
    boot: BootId,
    process: ProcessIdentity,
    page: LeasePage,
    group: Option<Group>,
    controllers: Controllers,
    name: String,
    /// What starts attempts; `None` after its death, until another is needed.
    launcher: Option<LauncherProcess>,
    listener: UnixListener,
    timer: OwnedFd,
    agent: Option<AgentSocket>,
    script: Option<String>,
    job: Option<RunningAttempt>,
    ends: Vec<UnacknowledgedEnd>,
    now: NowFile,
    /// The last attempt's pipe, with its account.
    spare_pipe: Option<(Option<AccountNumbers>, SparePipe)>,
    /// When an attempt that was killed is killed again.
    killed_again: Millis,
    sessions: Sessions,
}

/// The end of an attempt, until it is recorded elsewhere.
struct UnacknowledgedEnd {
    kept: StoredExitRecord,
    held: HeldAttempt,
    keep_at: Millis,
}

impl Shepherd {
    /// Sets a shepherd up; `agent` is its connection to the agent that started it.
    ///
    /// # Errors
    ///
    /// The data folder can't be used: nothing was started.
    pub fn start(place: ShepherdLocation, agent: UnixStream) -> io::Result<Self> {
        let boot = clock::boot_id()?;
        // First of all: it gets ready while the rest is done.
        let launcher = LauncherProcess::start(&place.launch).ok();
        let process = ProcessIdentity::of(boot, std::process::id())?;
        let identity = serde_json::to_vec(&process).map_err(io::Error::other)?;
        // Relative, so that the path fits into a socket's address however deep the folder is.
        std::env::set_current_dir(&place.data)?;
        let listener = UnixListener::bind(socket_path(Path::new("."), place.id))?;
        listener.set_nonblocking(true)?;
        let sessions = Sessions::open(Path::new("."), place.id)?;
        let now = NowFile::create(&place.data, place.id)?;
        fs::write(identity_path(&place.data, place.id), identity)?;
        let group = place
            .groups
            .as_ref()
            .and_then(|groups| Group::make(groups, &place.id.simple().to_string()).ok());
        let controllers = match &place.groups {
            Some(parent) => Controllers::find(Some(parent)),
            None => Controllers::default(),
        };
        let name = place.id.simple().to_string();
        Ok(Self {
            page: LeasePage::open_reader(&place.data)?,
            timer: timerfd_create(
                TimerfdClockId::Boottime,
                TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
            )?,
            agent: Some(AgentSocket::new(agent)?),
            place,
            boot,
            process,
            group,
            controllers,
            name,
            launcher,
            listener,
            script: None,
            job: None,
            ends: Vec::new(),
            now,
            spare_pipe: None,
            killed_again: Millis::ZERO,
            sessions,
        })
    }

    /// Serves until there is neither an agent nor any work.
    pub fn run(mut self) {
        self.send_hello();
        while self.agent.is_some()
            || self.job.is_some()
            || !self.ends.is_empty()
            || !self.sessions.are_over()
        {
            self.arm();
            if self.wait().is_err() {
                continue;
            }
            self.accept();
            self.listen();
            self.tick();
            self.receive_replies();
            self.serve_sessions();
        }
        self.remove();
    }

    fn wait(&self) -> rustix::io::Result<()> {
        let ready = PollFlags::IN;
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.listener.as_fd(), ready),
            PollFd::from_borrowed_fd(self.timer.as_fd(), ready),
        ];
        fds.extend(self.agent.iter().map(|s| PollFd::from_borrowed_fd(s.descriptor(), ready)));
        let launcher = self.launcher.iter().map(|launcher| launcher.socket.descriptor());
        fds.extend(launcher.map(|socket| PollFd::from_borrowed_fd(socket, ready)));
        let sessions = self.sessions.poll_on();
        fds.extend(sessions.into_iter().map(|(fd, on)| PollFd::from_borrowed_fd(fd, on)));
        poll(&mut fds, None).map(|_| ())
    }

    /// Sets the timer to the next time at which something is due.
    fn arm(&self) {
        let now = clock::boot_now();
        let of_job = self.job.as_ref().map(|job| {
            let lease = self.page.read().map_or(now, |lease| lease.deadline);
            // Killed by now; a program that can't be killed isn't tried more often.
            let lease = if lease <= now { now.plus(KILL_RETRY) } else { lease };
            let own = job.next_deadline().unwrap_or(lease);
            let again = if job.is_killed() { KILL_RETRY } else { PAGE_READ_EVERY };
            lease.min(own).min(now.plus(again))
        });
        let of_ends = self.ends.iter().map(|ended| ended.keep_at).min();
        let of_sessions = self.sessions.next_deadline();
        let next = of_job.into_iter().chain(of_ends).chain(of_sessions).min();
        let at = next.map_or(Millis::ZERO, |next| next.max(now.plus(Millis::new(1)))).get();
        let value = Timespec {
            // A thousandth of a `u64` is below the largest `i64`.
            tv_sec: (at / 1000).cast_signed(),
            tv_nsec: (at % 1000 * 1_000_000).cast_signed(),
        };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // A zero time disarms; an absolute one that has passed fires at once. Setting it also
        // takes back what has fired.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec);
    }

    /// Accepts a new agent. What an old one sent before it died is received first: an order in
    /// flight must not be obeyed after the new agent got a report without it.
    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            let trusted = socket_peercred(&stream)
                .is_ok_and(|peer| peer.uid.is_root() || peer.uid == geteuid());
            if !trusted {
                continue;
            }
            self.listen();
            // What the old one may not have journalled, the new one finds on disk.
            self.part();
            self.agent = AgentSocket::new(stream).ok();
            self.send_hello();
        }
    }

    fn send_hello(&mut self) {
        let ends = self.ends.iter().map(|ended| ended.held.clone());
        let held = self.job.as_ref().map(RunningAttempt::held).into_iter().chain(ends).collect();
        let hello =
            ShepherdHello { version: VERSION, id: self.place.id, process: self.process, held };
        self.send(&FromShepherd::Hello(hello));
    }

    fn send(&mut self, frame: &FromShepherd) {
        if let Some(agent) = &mut self.agent
            && agent.send(frame).is_err()
        {
            self.part();
        }
    }

    /// Continues without the agent: what it may not have journalled is put on disk now.
    fn part(&mut self) {
        self.agent = None;
        self.keep_ends(|_| true);
    }

    fn listen(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        let (frames, gone) = match agent.receive() {
            SocketInput::Frames(frames) => (frames, false),
            SocketInput::Last(frames) => (frames, true),
        };
        for frame in frames {
            self.carry_out(frame);
        }
        if gone {
            self.part();
        }
    }

    fn carry_out(&mut self, frame: ToShepherd) {
        match frame {
            ToShepherd::Script(text) => self.script = Some(text),
            ToShepherd::Spawn(order) => self.spawn(*order),
            ToShepherd::Stop { attempt, cause } => {
                let has_sessions = self.sessions.run_in(attempt);
                if let Some((job, launcher)) = self.running(attempt) {
                    let how = (launcher, has_sessions);
                    job.request_end(clock::boot_now(), Signalled::Stopped(cause), how);
                }
            }
            ToShepherd::Kill { attempt, reason } => {
                let group = self.group.take();
                if let Some((job, launcher)) = self.running(attempt) {
                    job.kill(Signalled::Killed(reason), group.as_ref(), launcher);
                }
                self.group = group;
            }
            ToShepherd::SetTimeLimit { attempt, limit } => {
                if let Some((job, _)) = self.running(attempt) {
                    job.limit(limit);
                }
            }
            ToShepherd::Forget { attempts } => {
                self.ends.retain(|ended| !attempts.contains(&ended.kept.attempt));
            }
        }
    }

    fn spawn(&mut self, order: SpawnOrder) {
        let script = self.script.take();
        if self.job.is_some() || self.ends.len() >= ENDS_MAX {
            // Two attempts never share a shepherd; the agent learns from the next hello.
            return;
        }
        let (attempt, job) = (order.attempt, order.job);
        self.now.write(attempt);
        let (generation, gpu, slot) = (order.generation, order.gpu.clone(), order.slot);
        self.group = self.group.take().and_then(|group| group.unkilled().ok());
        match self.begin(order, script) {
            // Reported once the program runs.
            Ok(mut job) => {
                if let Some((channel, log)) = job.take_interaction() {
                    self.sessions.add_main(attempt, channel, log, clock::boot_now());
                }
                self.job = Some(job);
                self.killed_again = Millis::ZERO;
            }
            Err(record) => {
                let status = AttemptStatus::Ended((*record).clone());
                let held = HeldAttempt { attempt, job, generation, gpu, slot, status };
                self.end(StoredExitRecord { attempt, job, record: *record }, held);
            }
        }
    }

    fn begin(
        &mut self,
        order: SpawnOrder,
        script: Option<String>,
    ) -> Result<RunningAttempt, Box<ExitRecord>> {
        if self.launcher.is_none() {
            let started = LauncherProcess::start(&self.place.launch);
            self.launcher = Some(started.map_err(|error| {
                let detail = format!("the node's launcher can't be started: {error}");
                Box::new(never_ran(Outcome::NotStarted, detail))
            })?);
        }
        let Some(launcher) = &self.launcher else {
            let detail = "the node has no launcher".to_owned();
            return Err(Box::new(never_ran(Outcome::NotStarted, detail)));
        };
        let around = Surroundings {
            data: &self.place.data,
            boot: self.boot,
            page: &self.page,
            group: self.group.as_ref(),
            controllers: &self.controllers,
            name: &self.name,
            launcher: &launcher.socket,
        };
        let spare = self.spare_pipe.take();
        let spare = spare.filter(|(account, _)| *account == order.confinement.account);
        RunningAttempt::start(around, order, script, spare.map(|(_, pipe)| pipe))
    }

    /// Serves the interactive sessions.
    fn serve_sessions(&mut self) {
        let mut parts = None;
        if let Some(job) = &self.job
            && let Some((order, v1_groups)) = job.session_parts()
        {
            let group = self.group.as_ref().map(Group::descriptor);
            let page = self.page.descriptor();
            let descriptors: Vec<_> = [page]
                .into_iter()
                .chain(group.filter(|_| order.has_group))
                .chain(v1_groups)
                .collect();
            parts = Some((job.order().attempt, order, descriptors));
        }
        let ground = parts.as_ref().map(|(attempt, order, descriptors)| SessionGround {
            launch: &self.place.launch,
            attempt: *attempt,
            order,
            descriptors,
        });
        let effects = self.sessions.work(ground, clock::boot_now());
        let (Some(job), Some(launcher)) = (&mut self.job, &self.launcher) else { return };
        job.end_after_sessions(self.sessions.run_in(job.order().attempt), &launcher.socket);
        for effect in effects {
            match effect {
                MainEffect::Signal(number) => job.signal(number, &launcher.socket),
                MainEffect::Kill => drop(launcher.socket.request(&Request::Kill, &[])),
            }
        }
    }

    fn running(&mut self, attempt: AttemptId) -> Option<(&mut RunningAttempt, &Socket)> {
        let job = self.job.as_mut().filter(|job| job.order().attempt == attempt)?;
        Some((job, &self.launcher.as_ref()?.socket))
    }

    /// Ends the attempt if its lease, its time or its grace has passed.
    fn tick(&mut self) {
        let now = clock::boot_now();
        if let (Some(job), Some(launcher)) = (&mut self.job, &self.launcher) {
            let launcher = &launcher.socket;
            job.tick(now, self.group.as_ref(), launcher);
            let generation = job.order().generation;
            let lease = self.page.read();
            if !lease.is_some_and(|lease| lease.allows(generation, self.boot, now)) {
                let reason = match lease {
                    Some(lease) if lease.generation != generation => KillReason::OldGeneration,
                    Some(_) | None => KillReason::LeaseRanOut,
                };
                job.kill(Signalled::Killed(reason), self.group.as_ref(), launcher);
            }
            if job.is_killed() && self.killed_again == Millis::ZERO {
                self.killed_again = now.plus(KILL_RETRY);
            }
            if job.is_killed() && self.killed_again <= now {
                self.killed_again = now.plus(KILL_RETRY);
                job.kill_again(self.group.as_ref(), launcher);
                let attempt = job.order().attempt;
                self.send(&FromShepherd::Ending { attempt });
            }
        }
        self.keep_ends(|ended| ended.keep_at <= now);
        self.report_memory();
    }

    /// Forwards what observers in the attempt's processes reported.
    fn report_memory(&mut self) {
        let now = clock::boot_now();
        let Some(job) = &mut self.job else { return };
        job.read_observers(now);
        let memory = job.new_memory();
        let needs = job.new_needs();
        let (readings, preallocated) = job.take_trail();
        let attempt = job.order().attempt;
        let reserved = memory.map_or(Bytes::ZERO, |memory| memory.reserved);
        if let Some(memory) = memory {
            let CompanionMemory { iteration, allocated, reserved: _, reserved_peak } = memory;
            self.send(&FromShepherd::Memory { attempt, reserved_peak, allocated, iteration });
        }
        if preallocated || !readings.is_empty() {
            self.send(&FromShepherd::Trail { attempt, reserved, preallocated, readings });
        }
        if let Some(needs) = needs {
            self.send(&FromShepherd::Needs { attempt, needs });
        }
    }

    /// Puts ends on disk; those that the disk refuses are kept, and tried again.
    fn keep_ends(&mut self, due: impl Fn(&UnacknowledgedEnd) -> bool) {
        let data = &self.place.data;
        self.ends.retain_mut(|ended| {
            if !due(ended) {
                return true;
            }
            ended.keep_at = clock::boot_now().plus(KEEP_AFTER);
            record::keep(data, &ended.kept).is_err()
        });
    }

    /// Handles the launcher's report.
    fn receive_replies(&mut self) {
        while let Some(launcher) = &self.launcher {
            match launcher.socket.receive_reply() {
                Ok(Received::Message(reply, descriptors)) => self.on_reply(reply, descriptors),
                Ok(Received::Nothing) => return,
                Ok(Received::End) | Err(_) => {
                    // Its program ended with it; another launcher serves the next attempt.
                    self.launcher = None;
                    if let Some(job) = self.job.take() {
                        let record = job.abandoned(self.group.as_ref());
                        self.finish(job, record);
                    }
                }
            }
        }
    }

    fn on_reply(&mut self, reply: Reply, descriptors: Vec<OwnedFd>) {
        match reply {
            Reply::Started { pid, readable } => {
                let Some(job) = &mut self.job else { return };
                let attempt = job.order().attempt;
                let (pid, started_unix) =
                    job.launched(&self.place.data, pid, &readable, descriptors);
                self.send(&FromShepherd::Started { attempt, pid, started_unix });
            }
            Reply::Failed { by_job, lease, detail } => {
                let Some(job) = self.job.take() else { return };
                let record = job.failed(&PrepareError { by_job, lease, detail });
                self.finish(job, record);
            }
            Reply::Ended { status, user_ms, system_ms, max_rss_kib, group_killed, clean } => {
                self.report_memory();
                let Some(mut job) = self.job.take() else { return };
                let end = ReportedEnd {
                    status,
                    user_time: Millis::new(user_ms),
                    system_time: Millis::new(system_ms),
                    max_rss: Bytes::new(max_rss_kib.saturating_mul(1024)),
                    group_killed,
                    clean,
                };
                let record = job.finish(end, self.group.as_ref());
                self.finish(job, record);
            }
            // Only agents read and remove.
            Reply::Opened { .. } | Reply::Removed => {}
        }
    }

    fn finish(&mut self, mut job: RunningAttempt, record: ExitRecord) {
        let (attempt, now) = (job.order().attempt, clock::boot_now());
        // Their processes, and those of a launcher that died, may end later.
        let may_report = self.sessions.run_in(attempt) || self.launcher.is_none();
        // Before its end is reported, after which nothing of it may run.
        self.sessions.main_ended(attempt, record.exit, &record.detail, now);
        self.sessions.end_all(attempt, now);
        if job.has_own_processes() || self.launcher.is_none() {
            group::sweep(self.launcher.as_ref().map(LauncherProcess::pid));
        }
        let held = HeldAttempt { status: AttemptStatus::Ended(record.clone()), ..job.held() };
        self.end(StoredExitRecord { attempt: held.attempt, job: held.job, record }, held);
        // After the report: there may be much of it. What an agent without rights over its account
        // can't remove is removed with the attempt's output.
        let is_foreign = job.order().confinement.account.is_some();
        let work = files::work_folder(&self.place.data, job.order().attempt, is_foreign);
        files::empty_tmp(&private_tmp(&work));
        let account = job.order().confinement.account.clone();
        let pipe = job.take_pipe().filter(|_| !may_report);
        self.spare_pipe = pipe.map(|pipe| (account, pipe));
    }

    /// Reports an end, and holds it until it is on disk (rule F12). A live agent journals the ends
    /// of many attempts with one sync; without one the shepherd writes its own file.
    fn end(&mut self, kept: StoredExitRecord, held: HeldAttempt) {
        let reported = FromShepherd::Ended { attempt: kept.attempt, record: kept.record.clone() };
        let keep_at = clock::boot_now().plus(KEEP_AFTER);
        self.ends.push(UnacknowledgedEnd { kept, held, keep_at });
        match self.agent {
            Some(_) => self.send(&reported),
            None => self.part(),
        }
    }

    fn remove(&self) {
        if let Some(group) = &self.group {
            group.remove();
        }
        // Left-overs are removed by the next agent.
        let _ = fs::remove_file(identity_path(&self.place.data, self.place.id));
        let _ = fs::remove_file(socket_path(&self.place.data, self.place.id));
        let _ = fs::remove_file(sessions::socket_path(&self.place.data, self.place.id));
        let _ = fs::remove_file(now::path(&self.place.data, self.place.id));
    }
}

/// Returns where a shepherd listens.
pub fn socket_path(data: &Path, id: Uuid) -> PathBuf {
    data.join("shepherds").join(format!("{}.sock", id.simple()))
}

/// Returns the path of a shepherd's identity file.
pub fn identity_path(data: &Path, id: Uuid) -> PathBuf {
    data.join("shepherds").join(format!("{}.id", id.simple()))
}
