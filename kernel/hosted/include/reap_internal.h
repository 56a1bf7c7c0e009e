/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What reap_session.c needs from the kernel, in user space. The Makefile includes
 * this file first; it shares the guard of the kernel's file of the same name,
 * which is therefore left out.
 */
#ifndef _MM_MEMREAP_REAP_INTERNAL_H
#define _MM_MEMREAP_REAP_INTERNAL_H

#include <time.h>

#include "hosted.h"
#include "linux/atomic.h"

/* The architecture decides. A small one makes many chunks of few pages. */
#ifndef PMD_SIZE
#define PMD_SIZE		(512 * PAGE_SIZE)
#endif

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
