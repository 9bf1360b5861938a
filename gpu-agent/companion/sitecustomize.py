"""Tessera's companion of Python programs: reports what their GPU allocator has, to the node.

The agent puts this file's folder before the user's PYTHONPATH. Python imports it at its start. It waits for the
frameworks that it knows, imports none of them, and never initialises CUDA. What it reports goes into the named
pipe TESSERA_MEMORY_PIPE, one line for each report, at most 512 bytes, so that lines of several processes never
mix:

    m PID RANK ITERATION ALLOCATED RESERVED PEAK SPLIT    memory of all devices of the process, in bytes
    o PID RANK ITERATION REQUESTED ALLOCATED FREE   the allocator gave a request up
    p PID RANK FRAMEWORK FRACTION                   the framework takes memory in advance

SPLIT is what the allocator can't return, because parts of the same segments are in use.

An iteration is a step of any optimizer, or a second in programs without one. A pipe that is full loses the
line; the program never waits. Any error silences the companion. TESSERA_COMPANION=off switches it off.

Python 3.8 or newer, standard library only.
"""

import os
import sys

_FRAMEWORKS = ("torch", "jax", "tensorflow", "vllm", "tensorrt_llm")
_PERIOD_S = 1.0
# So many reports a second at most: one costs some 50 microseconds, most of it in the framework.
_REPORTS_PER_SECOND = 10.0


class _Companion:
    """What one process reports."""

    def __init__(self, pipe):
        self.pipe = pipe
        self.fd = -1
        self.rank = os.environ.get("RANK", "0")
        self.pid = os.getpid()
        self.iteration = 0
        self.last_report = 0.0
        self.last_step = 0.0
        self.observed = False
        self.thread = None
        self.torch = None
        self.jax = None
        get = os.environ.get
        settings = get("PYTORCH_ALLOC_CONF", "") + get("PYTORCH_CUDA_ALLOC_CONF", "")
        self.is_expandable = "expandable_segments:true" in settings.lower()

    def write(self, line):
        """One write, which is whole or not at all: it also runs under the allocator's lock."""
        try:
            if self.fd < 0:
                self.fd = os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(self.fd, line.encode("ascii", "replace")[:511] + b"\n")
        except OSError:
            pass

    def report(self, now):
        """Reports the present memory, unless that was done a moment ago."""
        if now - self.last_report < 1.0 / _REPORTS_PER_SECOND:
            return
        self.last_report = now
        found = self.torch_memory() or self.jax_memory()
        if found:
            words = (self.pid, self.rank, self.iteration) + found
            self.write("m %d %s %d %d %d %d %d" % words)

    def torch_memory(self):
        """Returns allocated, reserved, peak and split bytes; None before the context exists."""
        torch = self.torch
        if torch is None or not torch.cuda.is_initialized():
            return None
        self.observe(torch)
        allocated = reserved = peak = split = 0
        for device in range(torch.cuda.device_count()):
            stats = torch.cuda.memory_stats(device)
            allocated += stats.get("allocated_bytes.all.current", 0)
            reserved += stats.get("reserved_bytes.all.current", 0)
            peak += stats.get("allocated_bytes.all.peak", 0)
            split += stats.get("inactive_split_bytes.all.current", 0)
        # Such segments return any of their pages.
        split = 0 if self.is_expandable else split
        return (allocated, reserved, peak, split) if reserved else None

    def jax_memory(self):
        """The same for JAX; its devices are looked at only once a backend exists."""
        bridge = sys.modules.get("jax._src.xla_bridge")
        backends = getattr(bridge, "_backends", None) if self.jax is not None else None
        allocated = reserved = peak = 0
        for backend in list((backends or {}).values()):
            if getattr(backend, "platform", "cpu") == "cpu":
                continue
            for device in backend.local_devices():
                stats = device.memory_stats() or {}
                used = stats.get("bytes_in_use", 0)
                allocated += used
                reserved += stats.get("pool_bytes", stats.get("bytes_reserved", used))
                peak += stats.get("peak_bytes_in_use", used)
        return (allocated, reserved, peak, 0) if peak else None

    def observe(self, torch):
        """Attaches the observer of refusals. Attaching it initialises CUDA in some versions
        (pytorch#107330), so it waits for the context."""
        if self.observed:
            return
        self.observed = True
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None:
            attach(self.refused)

    def refused(self, device, requested, allocated, free):
        """The allocator has freed its cache, tried again, and gives up."""
        words = (self.pid, self.rank, self.iteration, requested, allocated, free)
        self.write("o %d %s %d %d %d %d" % words)

    def stepped(self, *_):
        """After a step of any optimizer."""
        try:
            self.iteration += 1
            self.last_step = now = _monotonic()
            self.report(now)
        except Exception:
            pass

    def watch(self):
        """Each second, for programs that have no optimizer, and until the context exists."""
        while True:
            _sleep(_PERIOD_S)
            try:
                now = _monotonic()
                if now - self.last_step >= _PERIOD_S:
                    if self.last_step == 0.0:
                        self.iteration += 1
                    self.report(now)
                elif not self.observed:
                    self.torch_memory()
            except Exception:
                return

    def start(self):
        """Starts the thread once a framework is there."""
        if self.thread is None:
            import threading

            self.thread = threading.Thread(target=self.watch, name="tessera-companion", daemon=True)
            self.thread.start()

    def forked(self):
        """A child is another process. It gets no thread: most children load data, and those that use CUDA are
        started again, since a context does not outlive a fork."""
        self.thread = None
        self.pid = os.getpid()
        self.rank = os.environ.get("RANK", "0")
        self.iteration = 0
        self.observed = False

    def loaded(self, name, module):
        """A framework was imported."""
        if name == "torch":
            self.torch = module
            from_optim = sys.modules.get("torch.optim.optimizer")
            register = getattr(from_optim, "register_optimizer_step_post_hook", None)
            if register is not None:
                register(self.stepped)
        elif name == "jax":
            self.jax = module
        fraction = _preallocated(name)
        if fraction is not None:
            self.write("p %d %s %s %s" % (self.pid, self.rank, name, fraction))
        if name in ("torch", "jax"):
            self.start()


def _preallocated(name):
    """Returns the part of the memory that a framework takes in advance; None if it takes none."""
    get = os.environ.get
    if name == "jax":
        if get("XLA_PYTHON_CLIENT_PREALLOCATE", "true").lower() in ("false", "0"):
            return None
        if get("XLA_PYTHON_CLIENT_ALLOCATOR", "").lower() == "platform":
            return None
        return _number(get("XLA_CLIENT_MEM_FRACTION") or get("XLA_PYTHON_CLIENT_MEM_FRACTION"), 0.75)
    if name == "tensorflow":
        return None if get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() in ("true", "1") else 1.0
    if name in ("vllm", "tensorrt_llm"):
        return 0.9
    return None


def _number(text, otherwise):
    try:
        return float(text)
    except (TypeError, ValueError):
        return otherwise


class _Waiter:
    """A finder that finds nothing itself: it learns that a framework was imported."""

    def __init__(self, companion):
        self.companion = companion

    def find_spec(self, name, path=None, target=None):
        if name not in _FRAMEWORKS:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                self.follow(name, spec)
                return spec
        return None

    def follow(self, name, spec):
        """The loader stays the framework's own: tools look at its type."""
        execute = getattr(spec.loader, "exec_module", None)
        if execute is None:
            return

        def and_tell(module):
            execute(module)
            try:
                self.companion.loaded(name, module)
            except Exception:
                pass

        try:
            spec.loader.exec_module = and_tell
        except AttributeError:
            pass


def _begin():
    global _monotonic, _sleep
    from time import monotonic as _monotonic, sleep as _sleep

    pipe = os.environ.get("TESSERA_MEMORY_PIPE")
    if not pipe or os.environ.get("TESSERA_COMPANION", "").lower() in ("off", "0", "false"):
        return
    companion = _Companion(pipe)
    sys.meta_path.insert(0, _Waiter(companion))
    os.register_at_fork(after_in_child=companion.forked)


def _chain():
    """Runs the `sitecustomize` that would have been imported without this one."""
    mine = os.path.dirname(os.path.abspath(__file__))
    others = [folder for folder in sys.path if os.path.abspath(folder or ".") != mine]
    for finder in list(sys.meta_path):
        if getattr(finder, "__name__", "") != "PathFinder":
            continue
        spec = finder.find_spec("sitecustomize", others)
        if spec is None or spec.loader is None:
            continue
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)
        return


try:
    _begin()
except Exception:
    pass
_chain()
