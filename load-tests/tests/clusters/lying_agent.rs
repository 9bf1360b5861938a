//! An agent whose state file was edited claims jobs that its controller never assigned to it. The
//! cluster continues without it.

use std::fs;
use std::time::Duration;

use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::console::done;
use tessera_load_tests::wait;

#[test]
fn an_edited_state_file_affects_only_its_own_node() {
    let mut cluster = Plan::new().node("n1", "a30-24gb").node("n2", "a30-24gb").start();
    let marker = cluster.scratch().join("go");
    let waits = format!("while [ ! -e {} ]; do sleep 0.05; done", marker.display());
    let running: Vec<u64> = (0..2).map(|_| cluster.submit(&script(&waits)).job_id).collect();
    let on = |id: u64| cluster.wait_job(id, SOON, "running").job.node.unwrap_or_default();
    let nodes: Vec<String> = running.iter().map(|id| on(*id)).collect();
    // Any node without one of the jobs, or with only one of them, is suitable: the other node's job must
    // continue.
    let liar = usize::from(nodes[0] == "n1");
    let honest_job =
        running[nodes.iter().position(|node| *node != format!("n{}", liar + 1)).unwrap()];
    let attempts = cluster.job(honest_job).attempt_list.len();

    cluster.agents[liar].kill();
    let path = cluster.agent_data(liar).join("state");
    let mut state: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let epoch = state["highest_epoch"].as_u64().unwrap();
    state["highest_epoch"] = (epoch + 3).into();
    fs::write(&path, serde_json::to_vec(&state).unwrap()).unwrap();
    cluster.agents[liar].start();

    // The refusal is final: an agent ends with the status for that.
    let ended = cluster.agents[liar].wait_for_end(SOON).expect("the liar ends");
    assert_eq!(ended.code(), Some(78), "{ended:?}");
    assert!(cluster.agents[liar].tail(25).contains("quarantined"), "the reason is named");

    // The rest of the cluster is not affected: new jobs run, and old ones continue.
    let begun = std::time::Instant::now();
    let fresh = cluster.submit(&script("true")).job_id;
    cluster.wait_job(fresh, SOON, "succeeded");
    assert!(begun.elapsed() < Duration::from_secs(20));
    fs::write(&marker, "").unwrap();
    let whole = cluster.wait_job(honest_job, SOON, "succeeded");
    assert_eq!(whole.attempt_list.len(), attempts, "it ran on: {:?}", whole.attempt_list);

    // All users see that it is quarantined, and why, until an operator clears it.
    let shown = done(&cluster, &["nodes"]);
    let claim = format!("quarantined (it claims epoch {}", epoch + 3);
    assert!(shown.contains(&claim) && shown.contains("by the controller"), "{shown}");
    let liars_name = format!("n{}", liar + 1);
    let quarantined = |cluster: &Cluster| {
        let node = cluster.nodes().into_iter().find(|node| node.name == liars_name);
        node.is_some_and(|node| node.quarantined.is_some())
    };
    assert!(quarantined(&cluster));
    let cleared = done(&cluster, &["clear", &liars_name]);
    assert!(cleared.contains("is cleared"), "{cleared}");
    assert!(!quarantined(&cluster));

    // With its original state the node is accepted again.
    state["highest_epoch"] = epoch.into();
    fs::write(&path, serde_json::to_vec(&state).unwrap()).unwrap();
    cluster.agents[liar].start();
    wait::until(SOON, "both nodes available", || {
        let available = cluster.nodes().into_iter().filter(|node| node.state == "available");
        (available.count() == 2).then_some(())
    });
}
