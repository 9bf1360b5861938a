//! Ports for daemons that must come back on the same address.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range from which the kernel takes ports for outgoing connections: those could
/// otherwise take a daemon's port while it is down.
const FIRST: u16 = 12_000;
const COUNT: u16 = 16_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// Finds an address on the loopback interface that is free for TCP and UDP.
///
/// # Panics
///
/// If every port is taken.
#[expect(clippy::cast_possible_truncation, reason = "the value is far below 2^32")]
pub fn free() -> SocketAddr {
    // Test programs that run at the same time begin at different ports.
    let start = (std::process::id() as u16).wrapping_mul(97) % COUNT;
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + (start.wrapping_add(step)) % COUNT;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port from {FIRST} to {}", FIRST + COUNT);
}
