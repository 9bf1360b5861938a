//! Agents that start, end, and start again.

use std::time::{Duration, Instant};

use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::{Cluster, Plan, SOON, command, script};
use tessera_load_tests::programs::programs;
use tessera_load_tests::{locks, processes, wait};

fn lock_job(cluster: &Cluster, key: &str, millis: u64) -> SubmitRequest {
    let program = programs().path("tessera-test-job").display().to_string();
    let folder = cluster.scratch().display().to_string();
    command([program, "lock".into(), folder, key.into(), millis.to_string()])
}

#[expect(clippy::cast_possible_truncation, reason = "the value is far below 2^32")]
#[test]
fn an_agent_that_is_killed_finds_its_running_jobs_again() {
    let mut cluster = Plan::new().node("n1", "a100-40gb").start();
    let counter = "i=0; while [ ! -e \"$GO\" ]; do i=$((i+1)); echo $i; sleep 0.05; done; exit 3";
    let go = cluster.scratch().join("go");
    let request =
        SubmitRequest { env: [("GO".into(), go.display().to_string())].into(), ..script(counter) };
    let long = cluster.submit(&request).job_id;
    let short = cluster.submit(&lock_job(&cluster, "short", 1_500)).job_id;
    let long_pid = wait::until(SOON, "first numbers", || {
        cluster.wait_job(long, SOON, "running");
        (cluster.logs(long).lines().count() > 3).then(|| cluster.job(long).attempt_list[0].clone())
    });
    cluster.wait_job(short, SOON, "running");

    cluster.agents[0].kill();
    // It ends while no agent runs.
    wait::until(SOON, "end of the short job", || {
        let runs = locks::read(&cluster.scratch()).ok()?;
        (runs.get("short")?.stopped == 1).then_some(())
    });
    assert_eq!(cluster.job(long).job.state, "running", "a lease does not expire so soon");
    let restarted = Instant::now();
    cluster.agents[0].start();

    let done = cluster.wait_job(short, SOON, "succeeded");
    assert_eq!(done.job.attempts, 1);
    cluster.wait_ready();
    let readopted = restarted.elapsed();
    std::fs::write(&go, "").unwrap();
    let done = cluster.wait_job(long, SOON, "failed");
    assert_eq!(done.job.exit_code.as_deref(), Some("3:0"), "its exit status is not lost");
    assert_eq!((done.job.attempts, &done.attempt_list[0].id), (1, &long_pid.id));
    let numbers: Vec<u32> = cluster.logs(long).lines().map(|line| line.parse().unwrap()).collect();
    assert!(
        numbers.iter().copied().eq(1..=numbers.len() as u32),
        "a gap or a restart: {numbers:?}"
    );
    assert!(readopted < Duration::from_secs(10), "found again only after {readopted:?}");
}

#[test]
fn the_jobs_of_a_permanently_lost_node_run_on_another_one() {
    let mut cluster =
        Plan::new().node("n1", "a30-24gb").node("n2", "a30-24gb").lease_secs(4).start();
    let request = SubmitRequest {
        gpu_profile: Some("4g.24gb".into()),
        ..lock_job(&cluster, "moved", 60_000)
    };
    let job = cluster.submit(&request).job_id;
    let first = cluster.wait_job(job, SOON, "running").job.node.unwrap();
    let lost = if first == "n1" { 0 } else { 1 };

    // Only the agent dies. Its shepherd must end the job by itself when the lease is over.
    let gone_at = Instant::now();
    cluster.agents[lost].kill();

    let moved = wait::until(Duration::from_secs(40), "the job on the other node", || {
        let job = cluster.job(job);
        (job.job.state == "running" && job.job.node.as_deref() != Some(&first)).then_some(job)
    });
    let after = gone_at.elapsed();
    assert!(after >= Duration::from_secs(4), "moved after {after:?}, before the lease was over");
    assert_eq!(moved.attempt_list[0].state, "lost");
    assert_eq!(moved.job.attempts, 2);
    wait::until(SOON, "second start", || {
        (locks::read(&cluster.scratch()).ok()?.get("moved")?.started == 2).then_some(())
    });
    let runs = locks::read(&cluster.scratch()).unwrap()["moved"];
    assert_eq!((runs.started, runs.stopped, runs.doubled), (2, 0, 0), "two ran at once");
    let states: Vec<_> = cluster.nodes().into_iter().map(|n| (n.name, n.state)).collect();
    assert!(states.contains(&(first, "lost".to_owned())), "{states:?}");

    // After its restart, it serves under a new generation.
    cluster.agents[lost].start();
    cluster.wait_ready();
    assert!(cluster.nodes()[lost].generation > 1);
    let other = SubmitRequest { gpu_profile: Some("4g.24gb".into()), ..command(["true"]) };
    let other = cluster.submit(&other).job_id;
    assert_eq!(cluster.wait_job(other, SOON, "succeeded").job.node, Some(moved_from(lost)));
}

fn moved_from(index: usize) -> String {
    format!("n{}", index + 1)
}

#[test]
fn a_killed_shepherd_ends_its_job_and_the_job_runs_again() {
    let cluster = Plan::new().node("n1", "a30-24gb").start();
    let job = cluster.submit(&lock_job(&cluster, "orphan", 1_500)).job_id;
    cluster.wait_job(job, SOON, "running");

    let shepherds = processes::named("tessera-shepherd", &cluster.processes());
    assert_eq!(shepherds.len(), 1, "{shepherds:?}");
    processes::signal(shepherds[0], libc::SIGKILL);

    let done = cluster.wait_job(job, SOON, "succeeded");
    let ends: Vec<_> = done.attempt_list.iter().map(|attempt| attempt.state.as_str()).collect();
    assert_eq!(ends, ["lost", "succeeded"]);
    let runs = locks::read(&cluster.scratch()).unwrap()["orphan"];
    assert_eq!((runs.started, runs.stopped, runs.doubled), (2, 1, 0));
}

#[test]
fn a_second_agent_with_the_same_identity_does_not_serve() {
    let mut cluster = Plan::new().node("n1", "a30-24gb").start();
    let job = cluster.submit(&lock_job(&cluster, "calm", 2_000)).job_id;
    cluster.wait_job(job, SOON, "running");

    // The same data folder: the second must not even start.
    let mut duplicate = cluster.second_agent(0);
    duplicate.start();
    let ended = duplicate.wait_for_end(SOON).expect("the second agent gives up");
    assert!(!ended.success(), "{}", duplicate.tail(20));

    let done = cluster.wait_job(job, SOON, "succeeded");
    assert_eq!(done.job.attempts, 1);
    assert!(cluster.agents[0].is_running());
}

#[test]
fn an_agent_with_a_copied_identity_is_refused_while_the_first_one_lives() {
    let mut cluster = Plan::new().node("n1", "a30-24gb").start();
    let job = cluster.submit(&lock_job(&cluster, "first", 4_000)).job_id;
    cluster.wait_job(job, SOON, "running");

    let mut clone = cluster.cloned_agent(0);
    clone.start();
    let ended = clone.wait_for_end(SOON).expect("the clone gives up");

    assert_eq!(ended.code(), Some(78), "{}", clone.tail(20));
    let output = clone.output();
    assert!(
        output.contains("two agents can't share an identity") && output.contains("node-cert"),
        "{output}"
    );
    assert_eq!(cluster.wait_job(job, SOON, "succeeded").job.attempts, 1);
    let runs = locks::read(&cluster.scratch()).unwrap()["first"];
    assert_eq!((runs.started, runs.stopped, runs.doubled), (1, 1, 0));

    // Once the first one is dead, its identity is free: the controller needs no command.
    cluster.agents[0].kill();
    let mut heir = cluster.cloned_agent(0);
    heir.start();
    cluster.wait_ready();
    let job = cluster.submit(&lock_job(&cluster, "second", 50)).job_id;
    cluster.wait_job(job, SOON, "succeeded");
    heir.stop();
}
