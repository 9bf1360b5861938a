//! The device: runs what is in its queue, one kernel at a time.

use std::collections::VecDeque;

use tessera_kernel_queue::Nanos;

/// In which order kernels of different programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceOrder {
    /// In the order of launches; a kernel that has begun runs to its end.
    Launched,
    /// Time slices between programs that have something to run, as drivers do it by default.
    Slices {
        /// How long one is.
        slice: Nanos,
    },
}

/// A kernel in the device's queue.
#[derive(Clone, Copy, Debug)]
struct QueuedKernel {
    program: usize,
    left: Nanos,
    /// Whether it is an empty kernel that only brings the device to the program's context.
    recalls: bool,
}

/// What the device did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedKernel {
    /// Whose kernel ended.
    pub program: usize,
    /// Whether it was an empty kernel that brought the device to the program's context.
    pub recalls: bool,
    /// The kernel's end, in simulated time.
    pub at: Nanos,
}

/// A stretch of time in which one program's kernel ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSpan {
    /// Index of the program.
    pub program: usize,
    /// From when.
    pub from: Nanos,
    /// Until when.
    pub until: Nanos,
}

/// A device of one slice.
#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    order: DeviceOrder,
    /// The time of a context switch.
    switch: Nanos,
    queue: VecDeque<QueuedKernel>,
    now: Nanos,
    slice_end: Nanos,
    /// The program whose context the device has.
    context: Option<usize>,
    /// The rest of the current context switch.
    changing: Nanos,
    switches: u64,
    /// Every stretch of work, if they are to be kept.
    spans: Option<Vec<KernelSpan>>,
    busy: [Nanos; 2],
    behind: [KernelWaits; 2],
}

/// How kernels of one program had to wait for kernels of the other that were launched before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelWaits {
    /// How many did.
    pub kernels: u64,
    /// How long in total.
    pub total: Nanos,
    /// The longest wait.
    pub longest: Nanos,
}

impl SimulatedDevice {
    /// Begins idle. A context switch takes `switch`.
    pub fn new(order: DeviceOrder, switch: Nanos, keep_spans: bool) -> Self {
        Self {
            order,
            switch,
            queue: VecDeque::new(),
            now: Nanos::ZERO,
            slice_end: Nanos::ZERO,
            context: None,
            changing: Nanos::ZERO,
            switches: 0,
            spans: keep_spans.then(Vec::new),
            busy: [Nanos::ZERO; 2],
            behind: [KernelWaits::default(); 2],
        }
    }

    /// Puts a kernel into the queue.
    pub fn push(&mut self, program: usize, took: Nanos, now: Nanos) {
        assert!(self.now <= now, "the device is brought up to the time first");
        self.now = now;
        let contenders = self.queue.iter().filter(|queued| queued.program != program);
        let ahead = contenders.fold(Nanos::ZERO, |sum, queued| sum.plus(queued.left));
        if ahead > Nanos::ZERO {
            let waits = &mut self.behind[program];
            waits.kernels += 1;
            waits.total = waits.total.plus(ahead);
            waits.longest = waits.longest.max(ahead);
        }
        self.append(QueuedKernel { program, left: took, recalls: false });
    }

    /// Puts an empty kernel of a program into the queue, which brings the device to its context.
    pub fn recall(&mut self, program: usize, now: Nanos) {
        assert!(self.now <= now, "the device is brought up to the time first");
        self.now = now;
        self.append(QueuedKernel { program, left: Nanos::ZERO, recalls: true });
    }

    fn append(&mut self, kernel: QueuedKernel) {
        let was_idle = self.queue.is_empty();
        self.queue.push_back(kernel);
        if was_idle {
            self.enter_context();
            self.begin_slice();
        }
    }

    /// Returns when something changes by itself.
    pub fn next_change(&self) -> Nanos {
        let Some(head) = self.queue.front() else { return Nanos::MAX };
        let end = self.now.plus(self.changing).plus(head.left);
        match self.order {
            DeviceOrder::Slices { .. } if self.has_contender(head.program) => {
                end.min(self.slice_end)
            }
            DeviceOrder::Slices { .. } | DeviceOrder::Launched => end,
        }
    }

    /// Advances to a time that is not after the next change; returns the kernel that ended then.
    pub fn advance(&mut self, to: Nanos) -> Option<EndedKernel> {
        let from = to.min(self.now.plus(self.changing));
        self.changing = self.changing.minus(to.minus(self.now));
        let ran = to.minus(from);
        self.now = to;
        let head = self.queue.front_mut()?;
        let (program, recalls) = (head.program, head.recalls);
        head.left = head.left.minus(ran);
        let is_over = head.left == Nanos::ZERO && self.changing == Nanos::ZERO;
        self.note(KernelSpan { program, from, until: to });
        if is_over {
            self.queue.pop_front();
        }
        if let DeviceOrder::Slices { .. } = self.order {
            if self.slice_end <= to {
                self.switch_to(|next| next != program);
                self.enter_context();
                self.begin_slice();
            } else if is_over && !self.switch_to(|next| next == program) {
                self.enter_context();
                self.begin_slice();
            }
        }
        self.enter_context();
        is_over.then_some(EndedKernel { program, recalls, at: to })
    }

    /// Returns how long each program's kernels ran.
    pub const fn busy(&self) -> [Nanos; 2] {
        self.busy
    }

    /// Returns how kernels of each program waited for the other's, in the order of launches.
    pub const fn behind(&self) -> [KernelWaits; 2] {
        self.behind
    }

    /// Returns how often the device switched between the programs' contexts.
    pub const fn switches(&self) -> u64 {
        self.switches
    }

    /// Returns the stretches of work that were kept.
    pub fn into_spans(self) -> Vec<KernelSpan> {
        self.spans.unwrap_or_default()
    }

    fn note(&mut self, span: KernelSpan) {
        let busy = &mut self.busy[span.program];
        *busy = busy.plus(span.until.minus(span.from));
        let Some(spans) = self.spans.as_mut().filter(|_| span.from < span.until) else { return };
        match spans.last_mut() {
            Some(last) if last.program == span.program && last.until == span.from => {
                last.until = span.until;
            }
            _ => spans.push(span),
        }
    }

    /// Begins a context switch if the next kernel is of another program than the last one.
    fn enter_context(&mut self) {
        let Some(head) = self.queue.front() else { return };
        if self.context.replace(head.program).is_some_and(|last| last != head.program) {
            self.changing = self.switch;
            self.switches += 1;
        }
    }

    fn begin_slice(&mut self) {
        if let DeviceOrder::Slices { slice } = self.order {
            self.slice_end = self.now.plus(self.changing).plus(slice);
        }
    }

    fn has_contender(&self, program: usize) -> bool {
        self.queue.iter().any(|queued| queued.program != program)
    }

    /// Lets the oldest kernel of a selected program run, if there is one.
    fn switch_to(&mut self, is_next: impl Fn(usize) -> bool) -> bool {
        let place = self.queue.iter().position(|queued| is_next(queued.program));
        let next = place.and_then(|place| self.queue.remove(place));
        next.inspect(|next| self.queue.push_front(*next)).is_some()
    }
}
