//! What the tests run: the shim as it was built, drivers and programs compiled from `tests/c`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{LazyLock, Mutex};

/// A row of the table of the driver's functions.
pub struct Symbol {
    pub name: String,
    pub version: i32,
    pub twin: String,
    pub symbol: String,
    pub hook: bool,
}

pub fn symbols() -> Vec<Symbol> {
    let text = include_str!("../../data/driver-symbols.tsv");
    let row = |line: &str| {
        let [name, version, twin, symbol, class] =
            line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        Symbol {
            name: name.to_owned(),
            version: version.parse().unwrap(),
            twin: twin.to_owned(),
            symbol: symbol.to_owned(),
            hook: class == "hook",
        }
    };
    text.lines().filter(|line| !line.starts_with('#')).map(row).collect()
}

/// The newest version whose functions have rows.
pub const NEWEST: i32 = 13_050;

/// Where everything that is compiled for the tests lies, removed when they end.
static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

pub fn folder() -> &'static Path {
    // Statics are never dropped: the folder goes with the target folder's own temporary files.
    FOLDER.path()
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c")
}

pub fn list(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("data/requests/cudart-{version}.csv"))
}

/// The shim under its name, in its own folder, as it is installed.
pub fn shim() -> &'static Path {
    static SHIM: LazyLock<PathBuf> = LazyLock::new(|| {
        let test = std::env::current_exe().unwrap();
        let built = test.parent().unwrap().join("libtessera_kernel_shim.so");
        let folder = folder().join("kernel-shim");
        fs::create_dir(&folder).unwrap();
        let shim = folder.join("libcuda.so.1");
        fs::copy(&built, &shim).unwrap_or_else(|why| panic!("{}: {why}", built.display()));
        std::os::unix::fs::symlink("libcuda.so.1", folder.join("libcuda.so")).unwrap();
        shim
    });
    &SHIM
}

/// A driver of some version, in its own folder.
pub fn driver(version: i32) -> PathBuf {
    static MADE: Mutex<BTreeMap<i32, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap();
    made.entry(version).or_insert_with(|| compile_driver(version)).clone()
}

fn compile_driver(version: i32) -> PathBuf {
    let text = fs::read_to_string(sources().join("driver.c")).unwrap();
    let mut table = String::new();
    for (at, row) in symbols().iter().filter(|row| row.version <= version).enumerate() {
        let own = text.contains(&format!("CALLED({})", row.symbol));
        let kind = if own { "OWN" } else { "ROW" };
        let Symbol { name, version, twin, symbol, .. } = row;
        writeln!(table, "{kind}({at}, {name}, {version}, \"{twin}\", {symbol})").unwrap();
    }
    let folder = folder().join(format!("driver-{version}"));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("table.h"), table).unwrap();
    let driver = folder.join("libcuda.so.1");
    compile(&[
        "-shared",
        "-fPIC",
        "-w",
        // As with the real one, its calls to itself stay within it, whatever is preloaded.
        "-Wl,-Bsymbolic",
        "-Wl,-soname,libcuda.so.1",
        &format!("-DVERSION={version}"),
        &format!("-DTABLE=\"{}\"", folder.join("table.h").display()),
        sources().join("driver.c").to_str().unwrap(),
        "-o",
        driver.to_str().unwrap(),
    ]);
    std::os::unix::fs::symlink("libcuda.so.1", folder.join("libcuda.so")).unwrap();
    driver
}

/// A program or plug-in of `tests/c`, with more arguments for the compiler.
pub fn program(output: &str, files: &[&str], more: &[&str]) -> PathBuf {
    static MADE: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap();
    let make = || {
        let path = folder().join(output);
        let mut arguments = vec!["-O1".to_owned(), "-w".to_owned(), "-pthread".to_owned()];
        arguments.extend(files.iter().map(|file| sources().join(file).display().to_string()));
        arguments.extend(more.iter().map(|more| (*more).to_owned()));
        arguments.extend(["-ldl".to_owned(), "-o".to_owned(), path.display().to_string()]);
        compile(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        path
    };
    made.entry(output.to_owned()).or_insert_with(make).clone()
}

fn compile(arguments: &[&str]) {
    let output = Command::new("cc").args(arguments).output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the command that runs a program with a job's variables, without a shim and without a queue.
pub fn in_job(program: &Path) -> Command {
    // A program that hangs is an answer as well.
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=5", "60"])
        .arg(program)
        .env_remove("LD_LIBRARY_PATH")
        .env("TESSERA_KERNEL_ENDPOINT", "127.0.0.1:9")
        .env("TESSERA_KERNEL_TOKEN", "17".repeat(32))
        .env("TESSERA_KERNEL_CERT", "2a".repeat(32));
    command
}

/// Returns what a program wrote, if it ended well.
pub fn text(output: &Output) -> String {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    assert_eq!(err, "", "nothing is written to a program's error output");
    out.into_owned()
}
