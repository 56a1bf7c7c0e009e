/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Each CPU's memory is a cache line of one array; the address sanitizer knows
 * how much of it was asked for. A test says which CPU a thread is.
 */
#ifndef _HOSTED_LINUX_PERCPU_H
#define _HOSTED_LINUX_PERCPU_H

#include <sanitizer/asan_interface.h>

#include "cache.h"
#include "cpumask.h"
#include "preempt.h"
#include "slab.h"

#define __percpu

extern _Thread_local unsigned int hosted_cpu;

static inline unsigned int smp_processor_id(void)
{
	CHECK(hosted_preempt_count);
	CHECK(cpu_online(hosted_cpu));
	return hosted_cpu;
}

#define per_cpu_ptr(p, cpu)						\
({									\
	size_t cpu_ = (cpu);						\
									\
	CHECK(cpu_ < nr_cpu_ids);					\
	(__typeof__(p))((char *)(p) + cpu_ * L1_CACHE_BYTES);		\
})

/* On x86 they are one instruction each, so an interrupt comes in between. */
#define this_cpu_read(p)						\
({									\
	others_may_run();						\
	__atomic_load_n(per_cpu_ptr(&(p), hosted_cpu), __ATOMIC_RELAXED); \
})

#define this_cpu_try_cmpxchg(p, old, new)				\
({									\
	others_may_run();						\
	__atomic_compare_exchange_n(per_cpu_ptr(&(p), hosted_cpu), old,	\
				    new, false,	__ATOMIC_RELAXED,	\
				    __ATOMIC_RELAXED);			\
})

#define this_cpu_write(p, value)					\
({									\
	others_may_run();						\
	__atomic_store_n(per_cpu_ptr(&(p), hosted_cpu), value,		\
			 __ATOMIC_RELAXED);				\
})

static inline void *__alloc_percpu_gfp(size_t size, size_t align, gfp_t gfp)
{
	char *p;

	CHECK(size <= L1_CACHE_BYTES && align <= L1_CACHE_BYTES);
	p = hosted_alloc(nr_cpu_ids * L1_CACHE_BYTES, 0, nr_cpu_ids * size);
	for (unsigned int cpu = 0; p && cpu < nr_cpu_ids; cpu++)
		ASAN_POISON_MEMORY_REGION(p + cpu * L1_CACHE_BYTES + size,
					  L1_CACHE_BYTES - size);

	return p;
}

static inline void free_percpu(void *p)
{
	kfree(p);
}

#endif /* _HOSTED_LINUX_PERCPU_H */
