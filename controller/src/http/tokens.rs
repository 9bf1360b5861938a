//! Personal tokens, and who the caller is.

use actix_web::web::{Data, Json};
use actix_web::{HttpResponse, delete, get, post};
use serde::Deserialize;
use std::str::FromStr;
use tessera_api_types::{TokenCreated, TokenList, TokenRequest, TokenView, WhoAmI};
use tessera_model::ids::BadId;
use tessera_model::spec::BadField;

use super::error::ApiError;
use super::extract::{JsonBody, Named, Params};
use super::identity::Caller;
use super::openapi::{BodyProblems, LookupProblems, Problems, TokenPath};
use super::state::State;
use crate::principal::{Proof, Role};
use crate::store::tokens::{LIVE_MAX, NewToken};
use crate::tokens::Secret;

/// How long a token is valid by default.
const VALID_SECS: u64 = 90 * 86_400;
/// Shortest time that a token may be valid.
const VALID_SECS_MIN: u64 = 60;
/// Longest time that a token may be valid: a year, and a day to renew it.
const VALID_SECS_MAX: u64 = 366 * 86_400;
/// Longest name of a token, or of its user, in bytes.
const NAME_MAX: usize = 64;

/// Returns the caller's name and role.
#[utoipa::path(
    tag = "identity",
    operation_id = "who_am_i",
    responses((status = 200, description = "The caller.", body = WhoAmI), Problems),
    security(("bearer" = [])),
)]
#[get("/whoami")]
pub(super) async fn who_am_i(caller: Caller) -> Json<WhoAmI> {
    Json(WhoAmI {
        user: caller.name.to_string(),
        role: caller.role.word().to_owned(),
        proof: caller.proof.word().to_owned(),
        coordinates: caller.coordinates.to_vec(),
    })
}

/// Whose tokens to list.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TokenFilter {
    /// Only those of this user; by default the caller's own.
    user: Option<String>,
    /// The tokens of all users; for administrators.
    #[serde(default)]
    all: bool,
}

/// Lists personal tokens, newest first.
#[utoipa::path(
    tag = "identity",
    operation_id = "list_tokens",
    params(TokenFilter),
    responses((status = 200, description = "The tokens, without their secrets.", body = TokenList), Problems),
    security(("bearer" = [])),
)]
#[get("/tokens")]
pub(super) async fn list_tokens(
    caller: Caller,
    filter: Params<TokenFilter>,
    state: Data<State>,
) -> Result<Json<TokenList>, ApiError> {
    let TokenFilter { user, all } = filter.0;
    let others = all || user.as_deref().is_some_and(|user| *user != *caller.name);
    if others && caller.role < Role::Admin {
        return Err(only_admins("lists the tokens of others"));
    }
    if let Some(user) = &user {
        check_name("user", user)?;
    }
    let of = if all { None } else { Some(user.unwrap_or_else(|| caller.name.to_string())) };
    Ok(Json(TokenList { items: state.ports.tokens.list(of).await? }))
}

/// Creates a personal token. Its secret is returned only here.
///
/// A token can't create other tokens, unless it is an administrator's: access with a token that was
/// found must end with its revocation.
#[utoipa::path(
    tag = "identity",
    operation_id = "create_token",
    request_body = TokenRequest,
    responses(
        (status = 201, description = "The token.", body = TokenCreated, links(
            ("revoke_token" = (operation_id = "revoke_token", parameters(("token" = "$response.body#/token/id")))),
        )),
        Problems, BodyProblems,
    ),
    security(("bearer" = [])),
)]
#[post("/tokens")]
pub(super) async fn create_token(
    caller: Caller,
    body: JsonBody,
    state: Data<State>,
) -> Result<HttpResponse, ApiError> {
    let TokenRequest { name, role, user, valid_secs } = body.parse()?;
    check_name("name", &name)?;
    let user = user.unwrap_or_else(|| caller.name.to_string());
    check_name("user", &user)?;
    let role = match role {
        None => Role::User,
        Some(word) => word.parse::<Role>().map_err(|unknown| {
            BadField::new("role", unknown.to_string(), "metrics, user, operator or admin")
        })?,
    };
    let valid_secs = match valid_secs.unwrap_or(VALID_SECS) {
        secs @ VALID_SECS_MIN..=VALID_SECS_MAX => secs,
        secs => {
            return Err(BadField::new(
                "valid_secs",
                format!("{secs} is out of range"),
                format!("{VALID_SECS_MIN} to {VALID_SECS_MAX} seconds"),
            )
            .into());
        }
    };
    if *user != *caller.name && caller.role < Role::Admin {
        return Err(only_admins("creates tokens for others"));
    }
    if caller.is_bootstrap() && *user == *caller.name {
        let problem = "the token in the data folder makes tokens for users, not for itself";
        return Err(BadField::new("user", problem, "the name of a user").into());
    }
    if matches!(caller.proof, Proof::Token { .. } | Proof::Issuer { .. })
        && caller.role < Role::Admin
    {
        return Err(ApiError::Forbidden {
            problem: "a token can't make other tokens".to_owned(),
            expected: "the Unix socket of the controller's machine, or an administrator".to_owned(),
        });
    }
    if role > caller.role {
        return Err(ApiError::Forbidden {
            problem: format!("{} has the role {} and can't give {role}", caller.name, caller.role),
            expected: format!("at most the role {}", caller.role),
        });
    }
    let secret = Secret::new(role).map_err(|_| {
        tracing::error!("the system gives no randomness");
        ApiError::Internal
    })?;
    let new = NewToken {
        id: secret.id().to_owned(),
        name,
        user: user.clone(),
        role,
        secret_hash: secret.hash(),
        created_by: caller.name.to_string(),
        valid_secs: std::time::Duration::from_secs(valid_secs).as_secs_f64(),
    };
    let token = state.ports.tokens.insert(new).await?.ok_or_else(|| ApiError::WrongState {
        problem: format!("{user} has {LIVE_MAX} valid tokens already"),
        expected: "fewer: revoke unused ones".into(),
    })?;
    let created = TokenCreated { token, secret: secret.text().to_owned() };
    Ok(HttpResponse::Created().json(created))
}

/// Revokes a personal token: requests with it are refused from now on.
#[utoipa::path(
    tag = "identity",
    operation_id = "revoke_token",
    params(TokenPath),
    responses(
        (status = 200, description = "It is revoked.", body = TokenView),
        Problems, LookupProblems,
    ),
    security(("bearer" = [])),
)]
#[delete("/tokens/{token}")]
pub(super) async fn revoke_token(
    caller: Caller,
    token: Named<TokenName>,
    state: Data<State>,
) -> Result<Json<TokenView>, ApiError> {
    let TokenName(id) = token.0;
    let of = (caller.role < Role::Admin).then(|| caller.name.to_string());
    let by = caller.name.to_string();
    let revoked = state.ports.tokens.revoke(id.clone(), of, by).await?;
    revoked
        .map(Json)
        .ok_or_else(|| ApiError::NotFound { what: format!("there is no token {id} of yours") })
}

/// The public part of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenName(String);

impl FromStr for TokenName {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let letter = |byte: u8| byte.is_ascii_digit() || byte.is_ascii_lowercase();
        let fits = text.len() == 8 && text.bytes().all(letter);
        fits.then(|| Self(text.to_owned())).ok_or_else(|| BadId {
            kind: "TokenName",
            text: text.to_owned(),
            expected: "the id of a token: 8 digits and small letters",
        })
    }
}

fn only_admins(what: &str) -> ApiError {
    ApiError::Forbidden {
        problem: format!("only an administrator {what}"),
        expected: "the role admin".to_owned(),
    }
}

fn check_name(field: &str, name: &str) -> Result<(), BadField> {
    let clean = !name.trim().is_empty() && !name.chars().any(char::is_control);
    if clean && name.len() <= NAME_MAX {
        return Ok(());
    }
    let expected = format!("1 to {NAME_MAX} bytes on one line");
    Err(BadField::new(field, format!("{name:?} is not a name"), expected))
}
