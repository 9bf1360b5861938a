//! Rollbacks of the store to a state older than that of the agents (rule F14).

use crate::LaunchSpec;
use crate::input::Input;
use crate::rollback::DatabaseRollback;
use crate::round::RoundEffect;
use crate::rows::snapshot::{LiveRow, NodeRow, StoreSnapshot};
use crate::rows::submitted::SubmittedJob;
use crate::state::ClusterState;
use std::collections::HashMap;
use std::sync::Arc;
use tessera_frames::cluster::{Hello, PROTOCOL_VERSION};
use tessera_model::lease::LeaseTerms;
use tessera_model::life::JobState;
use tessera_model::spec::{JobSpec, RawJobSpec};
use tessera_model::{
    AttemptId, BootId, Bytes, ControllerId, DecisionId, JobId, Millis, NodeId, NodeIdentity,
};
use uuid::Uuid;

const GENERATION_MIN: u64 = 9_000_000;

const NODES: [(u128, &str); 2] = [(1, "n1"), (2, "n2")];

pub(crate) fn node(number: u128) -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(number))
}

pub(crate) fn snapshot() -> StoreSnapshot {
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
        mps: false,
        kernel: false,
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
        share: None,
        waited: Millis::ZERO,
        ran: None,
        done: 0,
        gpu_memory: None,
    };
    let command = Some(vec!["true".to_owned()]);
    let launch_spec = LaunchSpec {
        spec: Arc::new(JobSpec::parse(RawJobSpec { command, ..RawJobSpec::default() }).unwrap()),
        array: None,
        gang: None,
        traceparent: None,
        charged: 0,
        uncharged: 0,
        attempts: 1,
        relimited: false,
        restart_reason: None,
        waited: Millis::ZERO,
        done: 0,
        own: Default::default(),
    };
    StoreSnapshot {
        nodes: nodes.into(),
        live: vec![live],
        launch_specs: HashMap::from([(job, launch_spec)]),
        ..StoreSnapshot::default()
    }
}

pub(crate) fn hello(number: u128, session: u64, generation: u64, highest_epoch: u64) -> Input {
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
            receipt: vec![1],
            controller: None,
            cores: 1,
            memory: Bytes::new(1),
            mps: false,
            kernel: false,
            address: String::new(),
            isolation_gaps: std::collections::BTreeSet::new(),
        }),
    }
}

/// The snapshot after the rollback was handled.
fn held_snapshot(left: Millis) -> StoreSnapshot {
    StoreSnapshot { hold_left: left, generation_min: GENERATION_MIN, ..snapshot() }
}

pub(crate) fn waiting(number: u64) -> SubmittedJob {
    let command = Some(vec!["true".to_owned()]);
    let spec = JobSpec::parse(RawJobSpec { command, ..RawJobSpec::default() }).unwrap();
    let job = JobId::from_number(number);
    SubmittedJob::new(job, &spec, None, 0)
}

pub(crate) fn cluster(now: Millis) -> ClusterState {
    cluster_of(5, snapshot(), now)
}

fn cluster_of(epoch: u64, snapshot: StoreSnapshot, now: Millis) -> ClusterState {
    let policy = tessera_placement::by_name("scheme-b").unwrap();
    let controller = ControllerId::from_uuid(Uuid::from_u128(9));
    ClusterState::new(epoch, controller, LeaseTerms::default(), policy, snapshot, now)
}

#[test]
fn an_agent_that_obeyed_a_later_epoch_proves_a_rollback() {
    let now = Millis::from_secs(1_000);
    let mut cluster = cluster(now);

    let round = cluster.step(vec![hello(1, 1, 3, 8)], now, &mut Uuid::now_v7);

    let told = round.rollback.expect("it is noticed");
    assert_eq!(told, DatabaseRollback::EarlierEpoch { known: 8, found: 5 });
    assert!(
        round.nodes.registrations.is_empty(),
        "no session starts before the rollback is \
                                                   handled"
    );
}

#[test]
fn after_a_rollback_every_node_starts_over_and_no_job_is_placed_for_a_lease() {
    let now = Millis::from_secs(1_000);
    let mut cluster = cluster(now);
    let held = LeaseTerms::default().controller_expiry(Millis::ZERO);
    cluster.reload(9, held_snapshot(held), now);

    let round = cluster.step(vec![Input::Tick], now, &mut Uuid::now_v7);

    assert_eq!(round.nodes.generations.len(), 2, "{:?}", round.nodes.generations);
    assert!(
        round.nodes.generations.iter().all(|(_, generation, lost)| *generation > 1_000 && *lost)
    );
    assert_eq!(round.jobs.ended.len(), 1);
    assert_eq!(round.jobs.ended[0].to, JobState::Queued);
    assert!(
        cluster.step(vec![Input::Tick], now, &mut Uuid::now_v7).nodes.generations.is_empty(),
        "once"
    );

    // A node reconnects with its old generation and gets the new one.
    let round = cluster.step(vec![hello(1, 2, 3, 8)], now, &mut Uuid::now_v7);
    assert!(round.nodes.registrations[0].generation > 1_000);
    assert_eq!(cluster.placement_held_for(now), held);
    assert!(held > LeaseTerms::DEFAULT_LENGTH);
}

#[test]
fn a_restart_continues_the_hold_and_raises_no_generation_again() {
    let now = Millis::from_secs(1_000);
    let mut first = cluster(now);
    first.reload(9, held_snapshot(Millis::from_secs(300)), now);
    let raised = first.step(vec![Input::Tick], now, &mut Uuid::now_v7).nodes.generations;

    // The store's state for the next leader, a minute later.
    let mut left = held_snapshot(Millis::from_secs(240));
    for node in &mut left.nodes {
        (node.generation, node.lost) = (GENERATION_MIN, true);
    }
    left.live.clear();
    let mut next = cluster_of(10, left, now);

    assert!(raised.iter().all(|(_, generation, _)| *generation == GENERATION_MIN));
    assert_eq!(next.placement_held_for(now), Millis::from_secs(240));
    let round = next.step(vec![Input::Submitted(vec![waiting(8)])], now, &mut Uuid::now_v7);
    assert!(round.nodes.generations.is_empty(), "{:?}", round.nodes.generations);
    assert!(round.jobs.reservations.is_empty());
    assert_eq!(round.jobs.waits[0].reason, "placement_held");
    let why = next.explain_waiting(JobId::from_number(8), now).unwrap();
    assert_eq!(why.why.would_start_if.as_deref(), Some("240 s pass"));
    assert_eq!(next.placement_held_for(now.plus(Millis::from_secs(240))), Millis::ZERO);
}

#[test]
fn a_node_with_a_generation_that_it_was_never_given_proves_a_rollback() {
    let now = Millis::from_secs(1_000);
    let mut cluster = cluster(now);

    let round = cluster.step(vec![hello(1, 1, 4, 5)], now, &mut Uuid::now_v7);

    assert_eq!(round.rollback, Some(DatabaseRollback::EarlierGeneration { known: 4, found: 3 }));
}

#[test]
fn a_claim_without_a_receipt_stops_only_the_node_itself() {
    let now = Millis::from_secs(1_000);
    for (generation, epoch) in [(3, 8), (4, 5)] {
        let mut cluster = cluster(now);
        let Input::Hello { peer, session, mut hello } = hello(1, 1, generation, epoch) else {
            panic!("the frame is a hello")
        };
        hello.receipt.clear();

        let round =
            cluster.step(vec![Input::Hello { peer, session, hello }], now, &mut Uuid::now_v7);

        assert_eq!(round.rollback, None);
        let refused = |e: &RoundEffect| matches!(e, RoundEffect::Refuse { reason, retry: false, .. } if reason.contains("quarantined"));
        assert!(round.effects.iter().any(refused), "{:?}", round.effects);
    }
}

#[test]
fn numbers_that_the_store_knows_need_no_receipt() {
    let now = Millis::from_secs(1_000);
    let mut cluster = cluster(now);
    let Input::Hello { peer, session, mut hello } = hello(1, 1, 3, 5) else {
        panic!("the frame is a hello")
    };
    hello.receipt.clear();

    let round = cluster.step(vec![Input::Hello { peer, session, hello }], now, &mut Uuid::now_v7);

    let refused = |e: &RoundEffect| matches!(e, RoundEffect::Refuse { .. });
    assert!(!round.effects.iter().any(refused), "{:?}", round.effects);
}

#[test]
fn an_agent_with_impossible_numbers_is_refused_and_changes_nothing() {
    let now = Millis::from_secs(1_000);
    let mut cluster = cluster(now);

    let round = cluster.step(vec![hello(1, 1, 3, u64::MAX)], now, &mut Uuid::now_v7);

    assert_eq!(round.rollback, None);
    let refused = |e: &RoundEffect| matches!(e, RoundEffect::Refuse { reason, retry: false, .. } if reason.contains("damaged"));
    assert!(round.effects.iter().any(refused), "{:?}", round.effects);
}

#[test]
fn a_node_is_lost_only_after_the_lease_of_an_earlier_leader_has_expired() {
    let now = Millis::from_secs(1_000);
    let longer = LeaseTerms::default().controller_expiry(Millis::ZERO);
    let shorter = LeaseTerms::from_length(Millis::from_secs(10)).unwrap();
    let policy = tessera_placement::by_name("scheme-b").unwrap();
    let controller = ControllerId::from_uuid(Uuid::from_u128(9));
    let left = StoreSnapshot { granted_left: longer, ..snapshot() };
    let mut cluster = ClusterState::new(6, controller, shorter, policy, left, now);
    // One of the two reconnects briefly: its attempts may run as long as the other's.
    cluster.step(vec![hello(1, 1, 3, 5)], now, &mut Uuid::now_v7);

    let before = now.plus(longer).minus(Millis::new(1));
    let quiet = cluster.step(vec![Input::Tick], before, &mut Uuid::now_v7);
    let then = cluster.step(vec![Input::Tick], now.plus(longer), &mut Uuid::now_v7);

    assert!(shorter.controller_expiry(now) < before, "the shorter lease expired long ago");
    assert!(quiet.nodes.generations.is_empty(), "{:?}", quiet.nodes.generations);
    assert_eq!(then.nodes.generations.len(), 2, "{:?}", then.nodes.generations);
}
