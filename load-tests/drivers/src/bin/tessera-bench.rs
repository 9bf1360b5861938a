//! Repeats recorded benchmarks and prints what is more than 10 % worse than the record.
//!
//! ```text
//! ./x bench submit-rate latency
//! ```
//!
//! With `--against FOLDER` it runs the programs of another build (`target/release` of another commit) in turn
//! with its own, and compares the medians of both. So both commits are measured on the same machine
//! and load.
//!
//! A record of another machine compares only roughly: the program prints both machines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::{Value, json};
use tessera_load_tests::machine;
use tessera_load_tests::programs::programs;
use tessera_load_tests::records::{BENCHMARKS, Benchmark, Comparison, compare, compare_medians};

#[derive(Debug, Parser)]
struct Options {
    /// Benchmarks to run; all of them if none is named.
    names: Vec<String>,
    /// Python that has the package hyperqueue, for the comparison with it.
    #[arg(long, env = "TESSERA_HYPERQUEUE_PYTHON")]
    hyperqueue_python: Option<PathBuf>,
    /// Folder for the results of this run.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
    /// Folder with the programs of another build, to compare with instead of the record.
    #[arg(long, value_name = "FOLDER")]
    against: Option<PathBuf>,
    /// With --against: how often each build runs.
    #[arg(long, default_value_t = 3, requires = "against")]
    rounds: u32,
    /// List the benchmarks and run none.
    #[arg(long)]
    list: bool,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let chosen = chosen(&options.names)?;
    if options.list {
        for benchmark in chosen {
            println!("{} {}", benchmark.name, benchmark.options.join(" "));
        }
        return Ok(ExitCode::SUCCESS);
    }
    fs::create_dir_all(&options.out)?;
    if let Some(other) = &options.against {
        return compare_builds(&chosen, other, &options);
    }
    let mut fallen = Vec::new();
    for benchmark in chosen {
        let recorded = read(&record(benchmark))?;
        println!("==> {}", benchmark.name);
        println!("    recorded on {}", recorded["machine"]);
        println!("    measured on {}", machine::facts());
        let measured = run(benchmark, &options, None)?;
        for comparison in compare(&recorded, &measured, comparable(benchmark, &options)) {
            println!("    {comparison}");
            if comparison.has_fallen() {
                fallen.push((benchmark.name, comparison));
            }
        }
    }
    print_fallen(&fallen, "its record");
    Ok(if fallen.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn chosen(names: &[String]) -> Result<Vec<&'static Benchmark>> {
    if names.is_empty() {
        return Ok(BENCHMARKS.iter().collect());
    }
    let find = |name: &String| {
        BENCHMARKS.iter().find(|benchmark| benchmark.name == name).with_context(|| {
            let known: Vec<&str> = BENCHMARKS.iter().map(|benchmark| benchmark.name).collect();
            format!("no benchmark is called {name}: choose from {}", known.join(", "))
        })
    };
    names.iter().map(find).collect()
}

/// Leaves out the comparisons with programs that this machine doesn't have.
fn comparable(
    benchmark: &Benchmark,
    options: &Options,
) -> &'static [tessera_load_tests::records::Figure] {
    let known = BENCHMARKS.iter().find(|known| known.name == benchmark.name);
    let figures = known.map_or(&[][..], |known| known.figures);
    if options.hyperqueue_python.is_some() || !benchmark.takes_hyperqueue {
        return figures;
    }
    println!("    ratios to HyperQueue and Slurm are skipped: name a --hyperqueue-python");
    let end = figures.iter().position(|figure| figure.pointer.contains("ratio"));
    &figures[..end.unwrap_or(figures.len())]
}

fn record(benchmark: &Benchmark) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../results"))
        .join(format!("{}.json", benchmark.name))
}

fn read(file: &Path) -> Result<Value> {
    let text =
        fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
    Ok(serde_json::from_str(&text)?)
}

/// Runs each benchmark with both builds in turn, and writes all results to `against.json`.
fn compare_builds(chosen: &[&Benchmark], other: &Path, options: &Options) -> Result<ExitCode> {
    let mut fallen = Vec::new();
    let mut results = serde_json::Map::new();
    for benchmark in chosen {
        let (mut before, mut now) = (Vec::new(), Vec::new());
        for round in 1..=options.rounds {
            println!("==> {}, round {round} of {}", benchmark.name, options.rounds);
            before.push(run(benchmark, options, Some(other))?);
            now.push(run(benchmark, options, None)?);
        }
        for comparison in compare_medians(&before, &now, benchmark.figures) {
            println!("    {comparison}");
            if comparison.has_fallen() {
                fallen.push((benchmark.name, comparison));
            }
        }
        results.insert(benchmark.name.to_owned(), json!({ "other": before, "this": now }));
        let all = json!({ "machine": machine::facts(), "benchmarks": results });
        fs::write(options.out.join("against.json"), serde_json::to_string_pretty(&all)? + "\n")?;
    }
    print_fallen(&fallen, "the other build");
    Ok(if fallen.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a benchmark, of this build or with the programs in a folder.
fn run(benchmark: &Benchmark, options: &Options, folder: Option<&Path>) -> Result<Value> {
    let out = options.out.join(format!("{}.json", benchmark.name));
    let program = match folder {
        Some(folder) => folder.join(benchmark.program()),
        None => programs().path(benchmark.program()),
    };
    let mut command = Command::new("chrt");
    match benchmark.is_real_time {
        true => command.args(["-f", "10"]).arg(program),
        false => {
            command = Command::new(program);
            &mut command
        }
    };
    command.args(benchmark.options);
    if let (true, Some(python)) = (benchmark.takes_hyperqueue, &options.hyperqueue_python) {
        command.arg("--hyperqueue-python").arg(python);
        if benchmark.name == "throughput" {
            command.arg("--slurm");
        }
    }
    if benchmark.prints_lines {
        let done = command.stderr(Stdio::inherit()).output()?;
        anyhow::ensure!(done.status.success(), "{} failed", benchmark.name);
        let rows: Vec<Value> = String::from_utf8(done.stdout)?
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()
            .with_context(|| format!("{} prints something else than JSON", benchmark.name))?;
        let result = json!({ "machine": machine::facts(), "rows": rows });
        fs::write(&out, serde_json::to_string_pretty(&result)? + "\n")?;
        return Ok(result);
    }
    let done = command.arg("--out").arg(&out).stdout(Stdio::null()).status()?;
    if !done.success() {
        bail!("{} failed", benchmark.name);
    }
    read(&out)
}

fn print_fallen(fallen: &[(&str, Comparison)], reference: &str) {
    if fallen.is_empty() {
        println!("\nNothing is more than 10 % worse than {reference}.");
        return;
    }
    println!("\nMore than 10 % worse than {reference}:");
    for (name, comparison) in fallen {
        println!("    {name} {comparison}");
    }
}
