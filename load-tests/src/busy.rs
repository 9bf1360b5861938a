//! Work that keeps every processor busy, as data loaders and preprocessing do next to a GPU's programs.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use anyhow::Result;

use crate::processes;

/// Busy loops for each processor.
const LOOPS_PER_PROCESSOR: usize = 2;
/// A loop that computes and nothing else.
const LOOP: &str = "while :; do :; done";
/// What a data loader does: it reads, packs, writes into a pipe, and starts processes for that.
const LOADER: &str = "while :; do head -c 2000000 /dev/urandom | gzip -1 | wc -c > /dev/null; done";

/// Ordinary processes that never rest. Dropping this ends them.
#[derive(Debug)]
pub struct BusyProcessors {
    children: Vec<Child>,
}

impl BusyProcessors {
    /// Starts two busy loops and one data loader for each processor, whatever priority this program has.
    ///
    /// # Errors
    ///
    /// They can't be started.
    pub fn start() -> Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut busy = Self { children: Vec::new() };
        let loops = std::iter::repeat_n(LOOP, LOOPS_PER_PROCESSOR * processors);
        for script in loops.chain(std::iter::repeat_n(LOADER, processors)) {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]).stdin(Stdio::null()).process_group(0);
            processes::be_ordinary(&mut command);
            busy.children.push(command.spawn()?);
        }
        Ok(busy)
    }

    /// Returns how many there are.
    pub const fn count(&self) -> usize {
        self.children.len()
    }
}

impl Drop for BusyProcessors {
    fn drop(&mut self) {
        for child in &mut self.children {
            // With all that it started, which is in its group.
            processes::end_group(child.id());
            let _ = child.wait();
        }
    }
}
