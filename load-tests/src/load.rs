//! Load on one address: as much as possible, or a given number of requests per second.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::lean::Lean;
use crate::machine::Spread;

/// The results of a load.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Requests that were answered with success.
    pub answered: u64,
    /// Requests that were answered with another status.
    pub refused: u64,
    /// Duration of the load.
    pub took: Duration,
    /// From a request (or the moment when it was due) to its answer, in milliseconds.
    pub latency: Spread,
}

impl Outcome {
    /// Returns the answered requests a second.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people: 52 bits are enough")]
    pub fn per_sec(&self) -> f64 {
        self.answered as f64 / self.took.as_secs_f64()
    }
}

/// Sends requests over `connections` as fast as they are answered.
///
/// # Errors
///
/// If a connection breaks.
pub async fn closed_loop(
    address: SocketAddr,
    request: Vec<u8>,
    connections: usize,
    time: Duration,
) -> anyhow::Result<Outcome> {
    let request = Arc::new(request);
    let started = Instant::now();
    let workers: Vec<_> = (0..connections)
        .map(|_| {
            let request = Arc::clone(&request);
            tokio::spawn(async move {
                let mut lean = Lean::connect(address).await?;
                let (mut millis, mut refused) = (Vec::new(), 0);
                while started.elapsed() < time {
                    let sent = Instant::now();
                    match lean.send(&request).await? {
                        200..=299 => millis.push(sent.elapsed().as_secs_f64() * 1000.0),
                        _ => refused += 1,
                    }
                }
                anyhow::Ok((millis, refused))
            })
        })
        .collect();
    collect(workers, started).await
}

/// Sends `per_sec` requests a second, whether or not the ones before are answered, as far as
/// `connections` allow; latencies count from the moment when a request was due.
///
/// # Errors
///
/// If a connection breaks.
#[expect(clippy::cast_precision_loss, reason = "a figure for people: 52 bits are enough")]
pub async fn open_loop(
    address: SocketAddr,
    request: Vec<u8>,
    connections: usize,
    per_sec: u32,
    time: Duration,
) -> anyhow::Result<Outcome> {
    let request = Arc::new(request);
    let next = Arc::new(AtomicU64::new(0));
    let total = u64::from(per_sec) * time.as_secs();
    let started = Instant::now();
    let workers: Vec<_> = (0..connections)
        .map(|_| {
            let (request, next) = (Arc::clone(&request), Arc::clone(&next));
            tokio::spawn(async move {
                let mut lean = Lean::connect(address).await?;
                let (mut millis, mut refused) = (Vec::new(), 0);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= total {
                        return anyhow::Ok((millis, refused));
                    }
                    let due = started + Duration::from_secs_f64(number as f64 / f64::from(per_sec));
                    tokio::time::sleep_until(due.into()).await;
                    match lean.send(&request).await? {
                        200..=299 => millis.push(due.elapsed().as_secs_f64() * 1000.0),
                        _ => refused += 1,
                    }
                }
            })
        })
        .collect();
    collect(workers, started).await
}

type Worker = tokio::task::JoinHandle<anyhow::Result<(Vec<f64>, u64)>>;

async fn collect(workers: Vec<Worker>, started: Instant) -> anyhow::Result<Outcome> {
    let (mut all, mut refused) = (Vec::new(), 0);
    for worker in workers {
        let (millis, no) = worker.await??;
        all.extend(millis);
        refused += no;
    }
    let took = started.elapsed();
    Ok(Outcome { answered: all.len() as u64, refused, took, latency: Spread::of(all) })
}
