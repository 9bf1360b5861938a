//! MPS of users under an agent with its own account: a worker as the user starts it, and does all that follows.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tessera_frames::cluster::{LaunchOrder, StopCause, ToAgent};
use tessera_model::life::Outcome;

use super::unprivileged::{
    AGENT, GpuRights, HostProc, refusal, run_as_agent, unprivileged_stage_with,
};
use super::{
    ADA, EVE, Stage, attack_daemon, is_root, let_share, name_programs, owner, start_agent, variable,
};
use crate::common::{eventually, kill, runs};

/// A node that shares slices, whose agent has its own account.
async fn sharing_stage(host: HostProc) -> Option<Stage> {
    unprivileged_stage_with(host, GpuRights::Agent, "", let_share).await
}

impl Stage {
    /// The folder that the agent sees as `/etc`.
    fn etc(&self) -> PathBuf {
        self.extra[0].path().join("etc")
    }

    /// Kills the agent, and starts another one.
    async fn replace_agent(&mut self, host: HostProc) {
        self.agent.child.kill().unwrap();
        self.agent.child.wait().unwrap();
        let (data, etc) = (self.agent.data.clone(), self.etc());
        let next = start_agent(&self.cluster, &data, |folder, command| {
            name_programs(folder, command);
            run_as_agent(command, &etc, host);
        });
        // Its end would end the shepherds.
        std::mem::forget(std::mem::replace(&mut self.agent, next));
        self.session = self.cluster.welcome().await;
    }

    /// Sets what goes wrong with the node's MPS.
    fn mps_faults(&self, list: &str) {
        let path = self.agent.data.join("sim/mps-faults");
        std::fs::write(&path, list).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    }

    /// Starts a client of the slice's MPS server; returns its folder of pipes.
    async fn share(&mut self, order: &LaunchOrder) -> PathBuf {
        self.session.launch(order).await;
        let pid = self.session.until_running(order.attempt).await;
        self.until_prints(order, "shares ").await;
        variable(pid, "CUDA_MPS_PIPE_DIRECTORY")
    }

    async fn cancel(&mut self, order: &LaunchOrder) {
        let (attempt, cause) = (order.attempt, StopCause::Cancel);
        self.session.send(ToAgent::Stop { epoch: 1, attempt, cause }).await;
        let record = self.session.until_ended(attempt).await;
        assert_eq!(record.outcome, Outcome::Cancelled, "{record:?}");
    }
}

fn daemon_of(pipes: &Path) -> u32 {
    let written = std::fs::read_to_string(pipes.join("nvidia-cuda-mps-control.pid")).unwrap();
    written.trim().parse().unwrap()
}

fn status(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap()
}

/// The workers of a node for a user.
fn workers(stage: &Stage, uid: u32) -> Vec<u32> {
    let program = stage.extra[0].path().join("tessera-agent");
    let started = format!("{}\0mps-worker\0", program.display());
    let is_worker = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line == started.as_bytes()
            && std::fs::metadata(format!("/proc/{pid}"))
                .is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == uid)
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_worker).collect()
}

#[tokio::test]
async fn users_share_slices_by_mps_under_an_agent_without_privileges_that_is_replaced() {
    if !is_root() {
        return;
    }
    for host in [HostProc::All, HostProc::Own] {
        let Some(stage) = sharing_stage(host).await else { return };
        share_under_two_agents(stage, host).await;
    }
}

async fn share_under_two_agents(mut stage: Stage, host: HostProc) {
    assert!(stage.session.hello.mps);
    // A client that is killed without the daemon's help breaks its server.
    stage.mps_faults("poison_percent=100\n");
    let home = stage.home();
    let done = home.join("done");
    let (one, two) = (stage.client("ada", &done), stage.client("ada", &done));

    let pipes = stage.share(&one).await;
    assert_eq!(stage.share(&two).await, pipes, "they have one daemon");

    let folder = pipes.parent().unwrap().to_owned();
    assert_eq!(owner(&pipes), (ADA, 0o700));
    assert_eq!(owner(&folder.join("l")), (ADA, 0o700));
    assert_eq!(owner(&folder), (AGENT, 0o711));
    let daemon = status(daemon_of(&pipes));
    for line in [
        "Uid:\t64001\t64001\t64001\t64001",
        "Gid:\t64001\t64001\t64001\t64001",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
    ] {
        assert!(daemon.contains(line), "{line}: {daemon}");
    }
    attack_daemon(&mut stage, &folder).await;

    // The daemon outlives the agent and its worker, and the next agent takes it over.
    let before = workers(&stage, ADA);
    stage.replace_agent(host).await;
    eventually("the worker ends with its agent", || !before.iter().any(|pid| runs(*pid))).await;
    // They end by force, in the order that NVIDIA prescribes, and the other goes on.
    stage.cancel(&two).await;
    let three = stage.client("ada", &done);
    assert_eq!(stage.share(&three).await, pipes, "the daemon is taken over");
    stage.cancel(&three).await;
    let log = std::fs::read_to_string(folder.join("l/control.log")).unwrap();
    assert_eq!(log.matches("Cmd:terminate_client ").count(), 2, "{log}");
    std::fs::write(&done, "").unwrap();
    let record = stage.session.until_ended(one.attempt).await;
    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}");
    assert!(!folder.exists(), "the daemon's folders are gone");
    eventually("the worker ends with its daemon", || workers(&stage, ADA).is_empty()).await;

    // The next user of the slice gets a daemon of her own.
    let next = stage.client("eve", &home.join("never"));
    let pipes = stage.share(&next).await;
    assert_eq!(owner(&pipes), (EVE, 0o700));
    stage.cancel(&next).await;
}

#[tokio::test]
async fn the_death_of_a_users_daemon_is_noticed_and_the_next_job_gets_another() {
    if !is_root() {
        return;
    }
    let Some(mut stage) = sharing_stage(HostProc::Own).await else { return };
    let never = stage.home().join("never");
    let (one, two) = (stage.client("ada", &never), stage.client("ada", &never));
    let pipes = stage.share(&one).await;
    assert_eq!(stage.share(&two).await, pipes);

    kill(daemon_of(&pipes), "-KILL");

    for order in [&one, &two] {
        let record = stage.session.until_ended(order.attempt).await;
        assert_eq!(record.outcome, Outcome::Collateral, "{record:?}");
        assert!(record.detail.contains("MPS daemon died"), "{record:?}");
    }
    eventually("its folders are removed", || !pipes.exists()).await;
    let next = stage.client("ada", &never);
    assert_ne!(stage.share(&next).await, pipes);
    stage.cancel(&next).await;
}

#[tokio::test]
async fn a_user_who_stops_the_worker_of_her_daemon_affects_nobody() {
    if !is_root() {
        return;
    }
    let Some(mut stage) = sharing_stage(HostProc::Own).await else { return };
    let never = stage.home().join("never");
    let one = stage.client("ada", &never);
    stage.share(&one).await;
    let [worker] = workers(&stage, ADA)[..] else { panic!("{:?}", workers(&stage, ADA)) };

    stage.elsewhere("ada", &format!("kill -STOP {worker}")).await;

    assert_eq!(stage.elsewhere("eve", "echo unharmed").await, "unharmed\n");
    // It is ended though it is stopped, and another takes its place.
    eventually("the stopped worker ends", || !runs(worker)).await;
    let two = stage.client("ada", &never);
    stage.share(&two).await;
    stage.cancel(&one).await;
    stage.cancel(&two).await;
    eventually("the worker ends with its daemon", || workers(&stage, ADA).is_empty()).await;
}

#[tokio::test]
async fn a_death_without_disconnecting_is_examined_as_the_slices_user() {
    if !is_root() {
        return;
    }
    for (percent, survives) in [(0, true), (100, false)] {
        let Some(mut stage) = sharing_stage(HostProc::Own).await else { return };
        stage.mps_faults(&format!("poison_percent={percent}\n"));
        let never = stage.home().join("never");
        let (one, dying) = (stage.client("ada", &never), stage.client("ada", &never));
        stage.share(&one).await;
        stage.session.launch(&dying).await;
        let pid = stage.session.until_running(dying.attempt).await;
        stage.until_prints(&dying, "shares ").await;

        kill(pid, "-KILL");

        let record = stage.session.until_ended(dying.attempt).await;
        assert_ne!(record.outcome, Outcome::Succeeded, "{record:?}");
        if survives {
            // Its server is healthy, as the canary found.
            stage.cancel(&one).await;
            continue;
        }
        let record = stage.session.until_ended(one.attempt).await;
        assert_eq!(record.outcome, Outcome::Collateral, "{record:?}");
        assert!(record.detail.contains("the slice's MPS server is broken"), "{record:?}");
    }
}

#[tokio::test]
async fn a_setuid_launcher_starts_mps_workers_of_people_only_and_only_for_its_caller() {
    if !is_root() {
        return;
    }
    let Some(mut stage) = sharing_stage(HostProc::All).await else { return };
    let launcher = stage.extra[0].path().join("tessera-launch");
    let etc = stage.etc();
    let refused = |uid: u32, words: &str| {
        let words: Vec<_> = words.split(' ').collect();
        refusal(&launcher, &etc, uid, &words)
    };
    let others = stage.cluster.folder.path().join("others");
    std::fs::create_dir(&others).unwrap();
    let link = stage.agent.data.join("link");
    std::os::unix::fs::symlink(&others, &link).unwrap();
    for (uid, words, reason) in [
        (AGENT, "0 0 0".to_owned(), "jobs of root are refused"),
        (AGENT, "0 64001 64001".to_owned(), "jobs of root are refused"),
        (AGENT, "2 2 2".to_owned(), "belongs to the system"),
        (AGENT, "65534 65534 65534".to_owned(), "unknown users"),
        (AGENT, format!("{AGENT} {AGENT} {AGENT}"), "agent's own account"),
        (AGENT, "64001 0 64001".to_owned(), "group of root"),
        (AGENT, "64001 64001 64001,0".to_owned(), "group of root"),
        (AGENT, "64001".to_owned(), "UID GID GROUPS"),
        (AGENT, "64001 64001 64001 /tmp /bin/sh".to_owned(), "UID GID GROUPS"),
        // It makes folders for a user only in those of its caller, and follows no link.
        (AGENT, format!("64001 64001 64001 {}", others.display()), "another account"),
        (AGENT, format!("64001 64001 64001 {}", link.display()), "link/p"),
        (EVE, "64001 64001 64001".to_owned(), "may not start it"),
        (ADA, "64001 64001 64001".to_owned(), "may not start it"),
    ] {
        let found = refused(uid, &format!("--mps-worker {words}"));
        assert!(found.contains(reason), "{uid} {words}: {found}");
    }
    assert!(std::fs::read_dir(&others).unwrap().next().is_none(), "nothing was made");

    // A program that others may change runs as no user, and the node then reports no MPS.
    let worker = stage.extra[0].path().join("tessera-agent");
    std::fs::set_permissions(&worker, PermissionsExt::from_mode(0o775)).unwrap();
    let found = refused(AGENT, "--mps-worker 64001 64001 64001");
    assert!(found.contains("writable for nobody else"), "{found}");
    stage.replace_agent(HostProc::All).await;
    assert!(!stage.session.hello.mps);
    let order = stage.client("ada", Path::new("/never"));
    let record = stage.session.run(&order).await;
    assert_eq!(record.outcome, Outcome::LaunchFailed, "{record:?}");
    assert!(record.detail.contains("starts no MPS for other accounts"), "{record:?}");
}
