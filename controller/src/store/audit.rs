//! The log of what callers changed, and of what was refused to them.

use sqlx::PgConnection;

use super::StoreError;
use crate::principal::AuditRecord;
use tessera_model::number::clamped;

/// Adds entries, in their order.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn insert(at: &mut PgConnection, records: &[AuditRecord]) -> Result<(), StoreError> {
    let column = |of: fn(&AuditRecord) -> &str| -> Vec<String> {
        records.iter().map(|record| of(record).to_owned()).collect()
    };
    let principals: Vec<_> =
        records.iter().map(|record| record.principal.as_deref().map(str::to_owned)).collect();
    let roles: Vec<_> =
        records.iter().map(|record| record.role.map(|role| role.word().to_owned())).collect();
    let statuses: Vec<i16> = records.iter().map(|record| clamped(record.status)).collect();
    sqlx::query!(
        r#"
        INSERT INTO audit_log (principal, role, origin, action, object, status)
        SELECT u.principal, u.role, u.origin, u.action, u.object, u.status
          FROM UNNEST($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::smallint[])
               WITH ORDINALITY AS u (principal, role, origin, action, object, status, place)
         ORDER BY u.place
        "#,
        &principals as &[Option<String>],
        &roles as &[Option<String>],
        &column(|record| &record.origin),
        &column(|record| &record.action),
        &column(|record| &record.object),
        &statuses,
    )
    .execute(at)
    .await
    .map_err(StoreError::while_trying_to("record what callers did"))
    .map(drop)
}

/// Removes those of the oldest entries that are older than `keep_secs`; returns how many are gone. Numbers
/// rise with time, so that only the lowest are looked at.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn remove_old(at: &mut PgConnection, keep_secs: f64) -> Result<u64, StoreError> {
    sqlx::query!(
        r#"
        DELETE FROM audit_log
         WHERE entry IN (SELECT o.entry
                           FROM (SELECT entry, at FROM audit_log ORDER BY entry LIMIT 5000) AS o
                          WHERE o.at < now() - make_interval(secs => $1))
        "#,
        keep_secs,
    )
    .execute(at)
    .await
    .map_err(StoreError::while_trying_to("remove old entries of the audit log"))
    .map(|done| done.rows_affected())
}
