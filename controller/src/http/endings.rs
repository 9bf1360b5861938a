//! Long answers, such as streams of events and sessions, end with the token of their caller, and when the caller may
//! do less. A stolen token that was revoked must not keep a shell open, nor a former operator a stream of all jobs.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::body::{BodySize, BoxBody, EitherBody, MessageBody};
use actix_web::dev::ServiceResponse;
use actix_web::web::Bytes;
use futures_util::future::{Fuse, FusedFuture as _, FutureExt as _, LocalBoxFuture};
use time::OffsetDateTime;

use super::state::State;
use crate::directory::AccountKey;
use crate::principal::{Principal, Proof};

/// Longest sleep until an end is looked at again: the wall clock may be set meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(60);

type Answer<B> = ServiceResponse<EitherBody<B, BoxBody>>;

/// Lets an answer that goes on end with its caller's token, or role.
pub(super) fn bound<B: MessageBody + 'static>(
    answer: Answer<B>,
    state: &State,
    caller: &Principal,
) -> Answer<B> {
    if answer.response().body().size() != BodySize::Stream {
        return answer;
    }
    let Some(end) = end_of(state, caller) else { return answer };
    answer.map_body(|_, body| {
        EitherBody::right(BoxBody::new(EndingBody { body: Box::pin(body), end: end.fuse() }))
    })
}

/// Waits for the end of what proves the caller's name and role. Tokens whose role was granted, and those of an
/// issuer, keep their role until they end.
fn end_of(state: &State, caller: &Principal) -> Option<LocalBoxFuture<'static, ()>> {
    let demoted = |account| {
        let directory = Arc::clone(&state.ports.directory);
        directory.until_demoted(account, caller.role, Arc::clone(&caller.coordinates))
    };
    match &caller.proof {
        Proof::Token { id, granted, .. } => {
            let invalid = state.ports.tokens.clone().until_invalid(id.clone());
            if *granted {
                return Some(Box::pin(invalid));
            }
            let demoted = demoted(AccountKey::Name(caller.name.to_string()));
            Some(Box::pin(async move {
                tokio::select! {
                    () = invalid => {}
                    () = demoted => {}
                }
            }))
        }
        Proof::Issuer { expires_at, .. } => Some(Box::pin(until(*expires_at))),
        Proof::Socket { uid, .. } => Some(Box::pin(demoted(AccountKey::Uid(*uid)))),
        Proof::Bootstrap { .. } | Proof::Job { .. } => None,
    }
}

#[expect(clippy::disallowed_methods, reason = "whether a token has expired, at the edge")]
async fn until(end: OffsetDateTime) {
    while let Ok(left) = Duration::try_from(end - OffsetDateTime::now_utc()) {
        tokio::time::sleep(left.min(LOOK_EVERY)).await;
    }
}

struct EndingBody<B> {
    body: Pin<Box<B>>,
    end: Fuse<LocalBoxFuture<'static, ()>>,
}

/// The token of a caller has ended, or its account may do less.
#[derive(Debug, thiserror::Error)]
#[error("the token was revoked or has expired, or the caller may do less now")]
struct AccessEnded;

impl<B: MessageBody> MessageBody for EndingBody<B> {
    type Error = Box<dyn Error>;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        // An error closes the connection: what comes in over it, such as input, ends as well.
        if self.end.is_terminated() || self.end.poll_unpin(context).is_ready() {
            return Poll::Ready(Some(Err(AccessEnded.into())));
        }
        self.body.as_mut().poll_next(context).map_err(Into::into)
    }
}
