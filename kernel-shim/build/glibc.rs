//! Links the library so that it loads on systems with an older glibc than the one here.
//!
//! The shim is loaded into programs of containers that are older than the machine it was built on,
//! and a library that misses a symbol there ends every one of them. A linker takes the newest
//! version of each symbol that it finds, so it is shown libraries that have only the old ones: as
//! empty as can be, with the names and versions that this machine's libraries still serve. What
//! did not exist then is in `old_glibc.c`. The unwinder is linked in, because small containers
//! have no libgcc_s.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the oldest systems in question have: those of CentOS 7 and manylinux2014. Rust's own
/// standard library supports nothing older.
const NEWEST: (u32, u32) = (2, 17);

pub fn link_for_old(sources: &Path, out: &Path) -> Result<(), String> {
    let wanted = ("x86_64", "linux", "gnu");
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    let target =
        (var("CARGO_CFG_TARGET_ARCH"), var("CARGO_CFG_TARGET_OS"), var("CARGO_CFG_TARGET_ENV"));
    if (target.0.as_str(), target.1.as_str(), target.2.as_str()) != wanted {
        return Err("only for x86-64 is there a build for old systems".to_owned());
    }
    let libraries = out.join("old-glibc");
    fs::create_dir_all(&libraries).map_err(|error| error.to_string())?;
    stand_in("libc.so.6", &libraries)?;
    stand_in("libm.so.6", &libraries)?;
    // Threads and dlopen were libraries of their own: where they are, they have to be loaded.
    for soname in ["libpthread.so.0", "libdl.so.2"] {
        assemble(soname, &libraries, &BTreeMap::new())?;
    }
    script(&libraries, "libm.so", &libraries.join("libm.so.6").display().to_string())?;
    let parts = ["libc.so.6", "libc_nonshared.a", "ld-linux-x86-64.so.2"].map(find);
    let [_, nonshared, loader] = parts;
    let libc = libraries.join("libc.so.6");
    let (nonshared, loader) = (nonshared?, loader?);
    let members =
        format!("{} {} AS_NEEDED ( {} )", libc.display(), nonshared.display(), loader.display());
    script(&libraries, "libc.so", &members)?;
    script(&libraries, "libgcc_s.so", &find("libgcc_eh.a")?.display().to_string())?;

    let object = out.join("old_glibc.o");
    let source = sources.join("old_glibc.c");
    let flags = ["-c", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-stack-protector", "-o"];
    run(Command::new(compiler()).args(flags).arg(&object).arg(source))?;
    for argument in [
        format!("-L{}", libraries.display()),
        object.display().to_string(),
        "-Wl,--no-as-needed".to_owned(),
        libraries.join("libpthread.so.0").display().to_string(),
        libraries.join("libdl.so.2").display().to_string(),
        "-Wl,--as-needed".to_owned(),
        // What is in none of these shall fail here and not in somebody's container.
        "-Wl,-z,defs".to_owned(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    Ok(())
}

/// Makes a library that has the old symbols of this machine's `soname`, and nothing in them.
fn stand_in(soname: &str, folder: &Path) -> Result<(), String> {
    let real = find(soname)?;
    let listing = run(Command::new("readelf").args(["--dyn-syms", "-W"]).arg(&real))?;
    let mut newest: BTreeMap<&str, ((u32, u32, u32), &str)> = BTreeMap::new();
    for line in listing.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, kind, "GLOBAL" | "WEAK", "DEFAULT", section, name, ..] = fields[..] else {
            continue;
        };
        let Some((name, version)) = name.split_once('@') else { continue };
        let Some(number) = number(version.trim_start_matches('@')) else { continue };
        if section == "UND" || (number.0, number.1) > NEWEST {
            continue;
        }
        let old = newest.entry(name).or_insert((number, kind));
        *old = (*old).max((number, kind));
    }
    let mut versions = Versions::new();
    for (name, (version, kind)) in newest {
        versions.entry(version).or_default().push((name, kind));
    }
    assemble(soname, folder, &versions)
}

/// Symbols with their kinds, by version.
type Versions<'a> = BTreeMap<(u32, u32, u32), Vec<(&'a str, &'a str)>>;

fn assemble(soname: &str, folder: &Path, versions: &Versions) -> Result<(), String> {
    let mut assembly = String::from(".section .note.GNU-stack,\"\",@progbits\n.data\n");
    let mut map = String::new();
    for (version, symbols) in versions {
        let (major, minor, patch) = *version;
        let patch = if patch == 0 { String::new() } else { format!(".{patch}") };
        let _ = writeln!(map, "GLIBC_{major}.{minor}{patch} {{ global:");
        for (name, kind) in symbols {
            let kind = if *kind == "OBJECT" { "object" } else { "function" };
            let _ = writeln!(
                assembly,
                ".globl {name}\n.type {name},@{kind}\n{name}: .quad 0\n.size {name},8"
            );
            let _ = writeln!(map, "  {name};");
        }
        let _ = writeln!(map, "}};");
    }
    let write = |name: String, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).map(|()| path).map_err(|error| error.to_string())
    };
    let assembly = write(format!("{soname}.s"), &assembly)?;
    let map = write(format!("{soname}.map"), &map)?;
    let mut link = Command::new(compiler());
    link.args(["-shared", "-nostdlib", "-o"]).arg(folder.join(soname)).arg(assembly);
    link.arg(format!("-Wl,-soname,{soname}"));
    if !versions.is_empty() {
        link.arg(format!("-Wl,--version-script={}", map.display()));
    }
    run(&mut link).map(drop)
}

fn number(version: &str) -> Option<(u32, u32, u32)> {
    let mut parts = version.strip_prefix("GLIBC_")?.split('.').map(|part| part.parse().ok());
    let (major, minor) = (parts.next()??, parts.next()??);
    Some((major, minor, parts.next().flatten().unwrap_or(0)))
}

fn script(folder: &Path, name: &str, members: &str) -> Result<(), String> {
    fs::write(folder.join(name), format!("GROUP ( {members} )\n"))
        .map_err(|error| error.to_string())
}

fn find(name: &str) -> Result<PathBuf, String> {
    let path = run(Command::new(compiler()).arg(format!("-print-file-name={name}")))?;
    let path = PathBuf::from(path.trim());
    if path.is_absolute() { Ok(path) } else { Err(format!("the compiler has no {name}")) }
}

fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".to_owned())
}

fn run(command: &mut Command) -> Result<String, String> {
    let shown = format!("{:?}", command.get_program());
    let output = command.output().map_err(|error| format!("{shown}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{shown}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}
