//! A token of the site's login service, from a file to a job, through real processes.

use std::fs;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::json;
use tessera_load_tests::cluster::Plan;
use tessera_load_tests::programs::programs;

/// Makes a key of the issuer, and returns what it publishes and a token for ada.
fn issued(issuer: &str) -> (String, String) {
    let (random, kind) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
    let document = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(kind, document.as_ref(), &random).unwrap();
    let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
    let keys = json!({ "keys": [{
        "kty": "EC", "crv": "P-256", "kid": "one", "use": "sig",
        "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
    }] });
    // The end of the century.
    let claims = json!({
        "iss": issuer, "aud": "tessera", "sub": "8f3a", "account": "ada", "exp": 4_102_444_800_u64,
        "groups": ["gpu-ops"],
    });
    let head = json!({ "alg": "ES256", "kid": "one" });
    let encode = |part: &serde_json::Value| URL_SAFE_NO_PAD.encode(part.to_string());
    let body = format!("{}.{}", encode(&head), encode(&claims));
    let signature = pair.sign(&random, body.as_bytes()).unwrap();
    (keys.to_string(), format!("{body}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

#[test]
fn a_token_of_the_login_service_is_kept_and_names_its_user() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let issuer = "https://login.example.org";
    let (keys, token) = issued(issuer);
    let (keys, token) = (file("keys.json", &keys), file("token.jwt", &format!("{token}\n")));
    let settings = format!(
        "[oidc]\nissuer = {issuer:?}\naudience = \"tessera\"\nuser-claim = \"account\"\n\
         groups-claim = \"groups\"\nkeys = {:?}\nroles = {{ gpu-ops = \"operator\" }}\n",
        keys.display().to_string()
    );
    let settings = file("controller.toml", &settings);
    let plan = Plan::new().env("TESSERA_CONTROLLER_CONFIG", settings.display().to_string());
    let cluster = plan.start();
    let tessera = |words: &[&str]| {
        let done = Command::new(programs().path("tessera"))
            .args(["--url", &format!("http://{}", cluster.http())])
            .args(words)
            .env("XDG_CONFIG_HOME", folder.path())
            .env_remove("TESSERA_TOKEN")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        (done.status.success(), text)
    };

    let (nobody, _) = tessera(&["whoami"]);
    let (is_in, text) = tessera(&["login", "--token-file", &token.display().to_string()]);
    let (known, who) = tessera(&["whoami"]);

    assert!(!nobody);
    assert!(is_in, "{text}");
    assert!(known && ["ada", "operator", "oidc"].iter().all(|word| who.contains(word)), "{who}");
    // It acts in its user's name.
    let (submitted, text) = tessera(&["submit", "--parsable", "--chdir", "/tmp", "--wrap", "true"]);
    assert!(submitted, "{text}");
    assert_eq!(cluster.job(1).job.user, "ada");
    let missing = folder.path().join("missing").display().to_string();
    let (is_in, text) = tessera(&["login", "--token-file", &missing]);
    assert!(!is_in && text.contains("can't be read"), "{text}");
}
