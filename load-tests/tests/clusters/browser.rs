//! JupyterLab in a job, through `tessera forward`, in a real browser (`load-tests/clients/with_jupyter.py`).

use std::path::{Path, PathBuf};
use std::process::Command;

use tessera_load_tests::cluster::Plan;
use tessera_load_tests::programs::programs;

/// Returns a Python with JupyterLab: the one that `TESSERA_JUPYTER_PYTHON` names, or one that is installed into `folder`.
fn python(folder: &Path) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("TESSERA_JUPYTER_PYTHON") {
        return Some(named.into());
    }
    let ran = |program: &Path, words: &[&str]| {
        Command::new(program).args(words).status().is_ok_and(|status| status.success())
    };
    let own = folder.join("bin/python");
    let is_made = ran("python3".as_ref(), &["-m", "venv", &folder.display().to_string()])
        && ran(&own, &["-m", "pip", "install", "--quiet", "jupyterlab"]);
    is_made.then_some(own)
}

#[test]
fn a_notebook_of_a_job_works_in_a_browser() {
    let has_browser = Command::new("chromium").arg("--version").output().is_ok();
    if !has_browser {
        eprintln!("SKIPPED: there is no chromium (Debian: apt-get install chromium)");
        return;
    }
    let cluster = Plan::new().node("n1", "a30-24gb").start();
    let folder = cluster.scratch().join("jupyter");
    let Some(python) = python(&folder.join("python")) else {
        eprintln!("SKIPPED: JupyterLab can't be installed from PyPI");
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/with_jupyter.py");
    let programs = programs().path("tessera");
    let path = std::env::var("PATH").unwrap_or_default();

    let ran = Command::new(python)
        .arg(script)
        .arg(folder.join("work"))
        .env("PATH", format!("{}:{path}", programs.parent().unwrap().display()))
        .env("TESSERA_URL", cluster.url())
        .env("TESSERA_TOKEN", cluster.token())
        .output()
        .unwrap();

    let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{printed}\n{}", String::from_utf8_lossy(&ran.stderr));
    assert!(printed.contains("the browser shows: cell 42"), "{printed}");
    assert!(folder.join("work/notebook.png").exists());
}
