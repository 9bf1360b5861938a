//! Rows M1 to M7 of docs/mps.md: the effects of faults, kills, deaths and limits on each job.

use std::time::Instant;

use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::SOON;
use tessera_load_tests::{processes, wait};

use crate::rig::{Client, GIB, Rig, SERVES_AGAIN};

#[test]
fn m1_m2_one_jobs_fault_ends_its_slice_costs_others_no_retry_and_the_slice_serves_again() {
    let rig = Rig::new();
    let victim = rig.client("victim");
    let culprit = rig.client("culprit");
    // On its own slice: 60 % and 50 % don't fit together.
    let apart = SubmitRequest { sm_percent: Some(60), ..rig.request("apart", "") };
    let apart = rig.serving(rig.submit(&apart));
    let shared = rig.shared();
    assert_eq!(shared.len(), 2, "{shared:#?}");
    let both = shared.iter().find(|instance| instance.sharers.len() == 2).unwrap();
    assert_eq!(both.profile, "2g.10gb");
    let parts: Vec<_> = both.sharers.iter().map(|s| (s.sm_percent, s.memory_bytes)).collect();
    assert_eq!(parts, [(Some(50), 4 * GIB), (Some(50), 4 * GIB)]);
    let why = rig.cluster.explain(culprit.job);
    assert!(why.summary.contains("is shared and has free capacity"), "{why:#?}");

    let struck = Instant::now();
    culprit.raise("fault");
    let victims = rig.first_attempt(&victim, "collateral");
    rig.serves(&victim, SERVES_AGAIN + SOON);

    assert!(struck.elapsed() < SERVES_AGAIN, "{:?}", struck.elapsed());
    assert_eq!(victims.retries_left, rig.cluster.job(victim.job).retries_left);
    let detail = victims.attempt_list[0].detail.clone().unwrap();
    assert!(detail.contains("fault"), "{detail}");
    let culprits = rig.ended_as(&culprit, "failed");
    assert_eq!(culprits.attempt_list.len(), 1, "{culprits:#?}");
    let neighbour = rig.cluster.job(apart.job);
    assert_eq!((neighbour.job.state.as_str(), neighbour.job.attempts), ("running", 1));
    victim.raise("done");
    apart.raise("done");
    assert_eq!(rig.ended_as(&victim, "succeeded").job.attempts, 2);
    rig.ended_as(&apart, "succeeded");
    wait::until(SOON, "no daemon is left", || rig.daemons().is_empty().then_some(()));
}

#[test]
fn a_fault_whose_cause_the_log_does_not_tell_is_found_by_running_each_job_alone() {
    let rig = Rig::new();
    rig.faults("release=580\n");
    let innocent = rig.client("innocent");
    let faulty = rig.client("faulty");
    let together = rig.cluster.job(innocent.job).attempt_list[0].slice.clone();
    assert_eq!(rig.cluster.job(faulty.job).attempt_list[0].slice, together);

    faulty.raise("fault");

    // The log names both, the innocent one first. So both run again, each alone, where the fault is its own.
    let first = rig.first_attempt(&innocent, "collateral");
    assert_eq!(rig.first_attempt(&faulty, "collateral").retries_left, first.retries_left);
    let failed = rig.ended_as(&faulty, "failed");
    assert_eq!(failed.attempt_list.len(), 2, "{failed:#?}");
    rig.serves(&innocent, SERVES_AGAIN + SOON);
    let again = rig.cluster.job(innocent.job);
    assert_eq!(again.attempt_list.len(), 2, "{again:#?}");
    assert_ne!(again.attempt_list[1].slice, failed.attempt_list[1].slice);
    innocent.raise("done");
    assert_eq!(rig.ended_as(&innocent, "succeeded").job.attempts, 2);
}

#[test]
fn m3_a_cancelled_job_is_terminated_in_order_and_its_co_runner_continues() {
    let rig = Rig::new();
    // Killing it without terminate_client would certainly break the neighbour.
    rig.faults("poison_percent=100\n");
    let neighbour = rig.client("neighbour");
    let deaf = SubmitRequest { grace_secs: Some(1), ..rig.request("deaf", "") };
    let text = deaf.script.clone().unwrap().replace("exec ", "trap '' TERM\nexec ");
    let deaf = rig.serving(rig.submit(&SubmitRequest { script: Some(text), ..deaf }));

    rig.cluster.act(deaf.job, "cancel");

    rig.ended_as(&deaf, "cancelled");
    neighbour.raise("done");
    let ended = rig.ended_as(&neighbour, "succeeded");
    assert_eq!(ended.job.attempts, 1, "{ended:#?}");
}

#[test]
fn m3_a_job_past_its_time_limit_is_terminated_in_order_and_its_co_runner_continues() {
    let rig = Rig::new();
    // Killing it without terminate_client would certainly break the neighbour.
    rig.faults("poison_percent=100\n");
    let neighbour = rig.client("neighbour");
    let request = rig.request("late", "");
    let text = request.script.clone().unwrap().replace("exec ", "trap '' TERM\nexec ");
    let late = rig.submit(&SubmitRequest {
        script: Some(text),
        time_limit_secs: Some(3),
        grace_secs: Some(1),
        ..request
    });

    let ended = rig.ended_as(&late, "timed_out");

    assert_eq!(ended.attempt_list.len(), 1, "{ended:#?}");
    neighbour.raise("done");
    let ended = rig.ended_as(&neighbour, "succeeded");
    assert_eq!(ended.job.attempts, 1, "{ended:#?}");
}

#[test]
fn m4_after_a_death_without_disconnecting_the_co_runners_are_verified() {
    let rig = Rig::new();
    rig.faults("poison_percent=0\n");
    let neighbour = rig.client("neighbour");
    let first = rig.client("first");

    processes::signal(first.pid(), libc::SIGKILL);
    rig.ended_as(&first, "failed");

    // The server is healthy: no job is affected.
    assert_eq!(rig.cluster.job(neighbour.job).job.attempts, 1);
    rig.faults("poison_percent=100\n");
    let second = rig.client("second");
    processes::signal(second.pid(), libc::SIGKILL);
    rig.ended_as(&second, "failed");

    let harmed = rig.first_attempt(&neighbour, "collateral");
    assert!(harmed.attempt_list[0].detail.is_some(), "{harmed:#?}");
    rig.serves(&neighbour, SOON);
    neighbour.raise("done");
    assert_eq!(rig.ended_as(&neighbour, "succeeded").job.attempts, 2);
}

#[test]
fn m5_a_daemon_that_dies_or_hangs_affects_only_its_own_slice() {
    let rig = Rig::new();
    let one = rig.client("one");
    let first_daemon = rig.daemons();
    let other = SubmitRequest { sm_percent: Some(60), ..rig.request("other", "") };
    let other = rig.serving(rig.submit(&other));
    for (signal, attempts) in [(libc::SIGKILL, 2), (libc::SIGSTOP, 3)] {
        let apart = rig.daemons();
        let own = apart.iter().find(|pid| !is_of(&rig, **pid, &other)).copied().unwrap();
        let struck = Instant::now();

        processes::signal(own, signal);
        wait::until(SERVES_AGAIN * 3, "the job runs again", || {
            let job = rig.cluster.job(one.job).job;
            (job.attempts == attempts && job.state == "running").then_some(())
        });

        let job = rig.cluster.job(one.job);
        let last = &job.attempt_list[usize::try_from(attempts).unwrap() - 2];
        assert_eq!(last.state, "collateral", "{job:#?}");
        assert!(struck.elapsed() < SERVES_AGAIN * 2, "{:?}", struck.elapsed());
        rig.serves(&one, SOON);
        assert_eq!(rig.cluster.job(other.job).job.attempts, 1);
    }
    assert!(!rig.daemons().contains(&first_daemon[0]));
    one.raise("done");
    other.raise("done");
    rig.ended_as(&one, "succeeded");
    assert_eq!(rig.ended_as(&other, "succeeded").job.attempts, 1);
}

#[test]
fn m5_a_server_that_dies_alone_ends_its_slices_jobs_and_the_next_job_gets_a_new_one() {
    let rig = Rig::new();
    let one = rig.client("one");
    let two = rig.client("two");
    let servers = rig.servers();
    let [server] = servers[..] else { panic!("{servers:?}") };
    let struck = Instant::now();

    processes::signal(server, libc::SIGKILL);

    for client in [&one, &two] {
        let job = rig.first_attempt(client, "collateral");
        let detail = job.attempt_list[0].detail.clone().unwrap();
        assert!(detail.contains("MPS server died"), "{detail}");
        rig.serves(client, SERVES_AGAIN + SOON);
    }
    assert!(struck.elapsed() < SERVES_AGAIN * 2, "{:?}", struck.elapsed());
    assert!(!rig.servers().contains(&server));
    for client in [&one, &two] {
        client.raise("done");
        let ended = rig.ended_as(client, "succeeded");
        assert_eq!(ended.job.attempts, 2, "{ended:#?}");
    }
}

/// Returns whether a daemon serves the slice of a job.
fn is_of(rig: &Rig, daemon: u32, client: &Client) -> bool {
    let slice = rig.cluster.job(client.job).job.slice.unwrap();
    let environment = std::fs::read(format!("/proc/{daemon}/environ")).unwrap();
    let expected = format!("CUDA_VISIBLE_DEVICES={slice}");
    environment.split(|byte| *byte == 0).any(|pair| pair == expected.as_bytes())
}

#[test]
fn m6_a_slow_start_is_awaited_and_a_refused_one_uses_no_retry_and_has_a_reason() {
    let rig = Rig::new();
    rig.faults("start_delay_ms=1500\nserver_delay_ms=500\n");
    let slow = rig.client("slow");
    slow.raise("done");
    assert_eq!(rig.ended_as(&slow, "succeeded").job.attempts, 1);
    rig.faults("refuse_start=1\n");

    let refused = rig.submit(&rig.request("refused", ""));
    let job = rig.first_attempt(&refused, "not_started");

    let detail = job.attempt_list[0].detail.clone().unwrap();
    assert!(detail.contains("MPS can't be started"), "{detail}");
    rig.faults("");
    rig.serves(&refused, SOON);
    refused.raise("done");
    assert_eq!(rig.ended_as(&refused, "succeeded").retries_left, job.retries_left);
}

#[test]
fn m7_a_memory_limit_stops_only_the_greedy_one() {
    let rig = Rig::new();
    let modest = rig.client("modest");
    let grow = format!("--memory-bytes {} --grow-bytes {}", 3 * GIB, 2 * GIB);
    let greedy = SubmitRequest { oom_policy: Some("fail".into()), ..rig.request("greedy", &grow) };
    let greedy = rig.serving(rig.submit(&greedy));

    greedy.raise("grow");

    rig.ended_as(&greedy, "failed");
    let errors =
        rig.cluster.call("GET", &format!("/v1/jobs/{}/logs?stream=stderr", greedy.job), None);
    assert!(errors.text().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{}", errors.text());
    modest.raise("done");
    assert_eq!(rig.ended_as(&modest, "succeeded").job.attempts, 1);
}

#[test]
fn sharing_jobs_outlive_their_agent_and_users_are_never_mixed() {
    let mut rig = Rig::new();
    let ada = rig.client("ada");
    let bob = SubmitRequest { user: Some("bob".into()), ..rig.request("bob", "") };
    let bob = rig.serving(rig.submit(&bob));
    assert_eq!(rig.shared().len(), 2);
    let daemons = rig.daemons();

    rig.cluster.agents[0].kill();
    rig.cluster.agents[0].start();
    rig.cluster.wait_ready();

    let late = rig.client("late");
    let slice = |client: &Client| rig.cluster.job(client.job).job.slice;
    assert_eq!(slice(&late), slice(&ada));
    assert_ne!(slice(&late), slice(&bob));
    let mut after = rig.daemons();
    after.sort_unstable();
    let mut before = daemons;
    before.sort_unstable();
    assert_eq!(after, before, "the daemons were taken over");
    for client in [&ada, &bob, &late] {
        client.raise("done");
        assert_eq!(rig.ended_as(client, "succeeded").job.attempts, 1);
    }
    wait::until(SOON, "no daemon is left", || rig.daemons().is_empty().then_some(()));
}
