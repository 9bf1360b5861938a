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

/// The properties of units that the bundle has.
const UNIT_PROPERTIES: &str = "--property=Id,LoadState,ActiveState,SubState,StatusText,Result,NRestarts,\
     ActiveEnterTimestamp,MemoryCurrent,TasksCurrent,DropInPaths,NeedDaemonReload";

/// Commands that only read.
const COMMANDS: [(&str, &[&str], &str); 8] = [
    ("uname", &["-a"], "local/uname.txt"),
    ("df", &["-h"], "local/df.txt"),
    ("nvidia-smi", &["-q"], "local/nvidia-smi.txt"),
    ("nvidia-smi", &["mig", "-lgi"], "local/nvidia-smi-mig.txt"),
    ("tessera-agent", &["doctor", "--json"], "local/doctor.json"),
    ("dpkg-query", &["-W", "tessera*"], "local/packages.txt"),
    // Its status would list the command lines of jobs.
    (
        "systemctl",
        &[
            "show",
            "--no-pager",
            UNIT_PROPERTIES,
            "tessera-controller",
            "tessera-agent",
            "tessera-jobs",
        ],
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
    let text = String::from_utf8_lossy(tail);
    Ok(match program {
        "nvidia-smi" => without_programs(&text),
        _ => text.into_owned(),
    })
}

/// Removes the names of the programs that use a GPU from what `nvidia-smi -q` prints.
fn without_programs(text: &str) -> String {
    let lines = text.split_inclusive('\n');
    let is_name = |line: &&str| {
        line.trim_start()
            .strip_prefix("Name")
            .is_some_and(|rest| rest.trim_start().starts_with(':'))
    };
    lines.filter(|line| !is_name(line)).collect()
}

/// Returns settings without the comments of those who maintain them.
pub fn without_comments(settings: &str) -> String {
    let whole = settings.parse::<toml::Table>().ok();
    whole.and_then(|table| toml::to_string(&table).ok()).unwrap_or_else(|| {
        // A mistake in the file may be why there is a bundle.
        let lines = settings.lines().map(|line| line.split('#').next().unwrap_or_default());
        lines.filter(|line| !line.trim().is_empty()).map(|line| format!("{line}\n")).collect()
    })
}

/// Returns the accounts of this machine as far as its name service lists them; the bundle does not have the list.
pub fn accounts() -> String {
    output_of("getent", &["passwd"]).unwrap_or_default()
}

/// Returns the names of the user who runs this.
pub fn own_names() -> impl Iterator<Item = String> {
    ["USER", "LOGNAME", "SUDO_USER"].into_iter().filter_map(|name| std::env::var(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_lose_their_comments_also_with_a_mistake() {
        let settings = "# for ada\nhttp = \"0.0.0.0:7070\" # bob\n";
        let broken = format!("{settings}quic = \n");

        assert_eq!(without_comments(settings), "http = \"0.0.0.0:7070\"\n");
        assert_eq!(without_comments(&broken), "http = \"0.0.0.0:7070\" \nquic = \n");
    }

    #[test]
    fn programs_on_a_gpu_are_not_named() {
        let text = "    Product Name : NVIDIA A100\n    Process ID : 7\n        Name : /x/train\n";

        assert_eq!(without_programs(text), "    Product Name : NVIDIA A100\n    Process ID : 7\n");
    }
}
