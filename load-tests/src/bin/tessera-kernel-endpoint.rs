//! The agent's kernel queue for one slice, without an agent.
//!
//! What measures the kernel plane on a bare machine starts it, admits attempts, and starts programs with the
//! variables that it returns.
//!
//! Orders are lines of JSON on standard input, each answered by one line on standard output:
//!
//! ```text
//! {"admit":{"task":"serve","priority":0,"class":"offline","environment":{"LD_LIBRARY_PATH":"/opt/lib"}}}
//! {"attempt":"00000000-0000-0000-0000-000000000001","environment":{"LD_PRELOAD":"…",…}}
//! {"end":"00000000-0000-0000-0000-000000000001"}
//! {"attempt":"00000000-0000-0000-0000-000000000001","tally":{"sessions":1,…}}
//! ```
//!
//! An order that can't be carried out is answered by `{"error":"…"}`. A slice without attempts forgets what it
//! learned, so an attempt whose task is to stay known is ended last. The program ends with its input.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use serde::Deserialize;
use serde_json::{Value, json};
use tessera_agent::kernel::{Endpoint, KernelEvent, KernelSettings, start};
use tessera_agent_core::kernel::{Admission, AttemptTally};
use tessera_kernel_queue::{Nanos, QueueRules, TaskKey};
use tessera_load_tests::players::gpu_of_slice;
use tessera_model::spec::{Class, Priority};
use tessera_model::{AttemptId, SliceId};

/// Longest that the queue takes to report what an attempt did.
const TALLY_WITHIN: Duration = Duration::from_secs(10);

/// Serves the kernel queue of one slice on loopback.
#[derive(Parser)]
#[command(name = "tessera-kernel-endpoint", version)]
struct Arguments {
    /// The shim, `libcuda.so.1` in its own folder.
    #[arg(long)]
    shim: PathBuf,
    /// Folder for the queue's files and gate page, on a file system in memory.
    #[arg(long)]
    folder: PathBuf,
    /// UUID of the GPU or MIG device, as the driver names it: GPU-… or MIG-…
    #[arg(long)]
    slice: SliceId,
    /// Cost of a context switch on the device, in microseconds; by default as in the agent's rules.
    #[arg(long, conflicts_with = "over_mps")]
    switch_us: Option<u64>,
    /// Use the agent's rules over an MPS server: no context switches, and kernels that fit together run at once.
    #[arg(long)]
    over_mps: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Order {
    Admit(AdmitOrder),
    End(AttemptId),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdmitOrder {
    task: String,
    priority: u8,
    class: Class,
    /// The program's other variables: its library paths are extended.
    #[serde(default)]
    environment: BTreeMap<String, String>,
}

impl Arguments {
    /// Returns the rules that an agent has with and without `kernel_over_mps`.
    fn rules(&self) -> QueueRules {
        let rules = QueueRules::default();
        match self.switch_us {
            _ if self.over_mps => rules.over_mps(),
            Some(cost) => QueueRules { switch: Nanos::from_micros(cost), ..rules },
            None => rules,
        }
    }
}

/// A queue that executes orders.
struct Server {
    endpoint: Endpoint,
    slice: SliceId,
    over: Receiver<(AttemptId, AttemptTally)>,
    attempts: u128,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut server = Server::start(arguments)?;
    let mut out = std::io::stdout();
    for line in std::io::stdin().lines() {
        let line = line?;
        let answer = serde_json::from_str(&line)
            .context("no order: use admit or end")
            .and_then(|order| server.follow(order))
            .unwrap_or_else(|error| json!({ "error": format!("{error:#}") }));
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

impl Server {
    fn start(arguments: Arguments) -> Result<Self> {
        let shim = std::fs::canonicalize(&arguments.shim)
            .with_context(|| format!("no shim at {}", arguments.shim.display()))?;
        let settings = KernelSettings {
            shim,
            rules: arguments.rules(),
            data: arguments.folder.join("data"),
            gates: arguments.folder.join("gates"),
        };
        let (endpoint, mut events) = start(settings)?;
        let (report, over) = channel();
        // Learned times are not stored: the queue itself keeps them while an attempt is admitted.
        std::thread::spawn(move || {
            while let Some(event) = events.blocking_recv() {
                if let KernelEvent::Over { attempt, tally } = event
                    && report.send((attempt, *tally)).is_err()
                {
                    return;
                }
            }
        });
        Ok(Self { endpoint, slice: arguments.slice, over, attempts: 0 })
    }

    fn follow(&mut self, order: Order) -> Result<Value> {
        match order {
            Order::Admit(order) => self.admit(order),
            Order::End(attempt) => self.end(attempt),
        }
    }

    fn admit(&mut self, order: AdmitOrder) -> Result<Value> {
        self.attempts += 1;
        let attempt = AttemptId::from_uuid(uuid::Uuid::from_u128(self.attempts));
        let admission = Admission {
            attempt,
            gpu: gpu_of_slice(&self.slice)?,
            slice: self.slice.clone(),
            task: TaskKey::new(order.task)?,
            priority: Priority::try_from(order.priority)?,
            class: order.class,
            share_thousandths: 1_000,
            exclusive: false,
            owner: None,
        };
        let variables = self.endpoint.handle.admit(admission, &order.environment)?;
        let environment: BTreeMap<String, String> = variables.into_iter().collect();
        Ok(json!({ "attempt": attempt, "environment": environment }))
    }

    fn end(&self, attempt: AttemptId) -> Result<Value> {
        self.endpoint.handle.end_attempt(attempt);
        loop {
            let (ended, tally) = self.over.recv_timeout(TALLY_WITHIN).context(
                "no tally came: only an attempt that was admitted and has not ended has one",
            )?;
            if ended == attempt {
                return Ok(json!({ "attempt": attempt, "tally": shown(&tally) }));
            }
        }
    }
}

fn shown(tally: &AttemptTally) -> Value {
    json!({
        "sessions": tally.sessions,
        "passed": tally.passed,
        "lost": tally.lost,
        "ungranted": tally.ungranted,
        "memory_peak_bytes": tally.memory_peak,
        "queue": tally.counters,
    })
}
