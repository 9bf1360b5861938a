//! What the daemon answers to each command: in the wording of NVIDIA's program, where it was
//! observed.
//!
//! Nothing is ever refused by an exit status: a command that can't be served gets the reason as
//! text.

use super::super::numbers;
use super::{ControlDaemon, held};

/// A line of an answer.
pub enum CommandReply {
    /// Printed, and logged.
    Shown(String),
    /// Logged only.
    Logged(&'static str),
}

const BAD_PERCENTAGE: &str = "Invalid percentage, expected between (0.0, 100.0]";
const BAD_DEVICE: &str = "Invalid device ordinal!";
const NO_LIMIT: &str = "No default pinned memory limit set for the device!";

impl ControlDaemon {
    /// Carries out a command.
    pub fn obey(&self, line: &str) -> Vec<CommandReply> {
        let words: Vec<_> = line.split_whitespace().collect();
        let (name, given) = words.split_first().map_or(("", &[][..]), |(name, rest)| (*name, rest));
        match name {
            "get_server_list" => self.alive().keys().map(|pid| shown(pid.to_string())).collect(),
            "start_server" => self.start_for(given),
            "get_server_status" if self.release.reports_status() => self.status(given),
            "get_client_list" => self.of_server(given, |_| "clients".to_owned()),
            "get_device_client_list" if given.is_empty() => {
                let servers = self.alive().into_keys();
                servers.flat_map(|pid| self.request(pid, "device_clients")).collect()
            }
            "get_device_client_list" => self.of_server(given, |_| "device_clients".to_owned()),
            "ps" => self.ps(given),
            "terminate_client" => self.terminate(given),
            "set_default_active_thread_percentage" => {
                let mut percentage = held(&self.percentage);
                let read = numbers::percentage(given.first());
                *percentage = read.unwrap_or(*percentage);
                let mut replies = Vec::new();
                replies.extend(read.is_none().then_some(CommandReply::Logged(BAD_PERCENTAGE)));
                replies.push(shown(format!("{:.1}", *percentage)));
                replies
            }
            "get_default_active_thread_percentage" => {
                vec![shown(format!("{:.1}", *held(&self.percentage)))]
            }
            "set_active_thread_percentage" => self.of_server(given, |given| {
                let read = numbers::percentage(given.get(1));
                read.map_or("percentage".to_owned(), |read| format!("set_percentage {read}"))
            }),
            "get_active_thread_percentage" => self.of_server(given, |_| "percentage".to_owned()),
            "set_default_device_pinned_mem_limit" => self.set_limit(given),
            "get_default_device_pinned_mem_limit" => vec![self.limit(given)],
            "set_device_pinned_mem_limit" => self.of_server(given, |given| {
                let device = numbers::device(given.get(1)).unwrap_or(u32::MAX);
                let bytes = numbers::limit(given.get(2)).unwrap_or(0);
                format!("set_limit {device} {bytes}")
            }),
            "get_device_pinned_mem_limit" => self.of_server(given, |given| {
                format!("limit {}", numbers::device(given.get(1)).unwrap_or(u32::MAX))
            }),
            "set_default_client_priority" => self.set_priority(given),
            "get_default_client_priority" => vec![shown(held(&self.priority).to_string())],
            "shutdown_server" => self.shut_down_one(given),
            "quit" => self.quit(given),
            _ => vec![shown(format!("Unknown command \"{name}\""))],
        }
    }

    fn start_for(&self, given: &[&str]) -> Vec<CommandReply> {
        let uid = match given {
            ["-uid", uid, ..] if uid.starts_with(|c: char| c.is_ascii_digit()) => {
                numbers::pid(Some(uid))
            }
            _ => {
                return vec![shown("A user id (UID) is required to start a new server".to_owned())];
            }
        };
        match self.start_server(uid) {
            Ok(_) => Vec::new(),
            Err(error) => vec![shown(error.to_string())],
        }
    }

    fn status(&self, given: &[&str]) -> Vec<CommandReply> {
        match numbers::pid(given.first()) {
            0 => vec![shown("A server PID is required".to_owned())],
            _ => self.of_server(given, |_| "status".to_owned()),
        }
    }

    /// Queries the server that the first word names.
    fn of_server(&self, given: &[&str], question: impl Fn(&[&str]) -> String) -> Vec<CommandReply> {
        let pid = numbers::pid(given.first());
        if !self.alive().contains_key(&pid) {
            return vec![missing(pid)];
        }
        self.request(pid, &question(given))
    }

    fn ps(&self, given: &[&str]) -> Vec<CommandReply> {
        let alive = self.alive();
        let servers: Vec<_> = if given.first() == Some(&"-p") {
            let pid = numbers::pid(given.get(1));
            if !alive.contains_key(&pid) {
                return vec![missing(pid), missing(pid), shown(String::new())];
            }
            vec![pid]
        } else {
            alive.into_keys().collect()
        };
        if servers.is_empty() {
            return vec![shown("Server not found".to_owned())];
        }
        let mut rows = vec![shown(super::super::server::head(self.release))];
        rows.extend(servers.into_iter().flat_map(|pid| self.request(pid, "ps")));
        rows
    }

    /// The last line is the result: 0 is success.
    fn terminate(&self, given: &[&str]) -> Vec<CommandReply> {
        let pid = numbers::pid(given.first());
        if !self.alive().contains_key(&pid) {
            let again = shown(format!("Server {pid} not found!"));
            return vec![missing(pid), again, shown("1".to_owned())];
        }
        self.request(pid, &format!("terminate {}", numbers::pid(given.get(1))))
    }

    fn set_limit(&self, given: &[&str]) -> Vec<CommandReply> {
        let Some(device) = numbers::device(given.first()) else {
            return vec![CommandReply::Logged(BAD_DEVICE)];
        };
        let mut limits = held(&self.limits);
        match given.get(1) {
            Some(word) if word.contains(|c: char| c.is_ascii_digit()) => {
                match numbers::limit(Some(word)) {
                    Some(bytes) => limits.insert(device, bytes),
                    None => limits.remove(&device),
                };
            }
            // What can't be read changes nothing.
            Some(_) | None => {}
        }
        Vec::new()
    }

    fn limit(&self, given: &[&str]) -> CommandReply {
        match numbers::device(given.first()) {
            None => CommandReply::Logged(BAD_DEVICE),
            Some(device) => match held(&self.limits).get(&device) {
                Some(bytes) => shown(numbers::shown(*bytes)),
                None => CommandReply::Logged(NO_LIMIT),
            },
        }
    }

    fn set_priority(&self, given: &[&str]) -> Vec<CommandReply> {
        match numbers::whole(given.first()) {
            priority @ (0 | 1) => {
                *held(&self.priority) = priority;
                Vec::new()
            }
            _ => vec![shown("Invalid priority value - must be 0 or 1!".to_owned())],
        }
    }

    fn shut_down_one(&self, given: &[&str]) -> Vec<CommandReply> {
        let pid = numbers::pid(given.first());
        if !self.alive().contains_key(&pid) {
            return vec![missing(pid)];
        }
        let at_once = given.get(1) == Some(&"-f");
        self.shut_down(pid, at_once.then_some(std::time::Duration::ZERO));
        Vec::new()
    }

    fn quit(&self, given: &[&str]) -> Vec<CommandReply> {
        let within = match given {
            ["-t", secs, ..] => {
                Some(std::time::Duration::from_secs(numbers::pid(Some(secs)).into()))
            }
            _ => None,
        };
        if let Some(within) = within {
            self.log.write(&format!("quit command issued with timeout of {}", within.as_secs()));
        }
        for pid in self.alive().into_keys() {
            self.shut_down(pid, within);
        }
        Vec::new()
    }
}

/// A line that is printed and logged.
pub fn shown(text: String) -> CommandReply {
    CommandReply::Shown(text)
}

fn missing(pid: u32) -> CommandReply {
    shown(format!("Server {pid} not found"))
}
