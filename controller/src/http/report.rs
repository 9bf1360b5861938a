//! Accounting of a period.

use std::collections::BTreeMap;

use actix_web::get;
use actix_web::web::{Data, Json};
use tessera_api_types::{AccountingReport, ReportFigures, ReportLine, ReportQuery};
use tessera_model::spec::BadField;
use time::OffsetDateTime;

use super::error::ApiError;
use super::extract::Params;
use super::identity::Caller;
use super::openapi::Problems;
use super::state::State;
use crate::store::reads::{ReportRow, ReportSpan, parse_name};

/// What lines may be grouped by.
const KEYS: [&str; 5] = ["account", "user", "month", "node", "profile"];
/// Longest period: more months than a cluster is used.
const PERIOD_DAYS_MAX: i64 = 50 * 366;

/// Adds up what attempts used in a period: time, slices, energy, waiting, and what was requested.
///
/// A user gets the figures of their own jobs, and a coordinator those of the account's members.
#[utoipa::path(
    tag = "cluster",
    operation_id = "show_report",
    params(ReportQuery),
    responses((status = 200, description = "The report.", body = AccountingReport), Problems),
    security(("bearer" = [])),
)]
#[get("/report")]
pub(super) async fn show_report(
    caller: Caller,
    query: Params<ReportQuery>,
    state: Data<State>,
) -> Result<Json<AccountingReport>, ApiError> {
    let (span, by) = read(query.0, caller.jobs().users(), now())?;
    let (since, until) = (span.since, span.until);
    let rows = state.reads().report(span).await?;
    let accounts = &state.ports.live().accounts;
    let lines = fold(rows, &by, |user| accounts.account_of(user).unwrap_or(user).to_owned());
    let total = lines.iter().fold(ReportFigures::default(), |sum, line| sum.plus(line.figures));
    Ok(Json(AccountingReport { since, until, by, lines, total }))
}

#[expect(clippy::disallowed_methods, reason = "a report ends now at the latest")]
fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// Reads the question: the period, whose jobs, and how lines are grouped.
fn read(
    query: ReportQuery,
    scope: Option<&[String]>,
    now: OffsetDateTime,
) -> Result<(ReportSpan, Vec<String>), BadField> {
    let by: Vec<String> = query.by.as_deref().map_or_else(
        || vec!["account".to_owned(), "user".to_owned()],
        |by| by.split(',').filter(|key| !key.is_empty()).map(str::to_owned).collect(),
    );
    if let Some(other) = by.iter().find(|key| !KEYS.contains(&key.as_str())) {
        let expected = format!("some of {}, separated by commas", KEYS.join(", "));
        return Err(BadField::new("by", format!("{other:?} is not a key"), expected));
    }
    let until = query.until.map_or(now, |until| until.min(now));
    let month = until.replace_day(1).map_or(until.date(), OffsetDateTime::date);
    let since = query.since.unwrap_or_else(|| month.midnight().assume_utc());
    if since > until || (until - since).whole_days() > PERIOD_DAYS_MAX {
        return Err(BadField::new(
            "since",
            "the period ends before it begins, or is too long",
            format!("a time before {until}, at most {PERIOD_DAYS_MAX} days"),
        ));
    }
    let requested = query.user.as_deref().map(read_users).transpose()?;
    let users = match (requested, scope) {
        (Some(requested), Some(scope)) => {
            Some(requested.into_iter().filter(|user| scope.contains(user)).collect())
        }
        (Some(requested), None) => Some(requested),
        (None, scope) => scope.map(<[String]>::to_vec),
    };
    let has = |key: &str| by.iter().any(|one| one == key);
    let (months, nodes, profiles) = (has("month"), has("node"), has("profile"));
    Ok((ReportSpan { since, until, users, months, nodes, profiles }, by))
}

/// Reads names of users, separated by commas.
fn read_users(list: &str) -> Result<Vec<String>, BadField> {
    let names = list.split(',').filter(|name| !name.is_empty());
    let read: Result<Vec<_>, _> =
        names.map(|name| parse_name("user", Some(name.to_owned()))).collect();
    Ok(read?.into_iter().flatten().collect())
}

/// Adds rows up by the keys of the report.
fn fold(
    rows: Vec<ReportRow>,
    by: &[String],
    account_of: impl Fn(&str) -> String,
) -> Vec<ReportLine> {
    let has = |key: &str| by.iter().any(|one| one == key);
    let mut lines: BTreeMap<Vec<Option<String>>, ReportFigures> = BTreeMap::new();
    for row in rows {
        let account = has("account").then(|| account_of(&row.user));
        let user = has("user").then_some(row.user);
        let key = vec![account, user, row.month, row.node, row.profile];
        let line = lines.entry(key).or_default();
        *line = line.plus(row.figures);
    }
    let line = |(mut key, figures): (Vec<Option<String>>, ReportFigures)| {
        let mut take = |place: usize| key.get_mut(place).and_then(Option::take);
        ReportLine {
            account: take(0),
            user: take(1),
            month: take(2),
            node: take(3),
            profile: take(4),
            figures,
        }
    };
    lines.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(user: &str, attempts: i64) -> ReportRow {
        let figures = ReportFigures { attempts, ..ReportFigures::default() };
        ReportRow { user: user.to_owned(), month: None, node: None, profile: None, figures }
    }

    #[test]
    fn users_of_one_account_are_added_up() {
        let rows = vec![row("ada", 1), row("eva", 2), row("bob", 4)];
        let account = |user: &str| match user {
            "ada" | "eva" => "lab".to_owned(),
            other => other.to_owned(),
        };

        let lines = fold(rows, &["account".to_owned()], account);

        let short: Vec<_> =
            lines.iter().map(|l| (l.account.as_deref(), l.figures.attempts)).collect();
        assert_eq!(short, [(Some("bob"), 4), (Some("lab"), 3)]);
        assert!(lines.iter().all(|line| line.user.is_none()));
    }

    #[test]
    fn a_user_cannot_ask_for_the_figures_of_others() {
        let query = ReportQuery { user: Some("ada,bob".to_owned()), ..ReportQuery::default() };

        let (span, by) = read(query, Some(&["ada".to_owned()]), now()).unwrap();

        assert_eq!(span.users, Some(vec!["ada".to_owned()]));
        assert_eq!(by, ["account", "user"]);
    }

    #[test]
    fn a_period_that_is_none_an_unknown_key_and_a_name_that_is_none_are_refused() {
        let at = now();
        let backwards = ReportQuery {
            since: Some(at),
            until: Some(at - time::Duration::DAY),
            ..ReportQuery::default()
        };
        let unknown = ReportQuery { by: Some("gpu".to_owned()), ..ReportQuery::default() };

        // The database takes no text with a zero byte.
        let no_name = ReportQuery { user: Some("ada,b\0b".to_owned()), ..ReportQuery::default() };

        assert_eq!(read(no_name, None, at).unwrap_err().field, "user");
        assert_eq!(read(backwards, None, at).unwrap_err().field, "since");
        assert_eq!(read(unknown, None, at).unwrap_err().field, "by");
    }
}
