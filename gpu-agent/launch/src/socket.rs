//! Messages with descriptors, over a socket that keeps message boundaries.

use std::io::{self, Read as _, Seek as _, Write as _};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::ptr;

use crate::order::{ORDER_BYTES_MAX, Reply, Request};
use crate::sys::{self, check};

/// The longest message that the socket itself carries; longer ones are passed in a file in memory.
const SHORT: usize = 16 * 1024;
/// Most descriptors of a message.
const DESCRIPTORS_MAX: usize = 16;
/// First byte of a message: its text follows, or is in the first descriptor.
const HERE: u8 = 0;
const IN_FILE: u8 = 1;

/// One end.
#[derive(Debug)]
pub struct Socket(OwnedFd);

/// What a read brought.
#[derive(Debug)]
pub enum Received<T> {
    /// A message with its descriptors.
    Message(T, Vec<OwnedFd>),
    /// Nothing yet.
    Nothing,
    /// The other end is gone.
    End,
}

impl Socket {
    /// Makes both ends. Executed programs don't inherit them, and they don't block.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn pair() -> io::Result<(Self, Self)> {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the array has control for both; the descriptors are new and nobody else's.
        unsafe {
            check(libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()))?;
            Ok((Self(OwnedFd::from_raw_fd(ends[0])), Self(OwnedFd::from_raw_fd(ends[1]))))
        }
    }

    /// Takes over a descriptor that is one end.
    pub const fn from_end(end: OwnedFd) -> Self {
        Self(end)
    }

    /// Gives the descriptor away.
    pub fn into_end(self) -> OwnedFd {
        self.0
    }

    /// Returns what `poll` takes.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Returns its number.
    pub fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Sends a request with descriptors.
    ///
    /// # Errors
    ///
    /// The other end is gone, or reads nothing.
    pub fn request(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(&request.encode(), descriptors)
    }

    /// Sends a reply with descriptors.
    ///
    /// # Errors
    ///
    /// As [`Self::request`].
    pub fn reply(&self, reply: &Reply, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(&reply.encode(), descriptors)
    }

    /// Receives a request.
    ///
    /// # Errors
    ///
    /// The bytes are not a request: close the connection.
    pub fn receive_request(&self) -> io::Result<Received<Request>> {
        self.receive(Request::decode)
    }

    /// Receives a reply.
    ///
    /// # Errors
    ///
    /// The bytes are not a reply: close the connection.
    pub fn receive_reply(&self) -> io::Result<Received<Reply>> {
        self.receive(Reply::decode)
    }

    fn send(&self, text: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if text.len() <= SHORT {
            let message = [&[HERE], text].concat();
            return self.send_raw(&message, descriptors);
        }
        let mut file = sys::memory_file()?;
        file.write_all(text)?;
        let all: Vec<_> = [file.as_fd()].into_iter().chain(descriptors.iter().copied()).collect();
        self.send_raw(&[IN_FILE], &all)
    }

    fn receive<T>(&self, decode: fn(&[u8]) -> io::Result<T>) -> io::Result<Received<T>> {
        let (message, mut descriptors) = match self.receive_raw() {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Received::Nothing);
            }
            Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => {
                return Ok(Received::End);
            }
            Err(error) => return Err(error),
        };
        let decoded = match message.split_first() {
            None => return Ok(Received::End),
            Some((&HERE, text)) => decode(text),
            Some((&IN_FILE, _)) if !descriptors.is_empty() => {
                let mut text = Vec::new();
                let mut file = std::fs::File::from(descriptors.remove(0));
                // A pipe could keep the reader waiting, so only a file that can be rewound is accepted.
                file.rewind()?;
                file.take(ORDER_BYTES_MAX as u64).read_to_end(&mut text)?;
                decode(&text)
            }
            Some(_) => Err(io::ErrorKind::InvalidData.into()),
        };
        decoded.map(|message| Received::Message(message, descriptors))
    }

    /// Sends bytes with descriptors as one message.
    ///
    /// # Errors
    ///
    /// As [`Self::request`].
    pub fn send_raw(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let numbers: Vec<RawFd> = descriptors.iter().map(|fd| fd.as_raw_fd()).collect();
        if numbers.len() > DESCRIPTORS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut part =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = [0_u64; DESCRIPTORS_MAX];
        // SAFETY: the header is plain numbers and pointers, for which zero means "not used".
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        let length = numbers.len() * size_of::<RawFd>();
        if !numbers.is_empty() {
            header.msg_control = control.as_mut_ptr().cast();
            // SAFETY: arithmetic; the control is larger than what sixteen descriptors take.
            unsafe {
                let length = u32::try_from(length).unwrap_or(0);
                header.msg_controllen = libc::CMSG_SPACE(length) as _;
                let first = libc::CMSG_FIRSTHDR(&raw const header);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_RIGHTS;
                (*first).cmsg_len = libc::CMSG_LEN(length) as _;
                let data: *mut RawFd = libc::CMSG_DATA(first).cast();
                ptr::copy_nonoverlapping(numbers.as_ptr(), data, numbers.len());
            }
        }
        // SAFETY: the header and all that it refers to outlive the call.
        check(unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) }
            as i64)
        .map(drop)
    }

    /// Receives one message with its descriptors; no bytes at all if the other end is gone.
    ///
    /// # Errors
    ///
    /// There is none yet (`WouldBlock`), or the socket is broken.
    pub fn receive_raw(&self) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let mut bytes = vec![0; SHORT + 1];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = [0_u64; DESCRIPTORS_MAX];
        // SAFETY: the header is plain numbers and pointers, for which zero means "not used".
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control) as _;
        // SAFETY: the header and all that it refers to outlive the call.
        let read = check(unsafe {
            libc::recvmsg(self.0.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC)
        } as i64)?;
        bytes.truncate(usize::try_from(read).unwrap_or(0));
        let mut descriptors = Vec::new();
        // SAFETY: the kernel has filled the header; each descriptor is new and nobody else's.
        unsafe {
            let mut entry = libc::CMSG_FIRSTHDR(&raw const header);
            while !entry.is_null() {
                if (*entry).cmsg_level == libc::SOL_SOCKET && (*entry).cmsg_type == libc::SCM_RIGHTS
                {
                    let length =
                        ((*entry).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                    let data: *const RawFd = libc::CMSG_DATA(entry).cast();
                    for index in 0..length / size_of::<RawFd>() {
                        let number = ptr::read_unaligned(data.add(index));
                        descriptors.push(OwnedFd::from_raw_fd(number));
                    }
                }
                entry = libc::CMSG_NXTHDR(&raw const header, entry);
            }
        }
        Ok((bytes, descriptors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::FileOrder;

    #[test]
    fn short_and_long_messages_arrive_with_their_descriptors() {
        let (here, there) = Socket::pair().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for length in [1, SHORT - 100, SHORT * 3, 400_000] {
            let folder = FileOrder {
                account: None,
                uid_min: 1,
                root_allowed: false,
                path: "x".repeat(length),
                within_ms: 1,
            };
            let request = Request::Remove(folder);
            here.request(&request, &[null.as_fd(), null.as_fd()]).unwrap();

            let Received::Message(received, descriptors) = there.receive_request().unwrap() else {
                panic!("nothing came")
            };
            assert!(received == request, "{length}");
            assert_eq!(descriptors.len(), 2);
        }
        assert!(matches!(there.receive_request().unwrap(), Received::Nothing));
        drop(here);
        // Another test of this process may have forked: its child has a copy until it executes its program.
        until_readable(&there);
        assert!(matches!(there.receive_request().unwrap(), Received::End));
    }

    fn until_readable(socket: &Socket) {
        let mut waits = libc::pollfd { fd: socket.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which outlives the call.
        let ready = unsafe { libc::poll(&raw mut waits, 1, 30_000) };
        assert_eq!(ready, 1, "nothing comes in half a minute");
    }
}
