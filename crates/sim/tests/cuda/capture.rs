//! Streams that are captured, and the graphs that come of it.

use std::ptr;

use tessera_sim::cuda::program::{Cuda, CudaError, Handle};
use tessera_sim::cuda_call;

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

fn begin(cuda: &Cuda, stream: Handle, mode: i32) -> Result<(), CudaError> {
    cuda_call!(cuda, cuStreamBeginCapture_v2(stream => Handle, mode => i32))
}

fn end(cuda: &Cuda, stream: Handle) -> Result<Handle, CudaError> {
    let mut graph = Handle::NULL;
    cuda_call!(cuda, cuStreamEndCapture(stream => Handle, &mut graph => *mut Handle))?;
    Ok(graph)
}

fn status(cuda: &Cuda, stream: Handle) -> i32 {
    let mut status = -1;
    cuda_call!(cuda, cuStreamIsCapturing(stream => Handle, &mut status => *mut i32)).unwrap();
    status
}

fn wait_event(cuda: &Cuda, stream: Handle, event: Handle) -> Result<(), CudaError> {
    cuda_call!(cuda, cuStreamWaitEvent(stream => Handle, event => Handle, 0 => u32))
}

fn count(cuda: &Cuda, graph: Handle) -> usize {
    let mut count = 0;
    cuda_call!(
        cuda,
        cuGraphGetNodes(graph => Handle, ptr::null_mut() => *mut Handle, &mut count => *mut usize)
    )
    .unwrap();
    count
}

fn instantiate(cuda: &Cuda, graph: Handle) -> Handle {
    let mut exec = Handle::NULL;
    cuda_call!(
        cuda,
        cuGraphInstantiateWithFlags(&mut exec => *mut Handle, graph => Handle, 0 => u64)
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
        cuda_call!(cuda, cuGraphLaunch(exec => Handle, stream => Handle)).unwrap();
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
    cuda.record(outside, Handle::NULL).unwrap();
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
    spoilt(RELAXED, 907, &|| cuda_call!(cuda, cuEventQuery(inside => Handle)));
    spoilt(RELAXED, 905, &|| wait_event(cuda, stream, outside));

    begin(cuda, stream, RELAXED).unwrap();
    let address = cuda.allocate(8).unwrap();
    cuda.free(address).unwrap();
    assert_eq!(code(begin(cuda, stream, RELAXED)), Some(401), "already");
    end(cuda, stream).unwrap();

    // The legacy stream would have to wait for a captured one that waits for it.
    begin(cuda, blocking, RELAXED).unwrap();
    assert_eq!(code(cuda.launch(a, ONE, Handle::NULL, &[])), Some(906));
    assert_eq!(code(end(cuda, blocking)), Some(901));
    assert_eq!(code(begin(cuda, Handle::NULL, RELAXED)), Some(900));
}

#[test]
fn another_thread_must_not_disturb_a_global_capture_nor_end_a_local_one() {
    let rig = Rig::new();
    let cuda = &rig.cuda;
    let mut context = Handle::NULL;
    cuda_call!(cuda, cuCtxGetCurrent(&mut context => *mut Handle)).unwrap();
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
