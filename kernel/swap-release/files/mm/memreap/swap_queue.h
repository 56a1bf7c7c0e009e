/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_SWAP_QUEUE_H
#define _MM_MEMREAP_SWAP_QUEUE_H

#include <linux/memreap_swap_release.h>

#include "swap_queue_internal.h"

/* Capacity of a batch, which fills 4 KiB together with its header. */
#define SWAP_BATCH_RUNS		504
#define SWAP_BATCH_PAGES	1024

/* Slots taken out of the queue at a time, at most. */
#define SWAP_CHUNK_PAGES	64

/**
 * struct swap_batch - swap entries of one address space, to be released
 * @list: in the queue's list of waiting or of spare batches
 * @owner: that the work is charged to, or NULL; opaque to the queue
 * @queued: when the first of its entries was queued, ns
 * @next: index of the first of @runs that has not been taken
 * @nr: entries in @runs
 * @pages: slots that have not been taken
 * @runs: the entries
 */
struct swap_batch {
	struct list_head list;
	void *owner;
	u64 queued;
	unsigned int next;
	unsigned int nr;
	unsigned long pages;
	struct swap_run runs[SWAP_BATCH_RUNS];
};

/**
 * struct swap_queue - batches of swap entries that wait, and spare batches
 * @lock: protects all of it, and the batches in it
 * @waiting: batches with entries, the oldest first
 * @spare: batches without
 * @oldest: when the first of @waiting was queued, ns; U64_MAX if there is
 *	    none. May be read without the lock.
 * @pages: slots in all of @waiting
 * @nr_waiting: batches in @waiting. May be read without the lock.
 * @nr_spare: batches in @spare
 */
struct swap_queue {
	spinlock_t lock;	/* never taken with interrupts disabled */
	struct list_head waiting;
	struct list_head spare;
	u64 oldest;
	unsigned long pages;
	unsigned int nr_waiting;
	unsigned int nr_spare;
};

/**
 * struct swap_chunk - entries taken out of the queue to be released
 * @owner: of all of them
 * @last: no entry with @owner is left; the caller has to put it
 * @queued: when they were queued, ns
 * @pages: slots in @runs
 * @nr: entries in @runs
 * @runs: the entries
 */
struct swap_chunk {
	void *owner;
	bool last;
	u64 queued;
	unsigned int pages;
	unsigned int nr;
	struct swap_run runs[SWAP_CHUNK_RUNS];
};

void swap_queue_init(struct swap_queue *q);
struct swap_batch *swap_queue_get_spare(struct swap_queue *q);
void swap_queue_put_spare(struct swap_queue *q, struct swap_batch *batch);
unsigned int swap_batch_add(struct swap_batch *batch, unsigned int type,
			    unsigned long offset, unsigned int nr);
bool swap_batch_full(const struct swap_batch *batch);
bool swap_queue_add(struct swap_queue *q, struct swap_batch *batch, u64 now);
bool swap_queue_take(struct swap_queue *q, struct swap_chunk *chunk);

#endif /* _MM_MEMREAP_SWAP_QUEUE_H */
