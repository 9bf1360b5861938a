//! What the files of this library that are model-checked take their locks and atomic numbers from.
//! `tests/model` compiles the same files with those of a checker.

pub use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, atomic};
