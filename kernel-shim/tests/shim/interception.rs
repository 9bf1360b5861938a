//! Which programs reach the driver through the shim, and what `cuGetProcAddress` returns.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;

use crate::built::{self, driver, folder, in_job, list, program, shim, symbols, text};

/// How the shim is loaded in front of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Front {
    Nothing,
    Preload,
    Path,
    Both,
}

fn with(front: Front, command: &mut Command) -> &mut Command {
    let driver = driver(12_040);
    let (own, real) = (shim().parent().unwrap(), driver.parent().unwrap());
    let path = match front {
        Front::Nothing | Front::Preload => real.display().to_string(),
        Front::Path | Front::Both => format!("{}:{}", own.display(), real.display()),
    };
    if matches!(front, Front::Preload | Front::Both) {
        command.env("LD_PRELOAD", shim());
    }
    command.env("LD_LIBRARY_PATH", path).env("TESSERA_KERNEL_CUDA", &driver)
}

/// The loader's matrix: which ways of reaching the driver go through the shim, by how it is installed.
#[test]
fn launches_are_seen_in_every_way_that_programs_reach_the_driver() {
    let driver = driver(12_040);
    let real = driver.parent().unwrap().display().to_string();
    let both = ["reach.c", "mini_cudart.c"];
    let plain = program("reach", &both, &[]);
    let stub = driver.display().to_string();
    let needed = program("reach-needed", &both, &["-DNEEDED", &stub]);
    let run_path = format!("-Wl,-rpath,{real}");
    let new = program("reach-runpath", &both, &[&run_path, "-Wl,--enable-new-dtags"]);
    let old = program("reach-rpath", &both, &[&run_path, "-Wl,--disable-new-dtags"]);
    let plugin = program("plugin.so", &["mini_cudart.c"], &["-shared", "-fPIC"]);
    let recorded = list("12.4.127").display().to_string();

    // The way, the program, its file, and how many of three launches are seen with preload, with the path,
    // and with both.
    let rows: [(&str, &Path, &str, [u64; 3]); 12] = [
        ("dlopen", &plain, "", [3, 3, 3]),
        ("deepbind", &plain, "", [3, 3, 3]),
        ("cudart", &plain, &recorded, [3, 3, 3]),
        ("plugin", &plain, &recorded, [3, 3, 3]),
        ("plugin-deepbind", &plain, &recorded, [3, 3, 3]),
        ("needed", &needed, "", [3, 3, 3]),
        ("bare", &plain, "", [0, 3, 3]),
        ("dlopen", &new, "", [3, 3, 3]),
        ("dlopen", &old, "", [3, 0, 3]),
        ("namespace", &plain, "", [0, 3, 3]),
        ("absolute", &plain, &stub, [0, 0, 0]),
        ("noload", &needed, "", [3, 3, 3]),
    ];
    for (way, program, file, seen) in rows {
        for (front, seen) in [Front::Preload, Front::Path, Front::Both].into_iter().zip(seen) {
            let mut command = in_job(program);
            command.args([way, file]).env("PLUGIN", &plugin);
            let printed = text(&with(front, &mut command).output().unwrap());
            assert_eq!(printed.trim(), seen.to_string(), "{way} of {program:?} behind {front:?}");
        }
        let mut command = in_job(program);
        command.args([way, file]).env("PLUGIN", &plugin);
        let printed = text(&with(Front::Nothing, &mut command).output().unwrap());
        assert_eq!(printed.trim(), "0", "{way} without a shim");
    }
}

/// Runs `reach` with both installations, with a job's variables unless `changed` changes them; returns what
/// the shim saw.
fn seen_of(program: &Path, arguments: &[&str], change: impl FnOnce(&mut Command)) -> String {
    let mut command = in_job(program);
    command.args(arguments);
    with(Front::Both, &mut command);
    change(&mut command);
    text(&command.output().unwrap()).trim().to_owned()
}

/// A program that finds the driver by its own path.
fn reach_by_path(output: &str, driver: &Path, tags: &str) -> PathBuf {
    let run_path = format!("-Wl,-rpath,{}", driver.parent().unwrap().display());
    program(output, &["reach.c", "mini_cudart.c"], &[&run_path, tags])
}

#[test]
fn with_an_empty_environment_the_driver_is_used_directly() {
    let reach = reach_by_path("escape-env", &driver(12_040), "-Wl,--enable-new-dtags");
    assert_eq!(seen_of(&reach, &["dlopen"], |_| ()), "3");

    let emptied =
        seen_of(Path::new("/usr/bin/env"), &["-i", reach.to_str().unwrap(), "dlopen"], |_| ());

    assert_eq!(emptied, "0");
}

#[test]
fn in_a_namespace_with_an_old_path_the_driver_is_used_directly() {
    let old = reach_by_path("escape-rpath", &driver(12_040), "-Wl,--disable-new-dtags");
    let new = reach_by_path("escape-runpath", &driver(12_040), "-Wl,--enable-new-dtags");

    assert_eq!(seen_of(&old, &["namespace"], |_| ()), "0");
    // Each by itself does not escape.
    assert_eq!(seen_of(&old, &["dlopen"], |_| ()), "3");
    assert_eq!(seen_of(&new, &["namespace"], |_| ()), "3");
}

#[test]
fn under_secure_execution_the_driver_is_used_directly() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("SKIPPED: only root can make a program that others run as root");
        return;
    }
    // Another account runs it, so that account must be able to read all of this.
    let folder = tempfile::tempdir().unwrap();
    let readable = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    readable(folder.path(), 0o755);
    let place = |name: &str, file: &Path| {
        let at = folder.path().join(name);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::copy(file, &at).unwrap();
        readable(at.parent().unwrap(), 0o755);
        readable(&at, 0o755);
        at
    };
    let driver = place("driver/libcuda.so.1", &driver(12_040));
    let shim = place("shim/libcuda.so.1", shim());
    let reach = reach_by_path("escape-secure", &driver, "-Wl,--enable-new-dtags");
    let reach = place("reach", &reach);
    let as_another = |command: &mut Command| {
        let path = [shim.parent().unwrap(), driver.parent().unwrap()];
        let path = path.map(|folder| folder.display().to_string()).join(":");
        command.env("LD_PRELOAD", &shim).env("LD_LIBRARY_PATH", path);
        command.env("TESSERA_KERNEL_CUDA", &driver).uid(65_534).gid(65_534);
    };
    assert_eq!(seen_of(&reach, &["dlopen"], as_another), "3");

    readable(&reach, 0o4755);

    assert_eq!(seen_of(&reach, &["dlopen"], as_another), "0");
}

#[test]
fn a_statically_linked_program_has_no_preload_and_runs_with_the_shim_only_if_its_libc_can() {
    let both = ["reach.c", "mini_cudart.c"];
    let linked = program("escape-static", &both, &["-static"]);
    let file = driver(12_040).display().to_string();

    assert_eq!(seen_of(&linked, &["absolute", &file], |_| ()), "0");
    let preloaded = seen_of(&linked, &["dlopen"], |command| {
        with(Front::Preload, command);
    });
    assert_eq!(preloaded, "0");

    // By the path it finds the shim. In glibc 2.36 such a program has no data of threads for any library that it opens.
    let plain = program("thread-local.so", &["thread_local.c"], &["-shared", "-fPIC"]);
    let with_data = in_job(&linked).args(["absolute", plain.to_str().unwrap()]).output().unwrap();
    let mut command = in_job(&linked);
    let with_shim = with(Front::Both, command.arg("dlopen")).output().unwrap();
    let seen = String::from_utf8_lossy(&with_shim.stdout).trim() == "3";
    assert_eq!(with_shim.status, with_data.status);
    assert_eq!(seen, with_data.status.success());
}

#[test]
fn every_recorded_list_of_requests_is_answered_as_by_the_driver_but_for_the_hooks() {
    let hooks: BTreeMap<String, bool> =
        symbols().into_iter().map(|row| (row.symbol, row.hook)).collect();
    let lists = [
        ("11.8.89", 11_080, 384),
        ("12.1.105", 12_010, 383),
        ("12.4.127", 12_040, 409),
        ("12.9.79", 12_090, 419),
        ("13.5.37", 13_050, 481),
    ];
    let replay = program("replay", &["replay.c", "mini_cudart.c"], &[]);
    for (recorded, version, requests) in lists {
        for version in [version, built::NEWEST] {
            let driver = driver(version);
            let output = in_job(&replay)
                .arg(list(recorded))
                .arg(&driver)
                .env("LD_PRELOAD", shim())
                .env("FAKE_VERSION", version.to_string())
                .env("TESSERA_KERNEL_CUDA", &driver)
                .output()
                .unwrap();
            let printed = text(&output);
            assert_eq!(printed.lines().count(), requests, "{recorded}");
            let mut hooked = 0;
            for line in printed.lines() {
                let [
                    name,
                    requested,
                    flags,
                    code,
                    status,
                    library,
                    symbol,
                    real_code,
                    real_status,
                    same,
                    real,
                ] = line.split(',').collect::<Vec<_>>().try_into().unwrap();
                assert_eq!((code, status), (real_code, real_status), "{recorded}: {line}");
                let is_hook = hooks.get(real).copied().unwrap_or(false);
                assert_eq!(same == "1", !is_hook, "{recorded}: {name} {requested} {flags}: {line}");
                if is_hook {
                    assert_eq!((library, symbol), (shim().to_str().unwrap(), real), "{line}");
                    hooked += 1;
                }
            }
            assert!(hooked >= 45, "{recorded}: {hooked} hooks of {requests}");
        }
    }
}

#[test]
fn a_program_without_the_agents_variables_gets_the_driver_itself() {
    let replay = program("replay", &["replay.c", "mini_cudart.c"], &[]);
    let driver = driver(12_040);
    let mut command = in_job(&replay);
    command.arg(list("12.4.127")).arg(&driver).env("LD_PRELOAD", shim());
    command.env("TESSERA_KERNEL_CUDA", &driver).env_remove("TESSERA_KERNEL_TOKEN");

    let printed = text(&command.output().unwrap());

    assert!(printed.lines().all(|line| line.split(',').nth(9) == Some("1")), "{printed}");
}

#[test]
fn two_copies_of_the_shim_never_mistake_each_other_for_the_driver() {
    let copy = folder().join("copy");
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(shim(), copy.join("libcuda.so.1")).unwrap();
    let driver = driver(12_040);
    let path = [shim().parent().unwrap(), &copy, driver.parent().unwrap()];
    let path = path.map(|folder| folder.display().to_string()).join(":");
    let reach = program("reach", &["reach.c", "mini_cudart.c"], &[]);

    let output = in_job(&reach).arg("dlopen").env("LD_LIBRARY_PATH", path).output().unwrap();

    assert_eq!(text(&output).trim(), "3");
}

#[test]
fn stubs_keep_every_argument_wherever_it_lies() {
    let driver = driver(12_040);
    let arguments = program("arguments", &["arguments.c"], &[]);

    let output = in_job(&arguments)
        .arg(&driver)
        .env("LD_PRELOAD", shim())
        .env("TESSERA_KERNEL_CUDA", &driver)
        .output()
        .unwrap();

    assert_eq!(text(&output).trim(), "1 2 3 4 5 6 0.5 1.5 2.5 3.5 4.5 5.5 6.5 7.5 8 10");
}

/// Requests as no program makes them.
fn requests() -> impl Strategy<Value = Vec<(String, i32, u64)>> {
    let names: Vec<String> = symbols()
        .into_iter()
        .flat_map(|row| [row.name, row.symbol])
        .chain(["cuNoSuchThing", "notcu", "cuLaunchKernel_", "culaunchkernel"].map(str::to_owned))
        .collect();
    // The runtime continues through the pointer that it is given for this name: see `mini_cudart.c`.
    let names: Vec<String> =
        names.into_iter().filter(|name| !name.starts_with("cuGetProcAddress")).collect();
    let version = prop_oneof![
        Just(0),
        Just(i32::MAX),
        -5..14_000_i32,
        prop::sample::select(vec![2_000, 3_020, 7_000, 10_010, 11_030, 12_000, 12_040, 13_000])
    ];
    let one = (prop::sample::select(names), version, 0..4_u64);
    prop::collection::vec(one, 200..600)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn any_request_is_answered_as_by_the_driver_but_for_the_hooks(requests in requests()) {
        let hooks: BTreeMap<String, bool> =
            symbols().into_iter().map(|row| (row.symbol, row.hook)).collect();
        let replay = program("replay", &["replay.c", "mini_cudart.c"], &[]);
        let driver = driver(built::NEWEST);
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines: String = requests
            .iter()
            .map(|(name, version, flags)| format!("{name},{version},{flags}\n"))
            .collect();
        std::fs::write(file.path(), format!("symbol,cudaVersion,flags\n{lines}")).unwrap();
        for version in ["12040", "13050", "14000"] {
            let output = in_job(&replay)
                .arg(file.path())
                .arg(&driver)
                .env("LD_PRELOAD", shim())
                .env("FAKE_VERSION", version)
                .env("TESSERA_KERNEL_CUDA", &driver)
                .output()
                .unwrap();
            let printed = text(&output);
            prop_assert_eq!(printed.lines().count(), requests.len());
            for line in printed.lines() {
                let fields: Vec<&str> = line.split(',').collect();
                prop_assert_eq!(&fields[3..5], &fields[7..9], "{}", line);
                let is_hook = hooks.get(fields[10]).copied().unwrap_or(false);
                prop_assert_eq!(fields[9] == "1", !is_hook, "{}", line);
                if is_hook {
                    prop_assert_eq!(fields[6], fields[10], "{}", line);
                }
            }
        }
    }
}

/// Returns the outputs of a system command and its exit status, with the shim preloaded or not.
fn system(front: Front, program: &str, arguments: &[&str]) -> (String, String, Option<i32>) {
    let mut command = in_job(Path::new(program));
    command.args(arguments);
    let output = with(front, &mut command).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

#[test]
fn programs_without_cuda_notice_nothing() {
    let inside =
        "ls /proc/self/task | wc -l; ls /proc/self/fd | wc -l; cat /proc/$$/task/*/comm; exit 3";
    let programs: [(&str, &[&str]); 5] = [
        ("/bin/true", &[]),
        ("/bin/false", &[]),
        ("/bin/sh", &["-c", inside]),
        ("cc", &["--version"]),
        ("/bin/sh", &["-c", "kill -TERM $$"]),
    ];
    for (program, arguments) in programs {
        let without = system(Front::Nothing, program, arguments);
        assert_eq!(system(Front::Both, program, arguments), without, "{program} {arguments:?}");
    }
}
