//! Warnings on stderr, each of them once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Prints a warning on stderr, unless the process printed it before.
pub fn complain(what: &str) {
    static PRINTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut printed = PRINTED.lock().unwrap_or_else(PoisonError::into_inner);
    if printed.insert(what.to_owned()) {
        eprintln!("libcuda stand-in: {what}");
    }
}
