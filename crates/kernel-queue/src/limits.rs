//! Every limit of the queue, with the reason for its number.

/// Priorities, and so queues: Q0 (highest) to Q9 (FIKIT §3.3).
pub const LEVELS: usize = 10;

/// Most launches that wait in one queue. A waiting launch is a blocked thread. A program with more
/// blocked threads at one priority on one slice would not gain from their order. Each session has its
/// share of the places, so it must be at least [`SESSIONS_MAX`].
pub const WAITING_MAX: usize = 64;

/// Most sessions on one slice. MPS allows 48 clients of a device before Blackwell, 60 on it.
pub const SESSIONS_MAX: usize = 64;

/// Most tasks with a loaded profile: one for each session.
pub const TASKS_MAX: usize = SESSIONS_MAX;

/// Most kernels of one task. Training loops of large models have some hundreds.
pub const KERNELS_MAX: u16 = 4_096;

/// Most gap histograms of one task, for pairs of kernels and for kernels alone together.
pub const PAIRS_MAX: usize = 2_048;

/// Longest name of a kernel, in bytes: mangled templates reach some thousand.
pub const KERNEL_NAME_BYTES_MAX: usize = 4_096;

/// Longest key of a task, in bytes: a command line that identifies a program.
pub const TASK_KEY_BYTES_MAX: usize = 4_096;

/// Most kernels in flight that are tracked: current devices run at most 128 grids at once.
pub const RUNNING_MAX: usize = 128;

/// Most actions of one step. Every session may get a role, the end of a grant and a grant; a few
/// more actions concern the step itself.
pub const ACTIONS_MAX: usize = 3 * SESSIONS_MAX + 8;
