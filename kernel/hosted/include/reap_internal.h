/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What reap_session.c needs of the kernel, in user space. The Makefile includes
 * this file first; it shares the guard of the kernel's file of the same name,
 * which is therefore left out.
 */
#ifndef _MM_MEMREAP_REAP_INTERNAL_H
#define _MM_MEMREAP_REAP_INTERNAL_H

#include <time.h>

#include "hosted.h"

/* The architecture decides. A small one makes many chunks of few pages. */
#ifndef PMD_SIZE
#define PMD_SIZE		(512 * PAGE_SIZE)
#endif

#define ALIGN_DOWN(x, a)	((x) & ~((__typeof__(x))(a) - 1))

/* Relaxed, so they order nothing. */
#define READ_ONCE(x)		__atomic_load_n(&(x), __ATOMIC_RELAXED)
#define WRITE_ONCE(x, v)	__atomic_store_n(&(x), (v), __ATOMIC_RELAXED)

typedef struct { int counter; } atomic_t;
typedef struct { long counter; } atomic_long_t;

#define HOSTED_ATOMIC(name, type, value)				\
static inline value name##_read(const type *v)				\
{									\
	return __atomic_load_n(&v->counter, __ATOMIC_RELAXED);		\
}									\
static inline value name##_read_acquire(const type *v)			\
{									\
	return __atomic_load_n(&v->counter, __ATOMIC_ACQUIRE);		\
}									\
static inline void name##_set(type *v, value i)				\
{									\
	__atomic_store_n(&v->counter, i, __ATOMIC_RELAXED);		\
}									\
static inline bool name##_try_cmpxchg(type *v, value *old, value new)	\
{									\
	return __atomic_compare_exchange_n(&v->counter, old, new, false, \
					   __ATOMIC_SEQ_CST,		\
					   __ATOMIC_RELAXED);		\
}									\
static inline void name##_inc(type *v)					\
{									\
	__atomic_fetch_add(&v->counter, 1, __ATOMIC_RELAXED);		\
}									\
static inline bool name##_add_unless(type *v, value i, value unless)	\
{									\
	value old = name##_read(v);					\
									\
	do {								\
		if (old == unless)					\
			return false;					\
	} while (!name##_try_cmpxchg(v, &old, old + i));		\
									\
	return true;							\
}									\
static inline bool name##_dec_and_test(type *v)				\
{									\
	return !__atomic_sub_fetch(&v->counter, 1, __ATOMIC_SEQ_CST);	\
}

HOSTED_ATOMIC(atomic, atomic_t, int)
HOSTED_ATOMIC(atomic_long, atomic_long_t, long)

/**
 * struct wait_queue_head - where threads sleep until woken
 * @lock: held while a sleeper looks at its condition, as in the kernel a wake
 *	between that and the sleep is not lost
 * @wake: the sleepers
 */
typedef struct wait_queue_head {
	pthread_mutex_t lock;
	pthread_cond_t wake;
} wait_queue_head_t;

static inline void init_waitqueue_head(wait_queue_head_t *wq)
{
	pthread_mutex_init(&wq->lock, NULL);
	pthread_cond_init(&wq->wake, NULL);
}

static inline void wake_up_all(wait_queue_head_t *wq)
{
	pthread_mutex_lock(&wq->lock);
	pthread_cond_broadcast(&wq->wake);
	pthread_mutex_unlock(&wq->lock);
}

/*
 * True when @condition held at the start or after a wake; false when no wake
 * came for @seconds, even if @condition has come true since.
 */
#define wait_event_timeout(wq, condition, seconds)			\
({									\
	struct timespec until_;						\
	bool woken_ = true;						\
									\
	clock_gettime(CLOCK_REALTIME, &until_);				\
	until_.tv_sec += (seconds);					\
	pthread_mutex_lock(&(wq).lock);					\
	while (!(condition) && woken_)					\
		woken_ = !pthread_cond_timedwait(&(wq).wake, &(wq).lock, \
						 &until_);		\
	pthread_mutex_unlock(&(wq).lock);				\
	woken_;								\
})

#endif /* _MM_MEMREAP_REAP_INTERNAL_H */
