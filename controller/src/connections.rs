//! How many connections may be open at once, in total and from one source.
//!
//! A connection costs a descriptor and memory before its user is known. So one source gets a bounded part, and
//! the rest is free for the others.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use crate::principal::Source;

/// A source that is limited as one: a whole network of IPv6, of which one machine may have all addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SourceKey {
    /// An account of this machine.
    Account(u32),
    /// A network of IPv6 (/64).
    Network([u8; 8]),
    /// An address of IPv4.
    Machine([u8; 4]),
}

impl From<SocketAddr> for SourceKey {
    fn from(address: SocketAddr) -> Self {
        match address.ip().to_canonical() {
            IpAddr::V4(four) => Self::Machine(four.octets()),
            IpAddr::V6(six) => {
                let [a, b, c, d, e, f, g, h, ..] = six.octets();
                Self::Network([a, b, c, d, e, f, g, h])
            }
        }
    }
}

impl From<Source> for SourceKey {
    fn from(source: Source) -> Self {
        match source {
            Source::Process { uid, .. } => Self::Account(uid),
            Source::Address(address) => address.into(),
        }
    }
}

/// Limits on connections, in total and for each source. Cheap to clone.
#[derive(Debug)]
pub struct ConnectionCaps<K: Eq + Hash>(Arc<Caps<K>>);

#[derive(Debug)]
struct Caps<K: Eq + Hash> {
    all: usize,
    each: usize,
    open: Mutex<Open<K>>,
}

#[derive(Debug)]
struct Open<K> {
    all: usize,
    of: HashMap<K, usize>,
}

/// One connection, until it is dropped.
#[derive(Debug)]
pub struct CountedConnection<K: Eq + Hash> {
    caps: Arc<Caps<K>>,
    key: K,
}

impl<K: Eq + Hash> Clone for ConnectionCaps<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Eq + Hash + Clone> ConnectionCaps<K> {
    /// Allows this many connections in total, and this many from each source.
    pub fn new(all: usize, each: usize) -> Self {
        let open = Mutex::new(Open { all: 0, of: HashMap::new() });
        Self(Arc::new(Caps { all, each, open }))
    }

    /// Counts a connection; `None` if there are too many.
    pub fn admit(&self, key: K) -> Option<CountedConnection<K>> {
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.all >= self.0.all || open.of.get(&key).is_some_and(|own| *own >= self.0.each) {
            return None;
        }
        open.all += 1;
        *open.of.entry(key.clone()).or_default() += 1;
        Some(CountedConnection { caps: Arc::clone(&self.0), key })
    }
}

impl<K: Eq + Hash> Drop for CountedConnection<K> {
    fn drop(&mut self) {
        let mut open = self.caps.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.all = open.all.saturating_sub(1);
        // Sources that are gone must not fill the memory.
        let key = &self.key;
        let left = open.of.get_mut(key).map(|own| {
            *own = own.saturating_sub(1);
            *own
        });
        if left == Some(0) {
            open.of.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_cannot_take_the_connections_of_all() {
        let caps = ConnectionCaps::new(3, 2);
        let first = caps.admit("a").unwrap();
        let _second = caps.admit("a").unwrap();

        assert!(caps.admit("a").is_none(), "its part is taken");
        let _other = caps.admit("b").unwrap();
        assert!(caps.admit("c").is_none(), "all are taken");
        drop(first);
        assert!(caps.admit("a").is_some());
    }

    #[test]
    fn nothing_is_kept_of_a_source_that_is_gone() {
        let caps = ConnectionCaps::new(10_000, 1);
        for source in 0..1_000 {
            drop(caps.admit(source).unwrap());
        }

        let open = caps.0.open.lock().unwrap();
        assert_eq!((open.all, open.of.len()), (0, 0));
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_source() {
        let key = |text: &str| SourceKey::from(Source::Address(text.parse().unwrap()));

        assert_eq!(key("[2001:db8:1:2::1]:80"), key("[2001:db8:1:2:ffff::9]:81"));
        assert_ne!(key("[2001:db8:1:2::1]:80"), key("[2001:db8:1:3::1]:80"));
        assert_eq!(key("[::ffff:10.0.0.1]:80"), key("10.0.0.1:99"));
    }
}
