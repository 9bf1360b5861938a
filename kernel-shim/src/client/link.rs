//! One session over QUIC: hello, welcome, then records to the queue and its frames back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use tessera_frames::gate::ReportPace;
use tessera_frames::kernel::{
    PROTOCOL_VERSION, PROTOCOL_VERSION_MIN, PROTOCOL_WITH_SESSION_THREAD, ShimHello, ShimRecord,
    ShimWelcome, ToQueue, ToShim,
};
use tessera_model::number::clamped;
use tessera_wire::kernel_identity::SERVER_NAME;
use tessera_wire::link::{FrameReader, FrameWriter};
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::time::{Instant, timeout};

use super::outbox::RecordOutbox;
use super::{CudaDevice, SessionOver, pinned};
use crate::pause::PauseTimer;
use crate::settings::ShimSettings;
use crate::{filler, gate, kernel_catalog, recall, ring, session, state, terms};

/// Limit for connecting: far longer than it takes if the queue is alive.
const CONNECT_MAX: Duration = Duration::from_millis(600);

/// Interval between reports of memory and passed launches, if they changed.
const SLOW_EVERY: Duration = Duration::from_millis(100);

/// A holder launches every few microseconds, and waking a thread costs as much. While records arrive
/// they are fetched at this interval, or when the holder's work ends. After so many empty looks the thread sleeps.
const PACE: Duration = Duration::from_micros(300);
const PACED_LOOKS: u32 = 20;

/// The same interval while the queue names the launches whose reports it needs ([`ReportPace::Named`]).
const NAMED_PACE: Duration = Duration::from_millis(4);

/// Everything that is needed to connect.
pub struct QueueLink {
    endpoint: quinn::Endpoint,
    to: SocketAddr,
    hello: ShimHello,
    bell: AsyncFd<OwnedFd>,
    timer: PauseTimer,
}

impl QueueLink {
    /// Opens a socket.
    pub fn new(
        settings: &ShimSettings,
        device: CudaDevice,
        bell: OwnedFd,
    ) -> std::io::Result<Self> {
        // The agent is on this machine, so only local packets are accepted.
        let own = match settings.endpoint.ip() {
            IpAddr::V4(ip) if ip.is_loopback() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_loopback() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let mut endpoint = quinn::Endpoint::client(SocketAddr::new(own, 0))?;
        let config = pinned::config(settings.certificate).map_err(std::io::Error::other)?;
        endpoint.set_default_client_config(config);
        let hello = ShimHello {
            protocol: PROTOCOL_VERSION,
            token: settings.token,
            pid: std::process::id(),
            process: random_number(),
            device: device.name(),
            driver: device.driver,
        };
        // SAFETY: the descriptor is owned by what is registered, and open as long as that lives.
        let bell = unsafe { AsyncFd::register(bell) }?;
        Ok(Self { endpoint, to: settings.endpoint, hello, bell, timer: PauseTimer::new()? })
    }

    /// Runs one session, from the first packet to its end.
    pub async fn session(&mut self) -> SessionOver {
        let connected = timeout(CONNECT_MAX, self.connect()).await;
        let (connection, mut writer, mut reader, welcome) = match connected {
            Ok(Ok(connected)) => connected,
            Ok(Err(over)) => return over,
            Err(_) => return SessionOver::Broken(format!("no answer from {}", self.to)),
        };
        kernel_catalog::clear_facts();
        let mut outbox = RecordOutbox::begin(welcome.protocol);
        session::welcome(&welcome);
        if welcome.protocol >= PROTOCOL_WITH_SESSION_THREAD {
            // If this fails, so does the next frame.
            let _ = writer.send(&ToQueue::SessionThread { thread: own_number() }).await;
        }
        let over = tokio::select! {
            over = receive(&mut reader) => over,
            over = send(&mut writer, &mut outbox, (&self.bell, &self.timer), &welcome) => over,
        };
        if let SessionOver::Exit = over {
            // Best effort: the process may be gone before the packet leaves.
            let _ = writer.send(&ToQueue::Records(vec![ShimRecord::Bye])).await;
            writer.finish();
        }
        session::detach();
        connection.close(0_u32.into(), b"");
        over
    }

    async fn connect(
        &self,
    ) -> Result<(quinn::Connection, FrameWriter, FrameReader, ShimWelcome), SessionOver> {
        let broken = |why: &dyn std::fmt::Display| SessionOver::Broken(why.to_string());
        let connecting = self.endpoint.connect(self.to, SERVER_NAME).map_err(|why| broken(&why))?;
        let connection = connecting.await.map_err(|why| broken(&why))?;
        let (send, receive) = connection.open_bi().await.map_err(|why| broken(&why))?;
        let (mut writer, mut reader) = (FrameWriter::new(send), FrameReader::new(receive));
        writer.send(&ToQueue::Hello(self.hello.clone())).await.map_err(|why| broken(&why))?;
        loop {
            match reader.receive_known().await.map_err(|why| broken(&why))? {
                Some(ToShim::Welcome(welcome)) => {
                    let known = PROTOCOL_VERSION_MIN..=PROTOCOL_VERSION;
                    if !known.contains(&welcome.protocol) {
                        let why = format!("unsupported protocol version {}", welcome.protocol);
                        return Err(SessionOver::Unwanted(why));
                    }
                    return Ok((connection, writer, reader, welcome));
                }
                Some(ToShim::Bye(farewell)) => {
                    let why = format!("{:?}", farewell.why);
                    let over =
                        if farewell.again { SessionOver::Broken } else { SessionOver::Unwanted };
                    return Err(over(why));
                }
                Some(_) => {}
                None => return Err(SessionOver::Broken("the stream ended".to_owned())),
            }
        }
    }
}

/// Handles the frames of the queue until the session is over.
async fn receive(reader: &mut FrameReader) -> SessionOver {
    loop {
        let frame = match reader.receive_known().await {
            Ok(Some(frame)) => frame,
            Ok(None) => return SessionOver::Broken("the stream ended".to_owned()),
            Err(why) => return SessionOver::Broken(why.to_string()),
        };
        filler::note_frame();
        match frame {
            ToShim::Welcome(_) => {}
            // The queue sends one to a holder whose report it needs now.
            ToShim::Ping => ring::end_pause_early(),
            ToShim::Role(role) => {
                session::set_role(role);
                ring::end_pause_early();
            }
            ToShim::Grant(grant) => filler::receive(grant),
            ToShim::GrantAhead { grant, opening } => filler::receive_ahead(grant, opening),
            ToShim::Revoke { grant } => filler::revoke(grant),
            ToShim::Recall { at, launches } => recall::accept(at, launches),
            ToShim::Defined { number, kernel, sk, measure } => {
                kernel_catalog::set_facts(number, Some(kernel), sk, measure);
                filler::wake();
            }
            ToShim::Known { kernel, sk, measure } => {
                for number in kernel_catalog::numbers_of(kernel) {
                    kernel_catalog::set_facts(number, None, sk, measure);
                }
            }
            ToShim::Refused { launch, .. } => {
                if let Some(launch) = launch {
                    filler::refuse(launch);
                }
            }
            ToShim::Bye(farewell) => {
                let why = format!("{:?}", farewell.why);
                return if farewell.again {
                    SessionOver::Broken(why)
                } else {
                    SessionOver::Unwanted(why)
                };
            }
        }
    }
}

/// Sends records until the session or the process is over.
async fn send(
    writer: &mut FrameWriter,
    outbox: &mut RecordOutbox,
    (bell, timer): (&AsyncFd<OwnedFd>, &PauseTimer),
    welcome: &ShimWelcome,
) -> SessionOver {
    let alive_every = Duration::from_nanos(welcome.silence_max.get() / 4).max(SLOW_EVERY);
    let mut records = Vec::with_capacity(tessera_frames::kernel::RECORDS_MAX);
    let (mut slow_at, mut sent_at) = (Instant::now(), Instant::now());
    let mut idle_looks = 0;
    loop {
        if state::mode() == state::DEAD {
            return SessionOver::Exit;
        }
        let whole = outbox.fill(&mut records);
        if slow_at.elapsed() >= SLOW_EVERY {
            slow_at = Instant::now();
            outbox.fill_slow(&mut records);
        }
        if records.is_empty() && sent_at.elapsed() >= alive_every {
            records.push(ShimRecord::Alive);
        }
        if !records.is_empty() {
            let only_alive = matches!(records[..], [ShimRecord::Alive]);
            let frame = ToQueue::Records(records);
            if let Err(why) = writer.send(&frame).await {
                return SessionOver::Broken(why.to_string());
            }
            let ToQueue::Records(back) = frame else { return SessionOver::Exit };
            records = back;
            records.clear();
            sent_at = Instant::now();
            if !only_alive {
                idle_looks = 0;
            }
            // Lets received frames and QUIC's own work run in between.
            tokio::task::yield_now().await;
            if !whole {
                continue;
            }
        }
        if idle_looks < PACED_LOOKS && matches!(terms::role(), terms::HOLD | terms::MEASURE) {
            idle_looks += 1;
            pause(bell, timer).await;
            continue;
        }
        rest(bell, SLOW_EVERY).await;
    }
}

/// Pauses until it is time for the next look at the ring, or a record must not wait. The queue's frames are handled
/// meanwhile.
async fn pause(bell: &AsyncFd<OwnedFd>, timer: &PauseTimer) {
    let is_named = terms::role() == terms::HOLD && gate::report_pace() == ReportPace::Named;
    let pace = if is_named { NAMED_PACE } else { PACE };
    if ring::may_pause(is_named) {
        let elapsed = async {
            if timer.wait(pace).await.is_err() {
                // The program possibly closed the descriptor. The runtime's timer is coarser.
                tokio::time::sleep(pace).await;
            }
        };
        tokio::select! {
            rang = bell.readable() => clear(rang),
            () = elapsed => {}
        }
    }
    ring::end_pause();
}

/// Sleeps until the ring has a record or the next regular report is due.
async fn rest(bell: &AsyncFd<OwnedFd>, longest: Duration) {
    if ring::may_park()
        && let Ok(rang) = timeout(longest, bell.readable()).await
    {
        clear(rang);
    }
    ring::unpark();
}

/// Clears the bell after it rang.
fn clear(rang: std::io::Result<AsyncFdReadyGuard<'_, OwnedFd>>) {
    use std::os::fd::AsRawFd as _;
    let Ok(mut ready) = rang else { return };
    let mut count = 0_u64;
    // SAFETY: eight bytes of ours; the descriptor does not block.
    unsafe { libc::read(ready.get_inner().as_raw_fd(), (&raw mut count).cast(), 8) };
    ready.clear_ready();
}

/// Returns the number of this thread.
fn own_number() -> u32 {
    // SAFETY: takes nothing, and never fails. The C library has a function for it only since glibc 2.30.
    let number = unsafe { libc::syscall(libc::SYS_gettid) };
    clamped(number)
}

/// Returns a random number that identifies this process.
fn random_number() -> u64 {
    let mut bytes = [0; 8];
    let random = fill_random(&mut bytes);
    if random {
        return u64::from_ne_bytes(bytes);
    }
    // Without randomness TLS will fail, and this number is never sent.
    u64::from(std::process::id())
}

fn fill_random(bytes: &mut [u8]) -> bool {
    use ::ring::rand::{SecureRandom as _, SystemRandom};
    SystemRandom::new().fill(bytes).is_ok()
}
