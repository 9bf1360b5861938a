//! Every function of the driver, with the versions in which programs may request it.

#![allow(non_upper_case_globals, reason = "the driver's names are not ours")]
#![allow(clippy::allow_attributes, reason = "what is generated may or may not need them")]
#![allow(dead_code, reason = "not every index is named")]

use std::ffi::c_void;

/// One function.
pub struct ExportedSymbol {
    /// Under which `cuGetProcAddress` knows it.
    pub name: &'static str,
    /// The CUDA version that brought it.
    pub version: u32,
    /// Whether its default stream is the thread's own.
    pub per_thread: bool,
    /// Under which the library exports it.
    pub symbol: &'static str,
    /// Whether it does anything except refuse.
    pub simulated: bool,
    address: unsafe extern "C" fn(),
}

include!(concat!(env!("OUT_DIR"), "/table.rs"));

/// The result of a search for a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolSearch {
    /// The index of the function.
    Found(usize),
    /// A newer driver, or a caller that requests more, would find it.
    TooNew,
    /// There is none with that name.
    Unknown,
}

/// Finds what a caller of `cuGetProcAddress` means: the newest revision that is in `version`. A
/// name with its suffix spelled out (`cuMemAlloc_v2`) means exactly that function.
pub fn find(name: &str, version: u32, per_thread: bool) -> SymbolSearch {
    let named = || SYMBOLS.iter().enumerate().filter(move |(_, s)| s.name == name);
    let newest = |twin: bool| {
        named()
            .filter(|(_, s)| s.per_thread == twin && s.version <= version)
            .max_by_key(|(_, s)| s.version)
    };
    let found = newest(per_thread).or_else(|| newest(false)).filter(|_| !name.is_empty());
    if let Some((index, _)) = found {
        return SymbolSearch::Found(index);
    }
    match SYMBOLS.iter().position(|s| s.symbol == name) {
        Some(index) if SYMBOLS[index].version <= version => SymbolSearch::Found(index),
        Some(_) => SymbolSearch::TooNew,
        None if named().next().is_some() => SymbolSearch::TooNew,
        None => SymbolSearch::Unknown,
    }
}

impl ExportedSymbol {
    /// Returns where it is.
    pub const fn address(&self) -> *mut c_void {
        self.address as *mut c_void
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: &str, version: u32, per_thread: bool) -> Option<&'static str> {
        match find(name, version, per_thread) {
            SymbolSearch::Found(index) => Some(SYMBOLS[index].symbol),
            SymbolSearch::TooNew | SymbolSearch::Unknown => None,
        }
    }

    #[test]
    fn the_newest_revision_that_was_asked_for_is_found() {
        assert_eq!(symbol("cuCtxSynchronize", 12_090, false), Some("cuCtxSynchronize"));
        assert_eq!(symbol("cuCtxSynchronize", 13_000, false), Some("cuCtxSynchronize_v2"));
        assert_eq!(symbol("cuMemcpyHtoD", 7_000, true), Some("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(symbol("cuMemAlloc", 12_000, true), Some("cuMemAlloc_v2"), "no twin");
        assert!(symbol("cuGraphInstantiateWithParams_ptsz", 12_010, false).is_some());
        assert_eq!(find("cuLibraryLoadData", 11_080, false), SymbolSearch::TooNew);
        assert_eq!(find("", 12_000, false), SymbolSearch::Unknown);
        assert_eq!(find("cuNever", 12_000, false), SymbolSearch::Unknown);
    }
}
