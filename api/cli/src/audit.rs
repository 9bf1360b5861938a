//! `tessera audit`: what callers did, and which requests were refused.

use clap::Args;

use super::failure::CommandFailure;
use super::session::{CommandSession, moment, or_dash, table, write_out};
use tessera_api_types::{AuditFilter, AuditPage};

/// Entries on one page of an export: the controller's maximum.
const PAGE: u32 = 1_000;

#[derive(Args)]
pub struct Audit {
    /// Show only calls of this user
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Number of entries
    #[arg(short, long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// Print all entries as JSON lines, newest first
    #[arg(long, conflicts_with = "limit")]
    export: bool,
}

impl Audit {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let mut filter =
            AuditFilter { principal: self.user, limit: Some(self.limit), cursor: None };
        if !self.export {
            let page = session.client.audit(&filter).await?;
            session.print(&page, draw)?;
            return Ok(0);
        }
        filter.limit = Some(PAGE);
        loop {
            let page = session.client.audit(&filter).await?;
            for entry in &page.items {
                let line = serde_json::to_string(entry).map_err(std::io::Error::from)?;
                write_out(&format!("{line}\n"))?;
            }
            match page.next_cursor {
                Some(cursor) => filter.cursor = Some(cursor),
                None => return Ok(0),
            }
        }
    }
}

fn draw(page: &AuditPage) -> String {
    if page.items.is_empty() {
        return "There are no entries.\n".to_owned();
    }
    let header = ["Time", "Who", "Role", "Status", "Action", "Object", "Origin"];
    let rows = page.items.iter().map(|entry| {
        vec![
            moment(entry.at),
            or_dash(entry.principal.as_deref()),
            or_dash(entry.role.as_deref()),
            entry.status.to_string(),
            entry.action.clone(),
            entry.object.clone(),
            entry.origin.clone(),
        ]
    });
    table(Some(&header), rows)
}
