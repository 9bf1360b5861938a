//! Links the programs so that they run on every system that packages are for.

fn main() {
    tessera_old_glibc::link_programs(tessera_old_glibc::FOR_PROGRAMS);
}
