// Calls two functions of the driver whose arguments lie in every place that the calling convention
// has, each as the first call of its kind: `arguments DRIVER`.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

struct ipc { char bytes[64]; };

int main(int argc, char **argv) {
  void *shim = dlopen("libcuda.so.1", RTLD_NOW), *driver;
  if (argc < 2 || !shim) return 1;
  struct ipc handle;
  for (int i = 0; i < 64; i++) handle.bytes[i] = (char)(i * 3 + 1);
  uint64_t out = 0;
  int (*many)(long, long, long, long, long, long, double, double, double, double, double, double, double, double, long, long);
  int (*open)(uint64_t *, struct ipc, unsigned);
  *(void **)&many = dlsym(shim, "cuGraphAddMemcpyNode");
  *(void **)&open = dlsym(shim, "cuIpcOpenMemHandle_v2");
  // The driver is not open yet: this call goes through the function that opens it.
  for (int i = 0; i < 2; i++)
    if (many(1, 2, 3, 4, 5, 6, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8, 9 + i)) return 2;
  if (open(&out, handle, 7) || out != 0x1007) return 3;
  driver = dlopen(argv[1], RTLD_NOW);
  char seen[64];
  ((void (*)(char *))dlsym(driver, "fake_ipc"))(seen);
  for (int i = 0; i < 64; i++)
    if (seen[i] != (char)(i * 3 + 1)) return 4;
  puts(((const char *(*)(void))dlsym(driver, "fake_arguments"))());
  return 0;
}
