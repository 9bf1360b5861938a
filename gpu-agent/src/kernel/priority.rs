//! The priority of the endpoint's thread.

/// Has this thread run before all ordinary threads of the machine, where the account may do that.
///
/// Launches of all fillers wait for it, and data loaders keep every processor busy. It runs for microseconds
/// at a time, and Linux leaves ordinary threads a twentieth of the time whatever it does.
pub fn raise() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: plain numbers and a structure of ours; zero is this thread.
    unsafe {
        if libc::sched_getscheduler(0) != libc::SCHED_OTHER {
            // The agent was started with another one on purpose.
            return;
        }
        // Programs that it starts are ordinary again.
        let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
        if libc::sched_setscheduler(0, policy, &raw const lowest) != 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, -10);
        }
    }
}
