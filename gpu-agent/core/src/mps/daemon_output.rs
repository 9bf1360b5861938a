//! Parses the output of NVIDIA's control program and its logs without trust: text that can't be
//! parsed is ignored and never an error.
//!
//! The program ends every command with status 0, even a failed one: only its output shows the
//! failure. The outputs differ between drivers (535 has no `get_server_status`). Its output without
//! a GPU is kept in `lab/stand-in/tests/mps_transcript`.

use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of servers of one daemon that are remembered: it has one at a time.
const SERVERS_MAX: usize = 64;
/// The longest answer that is shown to users.
const SHOWN_MAX: usize = 300;

/// What a daemon's control program reports about its servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerStatus {
    /// It serves.
    Active,
    /// A client's fault affected all of its clients; it accepts no new ones until they have ended.
    Fault,
    /// It starts, or its status is not known.
    Unready,
    /// The daemon is too old to report its status: its log is used instead.
    NotReported,
}

/// Reads the answer to `get_server_status`.
pub fn status(text: &str) -> ServerStatus {
    match text.trim().to_ascii_uppercase().as_str() {
        "ACTIVE" => ServerStatus::Active,
        "FAULT" => ServerStatus::Fault,
        other if other.starts_with("UNKNOWN COMMAND") => ServerStatus::NotReported,
        _ => ServerStatus::Unready,
    }
}

/// Reads a list of processes, one on each line; other lines are ignored.
pub fn pids(text: &str) -> Vec<u32> {
    text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid > 1).collect()
}

/// Returns whether `terminate_client` succeeded. A failure has some text and a line with its
/// status, which isn't 0. Anything that isn't known to be a success counts as a failure.
pub fn terminated(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.all(|line| matches!(line, "0" | "CUDA_SUCCESS"))
}

/// Returns the error in the answer to `start_server`; a server that starts prints nothing.
pub fn complaint(text: &str) -> Option<String> {
    let words: Vec<_> = text.split_whitespace().collect();
    let is_match = words.iter().any(|word| word.parse::<u32>().is_err());
    let shown: String = words.join(" ").chars().take(SHOWN_MAX).collect();
    is_match.then_some(shown)
}

/// Returns whether a refusal means that no daemon has the folder.
pub fn nobody_there(text: &str) -> bool {
    text.contains("Cannot find MPS control daemon")
}

/// The states of a control daemon's servers, from its log so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlLog {
    ready: BTreeSet<u32>,
    ended: BTreeMap<u32, i32>,
}

impl ControlLog {
    /// Reads new lines.
    pub fn read(&mut self, lines: &str) {
        for line in lines.lines() {
            let words: Vec<_> = text_of(line).split_whitespace().collect();
            match words[..] {
                ["NEW", "SERVER", pid, "Ready"] => {
                    let Ok(pid) = pid.trim_end_matches(':').parse() else { continue };
                    if self.ready.len() < SERVERS_MAX {
                        self.ready.insert(pid);
                    }
                }
                ["Server", pid, "exited", "with", "status", status] => {
                    let Ok(pid) = pid.parse() else { continue };
                    let Ok(status) = status.parse() else { continue };
                    if self.ended.len() < SERVERS_MAX {
                        self.ended.insert(pid, status);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns whether a server became ready.
    pub fn is_ready(&self, pid: u32) -> bool {
        self.ready.contains(&pid) && !self.ended.contains_key(&pid)
    }

    /// Returns the exit status of a server, if it ended.
    pub fn end_of(&self, pid: u32) -> Option<i32> {
        self.ended.get(&pid).copied()
    }

    /// Returns a server that ended before it became ready, and its status.
    pub fn failed_server(&self) -> Option<(u32, i32)> {
        let mut ended = self.ended.iter().filter(|(pid, _)| !self.ready.contains(pid));
        ended.next_back().map(|(pid, status)| (*pid, *status))
    }
}

/// A fault in new lines of a server's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultLines {
    /// Whether a fault was reported.
    pub fatal: bool,
    /// The processes that the lines name as its cause, if any.
    pub culprits: BTreeSet<u32>,
}

/// Reads new lines of a server's log.
pub fn fault_lines(log: &str) -> FaultLines {
    let mut found = FaultLines::default();
    for line in log.lines() {
        let text = text_of(line).to_ascii_lowercase();
        if text.contains("fatal gpu error") || text.contains("fatal exception") {
            found.fatal = true;
        }
        if text.contains("memory fault") {
            found.fatal = true;
            let words = text.split(|c: char| !c.is_ascii_alphanumeric());
            let named = words.filter_map(|word| word.parse::<u32>().ok()).find(|pid| *pid > 1);
            found.culprits.extend(named);
        }
    }
    found
}

/// Returns the last message of a log, for users; `None` if it only names its own path.
pub fn last_line(log: &str) -> Option<String> {
    let reported = log.lines().map(|line| text_of(line).trim());
    let mut reported =
        reported.filter(|text| !text.is_empty() && !text.starts_with("Using log directory"));
    reported.next_back().map(|text| text.chars().take(SHOWN_MAX).collect())
}

/// Returns a line of a log without its date, role and process.
fn text_of(line: &str) -> &str {
    line.split_once("] ").map_or(line, |(_, text)| text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn answers_of_the_control_program_are_read_without_trust() {
        assert_eq!(pids("17\n 42 \nServer 3 is gone\n\n1\n-5\n"), [17, 42]);
        assert_eq!(status("ACTIVE\n"), ServerStatus::Active);
        assert_eq!(status("fault"), ServerStatus::Fault);
        assert_eq!(status("INITIALIZING"), ServerStatus::Unready);
        assert_eq!(status("what?"), ServerStatus::Unready);
        assert_eq!(status("Unknown command \"get_server_status\"\n"), ServerStatus::NotReported);
    }

    #[test]
    fn only_an_empty_answer_or_a_zero_is_a_termination() {
        assert!(terminated(""));
        assert!(terminated("0\n"));
        assert!(!terminated("Server 1 not found\nServer 1 not found!\n1\n"));
        assert!(!terminated("Invalid process 7!\n"));
        assert!(!terminated("Unknown command \"terminate_client\"\n"));
    }

    #[test]
    fn a_start_with_output_has_a_reason() {
        assert_eq!(complaint(""), None);
        assert_eq!(complaint("4711\n"), None);
        let text = "A user id (UID) is required to start a new server\n";
        assert_eq!(complaint(text).as_deref(), Some(text.trim()));
    }

    #[test]
    fn a_daemons_log_shows_the_states_of_its_servers() {
        let mut log = ControlLog::default();

        log.read(
            "[2026-11-21 11:22:09.081 Control 15848] Starting new server 15867 for user 0\n\
             [2026-11-21 11:22:09.081 Control 15848] Server 15867 exited with status 1\n\
             [2026-11-21 11:22:09.093 Control 15848] NEW SERVER 15868: Ready\n",
        );

        assert_eq!(log.failed_server(), Some((15867, 1)));
        assert!(log.is_ready(15868));
        assert_eq!(log.end_of(15868), None);
        log.read("[2026-11-21 11:23:09.081 Control 15848] Server 15868 exited with status 9\n");
        assert!(!log.is_ready(15868));
        assert_eq!(log.end_of(15868), Some(9));
    }

    #[test]
    fn a_log_names_the_process_that_caused_a_memory_fault() {
        let log = "[2022-04-28 15:56:07.410 Server 11570] Server is handling a fatal GPU error.\n\
                   [2022-04-28 15:56:07.410 Server 11570] Client process 12 caused a memory fault\n";

        let found = fault_lines(log);

        assert_eq!(found, FaultLines { fatal: true, culprits: [12].into() });
        assert_eq!(fault_lines("[x Server 9] New client 12 connected"), FaultLines::default());
        assert_eq!(last_line(log).as_deref(), Some("Client process 12 caused a memory fault"));
        assert_eq!(last_line("[x Other 9] Using log directory: /a"), None);
    }

    #[test]
    fn a_log_that_names_all_clients_shows_a_fault_and_no_cause() {
        // Driver 580.159.04 on an H200: 563 accessed invalid memory, 519 did not (load-tests/gpu/results).
        let log = "[2026-11-27 11:49:46.147 Server   522] Client {PID: 519, Context: 1} encountered a fatal GPU error.\n\
                   [2026-11-27 11:49:46.147 Server   522] Server is handling a fatal GPU error.\n\
                   [2026-11-27 11:49:46.147 Server   522] Client {PID: 563, Context ID: 1} on device 0 to be torn down\n\
                   [2026-11-27 11:49:46.147 Server   522] All clients belonging to error trigging process 519 will be \
                   torn down\n\
                   [2026-11-27 11:49:46.147 Server   522] All clients belonging to error trigging process 563 will be \
                   torn down\n";

        assert_eq!(fault_lines(log), FaultLines { fatal: true, culprits: BTreeSet::new() });
        assert_eq!(pids("519\n520\n"), [519, 520]);
        assert!(terminated("0\n"));
    }

    /// Lines of NVIDIA's programs: complete, truncated, or with other words in between.
    fn line() -> impl Strategy<Value = String> {
        let words = prop_oneof![
            Just("[2026-11-21 11:22:09.081 Control 15848] ".to_owned()),
            Just("NEW SERVER ".to_owned()),
            Just(": Ready".to_owned()),
            Just("Server ".to_owned()),
            Just(" exited with status ".to_owned()),
            Just("memory fault ".to_owned()),
            Just("fatal GPU error".to_owned()),
            Just("\n".to_owned()),
            any::<i64>().prop_map(|number| number.to_string()),
            "\\PC{0,8}",
        ];
        prop::collection::vec(words, 0..40).prop_map(|words| words.concat())
    }

    proptest! {
        #[test]
        fn no_text_makes_a_reader_fail_or_keep_more_than_its_limit(text in line()) {
            let mut log = ControlLog::default();
            for _ in 0..3 {
                log.read(&text);
            }
            prop_assert!(log.ready.len() <= SERVERS_MAX && log.ended.len() <= SERVERS_MAX);
            prop_assert!(pids(&text).iter().all(|pid| *pid > 1));
            prop_assert!(fault_lines(&text).culprits.iter().all(|pid| *pid > 1));
            prop_assert!(last_line(&text).is_none_or(|text| text.chars().count() <= SHOWN_MAX));
            prop_assert!(complaint(&text).is_none_or(|text| text.chars().count() <= SHOWN_MAX));
            status(&text);
            terminated(&text);
        }

        #[test]
        fn a_log_that_is_read_in_pieces_shows_the_same(
            lines in prop::collection::vec((2_u32..200, any::<bool>(), 0_i32..20), 0..30),
            cut in 0_usize..30,
        ) {
            let lines: Vec<_> = lines
                .iter()
                .map(|(pid, ready, status)| match ready {
                    true => format!("[d Control 1] NEW SERVER {pid}: Ready\n"),
                    false => format!("[d Control 1] Server {pid} exited with status {status}\n"),
                })
                .collect();
            let (mut once, mut twice) = (ControlLog::default(), ControlLog::default());
            let (head, tail) = lines.split_at(cut.min(lines.len()));

            once.read(&lines.concat());
            twice.read(&head.concat());
            twice.read(&tail.concat());

            prop_assert_eq!(once, twice);
        }

        #[test]
        fn a_named_process_is_found_among_other_lines(
            pid in 2_u32..u32::MAX,
            noise in prop::collection::vec("[a-z ]{0,20}", 0..5),
        ) {
            let log = format!("{}\n[d Server 9] process {pid} caused a memory fault\n", noise.join("\n"));
            prop_assert!(fault_lines(&log).culprits.contains(&pid));
        }
    }
}
