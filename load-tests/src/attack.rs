//! What attackers of a controller's listeners do: slow connections that never finish a request, and QUIC
//! handshakes that never finish either.
//!
//! Each attacker has its own loopback address, as each machine of a network has one.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig,
};
use tessera_wire::tls::{CONTROLLER_NAME, JOIN_ALPN};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Size of the largest QUIC datagram that is read here.
const DATAGRAM_MAX: usize = 2_048;
/// Timeout for the answer to a first packet.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// Slow connections that are opened at once.
const OPENED_AT_ONCE: usize = 256;

/// Returns the address of an attacker.
fn address_of(attacker: usize) -> IpAddr {
    let low = u8::try_from(attacker % 250).unwrap_or(0);
    IpAddr::V4(Ipv4Addr::new(127, 0, 1, low.saturating_add(1)))
}

/// How a slow client wastes its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slowness {
    /// It sends the head of a request byte by byte, and never ends it.
    Head,
    /// It sends a head that promises a body, and the body byte by byte.
    Body,
    /// It sends nothing.
    Silent,
}

/// Results of the slow connections.
#[derive(Debug, Default)]
pub struct SlowCounts {
    /// Those that were opened.
    pub opened: AtomicUsize,
    /// Those that the system refused.
    pub failed: AtomicUsize,
    /// Those that the server ended, sooner or later.
    pub ended: AtomicUsize,
}

/// Slow connections, until they are dropped.
#[derive(Debug)]
pub struct SlowClients {
    /// Their results.
    pub counts: Arc<SlowCounts>,
    stop: Arc<AtomicBool>,
    _tasks: JoinSet<()>,
}

impl SlowClients {
    /// Opens the given number of slow connections from the given number of addresses. A connection
    /// that the server ends is opened again, for as long as this lives. Returns once each was
    /// tried.
    pub async fn open(server: SocketAddr, connections: usize, attackers: usize) -> Self {
        let (counts, stop) = (Arc::new(SlowCounts::default()), Arc::new(AtomicBool::new(false)));
        let tried = Arc::new(Semaphore::new(0));
        let opening = Arc::new(Semaphore::new(OPENED_AT_ONCE));
        let mut tasks = JoinSet::new();
        for index in 0..connections {
            let (counts, stop) = (Arc::clone(&counts), Arc::clone(&stop));
            let (tried, opening) = (Arc::clone(&tried), Arc::clone(&opening));
            let from = address_of(index % attackers);
            let slowness = [Slowness::Head, Slowness::Body, Slowness::Silent][index % 3];
            tasks.spawn(async move {
                let mut is_first = true;
                while !stop.load(Ordering::Relaxed) {
                    let permit = opening.acquire().await;
                    let opened = connect_from(from, server).await;
                    drop(permit);
                    if std::mem::take(&mut is_first) {
                        tried.add_permits(1);
                    }
                    match opened {
                        Ok(stream) => {
                            counts.opened.fetch_add(1, Ordering::Relaxed);
                            waste(stream, slowness).await;
                            counts.ended.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => {
                            counts.failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    // An attacker that is turned away comes back.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            });
        }
        let all = u32::try_from(connections).unwrap_or(u32::MAX);
        let _ = tried.acquire_many(all).await;
        Self { counts, stop, _tasks: tasks }
    }
}

impl Drop for SlowClients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

async fn connect_from(from: IpAddr, server: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from, 0))?;
    socket.connect(server).await
}

/// Keeps a connection busy until the server ends it.
async fn waste(mut stream: TcpStream, slowness: Slowness) {
    let head = match slowness {
        Slowness::Head => "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        Slowness::Body => {
            "POST /v1/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: 100000\r\n\r\n"
        }
        Slowness::Silent => "",
    };
    if stream.write_all(head.as_bytes()).await.is_err() {
        return;
    }
    let mut answer = [0; 1_024];
    loop {
        match tokio::time::timeout(Duration::from_secs(1), stream.read(&mut answer)).await {
            Ok(Ok(0) | Err(_)) => return,
            Ok(Ok(_)) => {}
            Err(_) => {
                if slowness != Slowness::Silent && stream.write_all(b"a").await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Results of the unfinished handshakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandshakeCounts {
    /// First packets that were sent.
    pub begun: usize,
    /// Those that were answered by a request to prove the address.
    pub retried: usize,
    /// Those that proved it, and then fell silent.
    pub abandoned: usize,
}

/// Begins the given number of handshakes from the given number of addresses and finishes none.
/// Every second one proves its address before it falls silent. Those that the controller keeps cost
/// it memory until it gives them up.
///
/// # Errors
///
/// If the system gives no sockets.
pub async fn abandon_handshakes(
    server: SocketAddr,
    handshakes: usize,
    attackers: usize,
) -> io::Result<HandshakeCounts> {
    let config = client_config()?;
    let mut tasks = JoinSet::new();
    for attacker in 0..attackers {
        let share = handshakes / attackers + usize::from(attacker < handshakes % attackers);
        let config = config.clone();
        tasks.spawn(async move {
            let socket = UdpSocket::bind(SocketAddr::new(address_of(attacker), 0)).await?;
            socket.connect(server).await?;
            let mut attack = HandshakeAttack::new(socket, server, config);
            for index in 0..share {
                attack.begin(index % 2 == 0).await?;
            }
            Ok::<_, io::Error>(attack.counts)
        });
    }
    let mut sum = HandshakeCounts::default();
    while let Some(done) = tasks.join_next().await {
        let counts = done.map_err(io::Error::other)??;
        sum.begun += counts.begun;
        sum.retried += counts.retried;
        sum.abandoned += counts.abandoned;
    }
    Ok(sum)
}

/// A client that trusts no certificate: its handshake never gets that far.
fn client_config() -> io::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    tls.alpn_protocols = vec![JOIN_ALPN.to_vec()];
    let crypto = QuicClientConfig::try_from(tls).map_err(io::Error::other)?;
    Ok(ClientConfig::new(Arc::new(crypto)))
}

/// The handshakes of one attacker, packet by packet.
struct HandshakeAttack {
    socket: UdpSocket,
    server: SocketAddr,
    endpoint: Endpoint,
    config: ClientConfig,
    counts: HandshakeCounts,
}

impl HandshakeAttack {
    fn new(socket: UdpSocket, server: SocketAddr, config: ClientConfig) -> Self {
        let endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, false, None);
        Self { socket, server, endpoint, config, counts: HandshakeCounts::default() }
    }

    /// Begins a handshake and leaves it unfinished, with its address proved or not.
    async fn begin(&mut self, proves_address: bool) -> io::Result<()> {
        let now = Instant::now();
        let connecting =
            self.endpoint.connect(now, self.config.clone(), self.server, CONTROLLER_NAME);
        let (handle, mut connection) = connecting.map_err(io::Error::other)?;
        self.send(&mut connection).await?;
        self.counts.begun += 1;
        if !self.is_retried(handle, &mut connection).await? {
            return Ok(());
        }
        self.counts.retried += 1;
        if proves_address {
            self.send(&mut connection).await?;
            self.counts.abandoned += 1;
        }
        Ok(())
    }

    async fn send(&self, connection: &mut Connection) -> io::Result<()> {
        let mut packet = Vec::with_capacity(DATAGRAM_MAX);
        while connection.poll_transmit(Instant::now(), 1, &mut packet).is_some() {
            // If no one listens there, the next call returns an error, which is no reason to stop.
            let _ = self.socket.send(&packet).await;
            packet.clear();
        }
        Ok(())
    }

    /// Waits for the request to prove the address.
    async fn is_retried(
        &mut self,
        own: ConnectionHandle,
        connection: &mut Connection,
    ) -> io::Result<bool> {
        let mut datagram = vec![0; DATAGRAM_MAX];
        let deadline = tokio::time::Instant::now() + ANSWER_WITHIN;
        loop {
            let received = self.socket.recv(&mut datagram);
            let Ok(received) = tokio::time::timeout_at(deadline, received).await else {
                return Ok(false);
            };
            let Ok(length) = received else { continue };
            let data = datagram[..length].into();
            let mut response = Vec::new();
            let event =
                self.endpoint.handle(Instant::now(), self.server, None, None, data, &mut response);
            // Packets of abandoned handshakes belong to no handshake.
            if let Some(DatagramEvent::ConnectionEvent(handle, event)) = event
                && handle == own
            {
                connection.handle_event(event);
                return Ok(!connection.is_closed());
            }
        }
    }
}
