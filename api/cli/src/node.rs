//! `tessera node`: lets machines join, and revokes their certificates; `tessera authority`: the
//! authority that all of them trust.

use clap::{Args, Subcommand};
use tessera_model::RetentionTime;

use super::failure::CommandFailure;
use super::session::{CommandSession, moment, table};
use tessera_api_types::{AuthorityView, InvitationRequest, NodeCertificateList, RotationRequest};

#[derive(Args)]
pub struct Node {
    #[command(subcommand)]
    verb: NodeVerb,
}

#[derive(Subcommand)]
enum NodeVerb {
    /// Invite machines to join as nodes; prints the command to run on each
    Invite(Invite),
    /// Revoke all certificates of a node: it is disconnected at once
    Revoke(Revoke),
    /// List certificates of nodes, newest first
    Certificates(Certificates),
}

#[derive(Args)]
struct Invite {
    /// The names that the machines get
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// How long the tokens are valid: 15m, 2h, at most 1d
    #[arg(long, default_value = "15m", value_name = "DURATION")]
    valid: RetentionTime,
}

#[derive(Args)]
struct Revoke {
    /// The node's name
    name: String,
}

#[derive(Args)]
struct Certificates {
    /// Show only certificates of this node
    #[arg(value_name = "NODE")]
    node: Option<String>,
}

impl Node {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        match self.verb {
            NodeVerb::Invite(verb) => verb.run(session).await,
            NodeVerb::Revoke(verb) => verb.run(session).await,
            NodeVerb::Certificates(verb) => verb.run(session).await,
        }
    }
}

/// Reads a limited duration.
fn seconds(time: RetentionTime) -> Result<u64, CommandFailure> {
    match time {
        RetentionTime::For(time) => Ok(time.get() / 1_000),
        RetentionTime::Forever => {
            Err(CommandFailure::usage("this time must be limited: write a time such as 2h"))
        }
    }
}

impl Invite {
    async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let request = InvitationRequest { valid_secs: Some(seconds(self.valid)?) };
        let mut invited = Vec::new();
        for name in &self.names {
            let invitation = session.client.invite_node(name, &request).await?;
            // At once: if a later name is refused, the earlier ones are invited.
            if !session.json {
                session.remark(&format!(
                    "Run this on {} before {}; it works once. The authority's fingerprint, which is the last \
                     part of the token, is {}.",
                    invitation.node,
                    moment(invitation.expires_at),
                    invitation.authority
                ));
                session.print(&invitation, |invitation| format!("{}\n", invitation.command))?;
            }
            invited.push(invitation);
        }
        match invited.as_slice() {
            _ if !session.json => Ok(()),
            [one] => session.print(one, |_| String::new()),
            several => session.print(&several, |_| String::new()),
        }?;
        Ok(0)
    }
}

impl Revoke {
    async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let revoked = session.client.revoke_node(&self.name).await?;
        session.print(&revoked, |revoked| {
            format!(
                "{} is revoked ({} certificates); its jobs end with its lease\n",
                revoked.node, revoked.certificates
            )
        })?;
        Ok(0)
    }
}

impl Certificates {
    async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let list = session.client.node_certificates(self.node.as_deref()).await?;
        session.print(&list, draw)?;
        Ok(0)
    }
}

fn draw(list: &NodeCertificateList) -> String {
    if list.items.is_empty() {
        return "There are no certificates.\n".to_owned();
    }
    let header = ["Node", "Serial", "Authority", "Issued", "Expires", "Revoked"];
    let rows = list.items.iter().map(|item| {
        vec![
            item.node.clone(),
            item.serial.clone(),
            item.authority.clone(),
            moment(item.issued_at),
            moment(item.expires_at),
            item.revoked_at.map_or_else(|| "-".to_owned(), moment),
        ]
    });
    table(Some(&header), rows)
}

#[derive(Args)]
pub struct Authority {
    #[command(subcommand)]
    verb: AuthorityVerb,
}

#[derive(Subcommand)]
enum AuthorityVerb {
    /// Show the authority that signs certificates
    Show(Show),
    /// Replace the authority; for administrators. Connected nodes switch to the new one by
    /// themselves
    Rotate(Rotate),
}

#[derive(Args)]
struct Show {
    /// Print only the certificates of all trusted authorities, as --ca expects them
    #[arg(long)]
    pem: bool,
}

#[derive(Args)]
struct Rotate {
    /// How long the current authority is trusted along with the new one: 12h, 7d, at most 90d
    #[arg(long, default_value = "7d", value_name = "DURATION")]
    trust_former: RetentionTime,
}

impl Authority {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let (view, pem) = match self.verb {
            AuthorityVerb::Show(verb) => (session.client.authority().await?, verb.pem),
            AuthorityVerb::Rotate(verb) => {
                let request =
                    RotationRequest { trust_former_secs: Some(seconds(verb.trust_former)?) };
                (session.client.rotate_authority(&request).await?, false)
            }
        };
        session
            .print(&view, |view| if pem { view.certificates.clone() } else { describe(view) })?;
        Ok(0)
    }
}

fn describe(view: &AuthorityView) -> String {
    let mut text = format!(
        "Authority {}\n  signs certificates, and expires at {}\n",
        view.fingerprint,
        moment(view.expires_at)
    );
    if let Some(former) = &view.former {
        text += &format!(
            "Authority {}\n  was replaced, and is trusted until {}\n\
             Give users the certificates of both before then: tessera authority show --pem\n",
            former.fingerprint,
            moment(former.trusted_until)
        );
    }
    text
}
