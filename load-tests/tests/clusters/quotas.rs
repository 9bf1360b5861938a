//! Quotas and fair shares on a real controller: users, accounts, gangs, and usage that outlives the
//! controller.

use std::process::{Command, Output};

use tessera_api_types::{AccountUsage, UsageReport};
use tessera_api_types::{GangRequest, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;

/// Ada may hold two GPUs with MIG off, which count seven slices each. She and bob, who share an
/// account, may hold three.
const SETTINGS: &str = "\
usage-half-life = \"12h\"
[quotas]
ada = 14
[accounts]
lab = { members = [\"ada\", \"bob\"], share = 2, quota = 21 }
";

fn plan(settings: &std::path::Path) -> Plan {
    Plan::new()
        .whole_gpu_node("n1", "a30-24gb,a30-24gb")
        .whole_gpu_node("n2", "a30-24gb,a30-24gb")
        .env("TESSERA_CONTROLLER_CONFIG", settings.display().to_string())
}

/// A job on a whole GPU until `go` exists in the folder.
fn whole(cluster: &Cluster, user: &str) -> SubmitRequest {
    let folder = cluster.scratch().display().to_string();
    SubmitRequest {
        user: Some(user.to_owned()),
        gpu_whole: true,
        env: [("FOLDER".to_owned(), folder)].into(),
        ..script("while [ ! -e $FOLDER/go ]; do sleep 0.1; done")
    }
}

fn usage(cluster: &Cluster) -> UsageReport {
    cluster.call("GET", "/v1/usage", None).expect(200).json()
}

fn account(cluster: &Cluster, name: &str) -> AccountUsage {
    let reported = usage(cluster).accounts;
    reported.into_iter().find(|account| account.account == name).expect("the account is reported")
}

fn tessera(cluster: &Cluster, words: &[&str]) -> Output {
    Command::new(programs().path("tessera"))
        .args(words)
        .env("TESSERA_URL", cluster.url())
        .output()
        .unwrap()
}

#[test]
fn a_gang_and_a_job_wait_for_quotas_while_others_start_and_usage_is_reported() {
    let settings = std::env::temp_dir().join(format!("quotas-{}.toml", std::process::id()));
    std::fs::write(&settings, SETTINGS).unwrap();
    let cluster = plan(&settings).start();
    let one = cluster.submit(&whole(&cluster, "ada")).job_id;
    cluster.wait_job(one, 3 * SOON, "running");

    // With her gang, ada would hold three GPUs, and her limit is two. With bob's second job the account would
    // hold four, and its limit is three.
    let gang = cluster.submit(&SubmitRequest {
        gang: Some(GangRequest { nodes: 1, gpus_per_node: 2 }),
        ..whole(&cluster, "ada")
    });
    let bobs = [0; 3].map(|_| cluster.submit(&whole(&cluster, "bob")).job_id);
    let dan = cluster.submit(&whole(&cluster, "dan")).job_id;
    cluster.wait_job(dan, 3 * SOON, "running");
    cluster.wait_job(bobs[0], 3 * SOON, "running");
    cluster.wait_job(bobs[1], 3 * SOON, "running");

    let reported = cluster.explain(gang.job_id + 1);
    assert_eq!(reported.reason.as_deref(), Some("quota"), "{reported:?}");
    let words = format!("{} {}", reported.summary, reported.would_start_if.unwrap_or_default());
    // Both quotas now delay it: hers lacks one GPU, and the account's lacks two.
    assert!(
        words.contains("jobs of account lab hold 21 of their limit of 21 compute slices"),
        "{words}"
    );
    assert!(words.contains("this gang of 2 needs at least 14 more"), "{words}");
    assert!(words.contains("those of ada 7 of their limit of 14"), "{words}");
    assert!(words.contains("that hold 14 compute slices end, of them 7 of ada"), "{words}");
    assert!(words.contains("or the quotas are raised to 35 and 21"), "{words}");
    let reported = cluster.explain(bobs[2]);
    assert_eq!(reported.reason.as_deref(), Some("quota"), "{reported:?}");
    assert!(reported.summary.contains("hold 21 of their limit of 21"), "{}", reported.summary);

    let lab = account(&cluster, "lab");
    assert_eq!((lab.held_slices, lab.quota_slices, lab.share), (21, Some(21), 2));
    assert_eq!((lab.running, lab.waiting), (3, 3));
    assert!(lab.recent_slice_secs > 0.0 && lab.factor < 1.0, "{lab:?}");
    let ada = lab.users.iter().find(|user| user.user == "ada").unwrap();
    assert_eq!((ada.held_slices, ada.quota_slices, ada.waiting), (7, Some(14), 2));
    let text = String::from_utf8(tessera(&cluster, &["usage"]).stdout).unwrap();
    assert!(text.contains("Past usage is weighted by half for each 12h of age."), "{text}");

    // A job that can never start under a quota is refused with the reason.
    let four = SubmitRequest {
        gang: Some(GangRequest { nodes: 2, gpus_per_node: 2 }),
        ..whole(&cluster, "ada")
    };
    let refused = cluster.try_submit(&four, None).unwrap().expect(422).text();
    let words =
        "at most 14 compute slices at once, which is the quota of ada; this job takes 28 (7 for";
    assert!(refused.contains(words), "{refused}");

    std::fs::write(cluster.scratch().join("go"), "").unwrap();
    for job in [one, gang.job_id, gang.job_id + 1, bobs[2], dan] {
        assert_eq!(cluster.wait_end(job, 3 * SOON).job.state, "succeeded");
    }
    std::fs::remove_file(&settings).unwrap();
}

/// A job on a whole GPU until a file of this name exists in the folder.
fn until(cluster: &Cluster, user: &str, file: &str) -> SubmitRequest {
    let text = format!("while [ ! -e $FOLDER/{file} ]; do sleep 0.1; done");
    SubmitRequest { script: script(&text).script, ..whole(cluster, user) }
}

#[test]
fn users_with_more_usage_are_served_after_those_with_less_also_by_the_next_controller() {
    let mut cluster = Plan::new().node("n1", "a30-24gb").start();
    let first = cluster.submit(&until(&cluster, "ada", "one")).job_id;
    cluster.wait_job(first, 3 * SOON, "running");
    let had = wait::until(SOON, "some usage", || {
        let had = account(&cluster, "ada").recent_slice_secs;
        (had > 4.0).then_some(had)
    });
    cluster.controller.kill();
    cluster.controller.start();
    cluster.wait_ready();

    let kept = account(&cluster, "ada");
    assert!(kept.recent_slice_secs >= had, "{kept:?} had {had}");
    assert_eq!((kept.held_slices, kept.named), (4, false));
    let again = cluster.submit(&until(&cluster, "ada", "two")).job_id;
    let bobs = cluster.submit(&until(&cluster, "bob", "two")).job_id;
    std::fs::write(cluster.scratch().join("one"), "").unwrap();

    cluster.wait_job(bobs, 3 * SOON, "running");
    assert_eq!(cluster.job(again).job.state, "queued", "ada came before, and had more");
    std::fs::write(cluster.scratch().join("two"), "").unwrap();
    assert_eq!(cluster.wait_end(again, 3 * SOON).job.state, "succeeded");
}

/// Jobs of each user, and how many may still wait when usage is compared: all slices are in demand by both until then.
const SHORT_JOBS: usize = 60;
const STILL_WAITING: u64 = 15;

/// The most that a user's part of the usage may differ from half.
const DEVIATION_MAX: f64 = 0.05;

#[test]
fn two_users_with_many_short_jobs_get_within_a_tenth_of_what_is_due_to_each() {
    let cluster = Plan::new().node("n1", "a30-24gb").start();
    let short = |user: &str| SubmitRequest {
        user: Some(user.to_owned()),
        gpu_memory_bytes: Some(4 << 30),
        ..script("sleep 1")
    };
    // One user submits all jobs before the other: in the order of arrival, she would get everything.
    for user in ["ada", "bob"] {
        for _ in 0..SHORT_JOBS {
            cluster.submit(&short(user));
        }
    }

    let (ada, bob) = wait::until(6 * SOON, "most jobs of a user have started", || {
        let (ada, bob) = (account(&cluster, "ada"), account(&cluster, "bob"));
        (ada.waiting.min(bob.waiting) <= STILL_WAITING).then_some((ada, bob))
    });

    assert_eq!((ada.share, bob.share), (1, 1));
    assert!(ada.waiting > 0 && bob.waiting > 0, "{ada:?} {bob:?}");
    let all = ada.recent_slice_secs + bob.recent_slice_secs;
    for user in [&ada, &bob] {
        let part = user.recent_slice_secs / all;
        assert!((part - 0.5).abs() <= DEVIATION_MAX, "{part} of {all} s: {ada:?} {bob:?}");
    }
}
