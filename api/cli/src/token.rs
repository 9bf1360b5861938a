//! `tessera token`: creates, lists and revokes personal tokens.

use clap::{Args, Subcommand};
use tessera_model::RetentionTime;

use super::failure::CommandFailure;
use super::session::{CommandSession, moment, table, write_out};
use tessera_api_types::{TokenList, TokenRequest, TokenView};

#[derive(Args)]
pub struct Token {
    #[command(subcommand)]
    verb: TokenVerb,
}

#[derive(Subcommand)]
enum TokenVerb {
    /// Create a token; its secret is printed once
    Create(Create),
    /// List tokens, without their secrets
    List(List),
    /// Revoke tokens: requests with them are refused at once
    Revoke(Revoke),
}

#[derive(Args)]
struct Create {
    /// What it is for, such as laptop
    name: String,
    /// What it may do: metrics, user, operator or admin
    #[arg(long, default_value = "user")]
    role: String,
    /// How long it is valid: 12h, 90d
    #[arg(long, default_value = "90d", value_name = "DURATION")]
    expires: RetentionTime,
    /// User that it belongs to; administrators create tokens for others
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

#[derive(Args)]
struct List {
    /// Show only tokens of this user
    #[arg(long, value_name = "USER", conflicts_with = "all")]
    user: Option<String>,
    /// Everybody's
    #[arg(long)]
    all: bool,
}

#[derive(Args)]
struct Revoke {
    /// Ids, as tessera token list prints them
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

impl Token {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        match self.verb {
            TokenVerb::Create(verb) => verb.run(session).await,
            TokenVerb::List(verb) => verb.run(session).await,
            TokenVerb::Revoke(verb) => verb.run(session).await,
        }
    }
}

impl Create {
    async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let RetentionTime::For(valid) = self.expires else {
            return Err(CommandFailure::usage("every token expires: write a time such as 90d"));
        };
        let request = TokenRequest {
            name: self.name,
            role: Some(self.role),
            user: self.user,
            valid_secs: Some(valid.get() / 1_000),
        };
        let created = session.client.create_token(&request).await?;
        if !session.json {
            let TokenView { id, user, role, expires_at, .. } = &created.token;
            session.remark(&format!(
                "token {id} of {user}, role {role}, until {}; it is not shown again",
                moment(*expires_at)
            ));
        }
        session.print(&created, |created| format!("{}\n", created.secret))?;
        Ok(0)
    }
}

impl List {
    async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let list = session.client.tokens(self.user.as_deref(), self.all).await?;
        session.print(&list, draw)?;
        Ok(0)
    }
}

fn draw(list: &TokenList) -> String {
    if list.items.is_empty() {
        return "There are no tokens.\n".to_owned();
    }
    let header = ["Id", "Name", "User", "Role", "Expires", "LastUsed", "Revoked"];
    let or_dash = |at: Option<time::OffsetDateTime>| at.map_or_else(|| "-".to_owned(), moment);
    let rows = list.items.iter().map(|token| {
        vec![
            token.id.clone(),
            token.name.clone(),
            token.user.clone(),
            token.role.clone(),
            moment(token.expires_at),
            or_dash(token.last_used_at),
            or_dash(token.revoked_at),
        ]
    });
    table(Some(&header), rows)
}

impl Revoke {
    async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let mut revoked = TokenList { items: Vec::new() };
        for id in &self.ids {
            let token = session.client.revoke_token(id).await?;
            if !session.json {
                write_out(&format!("Token {id} ({}) of {} is revoked\n", token.name, token.user))?;
            }
            revoked.items.push(token);
        }
        if session.json {
            session.print(&revoked, |_| String::new())?;
        }
        Ok(0)
    }
}
