//! Links the programs so that they run on every system for which there are packages.

fn main() {
    tessera_old_glibc::link_programs(tessera_old_glibc::FOR_PROGRAMS);
}
