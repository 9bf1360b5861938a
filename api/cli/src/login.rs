//! `tessera login`, `logout` and `whoami`: the credentials for a controller, and who the user is to
//! it.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

use clap::Args;
use console::Term;

use super::connection::{Connection, Credentials, credentials_path};
use super::failure::CommandFailure;
use super::session::{CommandSession, fields, print, write_out};
use tessera_api_types::WhoAmI;

/// Longest token that is read from a file, in bytes.
const TOKEN_BYTES_MAX: u64 = 64 << 10;

#[derive(Args)]
pub struct Login {
    /// Read the token from this file, such as one that the site's login service issued (OpenID
    /// Connect)
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl Login {
    /// Checks the token with the controller, and stores it for later commands.
    pub async fn run(
        self,
        mut to: Connection,
        given: Option<String>,
        json: bool,
    ) -> Result<u8, CommandFailure> {
        let path = credentials_path().ok_or_else(|| {
            CommandFailure::refused("neither HOME nor XDG_CONFIG_HOME names a folder for the token")
        })?;
        if to.url.starts_with("unix://") {
            let session = CommandSession::open(&to, json)?;
            let who = session.client.who_am_i().await?;
            session.remark("a Unix socket needs no token: nothing was stored");
            session.print(&who, draw)?;
            return Ok(0);
        }
        if to.url.starts_with("https://") && to.authority.is_none() {
            return Err(CommandFailure::usage(
                "https needs the authority that signed the controller's certificate: give --ca \
                 FILE (for the cluster's own authority it is identity/ca.pem in the controller's \
                 data folder)",
            ));
        }
        let given = given.filter(|token| !token.is_empty());
        let token = match (&self.token_file, given) {
            (Some(file), _) => read_file(file)?,
            (None, Some(given)) => given,
            (None, None) => read_token(&to)?,
        };
        if token.is_empty() {
            return Err(CommandFailure::usage("no token was given"));
        }
        to.token = Some(token.clone());
        let session = CommandSession::open(&to, json)?;
        let who = session.client.who_am_i().await?;
        let kept = Credentials { url: to.url.clone(), token, authority: to.authority.clone() };
        kept.write(&path)?;
        session.remark(&format!("the token is stored in {}", path.display()));
        session.print(&who, draw)?;
        Ok(0)
    }
}

fn read_file(path: &Path) -> Result<String, CommandFailure> {
    let read = || {
        let mut text = String::new();
        File::open(path)?.take(TOKEN_BYTES_MAX).read_to_string(&mut text)?;
        Ok::<_, io::Error>(text)
    };
    let text = read().map_err(|error| {
        CommandFailure::refused(format!("{} can't be read: {error}", path.display()))
    })?;
    Ok(text.trim().to_owned())
}

/// Reads the token, without showing it.
fn read_token(to: &Connection) -> Result<String, CommandFailure> {
    if io::stdin().is_terminal() {
        let terminal = Term::stderr();
        terminal.write_str(&format!("Token for {}: ", to.url))?;
        return Ok(terminal.read_secure_line()?.trim().to_owned());
    }
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

#[derive(Args)]
pub struct Logout {}

impl Logout {
    /// Deletes what `tessera login` stored.
    pub fn run(self) -> Result<u8, CommandFailure> {
        let path = credentials_path()
            .ok_or_else(|| CommandFailure::refused("neither HOME nor XDG_CONFIG_HOME is set"))?;
        match std::fs::remove_file(&path) {
            Ok(()) => write_out(
                "The token is deleted here; tessera token revoke makes it invalid \
                                 everywhere.\n",
            )?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write_out("No token was stored.\n")?;
            }
            Err(error) => {
                let text = format!("{} can't be removed: {error}", path.display());
                return Err(CommandFailure::refused(text));
            }
        }
        Ok(0)
    }
}

#[derive(Args)]
pub struct Whoami {}

impl Whoami {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let who = session.client.who_am_i().await?;
        print(session.json, &who, draw)?;
        Ok(0)
    }
}

fn draw(who: &WhoAmI) -> String {
    let members = (!who.coordinates.is_empty()).then(|| who.coordinates.join(", "));
    fields(vec![
        ("User", Some(who.user.clone())),
        ("Role", Some(who.role.clone())),
        ("Proved by", Some(who.proof.clone())),
        ("Coordinates", members),
    ])
}
