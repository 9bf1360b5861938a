// A CUDA driver for the shim's tests. It has every function of the table up to a version, revisions as
// cuGetProcAddress returns them, and a device that runs one kernel after the other in real time. Durations
// stand in kernels' names: "k500" takes 500 microseconds.
//
// TABLE is a header of ROW(index, name, version, twin, symbol) lines.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <time.h>

typedef void *H;
typedef int R;

enum { SLOTS = 1024, STREAMS = 64 };
static unsigned long calls[SLOTS];
static int codes[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct row {
  const char *name;
  int version;
  const char *twin;
  const char *symbol;
};
static const struct row rows[] = {
#define ROW(i, name, version, twin, symbol) [i] = {#name, version, twin, #symbol},
#define OWN(i, name, version, twin, symbol) [i] = {#name, version, twin, #symbol},
#include TABLE
#undef ROW
#undef OWN
};
enum { ROWS = sizeof rows / sizeof *rows };

// A function that is not defined below counts its calls and returns what the test has set.
#define ROW(i, name, version, twin, symbol) R symbol(void) { __atomic_add_fetch(&calls[i], 1, 0); return codes[i]; }
#define OWN(i, name, version, twin, symbol) enum { at_##symbol = i }; R symbol();
#include TABLE
#undef ROW
#undef OWN
static void *const functions[] = {
#define ROW(i, name, version, twin, symbol) [i] = (void *)symbol,
#define OWN(i, name, version, twin, symbol) [i] = (void *)symbol,
#include TABLE
};

static int slot(const char *symbol) {
  for (int i = 0; i < ROWS; i++)
    if (rows[i].symbol && !strcmp(rows[i].symbol, symbol)) return i;
  return -1;
}
// For tests: how often a function was called, and what it is to return.
unsigned long fake_calls(const char *symbol) { int i = slot(symbol); return i < 0 ? 0 : calls[i]; }
unsigned long fake_all_calls(void) {
  unsigned long sum = 0;
  for (int i = 0; i < ROWS; i++) sum += calls[i];
  return sum;
}
void fake_answer(const char *symbol, int code) { int i = slot(symbol); if (i >= 0) codes[i] = code; }
static int driver_version(void) {
  const char *text = getenv("FAKE_VERSION");
  return text ? atoi(text) : 12040;
}
#define CALLED(symbol) do { __atomic_add_fetch(&calls[at_##symbol], 1, 0); if (codes[at_##symbol]) return codes[at_##symbol]; } while (0)

static int initialised;
R cuInit(unsigned flags) { CALLED(cuInit); (void)flags; initialised = 1; return 0; }
R cuDriverGetVersion(int *out) { CALLED(cuDriverGetVersion); *out = driver_version(); return 0; }
R cuDeviceGetCount(int *out) { CALLED(cuDeviceGetCount); if (!initialised) return 3; *out = 1; return 0; }
R cuCtxGetDevice(int *out) { CALLED(cuCtxGetDevice); if (!initialised) return 3; *out = 0; return 0; }
static R uuid(unsigned char *out) { for (int i = 0; i < 16; i++) out[i] = 0x10 + i; return 0; }
R cuDeviceGetUuid(unsigned char *out, int device) { CALLED(cuDeviceGetUuid); (void)device; return uuid(out); }
#if VERSION >= 11040
R cuDeviceGetUuid_v2(unsigned char *out, int device) { CALLED(cuDeviceGetUuid_v2); (void)device; return uuid(out); }
#endif

// An A100's limits of an SM, as the driver numbers its attributes.
R cuDeviceGetAttribute(int *out, int attribute, int device) {
  CALLED(cuDeviceGetAttribute);
  (void)device;
  switch (attribute) {
    case 1: *out = 1024; break;
    case 16: *out = 108; break;
    case 39: *out = 2048; break;
    case 81: *out = 167936; break;
    case 82: *out = 65536; break;
    case 106: *out = 32; break;
    case 111: *out = 1024; break;
    default: *out = 0;
  }
  return 0;
}
// Every function has 64 registers and 1 KiB of static shared memory.
static R function_attribute(int *out, int attribute) {
  switch (attribute) {
    case 0: *out = 1024; break;
    case 1: *out = 1024; break;
    case 4: *out = 64; break;
    default: *out = 0;
  }
  return 0;
}
R cuFuncGetAttribute(int *out, int attribute, H function) {
  CALLED(cuFuncGetAttribute);
  (void)function;
  return function_attribute(out, attribute);
}
#if VERSION >= 12000
R cuKernelGetAttribute(int *out, int attribute, H kernel, int device) {
  CALLED(cuKernelGetAttribute);
  (void)kernel; (void)device;
  return function_attribute(out, attribute);
}
#endif

static void *best(const char *name, int version, unsigned long flags, int *status) {
  int found = -1, any = 0;
  for (int i = 0; i < ROWS; i++) {
    if (!rows[i].symbol || rows[i].version == 0) continue;
    if (strcmp(rows[i].name, name)) continue;
    any = 1;
    if (rows[i].version > version || rows[i].version > driver_version()) continue;
    int twin = *rows[i].twin != '-';
    if (twin && !(flags & 2)) continue;
    if (found < 0 || rows[i].version > rows[found].version ||
        (rows[i].version == rows[found].version && twin) ||
        // A twin for the newest revision is better than the revision itself.
        (twin && !strncmp(rows[i].symbol, rows[found].symbol, strlen(rows[found].symbol))))
      found = i;
  }
  *status = found >= 0 ? 0 : any ? 2 : 1;
  return found >= 0 ? functions[found] : NULL;
}
R cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) {
  CALLED(cuGetProcAddress);
  if (!name || !out || version > driver_version()) return 1;
  int status;
  *out = best(name, version, flags, &status);
  return *out ? 0 : 500;
}
#if VERSION >= 12000
R cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
  CALLED(cuGetProcAddress_v2);
  if (!name || !out || version > driver_version()) return 1;
  int found;
  *out = best(name, version, flags, &found);
  if (status) *status = found;
  return 0;
}
#endif

// By value on the stack and in all kinds of registers: what stubs must keep.
struct ipc { char bytes[64]; };
static struct ipc ipc_seen;
R cuIpcOpenMemHandle_v2(uint64_t *out, struct ipc handle, unsigned flags) {
  CALLED(cuIpcOpenMemHandle_v2);
  ipc_seen = handle;
  *out = 0x1000 + flags;
  return 0;
}
void fake_ipc(char *out) { memcpy(out, ipc_seen.bytes, 64); }
static char all_seen[512];
R cuMemGetAttribute_fake(void);
R cuGraphAddMemcpyNode(long a, long b, long c, long d, long e, long f, double x0, double x1, double x2, double x3,
                       double x4, double x5, double x6, double x7, long s0, long s1) {
  CALLED(cuGraphAddMemcpyNode);
  snprintf(all_seen, sizeof all_seen, "%ld %ld %ld %ld %ld %ld %g %g %g %g %g %g %g %g %ld %ld", a, b, c, d, e, f, x0, x1,
           x2, x3, x4, x5, x6, x7, s0, s1);
  return 0;
}
const char *fake_arguments(void) { return all_seen; }

// --- modules -------------------------------------------------------------------------------
// A handle is a place in a table, and places are used again: as with a real driver.
enum { FUNCTIONS = 256 };
static struct function { char name[128]; H owner; int used; } table[FUNCTIONS];
static uintptr_t modules;
static struct function *take(H owner, const char *name) {
  pthread_mutex_lock(&lock);
  struct function *found = NULL;
  for (int i = 0; i < FUNCTIONS && !found; i++)
    if (table[i].used && table[i].owner == owner && !strcmp(table[i].name, name)) found = &table[i];
  for (int i = 0; i < FUNCTIONS && !found; i++)
    if (!table[i].used) {
      found = &table[i];
      found->used = 1;
      found->owner = owner;
      snprintf(found->name, sizeof found->name, "%s", name);
    }
  pthread_mutex_unlock(&lock);
  return found;
}
static void unload(H owner) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < FUNCTIONS; i++)
    if (table[i].used && table[i].owner == owner) table[i].used = 0;
  pthread_mutex_unlock(&lock);
}
R cuCtxGetCurrent(H *out) { CALLED(cuCtxGetCurrent); *out = (H)0xc0de0; return 0; }
R cuStreamCreate(H *out, unsigned flags) { CALLED(cuStreamCreate); (void)flags; *out = (H)0x55550; return 0; }
R cuModuleLoadData(H *out, const void *image) {
  CALLED(cuModuleLoadData);
  (void)image;
  *out = (H)(0x10000 + 16 * __atomic_add_fetch(&modules, 1, 0));
  return 0;
}
R cuModuleUnload(H module) { CALLED(cuModuleUnload); unload(module); return 0; }
R cuModuleGetFunction(H *out, H module, const char *name) { CALLED(cuModuleGetFunction); *out = take(module, name); return 0; }
#if VERSION >= 12000
R cuLibraryLoadData(H *out, const void *image) { CALLED(cuLibraryLoadData); return cuModuleLoadData(out, image); }
R cuLibraryUnload(H library) { CALLED(cuLibraryUnload); unload(library); return 0; }
R cuLibraryGetKernel(H *out, H library, const char *name) { CALLED(cuLibraryGetKernel); *out = take(library, name); return 0; }
#endif
#if VERSION >= 12030
R cuFuncGetName(const char **out, H function) { CALLED(cuFuncGetName); *out = ((struct function *)function)->name; return 0; }
R cuKernelGetName(const char **out, H kernel) { CALLED(cuKernelGetName); *out = ((struct function *)kernel)->name; return 0; }
#endif

// --- the device ----------------------------------------------------------------------------
static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static int64_t tail;
static unsigned long launches, in_flight_max;
static int64_t ends[4096];
static unsigned long first_end, last_end;
static int capturing;
static struct function *nodes[64];
static unsigned node_count;
static unsigned long captured;
static uint64_t order = 1;

// What each stream's kernels have computed. 0 and 1 are the legacy stream, 2 is the thread's own, and so is 0
// to functions that end in _ptsz.
static struct { H stream; pthread_t thread; uint64_t x; } sums[128];
static unsigned sum_count;
static uint64_t *sum_of(H stream, int per_thread) {
  if (stream == (H)2 || (per_thread && !stream)) { stream = (H)2; per_thread = 1; } else per_thread = 0;
  if (stream == (H)1) stream = NULL;
  pthread_t thread = per_thread ? pthread_self() : (pthread_t)0;
  unsigned i = 0;
  while (i < sum_count && !(sums[i].stream == stream && pthread_equal(sums[i].thread, thread))) i++;
  if (i == sum_count && sum_count < 127) {
    sums[sum_count].stream = stream;
    sums[sum_count].thread = thread;
    sums[sum_count++].x = 1;
  }
  return &sums[i].x;
}
// The sum over all streams, whatever their names and their order.
uint64_t fake_sums(void) {
  uint64_t all = 0;
  for (unsigned i = 0; i < sum_count; i++) all += (sums[i].x ^ sums[i].x >> 29) * 0x9e3779b97f4a7c15;
  return all;
}

// The kernels' effect: x = 5x + (number in the name), so that a launch that is lost, doubled or
// moved shows.
static R run_on(struct function *what, H stream, int per_thread) {
  const char *digits = what->name;
  while (*digits && (*digits < '0' || *digits > '9')) digits++;
  int64_t lasts = atoll(digits) * 1000;
  // A host that is delayed on its way to the device, one time in ten.
  static unsigned stalls;
  if (!strncmp(what->name, "stall", 5) && ++stalls % 10 == 0) usleep(5000);
  pthread_mutex_lock(&lock);
  if (capturing && stream == (H)0x77770) {
    captured++;
    if (node_count < 64) nodes[node_count++] = what;
    pthread_mutex_unlock(&lock);
    return 0;
  }
  int64_t start = now();
  if (tail > start) start = tail;
  tail = start + lasts;
  while (first_end < last_end && ends[first_end % 4096] <= now()) first_end++;
  if (last_end - first_end < 4095) ends[last_end++ % 4096] = tail;
  if (last_end - first_end > in_flight_max) in_flight_max = last_end - first_end;
  launches++;
  order = order * 5 + (uint64_t)atoll(digits);
  uint64_t *x = sum_of(stream, per_thread);
  *x = *x * 5 + (uint64_t)atoll(digits);
  pthread_mutex_unlock(&lock);
  return 0;
}
static R run(struct function *what, H stream) { return run_on(what, stream, 0); }
unsigned long fake_launches(void) { return launches; }
unsigned long fake_in_flight_max(void) { return in_flight_max; }
unsigned long fake_captured(void) { return captured; }
uint64_t fake_order(void) { return order; }
static void sleep_until(int64_t then) {
  struct timespec t = {then / 1000000000LL, then % 1000000000LL};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) {}
}
#define LAUNCH H f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned s, H stream, void **p, void **e
#define UNUSED (void)gx; (void)gy; (void)gz; (void)bx; (void)by; (void)bz; (void)s; (void)p; (void)e
R cuLaunchKernel(LAUNCH) { CALLED(cuLaunchKernel); UNUSED; return run(f, stream); }
R cuLaunchKernel_ptsz(LAUNCH) { CALLED(cuLaunchKernel_ptsz); UNUSED; return run_on(f, stream, 1); }
R cuCtxSynchronize(void) { CALLED(cuCtxSynchronize); sleep_until(tail); return 0; }
R cuStreamSynchronize(H stream) { CALLED(cuStreamSynchronize); (void)stream; sleep_until(tail); return 0; }

struct event { int64_t at; unsigned flags; };
R cuEventCreate(H *out, unsigned flags) {
  CALLED(cuEventCreate);
  struct event *event = calloc(1, sizeof *event);
  event->flags = flags;
  *out = event;
  return 0;
}
static unsigned long illegal;
unsigned long fake_illegal(void) { return illegal; }
R cuEventRecord(struct event *event, H stream) {
  CALLED(cuEventRecord);
  (void)stream;
  pthread_mutex_lock(&lock);
  if (capturing) illegal++;
  int64_t at = now();
  event->at = tail > at ? tail : at;
  pthread_mutex_unlock(&lock);
  return 0;
}
R cuEventQuery(struct event *event) {
  CALLED(cuEventQuery);
  if (capturing) { illegal++; return 900; }
  return event->at <= now() ? 0 : 600;
}
R cuEventSynchronize(struct event *event) { CALLED(cuEventSynchronize); sleep_until(event->at); return 0; }
R cuEventElapsedTime(float *out, struct event *from, struct event *to) {
  CALLED(cuEventElapsedTime);
  if (to->at > now()) return 600;
  if ((from->flags | to->flags) & 2) return 400;
  *out = (float)((double)(to->at - from->at) / 1e6);
  return 0;
}
R cuStreamBeginCapture_v2(H stream, int mode) { CALLED(cuStreamBeginCapture_v2); (void)stream; (void)mode; capturing = 1; return 0; }
R cuStreamEndCapture(H stream, H *graph) { CALLED(cuStreamEndCapture); (void)stream; capturing = 0; *graph = (H)0x9990; return 0; }
R cuStreamIsCapturing(H stream, int *out) { CALLED(cuStreamIsCapturing); *out = capturing && stream == (H)0x77770; return 0; }
static uintptr_t memory;
R cuMemAlloc_v2(uint64_t *out, size_t bytes) {
  CALLED(cuMemAlloc_v2);
  *out = 0x100000 + __atomic_fetch_add(&memory, (bytes + 511) / 512 * 512, 0);
  return 0;
}

// --- graphs: what was captured last --------------------------------------------------------
struct launch_config { unsigned g[3], b[3], shared; H stream; const void *attributes; unsigned count; };
R cuLaunchKernelEx(const struct launch_config *c, H f, void **p, void **e) {
  CALLED(cuLaunchKernelEx);
  (void)p; (void)e;
  return run(f, c->stream);
}
struct node_params { H function; unsigned g[3], b[3], shared; H p, e, kernel, context; };
R cuGraphGetNodes(H graph, H *out, size_t *count) {
  CALLED(cuGraphGetNodes);
  (void)graph;
  if (out)
    for (size_t i = 0; i < *count && i < node_count; i++) out[i] = (H)(uintptr_t)(i + 1);
  *count = node_count;
  return 0;
}
R cuGraphNodeGetType(H node, int *out) { CALLED(cuGraphNodeGetType); (void)node; *out = 0; return 0; }
#if VERSION >= 12000
R cuGraphKernelNodeGetParams_v2(H node, struct node_params *out) {
  CALLED(cuGraphKernelNodeGetParams_v2);
  memset(out, 0, sizeof *out);
  out->function = nodes[(uintptr_t)node - 1];
  out->g[0] = 4;
  return 0;
}
#endif
R cuGraphInstantiateWithFlags(H *out, H graph, unsigned long long flags) {
  CALLED(cuGraphInstantiateWithFlags);
  (void)graph; (void)flags;
  *out = (H)0xabc0;
  return 0;
}
R cuGraphLaunch(H graph, H stream) {
  CALLED(cuGraphLaunch);
  (void)graph;
  for (unsigned i = 0; i < node_count; i++) run(nodes[i], stream);
  return 0;
}
