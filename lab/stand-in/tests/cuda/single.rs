//! One process and one device.

use std::ffi::{CString, c_char, c_void};
use std::ptr;

use tessera_stand_in::cuda::program::{CudaError, CudaHandle};
use tessera_stand_in::cuda_call;

use crate::rig::{ONE, Rig};

const IMAGE: &str = "FKCU1
kernel short dur=1ms
kernel long dur=5ms
kernel step params=8,8,8 dur=10us op=affine
kernel log params=8,8 dur=10us op=append
";

fn code<T>(result: Result<T, CudaError>) -> Option<i32> {
    result.err().and_then(|error| error.code())
}

#[test]
fn nothing_works_before_init_and_everything_after() {
    let variables = [("TESSERA_SIM_CUDA_CLOCK", "virtual")];
    let rig = Rig::uninitialized(&variables);
    let mut count = -1;
    let asked = cuda_call!(rig.cuda, cuDeviceGetCount(&mut count => *mut i32));
    assert_eq!(code(asked), Some(3));

    rig.init(&variables).unwrap();
    cuda_call!(rig.cuda, cuDeviceGetCount(&mut count => *mut i32)).unwrap();
    assert_eq!(count, 1);
    assert_eq!(code(rig.cuda.synchronize()), Some(201), "no context yet");
}

#[test]
fn kernels_of_one_stream_run_back_to_back_for_as_long_as_they_say() {
    let rig = Rig::new();
    let module = rig.cuda.load(IMAGE).unwrap();
    let short = rig.cuda.kernel(module, "short").unwrap();
    let long = rig.cuda.kernel(module, "long").unwrap();
    for kernel in [short, long, short] {
        rig.cuda.launch(kernel, ONE, CudaHandle::NULL, &[]).unwrap();
    }
    rig.cuda.synchronize().unwrap();

    let ran = rig.operations("kernel");
    let times: Vec<_> = ran.iter().map(|(name, start, end)| (&name[..], end - start)).collect();
    assert_eq!(times, [("short", 1_000_000), ("long", 5_000_000), ("short", 1_000_000)]);
    assert!(ran.windows(2).all(|pair| pair[0].2 == pair[1].1), "{ran:?}");
}

#[test]
fn a_driver_that_is_closed_stays_where_its_threads_run() {
    let rig = Rig::new();
    let module = rig.cuda.load(IMAGE).unwrap();
    let long = rig.cuda.kernel(module, "long").unwrap();
    rig.cuda.launch(long, ONE, CudaHandle::NULL, &[]).unwrap();
    let Rig { cuda, folder, .. } = rig;

    drop(cuda);

    let mapped = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(mapped.contains(folder.path().to_str().unwrap()), "it is gone");
}

#[test]
fn events_tell_the_devices_own_time() {
    let rig = Rig::new();
    let module = rig.cuda.load(IMAGE).unwrap();
    let long = rig.cuda.kernel(module, "long").unwrap();
    let (start, end) = (rig.cuda.event().unwrap(), rig.cuda.event().unwrap());
    rig.cuda.launch(long, ONE, CudaHandle::NULL, &[]).unwrap();
    rig.cuda.record(start, CudaHandle::NULL).unwrap();
    rig.cuda.launch(long, ONE, CudaHandle::NULL, &[]).unwrap();
    rig.cuda.record(end, CudaHandle::NULL).unwrap();
    assert_eq!(code(rig.cuda.elapsed(start, end)), Some(600));
    rig.cuda.synchronize().unwrap();

    assert!((rig.cuda.elapsed(start, end).unwrap() - 5.0).abs() < 1e-6);
    assert!((rig.cuda.elapsed(end, start).unwrap() + 5.0).abs() < 1e-6);
}

#[test]
fn memory_is_counted_and_runs_out() {
    let rig = Rig::new();
    let (free, total) = rig.cuda.memory().unwrap();
    assert_eq!(total, 24 << 30);
    let block = rig.cuda.allocate(1 << 30).unwrap();
    assert_eq!(rig.cuda.memory().unwrap().0, free - (1 << 30));
    assert_eq!(code(rig.cuda.allocate(free)), Some(2));
    assert_eq!(rig.cuda.memory().unwrap().0, free - (1 << 30), "a refusal takes nothing");

    let claims = rig.node.read().unwrap().claims;
    assert_eq!(claims[0].process.pid, std::process::id(), "NVML sees it too");
    assert_eq!(claims[0].memory_bytes, (1 << 30) + (300 << 20));
    rig.cuda.free(block).unwrap();
    assert_eq!(rig.cuda.memory().unwrap().0, free);
    assert_eq!(code(rig.cuda.free(block)), Some(1));
}

#[test]
fn order_sensitive_kernels_and_copies_keep_the_streams_order() {
    let rig = Rig::new();
    let module = rig.cuda.load(IMAGE).unwrap();
    let step = rig.cuda.kernel(module, "step").unwrap();
    let word = rig.cuda.allocate(8).unwrap();
    rig.cuda.write(word, &[1]).unwrap();
    let mut expected: u128 = 1;
    for n in 1..200_u64 {
        rig.cuda.launch(step, ONE, CudaHandle::NULL, &[word, n + 1, n]).unwrap();
        expected = (u128::from(n + 1) * expected + u128::from(n)) % ((1 << 61) - 1);
    }
    assert_eq!(u128::from(rig.cuda.read(word, 1).unwrap()[0]), expected);
}

#[test]
fn a_driver_finds_what_its_version_has() {
    let find = |rig: &Rig, name: &str, version: i32| {
        let name = CString::new(name).unwrap();
        let mut address: *mut c_void = ptr::null_mut();
        let mut status = -1;
        let result = cuda_call!(
            rig.cuda,
            cuGetProcAddress_v2(
                name.as_ptr() => *const c_char, &mut address => *mut *mut c_void,
                version => i32, 0 => u64, &mut status => *mut i32,
            )
        );
        (code(result), !address.is_null(), status)
    };
    let new = Rig::uninitialized(&[("TESSERA_SIM_CUDA_VERSION", "12090")]);
    assert_eq!(find(&new, "cuLibraryLoadData", 12_000), (None, true, 0));
    assert_eq!(find(&new, "cuLibraryLoadData", 11_080), (None, false, 2));
    assert_eq!(find(&new, "cuCtxSynchronize", 13_000), (Some(1), false, -1), "above the driver");
    assert_eq!(find(&new, "cuNever", 12_000), (None, false, 1));
    assert_eq!(find(&new, "", 0), (None, false, 1));

    let old = Rig::uninitialized(&[("TESSERA_SIM_CUDA_VERSION", "11080")]);
    let mut address: *mut c_void = ptr::null_mut();
    let name = c"cuLibraryLoadData";
    let result = cuda_call!(
        old.cuda,
        cuGetProcAddress(
            name.as_ptr() => *const c_char, &mut address => *mut *mut c_void, 11_080 => i32,
            0 => u64,
        )
    );
    assert_eq!(code(result), Some(500));
}
