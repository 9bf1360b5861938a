//! The process that an attempt runs under: it outlives the agent, keeps the lease, and knows
//! how the attempt ended.
//!
//! One shepherd has at most one live attempt. Shepherds are kept in a pool and used again once an
//! attempt's exit record is on disk. A start then costs one `clone3` and one `execve`, not two of
//! each, and no memory of the agent is copied. The other choice was a zygote that forks a shepherd
//! for each attempt. It costs one fork more each time. Its death would take the ability to start
//! anything with it, where the death of a pooled shepherd costs one attempt.
//!
//! A shepherd lives in the data folder:
//!
//! - `shepherds/<id>.id`: its identity (boot, pid, start time), for later agents;
//! - `shepherds/<id>.sock`: where such an agent finds it;
//! - `shepherds/<id>.tty`: where agents reach its interactive sessions;
//! - `shepherds/<id>.now`: the attempt that it began last;
//! - `pipes/<uuid>`: where companions of the attempt's processes report memory;
//! - `outputs/<uuid>.out`, `.err`: what attempts wrote, or links to where their users directed it;
//! - `attempts/<uuid>/`: script and working folder of attempts that need one, and the exit record
//!   of one that ended while no agent could journal it.
//!
//! An attempt that needs none of these files costs no work on the disk except its agent's journal,
//! which serves all of a node's attempts with one sync.
//!
//! When its agent goes away, a busy shepherd continues to the end of its attempt, leaves the exit
//! record on disk, and exits; an idle one exits at once.

pub mod files;
pub mod group;
pub mod job;
pub mod limits;
pub mod memory_pipe;
pub mod now;
mod observers;
pub mod prepare;
pub mod program_output;
pub mod protocol;
pub mod record;
pub mod serve;
pub mod sessions;
pub mod socket;
