"""The CUDA driver's C interface by ctypes, and kernels that take a chosen time.

Kernels are PTX text that the driver compiles, so no toolkit is needed. The driver's stand-in computes nothing:
there a module states how long its kernels take. A driver that accepts such a module is the stand-in.
"""

import ctypes
import time

COUNTERS = (
    "state", "role", "reported", "passed", "granted", "ungranted", "waited_max_ns", "sessions", "samples", "lost",
    "unhooked", "memory_used", "memory_peak", "in_flight", "launches", "allocations",
)
ROLES = ("none", "measure", "free", "hold", "fill")
ACTIVE = 4

NON_BLOCKING = 1
LEGACY, PER_THREAD = 1, 2

WORK_PTX = """.version 6.3
.target sm_75
.address_size 64
.visible .entry %(name)s(.param .u64 iterations, .param .u64 out)
{
  .reg .pred %%p<3>;
  .reg .b32 %%r<3>;
  .reg .b64 %%rd<6>;
  .reg .f32 %%f<3>;
  ld.param.u64 %%rd1, [iterations];
  ld.param.u64 %%rd2, [out];
  cvta.to.global.u64 %%rd3, %%rd2;
  mov.u32 %%r1, %%tid.x;
  cvt.rn.f32.u32 %%f1, %%r1;
  mov.u64 %%rd4, 0;
NEXT:
  fma.rn.f32 %%f1, %%f1, 0f3F7FFFFF, 0f3F800000;
  fma.rn.f32 %%f1, %%f1, 0f3F7FFFFF, 0f3F800000;
  fma.rn.f32 %%f1, %%f1, 0f3F7FFFFF, 0f3F800000;
  fma.rn.f32 %%f1, %%f1, 0f3F7FFFFF, 0f3F800000;
  add.u64 %%rd4, %%rd4, 1;
  setp.lt.u64 %%p1, %%rd4, %%rd1;
  @%%p1 bra NEXT;
  setp.neu.f32 %%p2, %%f1, 0fBF800000;
  @%%p2 bra DONE;
  st.global.f32 [%%rd3], %%f1;
DONE:
  ret;
}
"""

# x = a * x + b modulo 2^64: a launch that is lost, repeated or out of order changes the result.
STEP_PTX = """.version 6.3
.target sm_75
.address_size 64
.visible .entry tessera_step(.param .u64 x, .param .u64 a, .param .u64 b)
{
  .reg .b64 %rd<7>;
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [a];
  ld.param.u64 %rd3, [b];
  cvta.to.global.u64 %rd4, %rd1;
  ld.global.u64 %rd5, [%rd4];
  mad.lo.u64 %rd6, %rd5, %rd2, %rd3;
  st.global.u64 [%rd4], %rd6;
  ret;
}
"""

# One thread watches the device's clock for `length` ns and writes down each time at which it saw nothing for
# longer than `least`: then the device did something else.
TURNS_PTX = """.version 6.3
.target sm_75
.address_size 64
.visible .entry tessera_turns(.param .u64 length, .param .u64 least, .param .u64 most, .param .u64 out)
{
  .reg .pred %p<4>;
  .reg .b64 %rd<16>;
  ld.param.u64 %rd1, [length];
  ld.param.u64 %rd2, [least];
  ld.param.u64 %rd3, [most];
  ld.param.u64 %rd4, [out];
  cvta.to.global.u64 %rd5, %rd4;
  mov.u64 %rd6, %globaltimer;
  mov.u64 %rd7, %rd6;
  mov.u64 %rd8, 0;
  add.u64 %rd9, %rd5, 24;
NEXT:
  mov.u64 %rd10, %globaltimer;
  sub.u64 %rd11, %rd10, %rd7;
  setp.le.u64 %p1, %rd11, %rd2;
  @%p1 bra SAME;
  setp.ge.u64 %p2, %rd8, %rd3;
  @%p2 bra SAME;
  st.global.u64 [%rd9], %rd7;
  st.global.u64 [%rd9+8], %rd10;
  add.u64 %rd9, %rd9, 16;
  add.u64 %rd8, %rd8, 1;
SAME:
  mov.u64 %rd7, %rd10;
  sub.u64 %rd12, %rd10, %rd6;
  setp.lt.u64 %p3, %rd12, %rd1;
  @%p3 bra NEXT;
  st.global.u64 [%rd5], %rd8;
  st.global.u64 [%rd5+8], %rd6;
  st.global.u64 [%rd5+16], %rd10;
  ret;
}
"""


class CudaError(RuntimeError):
    """The driver refused a call."""

    def __init__(self, name, code):
        super().__init__("%s returned %d" % (name, code))
        self.code = code


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    ]


class Driver:
    """The driver, or the shim in front of it: the library that the loader finds."""

    def __init__(self, path="libcuda.so.1"):
        self.library = ctypes.CDLL(path)
        self.is_stand_in = False

    def call(self, name, *arguments):
        """Calls a function of the driver."""
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise CudaError(name, code)

    def open(self):
        """Initialises the driver and enters the first device's primary context."""
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.context = context
        self.enter()
        try:
            self.load("FKCU1\nkernel probe dur=1us\n")
            self.is_stand_in = True
        except CudaError:
            self.is_stand_in = False
        return self

    def close(self):
        """Leaves the device in order. An MPS server takes a client that just vanishes for a fault."""
        self.call("cuDevicePrimaryCtxRelease_v2", 0)

    def enter(self):
        """Makes the context that of the calling thread."""
        self.call("cuCtxSetCurrent", self.context)

    def uuid(self):
        """Returns the UUID of the first device as NVML writes it: of a MIG device if it is one."""
        whole, own = ctypes.create_string_buffer(16), ctypes.create_string_buffer(16)
        self.call("cuDeviceGetUuid", whole, 0)
        try:
            self.call("cuDeviceGetUuid_v2", own, 0)
        except (AttributeError, CudaError):
            own = whole
        digits = own.raw.hex()
        prefix = "GPU" if own.raw == whole.raw else "MIG"
        return "-".join((prefix, digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def name(self):
        """Returns the name of the first device."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, 256, 0)
        return text.value.decode()

    def attribute(self, number):
        """Returns an attribute of the first device."""
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, 0)
        return value.value

    def version(self):
        """Returns the CUDA version that the driver serves, such as 12090."""
        value = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(value))
        return value.value

    def load(self, text):
        """Loads a module from its text."""
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(text.encode() + b"\0"))
        return module

    def function(self, module, name):
        """Returns a function of a module."""
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def allocate(self, size):
        """Allocates device memory, filled with zeros."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        self.call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        return pointer.value

    def read(self, pointer, count):
        """Reads 64-bit numbers from device memory."""
        numbers = (ctypes.c_uint64 * count)()
        self.call("cuMemcpyDtoH_v2", numbers, ctypes.c_uint64(pointer), ctypes.c_size_t(8 * count))
        return list(numbers)

    def write(self, pointer, value):
        """Writes a 64-bit number to device memory."""
        number = ctypes.c_uint64(value)
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), ctypes.byref(number), ctypes.c_size_t(8))

    def stream(self):
        """Makes a stream that does not wait for the legacy default stream."""
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        return stream

    def synchronize(self, stream=None):
        """Waits for a stream, or for the device."""
        if stream is None:
            self.call("cuCtxSynchronize")
        else:
            self.call("cuStreamSynchronize", stream)

    def capture(self, stream, work):
        """Captures what `work` launches on the stream, and returns the graph that can be launched."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", stream, 1)
        try:
            work()
        finally:
            self.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
        return executable

    def counters(self):
        """Returns the shim's counters; None without the shim."""
        try:
            read = self.library.tessera_kernel_shim_counters
        except AttributeError:
            return None
        numbers = (ctypes.c_uint64 * len(COUNTERS))()
        read.restype = ctypes.c_size_t
        read(numbers, ctypes.c_size_t(len(COUNTERS)))
        return dict(zip(COUNTERS, numbers))

    def role(self):
        """Returns the name of the process' role."""
        counters = self.counters()
        return ROLES[counters["role"]] if counters and counters["state"] == ACTIVE else "none"


class Launch:
    """One launch with all of its arguments, ready to be made again and again."""

    def __init__(self, driver, function, arguments, grid=1, block=1):
        self.driver, self.function = driver, function
        self.grid, self.block = grid, block
        self.values = [ctypes.c_uint64(value) for value in arguments]
        pointers = [ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in self.values]
        self.pointers = (ctypes.c_void_p * len(pointers))(*pointers)

    def go(self, stream=None, grid=None, block=None, symbol="cuLaunchKernel"):
        """Launches."""
        self.driver.call(
            symbol, self.function, grid or self.grid, 1, 1, block or self.block, 1, 1, 0, stream, self.pointers, None
        )

    def go_ex(self, stream=None):
        """Launches by the call that takes a structure."""
        stream = stream.value if isinstance(stream, ctypes.c_void_p) else stream
        config = LaunchConfig((self.grid, 1, 1), (self.block, 1, 1), 0, stream, None, 0)
        self.driver.call("cuLaunchKernelEx", ctypes.byref(config), self.function, self.pointers, None)


def work(driver, name, milliseconds, iterations_per_ms, grid=64, block=256):
    """Returns a launch of a kernel that works for so long.

    It does a fixed number of dependent steps: while another context has the device, it does not go on.
    """
    if driver.is_stand_in:
        module = driver.load("FKCU1\nkernel %s params=8,8 dur=%dns\n" % (name, round(milliseconds * 1e6)))
    else:
        module = driver.load(WORK_PTX % {"name": name})
    iterations = max(1, round(milliseconds * iterations_per_ms))
    out = driver.allocate(8)
    return Launch(driver, driver.function(module, name), (iterations, out), grid, block)


def calibrate(driver):
    """Returns how many iterations of the work kernel the device does in a millisecond; 1 on the stand-in."""
    if driver.is_stand_in:
        return 1
    launch = work(driver, "tessera_calibrate", 1, 1)
    iterations, took = 20_000, 0.0
    # The first rounds also let the clocks rise.
    begun = time.monotonic()
    while took < 0.020 or time.monotonic() - begun < 1.0:
        if took < 0.020:
            iterations *= 2
        launch.values[0].value = iterations
        start = time.monotonic()
        launch.go()
        driver.synchronize()
        took = time.monotonic() - start
    times = []
    for _ in range(9):
        start = time.monotonic()
        launch.go()
        driver.synchronize()
        times.append(time.monotonic() - start)
    return iterations / (sorted(times)[4] * 1e3)
