//! The walls: which crate may use which, and where the names of big libraries may stand.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Every arrow that there may be, as `docs/architecture.md` draws them; tests may use more.
const ARROWS: &[(&str, &[&str])] = &[
    ("tessera-model", &[]),
    ("tessera-placement", &["tessera-model"]),
    ("tessera-predict", &["tessera-model"]),
    ("tessera-kernel-queue", &["tessera-model"]),
    ("tessera-wire", &["tessera-model", "tessera-kernel-queue"]),
    ("tessera-telemetry", &[]),
    (
        "tessera-sim",
        &["tessera-model", "tessera-placement", "tessera-predict", "tessera-kernel-queue"],
    ),
    ("tessera-sim-nvml", &["tessera-model", "tessera-sim"]),
    ("tessera-sim-cuda", &["tessera-sim"]),
    ("tessera-api", &["tessera-model", "tessera-placement", "tessera-sim"]),
    (
        "tessera-controller",
        &[
            "tessera-model",
            "tessera-placement",
            "tessera-predict",
            "tessera-kernel-queue",
            "tessera-wire",
            "tessera-telemetry",
            "tessera-api",
        ],
    ),
    (
        "tessera-agent",
        &["tessera-model", "tessera-kernel-queue", "tessera-wire", "tessera-telemetry"],
    ),
    ("tessera-kernel-shim", &["tessera-kernel-queue", "tessera-wire"]),
    ("tessera-load-tests", &["*"]),
];

/// Crates that decide and do nothing else: they may not even know how to do input or output.
const PURE: [&str; 4] =
    ["tessera-model", "tessera-placement", "tessera-predict", "tessera-kernel-queue"];

/// What would bring clocks, sockets, threads or chance into a pure crate.
const IMPURE: [&str; 12] = [
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
fn no_arrow_between_crates_runs_the_wrong_way() {
    let allowed: BTreeMap<_, _> = ARROWS.iter().copied().collect();
    for (package, dependencies) in dependencies() {
        let Some(allowed) = allowed.get(package.as_str()) else {
            panic!("{package} is new: say in ARROWS and docs/architecture.md what it may use");
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
fn brains_have_no_hands() {
    let dependencies = dependencies();
    for package in PURE {
        for impure in IMPURE {
            assert!(
                !dependencies[package].contains(impure),
                "{package} is pure and must not use {impure}"
            );
        }
    }
    for crate_folder in
        ["crates/model", "crates/placement", "crates/predict", "crates/kernel-queue"]
    {
        for (path, text) in sources(crate_folder) {
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
fn actix_stays_in_actors_and_at_the_front_door() {
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
fn every_sql_statement_stands_in_the_store() {
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
fn bincode_stands_in_one_file() {
    for folder in ["controller", "gpu-agent", "crates", "api"] {
        for (path, text) in sources(folder) {
            if path == "crates/wire/src/codec.rs" {
                continue;
            }
            for (line, code) in code(&text) {
                assert!(!names(code, "bincode"), "{path}:{line} names bincode: {code}");
            }
        }
    }
}

#[test]
fn only_the_simulator_knows_that_a_gpu_may_be_unreal() {
    for folder in [
        "controller",
        "gpu-agent",
        "crates/model",
        "crates/placement",
        "crates/predict",
        "crates/kernel-queue",
        "crates/wire",
    ] {
        for (path, text) in sources(folder) {
            let product = text.split("#[cfg(test)]").next().unwrap_or_default();
            for (line, code) in code(product) {
                assert!(
                    !names(code, "tessera_sim"),
                    "{path}:{line} knows of the simulator: {code}"
                );
            }
        }
    }
}

/// Every source file below `folder` that is part of a product, by its path in the repository.
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

/// Tells whether the code has this identifier, not just as a part of another or in a string.
fn names(code: &str, identifier: &str) -> bool {
    let outside_strings: String = code.split('"').step_by(2).collect();
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    outside_strings.match_indices(identifier).any(|(at, _)| {
        let before = outside_strings[..at].chars().next_back();
        let after = outside_strings[at + identifier.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}
