//! Floods of slow connections and unfinished handshakes: other clients are served, and nothing
//! remains afterwards.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tessera_load_tests::attack::{SlowClients, abandon_handshakes};
use tessera_load_tests::cluster::{Cluster, Plan, SOON};
use tessera_load_tests::{http, wait};

/// More connections than one source may open.
const SLOW: usize = 1_300;
/// More handshakes than one source may have in progress, and than all may.
const HANDSHAKES: usize = 600;

fn open_files(cluster: &Cluster) -> usize {
    let pid = cluster.controller.pid().expect("the controller runs");
    fs::read_dir(format!("/proc/{pid}/fd")).expect("its files").count()
}

fn refused(cluster: &Cluster, listener: &str) -> u64 {
    let metrics = cluster.call("GET", "/metrics", None).expect(200).text();
    let name = format!("tessera_connections_refused_total{{listener=\"{listener}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name).map(str::to_owned));
    line.map_or(0, |count| count.parse().expect("a count"))
}

#[test]
fn floods_from_some_addresses_do_not_affect_others() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    tessera_controller::listeners::raise_open_files();
    let token = cluster.token();
    let bearer = format!("Bearer {token}");
    let whoami = || {
        let headers = [("authorization", bearer.as_str())];
        http::request(cluster.http(), "GET", "/v1/whoami", &headers, None)
    };
    let before = open_files(&cluster);
    let runtime = tokio::runtime::Runtime::new().unwrap();

    // One address holds as many as one address may; further ones are refused.
    let slow = runtime.block_on(SlowClients::open(cluster.http(), SLOW, 1));
    wait::until(SOON, "connections of one source that were closed", || {
        let ended = slow.counts.ended.load(Ordering::Relaxed);
        (ended >= SLOW - 1_024 && refused(&cluster, "api") > 0).then_some(())
    });
    for _ in 0..50 {
        assert_eq!(whoami().unwrap().status, 200);
    }
    assert!(open_files(&cluster) < before + 1_024 + 100);
    let counts = runtime.block_on(abandon_handshakes(cluster.quic(), HANDSHAKES, 6)).unwrap();
    assert_eq!(whoami().unwrap().status, 200);
    assert_eq!(counts.begun, HANDSHAKES);
    assert!(counts.abandoned > HANDSHAKES / 3, "{counts:?}");
    assert!(refused(&cluster, "agents") > 0, "{counts:?}");
    assert_eq!(cluster.nodes()[0].state, "available", "a connected node notices nothing");

    // Deadlines end the connections that attackers leave open.
    drop(slow);
    drop(runtime);
    wait::until(Duration::from_secs(60), "no descriptor stays", || {
        (open_files(&cluster) <= before + 8).then_some(())
    });
    assert_eq!(whoami().unwrap().status, 200);
}
