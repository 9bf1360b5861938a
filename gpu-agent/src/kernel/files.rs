//! The endpoint's files in the data folder: its ports and the tokens of live attempts. With them the
//! next agent serves running jobs.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tessera_kernel_queue::TaskKey;
use tessera_model::spec::{Class, Priority};
use tessera_model::{AttemptId, GpuId, SliceId};
use tessera_wire::kernel_identity::{from_hex, to_hex};

use super::Token;
use tessera_agent_core::kernel::{Admission, PageOwner};

/// Returns the endpoint's folder.
pub fn folder(data: &Path) -> PathBuf {
    data.join("kernel")
}

/// The stored form of an admission.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredAdmission {
    attempt: AttemptId,
    token: String,
    gpu: GpuId,
    slice: SliceId,
    task: TaskKey,
    priority: Priority,
    class: Class,
    share_thousandths: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    exclusive: bool,
    /// The uid and gid of the page's owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<(u32, u32)>,
}

/// Stores an admission, before its token is given out.
///
/// The file is not synced: after a crash of the machine no attempt is left to use it.
///
/// # Errors
///
/// The data folder can't be written.
pub fn write_admission(data: &Path, admission: &Admission, token: &Token) -> io::Result<()> {
    let kept = StoredAdmission {
        attempt: admission.attempt,
        token: to_hex(&token.0),
        gpu: admission.gpu.clone(),
        slice: admission.slice.clone(),
        task: admission.task.clone(),
        priority: admission.priority,
        class: admission.class,
        share_thousandths: admission.share_thousandths,
        exclusive: admission.exclusive,
        owner: admission.owner.map(|owner| (owner.uid, owner.gid)),
    };
    let text = serde_json::to_string(&kept).map_err(io::Error::other)?;
    write_private_file(&admission_path(data, admission.attempt), text.as_bytes())
}

pub fn remove_admission(data: &Path, attempt: AttemptId) {
    // A remaining file is removed when the next agent starts.
    let _ = fs::remove_file(admission_path(data, attempt));
}

/// Reads an attempt's admission.
pub fn read_admission(data: &Path, attempt: AttemptId) -> Option<(Admission, Token)> {
    let text = fs::read_to_string(admission_path(data, attempt)).ok()?;
    let kept: StoredAdmission = serde_json::from_str(&text).ok()?;
    let token = Token(from_hex(&kept.token).ok()?);
    let admission = Admission {
        attempt: kept.attempt,
        gpu: kept.gpu,
        slice: kept.slice,
        task: kept.task,
        priority: kept.priority,
        class: kept.class,
        share_thousandths: kept.share_thousandths,
        exclusive: kept.exclusive,
        owner: kept.owner.map(|(uid, gid)| PageOwner { uid, gid }),
    };
    Some((admission, token))
}

/// Reads the admissions of live attempts, and removes the others.
pub fn read_live_admissions(
    data: &Path,
    is_alive: impl Fn(AttemptId) -> bool,
) -> Vec<(Admission, Token)> {
    let Ok(entries) = fs::read_dir(folder(data).join("attempts")) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let attempt = name.to_str().and_then(|name| name.strip_suffix(".json")?.parse().ok());
        match attempt.filter(|attempt| is_alive(*attempt)).and_then(|a| read_admission(data, a)) {
            Some(admitted) => found.push(admitted),
            None => drop(fs::remove_file(entry.path())),
        }
    }
    found
}

/// Reads the previous port of a GPU's queues.
pub fn read_port(data: &Path, gpu: &GpuId) -> Option<u16> {
    fs::read_to_string(port_path(data, gpu)).ok()?.trim().parse().ok()
}

/// Stores the port of a GPU's queues.
///
/// # Errors
///
/// The data folder can't be written.
pub fn write_port(data: &Path, gpu: &GpuId, port: u16) -> io::Result<()> {
    write_private_file(&port_path(data, gpu), port.to_string().as_bytes())
}

/// Finds the shim that belongs to this program, in `kernel-shim/` next to it or to its folder.
pub fn find_shim(program: &Path) -> Option<PathBuf> {
    let own = program.parent()?;
    let folders = [Some(own), own.parent()];
    let places = folders.into_iter().flatten().map(|at| at.join("kernel-shim/libcuda.so.1"));
    places.into_iter().find(|place| place.is_file())
}

/// Returns the default folder of the gate pages' sockets, which is in memory. Its name depends on the data folder,
/// so that the next agent finds it and other agents of the machine don't.
pub fn gates_of(data: &Path) -> PathBuf {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        return folder(data).join("gates");
    }
    let whole = data.canonicalize().unwrap_or_else(|_| data.to_owned());
    let name = crc32fast::hash(whole.as_os_str().as_encoded_bytes());
    memory.join(format!("tessera-kernel-{name:08x}"))
}

fn port_path(data: &Path, gpu: &GpuId) -> PathBuf {
    // A GPU's id has letters, digits and dashes only.
    folder(data).join("ports").join(gpu.as_str())
}

fn admission_path(data: &Path, attempt: AttemptId) -> PathBuf {
    folder(data).join("attempts").join(format!("{attempt}.json"))
}

/// Writes a file atomically that only its owner can read.
fn write_private_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
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
            gpu: "GPU-1".parse().unwrap(),
            slice: "MIG-1".parse().unwrap(),
            task: TaskKey::new("ada: train").unwrap(),
            priority: Priority::try_from(3).unwrap(),
            class: Class::Online,
            share_thousandths: 300,
            exclusive: number == 1,
            owner: (number == 1).then_some(PageOwner { uid: 64_001, gid: 64_002 }),
        };
        let (alive, dead) = (admission(1), admission(2));
        write_admission(data.path(), &alive, &Token([7; 32])).unwrap();
        write_admission(data.path(), &dead, &Token([8; 32])).unwrap();

        let found = read_live_admissions(data.path(), |attempt| attempt == alive.attempt);

        assert_eq!(found, [(alive, Token([7; 32]))]);
        assert!(read_admission(data.path(), dead.attempt).is_none());
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
