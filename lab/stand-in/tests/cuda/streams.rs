//! Streams, threads and host functions.

use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tessera_stand_in::cuda::program::{CudaHandle, CudaProgram};
use tessera_stand_in::cuda_call;

use crate::rig::{ONE, Rig};

const IMAGE: &str = "FKCU1
kernel a dur=1ms
kernel b dur=2ms
kernel spin params=8,8 op=spin_until
kernel step params=8,8,8 dur=10us op=affine
";

const LEGACY: CudaHandle = CudaHandle::NULL;

fn starts(rig: &Rig) -> Vec<(String, u64, u64)> {
    let mut ran = rig.operations("kernel");
    ran.sort_by_key(|(_, start, _)| *start);
    ran
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let rig = Rig::new();
    let module = rig.cuda.load(IMAGE).unwrap();
    let [a, b] = ["a", "b"].map(|name| rig.cuda.kernel(module, name).unwrap());
    let (blocking, free) = (rig.cuda.stream(0, 0).unwrap(), rig.cuda.stream(1, 0).unwrap());
    rig.cuda.launch(b, ONE, blocking, &[]).unwrap();
    rig.cuda.launch(a, ONE, LEGACY, &[]).unwrap();
    rig.cuda.launch(b, ONE, blocking, &[]).unwrap();
    rig.cuda.launch(b, ONE, free, &[]).unwrap();
    rig.cuda.wait(LEGACY).unwrap();
    let names: Vec<_> = starts(&rig).into_iter().map(|(name, ..)| name).collect();
    assert!(names.iter().any(|name| name == "a"), "it was waited for: {names:?}");
    rig.cuda.synchronize().unwrap();

    let ran = starts(&rig);
    let names: Vec<_> = ran.iter().map(|(name, ..)| &name[..]).collect();
    // The free stream's is ready second: the others wait for their turns.
    assert_eq!(names, ["b", "b", "a", "b"], "{ran:?}");
}

#[test]
fn a_stream_of_higher_priority_goes_first_when_it_can() {
    let rig = Rig::new();
    let module = rig.cuda.load(IMAGE).unwrap();
    let [a, b] = ["a", "b"].map(|name| rig.cuda.kernel(module, name).unwrap());
    let (low, high) = (rig.cuda.stream(1, 0).unwrap(), rig.cuda.stream(1, -3).unwrap());
    for _ in 0..3 {
        rig.cuda.launch(b, ONE, low, &[]).unwrap();
    }
    rig.cuda.launch(a, ONE, high, &[]).unwrap();
    rig.cuda.synchronize().unwrap();

    let names: Vec<_> = starts(&rig).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["b", "a", "b", "b"], "what runs is not taken back");
}

#[test]
fn host_functions_run_in_their_streams_order_and_may_not_call_the_driver() {
    static SEEN: AtomicI32 = AtomicI32::new(-1);
    static DRIVER: AtomicU64 = AtomicU64::new(0);
    extern "C" fn host(_: *mut c_void) {
        let mut count = 0;
        let call = usize::try_from(DRIVER.load(Ordering::SeqCst)).unwrap();
        // SAFETY: the address of this function of this driver, put there below.
        let call =
            unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(*mut i32) -> i32>(call) };
        // SAFETY: a count of the type that it needs.
        SEEN.store(unsafe { call(&mut count) }, Ordering::SeqCst);
    }
    let rig = Rig::new();
    // SAFETY: the function's type.
    let count = unsafe {
        rig.cuda.function::<unsafe extern "C" fn(*mut i32) -> i32>("cuDeviceGetCount\0").unwrap()
    };
    DRIVER.store(u64::try_from(count as usize).unwrap(), Ordering::SeqCst);
    let module = rig.cuda.load(IMAGE).unwrap();
    let a = rig.cuda.kernel(module, "a").unwrap();
    let stream = rig.cuda.stream(1, 0).unwrap();
    rig.cuda.launch(a, ONE, stream, &[]).unwrap();
    cuda_call!(
        rig.cuda,
        cuLaunchHostFunc(
            stream => CudaHandle, host => extern "C" fn(*mut c_void),
            std::ptr::null_mut() => *mut c_void,
        )
    )
    .unwrap();
    rig.cuda.launch(a, ONE, stream, &[]).unwrap();
    rig.cuda.wait(stream).unwrap();

    assert_eq!(SEEN.load(Ordering::SeqCst), 800);
    let ran = starts(&rig);
    let host = rig.operations("host");
    assert!(ran[0].2 <= host[0].1 && host[0].2 <= ran[1].1, "{ran:?} {host:?}");
}

#[test]
fn eight_threads_with_four_streams_each_keep_every_streams_order() {
    let rig = Rig::with(&[("TESSERA_SIM_CUDA_LAUNCH_NS", "0")]);
    let module = rig.cuda.load(IMAGE).unwrap();
    let step = rig.cuda.kernel(module, "step").unwrap();
    let mut context = CudaHandle::NULL;
    cuda_call!(rig.cuda, cuCtxGetCurrent(&mut context => *mut CudaHandle)).unwrap();
    let run = |cuda: &CudaProgram, thread: u64| {
        cuda.use_context(context).unwrap();
        let streams: Vec<_> =
            (0..4).map(|n| cuda.stream(u32::from(n % 2 == 1), 0).unwrap()).collect();
        let word = cuda.allocate(8 * 4).unwrap();
        cuda.write(word, &[1; 4]).unwrap();
        let mut expected = [1_u128; 4];
        for round in 0..40_u64 {
            for (at, stream) in (0..4).zip(&streams) {
                let (a, b) = (round * 31 + thread + 2, round + at);
                cuda.launch(step, ONE, *stream, &[word + 8 * at, a, b]).unwrap();
                let value = &mut expected[usize::try_from(at).unwrap()];
                *value = (u128::from(a) * *value + u128::from(b)) % ((1 << 61) - 1);
            }
        }
        for stream in &streams {
            cuda.wait(*stream).unwrap();
        }
        let found: Vec<_> = cuda.read(word, 4).unwrap().into_iter().map(u128::from).collect();
        assert_eq!(found, expected);
    };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let cuda = &rig.cuda;
            scope.spawn(move || run(cuda, thread));
        }
    });
}

#[test]
fn a_full_stream_makes_the_next_launch_wait() {
    let rig = Rig::with(&[]);
    let module = rig.cuda.load(IMAGE).unwrap();
    let [a, spin] = ["a", "spin"].map(|name| rig.cuda.kernel(module, name).unwrap());
    let stream = rig.cuda.stream(1, 0).unwrap();
    let mut flag = 0_u64;
    cuda_call!(rig.cuda, cuMemAllocHost_v2(&mut flag => *mut u64, 8 => usize)).unwrap();
    rig.cuda.launch(spin, ONE, stream, &[flag, 1]).unwrap();
    for _ in 1..1_024 {
        rig.cuda.launch(a, ONE, stream, &[]).unwrap();
    }
    let mut context = CudaHandle::NULL;
    cuda_call!(rig.cuda, cuCtxGetCurrent(&mut context => *mut CudaHandle)).unwrap();
    let launched = AtomicI32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rig.cuda.use_context(context).unwrap();
            rig.cuda.launch(a, ONE, stream, &[]).unwrap();
            launched.store(1, Ordering::SeqCst);
        });
        // It doesn't return while nothing moves: no wait is long enough to prove it, but a
        // launch that didn't wait would be over by then.
        let ends = Instant::now() + Duration::from_millis(50);
        while Instant::now() < ends {
            assert_eq!(launched.load(Ordering::SeqCst), 0);
            std::thread::yield_now();
        }
        let flag = std::ptr::with_exposed_provenance_mut::<u64>(usize::try_from(flag).unwrap());
        // SAFETY: pinned memory of the driver's, which it reads as one word.
        unsafe { flag.write_volatile(1) };
    });
    assert_eq!(launched.load(Ordering::SeqCst), 1);
}
