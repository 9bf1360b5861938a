//! Who may have how much at once, and whose turn it is: the same for gangs, for jobs that name compute
//! instances, and for a policy's own.

mod quota;
mod turns;
mod usage;

pub(crate) use quota::{Quotas, slices};
pub(crate) use turns::{Turn, factors, in_turn};

pub use quota::{held, least};
pub use turns::{DELAY_MAX, factor, in_order};
pub use usage::Decayed;
