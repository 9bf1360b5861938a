//! Who calls: the only place where names are proved. Everything else gets a [`Principal`].

use std::any::Any;
use std::sync::Arc;

use actix_web::dev::{Extensions, ServiceRequest};
use actix_web::http::header::{AUTHORIZATION, HeaderMap};
use actix_web::{FromRequest, HttpMessage as _, HttpRequest, dev};
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use tessera_model::number::clamped;
use time::OffsetDateTime;

use super::access;
use super::error::ApiError;
use super::state::State;
use crate::calls::{CallOrigin, JobCallSocket, JobCaller};
use crate::connections::{ConnectionCaps, SourceKey};
use crate::directory::NoAccount;
use crate::oidc::{self, IssuerRefusal};
use crate::principal::{Principal, Proof, Role, Source};
use crate::process_metrics::{self, Listener};
use crate::tokens::{TokenProof, TokenRefusal};

/// The other end of a connection, noted when it was opened.
#[derive(Clone, Debug)]
pub(super) enum Peer {
    /// A process on this machine, as the kernel names it.
    Process {
        uid: u32,
        pid: Option<i32>,
    },
    Address {
        address: SocketAddr,
        encrypted: bool,
    },
    /// A process of a job, as its node names it.
    Job(Arc<JobCaller>),
}

impl Peer {
    /// Returns the other end of a request's connection. Without it nobody is served, so that a new kind of
    /// listener is closed until it is known here.
    pub(super) fn of(request: &HttpRequest) -> Option<Self> {
        request.conn_data::<Self>().cloned()
    }

    pub(super) fn source(&self) -> Source {
        match self {
            Self::Process { uid, pid } => Source::Process { uid: *uid, pid: *pid },
            Self::Address { address, .. } => Source::Address(*address),
            Self::Job(caller) => Source::Address(caller.from),
        }
    }
}

/// Notes who is at the other end of a new connection, and counts it. One too many is closed at once.
pub(super) fn note_peer(
    caps: &ConnectionCaps<SourceKey>,
    unread_for: Duration,
    job_calls: Option<&JobCallSocket>,
    connection: &dyn Any,
    data: &mut Extensions,
) {
    let Some((peer, socket)) = peer_of(job_calls, connection) else {
        // Nobody serves it, so that it must not take a descriptor either.
        if let Some(unix) = connection.downcast_ref::<actix_web::rt::net::UnixStream>() {
            let _ = rustix::net::shutdown(unix, rustix::net::Shutdown::Both);
        }
        return;
    };
    match caps.admit(peer.source().into()) {
        Some(counted) => {
            if matches!(peer, Peer::Address { .. }) {
                // The kernel closes the connection of a client that takes nothing for so long: neither actix nor
                // hyper has a deadline for writing. A system without the option serves as it did.
                let _ = rustix::net::sockopt::set_tcp_user_timeout(
                    socket,
                    clamped(unread_for.as_millis()),
                );
            }
            data.insert(peer);
            // Lives as long as the connection.
            data.insert(counted);
        }
        None => {
            process_metrics::count_refused_connection(Listener::Api);
            // Without a noted peer nobody is served either. A socket that is gone already is no loss.
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }
}

fn peer_of<'c>(
    job_calls: Option<&JobCallSocket>,
    connection: &'c dyn Any,
) -> Option<(Peer, BorrowedFd<'c>)> {
    type Tcp = actix_web::rt::net::TcpStream;
    type Tls = actix_tls::accept::rustls_0_23::TlsStream<Tcp>;
    if let Some(unix) = connection.downcast_ref::<actix_web::rt::net::UnixStream>() {
        match job_calls.map_or(CallOrigin::Elsewhere, |job_calls| job_calls.admit(unix)) {
            CallOrigin::Elsewhere => {}
            CallOrigin::Announced(caller) => return Some((Peer::Job(caller), unix.as_fd())),
            CallOrigin::Stranger => return None,
        }
        let credentials = unix.peer_cred().ok()?;
        let peer = Peer::Process { uid: credentials.uid(), pid: credentials.pid() };
        return Some((peer, unix.as_fd()));
    }
    let (tcp, encrypted) = match connection.downcast_ref::<Tls>() {
        Some(tls) => (tls.get_ref().0, true),
        None => (connection.downcast_ref::<Tcp>()?, false),
    };
    let address = tcp.peer_addr().ok()?;
    Some((Peer::Address { address, encrypted }, tcp.as_fd()))
}

/// Proves who calls: by the token that the request carries, or else by the Unix socket.
pub(super) async fn authenticate(
    state: &State,
    peer: &Peer,
    headers: &HeaderMap,
) -> Result<Principal, ApiError> {
    match (headers.get(AUTHORIZATION), peer) {
        (None, Peer::Job(caller)) => Ok(Principal {
            name: Arc::clone(&caller.job.user),
            role: Role::User,
            proof: Proof::Job { job: caller.job.clone(), from: peer.source() },
            coordinates: Arc::from([]),
        }),
        // A caller through a node has no name other than its job's.
        (Some(_), Peer::Job(_)) => Err(ApiError::Unauthorized {
            problem: "a job's process must call without a token here".to_owned(),
        }),
        (Some(_), _) => by_token(state, peer, headers).await,
        (None, Peer::Process { uid, pid }) => {
            let (uid, pid) = (*uid, *pid);
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
async fn by_token(state: &State, peer: &Peer, headers: &HeaderMap) -> Result<Principal, ApiError> {
    let refused = |problem: String| ApiError::Unauthorized { problem };
    let token = bearer(headers)
        .ok_or_else(|| refused("the Authorization header holds no bearer token".to_owned()))?;
    if oidc::has_form(token) {
        return by_issuer(state, peer, token).await;
    }
    let proof =
        state.ports.tokens.check(token, OffsetDateTime::now_utc()).map_err(
            |refusal| match refusal {
                TokenRefusal::Unread => ApiError::Unavailable { reason: refusal.to_string() },
                TokenRefusal::Broken | TokenRefusal::Invalid => refused(refusal.to_string()),
            },
        )?;
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
            // A token that its user created grants no more than the user's current role.
            let (role, coordinates) = if granted {
                (role, directory.coordinated_by(&user))
            } else {
                let account = directory.by_name(&user).await.map_err(no_account)?;
                (role.min(account.role), account.coordinates)
            };
            Ok(Principal {
                name: user,
                role,
                proof: Proof::Token { id, granted, from },
                coordinates,
            })
        }
    }
}

/// Proves who calls by a token of the configured issuer.
async fn by_issuer(state: &State, peer: &Peer, token: &str) -> Result<Principal, ApiError> {
    let refused = |problem: String| ApiError::Unauthorized { problem };
    let issuer = state.ports.issuer.as_ref().ok_or_else(|| {
        refused(
            "the token is not a Tessera token, and no issuer of others is configured".to_owned(),
        )
    })?;
    let proof = issuer.check(token).await.map_err(|refusal| match refusal {
        IssuerRefusal::Invalid { .. } => refused(refusal.to_string()),
        IssuerRefusal::Unavailable { .. } => ApiError::Unavailable { reason: refusal.to_string() },
    })?;
    let directory = &state.ports.directory;
    // Issuers name people. Where users choose such names themselves, root must not be one of them.
    if directory.is_of_the_system(&proof.user).await.map_err(no_account)? {
        return Err(refused(format!("{} is a system account, and not a person's", proof.user)));
    }
    let coordinates = directory.coordinated_by(&proof.user);
    let from = peer.source();
    Ok(Principal {
        name: proof.user,
        role: proof.role,
        proof: Proof::Issuer { subject: proof.subject, from, expires_at: proof.expires_at },
        coordinates,
    })
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
