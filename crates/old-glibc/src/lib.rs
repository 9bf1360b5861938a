//! For build scripts: links programs and libraries so that they run with an older glibc than the one here.
//!
//! A linker takes the newest version of each symbol. So it gets empty libraries with only the old symbols that
//! this machine's libraries still provide. `old_glibc.c` contains what did not exist then, and `old_start.c` starts
//! programs as older versions expect it. The unwinder is linked in, because small containers have no libgcc_s.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of CentOS 7 and manylinux2014, for libraries that are loaded into programs of old containers. Rust's
/// own standard library supports nothing older.
pub const FOR_CONTAINERS: GlibcVersion = GlibcVersion(2, 17);
/// The version of RHEL 8, the oldest system that programs are packaged for.
pub const FOR_PROGRAMS: GlibcVersion = GlibcVersion(2, 28);

/// Major and minor version of the C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GlibcVersion(u32, u32);

/// What a build script's package leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Product {
    Library,
    Programs,
}

/// The result cannot be linked for old systems.
#[derive(Debug)]
enum LinkError {
    /// The target is not 64-bit x86 Linux with glibc.
    Target,
    /// A file cannot be written.
    Write(std::io::Error),
    /// A program cannot be started.
    Start {
        program: String,
        /// Why not.
        cause: std::io::Error,
    },
    /// A program failed.
    Failed {
        program: String,
        /// What it printed.
        message: String,
    },
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

/// Links the package's shared library for systems with this version. Where that is not possible, the build goes on
/// with a warning.
pub fn link_library(newest: GlibcVersion) {
    link(newest, Product::Library);
}

/// Links the package's programs for systems with this version. Where that is not possible, the build goes on with a
/// warning.
pub fn link_programs(newest: GlibcVersion) {
    link(newest, Product::Programs);
}

fn link(newest: GlibcVersion, product: Product) {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    match arguments(newest, product, &out) {
        Ok(arguments) => {
            let key = match product {
                Product::Library => "rustc-cdylib-link-arg",
                Product::Programs => "rustc-link-arg-bins",
            };
            for argument in arguments {
                println!("cargo:{key}={argument}");
            }
        }
        Err(why) => {
            println!("cargo:warning=the result needs this machine's glibc or a newer one: {why}");
        }
    }
}

/// Makes the empty libraries, and returns what the linker gets.
fn arguments(newest: GlibcVersion, product: Product, out: &Path) -> Result<Vec<String>, LinkError> {
    let requested = ("x86_64", "linux", "gnu");
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    let target =
        (var("CARGO_CFG_TARGET_ARCH"), var("CARGO_CFG_TARGET_OS"), var("CARGO_CFG_TARGET_ENV"));
    if (target.0.as_str(), target.1.as_str(), target.2.as_str()) != requested {
        return Err(LinkError::Target);
    }
    let libraries = out.join("old-glibc");
    fs::create_dir_all(&libraries).map_err(LinkError::Write)?;
    stand_in("libc.so.6", newest, &libraries)?;
    stand_in("libm.so.6", newest, &libraries)?;
    // Threads and dlopen were separate libraries: where they are, they have to be loaded.
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

    let mut arguments = vec![
        format!("-L{}", libraries.display()),
        compile("old_glibc", include_str!("old_glibc.c"), out)?,
        "-Wl,--no-as-needed".to_owned(),
        libraries.join("libpthread.so.0").display().to_string(),
        libraries.join("libdl.so.2").display().to_string(),
        "-Wl,--as-needed".to_owned(),
        // A missing symbol must fail here and not in a container.
        "-Wl,-z,defs".to_owned(),
    ];
    if product == Product::Programs {
        arguments.push(compile("old_start", include_str!("old_start.c"), out)?);
        arguments.push("-Wl,--wrap=__libc_start_main".to_owned());
    }
    Ok(arguments)
}

/// Compiles a source, and returns where the object is.
fn compile(name: &str, source: &str, out: &Path) -> Result<String, LinkError> {
    let (object, file) = (out.join(format!("{name}.o")), out.join(format!("{name}.c")));
    fs::write(&file, source).map_err(LinkError::Write)?;
    let flags = ["-c", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-stack-protector", "-o"];
    run(Command::new(compiler()).args(flags).arg(&object).arg(file))?;
    Ok(object.display().to_string())
}

/// Makes an empty library with the old symbols of this machine's `soname`.
fn stand_in(soname: &str, newest: GlibcVersion, folder: &Path) -> Result<(), LinkError> {
    let real = find(soname)?;
    let listing = run(Command::new("readelf").args(["--dyn-syms", "-W"]).arg(&real))?;
    let mut kept: BTreeMap<&str, ((u32, u32, u32), &str)> = BTreeMap::new();
    for line in listing.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, kind, "GLOBAL" | "WEAK", "DEFAULT", section, name, ..] = fields[..] else {
            continue;
        };
        let Some((name, version)) = name.split_once('@') else { continue };
        let Some(number) = number(version.trim_start_matches('@')) else { continue };
        if section == "UND" || GlibcVersion(number.0, number.1) > newest {
            continue;
        }
        let old = kept.entry(name).or_insert((number, kind));
        *old = (*old).max((number, kind));
    }
    let mut versions = Versions::new();
    for (name, (version, kind)) in kept {
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
