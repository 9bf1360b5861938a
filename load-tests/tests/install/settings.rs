//! The settings files of the packages: they contain every key, commented out, and each line is
//! valid when its comment is removed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use tessera_load_tests::programs::programs;

use super::tools::{read, run, text};

/// Returns the keys that a daemon accepts, as its error for an unknown one lists them.
fn accepted_keys(program: &str) -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.toml");
    fs::write(&file, "no_such_key = 1\n").unwrap();
    let mut command = Command::new(programs().path(program));
    let done = command.args(["--check", "--config"]).arg(&file).output().unwrap();
    let error = text(&done);
    let (_, listed) = error.split_once("expected one of").unwrap_or_else(|| panic!("{error}"));
    listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns a settings file with each commented line uncommented, where a key may occur once.
fn all_lines(file: &str) -> String {
    let mut seen = BTreeSet::new();
    let mut table = String::new();
    let mut lines = Vec::new();
    for line in file.lines() {
        let line = match line.strip_prefix('#') {
            Some(rest) if !rest.is_empty() && !rest.starts_with(' ') => rest,
            Some(_) => continue,
            None => line,
        };
        if line.starts_with('[') {
            line.clone_into(&mut table);
        }
        let key = line.split('=').next().unwrap_or_default().trim();
        if line.is_empty() || seen.insert(format!("{table}/{key}")) {
            lines.push(line.to_owned());
        }
    }
    lines.join("\n")
}

/// Returns the keys and tables at the top of a settings file.
fn keys(lines: &str) -> BTreeSet<String> {
    let document: toml::Table = lines.parse().unwrap();
    document.keys().cloned().collect()
}

#[test]
fn the_controllers_file_has_every_key_and_each_line_is_valid() {
    let file = read("packaging/etc/controller.toml");
    let lines = all_lines(&file);

    assert_eq!(keys(&lines), accepted_keys("tessera-controller"));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("controller.toml");
    for (what, text) in [("as it is", &file), ("with every line uncommented", &lines)] {
        fs::write(&path, text).unwrap();
        let mut command = Command::new(programs().path("tessera-controller"));
        let shown = run(command.args(["--check", "--config"]).arg(&path));
        assert!(shown.contains("data = \"/var/lib/tessera\""), "{what}: {shown}");
    }
}

#[test]
fn the_commented_lines_of_the_controllers_file_are_its_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let shown = |text: &str| -> toml::Table {
        let path = folder.path().join("controller.toml");
        fs::write(&path, text).unwrap();
        let mut command = Command::new(programs().path("tessera-controller"));
        run(command.args(["--check", "--config"]).arg(&path)).parse().unwrap()
    };
    let file = read("packaging/etc/controller.toml");
    let (mut defaults, mut written) = (shown(&file), shown(&all_lines(&file)));
    // These have no default, so the file has examples.
    let examples = [
        "accounts",
        "oidc",
        "quotas",
        "tls-cert",
        "tls-key",
        "partitions",
        "qos",
        "features",
        "mail",
        "webhook",
        "power-cap",
    ];
    for example in examples {
        defaults.remove(example);
        written.remove(example);
    }

    assert_eq!(written, defaults);
}

#[test]
fn the_agents_file_has_every_key_and_each_line_is_valid() {
    let file = read("packaging/etc/agent.toml");
    let lines = all_lines(&file);

    assert_eq!(keys(&lines), accepted_keys("tessera-agent"));

    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    make_identity(folder.path(), &data.join("identity"));
    // The files of an installed package are elsewhere here.
    let shim = folder.path().join("libcuda.so.1");
    fs::write(&shim, "").unwrap();
    let here = lines
        .replace("/var/lib/tessera-agent", &data.display().to_string())
        .replace("/usr/lib/tessera/kernel-shim/libcuda.so.1", &shim.display().to_string())
        .replace(
            "/usr/lib/tessera/tessera-shepherd",
            &programs().path("tessera-shepherd").display().to_string(),
        )
        .replace(
            "/usr/lib/tessera/tessera-launch",
            &programs().path("tessera-launch").display().to_string(),
        );
    let path = folder.path().join("agent.toml");
    fs::write(&path, here).unwrap();
    let mut command = Command::new(programs().path("tessera-agent"));
    let shown = run(command.args(["--check", "--config"]).arg(&path));
    assert!(shown.contains("# node node-a"), "{shown}");
}

fn make_identity(folder: &Path, out: &Path) {
    let controller = programs().path("tessera-controller");
    let data = folder.join("controller");
    run(Command::new(&controller).args(["init", "--data"]).arg(&data));
    let mut command = Command::new(&controller);
    run(command.args(["node-cert", "node-a", "--data"]).arg(&data).arg("--out").arg(out));
}
