//! `tessera-agent join`: a machine gets its certificate by the token of an invitation.

use std::fs;
use std::io::Read as _;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tessera_frames::certificates::{CertificateAnswer, CertificateRequest};
use tessera_model::NodeIdentity;
use tessera_wire::joining::{InvitationToken, KeyRequest, joining_client};
use tessera_wire::link::{FrameReader, FrameWriter};
use tessera_wire::replace::replace_together;
use tessera_wire::tls::{CONTROLLER_NAME, Identity};

use crate::link;

/// How long joining may take.
const JOIN_WITHIN: Duration = Duration::from_secs(30);
/// Longest token that is read from standard input, in bytes.
const TOKEN_BYTES_MAX: u64 = 4_096;
/// The key of a request whose answer may have been lost: the controller accepts the token from it again.
const PENDING_KEY: &str = "join.key";
/// The controller's address that joining used, next to the certificate.
const CONTROLLER: &str = "controller";

/// What joining needs.
#[derive(Clone, Debug)]
pub struct JoinOrder {
    /// The token, or `-` to read it from standard input.
    pub token: String,
    /// The controller's address, `host:port`.
    pub controller: String,
    /// The agent's data folder.
    pub data: PathBuf,
    /// Whether an existing identity is replaced.
    pub replace: bool,
}

/// Joins the cluster, and returns the node that this machine is from now on.
///
/// # Errors
///
/// What is wrong, and what would be right. Nothing is changed then.
pub fn run(order: &JoinOrder) -> anyhow::Result<NodeIdentity> {
    let folder = order.data.join("identity");
    if folder.join("cert.pem").exists() && !order.replace {
        bail!(
            "{} already contains an identity: give --replace to join as the node of the token \
             instead",
            folder.display()
        );
    }
    let token: InvitationToken = read_token(&order.token)?.parse()?;
    let request = key_request(&folder)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let joining = request_certificate(&order.controller, &token, &request);
    let answer = runtime.block_on(async { tokio::time::timeout(JOIN_WITHIN, joining).await });
    let answer = answer.with_context(|| {
        format!("no answer from the controller at {} within 30 s", order.controller)
    })??;
    let (certificate, authorities) = match answer {
        CertificateAnswer::Issued { certificate, authorities } => (certificate, authorities),
        CertificateAnswer::Refused { reason } => bail!("the controller refused: {reason}"),
        CertificateAnswer::Authorities { .. } => bail!("the controller sent no certificate"),
    };
    let identity = Identity::from_texts(authorities, certificate, request.key().to_owned())?;
    let node = identity.node().context("the controller sent a certificate that is not a node's")?;
    identity.client().context("the certificate can't be used")?;
    // Before the certificate: with one, the unit starts the agent, which then needs the address.
    replace_together(&folder, &[(CONTROLLER, &format!("{}\n", order.controller))])?;
    identity.replace(&folder)?;
    match fs::remove_file(folder.join(PENDING_KEY)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(node),
    }
}

/// Returns the address of the controller whose cluster this machine joined.
///
/// # Errors
///
/// The file exists and can't be read.
pub fn remembered_controller(data: &Path) -> anyhow::Result<Option<String>> {
    let path = data.join("identity").join(CONTROLLER);
    match fs::read_to_string(&path) {
        Ok(address) => Ok(Some(address.trim().to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("can't read {}", path.display())),
    }
}

fn read_token(given: &str) -> anyhow::Result<String> {
    if given != "-" {
        return Ok(given.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().take(TOKEN_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

/// Creates a key, or uses the one of an earlier try.
fn key_request(folder: &Path) -> anyhow::Result<KeyRequest> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("can't create {}", folder.display()))?;
    let path = folder.join(PENDING_KEY);
    if let Ok(key) = fs::read_to_string(&path) {
        return KeyRequest::of(&key).with_context(|| format!("remove {}", path.display()));
    }
    let request = KeyRequest::new()?;
    replace_together(folder, &[(PENDING_KEY, request.key())])?;
    Ok(request)
}

async fn request_certificate(
    controller: &str,
    token: &InvitationToken,
    request: &KeyRequest,
) -> anyhow::Result<CertificateAnswer> {
    let tls = joining_client(token.authority())?;
    let found = tokio::net::lookup_host(controller).await;
    let found = found.with_context(|| format!("{controller} is not a host and a port"))?;
    let mut last = None;
    for address in found {
        match connect(address, tls.clone()).await {
            Ok((endpoint, connection)) => {
                let answer = exchange(&connection, token, request).await;
                connection.close(0_u32.into(), b"");
                // The controller should learn of the end now, not by silence.
                let _ = tokio::time::timeout(link::CLOSE_WITHIN, endpoint.wait_idle()).await;
                return answer;
            }
            Err(error) => last = Some(error),
        }
    }
    let last = last.with_context(|| format!("{controller} has no address"))?;
    Err(last).with_context(|| {
        format!(
            "can't reach a controller of this invitation at {controller}: is its address for \
             agents right, and is its authority the one in the token?"
        )
    })
}

async fn connect(
    address: SocketAddr,
    tls: quinn::ClientConfig,
) -> anyhow::Result<(quinn::Endpoint, quinn::Connection)> {
    let endpoint = quinn::Endpoint::client(link::local_for(address))?;
    let connection = endpoint.connect_with(tls, address, CONTROLLER_NAME)?.await?;
    Ok((endpoint, connection))
}

async fn exchange(
    connection: &quinn::Connection,
    token: &InvitationToken,
    request: &KeyRequest,
) -> anyhow::Result<CertificateAnswer> {
    let (send, receive) = connection.open_bi().await?;
    let (mut writer, mut reader) = (FrameWriter::new(send), FrameReader::new(receive));
    let (token, request) = (token.text().to_owned(), request.request().to_vec());
    writer.send(&CertificateRequest::Join { token, request }).await?;
    let answer = reader.receive::<CertificateAnswer>().await?;
    ensure!(answer.is_some(), "the controller ended the conversation without an answer");
    answer.context("no answer")
}
