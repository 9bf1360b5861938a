//! Graphs, and streams that are captured into them.

use std::collections::{BTreeMap, BTreeSet};

use super::work::StreamStep;
use super::{DriverState, LaneKind};
use crate::abi::{CallResult, CudaCode, H};

/// A capture in progress.
pub struct StreamCapture {
    pub origin: u64,
    pub mode: i32,
    pub thread: i32,
    pub graph: H,
    pub invalid: bool,
    /// Lanes that are part of it, each with the nodes on which its next one depends.
    pub lanes: BTreeMap<u64, Vec<usize>>,
}

/// Modes of a capture.
pub const GLOBAL: i32 = 0;
pub const RELAXED: i32 = 2;

#[derive(Default)]
pub struct CudaGraph {
    pub nodes: Vec<InstantiatedNode>,
    /// Belongs to a capture in progress.
    pub captured: bool,
}

/// A node in its graph: only ever after those on which it depends.
#[derive(Clone)]
pub struct InstantiatedNode {
    pub handle: H,
    pub step: StreamStep,
    pub deps: Vec<usize>,
}

/// What a node's handle names.
pub struct GraphNode {
    pub graph: H,
    pub index: usize,
}

/// A graph that can be launched.
pub struct GraphExec {
    pub context: u64,
    /// What it does, in an order that keeps all dependencies.
    pub steps: Vec<StreamStep>,
}

/// The result of adding a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// It is in a stream, at this place.
    Queued { lane: u64, seq: u64 },
    /// It is in a graph.
    Captured,
}

impl DriverState {
    /// Adds a node to a graph.
    pub fn add_node(&mut self, graph: H, step: StreamStep, deps: Vec<usize>) -> CallResult<H> {
        let index = self.graphs.get(graph)?.nodes.len();
        if deps.iter().any(|dep| *dep >= index) {
            return Err(CudaCode::INVALID_VALUE);
        }
        let handle = self.nodes.add(GraphNode { graph, index });
        self.graphs.get_mut(graph)?.nodes.push(InstantiatedNode { handle, step, deps });
        Ok(handle)
    }

    /// Removes a graph with its nodes.
    pub fn destroy_graph(&mut self, graph: H) -> CallResult {
        for node in self.graphs.remove(graph)?.nodes {
            self.nodes.remove(node.handle)?;
        }
        Ok(())
    }

    /// Does a step on a lane: now, or as a part of what is captured.
    pub fn put(&mut self, lane: u64, step: StreamStep, now: u64) -> CallResult<PutOutcome> {
        if let Some(capture) = self.lane(lane)?.capture {
            self.capture_step(capture, lane, step)?;
            return Ok(PutOutcome::Captured);
        }
        self.refuse_implicit(lane)?;
        let context = self.lane(lane)?.context;
        let what = self.what(context, step, lane)?;
        let seq = self.enqueue(lane, Vec::new(), what, now);
        Ok(PutOutcome::Queued { lane, seq })
    }

    /// The legacy stream would wait for a captured one, which can't be waited for.
    pub fn refuse_implicit(&mut self, lane: u64) -> CallResult {
        let own = self.lane(lane)?;
        if own.kind != LaneKind::Legacy {
            return Ok(());
        }
        let context = own.context;
        let lanes = &self.lanes;
        let caught = self.captures.values_mut().find(|capture| {
            capture.lanes.keys().any(|lane| {
                lanes.get(lane).is_some_and(|lane| {
                    lane.context == context
                        && matches!(lane.kind, LaneKind::Blocking | LaneKind::PerThread)
                })
            })
        });
        match caught {
            None => Ok(()),
            Some(capture) => {
                capture.invalid = true;
                Err(CudaCode::STREAM_CAPTURE_IMPLICIT)
            }
        }
    }

    fn capture_step(&mut self, id: u64, lane: u64, step: StreamStep) -> CallResult {
        let capture = self.capture(id)?;
        if matches!(step, StreamStep::Free(_) | StreamStep::Callback { .. }) {
            capture.invalid = true;
            return Err(CudaCode::STREAM_CAPTURE_UNSUPPORTED);
        }
        let deps = capture.lanes.get(&lane).cloned().unwrap_or_default();
        if let StreamStep::Record(event) = step {
            self.events.get_mut(event)?.captured = Some((id, deps));
            return Ok(());
        }
        let graph = capture.graph;
        self.add_node(graph, step, deps)?;
        let index = self.graphs.get(graph)?.nodes.len() - 1;
        self.capture(id)?.lanes.insert(lane, vec![index]);
        Ok(())
    }

    /// Finds a capture that is still valid.
    fn capture(&mut self, id: u64) -> CallResult<&mut StreamCapture> {
        let capture = self.captures.get_mut(&id).ok_or(CudaCode::ILLEGAL_STATE)?;
        if capture.invalid { Err(CudaCode::STREAM_CAPTURE_INVALIDATED) } else { Ok(capture) }
    }

    /// Lets a lane wait for an event: in order, or as a part of what is captured.
    pub fn wait_event(&mut self, lane: u64, event: H, now: u64) -> CallResult {
        let found = self.events.get(event)?;
        let (place, captured) = (found.place, found.captured.clone());
        let own = self.lane(lane)?.capture;
        match (own, captured) {
            (None, None) => {
                self.refuse_implicit(lane)?;
                let deps: Vec<_> =
                    place.into_iter().filter(|place| !self.is_over(*place)).collect();
                if !deps.is_empty() {
                    self.enqueue(lane, deps, super::OperationKind::Nothing, now);
                }
                Ok(())
            }
            (Some(own), None) => {
                // Nothing outside is part of it.
                self.capture(own)?.invalid = true;
                Err(CudaCode::STREAM_CAPTURE_ISOLATION)
            }
            (own, Some((id, deps))) => {
                if own.is_some_and(|own| own != id) {
                    self.capture(id)?.invalid = true;
                    return Err(CudaCode::STREAM_CAPTURE_MERGE);
                }
                let mut joined: BTreeSet<_> = deps.into_iter().collect();
                let capture = self.capture(id)?;
                joined.extend(capture.lanes.get(&lane).cloned().unwrap_or_default());
                capture.lanes.insert(lane, joined.into_iter().collect());
                self.lane(lane)?.capture = Some(id);
                Ok(())
            }
        }
    }

    /// Begins to capture a lane.
    pub fn begin_capture(&mut self, lane: u64, mode: i32) -> CallResult {
        if !(GLOBAL..=RELAXED).contains(&mode) {
            return Err(CudaCode::INVALID_VALUE);
        }
        let own = self.lane(lane)?;
        if own.kind == LaneKind::Legacy {
            return Err(CudaCode::STREAM_CAPTURE_UNSUPPORTED);
        }
        if own.capture.is_some() {
            return Err(CudaCode::ILLEGAL_STATE);
        }
        let graph = self.graphs.add(CudaGraph { nodes: Vec::new(), captured: true });
        let id = self.number();
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let lanes = BTreeMap::from([(lane, Vec::new())]);
        let capture = StreamCapture { origin: lane, mode, thread, graph, invalid: false, lanes };
        self.captures.insert(id, capture);
        self.lane(lane)?.capture = Some(id);
        Ok(())
    }

    /// Ends a capture; returns its graph.
    pub fn end_capture(&mut self, lane: u64) -> CallResult<H> {
        let id = self.lane(lane)?.capture.ok_or(CudaCode::ILLEGAL_STATE)?;
        let capture = self.captures.get(&id).ok_or(CudaCode::ILLEGAL_STATE)?;
        if capture.origin != lane {
            return Err(CudaCode::STREAM_CAPTURE_UNMATCHED);
        }
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        if capture.mode != RELAXED && capture.thread != thread {
            return Err(CudaCode::STREAM_CAPTURE_WRONG_THREAD);
        }
        let capture = self.captures.remove(&id).ok_or(CudaCode::ILLEGAL_STATE)?;
        for lane in capture.lanes.keys() {
            if let Some(lane) = self.lanes.get_mut(lane) {
                lane.capture = None;
            }
        }
        self.events.for_each(|event| {
            if event.captured.as_ref().is_some_and(|(of, _)| *of == id) {
                event.captured = None;
            }
        });
        let refusal = if capture.invalid {
            Some(CudaCode::STREAM_CAPTURE_INVALIDATED)
        } else {
            (!self.is_joined(&capture)?).then_some(CudaCode::STREAM_CAPTURE_UNJOINED)
        };
        if let Some(refusal) = refusal {
            self.destroy_graph(capture.graph)?;
            return Err(refusal);
        }
        self.graphs.get_mut(capture.graph)?.captured = false;
        Ok(capture.graph)
    }

    /// Returns whether all nodes of other lanes are ahead of the origin's last ones.
    fn is_joined(&self, capture: &StreamCapture) -> CallResult<bool> {
        let nodes = &self.graphs.get(capture.graph)?.nodes;
        let mut ahead = BTreeSet::new();
        let mut open: Vec<_> = capture.lanes.get(&capture.origin).cloned().unwrap_or_default();
        while let Some(index) = open.pop() {
            if ahead.insert(index) {
                open.extend(&nodes[index].deps);
            }
        }
        Ok((0..nodes.len()).all(|index| ahead.contains(&index)))
    }

    /// Refuses a call that would disturb captures: those of the thread, and global ones.
    pub fn refuse_unsafe(&mut self) -> CallResult {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let own_mode = crate::capture_mode::get();
        let disturbed = self.captures.values_mut().find(|capture| {
            let own = capture.thread == thread;
            let by_capture = match capture.mode {
                GLOBAL => true,
                RELAXED => false,
                _ => own,
            };
            let by_thread = match own_mode {
                GLOBAL => true,
                RELAXED => false,
                _ => own,
            };
            by_capture && by_thread
        });
        match disturbed {
            None => Ok(()),
            Some(capture) => {
                capture.invalid = true;
                Err(CudaCode::STREAM_CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// Returns a capture's graph, and the nodes on which a lane's next one depends.
    pub fn deps_of_capture(&self, id: u64, lane: u64) -> CallResult<(H, Vec<H>)> {
        let capture = self.captures.get(&id).ok_or(CudaCode::ILLEGAL_STATE)?;
        let nodes = &self.graphs.get(capture.graph)?.nodes;
        let deps = capture.lanes.get(&lane).into_iter().flatten();
        Ok((capture.graph, deps.map(|index| nodes[*index].handle).collect()))
    }

    /// Lends a list to the program: valid until the next is lent, as the driver has it.
    pub fn lend_handles(&mut self, handles: Vec<H>) -> *const H {
        self.lent = handles;
        self.lent.as_ptr()
    }

    /// Refuses to wait for or query a lane that is captured.
    pub fn refuse_captured(&mut self, lane: u64) -> CallResult {
        let Some(id) = self.lane(lane)?.capture else { return self.refuse_implicit(lane) };
        if let Some(capture) = self.captures.get_mut(&id) {
            capture.invalid = true;
        }
        Err(CudaCode::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Launches a graph on a lane: its nodes one after another. As part of a capture they become
    /// nodes of that.
    pub fn launch_graph(&mut self, exec: H, lane: u64, now: u64) -> CallResult {
        let steps = self.execs.get(exec)?.steps.clone();
        for step in steps {
            self.put(lane, step, now)?;
        }
        Ok(())
    }
}
