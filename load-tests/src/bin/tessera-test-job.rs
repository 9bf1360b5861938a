//! The program of test jobs: small, and exact about when and how often it ran.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use tessera_load_tests::{hardware, locks};

#[derive(Parser)]
enum Job {
    /// Does nothing.
    Noop,
    /// Writes the time of day, in nanoseconds since 1970, into a file.
    Stamp { file: PathBuf },
    /// Holds a lock for a while, and fails if another run of the same job has it.
    Lock { folder: PathBuf, key: String, millis: u64 },
    /// Lists the MIG devices that the driver's library shows on this node.
    Devices { library: PathBuf },
    /// Makes an instance without the agent, as an administrator could.
    Cut { library: PathBuf, gpu: u32, profile: u32 },
}

fn main() -> anyhow::Result<()> {
    match Job::parse() {
        Job::Noop => {}
        Job::Stamp { file } => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
            std::fs::write(file, now.to_string())?;
        }
        Job::Lock { folder, key, millis } => {
            locks::run(&folder, &key, Duration::from_millis(millis))?;
        }
        Job::Devices { library } => {
            for device in hardware::mig_devices(&library)? {
                println!("{device}");
            }
        }
        Job::Cut { library, gpu, profile } => hardware::cut(&library, gpu, profile)?,
    }
    Ok(())
}
