//! The store is set back behind the agents (rule F14).

use std::collections::HashMap;
use std::sync::Arc;

use tessera_model::lease::LeaseTerms;
use tessera_model::life::JobState;
use tessera_model::spec::{JobSpec, RawSpec};
use tessera_model::{AttemptId, BootId, Bytes, ControllerId, DecisionId, JobId, Millis, NodeId};
use tessera_wire::frames::{Hello, PROTOCOL_VERSION};
use tessera_wire::tls::NodeIdentity;
use uuid::Uuid;

use super::{Cluster, Input, JobSheet};
use crate::store::load::{LiveRow, NodeRow, Picture};

const NODES: [(u128, &str); 2] = [(1, "n1"), (2, "n2")];

fn node(number: u128) -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(number))
}

fn picture() -> Picture {
    let nodes = NODES.map(|(number, name)| NodeRow {
        node: node(number),
        name: name.parse().unwrap(),
        generation: 3,
        lost: false,
        boot: BootId::from_uuid(Uuid::from_u128(number)),
        software: String::new(),
        cores: 1,
        memory_bytes: 1,
        last_seen_unix: Millis::ZERO,
    });
    let job = JobId::from_number(7);
    let live = LiveRow {
        attempt: AttemptId::from_uuid(Uuid::from_u128(70)),
        job,
        state: JobState::Running,
        number: 1,
        node: node(1),
        generation: 3,
        gpu: "GPU-1".parse().unwrap(),
        slot: None,
        slice: Some("GPU-1".parse().unwrap()),
        decision: DecisionId::from_uuid(Uuid::from_u128(71)),
    };
    let command = Some(vec!["true".to_owned()]);
    let sheet = JobSheet {
        spec: Arc::new(JobSpec::parse(RawSpec { command, ..RawSpec::default() }).unwrap()),
        array: None,
        traceparent: None,
        charged: 0,
        uncharged: 0,
        attempts: 1,
        restart_reason: None,
    };
    Picture {
        nodes: nodes.into(),
        live: vec![live],
        sheets: HashMap::from([(job, sheet)]),
        ..Picture::default()
    }
}

fn hello(number: u128, session: u64, generation: u64, highest_epoch: u64) -> Input {
    let (_, name) = NODES.iter().find(|(n, _)| *n == number).unwrap();
    Input::Hello {
        peer: NodeIdentity { id: node(number), name: name.parse().unwrap() },
        session,
        hello: Box::new(Hello {
            protocol: PROTOCOL_VERSION,
            software: String::new(),
            boot: BootId::from_uuid(Uuid::from_u128(number)),
            process: 1,
            generation,
            highest_epoch,
            controller: None,
            cores: 1,
            memory: Bytes::new(1),
        }),
    }
}

fn cluster(now: Millis) -> Cluster {
    let policy = tessera_placement::by_name("scheme-b").unwrap();
    let controller = ControllerId::from_uuid(Uuid::from_u128(9));
    Cluster::new(5, controller, LeaseTerms::default(), policy, picture(), now)
}

#[test]
fn an_agent_that_obeyed_a_later_epoch_shows_that_the_store_was_set_back() {
    let now = Millis::from_secs(1_000);
    let mut cluster = cluster(now);

    let round = cluster.step(vec![hello(1, 1, 3, 8)], now, &mut Uuid::now_v7);

    assert_eq!(round.rewound, Some(8));
    assert!(round.attaches.is_empty(), "nobody is welcomed before stock is taken");
}

#[test]
fn after_that_every_node_starts_over_and_nothing_is_placed_for_a_lease() {
    let now = Millis::from_secs(1_000);
    let mut cluster = cluster(now);
    cluster.reload(9, picture(), now);
    cluster.hold_placement(now);

    let round = cluster.step(vec![Input::Tick], now, &mut Uuid::now_v7);

    assert_eq!(round.raises.len(), 2, "{:?}", round.raises);
    assert!(round.raises.iter().all(|(_, generation, lost)| *generation > 1_000 && *lost));
    assert_eq!(round.ended.len(), 1);
    assert_eq!(round.ended[0].to, JobState::Queued);
    assert!(cluster.step(vec![Input::Tick], now, &mut Uuid::now_v7).raises.is_empty(), "once");

    // A node comes back with the generation that it had: it gets the new one.
    let round = cluster.step(vec![hello(1, 2, 3, 8)], now, &mut Uuid::now_v7);
    assert!(round.attaches[0].generation > 1_000);
    let held = LeaseTerms::default().controller_expiry(now);
    assert!(cluster.hold_until == held && held > now.plus(LeaseTerms::DEFAULT_LENGTH));
}
