/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The compiler's atomics, with the ordering that the kernel documents for those
 * of these names: none, but for who reads through a pointer, and for an
 * exchange that took place.
 */
#ifndef _HOSTED_LINUX_ATOMIC_H
#define _HOSTED_LINUX_ATOMIC_H

#include "../hosted.h"
#include "types.h"

/* A pointer orders what is read through it. */
#define HOSTED_IS_POINTER(x)	(__builtin_classify_type(x) == 5)
#define READ_ONCE(x)							\
({									\
	others_may_run();						\
	__atomic_load_n(&(x), HOSTED_IS_POINTER(x) ? __ATOMIC_CONSUME :	\
						     __ATOMIC_RELAXED);	\
})
#define WRITE_ONCE(x, v)	__atomic_store_n(&(x), (v), __ATOMIC_RELAXED)
#define smp_store_release(p, v)	__atomic_store_n(p, v, __ATOMIC_RELEASE)
#define smp_load_acquire(p)						\
({									\
	others_may_run();						\
	__atomic_load_n(p, __ATOMIC_ACQUIRE);				\
})

/*
 * The thread sanitizer does not know fences. They order accesses that are
 * atomic themselves, so it misses none, and would not miss the fence either.
 */
#define smp_rmb()		__atomic_thread_fence(__ATOMIC_ACQUIRE)

#define try_cmpxchg(p, old, new)					\
({									\
	others_may_run();						\
	__atomic_compare_exchange_n(p, old, new, false,			\
				    __ATOMIC_SEQ_CST, __ATOMIC_RELAXED); \
})

#define HOSTED_ATOMIC(name, type, value)				\
static inline value name##_read(const type *v)				\
{									\
	others_may_run();						\
	return __atomic_load_n(&v->counter, __ATOMIC_RELAXED);		\
}									\
static inline void name##_set(type *v, value i)				\
{									\
	others_may_run();						\
	__atomic_store_n(&v->counter, i, __ATOMIC_RELAXED);		\
}									\
static inline bool name##_try_cmpxchg(type *v, value *old, value new)	\
{									\
	return try_cmpxchg(&v->counter, old, new);			\
}									\
static inline void name##_add(value i, type *v)				\
{									\
	others_may_run();						\
	__atomic_fetch_add(&v->counter, i, __ATOMIC_RELAXED);		\
}									\
static inline void name##_sub(value i, type *v)				\
{									\
	name##_add(-i, v);						\
}

HOSTED_ATOMIC(atomic, atomic_t, int)
HOSTED_ATOMIC(atomic_long, atomic_long_t, long)

#endif /* _HOSTED_LINUX_ATOMIC_H */
