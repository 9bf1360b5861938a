//! The begin, the end and the role of the process' session with the queue of its slice.
//! [`crate::client`] runs the session, and [`crate::startup`] starts its thread.

use tessera_frames::kernel::ShimWelcome;
use tessera_kernel_queue::Role;

use crate::counters::{self, count};
use crate::{filler, first_session, gate, log, state, terms};

pub fn set_role(role: Role) {
    terms::store_role(role);
    filler::wake();
}

/// Begins the session after the queue accepted the process.
pub fn welcome(welcome: &ShimWelcome) {
    gate::renew();
    terms::store_limits(welcome);
    filler::begin_session();
    set_role(welcome.role);
    state::transition(state::DETACHED, state::ACTIVE);
    count(&counters::SESSIONS);
    first_session::end_wait();
    filler::wake();
    let (number, role) = (welcome.session, welcome.role);
    let due_after = welcome.ages_after.get() / 1_000_000;
    log::note(format_args!("session {number}, role {role:?}, due after {due_after} ms"));
}

/// Ends the session: launches pass.
pub fn detach() {
    state::transition(state::ACTIVE, state::DETACHED);
    terms::clear_role();
    filler::wake();
}
