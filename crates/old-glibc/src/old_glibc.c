// What Rust's standard library and the unwinder ask for and glibc 2.17 does not have yet.
#define _GNU_SOURCE
#include <link.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

struct stat64;

// Until 2.33 these were inlined calls of versioned functions; the kernel's structure is the same
// on x86-64.
int stat64(const char *path, struct stat64 *out) { return (int)syscall(SYS_stat, path, out); }
int lstat64(const char *path, struct stat64 *out) { return (int)syscall(SYS_lstat, path, out); }
int fstat64(int fd, struct stat64 *out) { return (int)syscall(SYS_fstat, fd, out); }
int fstatat64(int fd, const char *path, struct stat64 *out, int flags) {
  return (int)syscall(SYS_newfstatat, fd, path, out, flags);
}

// 2.35: the unwinder's shortcut. This is the long way that it stands for.
struct tessera_found {
  unsigned long long flags;
  void *start;
  void *end;
  struct link_map *map;
  void *eh_frame;
  unsigned long long reserved[7];
};

struct tessera_search {
  const char *address;
  struct tessera_found *found;
};

static int tessera_visit(struct dl_phdr_info *info, size_t size, void *data) {
  struct tessera_search *search = data;
  const char *start = NULL, *end = NULL;
  void *eh_frame = NULL;
  int inside = 0;
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const char *from = (const char *)info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
    const char *to = from + info->dlpi_phdr[i].p_memsz;
    if (info->dlpi_phdr[i].p_type == PT_LOAD) {
      if (start == NULL || from < start) start = from;
      if (to > end) end = to;
      inside |= search->address >= from && search->address < to;
    } else if (info->dlpi_phdr[i].p_type == PT_GNU_EH_FRAME) {
      eh_frame = (void *)from;
    }
  }
  if (!inside || eh_frame == NULL) return 0;
  search->found->flags = 0;
  search->found->start = (void *)start;
  search->found->end = (void *)end;
  search->found->map = NULL;
  search->found->eh_frame = eh_frame;
  return 1;
}

int tessera_find_object(void *address, struct tessera_found *found) __asm__("_dl_find_object");

int tessera_find_object(void *address, struct tessera_found *found) {
  struct tessera_search search = {address, found};
  return dl_iterate_phdr(tessera_visit, &search) == 1 ? 0 : -1;
}
