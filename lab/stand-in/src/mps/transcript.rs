//! The answers of a control program to a fixed list of commands. They are recorded so that two
//! programs can be compared: NVIDIA's own on a machine without GPUs, and the stand-in.
//!
//! What differs between two runs of one program is left out: dates, process ids, folders, and in
//! the log the lines about connections, whose order NVIDIA's threads don't keep.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::own_uid;

/// How long a line of the log may take until it is written.
const LOG_WITHIN: Duration = Duration::from_secs(30);
/// How often the log is polled.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Sent one at a time to a daemon whose server can't start.
const COMMANDS: &[&str] = &[
    "get_server_list",
    "bogus",
    "bogus and more",
    "GET_SERVER_LIST",
    "help",
    "",
    "  get_default_active_thread_percentage  ",
    "get_server_status",
    "get_server_status 77",
    "get_server_status x",
    "get_client_list",
    "get_client_list 5",
    "get_client_list x",
    "get_device_client_list",
    "get_device_client_list 5",
    "ps",
    "ps -p",
    "ps -p 5",
    "ps -p x",
    "ps junk",
    "start_server",
    "start_server -uid",
    "start_server -uid x",
    "start_server 0",
    "set_active_thread_percentage 1 50",
    "set_active_thread_percentage 1",
    "set_active_thread_percentage",
    "get_active_thread_percentage 1",
    "get_active_thread_percentage",
    "set_device_pinned_mem_limit 1 0 1G",
    "set_device_pinned_mem_limit",
    "get_device_pinned_mem_limit 1 0",
    "get_device_pinned_mem_limit 1",
    "get_device_pinned_mem_limit",
    "get_default_active_thread_percentage",
    "get_default_active_thread_percentage junk",
    "set_default_active_thread_percentage",
    "set_default_active_thread_percentage abc",
    "set_default_active_thread_percentage 0",
    "set_default_active_thread_percentage -5",
    "set_default_active_thread_percentage 300",
    "set_default_active_thread_percentage 100.01",
    "set_default_active_thread_percentage nan",
    "set_default_active_thread_percentage 30",
    "set_default_active_thread_percentage 12.5",
    "set_default_active_thread_percentage 12abc",
    "set_default_active_thread_percentage 1e1",
    "set_default_active_thread_percentage 0.04",
    "set_default_active_thread_percentage 33.333",
    "set_default_active_thread_percentage 40 50",
    "get_default_active_thread_percentage",
    "get_default_device_pinned_mem_limit",
    "get_default_device_pinned_mem_limit 0",
    "get_default_device_pinned_mem_limit x",
    "set_default_device_pinned_mem_limit",
    "set_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit 0 junk",
    "get_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit 0 2",
    "get_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit 0 2G",
    "get_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit 0 512M",
    "get_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit 0 2048M",
    "get_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit 0 1g",
    "get_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit 0 1m",
    "get_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit 0 3K",
    "get_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit 0 2.5G",
    "get_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit 0 2GB",
    "get_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit 0 -2G",
    "get_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit 0 0G",
    "get_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit 31 1G",
    "get_default_device_pinned_mem_limit 31",
    "set_default_device_pinned_mem_limit 32 1G",
    "get_default_device_pinned_mem_limit 32",
    "set_default_device_pinned_mem_limit -1 1G",
    "get_default_device_pinned_mem_limit 1",
    "shutdown_server",
    "shutdown_server 1",
    "shutdown_server 1 -f",
    "shutdown_server x",
    "terminate_client",
    "terminate_client 1",
    "terminate_client 1 2",
    "terminate_client x y",
    "get_default_client_priority",
    "set_default_client_priority",
    "set_default_client_priority 1",
    "get_default_client_priority",
    "set_default_client_priority 2",
    "get_default_client_priority",
    "set_default_client_priority -1",
    "get_default_client_priority",
    "lspart",
    "device_query",
];

/// A control program in its own folders.
#[derive(Debug)]
pub struct TranscriptRig<'a> {
    /// Path of the control program that is examined.
    pub program: &'a Path,
    /// An empty folder for its pipes and logs.
    pub folder: &'a Path,
    /// Variables that it needs in addition to its folders.
    pub variables: &'a [(String, String)],
}

impl TranscriptRig<'_> {
    /// Starts a daemon, sends the fixed commands, ends the daemon; returns what it printed.
    ///
    /// # Errors
    ///
    /// The program can't be run, or its log lacks a line that it always writes.
    pub fn record(&self) -> io::Result<String> {
        fs::create_dir_all(self.pipes())?;
        fs::create_dir_all(self.logs())?;
        let mut text = String::new();
        self.request("get_server_list\n", &mut text)?;
        self.start(&mut text)?;
        self.files(&mut text)?;
        self.start(&mut text)?;
        for line in COMMANDS {
            self.request(&format!("{line}\n"), &mut text)?;
        }
        self.request(
            "get_server_list\nbogus\n\nget_default_active_thread_percentage\n",
            &mut text,
        )?;
        self.request("get_default_active_thread_percentage", &mut text)?;
        self.request(&format!("start_server -uid {} more\n", own_uid()), &mut text)?;
        self.await_log("exited with status")?;
        self.request("get_server_list\n", &mut text)?;
        self.request("quit -t 1\n", &mut text)?;
        self.await_log("Exit with status")?;
        self.files(&mut text)?;
        self.log("control.log", &mut text)?;
        self.log("server.log", &mut text)?;
        Ok(text)
    }

    fn pipes(&self) -> PathBuf {
        self.folder.join("p")
    }

    fn logs(&self) -> PathBuf {
        self.folder.join("l")
    }

    fn command(&self) -> Command {
        let folder = self.program.parent().map(|bin| bin.join("../sbin")).unwrap_or_default();
        let mut command = Command::new(self.program);
        command
            .env_clear()
            // NVIDIA's daemon finds its server by this.
            .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", folder.display()))
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipes())
            .env("CUDA_MPS_LOG_DIRECTORY", self.logs())
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn start(&self, text: &mut String) -> io::Result<()> {
        // Files, since the daemon would hold pipes open forever.
        let (out, err) = (self.folder.join("start.out"), self.folder.join("start.err"));
        let mut command = self.command();
        command.arg("-d").stdin(Stdio::null());
        command.stdout(fs::File::create(&out)?).stderr(fs::File::create(&err)?);
        let code = command.status()?.code();
        let (out, err) = (fs::read_to_string(&out)?, fs::read_to_string(&err)?);
        self.printed("-d", [&out, &err], code, text);
        Ok(())
    }

    fn request(&self, input: &str, text: &mut String) -> io::Result<()> {
        let mut command = self.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        if let Some(mut pipe) = child.stdin.take() {
            // A program that has ended already printed why.
            let _ = pipe.write_all(input.as_bytes());
        }
        let output = child.wait_with_output()?;
        let out = String::from_utf8_lossy(&output.stdout);
        let err = String::from_utf8_lossy(&output.stderr);
        self.printed(&format!("{input:?}"), [&out, &err], output.status.code(), text);
        Ok(())
    }

    fn printed(&self, what: &str, printed: [&str; 2], code: Option<i32>, text: &mut String) {
        let _ = writeln!(text, "{}", self.plain(&format!("> {what}")));
        let [out, err] = printed;
        for line in out.lines() {
            let _ = writeln!(text, "{}", self.plain(line));
        }
        for line in err.lines() {
            let _ = writeln!(text, "! {}", self.plain(line));
        }
        let _ = writeln!(text, "= {}", code.map_or("killed".to_owned(), |code| code.to_string()));
    }

    /// Lists what is in the folder of pipes, by kind.
    fn files(&self, text: &mut String) -> io::Result<()> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.pipes())? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let kind = match () {
                () if kind.is_socket() => "socket",
                () if kind.is_fifo() => "fifo",
                () => "file",
            };
            names.push(format!("{kind} {}", entry.file_name().to_string_lossy()));
        }
        names.sort();
        let _ = writeln!(text, "> pipes\n{}", names.join("\n"));
        Ok(())
    }

    fn await_log(&self, expected: &str) -> io::Result<()> {
        let ends = Instant::now() + LOG_WITHIN;
        while !fs::read_to_string(self.logs().join("control.log"))?.contains(expected) {
            if Instant::now() > ends {
                return Err(io::Error::other(format!("control.log never had {expected:?}")));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn log(&self, name: &str, text: &mut String) -> io::Result<()> {
        let _ = writeln!(text, "> {name}");
        for line in fs::read_to_string(self.logs().join(name))?.lines() {
            let (stamp, printed) = line.split_once("] ").unwrap_or(("", line));
            let printed = self.plain(printed);
            if connection(&printed) || printed.starts_with(super::log::BANNER) {
                continue;
            }
            // The date is left out, and the process, which in a server's line is its own.
            let role = stamp.split_whitespace().nth(2).unwrap_or("?");
            let printed = if role == "Server" { continue } else { printed };
            let _ = writeln!(text, "{role}: {printed}");
        }
        Ok(())
    }

    /// Leaves out what differs from run to run.
    fn plain(&self, line: &str) -> String {
        let line = line.replace(&self.folder.display().to_string(), "FOLDER");
        let uid = own_uid();
        let line = line.replace(&format!("-uid {uid} more"), "-uid UID more");
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["Starting", "new", "server", _, "for", "user", _] => {
                "Starting new server PID for user UID".to_owned()
            }
            ["Server", _, "exited", "with", "status", status] => {
                format!("Server PID exited with status {status}")
            }
            _ => line.trim_end().to_owned(),
        }
    }
}

/// Returns whether a line of the log is about a connection.
fn connection(line: &str) -> bool {
    matches!(line, "Accepting connection..." | "NEW UI" | "UI closed")
        || line.starts_with("Removed Shm file at")
}
