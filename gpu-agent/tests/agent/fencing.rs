//! The fencing protocol, played against a real agent: restarts, leases, generations, epochs,
//! tombstones, and the death of each process in turn.

use std::path::Path;
use std::time::Duration;

use crate::common::{
    Agent, CONTROLLER, Cluster, Place, Session, eventually, kill, order, runs, shell,
};
use tessera_frames::cluster::{AttemptStatus, LaunchOrder, StopCause, ToAgent, ToController};
use tessera_model::life::Outcome;
use tessera_model::spec::OutputPaths;
use tessera_model::{AttemptId, Millis};

fn start(cluster: &Cluster, data: &Path) -> Agent {
    cluster.start_with(data, |command| {
        command.env("TESSERA_SIM_MIG", "off");
    })
}

async fn stage() -> (Cluster, Agent, Session, Place) {
    let cluster = Cluster::new();
    let data = cluster.enrol("n1");
    let agent = start(&cluster, &data);
    let session = cluster.welcome().await;
    let place = Place::on(&session.gpu("A100"));
    (cluster, agent, session, place)
}

/// Kills the agent before it can send anything.
fn kill_agent(agent: &mut Agent) {
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
}

fn restart(cluster: &Cluster, agent: &mut Agent) {
    let new = start(cluster, &agent.data.clone());
    // The old one is dead already: its clean-up must not touch the shepherds.
    let old = std::mem::replace(agent, new);
    std::mem::forget(old);
}

fn counted(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// A program that writes a line each time that it is started, and then runs until killed.
fn counting(place: &Place, path: &Path) -> LaunchOrder {
    shell(place, &format!("echo started >> {}; sleep 60", path.display()))
}

#[tokio::test]
async fn a_killed_agent_finds_its_running_attempts_again() {
    let (cluster, mut agent, mut session, place) = stage().await;
    let marks = cluster.folder.path().join("marks");
    let order = counting(&place, &marks);
    session.launch(&order).await;
    let pid = session.until_running(order.attempt).await;

    kill_agent(&mut agent);
    assert!(runs(pid), "attempts don't need their agent");
    restart(&cluster, &mut agent);
    let mut session = cluster.welcome().await;

    let found = session.reported(order.attempt);
    assert!(matches!(found, Some(AttemptStatus::Running { pid: p, .. }) if p == pid), "{found:?}");
    let stop = ToAgent::Stop { epoch: 1, attempt: order.attempt, cause: StopCause::Cancel };
    session.send(stop).await;
    assert_eq!(session.until_ended(order.attempt).await.outcome, Outcome::Cancelled);
    assert_eq!(counted(&marks), 1);
}

#[tokio::test]
async fn an_end_that_came_while_the_agent_was_dead_is_reported_until_it_is_acknowledged() {
    let (cluster, mut agent, mut session, place) = stage().await;
    let gate = cluster.folder.path().join("gate");
    let line = format!("while [ ! -e {} ]; do sleep 0.01; done; exit 7", gate.display());
    let order = shell(&place, &line);
    session.launch(&order).await;
    let pid = session.until_running(order.attempt).await;

    kill_agent(&mut agent);
    std::fs::write(&gate, "").unwrap();
    eventually("the program has ended", || !runs(pid)).await;

    for _ in 0..2 {
        restart(&cluster, &mut agent);
        let session = cluster.welcome().await;
        let Some(AttemptStatus::Ended(record)) = session.reported(order.attempt) else {
            panic!("{:?}", session.inventory)
        };
        assert_eq!(record.exit, Some(tessera_model::life::ProgramExit::Code(7)), "{record:?}");
        kill_agent(&mut agent);
    }
    restart(&cluster, &mut agent);
    let mut session = cluster.welcome().await;
    session.send(ToAgent::EndAck { attempt: order.attempt }).await;
    // In the same order as the acknowledgement: when this ends, that has been taken in.
    session.run(&crate::common::order(&place, &["/bin/true"])).await;
    kill_agent(&mut agent);
    restart(&cluster, &mut agent);
    assert_eq!(cluster.welcome().await.reported(order.attempt), None);
}

#[expect(clippy::disallowed_methods, reason = "the test measures how soon the attempt is dead")]
#[tokio::test]
async fn a_killed_shepherd_takes_its_attempt_along_within_a_second() {
    for groups in [true, false] {
        let cluster = Cluster::new();
        let data = cluster.enrol("n1");
        let config = data.join("agent.toml");
        std::fs::write(&config, format!("cgroups = {groups}\n")).unwrap();
        let agent = cluster.start_with(&data, |command| {
            command.env("TESSERA_SIM_MIG", "off").arg("--config").arg(&config);
        });
        let mut session = cluster.welcome().await;
        let place = Place::on(&session.gpu("A100"));
        let order = shell(&place, "setsid sleep 60 & echo $!; sleep 60");
        session.launch(&order).await;
        let pid = session.until_running(order.attempt).await;
        let stdout =
            agent.data.join(format!("outputs/{}.out", order.attempt.as_uuid().hyphenated()));
        eventually("the daemon is up", || counted(&stdout) == 1).await;
        let daemon = std::fs::read_to_string(&stdout).unwrap().trim().parse().unwrap();

        let killed = std::time::Instant::now();
        for shepherd in shepherds(&agent) {
            kill(shepherd, "-KILL");
        }
        let record = session.until_ended(order.attempt).await;

        assert_eq!(record.outcome, Outcome::Lost, "{record:?}");
        eventually("all of it is dead", || !runs(pid) && !runs(daemon)).await;
        assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    }
}

fn shepherds(agent: &Agent) -> Vec<u32> {
    let entries = std::fs::read_dir(agent.data.join("shepherds")).unwrap();
    entries.flatten().filter_map(|entry| crate::common::shepherd_pid(&entry.path())).collect()
}

#[tokio::test]
async fn a_shepherd_that_died_with_the_agent_is_reported_as_lost() {
    let (cluster, mut agent, mut session, place) = stage().await;
    let order = shell(&place, "sleep 60");
    session.launch(&order).await;
    let pid = session.until_running(order.attempt).await;

    kill_agent(&mut agent);
    shepherds(&agent).into_iter().for_each(|shepherd| kill(shepherd, "-KILL"));
    eventually("the program is dead", || !runs(pid)).await;
    restart(&cluster, &mut agent);
    let session = cluster.welcome().await;

    let Some(AttemptStatus::Ended(record)) = session.reported(order.attempt) else {
        panic!("{:?}", session.inventory)
    };
    assert_eq!(record.outcome, Outcome::Lost);
}

#[tokio::test]
async fn an_attempt_that_left_no_file_is_reported_as_lost_too_and_not_as_never_begun() {
    let (cluster, mut agent, mut session, place) = stage().await;
    let nowhere = Some("/dev/null".to_owned());
    let mut order = shell(&place, "sleep 60");
    order.run.work_dir = Some("/".to_owned());
    order.run.output = OutputPaths { stdout: nowhere.clone(), stderr: nowhere };
    session.launch(&order).await;
    let pid = session.until_running(order.attempt).await;
    let left = |folder: &str| std::fs::read_dir(agent.data.join(folder)).unwrap().count();
    // Only the folder for temporary files.
    assert_eq!((left("attempts"), left("outputs")), (1, 0));

    kill_agent(&mut agent);
    shepherds(&agent).into_iter().for_each(|shepherd| kill(shepherd, "-KILL"));
    eventually("the program is dead", || !runs(pid)).await;
    for folder in std::fs::read_dir(agent.data.join("attempts")).unwrap() {
        std::fs::remove_dir_all(folder.unwrap().path()).unwrap();
    }
    for _ in 0..2 {
        restart(&cluster, &mut agent);
        let session = cluster.welcome().await;
        let Some(AttemptStatus::Ended(record)) = session.reported(order.attempt) else {
            panic!("{:?}", session.inventory)
        };
        assert_eq!(record.outcome, Outcome::Lost);
        kill_agent(&mut agent);
    }
}

#[expect(clippy::disallowed_methods, reason = "the test measures how soon the attempt is dead")]
#[tokio::test]
async fn a_lease_that_runs_out_ends_the_attempt_with_the_agent_dead() {
    let cluster = Cluster::new();
    let data = cluster.enrol("n1");
    let mut agent = start(&cluster, &data);
    let mut session = cluster.accept().await;
    session.welcome(1, 1, 2).await;
    let place = Place::on(&session.gpu("A100"));
    let order = shell(&place, "sleep 60");
    session.launch(&order).await;
    let pid = session.until_running(order.attempt).await;

    kill_agent(&mut agent);
    let dead = std::time::Instant::now();
    eventually("the program is dead", || !runs(pid)).await;

    let took = dead.elapsed();
    assert!(took < Duration::from_millis(2_200), "{took:?}");
    restart(&cluster, &mut agent);
    let session = cluster.welcome().await;
    let Some(AttemptStatus::Ended(record)) = session.reported(order.attempt) else {
        panic!("{:?}", session.inventory)
    };
    assert_eq!(record.outcome, Outcome::Lost);
    assert!(record.detail.contains("lease expired"), "{record:?}");
}

#[tokio::test]
async fn a_controller_that_grants_no_lease_gets_no_launches() {
    let cluster = Cluster::new();
    let data = cluster.enrol("n1");
    let _agent = start(&cluster, &data);
    let mut session = cluster.accept().await;
    session.renewing = false;
    session.welcome(1, 1, 60).await;
    let place = Place::on(&session.gpu("A100"));

    let record = session.run(&order(&place, &["/bin/true"])).await;

    assert_eq!(record.outcome, Outcome::NotStarted);
    assert!(record.detail.contains("no lease"), "{record:?}");
}

#[tokio::test]
async fn a_repeated_launch_starts_nothing_a_second_time() {
    let (cluster, mut agent, mut session, place) = stage().await;
    let marks = cluster.folder.path().join("marks");
    let order = counting(&place, &marks);

    session.launch(&order).await;
    session.launch(&order).await;
    session.until_running(order.attempt).await;
    session.launch(&order).await;
    session.until_running(order.attempt).await;
    kill_agent(&mut agent);
    restart(&cluster, &mut agent);
    let mut session = cluster.welcome().await;
    session.launch(&order).await;
    session.until_running(order.attempt).await;
    session
        .send(ToAgent::Stop { epoch: 1, attempt: order.attempt, cause: StopCause::Cancel })
        .await;
    session.until_ended(order.attempt).await;
    session.send(ToAgent::EndAck { attempt: order.attempt }).await;
    session.launch(&order).await;
    session.until_tombstoned(order.attempt).await;

    assert_eq!(counted(&marks), 1);
}

#[tokio::test]
async fn a_tombstone_refuses_the_launch_also_after_a_restart() {
    let (cluster, mut agent, mut session, place) = stage().await;
    let marks = cluster.folder.path().join("marks");
    let order = counting(&place, &marks);

    session.send(ToAgent::Revoke { epoch: 1, attempt: order.attempt }).await;
    session.until_tombstoned(order.attempt).await;
    session.launch(&order).await;
    session.until_tombstoned(order.attempt).await;
    kill_agent(&mut agent);
    restart(&cluster, &mut agent);
    let mut session = cluster.welcome().await;
    session.launch(&order).await;
    session.until_tombstoned(order.attempt).await;

    assert_eq!(counted(&marks), 0);
}

#[tokio::test]
async fn a_revoked_attempt_that_runs_is_killed_first() {
    let (_cluster, _agent, mut session, place) = stage().await;
    let order = shell(&place, "trap '' TERM; sleep 60");
    session.launch(&order).await;
    let pid = session.until_running(order.attempt).await;

    session.send(ToAgent::Revoke { epoch: 1, attempt: order.attempt }).await;
    session.until_tombstoned(order.attempt).await;

    assert!(!runs(pid));
}

#[tokio::test]
async fn a_new_generation_kills_the_old_ones_attempts_before_anything_else() {
    let (cluster, mut agent, mut session, place) = stage().await;
    let order = shell(&place, "sleep 60");
    session.launch(&order).await;
    let pid = session.until_running(order.attempt).await;
    session.connection.close(0_u32.into(), b"gone");

    let mut session = cluster.accept().await;
    assert_eq!(session.hello.generation, 1);
    session.welcome(1, 2, 60).await;

    assert!(!runs(pid), "dead before the inventory was reported");
    let Some(AttemptStatus::Ended(record)) = session.reported(order.attempt) else {
        panic!("{:?}", session.inventory)
    };
    assert_eq!(record.outcome, Outcome::Lost, "{record:?}");
    let late = crate::common::order(&place, &["/bin/true"]);
    let refused = session.run(&late).await;
    assert_eq!(refused.outcome, Outcome::NotStarted, "it is for generation 1");

    kill_agent(&mut agent);
    restart(&cluster, &mut agent);
    assert_eq!(cluster.accept().await.hello.generation, 2);
}

#[tokio::test]
async fn commands_and_controllers_of_an_older_epoch_are_refused_also_after_a_restart() {
    let cluster = Cluster::new();
    let data = cluster.enrol("n1");
    let mut agent = start(&cluster, &data);
    let mut session = cluster.accept().await;
    session.welcome(5, 1, 60).await;
    let place = Place::on(&session.gpu("A100"));
    let old = LaunchOrder { epoch: 4, ..order(&place, &["/bin/true"]) };
    let new = LaunchOrder { epoch: 5, ..order(&place, &["/bin/true"]) };

    session.launch(&old).await;
    session.launch(&new).await;
    let first = session.next().await;
    let ToController::Attempt(report) = first else { panic!("{first:?}") };
    assert_eq!(report.attempt, new.attempt, "the old order is not even answered");

    kill_agent(&mut agent);
    restart(&cluster, &mut agent);
    let mut session = cluster.accept().await;
    assert_eq!((session.hello.highest_epoch, session.hello.controller), (5, Some(CONTROLLER)));
    let terms = Session::terms(4, 1, 60, &session);
    session.send(ToAgent::Welcome(terms)).await;
    assert_eq!(session.try_next().await, None, "the agent hangs up");
}

#[tokio::test]
async fn another_controller_is_refused() {
    let (cluster, _agent, session, _) = stage().await;
    session.connection.close(0_u32.into(), b"gone");
    let mut session = cluster.accept().await;
    let mut terms = Session::terms(9, 9, 60, &session);
    terms.controller = tessera_model::ControllerId::from_uuid(uuid::Uuid::from_u128(78));

    session.send(ToAgent::Welcome(terms)).await;

    assert_eq!(session.try_next().await, None, "the agent hangs up");
    assert_eq!(cluster.accept().await.hello.generation, 1, "and remembers nothing of it");
}

#[tokio::test]
async fn a_node_that_is_refused_for_good_stops_and_leaves_its_attempts_running() {
    let (_cluster, mut agent, mut session, place) = stage().await;
    let order = shell(&place, "sleep 60");
    session.launch(&order).await;
    let pid = session.until_running(order.attempt).await;

    let refused = ToAgent::Refused { reason: "superseded".into(), retry: false };
    session.send(refused).await;
    eventually("the agent stops", || agent.child.try_wait().unwrap().is_some()).await;

    assert_eq!(agent.child.wait().unwrap().code(), Some(78));
    assert!(runs(pid));
}

#[expect(clippy::disallowed_methods, reason = "the test measures how soon the agent ends")]
#[tokio::test]
async fn a_terminated_agent_stops_at_once_and_leaves_its_attempts_running() {
    let (_cluster, mut agent, mut session, place) = stage().await;
    let order = shell(&place, "sleep 60");
    session.launch(&order).await;
    let pid = session.until_running(order.attempt).await;

    let requested = std::time::Instant::now();
    kill(agent.child.id(), "-TERM");

    assert!(agent.child.wait().unwrap().success());
    assert!(requested.elapsed() < Duration::from_secs(2));
    assert!(runs(pid));
}

#[tokio::test]
async fn a_second_agent_on_the_same_folder_is_refused() {
    let (cluster, agent, _session, _) = stage().await;

    let second = cluster.command(&agent.data).output().unwrap();

    assert_eq!(second.status.code(), Some(1));
    let text = String::from_utf8(second.stderr).unwrap();
    assert!(text.contains("another agent works in"), "{text}");
}

#[tokio::test]
async fn settings_can_be_checked_without_running() {
    let cluster = Cluster::new();
    let data = cluster.enrol("n1");

    let checked = cluster.command(&data).arg("--check").output().unwrap();

    let text = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.status.success() && text.contains("# node n1"), "{text}");
}

#[tokio::test]
async fn an_idle_node_whose_agent_died_leaves_no_shepherds() {
    let (_cluster, mut agent, mut session, place) = stage().await;
    session.run(&order(&place, &["/bin/true"])).await;
    let idle = shepherds(&agent);
    assert!(!idle.is_empty());

    kill_agent(&mut agent);

    eventually("they are gone", || idle.iter().all(|pid| !runs(*pid))).await;
}

#[tokio::test]
async fn a_damaged_journal_is_cut_and_its_rest_is_kept() {
    let (cluster, mut agent, mut session, place) = stage().await;
    let revoked = AttemptId::from_uuid(uuid::Uuid::now_v7());
    session.send(ToAgent::Revoke { epoch: 1, attempt: revoked }).await;
    session.until_tombstoned(revoked).await;
    kill_agent(&mut agent);
    let path = agent.data.join("journal");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend_from_slice(&[7; 21]);
    std::fs::write(&path, bytes).unwrap();

    restart(&cluster, &mut agent);
    let mut session = cluster.welcome().await;
    session.launch(&LaunchOrder { attempt: revoked, ..order(&place, &["/bin/true"]) }).await;

    session.until_tombstoned(revoked).await;
    assert!(agent.data.join("journal.damaged").exists());
    let mut fine = order(&place, &["/bin/true"]);
    fine.run.grace = Millis::new(1);
    assert_eq!(session.run(&fine).await.outcome, Outcome::Succeeded);
}
