//! The companion in real programs under a real agent, on a stand-in of PyTorch.

use crate::common::{LogRead, WholeGpuStage, order};
use tessera_frames::cluster::{ExitRecord, LaunchOrder, LogStream, ToController};
use tessera_model::life::{Outcome, ProgramExit};

/// Orders a program of Python that finds the stand-in by its own `PYTHONPATH`.
fn program(stage: &WholeGpuStage, text: &str) -> LaunchOrder {
    let stand_in = concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/stand-in/python");
    let mut order = order(&stage.place, &["/usr/bin/env", "python3", "-c", text]);
    order.run.env.insert("PYTHONPATH".to_owned(), stand_in.to_owned());
    order.run.env.insert("TORCH_STAND_IN_MIB".to_owned(), "1024".to_owned());
    order
}

async fn written(stage: &WholeGpuStage, order: &LaunchOrder) -> String {
    match stage.session.read_log(order.attempt, LogStream::Stdout, true).await {
        LogRead::Text(text, _) => text,
        LogRead::Unknown(reason) => panic!("{reason}"),
    }
}

async fn run(stage: &mut WholeGpuStage, text: &str) -> ExitRecord {
    let order = program(stage, text);
    stage.session.run(&order).await
}

const GROWS_AND_IS_REFUSED: &str = "
import torch
kept = [torch.empty(64 << 20) for _ in range(4)]
torch.optim.SGD().step()
";

#[tokio::test]
async fn a_refused_program_that_writes_nothing_ran_out_of_memory() {
    let mut stage = WholeGpuStage::start().await;
    let silent = format!(
        "{GROWS_AND_IS_REFUSED}\nimport os\ntry:\n    torch.empty(8 << 30)\nexcept RuntimeError:\n    os._exit(1)"
    );

    let record = run(&mut stage, &silent).await;

    assert_eq!(record.outcome, Outcome::OutOfMemory, "{record:?}");
    assert!(record.detail.contains("its allocator was refused"), "{record:?}");
}

#[tokio::test]
async fn a_refused_program_whose_errors_go_to_tee_ran_out_of_memory() {
    let mut stage = WholeGpuStage::start().await;
    let python = format!("{GROWS_AND_IS_REFUSED}\ntorch.empty(8 << 30)");
    let mut order = program(&stage, &python);
    let line = "python3 -c \"$PROGRAM\" 2>&1 | tee /dev/null; exit 1";
    order.run.env.insert("PROGRAM".to_owned(), python);
    order.run.program =
        tessera_model::spec::JobProgram::Command(vec!["/bin/sh".into(), "-c".into(), line.into()]);

    let record = stage.session.run(&order).await;

    assert_eq!(record.outcome, Outcome::OutOfMemory, "{record:?}");
    assert!(record.detail.contains("torch.OutOfMemoryError"), "{record:?}");
}

#[tokio::test]
async fn a_refusal_that_the_program_survived_is_none() {
    let mut stage = WholeGpuStage::start().await;
    let survives = format!(
        "{GROWS_AND_IS_REFUSED}
try:
    torch.empty(8 << 30)
except RuntimeError as error:
    print(error, flush=True)
import time
for step in range(12):
    torch.optim.SGD().step()
    time.sleep(0.05)
raise ValueError('the labels are wrong')"
    );

    let record = run(&mut stage, &survives).await;

    assert_eq!((record.outcome, record.exit), (Outcome::Failed, Some(ProgramExit::Code(1))));
}

#[tokio::test]
async fn the_companion_calls_nothing_that_it_must_not_and_chains_to_the_users() {
    let mut stage = WholeGpuStage::start().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("sitecustomize.py"), "import sys\nsys.chained = True\n")
        .unwrap();
    let mut order = program(
        &stage,
        "import sys, torch, time
first = torch.cuda.is_initialized()
kept = torch.empty(1 << 20)
for _ in range(3):
    torch.optim.SGD().step()
    time.sleep(0.12)
print(first, torch.calls, sys.chained, 'jax' in sys.modules)",
    );
    let own = order.run.env["PYTHONPATH"].clone();
    order.run.env.insert("PYTHONPATH".to_owned(), format!("{own}:{}", folder.path().display()));

    let record = stage.session.run(&order).await;

    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}");
    assert_eq!(written(&stage, &order).await, "False [] True False\n");
}

#[tokio::test]
async fn the_peak_of_what_a_program_reserved_is_the_attempts() {
    let mut stage = WholeGpuStage::start().await;
    let order = program(&stage, &format!("{GROWS_AND_IS_REFUSED}\nkept.clear()"));
    let record = stage.session.run(&order).await;
    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}");

    let usage = stage
        .session
        .until(|frame| match frame {
            ToController::Usage(usage) if usage.attempt == order.attempt => Some(*usage),
            _ => None,
        })
        .await;

    assert_eq!(usage.peak_memory.map(|peak| peak.get()), Some(256 << 20));
}

#[tokio::test]
async fn a_job_can_switch_the_companion_off() {
    let mut stage = WholeGpuStage::start().await;
    let mut order = program(&stage, "import os; print('TESSERA_MEMORY_PIPE' in os.environ)");
    order.run.env.insert("TESSERA_COMPANION".to_owned(), "off".to_owned());

    let record = stage.session.run(&order).await;

    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}");
    assert_eq!(written(&stage, &order).await, "False\n");
}

/// Fails if a file is not Python of an old version, or imports more than it may.
const CHECK: &str = "
import ast, sys
tree = ast.parse(open(sys.argv[1]).read(), feature_version=(3, 8))
names = set()
for node in ast.walk(tree):
    if isinstance(node, ast.Import):
        names.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        names.add(node.module)
print(*sorted(names))
";

#[test]
fn the_companion_has_the_grammar_of_python_3_8_and_imports_the_standard_library_only() {
    let companion = concat!(env!("CARGO_MANIFEST_DIR"), "/companion/sitecustomize.py");

    let checked = std::process::Command::new("python3").args(["-c", CHECK, companion]).output();

    let checked = checked.unwrap();
    let errors = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{errors}");
    let imported = String::from_utf8_lossy(&checked.stdout);
    assert_eq!(imported.trim(), "importlib.util os sys threading time");
}
