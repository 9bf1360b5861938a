//! Names of kernels in real images: PTX, cubins and fat binaries.

use std::ops::Range;

/// How a cubin begins.
const ELF: &[u8] = b"\x7fELF";
/// How a fat binary begins, in the byte order of every machine that CUDA runs on.
const FAT: &[u8] = &[0x50, 0xed, 0x55, 0xba];
/// What the wrapper around a fat binary begins with.
pub const WRAPPER: u32 = 0x466243b1;

/// How a section of a kernel's code is named.
const CODE: &str = ".text.";

/// Returns the names of an image's kernels, or `None` if it is not an image.
pub fn of(bytes: &[u8]) -> Option<Vec<String>> {
    if bytes.starts_with(ELF) {
        return of_elf(bytes);
    }
    if bytes.starts_with(FAT) {
        // Compressed parts hide their names; what is plain is found by its own beginning.
        let mut names: Vec<_> =
            find_all(bytes, ELF).filter_map(|at| of_elf(&bytes[at..])).flatten().collect();
        names.extend(of_ptx(bytes));
        names.sort();
        names.dedup();
        return Some(names);
    }
    let is_ptx = find_all(bytes.get(..bytes.len().min(4096))?, b".version").next().is_some();
    is_ptx.then(|| of_ptx(bytes))
}

fn of_ptx(bytes: &[u8]) -> Vec<String> {
    let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%');
    find_all(bytes, b".entry")
        .map(|at| {
            let rest = &bytes[at + b".entry".len()..];
            let skipped = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            let name = rest[skipped..].iter().take_while(is_name).copied().collect();
            String::from_utf8(name).unwrap_or_default()
        })
        .filter(|name| !name.is_empty())
        .collect()
}

/// Reads the names of the sections that hold code, `.text.NAME`, from a 64-bit ELF file.
fn of_elf(bytes: &[u8]) -> Option<Vec<String>> {
    let table = number(bytes, 0x28..0x30)?;
    let size = number(bytes, 0x3a..0x3c)?;
    let count = number(bytes, 0x3c..0x3e)?;
    let names = number(bytes, 0x3e..0x40)?;
    let header = |index: usize| {
        let start = table.checked_add(index.checked_mul(size)?)?;
        bytes.get(start..start.checked_add(0x40)?)
    };
    let names = number(header(names)?, 0x18..0x20)?;
    let name = |index| {
        let start = names.checked_add(number(header(index)?, 0..4)?)?;
        let name = bytes.get(start..)?.split(|byte| *byte == 0).next()?;
        Some(str::from_utf8(name).ok()?.strip_prefix(CODE)?.to_owned())
    };
    Some((0..count).filter_map(name).collect())
}

fn number(bytes: &[u8], at: Range<usize>) -> Option<usize> {
    let mut little = bytes.get(at)?.iter().rev();
    little.try_fold(0_usize, |all, byte| Some(all.checked_mul(256)? + usize::from(*byte)))
}

fn find_all<'b>(bytes: &'b [u8], what: &'b [u8]) -> impl Iterator<Item = usize> + 'b {
    bytes.windows(what.len()).enumerate().filter(move |(_, w)| *w == what).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_ptx_are_found() {
        let text = b".version 8.0\n.target sm_80\n.visible .entry _Z3addPf(\n.param .u64 p\n) {}\n\
                     .entry\tsecond ()\n{}\0rest";

        assert_eq!(of(text).unwrap(), ["_Z3addPf", "second"]);
    }

    #[test]
    fn sections_of_a_cubin_name_its_kernels_and_a_broken_one_harms_nobody() {
        let names = b"\0.text._Z4stepv\0.data\0";
        let mut file = vec![0; 0x40];
        file[..4].copy_from_slice(ELF);
        file[0x28] = 0x40;
        file[0x3a] = 0x40;
        file[0x3c] = 3;
        file[0x3e] = 2;
        let mut sections = vec![0; 3 * 0x40];
        sections[0x40] = 1;
        sections[0x80] = 16;
        sections[0x80 + 0x18] = 0x00;
        sections[0x80 + 0x19] = 0x01;
        file.extend(sections);
        file.extend(names);

        assert_eq!(of(&file).unwrap(), ["_Z4stepv"]);
        for length in 0..file.len() {
            let _ = of(&file[..length]);
        }
    }
}
