//! One session over QUIC: hello, welcome, then records there and the queue's words back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use tessera_wire::kernel::{
    Hello, PROTOCOL_VERSION, PROTOCOL_VERSION_MIN, Record, SERVER_NAME, ToQueue, ToShim, Welcome,
};
use tessera_wire::link::{FrameReader, FrameWriter};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, timeout};

use super::outbox::Outbox;
use super::{Device, Over, pinned};
use crate::settings::Settings;
use crate::{fill, kernels, ring, session, state};

/// How long a try to connect may take: far longer than it takes when somebody is there.
const CONNECT_MAX: Duration = Duration::from_millis(600);

/// How often memory and passed launches are told, if they changed.
const SLOW_EVERY: Duration = Duration::from_millis(100);

/// A holder launches every few microseconds, and waking a thread costs one: while records keep
/// coming they are fetched this often, and only after so many empty looks the thread sleeps.
const PACE: Duration = Duration::from_micros(50);
const PACED_LOOKS: u32 = 20;

/// What is needed to connect.
pub struct Link {
    endpoint: quinn::Endpoint,
    to: SocketAddr,
    hello: Hello,
    bell: AsyncFd<OwnedFd>,
}

impl Link {
    /// Opens a socket.
    pub fn new(settings: &Settings, device: Device, bell: OwnedFd) -> std::io::Result<Self> {
        // The agent is on this machine, and nobody else has anything to say here.
        let own = match settings.endpoint.ip() {
            IpAddr::V4(ip) if ip.is_loopback() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_loopback() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let mut endpoint = quinn::Endpoint::client(SocketAddr::new(own, 0))?;
        let config = pinned::config(settings.certificate).map_err(std::io::Error::other)?;
        endpoint.set_default_client_config(config);
        let hello = Hello {
            protocol: PROTOCOL_VERSION,
            token: settings.token,
            pid: std::process::id(),
            process: chance(),
            device: device.name(),
            driver: device.driver,
        };
        // SAFETY: the descriptor is owned by what is registered, and open as long as that lives.
        let bell = unsafe { AsyncFd::register(bell) }?;
        Ok(Self { endpoint, to: settings.endpoint, hello, bell })
    }

    /// Has one session, from the first packet to its end.
    pub async fn session(&mut self) -> Over {
        let connected = timeout(CONNECT_MAX, self.connect()).await;
        let (connection, mut writer, mut reader, welcome) = match connected {
            Ok(Ok(connected)) => connected,
            Ok(Err(over)) => return over,
            Err(_) => return Over::Broken(format!("nobody answers at {}", self.to)),
        };
        kernels::unlearn();
        let mut outbox = Outbox::begin();
        session::welcome(&welcome);
        let over = tokio::select! {
            over = receive(&mut reader) => over,
            over = send(&mut writer, &mut outbox, &self.bell, &welcome) => over,
        };
        if let Over::Exit = over {
            // Best effort: the process may be gone before the packet leaves.
            let _ = writer.send(&ToQueue::Records(vec![Record::Bye])).await;
            writer.finish();
        }
        session::detach();
        connection.close(0_u32.into(), b"");
        over
    }

    async fn connect(
        &self,
    ) -> Result<(quinn::Connection, FrameWriter, FrameReader, Welcome), Over> {
        let broken = |why: &dyn std::fmt::Display| Over::Broken(why.to_string());
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
                        let why = format!("it speaks version {}", welcome.protocol);
                        return Err(Over::Unwanted(why));
                    }
                    return Ok((connection, writer, reader, welcome));
                }
                Some(ToShim::Bye(farewell)) => {
                    let why = format!("{:?}", farewell.why);
                    let over = if farewell.again { Over::Broken } else { Over::Unwanted };
                    return Err(over(why));
                }
                Some(_) => {}
                None => return Err(Over::Broken("the stream ended".to_owned())),
            }
        }
    }
}

/// Does what the queue says until the session is over.
async fn receive(reader: &mut FrameReader) -> Over {
    loop {
        let frame = match reader.receive_known().await {
            Ok(Some(frame)) => frame,
            Ok(None) => return Over::Broken("the stream ended".to_owned()),
            Err(why) => return Over::Broken(why.to_string()),
        };
        fill::heard();
        match frame {
            ToShim::Welcome(_) | ToShim::Ping => {}
            ToShim::Role(role) => session::set_role(role),
            ToShim::Grant(grant) => fill::receive(grant),
            ToShim::Revoke { grant } => fill::revoke(grant),
            ToShim::Defined { number, kernel, sk, measure } => {
                kernels::learn(number, Some(kernel), sk, measure);
                fill::wake();
            }
            ToShim::Known { kernel, sk, measure } => {
                if let Some(number) = kernels::of_index(kernel) {
                    kernels::learn(number, None, sk, measure);
                }
            }
            ToShim::Refused { launch, .. } => {
                if let Some(launch) = launch {
                    fill::refuse(launch);
                }
            }
            ToShim::Bye(farewell) => {
                let why = format!("{:?}", farewell.why);
                return if farewell.again { Over::Broken(why) } else { Over::Unwanted(why) };
            }
        }
    }
}

/// Sends what happens until the session or the process is over.
async fn send(
    writer: &mut FrameWriter,
    outbox: &mut Outbox,
    bell: &AsyncFd<OwnedFd>,
    welcome: &Welcome,
) -> Over {
    let alive_every = Duration::from_nanos(welcome.silence_max.get() / 4).max(SLOW_EVERY);
    let mut records = Vec::with_capacity(tessera_wire::kernel::RECORDS_MAX);
    let (mut slow_at, mut sent_at) = (Instant::now(), Instant::now());
    let mut idle_looks = 0;
    loop {
        if state::mode() == state::DEAD {
            return Over::Exit;
        }
        let whole = outbox.fill(&mut records);
        if slow_at.elapsed() >= SLOW_EVERY {
            slow_at = Instant::now();
            outbox.fill_slow(&mut records);
        }
        if records.is_empty() && sent_at.elapsed() >= alive_every {
            records.push(Record::Alive);
        }
        if !records.is_empty() {
            let only_alive = matches!(records[..], [Record::Alive]);
            let frame = ToQueue::Records(records);
            if let Err(why) = writer.send(&frame).await {
                return Over::Broken(why.to_string());
            }
            let ToQueue::Records(back) = frame else { return Over::Exit };
            records = back;
            records.clear();
            sent_at = Instant::now();
            if !only_alive {
                idle_looks = 0;
            }
            // Lets the queue's words and QUIC's own work in between.
            tokio::task::yield_now().await;
            if !whole {
                continue;
            }
        }
        if idle_looks < PACED_LOOKS && matches!(session::role(), session::HOLD | session::MEASURE) {
            idle_looks += 1;
            std::thread::sleep(PACE);
            tokio::task::yield_now().await;
            continue;
        }
        rest(bell, SLOW_EVERY).await;
    }
}

/// Sleeps until there is something in the ring, or until it is time for what is told regularly.
async fn rest(bell: &AsyncFd<OwnedFd>, longest: Duration) {
    if ring::may_park()
        && let Ok(Ok(mut ready)) = timeout(longest, bell.readable()).await
    {
        use std::os::fd::AsRawFd as _;
        let mut count = 0_u64;
        // SAFETY: eight bytes of ours; the descriptor does not block.
        unsafe { libc::read(bell.as_raw_fd(), (&raw mut count).cast(), 8) };
        ready.clear_ready();
    }
    ring::unpark();
}

/// Returns a number that no other process draws, nor this one's parent.
fn chance() -> u64 {
    let mut bytes = [0; 8];
    let random = ring_random(&mut bytes);
    if random {
        return u64::from_ne_bytes(bytes);
    }
    // Without randomness TLS will fail, and this number is never sent.
    u64::from(std::process::id())
}

fn ring_random(bytes: &mut [u8]) -> bool {
    use ::ring::rand::{SecureRandom as _, SystemRandom};
    SystemRandom::new().fill(bytes).is_ok()
}
