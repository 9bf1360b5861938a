//! Entries of the audit log.

use sqlx::PgConnection;
use tessera_api_types::{AuditEntry, AuditPage};

use super::page::PageSize;
use crate::store::StoreError;
use crate::store::columns::RowRef;

/// Lists entries before a number, newest first.
pub(super) async fn page(
    at: &mut PgConnection,
    principal: Option<&str>,
    before: i64,
    size: PageSize,
) -> Result<AuditPage, StoreError> {
    let mut rows = sqlx::query!(
        r#"
        SELECT entry, at, principal, role, origin, action, object, status
          FROM audit_log
         WHERE entry < $1 AND ($2::text IS NULL OR principal = $2)
         ORDER BY entry DESC
         LIMIT $3
        "#,
        before,
        principal,
        size.rows(),
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("read the audit log"))?;
    let more = size.cut(&mut rows);
    let items = rows.into_iter().map(|found| {
        let row = RowRef::new("audit_log", found.entry);
        Ok(AuditEntry {
            entry: row.number("entry", found.entry)?,
            at: found.at,
            principal: found.principal,
            role: found.role,
            origin: found.origin,
            action: found.action,
            object: found.object,
            status: row.number("status", found.status)?,
        })
    });
    let items = items.collect::<Result<Vec<_>, StoreError>>()?;
    let next_cursor = items.last().filter(|_| more).map(|last| format!("a{:x}", last.entry));
    Ok(AuditPage { items, next_cursor })
}
