//! The library as a file: its name, its exports, and what it needs of the system.

use std::collections::BTreeSet;
use std::process::Command;

use crate::built::{shim, symbols};

/// What the oldest systems in question have.
const GLIBC_NEWEST: (u32, u32) = (2, 17);

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).arg(shim()).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_function_of_the_driver_is_exported_under_its_own_name() {
    let text = run("nm", &["-D", "--defined-only"]);
    let exported: BTreeSet<&str> =
        text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();

    let missing: Vec<String> = symbols()
        .into_iter()
        .map(|row| row.symbol)
        .filter(|symbol| !exported.contains(symbol.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");

    let ours: Vec<&&str> = exported.iter().filter(|name| !name.starts_with("cu")).collect();
    assert_eq!(ours, [&"tessera_kernel_shim_counters"], "nothing else is shown to programs");
}

#[test]
fn a_program_that_closes_the_driver_takes_it_from_no_thread() {
    let text = run("readelf", &["-d", "-W"]);

    let flags = text.lines().find(|line| line.contains("(FLAGS_1)")).unwrap();
    assert!(flags.contains("NODELETE"), "{flags}");
}

#[test]
fn the_library_has_the_drivers_name_and_needs_an_old_system_only() {
    let text = run("readelf", &["-d", "-W"]);
    assert!(text.contains("soname: [libcuda.so.1]"), "{text}");
    let needed: BTreeSet<&str> = text
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    let old = ["libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"];
    assert!(needed.is_subset(&BTreeSet::from(old)), "{needed:?}");

    let versions = run("objdump", &["-T"]);
    let newest = versions
        .split("GLIBC_")
        .skip(1)
        .filter_map(|rest| {
            let number = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
            let mut parts = number.split('.').filter_map(|part| part.parse::<u32>().ok());
            Some((parts.next()?, parts.next()?))
        })
        .max();
    assert!(newest.is_some_and(|newest| newest <= GLIBC_NEWEST), "{newest:?}");
}
