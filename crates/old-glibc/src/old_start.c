// The C library's start of a program, for one whose start file expects glibc 2.34 or newer.
//
// Until 2.33 a program passed a function that ran its own constructors, and the library ran none of them. Newer start
// files pass NULL, and the library then finds them itself. A function that is passed is called by all versions.
#include <stddef.h>

typedef int (*tessera_main)(int, char **, char **);
typedef void (*tessera_constructor)(int, char **, char **);

extern tessera_constructor __init_array_start[] __attribute__((visibility("hidden")));
extern tessera_constructor __init_array_end[] __attribute__((visibility("hidden")));
extern void _init(void);
extern int __real___libc_start_main(tessera_main, int, char **, tessera_constructor, void (*)(void),
                                    void (*)(void), void *);

static void tessera_construct(int argc, char **argv, char **envp) {
  _init();
  size_t count = (size_t)(__init_array_end - __init_array_start);
  for (size_t i = 0; i < count; i++) __init_array_start[i](argc, argv, envp);
}

int __wrap___libc_start_main(tessera_main program, int argc, char **argv, tessera_constructor init,
                             void (*fini)(void), void (*loader_fini)(void), void *stack_end) {
  if (init == NULL) init = tessera_construct;
  return __real___libc_start_main(program, argc, argv, init, fini, loader_fini, stack_end);
}
