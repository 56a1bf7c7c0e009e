// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests for the queue of address spaces to be freed.
 *
 * An mm and a victim are addresses that are never dereferenced, and the tests
 * set the time: they need neither processes nor delays.
 */
#include <kunit/test.h>

#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/prandom.h>
#include <linux/sched.h>

#include "expedite_queue.h"

#define NR_PLACES	EXPEDITE_MAX_REQUESTS
#define SHARE		((unsigned long)EXPEDITE_SHARE)
#define PAUSE		((u64)EXPEDITE_PAUSE_NS)
#define PATIENCE	((u64)EXPEDITE_RETRY_NS)

/* Start of the tests: 0 would hide an uninitialized time. */
#define START		(1000 * PATIENCE)

/* The tests distinguish these by address only. */
static char mm_places[2 * NR_PLACES];
static char victim_places[2 * NR_PLACES];
#define MM(i)		((struct mm_struct *)&mm_places[i])
#define VICTIM(i)	((struct task_struct *)&victim_places[i])

static int expedite_test_init(struct kunit *test)
{
	struct expedite_queue *q;

	q = kunit_kzalloc(test, sizeof(*q), GFP_KERNEL);
	if (!q)
		return -ENOMEM;
	expedite_queue_init(q);
	test->priv = q;

	return 0;
}

/* Leaves @nr places, so that few requests fill the queue. */
static void leave_places(struct expedite_queue *q, unsigned int nr)
{
	INIT_LIST_HEAD(&q->free);
	for (unsigned int i = 0; i < nr; i++)
		list_add_tail(&q->places[i].list, &q->free);
}

static enum expedite_added add(struct kunit *test, unsigned int i,
			       unsigned long pages, u64 now)
{
	return expedite_queue_add(test->priv, MM(i), VICTIM(i), pages, now);
}

/* Becomes a worker of MM(@i), which must be the next request. */
static struct expedite_turn take(struct kunit *test, unsigned int i, u64 now)
{
	struct expedite_turn turn;

	KUNIT_EXPECT_TRUE(test, expedite_queue_ready(test->priv, now));
	KUNIT_ASSERT_TRUE(test, expedite_queue_take(test->priv, now, &turn));
	KUNIT_ASSERT_PTR_EQ(test, turn.req->mm, MM(i));
	KUNIT_EXPECT_EQ(test, turn.more, expedite_queue_ready(test->priv, now));

	return turn;
}

/* There must be no work. Returns when there will be. */
static u64 idle_until(struct kunit *test, u64 now)
{
	struct expedite_queue *q = test->priv;
	struct expedite_turn turn;

	KUNIT_EXPECT_FALSE(test, expedite_queue_ready(q, now));
	KUNIT_ASSERT_FALSE(test, expedite_queue_take(q, now, &turn));
	KUNIT_EXPECT_NULL(test, turn.req);
	KUNIT_EXPECT_FALSE(test, turn.more);
	if (turn.next != EXPEDITE_NEVER) {
		KUNIT_EXPECT_GT(test, turn.next, now);
		KUNIT_EXPECT_FALSE(test, expedite_queue_ready(q, turn.next - 1));
		KUNIT_EXPECT_TRUE(test, expedite_queue_ready(q, turn.next));
	}

	return turn.next;
}

/* Stops working; there must be other workers, or another attempt. */
static void put(struct kunit *test, const struct expedite_turn *turn,
		unsigned long freed, enum expedite_outcome outcome, u64 now)
{
	struct expedite_request over = {};

	KUNIT_ASSERT_FALSE(test, expedite_queue_put(test->priv, turn->req,
						    freed, outcome, now,
						    &over));
	/* An unfinished request keeps its references. */
	KUNIT_EXPECT_NULL(test, over.mm);
	KUNIT_EXPECT_NULL(test, over.victim);
}

/* Stops working, which must be the end of the request. */
static struct expedite_request put_last(struct kunit *test,
					const struct expedite_turn *turn,
					unsigned long freed,
					enum expedite_outcome outcome, u64 now)
{
	struct mm_struct *mm = turn->req->mm;
	struct expedite_request over;

	KUNIT_ASSERT_TRUE(test, expedite_queue_put(test->priv, turn->req,
						   freed, outcome, now,
						   &over));
	KUNIT_EXPECT_PTR_EQ(test, over.mm, mm);
	KUNIT_EXPECT_EQ(test, over.workers, 0);

	return over;
}

/* Empty a queue of requests that were added with add(), each once. */
static void drain(struct kunit *test, unsigned int nr, u64 now)
{
	struct expedite_turn turn;
	bool *seen;

	seen = kunit_kcalloc(test, sizeof(mm_places), sizeof(*seen),
			     GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, seen);
	for (unsigned int i = 0; i < nr; i++) {
		struct expedite_request over;
		size_t k;

		KUNIT_ASSERT_TRUE(test, expedite_queue_take(test->priv, now,
							    &turn));
		over = put_last(test, &turn, 0, EXPEDITE_EXITED, now);
		k = (char *)over.mm - mm_places;
		KUNIT_ASSERT_LT(test, k, sizeof(mm_places));
		KUNIT_EXPECT_FALSE(test, seen[k]);
		KUNIT_EXPECT_PTR_EQ(test, over.victim, VICTIM(k));
		seen[k] = true;
	}
	KUNIT_EXPECT_EQ(test, idle_until(test, now), EXPEDITE_NEVER);
	kunit_kfree(test, seen);
}

static void comes_back_as_it_went_in(struct kunit *test)
{
	struct expedite_request over;
	struct expedite_turn turn;

	KUNIT_EXPECT_EQ(test, idle_until(test, START), EXPEDITE_NEVER);
	KUNIT_EXPECT_EQ(test, add(test, 3, 100, START), EXPEDITE_QUEUED);
	turn = take(test, 3, START + 1);
	KUNIT_EXPECT_TRUE(test, turn.first);
	KUNIT_EXPECT_TRUE(test, turn.may_retry);
	KUNIT_EXPECT_EQ(test, idle_until(test, START + 2), EXPEDITE_NEVER);
	over = put_last(test, &turn, 7, EXPEDITE_FREED, START + 3);
	KUNIT_EXPECT_PTR_EQ(test, over.victim, VICTIM(3));
	KUNIT_EXPECT_EQ(test, over.pages, 100);
	KUNIT_EXPECT_EQ(test, over.freed, 7);
	KUNIT_EXPECT_EQ(test, over.queued, START);
	KUNIT_EXPECT_EQ(test, over.peak_workers, 1);
	KUNIT_EXPECT_EQ(test, over.outcome, EXPEDITE_FREED);

	/* The next one in its place is not affected. */
	KUNIT_EXPECT_EQ(test, add(test, 3, 50, START + 4), EXPEDITE_QUEUED);
	turn = take(test, 3, START + 4);
	over = put_last(test, &turn, 0, EXPEDITE_EXITED, START + 5);
	KUNIT_EXPECT_EQ(test, over.pages, 50);
	KUNIT_EXPECT_EQ(test, over.freed, 0);
	KUNIT_EXPECT_EQ(test, over.queued, START + 4);
	KUNIT_EXPECT_EQ(test, over.outcome, EXPEDITE_EXITED);
	KUNIT_EXPECT_EQ(test, idle_until(test, START + 5), EXPEDITE_NEVER);
}

static void is_merged_with_its_own(struct kunit *test)
{
	struct expedite_queue *q = test->priv;
	struct expedite_request over;
	struct expedite_turn turn;

	KUNIT_EXPECT_EQ(test, add(test, 0, 100, START), EXPEDITE_QUEUED);
	KUNIT_EXPECT_EQ(test, add(test, 1, 1, START), EXPEDITE_QUEUED);
	KUNIT_EXPECT_EQ(test, expedite_queue_add(q, MM(0), VICTIM(2), 200,
						 START + 1), EXPEDITE_MERGED);
	turn = take(test, 0, START + 2);
	KUNIT_EXPECT_EQ(test, expedite_queue_add(q, MM(0), VICTIM(2), 300,
						 START + 3), EXPEDITE_MERGED);
	/* The caller keeps the references of a merged request. */
	over = put_last(test, &turn, 0, EXPEDITE_FREED, START + 4);
	KUNIT_EXPECT_PTR_EQ(test, over.victim, VICTIM(0));
	KUNIT_EXPECT_EQ(test, over.pages, 100);
	KUNIT_EXPECT_EQ(test, over.queued, START);

	/* Nothing is merged with a finished request. */
	KUNIT_EXPECT_EQ(test, add(test, 0, 0, START + 5), EXPEDITE_QUEUED);
	drain(test, 2, START + 5);
}

static void is_full_and_has_room_again(struct kunit *test)
{
	struct expedite_turn turn;

	for (int round = 0; round < 2; round++) {
		for (unsigned int i = 0; i < NR_PLACES; i++)
			KUNIT_ASSERT_EQ(test, add(test, i, i + 1, START),
					EXPEDITE_QUEUED);
		KUNIT_EXPECT_EQ(test, add(test, NR_PLACES, 1, START),
				EXPEDITE_FULL);
		drain(test, NR_PLACES, START);
	}

	for (unsigned int i = 0; i < NR_PLACES; i++)
		add(test, i, i + 1, START);
	for (unsigned int i = NR_PLACES; i-- > 0;) {
		unsigned int other = NR_PLACES + i;

		KUNIT_ASSERT_EQ(test, add(test, i, 1, START), EXPEDITE_MERGED);
		turn = take(test, i, START);
		/* A request that is worked on keeps its place. */
		KUNIT_ASSERT_EQ(test, add(test, other, 1, START),
				EXPEDITE_FULL);
		put_last(test, &turn, 0, EXPEDITE_FREED, START);
		/* Small enough to come after all of the first ones. */
		KUNIT_ASSERT_EQ(test, add(test, other, 0, START),
				EXPEDITE_QUEUED);
	}
	drain(test, NR_PLACES, START);
}

static void largest_come_first(struct kunit *test)
{
	unsigned long above = ULONG_MAX;
	struct expedite_turn turn;
	struct rnd_state rnd;

	prandom_seed_state(&rnd, 1);
	for (unsigned int i = 0; i < NR_PLACES; i++)
		add(test, i, prandom_u32_state(&rnd) % 1000 * (SHARE / 100),
		    START);
	for (unsigned int i = 0; i < NR_PLACES; i++) {
		KUNIT_ASSERT_TRUE(test, expedite_queue_take(test->priv, START,
							    &turn));
		KUNIT_EXPECT_TRUE(test, turn.first);
		KUNIT_EXPECT_EQ(test, turn.more, i + 1 < NR_PLACES);
		KUNIT_ASSERT_LE(test, turn.req->pages, above);
		above = turn.req->pages;
		put_last(test, &turn, 0, EXPEDITE_FREED, START);
	}
}

/* Returns how many workers may work on a request of @pages at a time. */
static unsigned int workers_for(struct kunit *test, unsigned long pages)
{
	struct expedite_turn turns[10];
	struct expedite_request over;
	unsigned int nr = 1;

	KUNIT_EXPECT_EQ(test, add(test, 0, pages, START), EXPEDITE_QUEUED);
	turns[0] = take(test, 0, START);
	KUNIT_EXPECT_TRUE(test, turns[0].first);
	/* Until it is known whether it can be worked on, one is enough. */
	KUNIT_EXPECT_EQ(test, idle_until(test, START), EXPEDITE_NEVER);
	if (expedite_queue_open(test->priv, turns[0].req)) {
		do {
			KUNIT_ASSERT_LT(test, nr, ARRAY_SIZE(turns));
			turns[nr] = take(test, 0, START);
			KUNIT_EXPECT_FALSE(test, turns[nr].first);
		} while (turns[nr++].more);
	}
	KUNIT_EXPECT_EQ(test, idle_until(test, START), EXPEDITE_NEVER);
	/* There would be a share for another one now, but it is too late. */
	for (unsigned int i = nr - 1; i > 0; i--) {
		put(test, &turns[i], 10, EXPEDITE_FREED, START);
		KUNIT_EXPECT_EQ(test, idle_until(test, START), EXPEDITE_NEVER);
	}
	over = put_last(test, &turns[0], 1, EXPEDITE_FREED, START);
	KUNIT_EXPECT_EQ(test, over.peak_workers, nr);
	KUNIT_EXPECT_EQ(test, over.freed, (nr - 1) * 10 + 1);

	return nr;
}

static void workers_fit_the_work(struct kunit *test)
{
	KUNIT_EXPECT_EQ(test, workers_for(test, 0), 1);
	KUNIT_EXPECT_EQ(test, workers_for(test, 1), 1);
	for (unsigned int nr = 2; nr <= 8; nr++) {
		KUNIT_EXPECT_EQ(test, workers_for(test, nr * SHARE - 1), nr - 1);
		KUNIT_EXPECT_EQ(test, workers_for(test, nr * SHARE), nr);
	}
}

static void workers_go_to_the_largest_share(struct kunit *test)
{
	/* Of 5, 3 and hardly any: 5 / 2, 5 / 3, 3 / 2, 5 / 4, 3 / 3. */
	static const unsigned int order[] = { 0, 1, 0, 0, 1, 0, 1, 2 };
	struct expedite_turn turns[ARRAY_SIZE(order)];
	unsigned int workers[] = { 4, 3, 1 };

	add(test, 0, 5 * SHARE - 1, START);
	add(test, 1, 3 * SHARE, START);
	add(test, 2, 1, START);
	for (unsigned int i = 0; i < ARRAY_SIZE(order); i++) {
		turns[i] = take(test, order[i], START);
		KUNIT_EXPECT_EQ(test, turns[i].first, i < 2 || i == 7);
		if (turns[i].first)
			expedite_queue_open(test->priv, turns[i].req);
		/* As small as the last one is, it can be worked on all along. */
		KUNIT_EXPECT_EQ(test, turns[i].more, i < 7);
	}
	for (unsigned int i = 0; i < ARRAY_SIZE(order); i++) {
		if (--workers[order[i]])
			put(test, &turns[i], 0, EXPEDITE_FREED, START);
		else
			put_last(test, &turns[i], 0, EXPEDITE_FREED, START);
	}
	KUNIT_EXPECT_EQ(test, idle_until(test, START), EXPEDITE_NEVER);
}

static void pauses_grow_until_the_deadline(struct kunit *test)
{
	const u64 end = START + PATIENCE;

	for (enum expedite_outcome outcome = EXPEDITE_SHARED;
	     outcome <= EXPEDITE_FAILED; outcome++) {
		u64 pause = 1 * NSEC_PER_MSEC, now = START;
		struct expedite_request over;
		struct expedite_turn turn;
		unsigned int tries = 0;

		add(test, 0, 8 * SHARE, START);
		while (now < end) {
			u64 next = min(now + pause, end);

			turn = take(test, 0, now);
			KUNIT_EXPECT_TRUE(test, turn.first);
			KUNIT_EXPECT_TRUE(test, turn.may_retry);
			/* Open in one attempt is not open in the next. */
			expedite_queue_open(test->priv, turn.req);
			put(test, &turn, tries++, outcome, now);
			KUNIT_EXPECT_EQ(test, idle_until(test, now), next);
			now = next;
			pause = min(2 * pause, (u64)64 * NSEC_PER_MSEC);
		}
		/* After 0, 1, 3, 7, 15, 31, 63, 127, 191, ... 1983 ms. */
		KUNIT_EXPECT_EQ(test, tries, 37);
		turn = take(test, 0, end);
		KUNIT_EXPECT_TRUE(test, turn.first);
		KUNIT_EXPECT_FALSE(test, turn.may_retry);
		over = put_last(test, &turn, 0, outcome, end);
		KUNIT_EXPECT_EQ(test, over.outcome, outcome);
		KUNIT_EXPECT_EQ(test, over.freed, tries * (tries - 1) / 2);
		KUNIT_EXPECT_EQ(test, idle_until(test, end), EXPEDITE_NEVER);
	}
}

static void last_try_is_not_left_out(struct kunit *test)
{
	const u64 late = START + 3 * PATIENCE;
	struct expedite_turn turn;

	/* One that started in time and took too long... */
	add(test, 0, 1, START);
	turn = take(test, 0, START + PATIENCE - 1);
	KUNIT_EXPECT_TRUE(test, turn.may_retry);
	put(test, &turn, 0, EXPEDITE_LOCK, late);
	turn = take(test, 0, late);
	KUNIT_EXPECT_FALSE(test, turn.may_retry);
	put_last(test, &turn, 0, EXPEDITE_LOCK, late);

	/* ...or that no worker had time for. */
	add(test, 0, 1, START);
	turn = take(test, 0, late);
	KUNIT_EXPECT_FALSE(test, turn.may_retry);
	put_last(test, &turn, 0, EXPEDITE_LOCK, late);
}

/* Further requests change neither the attempts nor the deadline. */
static void merging_changes_nothing(struct kunit *test)
{
	const u64 end = START + PATIENCE;
	struct expedite_turn turn;
	unsigned int tries = 0;
	u64 now = START, next;

	add(test, 0, 1, now);
	for (; now < end; now = next) {
		turn = take(test, 0, now);
		KUNIT_EXPECT_TRUE(test, turn.may_retry);
		tries++;
		/* While it is worked on, and while it waits. */
		KUNIT_EXPECT_EQ(test, add(test, 0, 1, now), EXPEDITE_MERGED);
		put(test, &turn, 0, EXPEDITE_SHARED, now);
		next = idle_until(test, now);
		KUNIT_EXPECT_EQ(test, add(test, 0, 1, next - 1),
				EXPEDITE_MERGED);
		KUNIT_ASSERT_EQ(test, idle_until(test, next - 1), next);
	}
	/* As many as without them. */
	KUNIT_EXPECT_EQ(test, tries, 37);

	/* The last attempt stays the last one. */
	turn = take(test, 0, now);
	KUNIT_EXPECT_FALSE(test, turn.may_retry);
	KUNIT_EXPECT_EQ(test, add(test, 0, 1, now), EXPEDITE_MERGED);
	put_last(test, &turn, 0, EXPEDITE_SHARED, now);
}

/* Two workers end with @a and @b. */
static void check_outcomes(struct kunit *test, enum expedite_outcome a,
			   enum expedite_outcome b)
{
	enum expedite_outcome worst = max(a, b);
	struct expedite_turn first, second;
	struct expedite_request over;

	add(test, 0, 2 * SHARE, START);
	first = take(test, 0, START);
	KUNIT_EXPECT_TRUE(test, expedite_queue_open(test->priv, first.req));
	second = take(test, 0, START);
	KUNIT_EXPECT_TRUE(test, second.may_retry);
	put(test, &first, 1, a, START);
	if (worst == EXPEDITE_FREED || worst == EXPEDITE_EXITED) {
		/* No further attempt will follow. */
		over = put_last(test, &second, 2, b, START);
		KUNIT_EXPECT_EQ(test, over.outcome, worst);
		KUNIT_EXPECT_EQ(test, over.freed, 3);
		KUNIT_EXPECT_EQ(test, over.peak_workers, 2);
		return;
	}
	put(test, &second, 2, b, START);
	/* Each attempt has an outcome of its own, the work adds up. */
	first = take(test, 0, START + PAUSE);
	KUNIT_EXPECT_TRUE(test, first.first);
	over = put_last(test, &first, 4, EXPEDITE_EXITED, START + PAUSE);
	KUNIT_EXPECT_EQ(test, over.outcome, EXPEDITE_EXITED);
	KUNIT_EXPECT_EQ(test, over.freed, 7);
	KUNIT_EXPECT_EQ(test, over.peak_workers, 2);
}

static void worst_outcome_of_a_try_counts(struct kunit *test)
{
	for (int a = EXPEDITE_EXITED; a <= EXPEDITE_FAILED; a++) {
		for (int b = EXPEDITE_EXITED; b <= EXPEDITE_FAILED; b++)
			check_outcomes(test, a, b);
	}
}

/* --- Random steps against a model without lists and places --- */

#define MODEL_PLACES	5
#define MODEL_MMS	8
#define MODEL_WORKERS	6
#define MODEL_STEPS	20000

/**
 * struct model - history of an address space's request
 * @queued: there is a request
 * @victim: it was queued with
 * @pages: it was queued with
 * @since: time of that
 * @tried: end of the last attempt
 * @tries: attempts that have ended
 * @may_retry: the present attempt started before the deadline
 * @workers: current number
 * @peak_workers: maximum of @workers
 * @opened: by the first worker of this attempt
 * @closed: by a worker that finished
 * @bad: the worst outcome in this attempt so far
 * @freed: in total
 */
struct model {
	bool queued;
	struct task_struct *victim;
	unsigned long pages;
	u64 since;
	u64 tried;
	unsigned int tries;
	bool may_retry;
	unsigned int workers;
	unsigned int peak_workers;
	bool opened;
	bool closed;
	enum expedite_outcome bad;
	unsigned long freed;
};

/**
 * struct walk - a random sequence of kills, workers and time
 * @test: of this test
 * @q: the queue
 * @rnd: state of the random steps
 * @now: the time
 * @models: of the requests, one for each mm
 * @at: what each worker works on, or NULL
 * @reqs: the same as the queue's request
 * @first: the worker was the first one of the attempt
 * @ended: requests that were returned
 * @full: requests that were refused
 */
struct walk {
	struct kunit *test;
	struct expedite_queue *q;
	struct rnd_state rnd;
	u64 now;
	struct model models[MODEL_MMS];
	struct model *at[MODEL_WORKERS];
	struct expedite_request *reqs[MODEL_WORKERS];
	bool first[MODEL_WORKERS];
	unsigned int ended;
	unsigned int full;
};

static unsigned int rnd_below(struct walk *w, unsigned int limit)
{
	return prandom_u32_state(&w->rnd) % limit;
}

/* Start of the next attempt at a request without workers. */
static u64 model_due(const struct model *m)
{
	if (!m->tries)
		return m->since;

	return min(m->tried + (PAUSE << min(m->tries - 1, 6U)),
		   m->since + PATIENCE);
}

/* Returns the share of one more worker, or 0. */
static unsigned long model_share(const struct model *m, u64 now)
{
	if (!m->queued)
		return 0;
	if (!m->workers)
		return model_due(m) > now ? 0 : m->pages ?: 1;
	if (!m->opened || m->closed || m->pages < (m->workers + 1) * SHARE)
		return 0;

	return m->pages / (m->workers + 1);
}

/* The largest share, and when there will be one if there is none. */
static unsigned long model_best(const struct walk *w, u64 *next)
{
	unsigned long best = 0;

	*next = EXPEDITE_NEVER;
	for (unsigned int i = 0; i < MODEL_MMS; i++) {
		const struct model *m = &w->models[i];

		best = max(best, model_share(m, w->now));
		if (m->queued && !m->workers)
			*next = min(*next, model_due(m));
	}

	return best;
}

static void walk_add(struct walk *w)
{
	unsigned int i = rnd_below(w, MODEL_MMS);
	/* Around whole shares, that is where it matters. */
	unsigned long pages = rnd_below(w, 8) * SHARE + rnd_below(w, 3);
	struct task_struct *victim = VICTIM(rnd_below(w, 2 * NR_PLACES));
	struct model *m = &w->models[i];
	enum expedite_added expected = EXPEDITE_QUEUED;
	unsigned int used = 0;

	pages -= !!pages;
	for (unsigned int k = 0; k < MODEL_MMS; k++)
		used += w->models[k].queued;
	if (m->queued)
		expected = EXPEDITE_MERGED;
	else if (used == MODEL_PLACES)
		expected = EXPEDITE_FULL;

	KUNIT_ASSERT_EQ(w->test, expedite_queue_add(w->q, MM(i), victim, pages,
						    w->now), expected);
	switch (expected) {
	case EXPEDITE_QUEUED:
		*m = (struct model){
			.queued = true,
			.victim = victim,
			.pages = pages,
			.since = w->now,
		};
		break;
	case EXPEDITE_MERGED:
		break;
	case EXPEDITE_FULL:
		w->full++;
		break;
	}
}

static void walk_take(struct walk *w, unsigned int worker)
{
	struct kunit *test = w->test;
	struct expedite_turn turn;
	unsigned long best;
	struct model *m;
	size_t i;
	u64 next;

	best = model_best(w, &next);
	KUNIT_ASSERT_EQ(test, expedite_queue_take(w->q, w->now, &turn), !!best);
	if (!best) {
		KUNIT_ASSERT_NULL(test, turn.req);
		KUNIT_ASSERT_FALSE(test, turn.more);
		KUNIT_ASSERT_EQ(test, turn.next, next);
		return;
	}
	i = (char *)turn.req->mm - mm_places;
	KUNIT_ASSERT_LT(test, i, MODEL_MMS);
	m = &w->models[i];
	/* The queue may choose among equals. */
	KUNIT_ASSERT_EQ(test, model_share(m, w->now), best);
	KUNIT_ASSERT_EQ(test, turn.first, !m->workers);
	if (turn.first) {
		m->may_retry = w->now < m->since + PATIENCE;
		m->opened = false;
		m->closed = false;
		m->bad = EXPEDITE_EXITED;
	}
	KUNIT_ASSERT_EQ(test, turn.may_retry, m->may_retry);
	m->workers++;
	m->peak_workers = max(m->peak_workers, m->workers);
	KUNIT_ASSERT_EQ(test, turn.more, !!model_best(w, &next));
	w->at[worker] = m;
	w->reqs[worker] = turn.req;
	w->first[worker] = turn.first;
}

static void walk_open(struct walk *w, unsigned int worker)
{
	struct model *m = w->at[worker];
	bool more;

	if (!w->first[worker] || m->workers > 1 || m->opened)
		return;
	m->opened = true;
	more = expedite_queue_open(w->q, w->reqs[worker]);
	KUNIT_ASSERT_EQ(w->test, more, !!model_share(m, w->now));
}

static void walk_put(struct walk *w, unsigned int worker)
{
	enum expedite_outcome outcome = rnd_below(w, EXPEDITE_FAILED + 1);
	unsigned long freed = rnd_below(w, 100);
	struct model *m = w->at[worker];
	struct expedite_request over;
	struct kunit *test = w->test;
	bool ended;

	ended = expedite_queue_put(w->q, w->reqs[worker], freed, outcome,
				   w->now, &over);
	w->at[worker] = NULL;
	m->freed += freed;
	m->closed = true;
	m->bad = max(m->bad, outcome);
	if (--m->workers) {
		KUNIT_ASSERT_FALSE(test, ended);
		return;
	}
	m->tries++;
	m->tried = w->now;
	if (m->bad <= EXPEDITE_FREED)
		KUNIT_ASSERT_TRUE(test, ended);
	else
		KUNIT_ASSERT_EQ(test, ended, !m->may_retry);
	if (!ended)
		return;

	KUNIT_ASSERT_PTR_EQ(test, over.mm, MM(m - w->models));
	KUNIT_ASSERT_PTR_EQ(test, over.victim, m->victim);
	KUNIT_ASSERT_EQ(test, over.pages, m->pages);
	KUNIT_ASSERT_EQ(test, over.queued, m->since);
	KUNIT_ASSERT_EQ(test, over.freed, m->freed);
	KUNIT_ASSERT_EQ(test, over.peak_workers, m->peak_workers);
	KUNIT_ASSERT_EQ(test, over.outcome, m->bad);
	m->queued = false;
	w->ended++;
}

static void walk_time(struct walk *w)
{
	u64 next;

	model_best(w, &next);
	switch (rnd_below(w, 8)) {
	case 0:
		w->now++;
		break;
	case 1:
		w->now += 40 * PAUSE;
		break;
	case 2:
		w->now += PATIENCE - 1;
		break;
	case 3:
		/* Just too early. */
		if (next != EXPEDITE_NEVER)
			w->now = max(w->now, next - 1);
		break;
	default:
		if (next != EXPEDITE_NEVER)
			w->now = max(w->now, next);
		break;
	}
}

static void agrees_with_a_model(struct kunit *test)
{
	struct walk *w = kunit_kzalloc(test, sizeof(*w), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, w);
	w->test = test;
	w->q = test->priv;
	w->now = START;
	prandom_seed_state(&w->rnd, 1);
	leave_places(w->q, MODEL_PLACES);
	for (unsigned int i = 0; i < MODEL_STEPS; i++) {
		unsigned int worker = rnd_below(w, MODEL_WORKERS);
		unsigned int what = rnd_below(w, 16);
		u64 next;

		if (what < 4)
			walk_add(w);
		else if (what < 7)
			walk_time(w);
		else if (!w->at[worker])
			walk_take(w, worker);
		else if (what < 12)
			walk_open(w, worker);
		else
			walk_put(w, worker);
		KUNIT_ASSERT_EQ(test, expedite_queue_ready(w->q, w->now),
				!!model_best(w, &next));
	}
	/* Otherwise the test proves nothing. */
	KUNIT_EXPECT_GT(test, w->ended, MODEL_STEPS / 100);
	KUNIT_EXPECT_GT(test, w->full, MODEL_STEPS / 1000);
}

/* --- Killers and workers at the same time --- */

#define NR_KILLERS	2
#define NR_WORKERS	4
#define NR_KILLS	2000
#define NR_MMS		16

/**
 * struct kill - a victim
 * @mm: the number of its address space
 * @freed: pages, as reported by workers
 * @seen: attempts, written by workers without company
 * @kept: the queue refused it
 * @over: it was returned
 */
struct kill {
	unsigned int mm;
	atomic_long_t freed;
	unsigned int seen;
	unsigned int kept;
	unsigned int over;
};

/**
 * struct shared - what the threads share
 * @q: the queue
 * @kills: of all killers
 * @alone: for each mm, odd while a first worker owns it
 * @killers: that have not finished
 * @time: advances when there is no work
 * @go: for a simultaneous start
 * @joined: how often a worker joined
 * @merged: how often an mm was queued already
 * @wrong: violations
 */
struct shared {
	struct expedite_queue *q;
	struct kill *kills;
	unsigned int alone[NR_MMS];
	atomic_t killers;
	atomic64_t time;
	struct completion go;
	atomic_t joined;
	atomic_t merged;
	atomic_t wrong;
};

/**
 * struct thread - a kthread
 * @shared: with the others
 * @id: among the killers, or the workers
 * @done: it no longer uses the test's data
 */
struct thread {
	struct shared *shared;
	unsigned int id;
	struct completion done;
};

static void expect(struct shared *c, bool right)
{
	if (!right)
		atomic_inc(&c->wrong);
}

/* Lets other threads run in between, also with one CPU. */
static void dawdle(struct rnd_state *rnd)
{
	switch (prandom_u32_state(rnd) % 16) {
	case 0:
		usleep_range(1, 20);
		break;
	case 1:
	case 2:
	case 3:
		udelay(2);
		break;
	}
}

static int killer_fn(void *arg)
{
	struct thread *a = arg;
	struct shared *c = a->shared;
	struct rnd_state rnd;

	prandom_seed_state(&rnd, 1 + a->id);
	wait_for_completion(&c->go);
	for (unsigned int i = 0; i < NR_KILLS; i++) {
		struct kill *k = &c->kills[a->id * NR_KILLS + i];
		unsigned long pages = prandom_u32_state(&rnd) % (5 * SHARE);
		enum expedite_added added;

		k->mm = prandom_u32_state(&rnd) % NR_MMS;
		added = expedite_queue_add(c->q, MM(k->mm),
					   (struct task_struct *)k, pages,
					   atomic64_read(&c->time));
		if (added != EXPEDITE_QUEUED)
			k->kept++;
		if (added == EXPEDITE_MERGED)
			atomic_inc(&c->merged);
		dawdle(&rnd);
		cond_resched();
	}
	atomic_dec(&c->killers);
	complete(&a->done);

	return 0;
}

static void work(struct shared *c, const struct expedite_turn *turn,
		 struct rnd_state *rnd)
{
	struct kill *k = (struct kill *)turn->req->victim;
	enum expedite_outcome outcome = EXPEDITE_FREED;
	unsigned long freed = prandom_u32_state(rnd) % 100;
	struct expedite_request over;

	expect(c, turn->req->mm == MM(k->mm));
	if (turn->first) {
		/* A worker that joins too early would be detected. */
		expect(c, ++c->alone[k->mm] % 2 == 1);
		dawdle(rnd);
		expect(c, ++c->alone[k->mm] % 2 == 0);
		k->seen++;
		if (prandom_u32_state(rnd) % 4)
			expedite_queue_open(c->q, turn->req);
	} else {
		atomic_inc(&c->joined);
	}
	expect(c, k->seen && c->alone[k->mm] % 2 == 0);
	dawdle(rnd);
	if (prandom_u32_state(rnd) % 2)
		outcome = prandom_u32_state(rnd) % (EXPEDITE_FAILED + 1);

	atomic_long_add(freed, &k->freed);
	if (!expedite_queue_put(c->q, turn->req, freed, outcome,
				atomic64_read(&c->time), &over))
		return;
	expect(c, over.victim == (struct task_struct *)k);
	expect(c, over.mm == MM(k->mm));
	expect(c, over.freed == atomic_long_read(&k->freed));
	expect(c, over.peak_workers >= 1 && over.peak_workers <= NR_WORKERS);
	k->over++;
}

static int worker_fn(void *arg)
{
	struct thread *a = arg;
	struct shared *c = a->shared;
	struct rnd_state rnd;

	prandom_seed_state(&rnd, 100 + a->id);
	wait_for_completion(&c->go);
	for (;;) {
		bool last = !atomic_read_acquire(&c->killers);
		u64 now = atomic64_read(&c->time);
		struct expedite_turn turn;

		if (expedite_queue_take(c->q, now, &turn)) {
			work(c, &turn, &rnd);
		} else if (turn.next != EXPEDITE_NEVER) {
			expect(c, turn.next > now);
			atomic64_cmpxchg(&c->time, now, turn.next);
		} else {
			/* A worker that is busy will look again. */
			if (last)
				break;
			usleep_range(10, 50);
		}
		cond_resched();
	}
	complete(&a->done);

	return 0;
}

static void none_is_lost_concurrently(struct kunit *test)
{
	struct thread threads[NR_KILLERS + NR_WORKERS] = {};
	unsigned int kept = 0, over = 0;
	unsigned int started = 0;
	struct shared *c;

	c = kunit_kzalloc(test, sizeof(*c), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, c);
	c->q = test->priv;
	leave_places(c->q, NR_MMS / 2);
	c->kills = kunit_kcalloc(test, NR_KILLERS * NR_KILLS,
				 sizeof(*c->kills), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, c->kills);
	atomic64_set(&c->time, START);
	init_completion(&c->go);
	atomic_set(&c->killers, NR_KILLERS);
	for (unsigned int i = 0; i < ARRAY_SIZE(threads); i++) {
		threads[i].shared = c;
		threads[i].id = i < NR_KILLERS ? i : i - NR_KILLERS;
		init_completion(&threads[i].done);
	}

	/* No assertion until all have finished: it would free what they use. */
	while (started < ARRAY_SIZE(threads) &&
	       !IS_ERR(kthread_run(started < NR_KILLERS ? killer_fn : worker_fn,
				   &threads[started], "expedite_kunit/%u",
				   started)))
		started++;
	/* Killers that were not started count as finished. */
	if (started < NR_KILLERS)
		atomic_set(&c->killers, started);
	complete_all(&c->go);
	for (unsigned int i = 0; i < started; i++)
		wait_for_completion(&threads[i].done);

	KUNIT_ASSERT_EQ(test, started, ARRAY_SIZE(threads));
	KUNIT_EXPECT_EQ(test, atomic_read(&c->wrong), 0);
	for (unsigned int i = 0; i < NR_KILLERS * NR_KILLS; i++) {
		struct kill *k = &c->kills[i];

		KUNIT_ASSERT_EQ(test, k->kept + k->over, 1);
		kept += k->kept;
		over += k->over;
	}
	kunit_info(test, "%u kept, %u over, %d merged, %d joined\n", kept, over,
		   atomic_read(&c->merged), atomic_read(&c->joined));
	KUNIT_EXPECT_GT(test, over, 0);
	KUNIT_EXPECT_GT(test, atomic_read(&c->merged), 0);
	KUNIT_EXPECT_GT(test, atomic_read(&c->joined), 0);

	/* All places are free again. */
	for (unsigned int i = 0; i < NR_MMS / 2; i++)
		KUNIT_EXPECT_EQ(test, add(test, i, 1, START), EXPEDITE_QUEUED);
	KUNIT_EXPECT_EQ(test, add(test, NR_MMS, 1, START), EXPEDITE_FULL);
	drain(test, NR_MMS / 2, START);
}

static struct kunit_case expedite_test_cases[] = {
	KUNIT_CASE(comes_back_as_it_went_in),
	KUNIT_CASE(is_merged_with_its_own),
	KUNIT_CASE(is_full_and_has_room_again),
	KUNIT_CASE(largest_come_first),
	KUNIT_CASE(workers_fit_the_work),
	KUNIT_CASE(workers_go_to_the_largest_share),
	KUNIT_CASE(pauses_grow_until_the_deadline),
	KUNIT_CASE(last_try_is_not_left_out),
	KUNIT_CASE(merging_changes_nothing),
	KUNIT_CASE(worst_outcome_of_a_try_counts),
	KUNIT_CASE_SLOW(agrees_with_a_model),
	KUNIT_CASE_SLOW(none_is_lost_concurrently),
	{}
};

static struct kunit_suite expedite_test_suite = {
	.name = "memreap_expedite",
	.init = expedite_test_init,
	.test_cases = expedite_test_cases,
};

kunit_test_suite(expedite_test_suite);

MODULE_DESCRIPTION("KUnit tests for the queue of address spaces to be freed");
MODULE_LICENSE("GPL");
