// SPDX-License-Identifier: GPL-2.0-only
/*
 * Swap entries of dying address spaces that wait to be released.
 *
 * The entries are kept as runs of neighbours, in batches of fixed size. A
 * teardown fills a batch of its own, without a lock, and queues it; a task that
 * releases entries takes a copy of the next few. So no task holds entries for
 * longer than it takes to release a few, all that wait are available to any
 * task at any time, and any number of tasks can work on a batch.
 */
#include "swap_queue.h"

/**
 * swap_queue_init - initialize an empty queue, without batches
 * @q: the queue
 */
void swap_queue_init(struct swap_queue *q)
{
	spin_lock_init(&q->lock);
	INIT_LIST_HEAD(&q->waiting);
	INIT_LIST_HEAD(&q->spare);
	q->oldest = U64_MAX;
	q->pages = 0;
	q->nr_waiting = 0;
	q->nr_spare = 0;
}

/**
 * swap_queue_get_spare - get an empty batch to be filled
 * @q: the queue
 *
 * Return: a batch, without an owner, or NULL if all of them are in use.
 */
struct swap_batch *swap_queue_get_spare(struct swap_queue *q)
{
	struct swap_batch *batch;

	spin_lock(&q->lock);
	batch = list_first_entry_or_null(&q->spare, struct swap_batch, list);
	if (batch) {
		list_del(&batch->list);
		q->nr_spare--;
	}
	spin_unlock(&q->lock);
	if (!batch)
		return NULL;

	batch->owner = NULL;
	batch->next = 0;
	batch->nr = 0;
	batch->pages = 0;

	return batch;
}

static void add_spare(struct swap_queue *q, struct swap_batch *batch)
{
	/* The one used last may still be cached. */
	list_add(&batch->list, &q->spare);
	q->nr_spare++;
}

/**
 * swap_queue_put_spare - return an unused batch to the queue
 * @q: the queue
 * @batch: the batch, which may be a new one
 */
void swap_queue_put_spare(struct swap_queue *q, struct swap_batch *batch)
{
	spin_lock(&q->lock);
	add_spare(q, batch);
	spin_unlock(&q->lock);
}

/**
 * swap_batch_add - add entries to a batch that is not queued
 * @batch: the batch
 * @type: of the swap device
 * @offset: of the first slot
 * @nr: slots, at least one
 *
 * Return: how many of the slots were added, from the first one on.
 */
unsigned int swap_batch_add(struct swap_batch *batch, unsigned int type,
			    unsigned long offset, unsigned int nr)
{
	nr = min(nr, (unsigned int)(SWAP_BATCH_PAGES - batch->pages));
	if (!nr || !swap_run_add(batch->runs, &batch->nr, SWAP_BATCH_RUNS,
				 type, offset, nr))
		return 0;
	batch->pages += nr;

	return nr;
}

/**
 * swap_batch_full - check whether a batch is full
 * @batch: a batch that is not queued
 *
 * Return: true if the next entry may not fit.
 */
bool swap_batch_full(const struct swap_batch *batch)
{
	return batch->nr == SWAP_BATCH_RUNS ||
	       batch->pages == SWAP_BATCH_PAGES;
}

/* Returns whether the runs of @batch can be appended to @last. */
static bool fits(const struct swap_batch *last, const struct swap_batch *batch)
{
	return last->owner == batch->owner &&
	       last->nr + batch->nr <= SWAP_BATCH_RUNS &&
	       last->pages + batch->pages <= SWAP_BATCH_PAGES;
}

/**
 * swap_queue_add - queue the entries of a batch
 * @q: the queue
 * @batch: the batch, with at least one entry
 * @now: the time, ns
 *
 * The queue takes over the batch and the reference to its owner. But if its
 * entries fit into the batch queued last, for the same owner, they are appended
 * there and the batch is spare again: otherwise a teardown of one small area at
 * a time would use up all batches.
 *
 * Return: true if the reference to the owner stays with the caller.
 */
bool swap_queue_add(struct swap_queue *q, struct swap_batch *batch, u64 now)
{
	struct swap_batch *last;
	bool merged = false;

	spin_lock(&q->lock);
	q->pages += batch->pages;
	if (!list_empty(&q->waiting)) {
		last = list_last_entry(&q->waiting, struct swap_batch, list);
		merged = fits(last, batch);
	}
	if (merged) {
		memcpy(last->runs + last->nr, batch->runs,
		       batch->nr * sizeof(batch->runs[0]));
		last->nr += batch->nr;
		last->pages += batch->pages;
		add_spare(q, batch);
	} else {
		batch->queued = now;
		if (list_empty(&q->waiting))
			WRITE_ONCE(q->oldest, now);
		list_add_tail(&batch->list, &q->waiting);
		WRITE_ONCE(q->nr_waiting, q->nr_waiting + 1);
	}
	spin_unlock(&q->lock);

	return merged;
}

/* Moves the first entries of @batch to @chunk. */
static void move_runs(struct swap_batch *batch, struct swap_chunk *chunk)
{
	while (batch->next < batch->nr && chunk->nr < SWAP_CHUNK_RUNS &&
	       chunk->pages < SWAP_CHUNK_PAGES) {
		struct swap_run *from = &batch->runs[batch->next];
		struct swap_run *to = &chunk->runs[chunk->nr++];

		*to = *from;
		to->nr = min_t(unsigned int, from->nr,
			       SWAP_CHUNK_PAGES - chunk->pages);
		chunk->pages += to->nr;
		from->offset += to->nr;
		from->nr -= to->nr;
		if (!from->nr)
			batch->next++;
	}
	batch->pages -= chunk->pages;
}

/**
 * swap_queue_take - take entries that the caller will release
 * @q: the queue
 * @chunk: set to a few of the oldest entries, of one owner
 *
 * Return: false if nothing waits.
 */
bool swap_queue_take(struct swap_queue *q, struct swap_chunk *chunk)
{
	struct swap_batch *batch;

	chunk->pages = 0;
	chunk->nr = 0;
	chunk->last = false;
	spin_lock(&q->lock);
	batch = list_first_entry_or_null(&q->waiting, struct swap_batch, list);
	if (!batch)
		goto unlock;

	move_runs(batch, chunk);
	chunk->owner = batch->owner;
	chunk->queued = batch->queued;
	q->pages -= chunk->pages;
	if (batch->next < batch->nr)
		goto unlock;

	chunk->last = true;
	list_del(&batch->list);
	WRITE_ONCE(q->nr_waiting, q->nr_waiting - 1);
	add_spare(q, batch);
	batch = list_first_entry_or_null(&q->waiting, struct swap_batch, list);
	WRITE_ONCE(q->oldest, batch ? batch->queued : U64_MAX);
unlock:
	spin_unlock(&q->lock);

	return chunk->nr;
}
