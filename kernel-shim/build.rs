//! Generates the table of exports and links the library for old systems.

use std::env;
use std::path::PathBuf;

#[path = "build/exports.rs"]
mod exports;

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-changed=data/driver-symbols.tsv");

    exports::generate(&here.join("data/driver-symbols.tsv"), &out.join("exports.rs"));
    // Programs load the driver by this name. With another one they would load the real driver in
    // addition to a preloaded shim.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // A program may close the driver and run on. The shim must stay loaded for its own threads and for
    // destructors of other threads.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The shim is loaded into programs of containers that are older than the build machine. A library with a missing
    // symbol ends every program there.
    tessera_old_glibc::link_library(tessera_old_glibc::FOR_CONTAINERS);
}
