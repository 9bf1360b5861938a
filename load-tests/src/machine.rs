//! What the figures were measured on, and how they are printed.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

/// Returns what a reader must know of this machine to judge a figure.
pub fn facts() -> Value {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib: Option<u64> = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "cpu": model.unwrap_or("unknown"),
        "memory_gib": kib.map(|kib| kib / (1024 * 1024)),
        "kernel": kernel.trim(),
        "load_average": fs::read_to_string("/proc/loadavg").unwrap_or_default().trim(),
    })
}

/// How long ext4 without a journal avoids the places of removed files (35 s in the kernel), and a little more.
const REMOVED_LONG_AGO: Duration = Duration::from_secs(37);

/// Waits until the files that an earlier part removed no longer matter. On ext4 without a journal, each new file passes
/// over all that were removed recently: after some thousands, a folder took 0.4 ms instead of 0.03.
pub fn forget_removed_files() {
    std::thread::sleep(REMOVED_LONG_AGO);
}

/// The spread of many measurements of one thing.
#[derive(Clone, Debug)]
pub struct Spread {
    sorted: Vec<f64>,
}

impl Spread {
    /// Takes the measurements.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self { sorted: values }
    }

    /// Returns the value that `per_mille` of a thousand measurements don't exceed; 0 if there
    /// is none.
    pub fn at(&self, per_mille: usize) -> f64 {
        let last = self.sorted.len().saturating_sub(1);
        self.sorted.get((self.sorted.len() * per_mille / 1000).min(last)).copied().unwrap_or(0.0)
    }

    /// Shows it in milliseconds.
    pub fn millis(&self) -> Value {
        let round = |value: f64| (value * 1000.0).round() / 1000.0;
        json!({
            "samples": self.sorted.len(),
            "p50_ms": round(self.at(500)),
            "p90_ms": round(self.at(900)),
            "p99_ms": round(self.at(990)),
            "max_ms": round(self.at(1000)),
        })
    }
}

/// Prints a driver's result, and writes it into `file` if one is given.
///
/// # Errors
///
/// If the file can't be written.
pub fn report(result: &Value, file: Option<&std::path::Path>) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(result)?;
    println!("{text}");
    if let Some(file) = file {
        fs::write(file, text + "\n")?;
    }
    Ok(())
}
