//! Where the REST API listens: a Unix socket, and an address with or without TLS.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tessera_model::number::index;

use crate::calls::JobCallSocket;

/// What the API is served on.
#[derive(Debug, Default)]
pub struct Listeners {
    /// Sockets in the file system: the kernel names the callers.
    pub unix: Vec<UnixListener>,
    /// Addresses: callers have tokens.
    pub tcp: Vec<TcpListener>,
    /// How connections to the addresses are encrypted, if they are.
    pub tls: Option<rustls::ServerConfig>,
    /// How long a client at an address may leave an answer unread; [`UNREAD_FOR`] if absent.
    pub unread_for: Option<Duration>,
    /// By which calls of jobs' processes come in; its listener is among those in the file system.
    pub job_calls: Option<JobCallSocket>,
}

/// How long a client may leave an answer unread. Then its connection is closed, and what was kept for it is freed.
pub const UNREAD_FOR: Duration = Duration::from_secs(30);

/// Longest path of a Unix socket, which is the kernel's limit.
const SOCKET_PATH_MAX: usize = 107;

/// Listens on a Unix socket that all users may connect to: the kernel identifies the caller.
///
/// # Errors
///
/// Another process serves it, or something else than a socket lies there.
pub fn bind_socket(path: &Path) -> anyhow::Result<UnixListener> {
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        bail!(
            "the socket's path {} has more than {SOCKET_PATH_MAX} bytes: choose a shorter one with \
             --socket",
            path.display()
        );
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {
            if UnixStream::connect(path).is_ok() {
                bail!("another process serves {}: stop it first", path.display());
            }
            // A process that was killed left it.
            fs::remove_file(path).with_context(|| format!("can't replace {}", path.display()))?;
        }
        Ok(_) => bail!("{} is not a socket: choose another path with --socket", path.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(error).with_context(|| format!("can't inspect {}", path.display()));
        }
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("can't create {}", folder.display()))?;
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("can't listen on {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))
        .with_context(|| format!("can't open {} for all users", path.display()))?;
    Ok(listener)
}

/// Raises the limit of open files to what the system allows, and returns it.
pub fn raise_open_files() -> Option<u64> {
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limits.maximum, maximum: limits.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limits.maximum,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files stays as it was");
            limits.current
        }
    }
}

/// Returns how many files may be open.
pub fn open_files_max() -> usize {
    index(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_a_killed_process_left_is_replaced_and_one_in_use_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/api.sock");

        let first = bind_socket(&path).unwrap();
        let taken = bind_socket(&path).unwrap_err().to_string();
        drop(first);
        let again = bind_socket(&path).unwrap();

        assert!(taken.contains("stop it first"), "{taken}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        drop(again);
        let file = folder.path().join("file");
        fs::write(&file, "precious").unwrap();
        assert!(bind_socket(&file).unwrap_err().to_string().contains("not a socket"));
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    }

    #[test]
    fn a_path_that_is_too_long_for_a_socket_is_refused_with_what_to_do() {
        let long = Path::new("/tmp").join("x".repeat(120)).join("api.sock");

        assert!(bind_socket(&long).unwrap_err().to_string().contains("--socket"));
    }
}
