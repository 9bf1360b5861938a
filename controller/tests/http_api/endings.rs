//! Answers that go on end with the token of their caller.

use std::time::Duration;

use reqwest::Response;
use tessera_controller::principal::Role;
use tessera_controller::store::tokens::NewToken;
use tessera_controller::tokens::Secret;

use super::rig::{Rig, client, make_token};

/// A revocation reaches every controller within a second.
const REVOKED_WITHIN: Duration = Duration::from_secs(1);
/// Longer than anything else here takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Opens a stream of events, and waits until it has begun.
async fn events(rig: &Rig, token: &str) -> Response {
    let mut stream = client(Some(token)).get(rig.url("/v1/events")).send().await.unwrap();
    assert_eq!(stream.status(), 200);
    assert_eq!(stream.chunk().await.unwrap().unwrap(), ": connected\n\n");
    stream
}

/// Waits for a stream's end, which is no orderly one.
async fn ends(mut stream: Response, within: Duration) -> bool {
    let read = async { while let Ok(Some(_)) = stream.chunk().await {} };
    tokio::time::timeout(within, read).await.is_ok()
}

fn id_of(token: &str) -> String {
    token.split('_').nth(2).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_token_opened_ends_with_its_revocation() {
    let rig = Rig::start().await;
    let stolen = make_token(&rig.tokens, "ada", Role::User).await;
    let other = make_token(&rig.tokens, "ada", Role::User).await;
    let (by_thief, by_ada) = (events(&rig, &stolen).await, events(&rig, &other).await);

    rig.tokens.revoke(id_of(&stolen), None, "ada".to_owned()).await.unwrap().unwrap();

    assert!(ends(by_thief, REVOKED_WITHIN).await, "it goes on after the revocation");
    // Another token of the same user is another matter.
    assert!(!ends(by_ada, Duration::from_millis(200)).await, "a valid token's stream has ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_token_opened_ends_when_it_expires() {
    let rig = Rig::start().await;
    let secret = Secret::new(Role::User).unwrap();
    let new = NewToken {
        id: secret.id().to_owned(),
        name: "short".to_owned(),
        user: "ada".to_owned(),
        role: Role::User,
        secret_hash: secret.hash(),
        created_by: "admin".to_owned(),
        valid_secs: 2.0,
    };
    rig.tokens.insert(new).await.unwrap().unwrap();

    let stream = events(&rig, secret.text()).await;

    assert!(ends(stream, PATIENCE).await, "it goes on after its token's end");
}
