//! Interactive verbs: `run`, `exec`, `attach` and `forward`, and what `srun` and `salloc` share with them.

mod attach;
mod conversation;
mod exec;
mod forward;
mod input;
mod run;
mod terminal;

pub use self::attach::{Attach, attach};
pub use self::conversation::{Collected, Conversation, Output, OwnOutput, SessionEnd};
pub use self::exec::{Exec, execute};
pub use self::forward::Forward;
pub use self::input::LocalInput;
pub use self::run::{InteractiveJob, Run};
