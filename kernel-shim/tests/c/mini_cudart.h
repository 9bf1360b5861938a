// What CUDA's runtime library does to find the driver, without any of NVIDIA's code. It is one dlopen, one
// dlsym, and then a list of requests through the pointers that these return.
#ifndef MINI_CUDART_H
#define MINI_CUDART_H
#include <stdint.h>

typedef void *H;

// Requests everything in a recorded list; returns how many requests it made, or a negative number.
int mc_open(const char *list);
// The pointer that a name was answered with, for the flags 0 or 2.
void *mc_function(const char *name, int flags);
// Runs a kernel through the pointer of its kind: 0 for the default stream, 2 for the thread's.
int mc_launch(H function, unsigned grid, H stream, int flags);
// One answer, for tests: in the order of the list.
struct mc_answer { char name[96]; int version, flags, code, status; void *pointer; };
const struct mc_answer *mc_answers(int *count);
// Which library an address is of, and its symbol.
void mc_where(void *address, const char **library, const char **symbol);
// The handle that it opened.
void *mc_library(void);
#endif
