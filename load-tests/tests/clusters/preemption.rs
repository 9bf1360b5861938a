//! Online jobs that send offline jobs back to the queue: what both users see, and what it costs.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use tessera_api_types::{JobDetail, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Database, Plan, SOON, script};
use tessera_load_tests::console::done;
use tessera_load_tests::programs::programs;
use tessera_load_tests::{postgres, wait};

const GIB: u64 = 1 << 30;

fn cluster(mode: &str) -> Cluster {
    Plan::new()
        .env("TESSERA_PREEMPTION", mode)
        .database(Database::External)
        .node("n1", "a100-40gb")
        .start()
}

fn sql(cluster: &Cluster, statement: &str) -> String {
    let url = cluster.database.as_ref().unwrap().url();
    let output = Command::new(postgres::program("psql"))
        .args(["-q", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", &url, "-c", statement])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Runs `tessera` under the name of Slurm's command.
fn sacct(cluster: &Cluster, words: &[&str]) -> String {
    let output = Command::new(programs().path("tessera"))
        .arg0("sacct")
        .args(words)
        .env("TESSERA_URL", format!("http://{}", cluster.http()))
        .env("TESSERA_TOKEN", cluster.token_for("ada", "admin"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn file(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.scratch().join(name)
}

fn touch(cluster: &Cluster, name: &str) {
    std::fs::write(file(cluster, name), "").unwrap();
}

/// An offline job on the whole GPU. On `SIGUSR1` it writes its count, once the file `save` exists, and ends. The
/// file `done` ends it.
fn counter(cluster: &Cluster) -> SubmitRequest {
    let [kept, save, over] =
        ["kept", "save", "done"].map(|name| file(cluster, name).display().to_string());
    let line = format!(
        "n=$(cat {kept} 2>/dev/null || echo 0)\n\
         trap 'until [ -e {save} ]; do sleep 0.02; done; echo $n > {kept}; exit 0' USR1\n\
         echo \"from $n, ${{TESSERA_RESTART_REASON:-first}}\"\n\
         until [ -e {over} ]; do n=$((n+1)); sleep 0.02; done"
    );
    SubmitRequest {
        user: Some("bob".into()),
        gpu_memory_bytes: Some(35 * GIB),
        checkpoint_signal: Some("USR1".to_owned()),
        grace_secs: Some(120),
        max_retries: Some(0),
        ..script(&line)
    }
}

/// An online job, which the file `served` ends.
fn service(cluster: &Cluster) -> SubmitRequest {
    let served = file(cluster, "served").display().to_string();
    SubmitRequest {
        user: Some("ada".into()),
        class: Some("online".into()),
        gpu_memory_bytes: Some(4 * GIB),
        ..script(&format!("until [ -e {served} ]; do sleep 0.05; done"))
    }
}

fn runs(cluster: &Cluster, request: &SubmitRequest) -> u64 {
    let job = cluster.submit(request).job_id;
    cluster.wait_job(job, SOON, "running");
    job
}

fn requested(cluster: &Cluster) {
    wait::until(2 * SOON, "the offline job is requested to leave", || {
        (sql(cluster, "SELECT COUNT(*) FROM preemptions") == "1").then_some(())
    });
}

/// Waits until a job's second attempt runs.
fn runs_again(cluster: &Cluster, job: u64) -> JobDetail {
    wait::until(3 * SOON, "the job runs again", || {
        let detail = cluster.job(job);
        (detail.attempt_list.len() == 2 && detail.job.state == "running").then_some(detail)
    })
}

#[test]
fn an_online_job_takes_the_place_of_an_offline_job_which_continues_from_its_checkpoint() {
    let cluster = cluster("checkpoint");
    let offline = runs(&cluster, &counter(&cluster));
    let before = cluster.job(offline);

    let online = cluster.submit(&service(&cluster)).job_id;
    requested(&cluster);
    // While the checkpoint is written, both users see what happens.
    wait::until(SOON, "the place is kept for the online job", || {
        let why = cluster.explain(online).summary;
        why.contains(&format!("offline jobs there have gone back to the queue: job {offline}"))
            .then_some(())
    });
    let event = format!("sent back to the queue for job {online} of the class online");
    let events = cluster.events(offline).items;
    assert!(events.iter().any(|one| one.text.starts_with(&event)), "{events:#?}");
    touch(&cluster, "save");
    let started = cluster.wait_job(online, 2 * SOON, "running");

    let left = cluster.job(offline);
    assert_eq!(left.job.state, "queued");
    assert_eq!(left.attempt_list[0].state, "preempted");
    let detail = left.attempt_list[0].detail.clone().unwrap();
    let expected = format!("sent back to the queue for job {online} (online), with its checkpoint");
    assert_eq!(detail, expected);
    assert_eq!(left.retries_left, before.retries_left);
    let why = done(&cluster, &["explain", &online.to_string()]);
    assert!(why.contains("no place is free for this online job"), "{why}");
    assert!(why.contains(&format!("(job {offline})")), "{why}");
    let why = done(&cluster, &["explain", &offline.to_string()]);
    assert!(
        why.contains(&format!("ago for job {online} of the class online (1 of 3 times")),
        "{why}"
    );
    assert!(why.contains("--no-requeue prevents this"), "{why}");
    let runs = sacct(&cluster, &["-D", "-j", &offline.to_string(), "-n", "-X", "-o", "State"]);
    assert!(runs.contains("PREEMPTED"), "{runs}");
    assert!(started.attempt_list[0].profile != "7g.40gb", "it takes no more than it needs");

    touch(&cluster, "served");
    cluster.wait_job(online, SOON, "succeeded");
    runs_again(&cluster, offline);
    let kept: u64 =
        std::fs::read_to_string(file(&cluster, "kept")).unwrap().trim().parse().unwrap();
    wait::until(SOON, "it continues from its checkpoint, and knows why it was stopped", || {
        cluster.logs(offline).contains(&format!("from {kept}, preempted\n")).then_some(())
    });
    touch(&cluster, "done");
    cluster.wait_job(offline, SOON, "succeeded");

    let charged =
        sql(&cluster, &format!("SELECT charged + uncharged FROM jobs WHERE job = {offline}"));
    assert_eq!(charged, "0");
    let free = sql(
        &cluster,
        &format!(
            "SELECT string_agg(concat_ws(' ', uncharged_start_ms > 0, uncharged_end_ms > 0), ',' \
             ORDER BY number) FROM attempts WHERE job = {offline}"
        ),
    );
    assert_eq!(free, "f t,t f", "its checkpoint and its restart are free");
    let metrics = cluster.call("GET", "/metrics", None).text();
    for outcome in ["requested", "sent_back", "resumed"] {
        let line = format!("tessera_preemptions_total{{outcome=\"{outcome}\"}} 1");
        assert!(metrics.contains(&line), "{line}");
    }
}

#[test]
fn nothing_is_lost_if_the_controller_dies_during_a_preemption() {
    let mut cluster = cluster("checkpoint");
    let offline = runs(&cluster, &counter(&cluster));
    let online = cluster.submit(&service(&cluster)).job_id;
    requested(&cluster);

    cluster.controller.kill();
    cluster.controller.start();
    cluster.wait_ready();
    touch(&cluster, "save");

    cluster.wait_job(online, 3 * SOON, "running");
    let left = cluster.job(offline);
    assert_eq!(left.job.state, "queued");
    assert_eq!(left.attempt_list[0].state, "preempted");
    touch(&cluster, "served");
    runs_again(&cluster, offline);
    touch(&cluster, "done");
    cluster.wait_job(offline, SOON, "succeeded");
    let uncharged =
        sql(&cluster, &format!("SELECT charged + uncharged FROM jobs WHERE job = {offline}"));
    assert_eq!(uncharged, "0", "the new leader knows that the end was requested");
}

#[test]
fn a_job_that_must_not_be_requeued_and_one_without_a_checkpoint_stay() {
    let cluster = cluster("checkpoint");
    let stays = SubmitRequest { on_lost: Some("fail".into()), ..counter(&cluster) };
    let first = runs(&cluster, &stays);
    let online = cluster.submit(&service(&cluster)).job_id;
    let why = |protection: &str| {
        wait::until(SOON, "the explanation names what protects the other job", || {
            let why = cluster.explain(online).summary;
            why.contains(protection).then_some(())
        });
    };
    why("not sent back for it: 1 × must not be requeued");
    cluster.act(first, "cancel").expect(200);
    touch(&cluster, "save");
    cluster.wait_job(online, 2 * SOON, "running");
    touch(&cluster, "served");
    cluster.wait_job(online, SOON, "succeeded");
    std::fs::remove_file(file(&cluster, "served")).unwrap();

    let loses = SubmitRequest { checkpoint_signal: None, ..counter(&cluster) };
    let second = runs(&cluster, &loses);
    let online = cluster.submit(&service(&cluster)).job_id;
    wait::until(SOON, "the explanation names what protects the other job", || {
        let why = cluster.explain(online).summary;
        why.contains("not sent back for it: 1 × writes no checkpoint").then_some(())
    });
    assert_eq!(cluster.job(second).job.state, "running");
    assert_eq!(sql(&cluster, "SELECT COUNT(*) FROM preemptions"), "0");
}

#[test]
fn with_requeue_a_gpu_without_mig_is_taken_from_a_job_that_begins_again() {
    let cluster = Plan::new()
        .env("TESSERA_PREEMPTION", "requeue")
        .database(Database::External)
        .whole_gpu_node("n1", "a100-40gb")
        .start();
    let loses = SubmitRequest { checkpoint_signal: None, grace_secs: Some(1), ..counter(&cluster) };
    let offline = runs(&cluster, &loses);

    let online = runs(&cluster, &service(&cluster));

    let left = cluster.job(offline);
    assert_eq!(left.job.state, "queued");
    let detail = left.attempt_list[0].detail.clone().unwrap();
    assert!(detail.ends_with(&format!("for job {online} (online), without its work")), "{detail}");
    touch(&cluster, "served");
    runs_again(&cluster, offline);
    // All of the lost attempt is free.
    let usage = sql(
        &cluster,
        &format!(
            "SELECT uncharged_end_ms >= 1000 * extract(epoch FROM ended_at - started_at) - 1000 \
             FROM attempts WHERE job = {offline} AND number = 1"
        ),
    );
    assert_eq!(usage, "t");
    touch(&cluster, "done");
    cluster.wait_job(offline, SOON, "succeeded");
}
