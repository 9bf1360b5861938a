//! One launch: whether it may go, what is reported, and what is tracked afterwards.
//!
//! The launching thread itself waits. So order, streams and the lifetimes of parameters are the same
//! as without the shim.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tessera_frames::gate::ReportPace;
use tessera_kernel_queue::Nanos;

use crate::abi::{CudaResult, DriverHandle, SUCCESS};
use crate::counters::{self, count};
use crate::filler::{self, LaunchPermit};
use crate::kernel_cache::LaunchShape;
use crate::measure::{self, StartedPair};
use crate::ring::{self, RecordKind, RingRecord};
use crate::{
    captures, clock, first_session, gate, kernel_catalog, recall, run_ahead, startup, state,
    streams, terms, watch,
};

/// The last launch whose end was reported by a sync.
static SYNCED: AtomicU64 = AtomicU64::new(0);

/// A launch call of the program.
#[derive(Clone, Copy, Debug)]
pub struct LaunchCall {
    /// What runs.
    pub shape: LaunchShape,
    /// Dynamic shared memory of each block, in bytes.
    pub shared_bytes: u32,
    /// The stream as the program gave it.
    pub stream: DriverHandle,
    /// Whether stream 0 means the thread's own stream.
    pub per_thread: bool,
    /// Whether its kernel waits on the device for kernels of other devices. Then it must not wait here.
    pub waits_for_peers: bool,
}

/// A launch on its way to the driver.
struct LaunchTicket {
    number: u64,
    kernel: u32,
    begun: Option<StartedPair>,
    reported: bool,
    /// The gate's launches with it, if it is a holder's.
    count: u64,
    /// Whether its end is tracked.
    tracked: bool,
    /// Whether the holder's time pays for it, by its age.
    is_aged: bool,
    /// The predicted time that a mark after it stands for; zero without a mark.
    mark: Nanos,
}

/// Makes a launch: `call` is the driver's function with the program's arguments.
#[inline]
pub fn launch(what: &LaunchCall, call: impl FnOnce() -> CudaResult) -> CudaResult {
    let ticket = state::guarded(|| admit(what)).flatten();
    let code = call();
    let mut departure = 0;
    if ticket.as_ref().is_some_and(|ticket| ticket.reported) {
        departure = streams::record_launch(streams::meant(what.stream, what.per_thread));
        // The record was added before the call. The thread is woken after it, so that no launch is delayed.
        ring::announce();
    }
    if let Some(ticket) = ticket.as_ref().filter(|ticket| ticket.count > 0)
        && gate::announce_launch(ticket.count)
    {
        ring::end_pause_early();
    }
    if let Some(ticket) = ticket
        && (code != SUCCESS
            || ticket.tracked
            || ticket.begun.is_some()
            || ticket.mark != Nanos::ZERO)
    {
        state::guarded(|| on_driver_answer(what, ticket, (code, departure)));
    }
    code
}

#[inline]
fn admit(what: &LaunchCall) -> Option<LaunchTicket> {
    if state::mode() != state::ACTIVE {
        return pass_without_session(what);
    }
    if captures::is_capturing() && captures::is_captured(what.stream, what.per_thread) {
        // It is recorded in a graph, not run.
        count(&counters::PASSED);
        return None;
    }
    let mut role = terms::role();
    let kernel = kernel_catalog::number(&what.shape);
    kernel_catalog::note_shared_memory(kernel, what.shared_bytes);
    let number = counters::LAUNCHES.fetch_add(1, Ordering::Relaxed) + 1;
    if number == 1 {
        note_first_launch(what);
    }
    let mut ticket = LaunchTicket {
        number,
        kernel,
        begun: None,
        reported: false,
        count: 0,
        tracked: false,
        is_aged: false,
        mark: Nanos::ZERO,
    };
    if run_ahead::is_bounded(role) {
        ticket.mark = run_ahead::count_launch(kernel);
        // It may have changed while the launch waited.
        role = terms::role();
    }
    match role {
        terms::FREE => {}
        terms::HOLD | terms::MEASURE => report_held_launch(what, &mut ticket),
        terms::FILL => launch_as_filler(what, &mut ticket),
        _ => return None,
    }
    if let Some(due) = measure::due((kernel, ticket.is_aged), number, role) {
        ticket.begun = measure::begin(what.stream, what.per_thread, due);
    }
    Some(ticket)
}

#[cold]
fn pass_without_session(what: &LaunchCall) -> Option<LaunchTicket> {
    // A launch that comes before the session is not one that the session missed.
    if !first_session::is_awaited() {
        count(&counters::PASSED);
    }
    if state::mode() == state::PASSIVE {
        note_first_launch(what);
        startup::start_session_thread();
    }
    if state::transition(state::WATCHING, state::WATCHED)
        || (state::mode() == state::DETACHED && first_session::is_awaited())
    {
        note_first_launch(what);
    }
    first_session::wait();
    None
}

/// Observes the first launch of the process, once.
#[cold]
fn note_first_launch(what: &LaunchCall) {
    static IS_NOTED: AtomicBool = AtomicBool::new(false);
    if !IS_NOTED.swap(true, Ordering::Relaxed) {
        watch::on_first_launch(&what.shape);
    }
}

/// Reports a holder's launch, which never waits.
#[inline]
fn report_held_launch(what: &LaunchCall, ticket: &mut LaunchTicket) {
    streams::record_launch(streams::meant(what.stream, what.per_thread));
    report_counted(ticket);
    recall::note_launch();
}

fn launch_as_filler(what: &LaunchCall, ticket: &mut LaunchTicket) {
    let must_go = what.waits_for_peers || kernel_catalog::never_waits(ticket.kernel);
    let permit = if must_go {
        LaunchPermit::Ungranted
    } else {
        filler::acquire(ticket.kernel, ticket.number)
    };
    filler::count_permit(permit);
    streams::record_launch(streams::meant(what.stream, what.per_thread));
    match permit {
        LaunchPermit::Granted { number, is_aged } => {
            (ticket.tracked, ticket.is_aged) = (true, is_aged);
            report(RecordKind::Started, ticket, number);
        }
        LaunchPermit::Ungranted => {
            filler::depart_ungranted();
            ticket.tracked = true;
            report(RecordKind::Launch, ticket, 0);
        }
        LaunchPermit::Free if state::mode() == state::ACTIVE && terms::role() != terms::FREE => {
            report_counted(ticket);
        }
        LaunchPermit::Free => {}
    }
}

/// Reports a launch of a holder, and counts it on the gate page.
#[inline]
fn report_counted(ticket: &mut LaunchTicket) {
    let at = clock::now();
    let count = gate::add_launch(kernel_catalog::index(ticket.kernel), at);
    ticket.count = count;
    report_at(RecordKind::Launch, ticket, count, at);
}

#[inline]
fn report(kind: RecordKind, ticket: &mut LaunchTicket, extra: u64) {
    report_at(kind, ticket, extra, clock::now());
}

#[inline]
fn report_at(kind: RecordKind, ticket: &mut LaunchTicket, extra: u64, at: Nanos) {
    let at = at.get();
    ticket.reported = true;
    count(&counters::REPORTED);
    ring::leave(RingRecord { kind, kernel: ticket.kernel, launch: ticket.number, at, extra });
}

/// Tracks or withdraws a launch after the driver's answer. `departure` is its number among those that departed.
fn on_driver_answer(what: &LaunchCall, ticket: LaunchTicket, (code, departure): (CudaResult, u64)) {
    let LaunchTicket { number, kernel, begun, reported, tracked, mark, .. } = ticket;
    if code != SUCCESS {
        if reported {
            let at = clock::now().get();
            ring::push(RingRecord {
                kind: RecordKind::Failed,
                kernel,
                launch: number,
                at,
                extra: 0,
            });
        }
        if tracked {
            filler::on_refused_launch();
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
        filler::add_kernel(departure, kernel, what.stream, what.per_thread);
    }
    if mark != Nanos::ZERO {
        run_ahead::set_mark(mark, what.stream, what.per_thread);
    }
}

/// Handles a wait of the program: launches up to `number` on `stream`, or on all streams, are done.
pub fn on_wait(stream: Option<DriverHandle>, number: u64) {
    match stream {
        Some(stream) => streams::mark_done(stream, number),
        None => streams::mark_all_done(number),
    }
    report_idle(number);
}

/// Reports that nothing is in flight, if that is new.
pub fn report_idle(number: u64) {
    if state::mode() != state::ACTIVE || terms::role() == terms::FREE {
        return;
    }
    measure::look(usize::MAX);
    if !streams::are_idle() {
        filler::look();
        return;
    }
    let returned = filler::on_sync(number);
    if mark_synced(number) || returned.is_some() {
        let extra = returned.map_or(0, |grant| grant.saturating_add(1));
        let at = clock::now().get();
        let kind = RecordKind::Sync;
        let record = RingRecord { kind, kernel: 0, launch: number, at, extra };
        if terms::role() == terms::HOLD && gate::report_pace() != ReportPace::Prompt {
            ring::push(record);
        } else {
            // A gap begins: the sooner the queue knows it, the more of it can be filled.
            ring::push_urgent(record);
        }
    }
}

/// Marks launches up to `number` as synced. Returns whether any of them was not.
fn mark_synced(number: u64) -> bool {
    SYNCED.fetch_max(number, Ordering::Relaxed) < number
}
