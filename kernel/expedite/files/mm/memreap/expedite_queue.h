/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_EXPEDITE_QUEUE_H
#define _MM_MEMREAP_EXPEDITE_QUEUE_H

#include "expedite_internal.h"

struct mm_struct;
struct task_struct;

/* Address spaces that are queued or worked on at a time. */
#define EXPEDITE_MAX_REQUESTS	512

/*
 * Minimum share, in pages, of a worker that joins others: two of the chunks
 * that reapers claim. Waking it up is too expensive for less.
 */
#define EXPEDITE_SHARE		(SZ_64M / PAGE_SIZE)

/* The pause between attempts doubles up to a maximum; and the total time. */
#define EXPEDITE_PAUSE_NS		(1 * NSEC_PER_MSEC)
#define EXPEDITE_MAX_PAUSE_NS	(64 * NSEC_PER_MSEC)
#define EXPEDITE_RETRY_NS	(2 * NSEC_PER_SEC)

/**
 * enum expedite_added - result of a request
 * @EXPEDITE_QUEUED: queued
 * @EXPEDITE_MERGED: the address space is queued or worked on already
 * @EXPEDITE_FULL: not queued, as the table is full
 */
enum expedite_added {
	EXPEDITE_QUEUED,
	EXPEDITE_MERGED,
	EXPEDITE_FULL,
};

/**
 * enum expedite_outcome - result of an attempt
 * @EXPEDITE_EXITED: the process has freed the rest itself
 * @EXPEDITE_FREED: everything that can be reaped has been
 * @EXPEDITE_SHARED: a live process uses the address space
 * @EXPEDITE_FUTEX: a thread may still own robust futexes
 * @EXPEDITE_LOCK: the trylock of the mmap_lock failed
 * @EXPEDITE_FAILED: a part was left out, most likely for an MMU notifier
 *
 * From best to worst: with several workers, the worst one counts. All but the
 * first two are retried.
 */
enum expedite_outcome {
	EXPEDITE_EXITED,
	EXPEDITE_FREED,
	EXPEDITE_SHARED,
	EXPEDITE_FUTEX,
	EXPEDITE_LOCK,
	EXPEDITE_FAILED,
};

/**
 * struct expedite_request - one address space to be freed
 * @list: in the queue's list of requests, or of free places
 * @mm: the address space; the request holds a reference
 * @victim: a thread of the killed process; likewise
 * @pages: that were to be freed when it was queued
 * @freed: pages that the workers have freed so far
 * @queued: when it was queued, ns
 * @deadline: start of the last attempt, ns
 * @due: start of the next attempt, ns
 * @pause: before the attempt after that, ns
 * @workers: how many work on it
 * @peak_workers: maximum of @workers
 * @open: more workers may join
 * @may_retry: the present attempt is not the last one
 * @outcome: the worst of the present attempt
 */
struct expedite_request {
	struct list_head list;
	struct mm_struct *mm;
	struct task_struct *victim;
	unsigned long pages;
	unsigned long freed;
	u64 queued;
	u64 deadline;
	u64 due;
	u64 pause;
	unsigned int workers;
	unsigned int peak_workers;
	bool open;
	bool may_retry;
	enum expedite_outcome outcome;
};

/**
 * struct expedite_queue - the requests, and places for more
 * @lock: protects all of it and of its requests
 * @requests: those in use
 * @free: the others
 * @places: storage; nothing is allocated on the way to free memory
 */
struct expedite_queue {
	spinlock_t lock;	/* interrupts disabled, also under siglock */
	struct list_head requests;
	struct list_head free;
	struct expedite_request places[EXPEDITE_MAX_REQUESTS];
};

/**
 * struct expedite_turn - the next work of a worker
 * @req: the request, or NULL
 * @first: no other worker has checked yet whether @req can be worked on
 * @may_retry: @req will be tried again if it cannot
 * @more: there is work for another worker
 * @next: without a request: when one is due, ns, or EXPEDITE_NEVER
 */
struct expedite_turn {
	struct expedite_request *req;
	bool first;
	bool may_retry;
	bool more;
	u64 next;
};

#define EXPEDITE_NEVER		U64_MAX

void expedite_queue_init(struct expedite_queue *q);
enum expedite_added expedite_queue_add(struct expedite_queue *q,
				       struct mm_struct *mm,
				       struct task_struct *victim,
				       unsigned long pages, u64 now);
bool expedite_queue_take(struct expedite_queue *q, u64 now,
			 struct expedite_turn *turn);
bool expedite_queue_ready(struct expedite_queue *q, u64 now);
bool expedite_queue_open(struct expedite_queue *q,
			 struct expedite_request *req);
bool expedite_queue_put(struct expedite_queue *q, struct expedite_request *req,
			unsigned long freed, enum expedite_outcome outcome,
			u64 now, struct expedite_request *over);

#endif /* _MM_MEMREAP_EXPEDITE_QUEUE_H */
