//! What the endpoint keeps in the data folder, so that the next agent goes on with running jobs:
//! its port, and the tokens of live attempts.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tessera_kernel_queue::TaskKey;
use tessera_model::spec::{Class, Priority};
use tessera_model::{AttemptId, SliceId};
use tessera_wire::kernel::identity::{from_hex, to_hex};

use super::Token;
use crate::core::kernel::Admission;

/// Returns the endpoint's folder.
pub fn folder(data: &Path) -> PathBuf {
    data.join("kernel")
}

/// An admission as it is kept.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    attempt: AttemptId,
    token: String,
    slice: SliceId,
    task: TaskKey,
    priority: Priority,
    class: Class,
    share_thousandths: u32,
}

/// Writes an admission down, before its token is given out.
///
/// Not synced: after a crash of the machine no attempt is left to use it.
///
/// # Errors
///
/// The data folder can't be written.
pub fn keep(data: &Path, admission: &Admission, token: &Token) -> io::Result<()> {
    let kept = Kept {
        attempt: admission.attempt,
        token: to_hex(&token.0),
        slice: admission.slice.clone(),
        task: admission.task.clone(),
        priority: admission.priority,
        class: admission.class,
        share_thousandths: admission.share_thousandths,
    };
    let text = serde_json::to_string(&kept).map_err(io::Error::other)?;
    write(&path(data, admission.attempt), text.as_bytes())
}

/// Forgets an admission.
pub fn forget(data: &Path, attempt: AttemptId) {
    // One that stays is removed when the next agent starts.
    let _ = fs::remove_file(path(data, attempt));
}

/// Reads an attempt's admission.
pub fn kept(data: &Path, attempt: AttemptId) -> Option<(Admission, Token)> {
    let text = fs::read_to_string(path(data, attempt)).ok()?;
    let kept: Kept = serde_json::from_str(&text).ok()?;
    let token = Token(from_hex(&kept.token).ok()?);
    let admission = Admission {
        attempt: kept.attempt,
        slice: kept.slice,
        task: kept.task,
        priority: kept.priority,
        class: kept.class,
        share_thousandths: kept.share_thousandths,
    };
    Some((admission, token))
}

/// Reads the admissions of attempts that are alive; those of others are removed.
pub fn adopt(data: &Path, is_alive: impl Fn(AttemptId) -> bool) -> Vec<(Admission, Token)> {
    let Ok(entries) = fs::read_dir(folder(data).join("attempts")) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let attempt = name.to_str().and_then(|name| name.strip_suffix(".json")?.parse().ok());
        match attempt.filter(|attempt| is_alive(*attempt)).and_then(|a| kept(data, a)) {
            Some(admitted) => found.push(admitted),
            None => drop(fs::remove_file(entry.path())),
        }
    }
    found
}

/// Reads the port that the endpoint had.
pub fn port(data: &Path) -> Option<u16> {
    fs::read_to_string(folder(data).join("port")).ok()?.trim().parse().ok()
}

/// Writes the endpoint's port down.
///
/// # Errors
///
/// The data folder can't be written.
pub fn keep_port(data: &Path, port: u16) -> io::Result<()> {
    write(&folder(data).join("port"), port.to_string().as_bytes())
}

/// Finds the shim that came with this program: in `kernel-shim/` beside it, or beside its folder.
pub fn find_shim(program: &Path) -> Option<PathBuf> {
    let own = program.parent()?;
    let beside = [Some(own), own.parent()];
    let places = beside.into_iter().flatten().map(|at| at.join("kernel-shim/libcuda.so.1"));
    places.into_iter().find(|place| place.is_file())
}

/// Returns where gate pages are if nothing else is said: in memory, by the data folder's name, so
/// that the next agent finds them and another agent of the machine doesn't.
pub fn gates_of(data: &Path) -> PathBuf {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        return folder(data).join("gates");
    }
    let whole = data.canonicalize().unwrap_or_else(|_| data.to_owned());
    let name = crc32fast::hash(whole.as_os_str().as_encoded_bytes());
    memory.join(format!("tessera-kernel-{name:08x}"))
}

fn path(data: &Path, attempt: AttemptId) -> PathBuf {
    folder(data).join("attempts").join(format!("{attempt}.json"))
}

/// Writes a file that only its owner reads, whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admissions_of_live_attempts_are_found_again_and_others_are_removed() {
        let data = tempfile::tempdir().unwrap();
        let admission = |number: u128| Admission {
            attempt: AttemptId::from_uuid(uuid::Uuid::from_u128(number)),
            slice: "MIG-1".parse().unwrap(),
            task: TaskKey::new("ada: train").unwrap(),
            priority: Priority::try_from(3).unwrap(),
            class: Class::Online,
            share_thousandths: 1_000,
        };
        let (alive, dead) = (admission(1), admission(2));
        keep(data.path(), &alive, &Token([7; 32])).unwrap();
        keep(data.path(), &dead, &Token([8; 32])).unwrap();

        let found = adopt(data.path(), |attempt| attempt == alive.attempt);

        assert_eq!(found, [(alive, Token([7; 32]))]);
        assert!(kept(data.path(), dead.attempt).is_none());
    }

    #[test]
    fn a_token_is_itself_only_and_is_never_shown() {
        let token = Token([0xab; 32]);
        let mut other = [0xab; 32];
        assert!(token.is(&other));

        other[31] ^= 1;

        assert!(!token.is(&other));
        assert_eq!(format!("{token:?}"), "Token");
    }
}
