//! The form of PMI-1: a command is one line of words `key=value`, as MPICH writes and reads it.

use super::{
    KEY_MAX, MESSAGE_MAX, MalformedMessage, RankReply, RankRequest, ReceivedCommand, VALUE_MAX,
};

/// How much was read of the only request with several lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SpawnLines {
    #[default]
    None,
    /// Lines of a request follow. The requests of one call are numbered, and get one answer.
    Open {
        /// How many there are.
        total: u32,
        /// The number of this one.
        number: u32,
    },
}

/// Takes the next request from what has arrived; `None` if no line is complete.
pub(super) fn next(
    buffer: &mut Vec<u8>,
    spawn: &mut SpawnLines,
) -> Result<Option<(ReceivedCommand, RankRequest)>, MalformedMessage> {
    let Some(end) = buffer.iter().position(|byte| *byte == b'\n') else {
        return match buffer.len() > MESSAGE_MAX {
            true => Err(MalformedMessage::TooLong),
            false => Ok(None),
        };
    };
    let line: Vec<u8> = buffer.drain(..=end).collect();
    let line = String::from_utf8_lossy(&line);
    Ok(Some(read(line.trim_end_matches('\n'), spawn)))
}

fn read(line: &str, spawn: &mut SpawnLines) -> (ReceivedCommand, RankRequest) {
    let received = |command: &str| ReceivedCommand { command: command.to_owned(), thread: None };
    if let SpawnLines::Open { total, number } = spawn {
        if line == "endcmd" {
            let is_last = total == number;
            *spawn = SpawnLines::None;
            let request = if is_last { RankRequest::Spawn } else { RankRequest::Unfinished };
            return (received("spawn"), request);
        }
        for (key, place) in [("totspawns", total), ("spawnssofar", number)] {
            if let Some(value) = word(line, key).and_then(|value| value.parse().ok()) {
                *place = value;
            }
        }
        return (received("spawn"), RankRequest::Unfinished);
    }
    if word(line, "mcmd") == Some("spawn") {
        *spawn = SpawnLines::Open { total: 1, number: 1 };
        return (received("spawn"), RankRequest::Unfinished);
    }
    let command = word(line, "cmd").unwrap_or_default();
    let text = |key: &str| word(line, key).unwrap_or_default().to_owned();
    let request = match command {
        "init" => RankRequest::Init { version: text("pmi_version").parse().unwrap_or(0) },
        "get_maxes" => RankRequest::Maxes,
        "get_appnum" => RankRequest::AppNumber,
        "get_my_kvsname" => RankRequest::SpaceName,
        "get_universe_size" => RankRequest::UniverseSize,
        "put" => RankRequest::Put { key: text("key"), value: rest(line, "value").to_owned() },
        "get" => RankRequest::Get { key: text("key") },
        "barrier_in" => RankRequest::Barrier,
        "publish_name" => {
            RankRequest::Publish { name: text("service"), port: rest(line, "port").to_owned() }
        }
        "unpublish_name" => RankRequest::Unpublish { name: text("service") },
        "lookup_name" => RankRequest::LookUp { name: text("service") },
        "finalize" => RankRequest::Finalize,
        "abort" => RankRequest::Abort { reason: format!("code {}", text("exitcode")) },
        other => RankRequest::Unknown { command: other.to_owned() },
    };
    (received(command), request)
}

/// Returns the value of a word.
fn word<'l>(line: &'l str, key: &str) -> Option<&'l str> {
    line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// Returns the value of the last word, which may have blanks.
fn rest<'l>(line: &'l str, key: &str) -> &'l str {
    let start = format!(" {key}=");
    line.find(&start).map_or("", |at| &line[at + start.len()..])
}

/// Writes the answer to a command.
pub(super) fn write(received: &ReceivedCommand, reply: &RankReply) -> Vec<u8> {
    let command = received.command.as_str();
    let name = match command {
        "init" => "response_to_init",
        "put" => "put_result",
        "get" => "get_result",
        "barrier_in" => "barrier_out",
        "publish_name" => "publish_result",
        "unpublish_name" => "unpublish_result",
        "lookup_name" => "lookup_result",
        "finalize" => "finalize_ack",
        "spawn" => "spawn_result",
        _ => "result",
    };
    let text = match reply {
        RankReply::Init { version } => {
            // The second number of each version that exists.
            let minor = if *version == 1 { 1 } else { 0 };
            format!("cmd={name} pmi_version={version} pmi_subversion={minor} rc=0")
        }
        RankReply::Maxes => {
            format!("cmd=maxes kvsname_max=256 keylen_max={KEY_MAX} vallen_max={VALUE_MAX}")
        }
        RankReply::AppNumber => "cmd=appnum appnum=0".to_owned(),
        RankReply::SpaceName(name) => format!("cmd=my_kvsname kvsname={name}"),
        RankReply::UniverseSize(size) => format!("cmd=universe_size size={size}"),
        RankReply::Found(port) if command == "lookup_name" => {
            format!("cmd={name} rc=0 info=ok port={port}")
        }
        RankReply::Absent if command == "lookup_name" => {
            format!("cmd={name} rc=1 info=not_found port=unknown")
        }
        RankReply::Found(value) => format!("cmd={name} rc=0 msg=success value={value}"),
        RankReply::Absent => format!("cmd={name} rc=-1 msg=key_not_found value=unknown"),
        RankReply::Done if command == "barrier_in" || command == "finalize" => {
            format!("cmd={name}")
        }
        RankReply::Done if command.ends_with("publish_name") => {
            format!("cmd={name} rc=0 info=ok")
        }
        RankReply::Done => format!("cmd={name} rc=0 msg=success"),
        // Only the other form has this one.
        RankReply::FullInit { .. } => format!("cmd={name} rc=-1 msg=unknown"),
        RankReply::Refused(why) => {
            format!("cmd={name} rc=-1 msg={}", why.replace(' ', "_"))
        }
    };
    format!("{text}\n").into_bytes()
}
