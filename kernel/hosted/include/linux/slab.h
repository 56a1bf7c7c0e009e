/* SPDX-License-Identifier: GPL-2.0-only */
/* Memory that runs out when a test says so, and is aligned no better. */
#ifndef _HOSTED_LINUX_SLAB_H
#define _HOSTED_LINUX_SLAB_H

#include <string.h>

#include "../check.h"
#include "cache.h"
#include "types.h"

/**
 * struct hosted_memory - the machine's
 * @fail: which allocation from now on fails, 0 for none
 * @offset: where in a cache line kvzalloc()'s memory begins, a multiple of 8
 * @nr: allocations that have not been freed
 * @bytes: asked for so far
 */
struct hosted_memory {
	unsigned int fail;
	unsigned int offset;
	long nr;
	size_t bytes;
};

extern struct hosted_memory hosted_memory;

/* Allocates @size zeroed bytes, for @counted bytes that were requested. */
static inline void *hosted_alloc(size_t size, unsigned int offset,
				 size_t counted)
{
	void *p;

	others_may_run();
	if (hosted_memory.fail && !--hosted_memory.fail)
		return NULL;
	CHECK(!posix_memalign(&p, L1_CACHE_BYTES, offset + size));
	__atomic_add_fetch(&hosted_memory.nr, 1, __ATOMIC_RELAXED);
	__atomic_add_fetch(&hosted_memory.bytes, counted, __ATOMIC_RELAXED);

	return memset(p + offset, 0, size);
}

static inline void *kvzalloc(size_t size, gfp_t gfp)
{
	return hosted_alloc(size, hosted_memory.offset, size);
}

#define is_vmalloc_addr(p)	false
#define vfree_atomic(p)		CHECK(!(p))

static inline void kfree(void *p)
{
	if (!p)
		return;
	__atomic_sub_fetch(&hosted_memory.nr, 1, __ATOMIC_RELAXED);
	free(p - (unsigned long)p % L1_CACHE_BYTES);
}

#endif /* _HOSTED_LINUX_SLAB_H */
