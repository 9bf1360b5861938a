//! Gives the library the name under which programs load NVML.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // What threads that called it do when they end is done in it, even after a program has closed it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    tessera_old_glibc::link_library(tessera_old_glibc::FOR_PROGRAMS);
}
