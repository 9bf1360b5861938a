//! The controller and its database, killed, doubled and stopped while jobs run.

use std::time::{Duration, Instant};

use tessera_api_types::ProblemDetails;
use tessera_load_tests::cluster::{Cluster, Database, Plan, SOON, command};
use tessera_load_tests::daemon::ending;
use tessera_load_tests::programs::programs;
use tessera_load_tests::{locks, processes, wait};

fn submit_lock(cluster: &Cluster, key: &str, millis: u64) -> u64 {
    let program = programs().path("tessera-test-job").display().to_string();
    let folder = cluster.scratch().display().to_string();
    let request = command([program, "lock".into(), folder, key.into(), millis.to_string()]);
    cluster.submit(&request).job_id
}

#[test]
fn a_controller_that_is_killed_comes_back_to_its_running_jobs() {
    let mut cluster = Plan::new().node("n1", "a100-40gb").start();
    let long = submit_lock(&cluster, "long", 6_000);
    let short = submit_lock(&cluster, "short", 3_000);
    let queued: Vec<u64> = (0..9).map(|n| submit_lock(&cluster, &format!("q{n}"), 50)).collect();
    cluster.wait_job(long, SOON, "running");
    cluster.wait_job(short, SOON, "running");

    cluster.controller.kill();
    // Only its shepherd and its agent notice its end.
    wait::until(SOON, "end of the short job", || {
        (locks::read(&cluster.scratch()).ok()?.get("short")?.stopped == 1).then_some(())
    });
    let restarted = Instant::now();
    cluster.controller.start();
    cluster.wait_ready();
    let ready = restarted.elapsed();

    let done = cluster.wait_job(short, SOON, "succeeded");
    assert_eq!(done.job.attempts, 1);
    for job in queued {
        cluster.wait_job(job, SOON, "succeeded");
    }
    assert_eq!(cluster.wait_job(long, SOON, "succeeded").job.attempts, 1);
    for (key, runs) in locks::read(&cluster.scratch()).unwrap() {
        assert_eq!((runs.started, runs.stopped, runs.doubled), (1, 1, 0), "{key}");
    }
    assert!(ready < Duration::from_secs(15), "ready only after {ready:?}");
}

#[test]
fn a_second_controller_on_the_same_folder_is_refused() {
    let mut cluster = Plan::new().node("n1", "a30-24gb").start();

    let mut second = cluster.second_controller();
    second.start();
    let ended = second.wait_for_end(SOON).expect("the second controller gives up");

    assert!(!ended.success(), "{}: {}", ending(ended), second.tail(20));
    let output = second.output();
    let folder = cluster.controller_data().display().to_string();
    assert!(output.contains(&folder), "it doesn't state which folder is in use: {output}");
    assert!(cluster.controller.is_running());
    let job = cluster.submit(&command(["true"])).job_id;
    cluster.wait_job(job, SOON, "succeeded");
}

#[test]
fn the_private_database_ends_with_its_controller() {
    let mut cluster = Plan::new().start_without_agents_ready();
    cluster.wait_serving();
    let postgres = |cluster: &Cluster| processes::named("postgres", &cluster.processes());
    assert!(!postgres(&cluster).is_empty());

    let ended = cluster.controller.stop().expect("it runs");

    assert!(ended.success(), "{}: {}", ending(ended), cluster.controller.tail(20));
    wait::until(SOON, "no postgres", || postgres(&cluster).is_empty().then_some(()));

    cluster.controller.start();
    cluster.wait_serving();
    cluster.controller.kill();
    wait::until(SOON, "no postgres", || postgres(&cluster).is_empty().then_some(()));
}

#[test]
fn jobs_continue_while_the_database_is_unavailable() {
    let mut cluster = Plan::new().node("n1", "a100-40gb").database(Database::External).start();
    let through = submit_lock(&cluster, "through", 8_000);
    let ends_meanwhile = submit_lock(&cluster, "meanwhile", 1_500);
    cluster.wait_job(through, SOON, "running");
    cluster.wait_job(ends_meanwhile, SOON, "running");

    cluster.database.as_mut().unwrap().kill();
    let refused = wait::until(SOON, "an answer that states it", || {
        let answer = cluster.try_submit(&command(["true"]), Some("meanwhile")).ok()?;
        (answer.status == 503).then_some(answer)
    });
    assert!(refused.header("retry-after").is_some_and(|secs| secs.parse::<u32>().is_ok()));
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!(refused.json::<ProblemDetails>().status, 503);
    wait::until(SOON, "no more readiness", || {
        (cluster.call("GET", "/readyz", None).status == 503).then_some(())
    });
    assert_eq!(cluster.call("GET", "/healthz", None).status, 200, "nothing to restart it for");
    wait::until(SOON, "end of a job", || {
        (locks::read(&cluster.scratch()).ok()?.get("meanwhile")?.stopped == 1).then_some(())
    });
    let back_at = Instant::now();
    cluster.database.as_mut().unwrap().restart();
    let accepted = wait::until(SOON, "an accepted submit", || {
        let answer = cluster.try_submit(&command(["true"]), Some("meanwhile")).ok()?;
        matches!(answer.status, 200..=202).then_some(answer)
    });
    let back = back_at.elapsed();

    let accepted: tessera_api_types::SubmitResponse = accepted.json();
    cluster.wait_job(accepted.job_id, SOON, "succeeded");
    for job in [ends_meanwhile, through] {
        assert_eq!(cluster.wait_job(job, SOON, "succeeded").job.attempts, 1);
    }
    for (key, runs) in locks::read(&cluster.scratch()).unwrap() {
        assert_eq!((runs.started, runs.stopped, runs.doubled), (1, 1, 0), "{key}");
    }
    assert!(cluster.controller.is_running(), "it recovered by itself");
    assert!(back < Duration::from_secs(15), "writes again only after {back:?}");
}

#[test]
fn a_killed_private_database_restarts_by_itself() {
    let mut cluster = Plan::new().node("n1", "a100-40gb").start();
    let job = submit_lock(&cluster, "calm", 5_000);
    cluster.wait_job(job, SOON, "running");

    let pid_file = cluster.controller_data();
    let postmaster = find_postmaster(&pid_file).expect("a private postgres has a pid file");
    processes::signal(postmaster, libc::SIGKILL);
    wait::until(SOON, "end of the server", || (!processes::is_alive(postmaster)).then_some(()));
    // Either the controller starts it again, or the controller ends with the reason, and its restart does so.
    // A service manager restarts it, and here the test.
    wait::within_time(Duration::from_secs(3), || (!cluster.controller.is_running()).then_some(()));
    if !cluster.controller.is_running() {
        cluster.controller.kill();
        cluster.controller.start();
    }

    cluster.wait_ready();
    assert_eq!(cluster.wait_job(job, SOON, "succeeded").job.attempts, 1);
    let runs = locks::read(&cluster.scratch()).unwrap()["calm"];
    assert_eq!((runs.started, runs.stopped, runs.doubled), (1, 1, 0));
}

fn find_postmaster(folder: &std::path::Path) -> Option<u32> {
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let path = entry.path();
        if path.file_name().is_some_and(|name| name == "postmaster.pid") {
            return std::fs::read_to_string(path).ok()?.lines().next()?.trim().parse().ok();
        }
        if path.is_dir()
            && let Some(found) = find_postmaster(&path)
        {
            return Some(found);
        }
    }
    None
}
