//! Tokens of an issuer (OpenID Connect), which a small issuer of the test's own signs and publishes over a
//! real socket.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};
use tessera_api_types::WhoAmI;
use tessera_controller::oidc::{Issuer, KeyPace, OidcSettings};
use tessera_controller::principal::Role;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::rig::{Rig, client, problem};

/// A key of the issuer.
struct SigningKey {
    id: &'static str,
    pair: EcdsaKeyPair,
}

impl SigningKey {
    fn new(id: &'static str) -> Self {
        let (random, kind) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let document = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        Self { id, pair: EcdsaKeyPair::from_pkcs8(kind, document.as_ref(), &random).unwrap() }
    }

    fn published(&self) -> Value {
        let (x, y) = self.pair.public_key().as_ref()[1..].split_at(32);
        json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.id,
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        })
    }

    fn sign(&self, claims: &Value) -> String {
        let head = json!({ "typ": "JWT", "alg": "ES256", "kid": self.id });
        let body = body(&head, claims);
        let signature = self.pair.sign(&SystemRandom::new(), body.as_bytes()).unwrap();
        format!("{body}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

fn body(head: &Value, claims: &Value) -> String {
    let encode = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
    format!("{}.{}", encode(head), encode(claims))
}

/// What the issuer publishes.
#[derive(Default)]
struct Published {
    keys: Mutex<Vec<Value>>,
    reads: AtomicUsize,
    /// Answers wait for a permit of this while it is set.
    held: Mutex<Option<Arc<Semaphore>>>,
}

/// An issuer on its own port.
struct TestIssuer {
    address: SocketAddr,
    published: Arc<Published>,
    serving: JoinHandle<()>,
}

impl TestIssuer {
    async fn start(keys: &[&SigningKey]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let published = Arc::new(Published::default());
        let shared = Arc::clone(&published);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, address, Arc::clone(&shared)));
            }
        });
        let issuer = Self { address, published, serving };
        issuer.publish(keys);
        issuer
    }

    fn publish(&self, keys: &[&SigningKey]) {
        *self.published.keys.lock().unwrap() = keys.iter().map(|key| key.published()).collect();
    }

    fn name(&self) -> String {
        format!("http://{}/lab", self.address)
    }

    /// Returns how often the keys were read.
    fn reads(&self) -> usize {
        self.published.reads.load(Ordering::SeqCst)
    }

    fn settings(&self) -> OidcSettings {
        OidcSettings {
            issuer: self.name(),
            audience: "tessera".to_owned(),
            user_claim: "account".to_owned(),
            groups_claim: Some("groups".to_owned()),
            keys: None,
            ca: None,
            roles: [("gpu-ops".to_owned(), Role::Operator)].into(),
        }
    }

    fn claims(&self) -> Value {
        let now = jsonwebtoken::get_current_timestamp();
        json!({
            "iss": self.name(), "aud": "tessera", "sub": "8f3a", "account": "ada",
            "exp": now + 600, "nbf": now, "iat": now,
        })
    }
}

async fn answer(stream: TcpStream, address: SocketAddr, published: Arc<Published>) {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.unwrap_or(0) == 0 {
            return;
        }
    }
    let held = published.held.lock().unwrap().clone();
    if let Some(released) = held {
        released.acquire().await.unwrap().forget();
    }
    let issuer = format!("http://{address}/lab");
    let (status, answer) = if head.starts_with("GET /lab/.well-known/openid-configuration ") {
        (200, json!({ "issuer": issuer, "jwks_uri": format!("{issuer}/keys") }))
    } else if head.starts_with("GET /lab/keys ") {
        published.reads.fetch_add(1, Ordering::SeqCst);
        (200, json!({ "keys": *published.keys.lock().unwrap() }))
    } else {
        (404, json!({}))
    };
    let text = answer.to_string();
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    let _ = stream.write_all((head + &text).as_bytes()).await;
}

/// A pace at which each unknown key is fetched for.
const EAGER: KeyPace = KeyPace {
    between: Duration::ZERO,
    refresh_after: Duration::from_secs(600),
    usable_for: Duration::from_secs(86_400),
};
/// A pace at which keys are fetched once in a test.
const ONCE: KeyPace = KeyPace { between: Duration::from_secs(86_400), ..EAGER };

async fn rig(settings: OidcSettings, pace: KeyPace) -> Rig {
    let issuer = Issuer::open(settings, pace, Handle::current()).unwrap();
    Rig::with(None, Some(issuer)).await
}

async fn whoami(rig: &Rig, token: &str) -> reqwest::Response {
    client(Some(token)).get(rig.url("/v1/whoami")).send().await.unwrap()
}

async fn refused(rig: &Rig, token: &str, reason: &str) {
    let refused = problem(whoami(rig, token).await, 401, "unauthorized").await;
    assert!(refused.detail.contains(reason), "{reason}: {}", refused.detail);
}

/// Returns claims with one of them changed, or without it.
fn with(mut claims: Value, name: &str, value: Value) -> Value {
    let all = claims.as_object_mut().unwrap();
    match value {
        Value::Null => drop(all.remove(name)),
        value => drop(all.insert(name.to_owned(), value)),
    }
    claims
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_the_issuer_names_its_user_and_role() {
    let key = SigningKey::new("one");
    let issuer = TestIssuer::start(&[&key]).await;
    let rig = rig(issuer.settings(), EAGER).await;
    let who = async |claims: &Value| -> WhoAmI {
        let answer = whoami(&rig, &key.sign(claims)).await;
        assert_eq!(answer.status(), 200, "{claims}");
        answer.json().await.unwrap()
    };

    let ada = who(&issuer.claims()).await;
    assert_eq!((&*ada.user, &*ada.role, &*ada.proof), ("ada", "user", "oidc"));
    let operator = who(&with(issuer.claims(), "groups", json!(["staff", "gpu-ops"]))).await;
    assert_eq!(operator.role, "operator");
    who(&with(issuer.claims(), "aud", json!(["other", "tessera"]))).await;
    let coordinator = who(&with(issuer.claims(), "account", json!("pi"))).await;
    assert_eq!(coordinator.coordinates, ["ada"]);
    // A few seconds of difference between clocks are none.
    let now = jsonwebtoken::get_current_timestamp();
    who(&with(issuer.claims(), "exp", json!(now - 5))).await;
    who(&with(issuer.claims(), "nbf", json!(now + 5))).await;

    // Such a token makes no other ones, and what it does is recorded under its subject.
    let ada = client(Some(&key.sign(&issuer.claims())));
    let made = ada.post(rig.url("/v1/tokens")).json(&json!({ "name": "x" })).send().await.unwrap();
    problem(made, 403, "forbidden").await;
    let origin = async {
        loop {
            let rows: Vec<String> = sqlx::query_scalar("SELECT origin FROM audit_log")
                .fetch_all(&rig.pool)
                .await
                .unwrap();
            if let Some(row) = rows.first() {
                return row.clone();
            }
            tokio::task::yield_now().await;
        }
    };
    let origin = tokio::time::timeout(Duration::from_secs(10), origin).await.unwrap();
    assert!(origin.contains("oidc, subject 8f3a, from 127.0.0.1"), "{origin}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_wrong_in_one_thing_names_nobody() {
    let (key, stranger) = (SigningKey::new("one"), SigningKey::new("one"));
    let issuer = TestIssuer::start(&[&key]).await;
    let rig = rig(issuer.settings(), EAGER).await;
    let now = jsonwebtoken::get_current_timestamp();
    assert_eq!(whoami(&rig, &key.sign(&issuer.claims())).await.status(), 200);

    for (name, value, reason) in [
        ("exp", json!(now - 120), "expired"),
        ("exp", Value::Null, "missing"),
        ("exp", json!("tomorrow"), "missing or malformed"),
        ("nbf", json!(now + 120), "not valid yet"),
        ("aud", json!("another"), "another service"),
        ("aud", json!(["a", "b"]), "another service"),
        ("aud", Value::Null, "missing"),
        ("iss", json!("http://127.0.0.1:1/lab"), "another issuer"),
        ("iss", json!([issuer.name()]), "another issuer"),
        ("iss", Value::Null, "missing"),
        ("sub", Value::Null, "missing"),
        ("account", Value::Null, "no claim account"),
        ("account", json!(["ada"]), "no claim account"),
        ("account", json!("a b"), "not the name of a user"),
        ("account", json!("bootstrap"), "not the name of a user"),
        ("account", json!("root"), "is a system account"),
    ] {
        refused(&rig, &key.sign(&with(issuer.claims(), name, value)), reason).await;
    }
    refused(&rig, &stranger.sign(&issuer.claims()), "signature is wrong").await;
    let good = key.sign(&issuer.claims());
    let (body_part, signature) = good.rsplit_once('.').unwrap();
    let (head, _) = body_part.split_once('.').unwrap();
    let other = with(issuer.claims(), "account", json!("bob")).to_string();
    let swapped = format!("{head}.{}.{signature}", URL_SAFE_NO_PAD.encode(other));
    refused(&rig, &swapped, "signature is wrong").await;
    refused(&rig, &format!("{body_part}."), "signature is wrong").await;
    for wrong in ["a.b.c", "..", &format!("{}.x.y", "A".repeat(20_000))] {
        problem(whoami(&rig, wrong).await, 401, "unauthorized").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_token_chooses_an_algorithm_that_needs_no_private_key() {
    let key = SigningKey::new("one");
    let issuer = TestIssuer::start(&[&key]).await;
    let rig = rig(issuer.settings(), EAGER).await;
    assert_eq!(whoami(&rig, &key.sign(&issuer.claims())).await.status(), 200);

    for algorithm in ["none", "None", "NONE", ""] {
        let unsigned = body(&json!({ "alg": algorithm, "kid": "one" }), &issuer.claims());
        refused(&rig, &format!("{unsigned}."), "no known algorithm").await;
    }
    // The public key, in each form that a library may take for a secret.
    let point = key.pair.public_key().as_ref().to_vec();
    for secret in [point.clone(), point[1..].to_vec(), key.published().to_string().into_bytes()] {
        let signed = body(&json!({ "alg": "HS256", "kid": "one" }), &issuer.claims());
        let mac = ring::hmac::sign(
            &ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret),
            signed.as_bytes(),
        );
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac));
        refused(&rig, &token, "not one for public keys").await;
    }
    // A good signature under the name of another algorithm.
    let head = json!({ "alg": "ES384", "kid": "one" });
    let signed = body(&head, &issuer.claims());
    let signature = key.pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature));
    refused(&rig, &token, "no key with the id and algorithm").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_key_is_fetched_and_unknown_ones_at_a_bounded_rate() {
    let (first, second, stranger) =
        (SigningKey::new("one"), SigningKey::new("two"), SigningKey::new("three"));
    let issuer = TestIssuer::start(&[&first]).await;
    let eager = rig(issuer.settings(), EAGER).await;
    assert_eq!(whoami(&eager, &first.sign(&issuer.claims())).await.status(), 200);

    issuer.publish(&[&second]);
    assert_eq!(whoami(&eager, &second.sign(&issuer.claims())).await.status(), 200);
    refused(&eager, &first.sign(&issuer.claims()), "no key").await;

    // Whatever tokens name, the issuer is read once in the time between two fetches.
    let before = issuer.reads();
    let once = rig(issuer.settings(), ONCE).await;
    for _ in 0..20 {
        refused(&once, &stranger.sign(&issuer.claims()), "no key").await;
    }
    assert_eq!(whoami(&once, &second.sign(&issuer.claims())).await.status(), 200);
    assert_eq!(issuer.reads() - before, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_that_fails_costs_its_own_tokens_and_nothing_else() {
    let (key, other) = (SigningKey::new("one"), SigningKey::new("two"));
    let mut issuer = TestIssuer::start(&[&key]).await;
    // One that hangs: its tokens wait, and others don't.
    let released = Arc::new(Semaphore::new(0));
    *issuer.published.held.lock().unwrap() = Some(Arc::clone(&released));
    let held = rig(issuer.settings(), ONCE).await;
    let token = key.sign(&issuer.claims());
    let waiting = client(Some(&token)).get(held.url("/v1/whoami")).send();
    let waiting = tokio::spawn(waiting);
    for _ in 0..20 {
        assert_eq!(held.get("/v1/whoami").await.status(), 200, "a personal token");
    }
    assert!(!waiting.is_finished());
    *issuer.published.held.lock().unwrap() = None;
    released.add_permits(2);
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);

    // One that is gone: known keys go on, unknown ones can't be checked.
    let gone = rig(issuer.settings(), EAGER).await;
    assert_eq!(whoami(&gone, &token).await.status(), 200);
    issuer.serving.abort();
    assert!((&mut issuer.serving).await.unwrap_err().is_cancelled());
    assert_eq!(whoami(&gone, &token).await.status(), 200);
    let unknown = problem(whoami(&gone, &other.sign(&issuer.claims())).await, 503, "unavailable");
    let unknown = unknown.await.detail;
    assert!(unknown.contains("issuer") && unknown.contains("openid-configuration"), "{unknown}");
    let fresh = rig(issuer.settings(), EAGER).await;
    problem(whoami(&fresh, &token).await, 503, "unavailable").await;
    assert_eq!(fresh.get("/v1/whoami").await.status(), 200, "a personal token");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_come_from_a_file_where_one_is_given() {
    let (first, second) = (SigningKey::new("one"), SigningKey::new("two"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    let write = |key: &SigningKey| {
        std::fs::write(&path, json!({ "keys": [key.published()] }).to_string()).unwrap();
    };
    write(&first);
    let issuer = TestIssuer::start(&[]).await;
    let rig = rig(OidcSettings { keys: Some(path.clone()), ..issuer.settings() }, EAGER).await;

    assert_eq!(whoami(&rig, &first.sign(&issuer.claims())).await.status(), 200);
    write(&second);
    assert_eq!(whoami(&rig, &second.sign(&issuer.claims())).await.status(), 200);
    assert_eq!(issuer.reads(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_issuer_its_tokens_name_nobody() {
    let key = SigningKey::new("one");
    let issuer = TestIssuer::start(&[&key]).await;
    let rig = Rig::start().await;

    refused(&rig, &key.sign(&issuer.claims()), "no issuer of others is configured").await;
}
