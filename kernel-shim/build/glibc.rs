//! Links the library so that it loads on systems with an older glibc than the one here.
//!
//! The shim is loaded into programs of containers that are older than the build machine. A library
//! with a missing symbol ends every program there. A linker takes the newest version of each symbol,
//! so it gets empty libraries with only the old symbols that this machine's libraries still provide.
//! `old_glibc.c` contains what did not exist then. The unwinder is linked in, because small
//! containers have no libgcc_s.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The glibc version of the oldest supported systems: CentOS 7 and manylinux2014. Rust's own standard
/// library supports nothing older.
const NEWEST: (u32, u32) = (2, 17);

/// The library cannot be linked for old systems.
#[derive(Debug)]
pub enum LinkError {
    /// The target is not 64-bit x86 Linux with glibc.
    Target,
    /// A file cannot be written.
    Write(std::io::Error),
    /// A program cannot be started.
    Start { program: String, cause: std::io::Error },
    /// A program failed with this message.
    Failed { program: String, message: String },
    /// The compiler does not have a library.
    Missing { library: String },
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Target => f.write_str("builds for old systems exist only for x86-64 Linux"),
            Self::Write(cause) => write!(f, "cannot write a file: {cause}"),
            Self::Start { program, cause } => write!(f, "cannot start {program}: {cause}"),
            Self::Failed { program, message } => write!(f, "{program} failed: {message}"),
            Self::Missing { library } => write!(f, "the compiler has no {library}"),
        }
    }
}

pub fn link_for_old(sources: &Path, out: &Path) -> Result<(), LinkError> {
    let requested = ("x86_64", "linux", "gnu");
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    let target =
        (var("CARGO_CFG_TARGET_ARCH"), var("CARGO_CFG_TARGET_OS"), var("CARGO_CFG_TARGET_ENV"));
    if (target.0.as_str(), target.1.as_str(), target.2.as_str()) != requested {
        return Err(LinkError::Target);
    }
    let libraries = out.join("old-glibc");
    fs::create_dir_all(&libraries).map_err(LinkError::Write)?;
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
        // A missing symbol must fail here and not in a container.
        "-Wl,-z,defs".to_owned(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    Ok(())
}

/// Makes an empty library with the old symbols of this machine's `soname`.
fn stand_in(soname: &str, folder: &Path) -> Result<(), LinkError> {
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

fn assemble(soname: &str, folder: &Path, versions: &Versions) -> Result<(), LinkError> {
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
        fs::write(&path, text).map(|()| path).map_err(LinkError::Write)
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

fn script(folder: &Path, name: &str, members: &str) -> Result<(), LinkError> {
    fs::write(folder.join(name), format!("GROUP ( {members} )\n")).map_err(LinkError::Write)
}

fn find(name: &str) -> Result<PathBuf, LinkError> {
    let path = run(Command::new(compiler()).arg(format!("-print-file-name={name}")))?;
    let path = PathBuf::from(path.trim());
    if path.is_absolute() { Ok(path) } else { Err(LinkError::Missing { library: name.to_owned() }) }
}

fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".to_owned())
}

fn run(command: &mut Command) -> Result<String, LinkError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = match command.output() {
        Ok(output) => output,
        Err(cause) => return Err(LinkError::Start { program, cause }),
    };
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(LinkError::Failed { program, message })
    }
}
