// A CUDA driver that does nothing at once: what remains is what is in front of it.
typedef int R;
typedef void *H;
R cuInit(unsigned flags) { (void)flags; return 0; }
R cuDriverGetVersion(int *out) { *out = 12040; return 0; }
R cuCtxGetDevice(int *out) { *out = 0; return 0; }
R cuDeviceGetUuid_v2(unsigned char *out, int device) { (void)device; for (int i = 0; i < 16; i++) out[i] = 1; return 0; }
R cuModuleGetFunction(H *out, H module, const char *name) { (void)module; (void)name; *out = (H)0x1000; return 0; }
R cuLaunchKernel(H f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned s, H stream, void **p, void **x) {
  (void)f; (void)a; (void)b; (void)c; (void)d; (void)e; (void)g; (void)s; (void)stream; (void)p; (void)x;
  return 0;
}
R cuCtxGetFlags(unsigned *out) { *out = 0; return 0; }
R cuCtxSynchronize(void) { return 0; }
R cuMemAlloc_v2(unsigned long *out, unsigned long bytes) { (void)bytes; *out = 0x3000; return 0; }
R cuMemFree_v2(unsigned long address) { (void)address; return 0; }
R cuEventCreate(H *out, unsigned flags) { (void)flags; *out = (H)0x2000; return 0; }
R cuEventRecord(H event, H stream) { (void)event; (void)stream; return 0; }
R cuEventQuery(H event) { (void)event; return 0; }
R cuEventElapsedTime(float *out, H from, H to) { (void)from; (void)to; *out = 0.004f; return 0; }
