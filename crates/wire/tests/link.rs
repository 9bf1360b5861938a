//! Frames over real QUIC, and who gets in.

#[path = "../../frames/tests/samples/mod.rs"]
mod samples;

use std::path::Path;

use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use tempfile::TempDir;
use tessera_frames::cluster::{ToAgent, ToController};
use tessera_frames::codec::{DecodeError, encode};
use tessera_model::{NodeId, NodeIdentity};
use tessera_wire::endpoint::listen;
use tessera_wire::link::{FrameReader, FrameWriter, LinkError};
use tessera_wire::tls::{Authority, CONTROLLER_NAME, Identity, TlsError, issue_node, peer_node};
use time::OffsetDateTime;

struct Ca {
    folder: TempDir,
    authority: Authority,
}

#[expect(clippy::disallowed_methods, reason = "certificates are valid from now on")]
fn ca() -> Ca {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::create(OffsetDateTime::now_utc()).unwrap();
    authority.save(folder.path()).unwrap();
    Ca { folder, authority }
}

#[expect(clippy::disallowed_methods, reason = "certificates are valid from now on")]
fn node(folder: &Path) -> (NodeIdentity, Identity) {
    let node =
        NodeIdentity { id: NodeId::from_uuid(uuid::Uuid::new_v4()), name: "n1".parse().unwrap() };
    let identity = issue_node(folder, &node, OffsetDateTime::now_utc()).unwrap();
    (node, identity)
}

#[expect(clippy::disallowed_methods, reason = "certificates are valid from now on")]
fn controller(ca: &Ca) -> quinn::Endpoint {
    let identity = ca.authority.controller(OffsetDateTime::now_utc()).unwrap();
    listen(&identity, "127.0.0.1:0".parse().unwrap()).unwrap()
}

fn agent(identity: &Identity) -> quinn::Endpoint {
    let mut endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    endpoint.set_default_client_config(identity.client().unwrap());
    endpoint
}

/// Connects; returns the controller's end and the agent's end, if both let the other in.
async fn connect(
    server: &quinn::Endpoint,
    client: &quinn::Endpoint,
) -> Result<(quinn::Connection, quinn::Connection), String> {
    let connecting = client.connect(server.local_addr().unwrap(), CONTROLLER_NAME).unwrap();
    let accept = async { server.accept().await.unwrap().await.map_err(|e| e.to_string()) };
    let connect = async { connecting.await.map_err(|e| e.to_string()) };
    let (there, here) = tokio::join!(accept, connect);
    Ok((there?, here?))
}

async fn pair() -> (quinn::Endpoint, quinn::Endpoint, quinn::Connection, quinn::Connection) {
    let ca = ca();
    let (_, identity) = node(ca.folder.path());
    let (server, client) = (controller(&ca), agent(&identity));
    let (there, here) = connect(&server, &client).await.unwrap();
    (server, client, there, here)
}

#[tokio::test]
async fn a_node_is_known_by_its_certificate() {
    let ca = ca();
    let (node, identity) = node(ca.folder.path());

    let (there, _here) = connect(&controller(&ca), &agent(&identity)).await.unwrap();

    assert_eq!(peer_node(&there).unwrap(), node);
    assert_eq!(identity.node().unwrap(), node);
}

#[tokio::test]
async fn an_identity_survives_the_disk_and_its_key_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let ca = ca();
    let (node, identity) = node(ca.folder.path());
    let folder = ca.folder.path().join("identity");

    identity.save(&folder).unwrap();

    assert_eq!(Identity::load(&folder).unwrap().node().unwrap(), node);
    let mode = std::fs::metadata(folder.join("key.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!format!("{identity:?}").contains("PRIVATE"));
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused() {
    let (ours, others) = (ca(), ca());
    let (_, identity) = node(others.folder.path());

    let refused = connect(&controller(&ours), &agent(&identity)).await;

    assert!(refused.is_err());
}

#[tokio::test]
async fn a_controller_of_another_authority_is_refused_by_its_nodes() {
    let (ours, others) = (ca(), ca());
    let (_, identity) = node(ours.folder.path());

    let refused = connect(&controller(&others), &agent(&identity)).await;

    assert!(refused.is_err());
}

#[expect(clippy::disallowed_methods, reason = "certificates are valid from now on")]
#[tokio::test]
async fn a_controllers_certificate_is_no_nodes() {
    let ca = ca();
    let identity = ca.authority.controller(OffsetDateTime::now_utc()).unwrap();

    let refused = connect(&controller(&ca), &agent(&identity)).await;

    assert!(refused.is_err());
    assert!(matches!(identity.node(), Err(TlsError::NoNode)));
}

#[tokio::test]
async fn a_nodes_certificate_is_no_controllers() {
    let ca = ca();
    let (_, identity) = node(ca.folder.path());
    let server =
        quinn::Endpoint::server(identity.server().unwrap(), "127.0.0.1:0".parse().unwrap())
            .unwrap();

    let refused = connect(&server, &agent(&identity)).await;

    assert!(refused.is_err());
}

#[tokio::test]
async fn a_peer_without_a_certificate_is_refused() {
    let ca = ca();
    let server = controller(&ca);
    let mut roots = rustls::RootCertStore::empty();
    let pem = std::fs::read(ca.folder.path().join("ca.pem")).unwrap();
    use rustls::pki_types::pem::PemObject as _;
    roots.add(rustls::pki_types::CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![tessera_wire::tls::ALPN.to_vec()];
    let quic = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let mut client = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    client.set_default_client_config(quinn::ClientConfig::new(std::sync::Arc::new(quic)));

    assert!(connect(&server, &client).await.is_err());
}

#[tokio::test]
async fn frames_arrive_whole_and_in_order_however_they_are_cut() {
    let (_server, _client, there, here) = pair().await;
    let mut runner = TestRunner::deterministic();
    let frames: Vec<ToController> = (0..40)
        .map(|_| samples::to_controller().new_tree(&mut runner).unwrap().current())
        .collect();
    let mut bytes = Vec::new();
    for frame in &frames {
        let mut body = Vec::new();
        encode(frame, &mut body).unwrap();
        bytes.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(&body);
    }

    let (mut sender, _receiver) = here.open_bi().await.unwrap();
    let sending = async {
        // Odd pieces, each flushed to the network before the next is written.
        for piece in bytes.chunks(97) {
            sender.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        sender.finish().unwrap();
    };
    let receiving = async {
        let (_sender, receiver) = there.accept_bi().await.unwrap();
        let mut reader = FrameReader::new(receiver);
        let mut received = Vec::new();
        while let Some(frame) = reader.receive::<ToController>().await.unwrap() {
            received.push(frame);
        }
        received
    };

    let ((), received) = tokio::join!(sending, receiving);
    assert_eq!(received, frames);
}

#[tokio::test]
async fn a_receive_that_is_given_up_loses_nothing() {
    let (_server, _client, there, here) = pair().await;
    let (mut sender, _receiver) = here.open_bi().await.unwrap();
    let frame = ToAgent::Refused { reason: "x".repeat(300), retry: true };
    let mut body = Vec::new();
    encode(&frame, &mut body).unwrap();
    let bytes = [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat();
    sender.write_all(&bytes[..50]).await.unwrap();
    let (_there_sender, receiver) = there.accept_bi().await.unwrap();
    let mut reader = FrameReader::new(receiver);

    let half = std::time::Duration::from_millis(50);
    let given_up = tokio::time::timeout(half, reader.receive::<ToAgent>()).await;
    sender.write_all(&bytes[50..]).await.unwrap();

    assert!(given_up.is_err(), "half a frame is none");
    assert_eq!(reader.receive::<ToAgent>().await.unwrap(), Some(frame));
}

#[tokio::test]
async fn many_queued_frames_go_with_one_flush() {
    let (_server, _client, there, here) = pair().await;
    let (sender, _receiver) = here.open_bi().await.unwrap();
    let mut writer = FrameWriter::new(sender);
    for sent in 0..1_000 {
        let sent = tessera_model::Millis::new(sent);
        writer.queue(&ToController::Renew { sent, generation: 1 }).unwrap();
    }
    writer.flush().await.unwrap();
    writer.finish();

    let (_sender, receiver) = there.accept_bi().await.unwrap();
    let mut reader = FrameReader::new(receiver);
    for expected in 0..1_000 {
        let frame = reader.receive::<ToController>().await.unwrap().unwrap();
        let ToController::Renew { sent, .. } = frame else { panic!("{frame:?}") };
        assert_eq!(sent.get(), expected);
    }
    assert_eq!(reader.receive::<ToController>().await.unwrap(), None);
}

#[tokio::test]
async fn a_length_bomb_is_refused_before_anything_is_reserved() {
    let (_server, _client, there, here) = pair().await;
    let (mut sender, _receiver) = here.open_bi().await.unwrap();
    sender.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
    let (_there_sender, receiver) = there.accept_bi().await.unwrap();

    let refused = FrameReader::new(receiver).receive::<ToController>().await;

    assert!(matches!(refused, Err(LinkError::Decode(DecodeError::TooLarge { .. }))), "{refused:?}");
}

#[tokio::test]
async fn a_stream_that_ends_within_a_frame_is_broken() {
    let (_server, _client, there, here) = pair().await;
    let (mut sender, _receiver) = here.open_bi().await.unwrap();
    sender.write_all(&[0, 0, 0, 9, 1]).await.unwrap();
    sender.finish().unwrap();
    let (_there_sender, receiver) = there.accept_bi().await.unwrap();

    let broken = FrameReader::new(receiver).receive::<ToController>().await;

    assert!(matches!(broken, Err(LinkError::Broken(_))), "{broken:?}");
}

/// Starts a controller's endpoint on its own runtime, and returns it with its first peer.
fn on_its_own(
    identity: Identity,
    address: std::net::SocketAddr,
) -> (tokio::runtime::Runtime, std::net::SocketAddr) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let endpoint = runtime.block_on(async { listen(&identity, address).unwrap() });
    let address = endpoint.local_addr().unwrap();
    runtime.spawn(async move {
        let mut held = Vec::new();
        while let Some(incoming) = endpoint.accept().await {
            held.push(incoming.await);
        }
    });
    (runtime, address)
}

#[expect(clippy::disallowed_methods, reason = "certificates are valid from now on")]
#[test]
fn an_agent_learns_at_once_that_its_controller_was_killed_and_started_again() {
    let ca = ca();
    let identity = ca.authority.controller(OffsetDateTime::now_utc()).unwrap();
    // Nobody else is at this address, so that nobody takes its port meanwhile.
    let (killed, address) = on_its_own(identity.clone(), "127.0.0.9:0".parse().unwrap());
    let here = tokio::runtime::Runtime::new().unwrap();
    let connection = here.block_on(async {
        let client = agent(&node(ca.folder.path()).1);
        client.connect(address, CONTROLLER_NAME).unwrap().await.unwrap()
    });

    // Nothing more is sent by it: as if by SIGKILL.
    killed.shutdown_background();
    while std::net::UdpSocket::bind(address).is_err() {
        std::thread::yield_now();
    }
    let (restarted, _) = on_its_own(identity, address);
    let ended = here.block_on(async {
        // Whatever it sends next is answered; it sends something every few seconds anyhow, and may know
        // before this.
        if let Ok((mut send, _)) = connection.open_bi().await {
            let _ = send.write_all(b"anybody?").await;
        }
        connection.closed().await
    });

    assert_eq!(ended, quinn::ConnectionError::Reset);
    restarted.shutdown_background();
}
