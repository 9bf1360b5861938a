//! Gives the library the driver's name, and writes its table of functions.
//!
//! `symbols.tsv` has every function of the driver with its versions, `tier-a.tsv` those that are
//! simulated. A function that is only in the first becomes one that returns 801.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // As NVIDIA's: what the driver returns is its own, whatever was preloaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Its threads continue when a program closes it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    tessera_old_glibc::link_library(tessera_old_glibc::FOR_PROGRAMS);
    let simulated: BTreeSet<_> = rows("tier-a.tsv").map(|row| row[0].clone()).collect();
    let mut rows: Vec<_> = rows("symbols.tsv").collect();
    rows.sort();
    let mut table = format!("pub static SYMBOLS: [ExportedSymbol; {}] = [\n", rows.len());
    let (mut declared, mut index, mut stubs) = (String::new(), String::new(), String::new());
    for (number, row) in rows.iter().enumerate() {
        let [name, version, suffix, symbol] = &row[..] else { panic!("not four words: {row:?}") };
        let is_simulated = simulated.contains(symbol);
        writeln!(
            table,
            "    ExportedSymbol {{ name: {name:?}, version: {version}, per_thread: {}, symbol: {symbol:?}, \
             simulated: {is_simulated}, address: declared::{symbol} }},",
            !suffix.is_empty(),
        )
        .unwrap();
        writeln!(declared, "        pub fn {symbol}();").unwrap();
        writeln!(index, "    pub const {symbol}: usize = {number};").unwrap();
        if !is_simulated {
            writeln!(
                stubs,
                "    #[unsafe(no_mangle)]\n    pub extern \"C\" fn {symbol}() -> i32 {{ \
                 crate::gate::absent({number}) }}"
            )
            .unwrap();
        }
    }
    table.push_str("];\n");
    let code = format!(
        "{table}\nmod declared {{\n    unsafe extern \"C\" {{\n{declared}    }}\n}}\n\
         pub mod index {{\n{index}}}\nmod stubs {{\n{stubs}}}\n"
    );
    fs::write(format!("{}/table.rs", env::var("OUT_DIR").unwrap()), code).unwrap();
}

fn rows(file: &str) -> impl Iterator<Item = Vec<String>> {
    println!("cargo:rerun-if-changed={file}");
    let text = fs::read_to_string(file).unwrap();
    let lines: Vec<_> = text.lines().skip(1).map(str::to_owned).collect();
    lines.into_iter().map(|line| line.split('\t').map(str::to_owned).collect())
}
