//! The agent's actors: mailboxes around the node and its GPUs. The only modules, except `main`,
//! that know actix.

pub mod gpu;
pub mod node;
