//! Which hook replaces an answer of `cuGetProcAddress`. Programs request the driver's functions by
//! name, CUDA version and kind of default stream.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::abi::PER_THREAD_DEFAULT_STREAM;
use crate::driver::table::{self, ExportRow};

/// The newest version whose functions are in the table. Later ones may have revisions with other
/// arguments.
pub const TABLE_VERSION: i32 = 13_050;

/// Revisions by the name that programs request, or by symbol.
struct Index {
    by_name: HashMap<&'static str, Vec<&'static ExportRow>>,
    by_symbol: HashMap<&'static str, &'static ExportRow>,
}

fn index() -> &'static Index {
    static INDEX: OnceLock<Index> = OnceLock::new();
    INDEX.get_or_init(|| {
        let mut index = Index { by_name: HashMap::new(), by_symbol: HashMap::new() };
        for row in table::rows() {
            index.by_name.entry(row.name).or_default().push(row);
            index.by_symbol.insert(row.symbol, row);
        }
        index
    })
}

/// Returns whether any revision of a name has a hook.
pub fn is_known(name: &str) -> bool {
    index().by_name.contains_key(name) || index().by_symbol.contains_key(name)
}

/// Returns the revision that belongs to a request which the driver answered with `address`.
///
/// It is the newest revision of the requested version, for the requested kind of default stream. If
/// the address belongs to another revision's symbol, it is that one.
pub fn best(name: &str, version: i32, flags: u64, address: *mut ()) -> Option<&'static ExportRow> {
    let Some(rows) = index().by_name.get(name) else {
        return index().by_symbol.get(name).copied();
    };
    let twin = flags & PER_THREAD_DEFAULT_STREAM != 0;
    let newest = |kind: bool| {
        let fits = |row: &&&ExportRow| row.twin == kind && row.version <= version;
        rows.iter().filter(fits).max_by_key(|row| row.version).copied()
    };
    let chosen = match newest(false) {
        // A twin belongs to a revision: its symbol is that revision's, and an ending.
        Some(base) if twin => {
            newest(true).filter(|twin| twin.symbol.starts_with(base.symbol)).or(Some(base))
        }
        Some(base) => Some(base),
        None => newest(twin),
    };
    let is_it = |row: &&ExportRow| table::address(row.slot) == address;
    match chosen {
        Some(row) if is_it(&row) => Some(row),
        chosen => rows.iter().copied().find(is_it).or(chosen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: &str, version: i32, flags: u64) -> Option<&'static str> {
        best(name, version, flags, std::ptr::null_mut()).map(|row| row.symbol)
    }

    #[test]
    fn the_newest_revision_that_the_requested_version_has_is_meant() {
        assert_eq!(symbol("cuCtxSynchronize", 12_090, 0), Some("cuCtxSynchronize"));
        assert_eq!(symbol("cuCtxSynchronize", 13_000, 0), Some("cuCtxSynchronize_v2"));
        assert_eq!(symbol("cuGetProcAddress", 11_080, 0), Some("cuGetProcAddress"));
        assert_eq!(symbol("cuGetProcAddress", 12_000, 0), Some("cuGetProcAddress_v2"));
        assert_eq!(symbol("cuMemAlloc", 2_000, 0), Some("cuMemAlloc"));
        assert_eq!(symbol("cuMemAlloc", 3_020, 0), Some("cuMemAlloc_v2"));
        assert_eq!(symbol("cuGraphLaunch", 9_000, 0), None);
        assert_eq!(symbol("cuNoSuchThing", 12_000, 0), None);
    }

    #[test]
    fn twins_are_answered_with_twins_where_there_are_any() {
        assert_eq!(symbol("cuLaunchKernel", 7_000, 2), Some("cuLaunchKernel_ptsz"));
        assert_eq!(symbol("cuLaunchKernel", 7_000, 1), Some("cuLaunchKernel"));
        assert_eq!(symbol("cuMemcpyDtoH", 7_000, 2), Some("cuMemcpyDtoH_v2_ptds"));
        assert_eq!(symbol("cuCtxSynchronize", 12_000, 2), Some("cuCtxSynchronize"));
        assert_eq!(symbol("cuStreamBeginCapture", 10_000, 2), Some("cuStreamBeginCapture_ptsz"));
        assert_eq!(symbol("cuStreamBeginCapture", 10_010, 2), Some("cuStreamBeginCapture_v2_ptsz"));
    }

    #[test]
    fn a_symbol_may_be_requested_by_its_own_name() {
        assert_eq!(
            symbol("cuGraphInstantiateWithParams_ptsz", 12_000, 0),
            Some("cuGraphInstantiateWithParams_ptsz")
        );
        assert_eq!(symbol("cuMemAlloc_v2", 12_000, 0), Some("cuMemAlloc_v2"));
    }
}
