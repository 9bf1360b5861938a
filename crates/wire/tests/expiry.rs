//! When certificates expire is read from the certificates themselves.

use tempfile::tempdir;
use tessera_model::{NodeId, NodeIdentity};
use tessera_wire::tls::{Authority, Identity, issue_node};
use time::OffsetDateTime;
use uuid::Uuid;

const DAY: i64 = 86_400;

#[test]
fn a_nodes_certificate_expires_after_two_weeks_and_its_authority_after_ten_years() {
    let now = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
    let folder = tempdir().unwrap();
    let authority = Authority::create(now).unwrap();
    authority.save(folder.path()).unwrap();
    let node =
        NodeIdentity { id: NodeId::from_uuid(Uuid::from_u128(7)), name: "node-a".parse().unwrap() };
    let later = now + time::Duration::days(100);
    let own = folder.path().join("node-a");
    issue_node(folder.path(), &node, later).unwrap().save(&own).unwrap();

    let expiry = Identity::load(&own).unwrap().expiry().unwrap();

    assert_eq!(expiry.own, 1_800_000_000 + (100 + 14) * DAY);
    assert_eq!(expiry.authority, 1_800_000_000 + 3_650 * DAY);
}
