//! Who calls: the only place where names are proved. Everything else gets a [`Principal`].

use std::any::Any;
use std::sync::Arc;

use actix_web::dev::{Extensions, ServiceRequest};
use actix_web::http::header::{AUTHORIZATION, HeaderMap};
use actix_web::{FromRequest, HttpMessage as _, HttpRequest, dev};
use std::future::{Ready, ready};
use std::net::SocketAddr;
use time::OffsetDateTime;

use super::access;
use super::error::ApiError;
use super::state::State;
use crate::directory::NoAccount;
use crate::principal::{Principal, Proof, Role, Source};
use crate::tokens::TokenProof;

/// The other end of a connection, noted when it was opened.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    /// A process on this machine, as the kernel names it.
    Process { uid: u32, pid: Option<i32> },
    /// An address.
    Address { address: SocketAddr, encrypted: bool },
}

impl Peer {
    /// Returns the other end of a request's connection. Without it nobody is served, so that a new kind of
    /// listener is closed until it is known here.
    pub(super) fn of(request: &HttpRequest) -> Option<Self> {
        request.conn_data::<Self>().copied()
    }

    pub(super) const fn source(self) -> Source {
        match self {
            Self::Process { uid, pid } => Source::Process { uid, pid },
            Self::Address { address, .. } => Source::Address(address),
        }
    }
}

/// Notes who is at the other end of a new connection.
pub(super) fn note_peer(connection: &dyn Any, data: &mut Extensions) {
    type Tls = actix_web::rt::net::TcpStream;
    if let Some(unix) = connection.downcast_ref::<actix_web::rt::net::UnixStream>() {
        if let Ok(credentials) = unix.peer_cred() {
            data.insert(Peer::Process { uid: credentials.uid(), pid: credentials.pid() });
        }
    } else if let Some(tcp) = connection.downcast_ref::<Tls>() {
        if let Ok(address) = tcp.peer_addr() {
            data.insert(Peer::Address { address, encrypted: false });
        }
    } else if let Some(tls) =
        connection.downcast_ref::<actix_tls::accept::rustls_0_23::TlsStream<Tls>>()
        && let Ok(address) = tls.get_ref().0.peer_addr()
    {
        data.insert(Peer::Address { address, encrypted: true });
    }
}

/// Proves who calls: by the token that the request carries, or else by the Unix socket.
pub(super) async fn authenticate(
    state: &State,
    peer: Peer,
    headers: &HeaderMap,
) -> Result<Principal, ApiError> {
    match (headers.get(AUTHORIZATION), peer) {
        (Some(_), _) => by_token(state, peer, headers).await,
        (None, Peer::Process { uid, pid }) => {
            let account = state.ports.directory.by_uid(uid).await.map_err(no_account)?;
            Ok(Principal {
                name: account.name,
                role: account.role,
                proof: Proof::Socket { uid, pid },
                coordinates: account.coordinates,
            })
        }
        (None, Peer::Address { .. }) => {
            Err(ApiError::Unauthorized { problem: "the request has no bearer token".to_owned() })
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "whether a token has expired, at the edge")]
async fn by_token(state: &State, peer: Peer, headers: &HeaderMap) -> Result<Principal, ApiError> {
    let refused = |problem: String| ApiError::Unauthorized { problem };
    let token = bearer(headers)
        .ok_or_else(|| refused("the Authorization header holds no bearer token".to_owned()))?;
    let proof = state
        .ports
        .tokens
        .check(token, OffsetDateTime::now_utc())
        .map_err(|refusal| refused(refusal.to_string()))?;
    let from = peer.source();
    match proof {
        TokenProof::Bootstrap => Ok(Principal {
            name: Principal::BOOTSTRAP.into(),
            role: Role::Admin,
            proof: Proof::Bootstrap { from },
            coordinates: Arc::from([]),
        }),
        TokenProof::Personal { id, user, role, granted } => {
            let directory = &state.ports.directory;
            // A token that its user made is worth no more than its user is now.
            let (role, coordinates) = if granted {
                (role, directory.coordinated_by(&user))
            } else {
                let account = directory.by_name(&user).await.map_err(no_account)?;
                (role.min(account.role), account.coordinates)
            };
            Ok(Principal { name: user, role, proof: Proof::Token { id, from }, coordinates })
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    // Two such headers are two claims: neither is followed.
    if headers.get_all(AUTHORIZATION).count() != 1 {
        return None;
    }
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn no_account(missing: NoAccount) -> ApiError {
    match missing {
        NoAccount::Silent => ApiError::Unavailable { reason: missing.to_string() },
        NoAccount::Uid { .. } | NoAccount::Name { .. } => {
            ApiError::Unauthorized { problem: missing.to_string() }
        }
    }
}

/// Keeps the caller for the handlers.
pub(super) fn keep(request: &ServiceRequest, principal: &Arc<Principal>) {
    request.extensions_mut().insert(Arc::clone(principal));
}

/// The caller of a route, who may do what the route declares.
#[derive(Clone, Debug)]
pub(super) struct Caller(Arc<Principal>);

impl std::ops::Deref for Caller {
    type Target = Principal;

    fn deref(&self) -> &Principal {
        &self.0
    }
}

impl FromRequest for Caller {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut dev::Payload) -> Self::Future {
        let principal = request.extensions().get::<Arc<Principal>>().cloned();
        let nobody = || ApiError::Unauthorized { problem: "the caller is not known".to_owned() };
        ready(principal.ok_or_else(nobody).and_then(|principal| {
            access::check(request, &principal)?;
            Ok(Self(principal))
        }))
    }
}
