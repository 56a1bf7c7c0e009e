/* SPDX-License-Identifier: GPL-2.0-only */
/* Memory of victims that is checked later, by them and by others. */
#ifndef _SELFTESTS_MEMREAP_REGION_H
#define _SELFTESTS_MEMREAP_REGION_H

#include <pthread.h>

#include "cgroup.h"
#include "victim.h"

/**
 * struct region - memory of a victim, or of processes beside it
 * @mem: its address
 * @size: its size
 * @seed: of its content
 * @cgroup: entered first, to be charged; or NULL
 * @threads: idle threads to start
 * @stripes: for region_fill_stripes()
 * @folio_kib: size of the folios to ask for, see folios.h; 0: the default
 */
struct region {
	void *mem;
	size_t size;
	unsigned long seed;
	const char *cgroup;
	unsigned int threads;
	unsigned int stripes;
	unsigned int folio_kib;
};

/* Maps its memory, aligned and advised where it asks for large folios. */
static inline bool region_map(struct region *region)
{
	size_t align = region->folio_kib * 1024UL;
	char *mem;

	if (!align) {
		region->mem = map(region->size, MAP_PRIVATE | MAP_POPULATE);
		return region->mem;
	}
	mem = map(region->size + align, MAP_PRIVATE);
	if (!mem)
		return false;
	region->mem = (void *)(((uintptr_t)mem + align - 1) & ~(align - 1));

	return !madvise(region->mem, region->size, MADV_HUGEPAGE);
}

/* The functions below are for struct victim_ops. */
static inline enum verdict region_fill(void *arg)
{
	struct region *region = arg;
	pthread_t thread;

	if (region->cgroup && !cgroup_enter(region->cgroup))
		return BAD;
	if (!region_map(region))
		return BAD;
	fill(region->mem, region->size, region->seed);
	for (unsigned int i = 0; i < region->threads; i++) {
		if (pthread_create(&thread, NULL, idle_fn, NULL))
			return BAD;
	}

	return GOOD;
}

static inline enum verdict region_check(void *arg)
{
	struct region *region = arg;

	return filled(region->mem, region->size, region->seed) ? GOOD : BAD;
}

/* Forks as fast as it can; its children check their copies. */
static inline void region_fork(void *arg)
{
	for (;;) {
		pid_t pid = fork();

		if (!pid)
			_exit(region_check(arg) == GOOD ? 0 : 1);
		/* One at a time: the test waits for the remaining ones. */
		if (pid > 0)
			waitpid(pid, NULL, WNOHANG);
	}
}

#endif /* _SELFTESTS_MEMREAP_REGION_H */
