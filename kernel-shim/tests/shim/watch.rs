//! The shim watches programs without a queue: their memory, refusals, and the first launch.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::job::Job;

/// States of the shim, in its counters.
const INERT: u64 = 1;
const WATCHING: u64 = 6;
const WATCHED: u64 = 7;

/// The attempt's pipe, as the shepherd has it.
struct Pipe {
    path: PathBuf,
    file: File,
    _folder: tempfile::TempDir,
}

impl Pipe {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut options = File::options();
        let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path);
        Self { path, file: file.unwrap(), _folder: folder }
    }

    /// Returns what was written since the last look, without the process id.
    fn lines(&mut self) -> Vec<String> {
        let mut bytes = Vec::new();
        match self.file.read_to_end(&mut bytes) {
            Err(why) if why.kind() == ErrorKind::WouldBlock => {}
            other => panic!("a pipe without an end: {other:?}"),
        }
        let text = String::from_utf8(bytes).unwrap();
        let without_pid = |line: &str| {
            let words: Vec<_> = line.split(' ').collect();
            assert!(words[1].parse::<u32>().is_ok(), "{line}");
            [&words[..1], &words[2..]].concat().join(" ")
        };
        text.lines().map(without_pid).collect()
    }
}

fn watched(pipe: &Path, more: &[(&str, &str)]) -> Job {
    Job::watched(pipe, more)
}

#[test]
fn memory_refusals_and_the_first_launch_are_reported_and_then_launches_are_left_alone() {
    let mut pipe = Pipe::new();
    let mut job = watched(&pipe.path, &[]);
    assert_eq!(job.send("init"), "0");
    assert_eq!(job.counters().state, WATCHING);

    job.numbers("alloc x 100000000");
    job.numbers("alloc x 50000000");
    assert_eq!(job.send("fail cuMemAlloc_v2 2"), "0");
    assert!(job.send("alloc x 7000000").starts_with("2 "), "the driver's own answer");
    assert_eq!(job.send("fail cuMemAlloc_v2 0"), "0");
    job.launch("k0", 1);
    let (calls, launched) = (job.send("all-calls"), job.counters().state);
    job.launch("k0", 1_000);

    assert_eq!(launched, WATCHED);
    // 4 x 2 x 1 blocks of 32 threads.
    let expected = [
        "d 100000000 100000000 1",
        "d 150000000 150000000 2",
        "r 7000000 150000000 2",
        "f 150000000 8 1",
    ];
    assert_eq!(pipe.lines(), expected);
    let after: u64 = job.send("all-calls").parse().unwrap();
    // The test's program looks the kernel up once.
    assert!(after - calls.parse::<u64>().unwrap() <= 1_003, "nothing but the launches: {after}");
    assert_eq!(job.numbers("inside")[0], 1, "no thread");
    assert!(job.end().success());
    assert!(pipe.lines().is_empty(), "nothing is left to report");
}

#[test]
fn what_was_not_reported_yet_is_reported_at_the_end() {
    let mut pipe = Pipe::new();
    let mut job = watched(&pipe.path, &[]);
    assert_eq!(job.send("init"), "0");
    job.numbers("alloc x 100000000");
    job.numbers("alloc x 1000000");
    assert!(job.end().success());

    assert_eq!(pipe.lines(), ["d 100000000 100000000 1", "d 101000000 101000000 2"]);
}

#[test]
fn a_request_that_is_given_after_a_refusal_is_reported_at_once() {
    let mut pipe = Pipe::new();
    let mut job = watched(&pipe.path, &[]);
    assert_eq!(job.send("init"), "0");
    job.numbers("alloc x 100000000");
    job.send("fail cuMemAlloc_v2 2");
    job.send("alloc x 5000");
    job.send("fail cuMemAlloc_v2 0");
    job.numbers("alloc x 4000");

    let expected = ["d 100000000 100000000 1", "r 5000 100000000 1", "d 100004000 100004000 2"];
    assert_eq!(pipe.lines(), expected);
}

#[test]
fn with_a_tool_of_nvidias_or_without_the_agents_word_nothing_is_watched() {
    let mut pipe = Pipe::new();
    for more in [("CUDA_INJECTION64_PATH", "/opt/tool.so"), ("TESSERA_WATCH", "off")] {
        let mut job = watched(&pipe.path, &[more]);
        assert_eq!(job.send("init"), "0");
        job.numbers("alloc x 100000000");
        job.launch("k0", 10);

        assert_eq!(job.counters().state, INERT, "{more:?}");
        assert_eq!(job.arrived().launches, 10);
        assert!(pipe.lines().is_empty(), "{more:?}");
    }
}

#[test]
fn a_full_pipe_and_a_missing_one_cost_the_program_nothing() {
    let pipe = Pipe::new();
    let gone = pipe.path.with_file_name("gone");
    let full = [b'x'; 4_096];
    let mut filled = &pipe.file;
    while std::io::Write::write(&mut filled, &full).is_ok() {}
    for path in [&pipe.path, &gone] {
        let mut job = watched(path, &[]);
        assert_eq!(job.send("init"), "0");
        for _ in 0..100 {
            assert_eq!(job.numbers("alloc x 100000000")[0], 0);
        }
        job.launch("k0", 10);

        assert_eq!((job.counters().memory_used, job.arrived().launches), (10_000_000_000, 10));
        assert!(job.end().success());
    }
}

#[test]
fn a_forked_child_is_left_alone() {
    let mut pipe = Pipe::new();
    let mut job = watched(&pipe.path, &[]);
    assert_eq!(job.send("init"), "0");

    let child = job.send("fork x");

    assert!(child.starts_with("0 "), "{child}");
    assert_eq!(child.split(' ').nth(3), Some("5"), "dead in the child: {child}");
    assert!(pipe.lines().is_empty());
    job.launch("k0", 1);
    assert_eq!(pipe.lines(), ["f 0 8 1"]);
}
