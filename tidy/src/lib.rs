//! Checks of this repository that clippy has no lint for.
//!
//! [`prose`] holds texts to the vocabulary of `docs/glossary.md` and to short sentences: what users
//! read everywhere, doc comments and names in the folders of [`prose::ENFORCED`].
//! [`rings`] finds folders of one crate that import each other.
//! `./x lint` runs the first, `load-tests/tests/architecture.rs` the second.

pub mod errors;
pub mod figures;
pub mod files;
pub mod markdown;
pub mod prose;
pub mod rings;
pub mod rust;
pub mod scripts;
pub mod sentences;
pub mod vocabulary;
