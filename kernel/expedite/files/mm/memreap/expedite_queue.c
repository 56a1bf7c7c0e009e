// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which address space is worked on next, and by how many workers.
 *
 * The queue holds one request for each address space. A worker takes the one
 * of which it would get the largest share: all of a request without workers,
 * one part in n + 1 of a request with n workers. So the largest victims come
 * first, and by the same rule idle workers help where most is left.
 *
 * Requests that cannot be worked on now are retried after growing pauses until
 * their deadline.
 */
#include "expedite_queue.h"

/**
 * expedite_queue_init - initialize an empty queue
 * @q: the queue
 */
void expedite_queue_init(struct expedite_queue *q)
{
	spin_lock_init(&q->lock);
	INIT_LIST_HEAD(&q->requests);
	INIT_LIST_HEAD(&q->free);
	for (unsigned int i = 0; i < EXPEDITE_MAX_REQUESTS; i++)
		list_add_tail(&q->places[i].list, &q->free);
}

/**
 * expedite_queue_add - request that an address space be freed
 * @q: the queue
 * @mm: the address space
 * @victim: a thread of the process that was killed
 * @pages: approximate number of pages to free
 * @now: the time, ns
 *
 * With EXPEDITE_QUEUED the queue takes over the caller's references to @mm and
 * @victim, which expedite_queue_put() returns. Otherwise they stay with the
 * caller. An existing request does not change: repeated calls must not keep
 * the workers busy.
 *
 * Return: the result. May be called with interrupts disabled.
 */
enum expedite_added expedite_queue_add(struct expedite_queue *q,
				       struct mm_struct *mm,
				       struct task_struct *victim,
				       unsigned long pages, u64 now)
{
	enum expedite_added added = EXPEDITE_MERGED;
	struct expedite_request *req;
	unsigned long flags;

	spin_lock_irqsave(&q->lock, flags);
	list_for_each_entry(req, &q->requests, list) {
		if (req->mm == mm)
			goto unlock;
	}
	added = EXPEDITE_FULL;
	if (list_empty(&q->free))
		goto unlock;

	added = EXPEDITE_QUEUED;
	req = list_first_entry(&q->free, struct expedite_request, list);
	list_move_tail(&req->list, &q->requests);
	req->mm = mm;
	req->victim = victim;
	req->pages = pages;
	req->freed = 0;
	req->queued = now;
	req->deadline = now + EXPEDITE_RETRY_NS;
	req->due = now;
	req->pause = EXPEDITE_PAUSE_NS;
	req->workers = 0;
	req->peak_workers = 0;
	req->open = false;
	req->may_retry = true;
	req->outcome = EXPEDITE_EXITED;
unlock:
	spin_unlock_irqrestore(&q->lock, flags);

	return added;
}

/* Returns the pages that one more worker would get; 0 if it may not join. */
static unsigned long share_of(const struct expedite_request *req, u64 now)
{
	unsigned long share;

	if (!req->workers)
		return req->due <= now ? max(req->pages, 1UL) : 0;
	if (!req->open)
		return 0;
	share = req->pages / (req->workers + 1);

	return share >= EXPEDITE_SHARE ? share : 0;
}

/**
 * expedite_queue_take - become a worker of the request with the largest share
 * @q: the queue
 * @now: the time, ns
 * @turn: the work
 *
 * Return: true if there is a request, to be passed to expedite_queue_put().
 */
bool expedite_queue_take(struct expedite_queue *q, u64 now,
			 struct expedite_turn *turn)
{
	struct expedite_request *req, *best = NULL;
	unsigned long share, best_share = 0;
	unsigned long flags;

	turn->more = false;
	turn->next = EXPEDITE_NEVER;
	spin_lock_irqsave(&q->lock, flags);
	list_for_each_entry(req, &q->requests, list) {
		share = share_of(req, now);
		if (!share) {
			if (!req->workers)
				turn->next = min(turn->next, req->due);
			continue;
		}
		turn->more = !!best;
		if (share > best_share) {
			best_share = share;
			best = req;
		}
	}
	turn->req = best;
	if (best) {
		turn->first = !best->workers;
		if (turn->first)
			best->may_retry = now < best->deadline;
		turn->may_retry = best->may_retry;
		best->workers++;
		best->peak_workers = max(best->peak_workers, best->workers);
		turn->more |= !!share_of(best, now);
	}
	spin_unlock_irqrestore(&q->lock, flags);

	return best;
}

/**
 * expedite_queue_ready - check for work
 * @q: the queue
 * @now: the time, ns
 *
 * Return: true if expedite_queue_take() would find a request.
 */
bool expedite_queue_ready(struct expedite_queue *q, u64 now)
{
	struct expedite_request *req;
	unsigned long flags;
	bool ready = false;

	spin_lock_irqsave(&q->lock, flags);
	list_for_each_entry(req, &q->requests, list) {
		ready = share_of(req, now);
		if (ready)
			break;
	}
	spin_unlock_irqrestore(&q->lock, flags);

	return ready;
}

/**
 * expedite_queue_open - let other workers join
 * @q: the queue
 * @req: a request that the caller is the only worker of
 *
 * Return: true if there is enough work for another one.
 */
bool expedite_queue_open(struct expedite_queue *q,
			 struct expedite_request *req)
{
	unsigned long flags;
	bool more;

	spin_lock_irqsave(&q->lock, flags);
	req->open = true;
	more = share_of(req, req->due);
	spin_unlock_irqrestore(&q->lock, flags);

	return more;
}

/**
 * expedite_queue_put - stop working on a request
 * @q: the queue
 * @req: the request
 * @freed: pages that the caller has freed
 * @outcome: of the caller
 * @now: the time, ns
 * @over: set to the request if true is returned
 *
 * Once one worker has finished, no more may join. The last one decides about
 * another attempt.
 *
 * Return: true if the request is finished. Its place is free again then, and
 * the caller owns its references.
 */
bool expedite_queue_put(struct expedite_queue *q, struct expedite_request *req,
			unsigned long freed, enum expedite_outcome outcome,
			u64 now, struct expedite_request *over)
{
	unsigned long flags;
	bool last = false;

	spin_lock_irqsave(&q->lock, flags);
	req->freed += freed;
	req->outcome = max(req->outcome, outcome);
	req->open = false;
	if (--req->workers)
		goto unlock;

	last = req->outcome <= EXPEDITE_FREED || !req->may_retry;
	if (last) {
		*over = *req;
		list_move(&req->list, &q->free);
	} else {
		/* The last attempt is at the deadline, not a pause later. */
		req->due = min(now + req->pause, req->deadline);
		req->pause = min(2 * req->pause, (u64)EXPEDITE_MAX_PAUSE_NS);
		req->outcome = EXPEDITE_EXITED;
	}
unlock:
	spin_unlock_irqrestore(&q->lock, flags);

	return last;
}
