/* SPDX-License-Identifier: GPL-2.0-only */
/* Pages as /proc/PID/pagemap shows them. */
#ifndef _SELFTESTS_MEMREAP_PAGEMAP_H
#define _SELFTESTS_MEMREAP_PAGEMAP_H

#include <stdint.h>

#include "util.h"

#define PM_PRESENT	0x8000000000000000ULL
#define PM_SWAPPED	0x4000000000000000ULL
#define PM_PFN		0x007fffffffffffffULL

/* @pid: 0 for the caller. Returns 0 on an error. */
static inline uint64_t pagemap_word(pid_t pid, const void *addr)
{
	uint64_t word = 0;
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/pagemap", pid ? pid : getpid());
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	if (pread(fd, &word, sizeof(word),
		  (uintptr_t)addr / PAGE * sizeof(word)) != sizeof(word))
		word = 0;
	close(fd);

	return word;
}

/* Returns 0 if no page is present. */
static inline unsigned long pfn_at(pid_t pid, const void *addr)
{
	uint64_t word = pagemap_word(pid, addr);

	return word & PM_PRESENT ? word & PM_PFN : 0;
}

static inline bool swapped_out(pid_t pid, const void *addr)
{
	return (pagemap_word(pid, addr) & (PM_PRESENT | PM_SWAPPED)) == PM_SWAPPED;
}

#endif /* _SELFTESTS_MEMREAP_PAGEMAP_H */
