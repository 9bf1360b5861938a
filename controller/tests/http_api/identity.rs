//! Names of callers: the Unix socket with real accounts, personal tokens, and pages of other sites.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tessera_api_types::{TokenCreated, TokenList, WhoAmI};
use tessera_controller::principal::Role;
use tessera_controller::tokens::ValidTokens;
use tessera_wire::authority::ClusterAuthority;
use tessera_wire::tls;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Handle;

use super::rig::{BOOTSTRAP, Rig, UNREAD_FOR, client, make_token, problem};
use super::seed::Seed;

/// Sends bytes, and returns the status and the body.
async fn raw(
    stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin),
    head: &str,
) -> (u16, String) {
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    tokio::time::timeout(Duration::from_secs(20), read).await.unwrap().unwrap();
    let status = answer.get(9..12).and_then(|code| code.parse().ok()).unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
    (status, body)
}

/// Sends a request over the Unix socket, as another account where one is given; `None` where this process may not
/// become it.
fn whoami_as(socket: &Path, account: Option<&str>) -> Option<(u16, Value)> {
    // A program that every system has: it needs no file that only root can read.
    let script = r#"
        import socket, sys
        s = socket.socket(socket.AF_UNIX)
        s.connect(sys.argv[1])
        s.sendall(b"GET /v1/whoami HTTP/1.0\r\nHost: localhost\r\n\r\n")
        answer = b""
        while piece := s.recv(65536):
            answer += piece
        sys.stdout.write(answer.decode())
    "#;
    let script: String = script
        .lines()
        .map(|line| line.strip_prefix("        ").unwrap_or(line).to_owned() + "\n")
        .collect();
    let mut command = match account {
        None => Command::new("python3"),
        Some(account) => {
            let mut command = Command::new("runuser");
            command.args(["-u", account, "--", "python3"]);
            command
        }
    };
    let done = command.args(["-c", &script]).arg(socket).output().ok()?;
    if !done.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&done.stderr));
        return None;
    }
    let text = String::from_utf8(done.stdout).unwrap();
    let status = text[9..12].parse().unwrap();
    let body = text.split_once("\r\n\r\n").unwrap().1;
    Some((status, serde_json::from_str(body).unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kernel_names_the_callers_of_the_unix_socket() {
    let rig = Rig::start().await;
    let socket = rig.socket.clone();
    let requested = tokio::task::spawn_blocking(move || {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let query = |account| whoami_as(&socket, account);
        Some([query(None), query(Some("daemon")), query(Some("bin")), query(Some("nobody"))])
    });
    let Some(answers) = requested.await.unwrap() else {
        eprintln!("SKIPPED: only root can become other accounts");
        return;
    };

    for (answer, user, role) in [
        (&answers[0], "root", "admin"),
        (&answers[1], "daemon", "user"),
        (&answers[2], "bin", "operator"),
    ] {
        let (status, body) = answer.as_ref().unwrap();
        assert_eq!(*status, 200, "{body}");
        assert_eq!((body["user"].as_str(), body["role"].as_str()), (Some(user), Some(role)));
        assert_eq!(body["proof"], "socket");
    }
    let (status, body) = answers[3].as_ref().unwrap();
    assert_eq!(*status, 401, "the overflow account is nobody: {body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tcp_nobody_is_anybody_without_a_token() {
    let rig = Rig::start().await;
    let nobody = client(None);
    for path in ["/v1/jobs", "/metrics", "/v1/nothing", "/v1/whoami"] {
        let answer = nobody.get(rig.url(path)).send().await.unwrap();
        assert_eq!(answer.headers()["www-authenticate"], "Bearer", "{path}");
        let refused = problem(answer, 401, "unauthorized").await;
        let expected = refused.expected.unwrap();
        assert!(
            expected.contains("tessera login") && expected.contains("Unix socket"),
            "{expected}"
        );
    }
    let whole = make_token(&rig.tokens, "ada", Role::User).await;
    let cut = &whole[..whole.len() - 1];
    let other = whole.replace("tsr_user_", "tsr_admin_");
    for wrong in ["Bearer", "Bearer ", "Basic x", "Bearer tsr_user_", "Bearer x y"] {
        let requested = nobody.get(rig.url("/v1/jobs")).header("authorization", wrong);
        problem(requested.send().await.unwrap(), 401, "unauthorized").await;
    }
    for wrong in [cut, &other] {
        let requested = nobody.get(rig.url("/v1/jobs")).bearer_auth(wrong);
        problem(requested.send().await.unwrap(), 401, "unauthorized").await;
    }
    for path in ["/healthz", "/livez", "/readyz", "/openapi.json", "/docs/"] {
        assert_eq!(nobody.get(rig.url(path)).send().await.unwrap().status(), 200, "{path}");
    }
    for scheme in ["Bearer", "bearer"] {
        let requested =
            nobody.get(rig.url("/v1/whoami")).header("authorization", format!("{scheme} {whole}"));
        let who: WhoAmI = requested.send().await.unwrap().json().await.unwrap();
        assert_eq!((who.user.as_str(), who.role.as_str()), ("ada", "user"));
    }
    let twice = nobody.get(rig.url("/v1/jobs")).bearer_auth(&whole).bearer_auth(&whole);
    problem(twice.send().await.unwrap(), 401, "unauthorized").await;
}

async fn create(caller: &Client, rig: &Rig, body: Value) -> reqwest::Response {
    caller.post(rig.url("/v1/tokens")).json(&body).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_made_listed_used_and_revoked_everywhere_at_once() {
    let rig = Rig::start().await;
    // Another controller on the same database.
    let other = ValidTokens::open(rig.pool.clone(), Handle::current(), None);
    let body = json!({ "name": "laptop", "user": "ada" });

    let made: TokenCreated = create(&rig.client, &rig, body).await.json().await.unwrap();

    assert_eq!((made.token.user.as_str(), made.token.role.as_str()), ("ada", "user"));
    let days = (made.token.expires_at - made.token.created_at).whole_days();
    assert_eq!(days, 90);
    let ada = client(Some(&made.secret));
    let listed: TokenList =
        ada.get(rig.url("/v1/tokens")).send().await.unwrap().json().await.unwrap();
    assert_eq!(listed.items.len(), 1);
    assert!(!serde_json::to_string(&listed).unwrap().contains(&made.secret));
    let hashes: Vec<Vec<u8>> = sqlx::query_scalar("SELECT secret_hash FROM api_tokens")
        .fetch_all(&rig.pool)
        .await
        .unwrap();
    assert!(hashes.iter().all(|hash| hash.len() == 32));
    let now = made.token.created_at;
    within_a_second(|| other.check(&made.secret, now).is_ok()).await;

    // Not by another user, and only once needed.
    let path = format!("/v1/tokens/{}", made.token.id);
    let bob = rig.client_of("bob", Role::User).await;
    problem(bob.delete(rig.url(&path)).send().await.unwrap(), 404, "not-found").await;
    assert_eq!(ada.get(rig.url("/v1/whoami")).send().await.unwrap().status(), 200);
    assert_eq!(ada.delete(rig.url(&path)).send().await.unwrap().status(), 200);

    problem(ada.get(rig.url("/v1/whoami")).send().await.unwrap(), 401, "unauthorized").await;
    within_a_second(|| other.check(&made.secret, now).is_err()).await;
    let after = made.token.expires_at + Duration::from_secs(1);
    let bobs = make_token(&rig.tokens, "bob", Role::User).await;
    assert!(rig.tokens.check(&bobs, now).is_ok());
    assert!(rig.tokens.check(&bobs, after).is_err(), "an expired token is refused");
}

async fn within_a_second(holds: impl Fn() -> bool) {
    let waited = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(1), waited).await.expect("within a second");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_makes_a_token_with_more_rights_than_their_own() {
    let rig = Rig::start().await;
    let op = rig.client_of("op", Role::Operator).await;
    let bootstrap = client(Some(BOOTSTRAP));

    let by_token = problem(create(&op, &rig, json!({ "name": "a" })).await, 403, "forbidden").await;
    assert!(by_token.expected.unwrap().contains("Unix socket"));
    let other = json!({ "name": "a", "user": "ada" });
    problem(create(&op, &rig, other).await, 403, "forbidden").await;
    problem(op.get(rig.url("/v1/tokens?all=true")).send().await.unwrap(), 403, "forbidden").await;
    problem(op.get(rig.url("/v1/tokens?user=ada")).send().await.unwrap(), 403, "forbidden").await;
    let own =
        problem(create(&bootstrap, &rig, json!({ "name": "a" })).await, 400, "bad-field").await;
    assert_eq!(own.field.as_deref(), Some("user"));
    let first = json!({ "name": "first", "user": "root", "role": "admin" });
    assert_eq!(create(&bootstrap, &rig, first).await.status(), 201);
    for (body, field) in [
        (json!({ "name": "" }), "name"),
        (json!({ "name": "a\nb" }), "name"),
        (json!({ "name": "a", "role": "root" }), "role"),
        (json!({ "name": "a", "valid_secs": 1 }), "valid_secs"),
        (json!({ "name": "a", "valid_secs": 40_000_000 }), "valid_secs"),
        (json!({ "name": "a", "user": " " }), "user"),
    ] {
        let refused =
            problem(create(&rig.client, &rig, body.clone()).await, 400, "bad-field").await;
        assert_eq!(refused.field.as_deref(), Some(field), "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_site_changes_nothing_by_any_method() {
    let rig = Rig::start().await;
    Seed(&rig.pool).submission(1, 1, None, "root").await;
    let token = make_token(&rig.tokens, "root", Role::Admin).await;
    let bad_headers = [
        "Host: evil.example",
        "Host: localhost\r\nOrigin: http://evil.example",
        "Host: localhost\r\nOrigin: null",
        "Host: localhost\r\nSec-Fetch-Site: cross-site",
    ];
    let mut refused = 0;
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
        for path in ["/v1/jobs", "/v1/jobs/1", "/v1/jobs/1/cancel", "/v1/tokens", "/docs/"] {
            for bad in bad_headers {
                let mut stream = TcpStream::connect(rig.address).await.unwrap();
                let head = format!(
                    "{method} {path} HTTP/1.1\r\n{bad}\r\nAuthorization: Bearer {token}\r\n\
                     Connection: close\r\nContent-Length: 0\r\n\r\n"
                );
                let (status, body) = raw(&mut stream, &head).await;
                assert_eq!(status, 403, "{head}{body}");
                assert!(body.contains("urn:tessera:problem:forbidden"), "{body}");
                refused += 1;
            }
        }
    }
    assert_eq!(refused, 100);
    // A form that a page posts without a preflight request carries no token, and one of these types.
    for form in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let nobody = client(None);
        let posted =
            nobody.post(rig.url("/v1/jobs/1/cancel")).header("content-type", form).body("x=1");
        assert_eq!(posted.send().await.unwrap().status(), StatusCode::FORBIDDEN, "{form}");
    }
    let question = client(None)
        .request(Method::OPTIONS, rig.url("/v1/jobs"))
        .header("origin", "http://evil.example")
        .header("access-control-request-method", "DELETE");
    let answer = question.send().await.unwrap();
    assert!(!answer.headers().contains_key("access-control-allow-origin"));
    assert_eq!(answer.status(), 403);
    let states: Vec<String> =
        sqlx::query_scalar("SELECT state FROM jobs").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(states, ["queued"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn browsers_do_not_speak_over_the_unix_socket() {
    let rig = Rig::start().await;
    let mut stream = UnixStream::connect(&rig.socket).await.unwrap();
    let head = "GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\
                Connection: close\r\n\r\n";

    assert_eq!(raw(&mut stream, head).await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_comes_byte_by_byte_is_given_up() {
    let rig = Rig::start().await;
    let token = make_token(&rig.tokens, "ada", Role::User).await;
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n{{"
    );

    let (status, body) = raw(&mut stream, &head).await;

    assert_eq!(status, 408, "{body}");
    assert!(body.contains("urn:tessera:problem:too-slow"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_read_is_given_up() {
    let rig = Rig::start().await;
    let token = make_token(&rig.tokens, "ada", Role::User).await;
    let request = format!(
        "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut reader = socket.connect(rig.address).await.unwrap();
    // Far more answers than the buffers of both kernels hold.
    reader.write_all(request.repeat(100).as_bytes()).await.unwrap();

    let mut tries = tokio::time::interval(Duration::from_millis(100));
    let closed = async {
        // The kernel frees the connection without a word. The next byte that is written to it shows that.
        while reader.write_all(b"G").await.is_ok() {
            tries.tick().await;
        }
    };

    let patience = UNREAD_FOR + Duration::from_secs(20);
    tokio::time::timeout(patience, closed).await.expect("the connection stays");
    let still = client(Some(&token)).get(rig.url("/v1/whoami")).send().await.unwrap();
    assert_eq!(still.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_api_is_trusted_by_the_clusters_authority_only() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let (ours, other) = (folder.path().join("ours"), folder.path().join("other"));
    let now = time::OffsetDateTime::UNIX_EPOCH + Duration::from_secs(now_secs());
    for authority in [&ours, &other] {
        tls::Authority::create(now).unwrap().save(authority).unwrap();
    }
    let names = ["localhost".to_owned(), "gpu.lab".to_owned()];
    let identity = ClusterAuthority::open(&ours).unwrap().unwrap().sign_rest(&names, now).unwrap();
    let rig = Rig::encrypted(Some(identity.rest_server().unwrap())).await;
    let token = make_token(&rig.tokens, "ada", Role::User).await;
    let query = async |authority: &Path, name: &str| {
        let pem = std::fs::read(authority.join("ca.pem")).unwrap();
        let client = Client::builder()
            .tls_certs_only([reqwest::Certificate::from_pem(&pem).unwrap()])
            .resolve(name, rig.address)
            .build()
            .unwrap();
        let url = format!("https://{name}:{}/v1/whoami", rig.address.port());
        client.get(url).bearer_auth(&token).send().await
    };

    assert_eq!(query(&ours, "gpu.lab").await.unwrap().status(), 200);
    assert!(query(&ours, "other.lab").await.unwrap_err().is_connect(), "another name");
    assert!(query(&other, "gpu.lab").await.unwrap_err().is_connect(), "another authority");
    let plain = client(Some(&token)).get(rig.url("/v1/whoami")).send().await;
    assert!(plain.is_err() || plain.unwrap().status() != 200, "no answer without TLS");
}

#[expect(clippy::disallowed_methods, reason = "certificates are valid from now on")]
fn now_secs() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}
