//! The data folder: its lock, its certificates, its token and the controller's id.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use rustix::fs::{FlockOperation, flock};
use tessera_model::{ControllerId, NodeId, NodeIdentity, NodeName};
use tessera_wire::authority::ClusterAuthority;
use tessera_wire::receipt::ReceiptKey;
use tessera_wire::tls::{self, Authority, Identity};
use time::OffsetDateTime;
use uuid::Uuid;

/// Makes what is missing in the data folder: authority, controller's certificate, token, id.
///
/// # Errors
///
/// If the folder can't be written.
#[expect(clippy::disallowed_methods, reason = "certificates are valid from now on")]
pub fn init(data: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(data).with_context(|| format!("can't create {}", data.display()))?;
    let folder = data.join("identity");
    if !folder.join("ca.pem").exists() {
        let authority = Authority::create(OffsetDateTime::now_utc())?;
        authority.controller(OffsetDateTime::now_utc())?.save(&folder)?;
        authority.save(&folder)?;
    }
    write_once(&data.join("token"), &new_token())?;
    // Not in the database: one that was rolled back must not take the key with it.
    write_once(&data.join("receipt.key"), &new_key())?;
    let id = ControllerId::from_uuid(Uuid::now_v7());
    write_once(&data.join("controller-id"), &id.to_string())
}

/// Makes a node's certificate.
///
/// # Errors
///
/// If the data folder holds no authority, or `out` holds a certificate already.
#[expect(clippy::disallowed_methods, reason = "certificates are valid from now on")]
pub fn node_cert(data: &Path, name: &NodeName, out: &Path) -> anyhow::Result<NodeId> {
    if out.join("cert.pem").exists() {
        bail!("{} holds a certificate already: choose another folder", out.display());
    }
    let node = NodeIdentity { id: NodeId::from_uuid(Uuid::now_v7()), name: name.clone() };
    let identity = tls::issue_node(&data.join("identity"), &node, OffsetDateTime::now_utc())
        .context("run tessera-controller init first")?;
    identity.save(out)?;
    Ok(node.id)
}

/// An open data folder, locked against other controllers.
#[derive(Debug)]
pub struct DataFolder {
    /// Held for as long as the process lives.
    _lock: fs::File,
    /// The controller's certificate on disk. Where the authority's key is here, too, it is only the secret of
    /// resets.
    pub identity: Identity,
    /// The controller's id.
    pub controller: ControllerId,
    /// The API's token.
    pub token: String,
    /// Signs what nodes are given.
    pub receipts: ReceiptKey,
}

/// Opens the data folder, making what is missing.
///
/// # Errors
///
/// If another controller has it, or something in it can't be read.
pub fn open(data: &Path) -> anyhow::Result<DataFolder> {
    fs::create_dir_all(data).with_context(|| format!("can't create {}", data.display()))?;
    let lock =
        open_lock(&data.join("lock")).with_context(|| format!("can't lock {}", data.display()))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!("another controller uses {}: stop it first", data.display());
    }
    init(data)?;
    let read = |name: &str| {
        let path = data.join(name);
        fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))
    };
    // First: a replacement of the authority that a crash cut short is put right.
    authority(data)?;
    Ok(DataFolder {
        _lock: lock,
        identity: Identity::load(&data.join("identity"))?,
        controller: read("controller-id")?.trim().parse()?,
        token: read("token")?.trim().to_owned(),
        receipts: receipt_key(&read("receipt.key")?).with_context(|| {
            format!("{} is not valid: restore it", data.join("receipt.key").display())
        })?,
    })
}

/// Opens the file of the lock for this account only. An account that may read a file may lock it, and could prevent
/// the controller's next start.
fn open_lock(path: &Path) -> std::io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    let lock = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    lock.set_permissions(fs::Permissions::from_mode(0o600))?;
    Ok(lock)
}

/// Opens the authority of the cluster; `None` if its key is not in the data folder.
///
/// # Errors
///
/// If a file of it can't be read.
pub fn authority(data: &Path) -> anyhow::Result<Option<ClusterAuthority>> {
    Ok(ClusterAuthority::open(&data.join("identity"))?)
}

fn write_once(path: &Path, text: &str) -> anyhow::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let fresh = path.with_extension("new");
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&fresh)
        .with_context(|| format!("can't write {}", fresh.display()))?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    Ok(())
}

/// Makes a key: 64 digits.
fn new_key() -> String {
    format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}

fn receipt_key(text: &str) -> anyhow::Result<ReceiptKey> {
    let text = text.trim();
    let mut bytes = [0; ReceiptKey::BYTES];
    anyhow::ensure!(text.len() == 2 * bytes.len(), "a key has 64 digits");
    for (index, byte) in bytes.iter_mut().enumerate() {
        let digits = text.get(2 * index..2 * index + 2).context("a key has digits only")?;
        *byte = u8::from_str_radix(digits, 16).context("a key has digits only")?;
    }
    Ok(ReceiptKey::new(&bytes))
}

/// Makes a token that scanners recognise: 244 random bits behind a prefix.
fn new_token() -> String {
    format!("tsr_admin_{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}
