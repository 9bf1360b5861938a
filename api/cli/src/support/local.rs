//! The state of this machine: its settings, logs and driver.

use std::fs;
use std::io;
use std::process::Command;

/// Maximum number of bytes of one command's output, its end: logs are the longest.
const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// Files that are read as they are.
const FILES: [(&str, &str); 6] = [
    ("/etc/tessera/controller.toml", "local/controller.toml"),
    ("/etc/tessera/agent.toml", "local/agent.toml"),
    ("/etc/os-release", "local/os-release.txt"),
    ("/proc/driver/nvidia/version", "local/nvidia-version.txt"),
    ("/proc/meminfo", "local/meminfo.txt"),
    ("/proc/loadavg", "local/loadavg.txt"),
];

/// Commands that only read.
const COMMANDS: [(&str, &[&str], &str); 8] = [
    ("uname", &["-a"], "local/uname.txt"),
    ("df", &["-h"], "local/df.txt"),
    ("nvidia-smi", &["-q"], "local/nvidia-smi.txt"),
    ("nvidia-smi", &["mig", "-lgi"], "local/nvidia-smi-mig.txt"),
    ("tessera-agent", &["doctor", "--json"], "local/doctor.json"),
    ("dpkg-query", &["-W", "tessera*"], "local/packages.txt"),
    (
        "systemctl",
        &["status", "--no-pager", "--lines=0", "tessera-controller", "tessera-agent"],
        "local/systemctl.txt",
    ),
    (
        "journalctl",
        &["--no-pager", "--since=-24h", "-u", "tessera-controller", "-u", "tessera-agent"],
        "local/journal.txt",
    ),
];

/// A file or a command that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {cause}")]
pub struct NotCollected {
    what: &'static str,
    cause: io::Error,
}

/// Returns each part with its text, or why there is none.
pub fn collect() -> Vec<(String, Result<String, NotCollected>)> {
    let files = FILES.iter().map(|(path, name)| {
        let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        ((*name).to_owned(), text.map_err(|cause| NotCollected { what: path, cause }))
    });
    let commands = COMMANDS
        .iter()
        .map(|(program, arguments, name)| ((*name).to_owned(), output_of(program, arguments)));
    files.chain(commands).collect()
}

fn output_of(program: &'static str, arguments: &[&str]) -> Result<String, NotCollected> {
    let done = Command::new(program).args(arguments).output();
    let done = done.map_err(|cause| NotCollected { what: program, cause })?;
    let all = [done.stdout, done.stderr].concat();
    let tail = &all[all.len().saturating_sub(OUTPUT_BYTES_MAX)..];
    Ok(String::from_utf8_lossy(tail).into_owned())
}
