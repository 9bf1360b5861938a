//! Quotas and the order of service: the same for gangs, for jobs that name compute instances, and
//! for all other jobs.

mod listing;
mod quota;
mod service_order;
mod usage;

pub(crate) use listing::first_of_each_user;
pub(crate) use quota::{Quotas, slices};
pub(crate) use service_order::{OrderedJob, order_jobs};

pub use listing::parts_of_lines;
pub use quota::{held, least};
pub use service_order::{DELAY_MAX, factor, order_queue};
pub use usage::DecayedUsage;
