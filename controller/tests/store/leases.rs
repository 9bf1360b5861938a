//! What one leader granted, the next one honours.

use sqlx::PgConnection;
use tessera_controller::store::connect;
use tessera_controller::store::leader::{self, Claim, Election};
use tessera_model::{ControllerId, Millis};
use uuid::Uuid;

/// Leads with leases of so many seconds, and returns what earlier leaders' grants may last yet.
async fn lead(connection: &mut PgConnection, secs: u64) -> Millis {
    let controller = ControllerId::from_uuid(Uuid::from_u128(1));
    let claim =
        Claim { controller, remembered: None, rolled_back: None, lease: Millis::from_secs(secs) };
    let election = leader::elect_leader(connection, &claim).await.unwrap();
    assert!(matches!(election, Election::Won { .. }), "{election:?}");
    leader::read_hold(connection).await.unwrap().granted
}

/// The database's clock runs on while one looks.
fn about(left: Millis, secs: u64) -> bool {
    (Millis::from_secs(secs.saturating_sub(600))..=Millis::from_secs(secs)).contains(&left)
}

#[tokio::test]
async fn a_shorter_lease_waits_for_the_longest_that_may_still_stand() {
    let options = crate::database::fresh().await;
    let pool = connect::pool(options, 1);
    let mut connection = pool.acquire().await.unwrap();

    let first = lead(&mut connection, 3_000).await;
    assert_eq!(first, Millis::ZERO, "nobody granted anything before");
    let shorter = lead(&mut connection, 100).await;
    assert!(about(shorter, 3_000), "the first one's grants may stand for long: {shorter}");
    let again = lead(&mut connection, 100).await;
    assert!(about(again, 3_000), "one leader in between changes nothing: {again}");
    let longer = lead(&mut connection, 9_000).await;
    assert!(about(longer, 3_000), "its own are its own business: {longer}");
    let last = lead(&mut connection, 100).await;
    assert!(about(last, 9_000), "{last}");
}
