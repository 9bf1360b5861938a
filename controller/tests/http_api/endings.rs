//! Answers that go on end with the token of their caller.

use std::time::Duration;

use reqwest::Response;
use tessera_controller::principal::{Appointments, Role};
use tessera_controller::store::tokens::NewToken;
use tessera_controller::tokens::Secret;

use super::rig::{Rig, accounts, client, make_token};

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

/// Makes a token as its user does, so that it is worth no more than the user's account.
async fn own_token(rig: &Rig, user: &str, role: Role, valid_secs: f64) -> String {
    let secret = Secret::new(role).unwrap();
    let new = NewToken {
        id: secret.id().to_owned(),
        name: "own".to_owned(),
        user: user.to_owned(),
        role,
        secret_hash: secret.hash(),
        created_by: user.to_owned(),
        valid_secs,
    };
    rig.tokens.insert(new).await.unwrap().unwrap();
    secret.text().to_owned()
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
    let short = own_token(&rig, "root", Role::User, 2.0).await;

    let stream = events(&rig, &short).await;

    assert!(ends(stream, PATIENCE).await, "it goes on after its token's end");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_opened_ends_when_the_role_is_taken_away() {
    let rig = Rig::start().await;
    // Members of the group bin are operators here, and root is an administrator.
    let own = own_token(&rig, "bin", Role::Operator, 600.0).await;
    let granted = make_token(&rig.tokens, "bin", Role::Operator).await;
    let of_root = own_token(&rig, "root", Role::Operator, 600.0).await;
    let (by_own, by_granted) = (events(&rig, &own).await, events(&rig, &granted).await);
    let by_root = events(&rig, &of_root).await;

    let admins = vec!["root".parse().unwrap()];
    let appointments = Appointments { admins, operators: Vec::new(), own_uid: None };
    rig.directory.replace_rules(appointments, accounts());

    assert!(ends(by_own, REVOKED_WITHIN).await, "it goes on after the role is gone");
    let still = Duration::from_millis(200);
    assert!(!ends(by_granted, still).await, "an administrator granted that role to the token");
    assert!(!ends(by_root, still).await, "root still has its role");
}
