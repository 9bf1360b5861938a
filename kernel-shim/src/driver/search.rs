//! Searches for the real driver in the loader's order.

use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tessera_frames::kernel::variables;

const NAME: &str = "libcuda.so.1";

/// Folders that installations use and the loader may not know. The last ones belong to containers
/// and the compatibility packages.
const FOLDERS: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/usr/local/cuda/compat",
];

/// The loader's cache and its largest accepted size: some thousand libraries.
const CACHE: &str = "/etc/ld.so.cache";
const CACHE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Returns every file that may be the driver, most likely first.
pub fn candidates() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    found.extend(
        std::env::var_os(variables::DRIVER).filter(|path| !path.is_empty()).map(Into::into),
    );
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        let folders = path.as_bytes().split(|byte| matches!(byte, b':' | b';'));
        found.extend(folders.map(|folder| match folder {
            b"" => Path::new(".").join(NAME),
            folder => Path::new(OsStr::from_bytes(folder)).join(NAME),
        }));
    }
    if std::fs::metadata(CACHE).is_ok_and(|cache| cache.len() <= CACHE_BYTES_MAX) {
        found.extend(std::fs::read(CACHE).ok().as_deref().map(in_cache).unwrap_or_default());
    }
    found.extend(FOLDERS.into_iter().map(|folder| Path::new(folder).join(NAME)));
    // The toolkit's stub libraries look like the driver and refuse every call.
    found.retain(|path| !path.components().any(|part| part.as_os_str() == "stubs"));
    found.into_iter().filter_map(|path| std::path::absolute(path).ok()).collect()
}

/// Returns whether a file is the library that contains this code.
pub fn is_this_library(path: &Path) -> bool {
    let Some(this) = this_library() else { return false };
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    identity(path).is_some_and(|file| Some(file) == identity(&this))
}

fn this_library() -> Option<PathBuf> {
    let address: *const () = this_library as *const ();
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be passed, and the structure is ours.
    if unsafe { libc::dladdr(address.cast(), &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's text, which ends with a zero and stays while this library is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsString::from_vec(name.to_bytes().to_vec())))
}

/// Returns the driver's paths for 64-bit x86 in the loader's cache.
///
/// The format is that of glibc 2.2 and later. After a header of 48 bytes follow entries of 24 bytes:
/// flags, the offsets of name and path from the header's start, and two more. An older part may
/// precede it.
fn in_cache(cache: &[u8]) -> Vec<PathBuf> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const X86_64: u32 = 0x0303;
    let Some(start) = cache.windows(MAGIC.len()).position(|window| window == MAGIC) else {
        return Vec::new();
    };
    let cache = &cache[start..];
    let number = |at: usize| -> Option<u32> {
        Some(u32::from_le_bytes(cache.get(at..at.checked_add(4)?)?.try_into().ok()?))
    };
    let text = |at: u32| {
        let rest = cache.get(usize::try_from(at).ok()?..)?;
        rest.split(|byte| *byte == 0).next()
    };
    let count = number(20).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
    let entry = |index: usize| {
        let at = 48_usize.checked_add(index.checked_mul(24)?)?;
        Some((number(at)?, text(number(at + 4)?)?, text(number(at + 8)?)?))
    };
    (0..count)
        .map_while(entry)
        .filter(|(flags, name, _)| *flags == X86_64 && *name == NAME.as_bytes())
        .map(|(_, _, path)| PathBuf::from(OsStr::from_bytes(path)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(entries: &[(u32, &str, &str)]) -> Vec<u8> {
        let mut head = b"ld.so-1.7.0\0old part".to_vec();
        let mut body = b"glibc-ld.so.cache1.1".to_vec();
        body.extend(u32::try_from(entries.len()).unwrap().to_le_bytes());
        body.resize(48, 0);
        let mut texts = Vec::new();
        let base = 48 + 24 * entries.len();
        for (flags, name, path) in entries {
            let mut add = |text: &str| {
                let at = u32::try_from(base + texts.len()).unwrap();
                texts.extend(text.bytes().chain([0]));
                at
            };
            let (name, path) = (add(name), add(path));
            for number in [*flags, name, path, 0, 0, 0] {
                body.extend(number.to_le_bytes());
            }
        }
        body.extend(texts);
        head.extend(body);
        head
    }

    #[test]
    fn the_loaders_cache_names_the_driver_of_this_kind_of_machine() {
        let bytes = cache(&[
            (0x0003, "libcuda.so.1", "/lib32/libcuda.so.1"),
            (0x0303, "libc.so.6", "/lib/libc.so.6"),
            (0x0303, "libcuda.so.1", "/odd/place/libcuda.so.1"),
        ]);

        assert_eq!(in_cache(&bytes), [PathBuf::from("/odd/place/libcuda.so.1")]);
    }

    #[test]
    fn a_cache_that_is_cut_off_anywhere_is_read_as_far_as_it_goes() {
        let bytes = cache(&[(0x0303, "libcuda.so.1", "/a/libcuda.so.1"); 3]);

        for length in 0..bytes.len() {
            assert!(in_cache(&bytes[..length]).len() <= 3);
        }
    }
}
