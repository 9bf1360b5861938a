//! Streams that are captured, and the graphs that come of it.

use std::ptr;

use tessera_stand_in::cuda::program::{CudaError, CudaHandle, CudaProgram};
use tessera_stand_in::cuda_call;

use crate::rig::{ONE, Rig};

const IMAGE: &str = "FKCU1
kernel a dur=1ms
kernel b dur=2ms
kernel step params=8,8,8 dur=10us op=affine
";

const GLOBAL: i32 = 0;
const THREAD: i32 = 1;
const RELAXED: i32 = 2;

fn code<T>(result: Result<T, CudaError>) -> Option<i32> {
    result.err().and_then(|error| error.code())
}

fn begin(cuda: &CudaProgram, stream: CudaHandle, mode: i32) -> Result<(), CudaError> {
    cuda_call!(cuda, cuStreamBeginCapture_v2(stream => CudaHandle, mode => i32))
}

fn end(cuda: &CudaProgram, stream: CudaHandle) -> Result<CudaHandle, CudaError> {
    let mut graph = CudaHandle::NULL;
    cuda_call!(cuda, cuStreamEndCapture(stream => CudaHandle, &mut graph => *mut CudaHandle))?;
    Ok(graph)
}

fn status(cuda: &CudaProgram, stream: CudaHandle) -> i32 {
    let mut status = -1;
    cuda_call!(cuda, cuStreamIsCapturing(stream => CudaHandle, &mut status => *mut i32)).unwrap();
    status
}

fn wait_event(cuda: &CudaProgram, stream: CudaHandle, event: CudaHandle) -> Result<(), CudaError> {
    cuda_call!(cuda, cuStreamWaitEvent(stream => CudaHandle, event => CudaHandle, 0 => u32))
}

fn count(cuda: &CudaProgram, graph: CudaHandle) -> usize {
    let mut count = 0;
    cuda_call!(
        cuda,
        cuGraphGetNodes(graph => CudaHandle, ptr::null_mut() => *mut CudaHandle, &mut count => *mut usize)
    )
    .unwrap();
    count
}

fn instantiate(cuda: &CudaProgram, graph: CudaHandle) -> CudaHandle {
    let mut exec = CudaHandle::NULL;
    cuda_call!(
        cuda,
        cuGraphInstantiateWithFlags(&mut exec => *mut CudaHandle, graph => CudaHandle, 0 => u64)
    )
    .unwrap();
    exec
}

#[test]
fn what_is_captured_runs_when_the_graph_is_launched_and_as_often() {
    let rig = Rig::new();
    let cuda = &rig.cuda;
    let module = cuda.load(IMAGE).unwrap();
    let step = cuda.kernel(module, "step").unwrap();
    let word = cuda.allocate(8).unwrap();
    cuda.write(word, &[1]).unwrap();
    let stream = cuda.stream(1, 0).unwrap();
    begin(cuda, stream, THREAD).unwrap();
    assert_eq!(status(cuda, stream), 1);
    for n in [2, 3] {
        cuda.launch(step, ONE, stream, &[word, n, 1]).unwrap();
    }
    let graph = end(cuda, stream).unwrap();
    assert_eq!(status(cuda, stream), 0);
    assert_eq!(count(cuda, graph), 2);
    cuda.synchronize().unwrap();
    assert_eq!(cuda.read(word, 1).unwrap(), [1], "captured, not run");

    let exec = instantiate(cuda, graph);
    for _ in 0..2 {
        cuda_call!(cuda, cuGraphLaunch(exec => CudaHandle, stream => CudaHandle)).unwrap();
    }
    cuda.wait(stream).unwrap();
    // 1 → 3 → 10, then 10 → 21 → 64.
    assert_eq!(cuda.read(word, 1).unwrap(), [64]);
}

#[test]
fn a_capture_takes_in_streams_that_wait_for_it_and_wants_them_back() {
    let rig = Rig::new();
    let cuda = &rig.cuda;
    let module = cuda.load(IMAGE).unwrap();
    let a = cuda.kernel(module, "a").unwrap();
    let (one, other) = (cuda.stream(1, 0).unwrap(), cuda.stream(1, 0).unwrap());
    let (fork, join) = (cuda.event().unwrap(), cuda.event().unwrap());
    for joined in [true, false] {
        begin(cuda, one, GLOBAL).unwrap();
        cuda.launch(a, ONE, one, &[]).unwrap();
        cuda.record(fork, one).unwrap();
        wait_event(cuda, other, fork).unwrap();
        assert_eq!(status(cuda, other), 1);
        cuda.launch(a, ONE, other, &[]).unwrap();
        assert_eq!(code(end(cuda, other)), Some(903), "not where it began");
        cuda.record(join, other).unwrap();
        if joined {
            wait_event(cuda, one, join).unwrap();
            cuda.launch(a, ONE, one, &[]).unwrap();
            let graph = end(cuda, one).unwrap();
            assert_eq!(count(cuda, graph), 3);
        } else {
            assert_eq!(code(end(cuda, one)), Some(904));
        }
        assert_eq!((status(cuda, one), status(cuda, other)), (0, 0));
    }
}

#[test]
fn calls_that_a_capture_forbids_fail_and_spoil_it() {
    let rig = Rig::new();
    let cuda = &rig.cuda;
    let module = cuda.load(IMAGE).unwrap();
    let a = cuda.kernel(module, "a").unwrap();
    let (stream, blocking) = (cuda.stream(1, 0).unwrap(), cuda.stream(0, 0).unwrap());
    let (inside, outside) = (cuda.event().unwrap(), cuda.event().unwrap());
    cuda.record(outside, CudaHandle::NULL).unwrap();
    let spoilt = |mode: i32, expected: i32, call: &dyn Fn() -> Result<(), CudaError>| {
        begin(cuda, stream, mode).unwrap();
        cuda.record(inside, stream).unwrap();
        assert_eq!(code(call()), Some(expected));
        assert_eq!(status(cuda, stream), 2);
        assert_eq!(code(end(cuda, stream)), Some(901));
    };
    spoilt(RELAXED, 900, &|| cuda.wait(stream));
    spoilt(RELAXED, 900, &|| cuda.synchronize());
    spoilt(GLOBAL, 900, &|| cuda.allocate(8).map(drop));
    spoilt(THREAD, 900, &|| cuda.allocate(8).map(drop));
    spoilt(RELAXED, 907, &|| cuda_call!(cuda, cuEventQuery(inside => CudaHandle)));
    spoilt(RELAXED, 905, &|| wait_event(cuda, stream, outside));

    begin(cuda, stream, RELAXED).unwrap();
    let address = cuda.allocate(8).unwrap();
    cuda.free(address).unwrap();
    assert_eq!(code(begin(cuda, stream, RELAXED)), Some(401), "already");
    end(cuda, stream).unwrap();

    // The legacy stream would have to wait for a captured one that waits for it.
    begin(cuda, blocking, RELAXED).unwrap();
    assert_eq!(code(cuda.launch(a, ONE, CudaHandle::NULL, &[])), Some(906));
    assert_eq!(code(end(cuda, blocking)), Some(901));
    assert_eq!(code(begin(cuda, CudaHandle::NULL, RELAXED)), Some(900));
}

#[test]
fn another_thread_must_not_disturb_a_global_capture_nor_end_a_local_one() {
    let rig = Rig::new();
    let cuda = &rig.cuda;
    let mut context = CudaHandle::NULL;
    cuda_call!(cuda, cuCtxGetCurrent(&mut context => *mut CudaHandle)).unwrap();
    let stream = cuda.stream(1, 0).unwrap();
    let elsewhere = |call: &(dyn Fn() -> Result<(), CudaError> + Sync)| {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                cuda.use_context(context).unwrap();
                call()
            });
            other.join().unwrap()
        })
    };
    begin(cuda, stream, THREAD).unwrap();
    elsewhere(&|| cuda.allocate(8).map(drop)).unwrap();
    assert_eq!(code(elsewhere(&|| end(cuda, stream).map(drop))), Some(908));
    end(cuda, stream).unwrap();

    begin(cuda, stream, GLOBAL).unwrap();
    assert_eq!(code(elsewhere(&|| cuda.allocate(8).map(drop))), Some(900));
    assert_eq!(code(end(cuda, stream)), Some(901));

    begin(cuda, stream, GLOBAL).unwrap();
    elsewhere(&|| {
        let mut mode = RELAXED;
        cuda_call!(cuda, cuThreadExchangeStreamCaptureMode(&mut mode => *mut i32))?;
        assert_eq!(mode, GLOBAL, "what it was");
        cuda.allocate(8).map(drop)
    })
    .unwrap();
    end(cuda, stream).unwrap();
}
