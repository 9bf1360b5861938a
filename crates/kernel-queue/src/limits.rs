//! Every limit of the queue, with the reason for its number.

/// The number of priorities and thus of queues: Q0 (highest) to Q9 (FIKIT §3.3).
pub const LEVELS: usize = 10;

/// Maximum number of launches that wait in one queue. A waiting launch is a blocked thread. A
/// program with more blocked threads at one priority on one slice would not gain from their order.
/// The places are divided among the sessions, so their number must be at least [`SESSIONS_MAX`].
pub const WAITING_MAX: usize = 64;

/// Maximum number of sessions on one slice. MPS allows 48 clients of a device before Blackwell, 60
/// on it.
pub const SESSIONS_MAX: usize = 64;

/// Maximum number of tasks with a loaded profile: one for each session.
pub const TASKS_MAX: usize = SESSIONS_MAX;

/// Maximum number of kernels of one task. Training loops of large models have some hundreds.
pub const KERNELS_MAX: u16 = 5_120;

/// How many of them may be single shapes. Programs whose inputs have all lengths make more. The other places are for
/// classes of shapes ([`KernelId::class`](crate::KernelId::class)): a function has one for each power of two.
pub const SHAPES_MAX: u16 = 4_096;

/// Maximum number of gap histograms of one task, for pairs of kernels and for kernels alone
/// together.
pub const PAIRS_MAX: usize = 2_048;

/// The longest name of a kernel, in bytes: names of mangled templates have up to some thousand
/// bytes.
pub const KERNEL_NAME_BYTES_MAX: usize = 4_096;

/// Longest key of a task, in bytes: a command line that identifies a program.
pub const TASK_KEY_BYTES_MAX: usize = 4_096;

/// Maximum number of kernels in flight that are tracked: current devices run at most 128 grids at
/// once.
pub const RUNNING_MAX: usize = 128;

/// Maximum number of actions of one step. Every session may get a role, the end of a grant and a
/// grant; a few more actions concern the step itself.
pub const ACTIONS_MAX: usize = 3 * SESSIONS_MAX + 8;
