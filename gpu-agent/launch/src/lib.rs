//! The program between a shepherd and an attempt's program, and the only part of a node that may have
//! privileges.
//!
//! A shepherd starts one `tessera-launch` and keeps it: the launcher forks a child for each attempt. The
//! child joins the attempt's control groups, becomes the attempt's account, opens the user's paths as that
//! account, and executes the program. Only the user's account opens what belongs to a user. An open that
//! hangs delays only the child, and the launcher handles signals meanwhile.
//!
//! The launcher does not trust its caller: [`policy`] decides which accounts it may become. It has one
//! thread, so everything is allowed between `clone3` and `execve`.

pub mod child;
pub mod client;
pub mod connect;
pub mod devices;
pub mod helper;
pub mod order;
pub mod paths;
pub mod policy;
pub mod prepare;
pub mod socket;
pub mod sys;
pub mod user_worker;
pub mod worker;
