//! Checks which crate may use which, which folders may import each other, and where the names of
//! large libraries may appear.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, NodeDep};

/// Every permitted arrow, as `docs/architecture.md` draws them; tests may use more.
const ARROWS: &[(&str, &[&str])] = &[
    ("tessera-model", &[]),
    ("tessera-placement", &["tessera-model"]),
    ("tessera-predict", &["tessera-model"]),
    ("tessera-kernel-queue", &["tessera-model"]),
    ("tessera-old-glibc", &[]),
    ("tessera-frames", &["tessera-model", "tessera-kernel-queue"]),
    ("tessera-wire", &["tessera-model", "tessera-frames"]),
    ("tessera-telemetry", &[]),
    ("tessera-stand-in", &["tessera-model"]),
    ("tessera-stand-in-nvml", &["tessera-model", "tessera-stand-in"]),
    ("tessera-stand-in-cuda", &["tessera-stand-in"]),
    ("tessera-lab-learners", &["tessera-predict"]),
    ("tessera-lab-policies", &["tessera-model", "tessera-placement", "tessera-predict"]),
    (
        "tessera-simulator",
        &[
            "tessera-model",
            "tessera-placement",
            "tessera-predict",
            "tessera-kernel-queue",
            "tessera-lab-learners",
            "tessera-lab-policies",
        ],
    ),
    ("tessera-api-types", &["tessera-model"]),
    ("tessera-client", &["tessera-api-types", "tessera-model"]),
    (
        "tessera-cli",
        &[
            "tessera-api-types",
            "tessera-client",
            "tessera-model",
            "tessera-lab-policies",
            "tessera-placement",
            "tessera-predict",
            "tessera-simulator",
        ],
    ),
    (
        "tessera-control",
        &[
            "tessera-model",
            "tessera-placement",
            "tessera-predict",
            "tessera-frames",
            "tessera-api-types",
        ],
    ),
    (
        "tessera-controller",
        &[
            "tessera-control",
            "tessera-model",
            "tessera-placement",
            "tessera-predict",
            "tessera-kernel-queue",
            "tessera-frames",
            "tessera-wire",
            "tessera-telemetry",
            "tessera-api-types",
        ],
    ),
    ("tessera-agent-core", &["tessera-model", "tessera-kernel-queue", "tessera-frames"]),
    (
        "tessera-agent",
        &[
            "tessera-agent-core",
            "tessera-model",
            "tessera-kernel-queue",
            "tessera-frames",
            "tessera-launch",
            "tessera-wire",
            "tessera-telemetry",
        ],
    ),
    ("tessera-launch", &[]),
    (
        "tessera-kernel-shim",
        &["tessera-model", "tessera-kernel-queue", "tessera-frames", "tessera-wire"],
    ),
    ("tessera-load-tests", &["*"]),
    ("tessera-load-drivers", &["*"]),
    ("tessera-tidy", &[]),
    ("tessera-features", &[]),
];

/// Crates that only decide: they must not contain input or output.
const PURE: [&str; 8] = [
    "tessera-control",
    "tessera-frames",
    "tessera-model",
    "tessera-placement",
    "tessera-predict",
    "tessera-kernel-queue",
    "tessera-api-types",
    "tessera-agent-core",
];

/// Crates of `lab/`: stand-ins for hardware, simulators, and what only experiments use.
const LABORATORY: [&str; 4] =
    ["tessera-stand-in", "tessera-simulator", "tessera-lab-policies", "tessera-lab-learners"];

/// The programs and libraries that run in production.
const PRODUCTION: [&str; 4] =
    ["tessera-controller", "tessera-agent", "tessera-kernel-shim", "tessera-control"];

/// Libraries that only the laboratory uses.
const LABORATORY_LIBRARIES: [&str; 4] = ["clarabel", "csv", "maud", "plotters"];

/// The crates that decide for the controller and for the agent.
const CORES: [&str; 2] = ["tessera-control", "tessera-agent-core"];

/// Runtimes, transports and clients: a core must not link them, over any number of crates.
const RUNTIMES: [&str; 9] = [
    "actix",
    "actix-http",
    "actix-rt",
    "actix-web",
    "quinn",
    "reqwest",
    "sqlx",
    "sqlx-core",
    "tokio",
];

/// Crates that would bring clocks, sockets, threads or randomness into a pure crate.
const IMPURE: [&str; 14] = [
    "actix",
    "actix-rt",
    "actix-web",
    "tokio",
    "quinn",
    "sqlx",
    "reqwest",
    "rand",
    "tracing",
    "libc",
    "rustix",
    "tempfile",
    "nvml-wrapper",
    "nvml-wrapper-sys",
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let manifest = workspace().join("Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec().unwrap();
    let of = |package: &cargo_metadata::Package| {
        let normal = package.dependencies.iter().filter(|dep| dep.kind == DependencyKind::Normal);
        normal.map(|dep| dep.name.clone()).collect()
    };
    metadata.packages.iter().map(|package| (package.name.to_string(), of(package))).collect()
}

#[test]
fn crates_depend_only_on_the_crates_that_the_architecture_allows() {
    let allowed: BTreeMap<_, _> = ARROWS.iter().copied().collect();
    for (package, dependencies) in dependencies() {
        let Some(allowed) = allowed.get(package.as_str()) else {
            panic!("{package} is new: write in ARROWS and docs/architecture.md what it may use");
        };
        if allowed == &["*"] {
            continue;
        }
        for dependency in dependencies.iter().filter(|name| name.starts_with("tessera-")) {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{package} must not use {dependency}: {allowed:?} is what it may use"
            );
        }
    }
}

#[test]
fn pure_crates_have_no_clock_randomness_or_io() {
    let dependencies = dependencies();
    for package in PURE {
        for impure in IMPURE {
            assert!(
                !dependencies[package].contains(impure),
                "{package} is pure and must not use {impure}"
            );
        }
    }
    // The control core declares its simulation under cfg(test): it reads how many seeds to try.
    let core = fs::read_to_string(workspace().join("controller/core/src/lib.rs")).unwrap();
    assert!(core.contains("#[cfg(test)]\nmod simulation;"));
    for crate_folder in [
        "controller/core",
        "crates/model",
        "crates/placement",
        "crates/predict",
        "crates/kernel-queue",
        "crates/frames",
        "api/types",
        "gpu-agent/core",
    ] {
        for (path, text) in sources(crate_folder) {
            if path.starts_with("controller/core/src/simulation") {
                continue;
            }
            for word in
                ["SystemTime", "Instant::now", "std::fs", "std::net", "std::env", "async fn"]
            {
                let here = code(&text).find(|(_, line)| line.contains(word));
                assert!(here.is_none(), "{path}:{} names {word}", here.unwrap().0);
            }
        }
    }
}

#[test]
fn actix_is_named_only_in_actors_and_http_modules() {
    for folder in ["controller", "gpu-agent", "crates", "api"] {
        for (path, text) in sources(folder) {
            let actors = path.contains("/actors/") || path.ends_with("/actors.rs");
            let door = path.ends_with("/main.rs");
            let web = path.starts_with("controller/src/http") || path == "gpu-agent/src/http.rs";
            for (line, code) in code(&text) {
                let plain = names(code, "actix") || names(code, "actix_rt");
                let http = names(code, "actix_web") || names(code, "actix_http");
                assert!(!plain || actors || door, "{path}:{line} names actix: {code}");
                assert!(!http || web || door, "{path}:{line} names actix-web: {code}");
            }
        }
    }
}

#[test]
fn sql_is_named_only_in_the_store() {
    for folder in ["controller", "gpu-agent", "crates", "api"] {
        for (path, text) in sources(folder) {
            if path.starts_with("controller/src/store") {
                continue;
            }
            for (line, code) in code(&text) {
                assert!(!names(code, "sqlx"), "{path}:{line} names sqlx: {code}");
            }
        }
    }
}

#[test]
fn bincode_is_named_in_one_file() {
    for folder in ["controller", "gpu-agent", "crates", "api"] {
        for (path, text) in sources(folder) {
            if path == "crates/frames/src/codec.rs" {
                continue;
            }
            for (line, code) in code(&text) {
                assert!(!names(code, "bincode"), "{path}:{line} names bincode: {code}");
            }
        }
    }
}

/// Returns a source without the items that exist in tests only; what remains keeps its line numbers.
fn product(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    // The indent of an item that is left out, and whether its body has begun.
    let mut left_out: Option<(usize, bool)> = None;
    for line in source.lines() {
        let indent = line.len() - line.trim_start().len();
        let text = line.trim();
        match left_out {
            None if text == "#[cfg(test)]" => left_out = Some((indent, false)),
            None => out.push_str(line),
            Some((_, false)) if text.starts_with("#[") => {}
            Some((outer, false)) => {
                let is_whole = text.ends_with(';') || text.ends_with("{}");
                left_out = (!is_whole).then_some((outer, true));
            }
            Some((outer, true)) => {
                let ends = indent == outer && (text.starts_with('}') || text.ends_with(';'));
                left_out = (!ends).then_some((outer, true));
            }
        }
        out.push('\n');
    }
    out
}

#[test]
fn items_of_tests_are_skipped_and_later_items_are_read() {
    let source = "a\n#[cfg(test)]\nmod tests;\nb\n#[cfg(test)]\nmod inner {\n    x\n}\nc\n";

    assert_eq!(product(source), "a\n\n\nb\n\n\n\n\nc\n");
}

#[test]
fn only_the_laboratory_knows_that_a_gpu_may_be_simulated() {
    for folder in [
        "controller",
        "gpu-agent",
        "crates/model",
        "crates/placement",
        "crates/predict",
        "crates/kernel-queue",
        "crates/frames",
        "crates/wire",
    ] {
        for (path, text) in sources(folder) {
            for (line, code) in code(&product(&text)) {
                for laboratory in LABORATORY {
                    assert!(
                        !names(code, &laboratory.replace('-', "_")),
                        "{path}:{line} names {laboratory}, a crate of lab/: {code}"
                    );
                }
            }
        }
    }
}

#[test]
fn no_production_crate_links_anything_of_the_laboratory() {
    let links = Links::read();
    for production in PRODUCTION {
        for path in links.paths_from(production) {
            let name = path.last().unwrap().as_str();
            let is_laboratory = LABORATORY.contains(&name) || LABORATORY_LIBRARIES.contains(&name);
            assert!(!is_laboratory, "{}: production must not link lab/", path.join(" -> "));
        }
    }
}

#[test]
fn no_core_links_a_runtime_a_transport_or_a_client() {
    let links = Links::read();
    for core in CORES {
        for path in links.paths_from(core) {
            let is_runtime = RUNTIMES.contains(&path.last().unwrap().as_str());
            assert!(!is_runtime, "{}: a core is pure, over all its crates", path.join(" -> "));
        }
    }
    let of_controller = links.paths_from("tessera-controller");
    for runtime in RUNTIMES.iter().filter(|name| **name != "reqwest") {
        let is_found = of_controller.iter().any(|path| path.last().unwrap() == runtime);
        assert!(is_found, "nothing links {runtime}: was it renamed?");
    }
}

/// Which crate links which. Normal dependencies only: what tests use is not linked into a program.
struct Links {
    metadata: Metadata,
}

impl Links {
    fn read() -> Self {
        let manifest = workspace().join("Cargo.toml");
        Self { metadata: MetadataCommand::new().manifest_path(manifest).exec().unwrap() }
    }

    /// Returns for each crate that `package` links, directly or not, one path to it.
    fn paths_from(&self, package: &str) -> Vec<Vec<String>> {
        let packages = &self.metadata.packages;
        let name_of: BTreeMap<_, _> =
            packages.iter().map(|package| (&package.id, package.name.to_string())).collect();
        let nodes = &self.metadata.resolve.as_ref().unwrap().nodes;
        let links_of: BTreeMap<_, Vec<_>> = nodes
            .iter()
            .map(|node| {
                let is_normal =
                    |dep: &&NodeDep| dep.dep_kinds.iter().any(|k| k.kind == DependencyKind::Normal);
                (&node.id, node.deps.iter().filter(is_normal).map(|dep| &dep.pkg).collect())
            })
            .collect();
        let root = packages.iter().find(|candidate| candidate.name == package);
        let root = root.unwrap_or_else(|| panic!("{package} is no package: was it renamed?"));
        let mut open = vec![(&root.id, vec![package.to_owned()])];
        let mut seen = BTreeSet::from([&root.id]);
        let mut paths = Vec::new();
        while let Some((package, path)) = open.pop() {
            for link in links_of[package].iter().filter(|link| seen.insert(link)) {
                let path = [path.clone(), vec![name_of[link].clone()]].concat();
                paths.push(path.clone());
                open.push((link, path));
            }
        }
        paths
    }
}

#[test]
fn folders_of_a_crate_do_not_import_each_other() {
    let rings = tessera_tidy::rings::find_rings(&workspace()).unwrap();

    let rings: Vec<String> = rings.iter().map(ToString::to_string).collect();
    assert!(rings.is_empty(), "{} rings of imports:\n{}", rings.len(), rings.join("\n"));
}

/// Third-party crates with their features, as a build of these kinds of dependencies selects them.
fn selected_features(edges: &str) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["tree", "--offline", "--workspace", "--prefix", "none", "--edges", edges];
    let tree =
        Command::new(cargo).args(arguments).args(["--format", "{p} with {f}"]).output().unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let lines = String::from_utf8(tree.stdout).unwrap();
    lines.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

#[test]
fn programs_and_tests_build_third_party_crates_with_the_same_features() {
    let programs = selected_features("normal,build");
    let tests = selected_features("normal,build,dev");

    let name = |line: &str| line.split(" with ").next().unwrap_or_default().to_owned();
    let of_programs: BTreeSet<String> = programs.iter().map(|line| name(line)).collect();
    let different: Vec<&String> = tests
        .symmetric_difference(&programs)
        .filter(|line| of_programs.contains(&name(line)))
        .collect();
    assert!(
        different.is_empty(),
        "tests change features: add what is missing to features/Cargo.toml: {different:#?}"
    );
}

/// The modules of the control core that hold the whole state and the whole round. They pass each
/// decision to the owners and the rows that it may change.
const HOLD_EVERYTHING: &[&str] = &["input.rs", "leader.rs", "load.rs", "placing.rs", "step.rs"];

#[test]
fn signatures_of_the_control_core_name_the_owners_that_they_may_change() {
    let mut wrong = Vec::new();
    for (path, text) in sources("controller/core/src") {
        let module = path.trim_start_matches("controller/core/src/");
        let is_test = module.starts_with("simulation") || module.contains("tests");
        if is_test || HOLD_EVERYTHING.contains(&module) {
            continue;
        }
        let text = product(&text);
        let mut of = "";
        for (number, line) in code(&text) {
            if line.starts_with("impl") {
                of = line;
            }
            let takes_itself = ["&mut self,", "&mut self)"].iter().any(|own| line.contains(own));
            let changes_itself = takes_itself && of.starts_with("impl ClusterState");
            let takes_all = ["&mut ClusterState", "&mut Round,", "&mut Round)"];
            if changes_itself || takes_all.iter().any(|all| line.contains(all)) {
                wrong.push(format!("{path}:{number}: {}", line.trim()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "these take everything: name the owners and the rows that they change, or use AttemptChanges or \
         GpuChanges:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn a_target_that_is_not_tested_has_no_tests() {
    let manifest = workspace().join("Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec().unwrap();
    let targets = metadata.packages.iter().flat_map(|package| &package.targets);
    let skipped: Vec<_> = targets.filter(|target| !target.test && target.is_bin()).collect();
    assert!(skipped.len() > 20, "the drivers are targets without tests");
    for target in skipped {
        let main = target.src_path.as_std_path();
        let modules = main.with_extension("");
        let modules = if modules.is_dir() { modules } else { main.to_owned() };
        for file in [main, &modules] {
            let text = read_all(file);
            assert!(!text.contains("#[test]"), "{}: cargo never runs its tests", file.display());
        }
    }
}

/// Returns the text of a file, or of all files below a folder.
fn read_all(path: &Path) -> String {
    if path.is_file() {
        return std::fs::read_to_string(path).unwrap();
    }
    let entries = std::fs::read_dir(path).unwrap();
    entries.map(|entry| read_all(&entry.unwrap().path())).collect()
}

#[test]
fn a_predictor_answers_at_most_four_questions() {
    let path = workspace().join("crates/placement/src/predictor.rs");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once("pub trait Predictor {").expect("the trait is in this file");
    let (body, _) = rest.split_once("\n}").unwrap();
    let methods: Vec<&str> =
        body.lines().filter(|line| line.trim_start().starts_with("fn ")).collect();
    assert!(
        (1..=4).contains(&methods.len()),
        "facts about jobs belong into JobFacts: {methods:#?}"
    );
}

/// Files in which a number out of range has a meaning other than its size; a comment next to each
/// states the reason.
const READ_NUMBERS_THEMSELVES: &[&str] = &[
    "crates/model/src/number.rs",
    // The launcher has no dependency but libc, since it may run as root.
    "gpu-agent/launch/src/client.rs",
    "gpu-agent/launch/src/devices.rs",
    "gpu-agent/launch/src/helper.rs",
    "gpu-agent/launch/src/order.rs",
    "gpu-agent/launch/src/socket.rs",
    // Programs of others give any number: one out of range has no process.
    "lab/stand-in/src/mps/numbers.rs",
];

#[test]
fn no_number_is_silently_replaced_by_another_one() {
    let mut wrong = Vec::new();
    for folder in ["api", "controller", "crates", "gpu-agent", "kernel-shim", "lab"] {
        for (path, text) in sources(folder) {
            let text = product(&text);
            let is_exempt = READ_NUMBERS_THEMSELVES.contains(&&*path) || path.contains("tests");
            for found in replaced_numbers(&text).filter(|_| !is_exempt) {
                wrong.push(format!("{path}: {found}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "return an error, or use clamped or index of tessera_model::number:\n{}",
        wrong.join("\n")
    );
}

/// The conversions between whole numbers that replace one that is out of range.
fn replaced_numbers(text: &str) -> impl Iterator<Item = String> {
    const TYPES: &[&str] = &["u8", "u16", "u32", "u64", "usize", "i8", "i16", "i32", "i64"];
    let dense: String = text.split_whitespace().collect();
    let calls: Vec<usize> = dense.match_indices("::try_from(").map(|(at, _)| at).collect();
    let found: Vec<String> = calls
        .into_iter()
        .filter(|at| TYPES.iter().any(|number| dense[..*at].ends_with(number)))
        .filter_map(|at| {
            let argument = at + "::try_from(".len();
            let mut open = 1;
            let end = dense[argument..].find(|c: char| {
                open += i32::from(c == '(') - i32::from(c == ')');
                open == 0
            })?;
            let rest = &dense[argument + end + 1..];
            rest.starts_with(".unwrap_or").then(|| dense[at..argument + end + 1].to_owned())
        })
        .collect();
    let into = dense.matches("try_into().unwrap_or").map(str::to_owned).collect::<Vec<_>>();
    found.into_iter().chain(into)
}

/// Reads every source file below `folder` that is part of a product, with its path.
fn sources(folder: &str) -> Vec<(String, String)> {
    let root = workspace();
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if !matches!(name.as_str(), "target" | "tests" | "benches" | "examples") {
                    folders.push(path);
                }
            } else if name.ends_with(".rs") {
                let shown = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
                found.push((shown, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has no sources: was it moved?");
    found
}

/// The lines of code, numbered, without comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.split("//").next().unwrap_or_default()))
        .filter(|(_, line)| !line.trim().is_empty())
}

/// Returns whether the code has this identifier as a whole, outside of strings.
fn names(code: &str, identifier: &str) -> bool {
    let outside_strings: String = code.split('"').step_by(2).collect();
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    outside_strings.match_indices(identifier).any(|(at, _)| {
        let before = outside_strings[..at].chars().next_back();
        let after = outside_strings[at + identifier.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}
