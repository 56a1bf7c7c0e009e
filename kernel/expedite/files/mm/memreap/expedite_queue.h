/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_EXPEDITE_QUEUE_H
#define _MM_MEMREAP_EXPEDITE_QUEUE_H

#include "expedite_internal.h"

struct mm_struct;
struct task_struct;

/* Address spaces that wait or are worked on at a time. */
#define EXPEDITE_MAX_REQUESTS	512

/*
 * What a worker should at least have to itself when it joins others: two of
 * the chunks that reapers claim. Waking it up does not pay for less.
 */
#define EXPEDITE_SHARE		(SZ_64M / PAGE_SIZE)

/* The first pause before another try, doubled up to the longest; the end. */
#define EXPEDITE_PAUSE		(1 * NSEC_PER_MSEC)
#define EXPEDITE_LONG_PAUSE	(64 * NSEC_PER_MSEC)
#define EXPEDITE_PATIENCE	(2 * NSEC_PER_SEC)

/**
 * enum expedite_added - what became of a request
 * @EXPEDITE_QUEUED: it is a new one
 * @EXPEDITE_MERGED: the address space is queued or worked on already
 * @EXPEDITE_FULL: there are too many, nothing was taken on
 */
enum expedite_added {
	EXPEDITE_QUEUED,
	EXPEDITE_MERGED,
	EXPEDITE_FULL,
};

/**
 * enum expedite_outcome - how a try ended
 * @EXPEDITE_EXITED: the process has freed what was left by itself
 * @EXPEDITE_FREED: all that could be reaped has been
 * @EXPEDITE_SHARED: a live process uses the address space
 * @EXPEDITE_FUTEX: a thread has yet to let go of robust futexes
 * @EXPEDITE_LOCK: the mmap_lock could not be had
 * @EXPEDITE_FAILED: a part was left out, for an MMU notifier most likely
 *
 * The order is that of bad news: with several workers, the worst one counts.
 * All but the first two call for another try.
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
 * @victim: a thread of the process that was killed; likewise
 * @pages: what there was to free when it was queued
 * @freed: what the workers have freed so far
 * @queued: when it was queued, ns
 * @until: when patience is at its end, ns
 * @due: not to be tried before, ns
 * @pause: before the next try, ns
 * @workers: how many are at it
 * @crew: the most there were at a time
 * @open: more workers may join
 * @patient: the present try is not the last one
 * @outcome: the worst of the present try
 */
struct expedite_request {
	struct list_head list;
	struct mm_struct *mm;
	struct task_struct *victim;
	unsigned long pages;
	unsigned long freed;
	u64 queued;
	u64 until;
	u64 due;
	u64 pause;
	unsigned int workers;
	unsigned int crew;
	bool open;
	bool patient;
	enum expedite_outcome outcome;
};

/**
 * struct expedite_queue - the requests, and places for more
 * @lock: protects all of it and of its requests
 * @requests: those in use
 * @free: the others
 * @places: where they are; nothing is allocated on the way to free memory
 */
struct expedite_queue {
	spinlock_t lock;	/* with interrupts off, under siglock too */
	struct list_head requests;
	struct list_head free;
	struct expedite_request places[EXPEDITE_MAX_REQUESTS];
};

/**
 * struct expedite_turn - what a worker gets to do
 * @req: the request it works on, or NULL
 * @first: it is the first one and has to look whether @req can be worked on
 * @patient: if not, there will be another try
 * @more: another worker would have something to do, too
 * @next: without a request: when there will be one, ns, or EXPEDITE_NEVER
 */
struct expedite_turn {
	struct expedite_request *req;
	bool first;
	bool patient;
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
