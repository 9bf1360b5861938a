//! Where the controller is, and how the user is authenticated: by options, environment variables,
//! the token that `tessera login` stored, or the Unix socket of this machine.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::failure::CommandFailure;
use tessera_model::number::clamped;

/// The Unix socket of an installed controller.
const SOCKET: &str = "/run/tessera/api.sock";
/// Address of a controller on this machine whose socket is elsewhere.
const FALLBACK_URL: &str = "http://127.0.0.1:7070";
/// Largest file of credentials or authorities: above any bundle of authorities.
const FILE_MAX: u64 = 4 << 20;

/// Settings from the command line and the environment.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// The address.
    pub url: Option<String>,
    pub token: Option<String>,
    /// The file of the cluster's authority.
    pub ca: Option<PathBuf>,
}

/// The controller's address, and the credentials for it.
#[derive(Clone, PartialEq, Eq)]
pub struct Connection {
    /// The address.
    pub url: String,
    /// The token, if one is needed.
    pub token: Option<String>,
    /// The cluster's authority (PEM).
    pub authority: Option<String>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token must never be printed.
        f.debug_struct("Connection").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Settings that `tessera login` stores.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    /// The address.
    pub url: String,
    pub token: String,
    /// The cluster's authority (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
}

impl Connection {
    /// Finds the controller.
    pub fn find(given: &Given) -> Result<Self, CommandFailure> {
        let kept = match credentials_path() {
            Some(path) => Credentials::read(&path)?,
            None => None,
        };
        let authority = given.ca.as_deref().map(read_authority).transpose()?;
        let is_job = std::env::var_os("TESSERA_JOB_ID").is_some();
        let given = &of_node(given.clone(), is_job && kept.is_some(), |path| path.exists());
        Ok(choose(given, kept, authority, Path::new(SOCKET).exists()))
    }
}

/// Leaves out a Unix socket that is on another machine: a job has the address of where it was submitted. Stored
/// credentials name one that is reachable from its node.
fn of_node(given: Given, can_be_elsewhere: bool, exists: impl Fn(&Path) -> bool) -> Given {
    let socket = given.url.as_deref().and_then(|url| url.strip_prefix("unix://"));
    match socket.is_some_and(|path| can_be_elsewhere && !exists(Path::new(path))) {
        true => Given { url: None, ..given },
        false => given,
    }
}

/// Chooses the connection: given values come first, then those that were stored for the same
/// address.
fn choose(
    given: &Given,
    kept: Option<Credentials>,
    authority: Option<String>,
    socket: bool,
) -> Connection {
    let given_url = given.url.clone().filter(|url| !url.is_empty());
    let given_token = given.token.clone().filter(|token| !token.is_empty());
    let url = given_url.clone().or_else(|| kept.as_ref().map(|kept| kept.url.clone()));
    let url = url.unwrap_or_else(|| match socket {
        true => format!("unix://{SOCKET}"),
        false => FALLBACK_URL.to_owned(),
    });
    // A token must never be sent to an address other than the one that it was stored for.
    let kept = kept.filter(|kept| same_address(&kept.url, &url));
    let (kept_token, kept_authority) = match kept {
        Some(kept) => (Some(kept.token), kept.authority),
        None => (None, None),
    };
    Connection { url, token: given_token.or(kept_token), authority: authority.or(kept_authority) }
}

fn same_address(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}

/// Returns where credentials are stored.
pub fn credentials_path() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let config = set("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".config")))?;
    config.is_absolute().then(|| config.join("tessera/credentials.json"))
}

impl Credentials {
    /// Reads the stored credentials; `None` if there are none.
    fn read(path: &Path) -> Result<Option<Self>, CommandFailure> {
        let wrong = |what: String| CommandFailure::refused(format!("{}: {what}", path.display()));
        let nofollow = clamped(OFlags::NOFOLLOW.bits());
        let file = fs::OpenOptions::new().read(true).custom_flags(nofollow).open(path);
        let file = match file {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // Another user's folder can't be read.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
            Err(error) => return Err(wrong(error.to_string())),
        };
        let facts = file.metadata().map_err(|error| wrong(error.to_string()))?;
        if facts.permissions().mode() & 0o077 != 0 {
            return Err(wrong(
                "others can read this file with a token; make it private (chmod 600), and revoke \
                 the token if somebody may have read it"
                    .to_owned(),
            ));
        }
        let mut text = String::new();
        file.take(FILE_MAX).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
        let read = serde_json::from_str(&text);
        read.map(Some).map_err(|error| wrong(format!("{error}; write it again with tessera login")))
    }

    /// Stores them for later commands.
    pub fn write(&self, path: &Path) -> Result<(), CommandFailure> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let failed = |error: io::Error| {
            CommandFailure::refused(format!("{} can't be written: {error}", path.display()))
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        // A new file, so that no link to an old one and no open descriptor of it exposes the token.
        let fresh = path.with_extension("new");
        let _ = fs::remove_file(&fresh);
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&fresh)
            .map_err(failed)?;
        let text = serde_json::to_string_pretty(self).map_err(io::Error::from).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        fs::rename(&fresh, path).map_err(failed)
    }
}

fn read_authority(path: &Path) -> Result<String, CommandFailure> {
    let read = || {
        let mut text = String::new();
        fs::File::open(path)?.take(FILE_MAX).read_to_string(&mut text)?;
        Ok::<_, io::Error>(text)
    };
    read().map_err(|error| {
        CommandFailure::refused(format!("{} can't be read: {error}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Option<Credentials> {
        Some(Credentials {
            url: "https://gpu.lab:7070".into(),
            token: "kept".into(),
            authority: Some("PEM".into()),
        })
    }

    fn given(url: &str, token: &str) -> Given {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Given { url: text(url), token: text(token), ca: None }
    }

    #[test]
    fn given_settings_override_stored_ones_and_this_machine() {
        let url = |given: &Given, kept, socket| choose(given, kept, None, socket).url;

        assert_eq!(url(&given("http://a", ""), kept(), true), "http://a");
        assert_eq!(url(&given("", ""), kept(), true), "https://gpu.lab:7070");
        assert_eq!(url(&given("", ""), None, true), "unix:///run/tessera/api.sock");
        assert_eq!(url(&given("", ""), None, false), "http://127.0.0.1:7070");
    }

    #[test]
    fn a_job_on_another_machine_than_the_socket_uses_what_was_stored() {
        let url = |in_job: bool, exists: bool| {
            let given = of_node(given("unix:///run/own.sock", ""), in_job, |_| exists);
            choose(&given, kept(), None, false).url
        };

        assert_eq!(url(true, false), "https://gpu.lab:7070");
        assert_eq!(url(true, true), "unix:///run/own.sock");
        assert_eq!(url(false, false), "unix:///run/own.sock", "it is reported as missing");
    }

    #[test]
    fn a_kept_token_goes_only_where_it_belongs() {
        let token = |given: &Given| choose(given, kept(), None, false).token;

        assert_eq!(token(&given("", "")).as_deref(), Some("kept"));
        assert_eq!(token(&given("https://gpu.lab:7070/", "")).as_deref(), Some("kept"));
        assert_eq!(token(&given("http://gpu.lab:7070", "")), None);
        assert_eq!(token(&given("https://gpu.lab.evil.example:7070", "")), None);
        assert_eq!(token(&given("", "own")).as_deref(), Some("own"));
        let shown = format!("{:?}", choose(&given("", ""), kept(), None, false));
        assert!(!shown.contains("kept"), "{shown}");
    }

    #[test]
    fn credentials_are_private_and_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tessera/credentials.json");
        assert!(Credentials::read(&path).unwrap().is_none());

        kept().unwrap().write(&path).unwrap();

        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Credentials::read(&path).unwrap() == kept());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let refused = Credentials::read(&path).err().unwrap().to_string();
        assert!(refused.contains("chmod 600"), "{refused}");
        let link = folder.path().join("link.json");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(Credentials::read(&link).is_err(), "a link is not followed");
    }
}
