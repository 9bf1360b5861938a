//! The priority of the thread that serves a session, in a real process next to the endpoint.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use tessera_agent::kernel::may_raise;
use tessera_frames::kernel::{SESSION_THREAD_NAME, ToQueue};

use crate::rig::{Attempt, HelloOverrides, PATIENCE, Rig, Shim};

/// A process whose only thread has a name; killed when dropped.
struct NamedProcess(Child);

impl NamedProcess {
    /// Starts a shell that takes the name, reports it, and waits for the end of its input.
    fn start(name: &str) -> Self {
        let script = format!("printf {name} > /proc/$$/comm; echo ready; read -r end");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    fn number(&self) -> u32 {
        self.0.id()
    }

    fn nice(&self) -> i32 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.number())).unwrap();
        // Behind the name in brackets the state is the first field, and the nice value the seventeenth.
        stat.rsplit(") ").next().unwrap().split(' ').nth(16).unwrap().parse().unwrap()
    }

    async fn await_nice(&self, nice: i32) {
        let reached = async {
            while self.nice() != nice {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.unwrap();
    }
}

impl Drop for NamedProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn join(rig: &mut Rig, task: &str, process: &NamedProcess) -> (Attempt, Shim) {
    let attempt = rig.admit("MIG-1", task, 0);
    let oddly = HelloOverrides { pid: Some(process.number()), ..HelloOverrides::default() };
    let shim = Shim::try_join(&attempt, oddly).await.unwrap();
    (attempt, shim)
}

#[tokio::test]
async fn a_sessions_thread_is_raised_until_the_session_ends() {
    if !may_raise() {
        eprintln!("SKIPPED: this account may raise no threads");
        return;
    }
    let mut rig = Rig::new();
    let process = NamedProcess::start(SESSION_THREAD_NAME);
    let before = process.nice();
    let (attempt, mut shim) = join(&mut rig, "one", &process).await;

    shim.writer.send(&ToQueue::SessionThread { thread: process.number() }).await.unwrap();
    process.await_nice(-10).await;
    // It is answered after the thread was counted.
    shim.define(0).await;
    drop(shim);

    process.await_nice(before).await;
    assert_eq!(rig.tally(&attempt).await.raised, 1);
}

#[tokio::test]
async fn threads_that_serve_no_session_are_not_raised() {
    let mut rig = Rig::new();
    let (worker, stranger) =
        (NamedProcess::start("worker"), NamedProcess::start(SESSION_THREAD_NAME));
    let before = (worker.nice(), stranger.nice());
    // One names a thread with another name, and one the thread of another process.
    for (process, thread) in [(&worker, worker.number()), (&worker, stranger.number())] {
        let (attempt, mut shim) = join(&mut rig, "one", process).await;
        shim.writer.send(&ToQueue::SessionThread { thread }).await.unwrap();
        // It is answered after the thread was looked at.
        shim.define(0).await;
        assert_eq!(rig.tally(&attempt).await.raised, 0);
    }

    assert_eq!((worker.nice(), stranger.nice()), before);
}
