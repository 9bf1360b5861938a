// A CUDA program that follows the commands on its input, one a line, and answers each with a line. FAKE is
// the path of the driver, from which it also reads what arrived there.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <errno.h>
#include <dirent.h>

typedef void *H;
typedef int R;
#define F(name, ...) static R (*name)(__VA_ARGS__)
F(cuInit, unsigned);
F(cuDeviceGetCount, int *);
F(cuModuleLoadData, H *, const void *);
F(cuModuleUnload, H);
F(cuModuleGetFunction, H *, H, const char *);
F(cuLaunchKernel, H, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, H, void **, void **);
F(cuLaunchKernel_ptsz, H, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, H, void **, void **);
F(cuEventQuery, H);
F(cuCtxSynchronize, void);
F(cuStreamSynchronize, H);
F(cuStreamQuery, H);
F(cuStreamBeginCapture_v2, H, int);
F(cuStreamEndCapture, H, H *);
F(cuMemAlloc_v2, uint64_t *, size_t);
F(cuMemFree_v2, uint64_t);
F(cuEventCreate, H *, unsigned);
F(cuEventRecord, H, H);
F(cuEventSynchronize, H);
F(cuLaunchKernelEx, const void *, H, void **, void **);
F(cuGraphInstantiateWithFlags, H *, H, unsigned long long);
F(cuGraphLaunch, H, H);
F(cuLibraryLoadData, H *, const void *);
F(cuLibraryGetKernel, H *, H, const char *);
static size_t (*counters)(uint64_t *, size_t);
static void (*fake_answer)(const char *, int);
static unsigned long (*fake_calls)(const char *), (*fake_all_calls)(void), (*fake_launches)(void), (*fake_in_flight_max)(void),
    (*fake_captured)(void), (*fake_illegal)(void);
static uint64_t (*fake_order)(void), (*fake_sums)(void);

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static H module;
static H function(const char *name) {
  H f = NULL;
  R r = cuModuleGetFunction(&f, module, name);
  return r ? NULL : f;
}
struct work { int count; H function; H stream; int64_t longest; R code; };
static void *work(void *data) {
  struct work *w = data;
  for (int i = 0; i < w->count; i++) {
    int64_t start = now();
    R r = cuLaunchKernel(w->function, 4, 2, 1, 32, 1, 1, 0, w->stream, NULL, NULL);
    int64_t took = now() - start;
    if (took > w->longest) w->longest = took;
    if (r && !w->code) w->code = r;
  }
  return NULL;
}
// A thread that launches on four streams, and at random records events, looks at them and waits.
struct stormer { unsigned index; long count; uint64_t seed; H kernels[4]; R code; };
static void *stormer(void *data) {
  struct stormer *s = data;
  // Only the first thread uses the legacy stream: the work of one stream has one order.
  H streams[4] = {(H)(uintptr_t)(0x20000 + 16 * s->index), (H)(uintptr_t)(0x30000 + 16 * s->index), NULL,
                  s->index ? (H)2 : (H)1};
  H event;
  s->code |= cuEventCreate(&event, 0);
  for (long i = 0; i < s->count; i++) {
    s->seed = s->seed * 6364136223846793005ULL + 1442695040888963407ULL;
    uint64_t r = s->seed >> 33;
    H stream = streams[r % 4];
    H kernel = s->kernels[r / 4 % 4];
    s->code |= stream ? cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL)
                      : cuLaunchKernel_ptsz(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    if (r / 16 % 16 == 0) {
      s->code |= cuEventRecord(event, stream);
      R seen = cuEventQuery(event);
      if (seen != 600) s->code |= seen;
    }
    if (r / 256 % 64 == 0) s->code |= cuEventSynchronize(event);
    if (r / 256 % 64 == 1) s->code |= cuStreamSynchronize(stream);
    if (r / 256 % 128 == 2) s->code |= cuCtxSynchronize();
  }
  return NULL;
}
static int entries(const char *folder) {
  DIR *dir = opendir(folder);
  int count = 0;
  while (dir && readdir(dir)) count++;
  if (dir) closedir(dir);
  return count - 2;
}
static void late(void) { if (cuLaunchKernel && module) cuLaunchKernel(function("k1"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); }

int main(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW), *fake = dlopen(getenv("FAKE"), RTLD_NOW);
  if (!library || !fake) { fprintf(stderr, "%s\n", dlerror()); return 2; }
#define GET(from, name) *(void **)&name = dlsym(from, #name)
  GET(library, cuInit); GET(library, cuDeviceGetCount); GET(library, cuModuleLoadData); GET(library, cuModuleUnload);
  GET(library, cuModuleGetFunction); GET(library, cuLaunchKernel); GET(library, cuCtxSynchronize);
  GET(library, cuLaunchKernel_ptsz); GET(library, cuEventQuery); GET(fake, fake_sums);
  GET(library, cuStreamSynchronize); GET(library, cuStreamQuery); GET(library, cuStreamBeginCapture_v2);
  GET(library, cuStreamEndCapture); GET(library, cuMemAlloc_v2); GET(library, cuMemFree_v2);
  GET(library, cuEventCreate); GET(library, cuEventRecord); GET(library, cuEventSynchronize);
  GET(library, cuLaunchKernelEx); GET(library, cuGraphInstantiateWithFlags); GET(library, cuGraphLaunch);
  GET(library, cuLibraryLoadData); GET(library, cuLibraryGetKernel);
  GET(fake, fake_answer); GET(fake, fake_calls); GET(fake, fake_all_calls); GET(fake, fake_launches);
  GET(fake, fake_in_flight_max); GET(fake, fake_captured); GET(fake, fake_illegal); GET(fake, fake_order);
  *(void **)&counters = dlsym(library, "tessera_kernel_shim_counters");
  char line[256];
  setvbuf(stdout, NULL, _IOLBF, 0);
  while (fgets(line, sizeof line, stdin)) {
    char verb[64] = "", name[64] = "";
    long a = 0, b = 0;
    sscanf(line, "%63s %63s %li %li", verb, name, &a, &b);
    if (!strcmp(verb, "init")) printf("%d\n", cuInit(0) | cuModuleLoadData(&module, ""));
    else if (!strcmp(verb, "count")) { int c = -1; R r = cuDeviceGetCount(&c); printf("%d %d\n", r, c); }
    else if (!strcmp(verb, "launch")) {  // launch NAME COUNT STREAM
      struct work w = {(int)a, function(name), (H)b, 0, 0};
      int64_t start = now();
      work(&w);
      printf("%d %lld %lld\n", w.code, (long long)w.longest, (long long)(now() - start));
    } else if (!strcmp(verb, "shared")) {  // shared NAME BYTES: a launch with dynamic shared memory
      printf("%d\n", cuLaunchKernel(function(name), 4, 2, 1, 32, 1, 1, (unsigned)a, NULL, NULL, NULL));
    } else if (!strcmp(verb, "kernel")) {  // kernel NAME COUNT: launches a kernel of a library
      H of = NULL, kernel = NULL;
      R code = cuLibraryLoadData(&of, "") | cuLibraryGetKernel(&kernel, of, name);
      for (long i = 0; i < a; i++) code |= cuLaunchKernel(kernel, 4, 2, 1, 32, 1, 1, 0, NULL, NULL, NULL);
      printf("%d\n", code);
    } else if (!strcmp(verb, "threads")) {  // threads NAME COUNT THREADS
      struct work w[16] = {0};
      pthread_t t[16];
      R code = 0;
      int64_t longest = 0;
      for (int i = 0; i < b && i < 16; i++) {
        w[i] = (struct work){(int)a, function(name), (H)(intptr_t)(i % 3 == 0 ? 0 : 0x1000 * i), 0, 0};
        pthread_create(&t[i], NULL, work, &w[i]);
      }
      for (int i = 0; i < b && i < 16; i++) {
        pthread_join(t[i], NULL);
        if (w[i].code) code = w[i].code;
        if (w[i].longest > longest) longest = w[i].longest;
      }
      printf("%d %lld\n", code, (long long)longest);
    } else if (!strcmp(verb, "sync")) printf("%d\n", cuCtxSynchronize());
    else if (!strcmp(verb, "stream-sync")) printf("%d\n", cuStreamSynchronize((H)strtol(name, NULL, 0)));
    else if (!strcmp(verb, "query")) printf("%d\n", cuStreamQuery((H)strtol(name, NULL, 0)));
    else if (!strcmp(verb, "capture")) printf("%d\n", cuStreamBeginCapture_v2((H)0x77770, (int)a));
    else if (!strcmp(verb, "end-capture")) { H g; printf("%d\n", cuStreamEndCapture((H)0x77770, &g)); }
    else if (!strcmp(verb, "graph")) {  // graph x COUNT: makes an instance of what was captured, launches it
      H instance;
      R code = cuGraphInstantiateWithFlags(&instance, (H)0x9990, 0);
      for (long i = 0; i < a; i++) code |= cuGraphLaunch(instance, NULL);
      printf("%d\n", code);
    } else if (!strcmp(verb, "extended")) {  // extended NAME COUNT ATTRIBUTE
      struct { unsigned id, pad; char value[64]; } attribute = {(unsigned)b, 0, {0}};
      struct { unsigned g[3], b[3], shared; H stream; void *attributes; unsigned count; } config = {
          {4, 2, 1}, {32, 1, 1}, 0, NULL, b ? &attribute : NULL, b ? 1 : 0};
      R code = 0;
      int64_t start = now();
      for (long i = 0; i < a; i++) code |= cuLaunchKernelEx(&config, function(name), NULL, NULL);
      printf("%d %lld\n", code, (long long)(now() - start));
    } else if (!strcmp(verb, "event")) {  // event STREAM: records one there and waits for it
      H event;
      R code = cuEventCreate(&event, 0) | cuEventRecord(event, (H)strtol(name, NULL, 0));
      printf("%d\n", code | cuEventSynchronize(event));
    }
    else if (!strcmp(verb, "alloc")) { uint64_t p = 0; R r = cuMemAlloc_v2(&p, (size_t)a); printf("%d %llu\n", r, (unsigned long long)p); }
    else if (!strcmp(verb, "free")) printf("%d\n", cuMemFree_v2((uint64_t)a));
    else if (!strcmp(verb, "fail")) { fake_answer(name, (int)a); printf("0\n"); }
    else if (!strcmp(verb, "raw")) {  // raw SYMBOL CODE: the driver answers so; what arrives?
      long (*any)(long, long, long, long, long, long, long, long, long, long, long);
      *(void **)&any = dlsym(library, name);
      if (!any) { printf("no such function\n"); continue; }
      fake_answer(name, (int)a);
      int arrived = (int)any(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
      fake_answer(name, 0);
      printf("%d\n", arrived);
    }
    else if (!strcmp(verb, "calls")) printf("%lu\n", fake_calls(name));
    else if (!strcmp(verb, "all-calls")) printf("%lu\n", fake_all_calls());
    else if (!strcmp(verb, "device"))
      printf("%lu %lu %lu %lu %llu\n", fake_launches(), fake_in_flight_max(), fake_captured(), fake_illegal(), (unsigned long long)fake_order());
    else if (!strcmp(verb, "state")) {  // state NUMBER MILLISECONDS: waits for it
      uint64_t n[16] = {0};
      int64_t until = now() + a * 1000000LL;
      long wanted = strtol(name, NULL, 0);
      struct timespec pause = {0, 500000};
      do { if (counters) counters(n, 16); if ((long)n[0] == wanted) break; nanosleep(&pause, NULL); } while (now() < until);
      printf("%llu\n", (unsigned long long)n[0]);
    } else if (!strcmp(verb, "role")) {
      uint64_t n[16] = {0};
      int64_t until = now() + a * 1000000LL;
      long wanted = strtol(name, NULL, 0);
      struct timespec pause = {0, 500000};
      do { if (counters) counters(n, 16); if ((long)n[1] == wanted) break; nanosleep(&pause, NULL); } while (now() < until);
      printf("%llu\n", (unsigned long long)n[1]);
    } else if (!strcmp(verb, "counters")) {
      uint64_t n[16] = {0};
      if (counters) counters(n, 16);
      for (int i = 0; i < 16; i++) printf("%llu%c", (unsigned long long)n[i], i == 15 ? '\n' : ' ');
    } else if (!strcmp(verb, "reload")) {  // reload NAME COUNT: loads, launches and unloads, names in turns
      R code = 0;
      for (long i = 0; i < a; i++) {
        H m, f;
        char kernel[96];
        snprintf(kernel, sizeof kernel, "%s%ldk0", name, i % 7);
        code |= cuModuleLoadData(&m, "") | cuModuleGetFunction(&f, m, kernel);
        code |= cuLaunchKernel(f, (unsigned)(i % 7) + 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) | cuModuleUnload(m);
      }
      printf("%d\n", code);
    } else if (!strcmp(verb, "fork")) {  // fork HOW: the child launches; its answer and its counters
      int pipes[2];
      if (pipe(pipes)) return 3;
      pid_t child = !strcmp(name, "vfork") ? vfork() : fork();
      if (child == 0) {
        if (!strcmp(name, "exec") || !strcmp(name, "vfork")) { execl("/bin/true", "true", (char *)NULL); _exit(9); }
        int c = -1;
        R first = cuDeviceGetCount(&c);
        R launched = module ? cuLaunchKernel(function("k1"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) : -1;
        uint64_t n[16] = {0};
        if (counters) counters(n, 16);
        dprintf(pipes[1], "%d %d %llu %d", first, launched, (unsigned long long)n[0], entries("/proc/self/task"));
        _exit(0);
      }
      close(pipes[1]);
      char said[128] = "";
      ssize_t length = read(pipes[0], said, sizeof said - 1);
      (void)length;
      close(pipes[0]);
      int status = -1;
      waitpid(child, &status, 0);
      printf("%d %s\n", status, said);
    } else if (!strcmp(verb, "inside")) printf("%d %d\n", entries("/proc/self/task"), entries("/proc/self/fd"));
    else if (!strcmp(verb, "mixed")) {  // mixed COUNT: three kernels in turns
      H f[3] = {function("k1"), function("k2"), function("k3")};
      R code = 0;
      long count = strtol(name, NULL, 0);
      for (long i = 0; i < count; i++)
        code |= cuLaunchKernel(f[(i * i + i / 3) % 3], 1, 1, 1, 1, 1, 1, 0, (H)((i % 4) * 0x100), NULL, NULL);
      printf("%d\n", code);
    }
    else if (!strcmp(verb, "storm")) {  // storm COUNT THREADS SEED
      struct stormer each[16] = {0};
      pthread_t t[16];
      R code = 0;
      for (unsigned i = 0; i < a && i < 16; i++) {
        each[i] = (struct stormer){i, strtol(name, NULL, 0), (uint64_t)b * 977 + i,
                                   {function("k0"), function("k1"), function("k2"), function("k3")}, 0};
        pthread_create(&t[i], NULL, stormer, &each[i]);
      }
      for (unsigned i = 0; i < a && i < 16; i++) {
        pthread_join(t[i], NULL);
        code |= each[i].code;
      }
      printf("%d %llu\n", code, (unsigned long long)fake_sums());
    }
    else if (!strcmp(verb, "background")) {  // background NAME: a thread launches, nobody waits for it
      static struct work w;
      w = (struct work){1, function(name), NULL, 0, 0};
      pthread_t t;
      pthread_create(&t, NULL, work, &w);
      printf("0\n");
    }
    else if (!strcmp(verb, "late")) { atexit(late); printf("0\n"); }
    else if (!strcmp(verb, "exit")) { printf("0\n"); exit((int)a); }
    else if (!strcmp(verb, "_exit")) { printf("0\n"); fflush(stdout); _exit((int)a); }
    else if (!strcmp(verb, "kill")) { printf("0\n"); fflush(stdout); kill(getpid(), SIGKILL); }
    else printf("what?\n");
  }
  return 0;
}
