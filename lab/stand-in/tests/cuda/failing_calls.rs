//! What goes wrong: on demand, by the program's own fault, and because something isn't simulated.

use std::fs;
use std::process::Command;

use tessera_stand_in::cuda::program::{CudaError, CudaHandle};
use tessera_stand_in::cuda_call;

use crate::rig::{ONE, Rig};

const IMAGE: &str = "FKCU1\nkernel a dur=1ms\nkernel trap op=trap dur=1ms\n\
                     kernel step params=8,8,8 dur=10us op=affine\n";

fn code<T>(result: Result<T, CudaError>) -> Option<i32> {
    result.err().and_then(|error| error.code())
}

#[test]
fn the_nth_call_fails_and_the_others_do_not() {
    let rig = Rig::with(&[
        ("TESSERA_SIM_CUDA_CLOCK", "virtual"),
        ("TESSERA_SIM_CUDA_FAULTS", "call=cuLaunchKernel nth=2 code=701"),
    ]);
    let module = rig.cuda.load(IMAGE).unwrap();
    let a = rig.cuda.kernel(module, "a").unwrap();
    let codes: Vec<_> =
        (0..3).map(|_| code(rig.cuda.launch(a, ONE, CudaHandle::NULL, &[]))).collect();

    assert_eq!(codes, [None, Some(701), None]);
    rig.cuda.synchronize().unwrap();
    assert_eq!(rig.operations("kernel").len(), 2);
}

#[test]
fn init_fails_as_a_broken_driver_does() {
    for wanted in [100, 803, 999] {
        let faults = format!("call=cuInit code={wanted}");
        let variables = [("TESSERA_SIM_CUDA_FAULTS", &faults[..])];
        let rig = Rig::uninitialized(&variables);
        assert_eq!(code(rig.init(&variables)), Some(wanted));
    }
}

#[test]
fn a_fault_list_with_a_mistake_makes_init_fail() {
    let variables = [("TESSERA_SIM_CUDA_FAULTS", "call=cuLaunchKernal code=1")];
    let rig = Rig::uninitialized(&variables);
    assert_eq!(code(rig.init(&variables)), Some(999));
}

#[test]
fn a_kernel_that_touches_what_is_not_there_breaks_its_context_for_good() {
    let rig = Rig::new();
    let module = rig.cuda.load(IMAGE).unwrap();
    let [a, trap, step] = ["a", "trap", "step"].map(|n| rig.cuda.kernel(module, n).unwrap());
    rig.cuda.launch(trap, ONE, CudaHandle::NULL, &[]).unwrap();
    rig.cuda.launch(a, ONE, CudaHandle::NULL, &[]).unwrap();
    assert_eq!(code(rig.cuda.synchronize()), Some(700));
    assert_eq!(code(rig.cuda.launch(a, ONE, CudaHandle::NULL, &[])), Some(700));
    assert_eq!(code(rig.cuda.allocate(8)), Some(700));

    cuda_call!(rig.cuda, cuDevicePrimaryCtxReset_v2(0 => i32)).unwrap();
    rig.cuda.use_device(0).unwrap();
    let module = rig.cuda.load(IMAGE).unwrap();
    assert_ne!(rig.cuda.kernel(module, "step").unwrap(), CudaHandle::NULL);
    rig.cuda.synchronize().unwrap();
    let _ = step;
}

#[test]
fn launches_that_no_device_could_run_are_refused() {
    let rig = Rig::new();
    let module = rig.cuda.load("FKCU1\nkernel a\nkernel wide regs=200\n").unwrap();
    let [a, wide] = ["a", "wide"].map(|name| rig.cuda.kernel(module, name).unwrap());
    let shape = |grid, block| tessera_stand_in::cuda::image::LaunchShape { grid, block };
    let launch = |kernel, shape| code(rig.cuda.launch(kernel, shape, CudaHandle::NULL, &[]));

    assert_eq!(launch(a, shape([0, 1, 1], [1, 1, 1])), Some(1));
    assert_eq!(launch(a, shape([1, 1, 1], [1_025, 1, 1])), Some(1));
    assert_eq!(launch(a, shape([1, 70_000, 1], [1, 1, 1])), Some(1));
    assert_eq!(launch(wide, shape([1, 1, 1], [1_024, 1, 1])), Some(701));
    assert_eq!(launch(CudaHandle::NULL, ONE), Some(400));
    assert_eq!(launch(a, ONE), None);
}

#[test]
fn every_function_of_the_driver_is_there_and_what_is_not_simulated_says_so() {
    let rig = Rig::new();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
    let column = |file: &str, column: usize| -> Vec<String> {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        let rows = text.lines().skip(1);
        rows.map(|row| row.split('\t').nth(column).unwrap().to_owned()).collect()
    };
    let (tier_a, all) = (column("tier-a.tsv", 0), column("symbols.tsv", 3));
    assert_eq!((tier_a.len(), all.len()), (168, 662));
    for name in tier_a.iter().chain(&all) {
        // SAFETY: the address is not called.
        let found = unsafe { rig.cuda.function::<*const ()>(&format!("{name}\0")) };
        assert!(found.is_ok(), "{name} is not exported");
    }
    let absent = cuda_call!(rig.cuda, cuMemPoolDestroy(CudaHandle::NULL => CudaHandle));
    assert_eq!(code(absent), Some(801));
    let newer = cuda_call!(rig.cuda, cuCtxSynchronize_v2(CudaHandle::NULL => CudaHandle));
    assert_eq!(code(newer), Some(801), "13.0 brought it, this driver is 12.9");
    let told = rig.trace();
    let calls = told.iter().filter(|line| line["call"] == "cuMemPoolDestroy");
    assert_eq!(calls.count(), 1);
}

#[test]
fn the_library_is_named_as_programs_look_for_it() {
    let rig = Rig::new();
    let file = rig.folder.path().join("libcuda.so.1");
    let output = Command::new("readelf").arg("-d").arg(file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Library soname: [libcuda.so.1]"), "{text}");
    assert!(text.contains("SYMBOLIC"), "its own addresses are its own: {text}");
}
