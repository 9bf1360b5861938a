// Reaches the driver in one of the ways that programs do, launches three kernels, and prints how many of them
// a shim saw: `reach WAY [FILE]`.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "mini_cudart.h"

static void *from(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (!found) { fprintf(stderr, "no %s: %s\n", name, dlerror()); exit(2); }
  return found;
}
#ifdef NEEDED
int cuInit(unsigned);
int cuModuleLoadData(H *, const void *);
int cuModuleGetFunction(H *, H, const char *);
int cuLaunchKernel(H, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, H, void **, void **);
#endif

int main(int argc, char **argv) {
  const char *way = argc > 1 ? argv[1] : "dlopen", *file = argc > 2 ? argv[2] : "";
  void *library = NULL;
  int (*init)(unsigned), (*load)(H *, const void *), (*get)(H *, H, const char *);
  int (*launch)(H, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, H, void **, void **);
#ifdef NEEDED
  if (!strcmp(way, "needed")) {
    init = cuInit; load = cuModuleLoadData; get = cuModuleGetFunction; launch = cuLaunchKernel;
  } else
#endif
  {
    if (!strcmp(way, "dlopen")) library = dlopen("libcuda.so.1", RTLD_NOW);
    else if (!strcmp(way, "deepbind")) library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND);
    else if (!strcmp(way, "noload")) library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    else if (!strcmp(way, "bare")) library = dlopen("libcuda.so", RTLD_NOW);
    else if (!strcmp(way, "namespace")) library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    else if (!strcmp(way, "absolute")) library = dlopen(file, RTLD_NOW);
    else if (!strcmp(way, "cudart")) { if (mc_open(file) < 0) return 3; library = mc_library(); }
    else if (!strcmp(way, "plugin") || !strcmp(way, "plugin-deepbind")) {
      void *plugin = dlopen(getenv("PLUGIN"), RTLD_NOW | (strlen(way) > 6 ? RTLD_DEEPBIND : 0));
      if (!plugin) { fprintf(stderr, "%s\n", dlerror()); return 4; }
      if (((int (*)(const char *))from(plugin, "mc_open"))(file) < 0) return 3;
      void *(*function)(const char *, int) = (void *(*)(const char *, int))from(plugin, "mc_function");
      library = ((void *(*)(void))from(plugin, "mc_library"))();
      launch = function("cuLaunchKernel", 0);
      init = function("cuInit", 0); load = function("cuModuleLoadData", 0); get = function("cuModuleGetFunction", 0);
      goto reached;
    }
    if (!library) { fprintf(stderr, "not reached: %s\n", dlerror()); return 5; }
    if (!strcmp(way, "cudart")) {
      init = mc_function("cuInit", 0); load = mc_function("cuModuleLoadData", 0);
      get = mc_function("cuModuleGetFunction", 0); launch = mc_function("cuLaunchKernel", 2);
    } else {
      init = from(library, "cuInit"); load = from(library, "cuModuleLoadData");
      get = from(library, "cuModuleGetFunction"); launch = from(library, "cuLaunchKernel");
    }
  }
reached:;
  H module, function;
  if (init(0) || load(&module, "") || get(&function, module, "k1")) return 6;
  for (int i = 0; i < 3; i++)
    if (launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)) return 7;
  size_t (*counters)(uint64_t *, size_t) = NULL;
  if (library) counters = (size_t (*)(uint64_t *, size_t))dlsym(library, "tessera_kernel_shim_counters");
  if (!counters) counters = (size_t (*)(uint64_t *, size_t))dlsym(RTLD_DEFAULT, "tessera_kernel_shim_counters");
  uint64_t numbers[16] = {0};
  if (counters) counters(numbers, 16);
  printf("%llu\n", (unsigned long long)(numbers[2] + numbers[3]));
  return 0;
}
