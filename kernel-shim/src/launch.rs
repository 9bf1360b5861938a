//! One launch: whether it may go, what is told of it, and what is looked at afterwards.
//!
//! The thread that launches is held back, so order, streams and the lives of parameters stay what
//! they are without the shim.

use crate::abi::{Code, Handle, SUCCESS};
use crate::counters::{self, count};
use crate::fill::{self, Pass};
use crate::kernels::{self, Shape};
use crate::measure::{self, Begun};
use crate::ring::{self, Entry, Kind};
use crate::{clock, gate, session, state, streams};

/// What is launched where.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// What.
    pub shape: Shape,
    /// The stream as the program gave it.
    pub stream: Handle,
    /// Whether 0 means the thread's own stream.
    pub per_thread: bool,
    /// Whether it may begin before what was launched before it ends, so that it must not wait.
    pub dependent: bool,
}

/// A launch that was let go, until the driver has taken it.
struct Ticket {
    number: u64,
    kernel: u32,
    begun: Option<Begun>,
    told: bool,
    /// Whether its end is waited for.
    tracked: bool,
}

/// Makes a launch: `call` is the driver's function with the program's arguments.
#[inline]
pub fn launch(what: &Launch, call: impl FnOnce() -> Code) -> Code {
    let ticket = state::guarded(|| admit(what)).flatten();
    let code = call();
    if ticket.as_ref().is_some_and(|ticket| ticket.told) {
        // The kernel is on its way by now; what is said of it was said before, with its time.
        ring::announce();
    }
    if let Some(ticket) = ticket
        && (code != SUCCESS || ticket.tracked || ticket.begun.is_some())
    {
        state::guarded(|| follow(what, ticket, code));
    }
    code
}

#[inline]
fn admit(what: &Launch) -> Option<Ticket> {
    if state::mode() != state::ACTIVE {
        return pass_without_session();
    }
    if session::captures() && crate::hooks::capture::is_captured(what.stream, what.per_thread) {
        // It is written down, not run.
        count(&counters::PASSED);
        return None;
    }
    let role = session::role();
    let kernel = kernels::number(&what.shape);
    let number = counters::LAUNCHES.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
    let mut ticket = Ticket { number, kernel, begun: None, told: false, tracked: false };
    match role {
        session::FREE => {}
        session::HOLD | session::MEASURE => tell_held(what, &mut ticket),
        session::ASK => ask(what, &mut ticket),
        _ => return None,
    }
    let measures = role == session::MEASURE;
    if measure::wants(kernel, measures) {
        ticket.begun = measure::begin(what.stream, what.per_thread, measures);
    }
    Some(ticket)
}

#[cold]
fn pass_without_session() -> Option<Ticket> {
    count(&counters::PASSED);
    if state::mode() == state::PASSIVE {
        session::begin();
    }
    None
}

/// A holder's launch: told, and never held back.
#[inline]
fn tell_held(what: &Launch, ticket: &mut Ticket) {
    streams::launched(streams::meant(what.stream, what.per_thread), ticket.number);
    let extra = gate::add_launch();
    tell(Kind::Launch, ticket, extra);
}

fn ask(what: &Launch, ticket: &mut Ticket) {
    let must_go = what.dependent || kernels::never_waits(ticket.kernel);
    let pass = if must_go { Pass::Unasked } else { fill::acquire(ticket.kernel, ticket.number) };
    fill::tally(pass);
    streams::launched(streams::meant(what.stream, what.per_thread), ticket.number);
    match pass {
        Pass::Granted(grant) => {
            ticket.tracked = true;
            tell(Kind::Started, ticket, grant);
        }
        Pass::Unasked => {
            fill::leave_unasked();
            ticket.tracked = true;
            tell(Kind::Launch, ticket, 0);
        }
        Pass::Free if state::mode() == state::ACTIVE && session::role() != session::FREE => {
            let extra = gate::add_launch();
            tell(Kind::Launch, ticket, extra);
        }
        Pass::Free => {}
    }
}

#[inline]
fn tell(kind: Kind, ticket: &mut Ticket, extra: u64) {
    let at = clock::now().get();
    ticket.told = true;
    count(&counters::TOLD);
    ring::leave(Entry { kind, kernel: ticket.kernel, launch: ticket.number, at, extra });
}

/// After the driver's answer.
fn follow(what: &Launch, ticket: Ticket, code: Code) {
    let Ticket { number, kernel, begun, told, tracked } = ticket;
    if code != SUCCESS {
        if told {
            let at = clock::now().get();
            ring::push(Entry { kind: Kind::Failed, kernel, launch: number, at, extra: 0 });
        }
        if tracked {
            fill::failed();
        }
        if let Some(begun) = begun {
            measure::abandon(begun);
        }
        return;
    }
    if let Some(begun) = begun {
        measure::end(begun, kernel, number, (what.stream, what.per_thread));
    }
    if tracked {
        fill::launched(number, kernel, what.stream, what.per_thread);
    }
}

/// The program waited: launches up to `number` on `stream` are done, or all without a stream.
pub fn waited(stream: Option<Handle>, number: u64) {
    match stream {
        Some(stream) => streams::done(stream, number),
        None => streams::all_done(number),
    }
    settle(number);
}

/// Tells that nothing is in flight, if that is so and was not told.
pub fn settle(number: u64) {
    if state::mode() != state::ACTIVE || session::role() == session::FREE {
        return;
    }
    measure::look(usize::MAX);
    if !streams::are_idle() {
        fill::look();
        return;
    }
    let returned = fill::synced(number);
    if session::is_news(number) || returned.is_some() {
        let extra = returned.map_or(0, |grant| grant.saturating_add(1));
        let at = clock::now().get();
        ring::push(Entry { kind: Kind::Sync, kernel: 0, launch: number, at, extra });
    }
}
