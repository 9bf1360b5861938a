//! The store's rows in the leader's form: those that it reads at its start, and those that a round
//! changes. The store reads and writes them; the types are here, since decisions consist of them.

pub mod findings;
pub mod growth;
pub mod idle;
pub mod needs;
pub mod nodes;
pub mod overrides;
pub mod preemptions;
pub mod snapshot;
pub mod submitted;
pub mod transitions;
pub mod updates;
