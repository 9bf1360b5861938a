//! The form of PMI-2: six digits of a length, and pairs `key=value;`, as Slurm's library writes and reads it. A semicolon
//! within a value is written twice.

use std::collections::BTreeMap;

use super::{MalformedMessage, RankReply, RankRequest, ReceivedCommand};

/// A PMI-2 message begins with its length, in this many digits.
const LENGTH_DIGITS: usize = 6;

/// Takes the next request from what has arrived; `None` if it is not complete.
pub(super) fn next(
    buffer: &mut Vec<u8>,
) -> Result<Option<(ReceivedCommand, RankRequest)>, MalformedMessage> {
    let Some((head, rest)) = buffer.split_first_chunk::<LENGTH_DIGITS>() else { return Ok(None) };
    let length = std::str::from_utf8(head).ok().and_then(|text| text.trim().parse::<usize>().ok());
    let length = length.ok_or(MalformedMessage::NoLength)?;
    let Some(text) = rest.get(..length) else { return Ok(None) };
    let request = read(&String::from_utf8_lossy(text));
    buffer.drain(..LENGTH_DIGITS + length);
    Ok(Some(request))
}

fn read(text: &str) -> (ReceivedCommand, RankRequest) {
    let mut pairs = split(text);
    let command = pairs.remove("cmd").unwrap_or_default();
    let thread = pairs.remove("thrid");
    let mut take = |key: &str| pairs.remove(key).unwrap_or_default();
    let request = match command.as_str() {
        "fullinit" => RankRequest::FullInit,
        "finalize" => RankRequest::Finalize,
        "abort" => RankRequest::Abort { reason: take("msg") },
        "job-getid" => RankRequest::SpaceName,
        "kvs-put" => RankRequest::Put { key: take("key"), value: take("value") },
        "kvs-get" => RankRequest::Get { key: take("key") },
        "kvs-fence" => RankRequest::Barrier,
        "info-putnodeattr" => RankRequest::PutOnNode { key: take("key"), value: take("value") },
        "info-getnodeattr" => RankRequest::GetOnNode {
            waits: take("wait").eq_ignore_ascii_case("true"),
            key: take("key"),
        },
        "info-getjobattr" => RankRequest::GetOfJob { key: take("key") },
        "name-publish" => RankRequest::Publish { name: take("name"), port: take("port") },
        "name-unpublish" => RankRequest::Unpublish { name: take("name") },
        "name-lookup" => RankRequest::LookUp { name: take("name") },
        "spawn" => RankRequest::Spawn,
        other => RankRequest::Unknown { command: other.to_owned() },
    };
    (ReceivedCommand { command, thread }, request)
}

/// Splits a message into its pairs.
fn split(text: &str) -> BTreeMap<String, String> {
    let mut pairs = BTreeMap::new();
    let mut rest = text;
    while let Some((key, after)) = rest.split_once('=') {
        let mut value = String::new();
        rest = after;
        loop {
            let (part, after) = rest.split_once(';').unwrap_or((rest, ""));
            value.push_str(part);
            rest = after;
            match rest.strip_prefix(';') {
                Some(after) => {
                    value.push(';');
                    rest = after;
                }
                None => break,
            }
        }
        pairs.insert(key.to_owned(), value);
    }
    pairs
}

/// Writes the answer to a command.
pub(super) fn write(received: &ReceivedCommand, reply: &RankReply) -> Vec<u8> {
    let mut text = String::new();
    let mut add = |key: &str, value: &str| {
        text += &format!("{key}={};", value.replace(';', ";;"));
    };
    add("cmd", &format!("{}-response", received.command));
    if let Some(thread) = &received.thread {
        add("thrid", thread);
    }
    match reply {
        RankReply::Refused(why) => {
            add("rc", "-1");
            add("errmsg", why);
        }
        _ => add("rc", "0"),
    }
    match reply {
        RankReply::FullInit { rank, size } => {
            for (key, value) in [
                ("pmi-version", "2"),
                ("pmi-subversion", "0"),
                ("rank", &rank.to_string()),
                ("size", &size.to_string()),
                ("appnum", "0"),
                ("debugged", "FALSE"),
                ("pmiverbose", "FALSE"),
            ] {
                add(key, value);
            }
        }
        RankReply::SpaceName(name) => add("jobid", name),
        RankReply::Found(port) if received.command == "name-lookup" => {
            add("found", "TRUE");
            add("port", port);
        }
        RankReply::Found(value) => {
            add("found", "TRUE");
            add("value", value);
        }
        RankReply::Absent => add("found", "FALSE"),
        RankReply::Done
        | RankReply::Refused(_)
        | RankReply::Init { .. }
        | RankReply::Maxes
        | RankReply::AppNumber
        | RankReply::UniverseSize(_) => {}
    }
    format!("{:LENGTH_DIGITS$}{text}", text.len()).into_bytes()
}
