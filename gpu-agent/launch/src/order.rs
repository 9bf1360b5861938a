//! What a shepherd and its launcher send each other, and its encoding.
//!
//! It has its own encoding, since a decoder that runs as root has to be short enough to be reviewed as a
//! whole. Numbers are in little-endian order, and texts and lists have their length before them. Lengths are
//! checked against the remaining bytes before anything is allocated.

use std::io;

/// Longest text, and longest list, that is taken.
const LENGTH_MAX: usize = 4 << 20;
/// Longest encoded order.
pub const ORDER_BYTES_MAX: usize = 16 << 20;

/// An account, by numbers: names are looked up elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The user.
    pub uid: u32,
    /// The user's main group.
    pub gid: u32,
    /// All groups of the user.
    pub groups: Vec<u32>,
}

/// What an attempt runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A program and its arguments, the program's name first.
    Command(Vec<String>),
    /// The text of a script, and its arguments.
    Script(String, Vec<String>),
    /// No program: the process connects to this port of its own host, and copies between it and its streams.
    Connect(u16),
}

/// Where standard input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// From nowhere.
    Null,
    /// From a descriptor that comes with the order.
    Given,
    /// From a terminal, which becomes the program's controlling one; its descriptor comes with the order.
    Terminal,
}

/// Where an output goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Into a file that the shepherd opened; its descriptor comes with the order.
    Given,
    /// Into a file that the user named.
    Path(String),
    /// Where standard output goes.
    SameAsStdout,
}

/// What an attempt may see and do beyond its account's rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one setting of the operator's")]
pub struct Walls {
    /// It has a private `/tmp` and `/var/tmp`.
    pub private_tmp: bool,
    /// It sees only its account's processes in `/proc`.
    pub hide_processes: bool,
    /// Nothing that it runs gets more rights than it has: `sudo` and `ping` don't work.
    pub no_new_privileges: bool,
    /// It may be root's. Counts only if the caller is root itself.
    pub root_allowed: bool,
}

/// One device node, by its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// Which of its devices.
    pub minor: u32,
}

/// Which GPUs' device nodes an attempt may open. Device nodes of other drivers are not affected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceRules {
    /// Drivers whose nodes are closed unless they are in `open`.
    pub guarded: Vec<u32>,
    /// The attempt's own nodes.
    pub open: Vec<DeviceNumber>,
}

/// Everything that a program is started from.
///
/// Descriptors come with it in this order: the lease page, the control group if there is one, and groups of
/// version 1. Then come standard input unless it is [`Input::Null`], and the outputs that are [`Output::Given`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Its account; `None` for the launcher's own.
    pub account: Option<Account>,
    /// The smallest uid of a person. Counts only if the caller is root itself.
    pub uid_min: u32,
    /// What runs.
    pub program: Program,
    /// The words of a program that starts it, and gets the program's words as its last arguments; empty for
    /// none.
    pub wrapper: Vec<String>,
    /// `NAME=value`.
    pub environment: Vec<String>,
    /// The attempt's own folder, if it needs one: the launcher makes it, and gives it to the account.
    pub own: Option<String>,
    /// Where the program runs; its own folder, if not given.
    pub work_dir: Option<String>,
    /// Standard input.
    pub stdin: Input,
    /// The file that standard input comes from, if it is [`Input::Null`] and the user named one.
    pub input: Option<String>,
    /// Standard output.
    pub stdout: Output,
    /// Standard error.
    pub stderr: Output,
    /// Whether it joins a running attempt: the attempt's folders exist, and its end does not end the attempt.
    pub joins: bool,
    /// Whether files that the user named are added to rather than emptied.
    pub append: bool,
    /// A line to write before the program's output into files that are added to.
    pub headline: Option<String>,
    /// The generation that the lease must have.
    pub generation: u64,
    /// The boot that the lease must be of.
    pub boot: [u8; 16],
    /// How long opening the user's paths may take, in milliseconds.
    pub open_within_ms: u32,
    /// What it may see and do.
    pub walls: Walls,
    /// Which devices it may open; `None` for no rules.
    pub devices: Option<DeviceRules>,
    /// Whether a control group comes with it.
    pub has_group: bool,
    /// How many groups of version 1 come with it.
    pub v1_groups: u8,
}

/// A file or folder of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOrder {
    /// Its account; `None` for the launcher's own.
    pub account: Option<Account>,
    /// The smallest uid of a person. Counts only if the caller is root itself.
    pub uid_min: u32,
    /// Whether it may be root's. Counts only if the caller is root itself.
    pub root_allowed: bool,
    /// Where it is.
    pub path: String,
    /// How long it may take, in milliseconds.
    pub within_ms: u32,
}

/// From a shepherd to its launcher. When the connection closes, the attempt is killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Start a program.
    Start(Box<Order>),
    /// Signal the program and its process group; one that has not started is killed.
    Signal(i32),
    /// Signal the program alone, or only the processes that its steps started. Does nothing before it runs.
    SignalPart {
        /// The signal.
        number: i32,
        /// Whether the program gets the signal; otherwise its steps do.
        first_only: bool,
    },
    /// Kill the program and its process group.
    Kill,
    /// Open a file as its account, and send its descriptor.
    Read {
        /// The file to be read as the user.
        file: FileOrder,
        /// The file system that it was on when the attempt opened it.
        device: u64,
        /// Its number there.
        inode: u64,
        /// When it was made, since numbers are used again.
        born: u64,
    },
    /// Remove, as its account, what is in a folder.
    Remove(FileOrder),
}

/// An output that the user named, and may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadableOutput {
    /// 1 for standard output, 2 for standard error.
    pub stream: u8,
    /// How long it was before the program wrote.
    pub length: u64,
}

/// From a launcher to its shepherd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The program runs. The descriptors of user-named outputs that its account may read come with it.
    Started {
        /// The number of the started process.
        pid: u32,
        /// Which outputs' descriptors these are.
        readable: Vec<ReadableOutput>,
    },
    /// It was never started, and nothing of it runs.
    Failed {
        /// Whether that is the job's own fault, not the node's.
        by_job: bool,
        /// Whether the reason is the lease.
        lease: bool,
        /// One sentence for people.
        detail: String,
    },
    /// It is over, and nothing of it runs.
    Ended {
        /// The wait status.
        status: i32,
        /// User time in milliseconds.
        user_ms: u64,
        /// System time in milliseconds.
        system_ms: u64,
        /// Largest resident set, in KiB.
        max_rss_kib: u64,
        /// Whether its control group was killed, which makes the group useless.
        group_killed: bool,
        /// Whether no process of it is left: false if one hangs in the kernel.
        clean: bool,
    },
    /// Answers a read: the descriptor comes with it, if the text is empty.
    Opened {
        /// Why there is none.
        refusal: String,
    },
    /// Answers a removal.
    Removed,
}

/// Writes values one after another.
#[derive(Debug, Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    fn flag(&mut self, value: bool) {
        self.u8(u8::from(value));
    }
    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn length(&mut self, length: usize) {
        self.u32(u32::try_from(length).unwrap_or(u32::MAX));
    }
    fn text(&mut self, text: &str) {
        self.length(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }
    fn texts(&mut self, texts: &[String]) {
        self.length(texts.len());
        texts.iter().for_each(|text| self.text(text));
    }
    fn numbers(&mut self, numbers: &[u32]) {
        self.length(numbers.len());
        numbers.iter().for_each(|number| self.u32(*number));
    }
    fn option<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }
    fn account(&mut self, account: Option<&Account>) {
        self.option(account, |w, account| {
            w.u32(account.uid);
            w.u32(account.gid);
            w.numbers(&account.groups);
        });
    }
    fn output(&mut self, output: &Output) {
        match output {
            Output::Given => self.u8(0),
            Output::Path(path) => {
                self.u8(1);
                self.text(path);
            }
            Output::SameAsStdout => self.u8(2),
        }
    }
}

/// Reads them back.
struct Reader<'a>(&'a [u8]);

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a message of the launcher's: {what}"))
}

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or_else(|| invalid("cut short"))?;
        self.0 = rest;
        Ok(*bytes)
    }
    fn u8(&mut self) -> io::Result<u8> {
        self.bytes().map(|[byte]: [u8; 1]| byte)
    }
    fn flag(&mut self) -> io::Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(invalid("neither yes nor no")),
        }
    }
    fn u32(&mut self) -> io::Result<u32> {
        self.bytes().map(u32::from_le_bytes)
    }
    fn i32(&mut self) -> io::Result<i32> {
        self.bytes().map(i32::from_le_bytes)
    }
    fn u64(&mut self) -> io::Result<u64> {
        self.bytes().map(u64::from_le_bytes)
    }
    fn length(&mut self) -> io::Result<usize> {
        let length = self.u32()? as usize;
        // Every element takes at least a byte, so a length beyond the rest is wrong.
        if length > LENGTH_MAX || length > self.0.len() {
            return Err(invalid("a length that can't be"));
        }
        Ok(length)
    }
    fn text(&mut self) -> io::Result<String> {
        let length = self.length()?;
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8(text.to_vec()).map_err(|_| invalid("a text that is none"))
    }
    fn texts(&mut self) -> io::Result<Vec<String>> {
        (0..self.length()?).map(|_| self.text()).collect()
    }
    fn numbers(&mut self) -> io::Result<Vec<u32>> {
        (0..self.length()?).map(|_| self.u32()).collect()
    }
    fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }
    fn account(&mut self) -> io::Result<Option<Account>> {
        self.option(|r| Ok(Account { uid: r.u32()?, gid: r.u32()?, groups: r.numbers()? }))
    }
    fn output(&mut self) -> io::Result<Output> {
        match self.u8()? {
            0 => Ok(Output::Given),
            1 => self.text().map(Output::Path),
            2 => Ok(Output::SameAsStdout),
            _ => Err(invalid("an unknown output")),
        }
    }
    fn end<T>(self, value: T) -> io::Result<T> {
        if self.0.is_empty() { Ok(value) } else { Err(invalid("more than there should be")) }
    }
}

impl Order {
    fn write(&self, w: &mut Writer) {
        w.account(self.account.as_ref());
        w.u32(self.uid_min);
        match &self.program {
            Program::Command(words) => {
                w.u8(0);
                w.texts(words);
            }
            Program::Script(text, arguments) => {
                w.u8(1);
                w.text(text);
                w.texts(arguments);
            }
            Program::Connect(port) => {
                w.u8(2);
                w.u32(u32::from(*port));
            }
        }
        w.texts(&self.wrapper);
        w.texts(&self.environment);
        w.option(self.own.as_ref(), |w, own| w.text(own));
        w.option(self.work_dir.as_ref(), |w, folder| w.text(folder));
        w.u8(match self.stdin {
            Input::Null => 0,
            Input::Given => 1,
            Input::Terminal => 2,
        });
        w.option(self.input.as_ref(), |w, path| w.text(path));
        w.output(&self.stdout);
        w.output(&self.stderr);
        w.flag(self.joins);
        w.flag(self.append);
        w.option(self.headline.as_ref(), |w, line| w.text(line));
        w.u64(self.generation);
        w.0.extend_from_slice(&self.boot);
        w.u32(self.open_within_ms);
        w.flag(self.walls.private_tmp);
        w.flag(self.walls.hide_processes);
        w.flag(self.walls.no_new_privileges);
        w.flag(self.walls.root_allowed);
        w.option(self.devices.as_ref(), |w, rules| {
            w.numbers(&rules.guarded);
            w.length(rules.open.len());
            for device in &rules.open {
                w.u32(device.major);
                w.u32(device.minor);
            }
        });
        w.flag(self.has_group);
        w.u8(self.v1_groups);
    }

    fn read(r: &mut Reader<'_>) -> io::Result<Self> {
        Ok(Self {
            account: r.account()?,
            uid_min: r.u32()?,
            program: match r.u8()? {
                0 => Program::Command(r.texts()?),
                1 => Program::Script(r.text()?, r.texts()?),
                2 => Program::Connect(
                    u16::try_from(r.u32()?).map_err(|_| invalid("no port of this number"))?,
                ),
                _ => return Err(invalid("an unknown program")),
            },
            wrapper: r.texts()?,
            environment: r.texts()?,
            own: r.option(Reader::text)?,
            work_dir: r.option(Reader::text)?,
            stdin: match r.u8()? {
                0 => Input::Null,
                1 => Input::Given,
                2 => Input::Terminal,
                _ => return Err(invalid("an unknown input")),
            },
            input: r.option(Reader::text)?,
            stdout: r.output()?,
            stderr: r.output()?,
            joins: r.flag()?,
            append: r.flag()?,
            headline: r.option(Reader::text)?,
            generation: r.u64()?,
            boot: r.bytes()?,
            open_within_ms: r.u32()?,
            walls: Walls {
                private_tmp: r.flag()?,
                hide_processes: r.flag()?,
                no_new_privileges: r.flag()?,
                root_allowed: r.flag()?,
            },
            devices: r.option(|r| {
                let guarded = r.numbers()?;
                let open = (0..r.length()?)
                    .map(|_| Ok(DeviceNumber { major: r.u32()?, minor: r.u32()? }))
                    .collect::<io::Result<_>>()?;
                Ok(DeviceRules { guarded, open })
            })?,
            has_group: r.flag()?,
            v1_groups: r.u8()?,
        })
    }
}

impl FileOrder {
    fn write(&self, w: &mut Writer) {
        w.account(self.account.as_ref());
        w.u32(self.uid_min);
        w.flag(self.root_allowed);
        w.text(&self.path);
        w.u32(self.within_ms);
    }

    fn read(r: &mut Reader<'_>) -> io::Result<Self> {
        Ok(Self {
            account: r.account()?,
            uid_min: r.u32()?,
            root_allowed: r.flag()?,
            path: r.text()?,
            within_ms: r.u32()?,
        })
    }
}

impl Request {
    /// Returns the request's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Self::Start(order) => {
                w.u8(0);
                order.write(&mut w);
            }
            Self::Signal(number) => {
                w.u8(1);
                w.u32(number.cast_unsigned());
            }
            Self::Kill => w.u8(2),
            Self::Read { file, device, inode, born } => {
                w.u8(3);
                file.write(&mut w);
                w.u64(*device);
                w.u64(*inode);
                w.u64(*born);
            }
            Self::SignalPart { number, first_only } => {
                w.u8(5);
                w.u32(number.cast_unsigned());
                w.flag(*first_only);
            }
            Self::Remove(folder) => {
                w.u8(4);
                folder.write(&mut w);
            }
        }
        w.0
    }

    /// Reads a request.
    ///
    /// # Errors
    ///
    /// These are not the bytes of one.
    pub fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut r = Reader(bytes);
        let request = match r.u8()? {
            0 => Self::Start(Box::new(Order::read(&mut r)?)),
            1 => Self::Signal(r.i32()?),
            2 => Self::Kill,
            3 => Self::Read {
                file: FileOrder::read(&mut r)?,
                device: r.u64()?,
                inode: r.u64()?,
                born: r.u64()?,
            },
            4 => Self::Remove(FileOrder::read(&mut r)?),
            5 => Self::SignalPart { number: r.i32()?, first_only: r.flag()? },
            _ => return Err(invalid("an unknown request")),
        };
        r.end(request)
    }
}

impl Reply {
    /// Returns the reply's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Self::Started { pid, readable } => {
                w.u8(0);
                w.u32(*pid);
                w.length(readable.len());
                for output in readable {
                    w.u8(output.stream);
                    w.u64(output.length);
                }
            }
            Self::Failed { by_job, lease, detail } => {
                w.u8(1);
                w.flag(*by_job);
                w.flag(*lease);
                w.text(detail);
            }
            Self::Ended { status, user_ms, system_ms, max_rss_kib, group_killed, clean } => {
                w.u8(2);
                w.u32(status.cast_unsigned());
                w.u64(*user_ms);
                w.u64(*system_ms);
                w.u64(*max_rss_kib);
                w.flag(*group_killed);
                w.flag(*clean);
            }
            Self::Opened { refusal } => {
                w.u8(3);
                w.text(refusal);
            }
            Self::Removed => w.u8(4),
        }
        w.0
    }

    /// Reads a reply.
    ///
    /// # Errors
    ///
    /// These are not the bytes of one.
    pub fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut r = Reader(bytes);
        let reply = match r.u8()? {
            0 => {
                let pid = r.u32()?;
                let readable = (0..r.length()?)
                    .map(|_| Ok(ReadableOutput { stream: r.u8()?, length: r.u64()? }))
                    .collect::<io::Result<_>>()?;
                Self::Started { pid, readable }
            }
            1 => Self::Failed { by_job: r.flag()?, lease: r.flag()?, detail: r.text()? },
            2 => Self::Ended {
                status: r.i32()?,
                user_ms: r.u64()?,
                system_ms: r.u64()?,
                max_rss_kib: r.u64()?,
                group_killed: r.flag()?,
                clean: r.flag()?,
            },
            3 => Self::Opened { refusal: r.text()? },
            4 => Self::Removed,
            _ => return Err(invalid("an unknown reply")),
        };
        r.end(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> Order {
        Order {
            account: Some(Account { uid: 1000, gid: 1001, groups: vec![1001, 27] }),
            uid_min: 1000,
            program: Program::Command(vec!["/bin/sh".into(), "-c".into(), "true".into()]),
            wrapper: vec!["/bin/nice".into()],
            environment: vec!["A=b".into()],
            own: Some("/data/attempts/1".into()),
            work_dir: None,
            stdin: Input::Terminal,
            input: Some("/home/ada/in".into()),
            joins: true,
            stdout: Output::Path("/home/ada/out".into()),
            stderr: Output::SameAsStdout,
            append: true,
            headline: Some("---".into()),
            generation: 7,
            boot: [3; 16],
            open_within_ms: 15_000,
            walls: Walls { private_tmp: true, no_new_privileges: true, ..Walls::default() },
            devices: Some(DeviceRules {
                guarded: vec![195],
                open: vec![DeviceNumber { major: 195, minor: 255 }],
            }),
            has_group: true,
            v1_groups: 2,
        }
    }

    #[test]
    fn requests_and_replies_read_back_and_no_cut_of_them_does() {
        let file = FileOrder {
            account: None,
            uid_min: 1,
            root_allowed: true,
            path: "/x".into(),
            within_ms: 3,
        };
        for request in [
            Request::Start(Box::new(order())),
            Request::Start(Box::new(Order {
                program: Program::Script("#!/bin/sh\n".into(), vec!["-x".into()]),
                stdin: Input::Null,
                stderr: Output::Given,
                joins: false,
                devices: None,
                ..order()
            })),
            Request::Start(Box::new(Order {
                program: Program::Connect(8888),
                stdin: Input::Given,
                ..order()
            })),
            Request::Signal(15),
            Request::Kill,
            Request::Read { file: file.clone(), device: 1, inode: 2, born: 3 },
            Request::Remove(file),
            Request::SignalPart { number: 10, first_only: true },
        ] {
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes).unwrap(), request);
            for length in 0..bytes.len() {
                assert!(Request::decode(&bytes[..length]).is_err(), "{request:?} cut at {length}");
            }
        }
        for reply in [
            Reply::Started { pid: 7, readable: vec![ReadableOutput { stream: 2, length: 9 }] },
            Reply::Failed { by_job: true, lease: false, detail: "no such program".into() },
            Reply::Ended {
                status: -1,
                user_ms: 1,
                system_ms: 2,
                max_rss_kib: 3,
                group_killed: true,
                clean: false,
            },
            Reply::Opened { refusal: String::new() },
            Reply::Removed,
        ] {
            let bytes = reply.encode();
            assert_eq!(Reply::decode(&bytes).unwrap(), reply);
            for length in 0..bytes.len() {
                assert!(Reply::decode(&bytes[..length]).is_err(), "{reply:?} cut at {length}");
            }
        }
    }

    #[test]
    fn a_length_that_is_not_there_allocates_nothing() {
        // A script of four billion bytes, in an order of seven.
        let mut bytes = Request::Start(Box::new(Order { account: None, ..order() })).encode();
        let at = 1 + 1 + 4 + 1;
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());

        assert!(Request::decode(&bytes).is_err());
    }
}
