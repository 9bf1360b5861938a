// Replays a recorded list of requests, and makes the same requests to the driver itself: `replay LIST
// DRIVER`. It prints a line for each answer: name, version, flags, code, status and library. The driver's own
// code and status follow, and whether its pointer was given.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "mini_cudart.h"

int main(int argc, char **argv) {
  if (argc < 3) return 1;
  int made = mc_open(argv[1]);
  if (made < 0) { printf("failed %d\n", made); return 2; }
  void *driver = dlopen(argv[2], RTLD_NOW);
  int old = strstr(argv[1], "cudart-11") != NULL;
  void *ask = dlsym(driver, old ? "cuGetProcAddress" : "cuGetProcAddress_v2");
  int count;
  const struct mc_answer *answers = mc_answers(&count);
  for (int i = 0; i < count; i++) {
    const struct mc_answer *a = &answers[i];
    void *pointer = NULL;
    int status = -1, code;
    if (old) code = ((int (*)(const char *, void **, int, uint64_t))ask)(a->name, &pointer, a->version, (uint64_t)a->flags);
    else code = ((int (*)(const char *, void **, int, uint64_t, int *))ask)(a->name, &pointer, a->version, (uint64_t)a->flags, i % 3 == 2 ? NULL : &status);
    const char *library = "-", *symbol = "-", *real = "-", *real_symbol = "-";
    if (a->pointer) mc_where(a->pointer, &library, &symbol);
    if (pointer) mc_where(pointer, &real, &real_symbol);
    printf("%s,%d,%d,%d,%d,%s,%s,%d,%d,%d,%s\n", *a->name ? a->name : "-", a->version, a->flags, a->code, a->status,
           library, symbol, code, status, a->pointer == pointer, real_symbol);
  }
  return 0;
}
