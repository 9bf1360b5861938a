//! The memory of a gate page ([`tessera_frames::gate`]), and the socket on which a slice's jobs get it.
//!
//! The memory has no name and a seal against shrinking. A process that could truncate it would end every process that
//! reads it, by `SIGBUS`. So it is handed over as a descriptor. The socket is closed with the queue's process, and
//! shows by that whether the queue lives.

use std::fs::{self, Permissions};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, shutdown, socket_with,
};
use rustix::process::geteuid;
use tessera_frames::gate::GATE_BYTES;

/// The memory's name in lists of mappings, such as `/proc/PID/maps`.
pub const NAME: &str = "tessera-gate";
/// Connections that may wait: a slice has fewer processes that start at once.
const BACKLOG: i32 = 128;
/// Longest wait for the other end, which only has to be scheduled.
const WITHIN: Duration = Duration::from_millis(200);
/// Modes of a socket: its owner alone connects, or everyone, and the kernel names them.
const FOR_OWNER: u32 = 0o600;
const FOR_ALL: u32 = 0o666;
/// Enough for a loop of two system calls.
const STACK_BYTES: usize = 64 * 1024;

/// Makes the memory of a page, filled with zeros. It can be neither shortened nor extended.
///
/// # Errors
///
/// The system's.
pub fn create() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Systems may demand that such memory holds no program. Those before Linux 6.3 do not know the flag.
    let memory = match memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(NAME, flags)?,
        made => made?,
    };
    rustix::fs::ftruncate(&memory, GATE_BYTES as u64)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memory)
}

/// Hands a page's memory to every process that connects to its socket.
///
/// The end of this value closes the socket. Its path stays, as the path of a queue whose process died.
#[derive(Debug)]
pub struct PageServer {
    listener: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl PageServer {
    /// Listens at `path` in place of an earlier server, for the account `owner` (uid and gid), or else for this
    /// process's own. Root and this process's account get the memory, too.
    ///
    /// The kernel names each client, and others get nothing. Root also gives the socket to the owner, so that others
    /// can't even connect.
    ///
    /// # Errors
    ///
    /// The path is too long for a socket or can't be made, or the owner can't be given to it.
    pub fn start(path: &Path, owner: Option<(u32, u32)>, memory: OwnedFd) -> io::Result<Self> {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Under another name first: nobody connects before the owner is set, and an earlier socket is replaced at once.
        let new = path.with_extension("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        bind(&socket, &SocketAddrUnix::new(&new)?)?;
        let given = owner.map(|(uid, gid)| std::os::unix::fs::chown(&new, Some(uid), Some(gid)));
        let mode = match given {
            Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => FOR_ALL,
            Some(Err(error)) => return Err(error),
            Some(Ok(())) | None => FOR_OWNER,
        };
        fs::set_permissions(&new, Permissions::from_mode(mode))?;
        listen(&socket, BACKLOG)?;
        fs::rename(&new, path)?;
        let listener = Arc::new(socket);
        let served = Arc::clone(&listener);
        let thread = std::thread::Builder::new()
            .name("gate-page".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || serve(&served, owner.map(|(uid, _)| uid), memory.as_fd()))?;
        Ok(Self { listener, thread: Some(thread) })
    }
}

impl Drop for PageServer {
    fn drop(&mut self) {
        // Ends the wait of the thread.
        let _ = shutdown(&self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &OwnedFd, owner: Option<u32>, memory: BorrowedFd<'_>) {
    loop {
        match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(client) if !may_have(&client, owner) => drop(client),
            // A client that is gone, or takes nothing, has no use for it.
            Ok(client) => drop(hand_over(&client, memory)),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            // All descriptors are in use: the clients wait, and others go on meanwhile.
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                std::thread::sleep(WITHIN);
            }
            Err(_) => return,
        }
    }
}

/// Returns whether a client's account may have the memory of an owner's page.
fn may_have(client: &OwnedFd, owner: Option<u32>) -> bool {
    let named = socket_peercred(client);
    named.is_ok_and(|peer| allows(owner, geteuid().as_raw(), peer.uid.as_raw()))
}

/// Root, the server's own account, and the owner.
const fn allows(owner: Option<u32>, own: u32, uid: u32) -> bool {
    let is_owner = match owner {
        Some(owner) => owner == uid,
        None => false,
    };
    uid == 0 || uid == own || is_owner
}

fn hand_over(client: &OwnedFd, memory: BorrowedFd<'_>) -> io::Result<()> {
    set_socket_timeout(client, Timeout::Send, Some(WITHIN))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [memory];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    // A message needs a byte to carry a descriptor.
    sendmsg(client, &[IoSlice::new(b"G")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Gets the memory of the page that is served at `path`.
///
/// # Errors
///
/// Nobody serves a page there, or this account may not have it; or what is served is shorter than a page, or could
/// become shorter.
pub fn fetch(path: &Path) -> io::Result<OwnedFd> {
    let socket = connect_to(path, SocketFlags::CLOEXEC)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(WITHIN))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(&socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let memory = descriptors.ok_or_else(|| io::Error::other("its server gave no memory"))?;
    // Other files have no seals at all.
    let seals = fcntl_get_seals(&memory).unwrap_or(SealFlags::empty());
    let is_whole =
        usize::try_from(fstat(&memory)?.st_size).is_ok_and(|length| length >= GATE_BYTES);
    if !is_whole || !seals.contains(SealFlags::SHRINK) {
        return Err(io::Error::other("it is no memory of a page that stays as long as it is"));
    }
    Ok(memory)
}

/// Returns whether the process that serves a page at `path` lives. The system ends the socket with the process, and
/// not before, so that it need not be scheduled to answer.
pub fn is_served(path: &Path) -> bool {
    match connect_to(path, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(_) => true,
        // As many as may wait do so already.
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

fn connect_to(path: &Path, flags: SocketFlags) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The wait for a place in the server's queue, too.
    set_socket_timeout(&socket, Timeout::Send, Some(WITHIN))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn every_process_that_connects_gets_the_same_memory_which_nobody_can_shorten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slice.gate");
        let _server = PageServer::start(&path, None, create().unwrap()).unwrap();

        let (one, other) = (File::from(fetch(&path).unwrap()), File::from(fetch(&path).unwrap()));
        one.write_all_at(b"seen", 8).unwrap();
        let mut read = [0; 4];
        other.read_exact_at(&mut read, 8).unwrap();

        assert_eq!(&read, b"seen");
        for length in [0, GATE_BYTES as u64 - 1, GATE_BYTES as u64 + 1] {
            let refused = one.set_len(length).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{length}");
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn only_the_owner_the_servers_own_account_and_root_get_the_memory() {
        let owner = Some(64_001);
        for (uid, gets) in
            [(64_001, true), (64_010, true), (0, true), (64_002, false), (65_534, false)]
        {
            assert_eq!(allows(owner, 64_010, uid), gets, "{uid}");
        }
        assert!(!allows(None, 64_010, 64_001));
    }

    #[test]
    fn a_server_that_ends_is_seen_at_once_and_the_next_one_takes_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slice.gate");
        assert!(!is_served(&path) && fetch(&path).is_err());

        let first = PageServer::start(&path, None, create().unwrap()).unwrap();
        assert!(is_served(&path));
        drop(first);
        assert!(path.exists() && !is_served(&path));

        let _second = PageServer::start(&path, None, create().unwrap()).unwrap();
        assert!(is_served(&path) && fetch(&path).is_ok());
    }

    #[test]
    fn a_server_whose_process_is_not_scheduled_is_alive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slice.gate");
        let listener = UnixListener::bind(&path).unwrap();
        let waiting: Vec<bool> = (0..5_000).map(|_| is_served(&path)).collect();

        assert!(waiting.into_iter().all(|alive| alive), "nobody accepts, and it listens");
        drop(listener);
        assert!(!is_served(&path));
    }

    #[test]
    fn memory_that_could_shrink_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slice.gate");
        let file = File::create(folder.path().join("file")).unwrap();
        file.set_len(GATE_BYTES as u64).unwrap();
        let unsealed = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, GATE_BYTES as u64).unwrap();

        for memory in [OwnedFd::from(file), unsealed] {
            let _server = PageServer::start(&path, None, memory).unwrap();
            let refusal = fetch(&path).unwrap_err().to_string();
            assert!(refusal.contains("stays as long"), "{refusal}");
        }
    }
}
