//! Every limit of the queue, with the reason for its number.

/// Priorities, and so queues: Q0 (highest) to Q9 (FIKIT §3.3).
pub const LEVELS: usize = 10;

/// Most launches that wait in one queue. A waiting launch is a blocked thread; more of them than
/// this at one priority on one slice is a program that would not gain from order either.
pub const WAITING_MAX: usize = 64;

/// Most sessions on one slice. MPS allows 48 clients of a device before Blackwell, 60 on it.
pub const SESSIONS_MAX: usize = 64;

/// Most tasks whose profiles are at hand: as many as there may be sessions, so that each has its
/// own.
pub const TASKS_MAX: usize = SESSIONS_MAX;

/// Most kernels of one task. Training loops of large models have some hundreds.
pub const KERNELS_MAX: u16 = 4_096;

/// Most gap histograms of one task, for pairs of kernels and for kernels alone together.
pub const PAIRS_MAX: usize = 2_048;

/// Longest name of a kernel: mangled templates reach some thousand bytes.
pub const KERNEL_NAME_BYTES_MAX: usize = 4_096;

/// Longest key of a task: a command line that identifies a program.
pub const TASK_KEY_BYTES_MAX: usize = 4_096;

/// Most kernels that are known to run at once: devices of today run at most 128 grids.
pub const RUNNING_MAX: usize = 128;

/// Most actions that one step can cause: a role and the end of a grant for every session, a
/// grant for every session, and a few about the step itself.
pub const ACTIONS_MAX: usize = 3 * SESSIONS_MAX + 8;
