//! A process of an attempt that is no program: it copies between a port of its host and its streams.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

/// How long a connection on the same host may take: a server that is busy has a queue for them.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How much is copied at once.
const CHUNK: usize = 16 * 1024;

/// Connects to a port of this host.
///
/// # Errors
///
/// Nothing listens there.
pub fn open(port: u16) -> io::Result<TcpStream> {
    let four = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let six = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&four, CONNECT_WITHIN)
        .or_else(|refused| TcpStream::connect_timeout(&six, CONNECT_WITHIN).map_err(|_| refused))
}

/// Copies between a connection and the standard streams until both directions have ended. Returns the exit code.
pub fn copy(peer: TcpStream) -> i32 {
    // Small writes, of people and of protocols, are sent at once.
    let _ = peer.set_nodelay(true);
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let (mut is_fed, mut is_read) = (true, true);
    let mut buffer = vec![0; CHUNK];
    while is_read {
        let fed = if is_fed { 0 } else { -1 };
        let [from_input, from_peer] = wait_for(fed, peer.as_raw_fd());
        if from_input && !pass(&mut input, &mut &peer, &mut buffer) {
            is_fed = false;
            // The other end may still have an answer.
            let _ = peer.shutdown(Shutdown::Write);
        }
        if from_peer {
            is_read = pass(&mut &peer, &mut output, &mut buffer);
        }
    }
    0
}

/// Copies what is available; returns whether there may be more.
fn pass(from: &mut impl Read, to: &mut impl Write, buffer: &mut [u8]) -> bool {
    match from.read(buffer) {
        Ok(0) | Err(_) => false,
        Ok(read) => to.write_all(&buffer[..read]).and_then(|()| to.flush()).is_ok(),
    }
}

fn wait_for(input: i32, peer: i32) -> [bool; 2] {
    let readable = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polled = [readable(input), readable(peer)];
    // SAFETY: the array outlives the call and has two elements.
    unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
    polled.map(|descriptor| descriptor.revents != 0)
}
