//! The locks and atomic numbers of the files of this library that are model-checked. `tests/model` compiles
//! the same files with those of a checker.

pub use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, atomic};
