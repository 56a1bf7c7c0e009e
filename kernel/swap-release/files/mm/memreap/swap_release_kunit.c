// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests for the queue of swap entries that wait to be released.
 *
 * Slots are only numbers, an owner is an address that is never dereferenced, and
 * the tests set the time: they need no swap device.
 */
#include <kunit/test.h>

#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/prandom.h>
#include <linux/sched.h>

#include "swap_queue.h"
#include "swap_release.h"

/* Start of the tests: 0 would hide an uninitialized time. */
#define START		1000

/* Distinguished by address only. */
static char owner_places[8];
#define OWNER(i)	((void *)&owner_places[i])

/* What memory that was in use is full of. */
#define GARBAGE		0xa5

/* What take() has taken. */
static struct swap_chunk chunk;

static int swap_release_test_init(struct kunit *test)
{
	struct swap_queue *q;

	q = kunit_kmalloc(test, sizeof(*q), GFP_KERNEL);
	if (!q)
		return -ENOMEM;
	memset(q, GARBAGE, sizeof(*q));
	swap_queue_init(q);
	test->priv = q;

	return 0;
}

static void add_batches(struct kunit *test, unsigned int nr)
{
	while (nr--) {
		struct swap_batch *batch;

		batch = kunit_kmalloc(test, sizeof(*batch), GFP_KERNEL);
		KUNIT_ASSERT_NOT_NULL(test, batch);
		memset(batch, GARBAGE, sizeof(*batch));
		swap_queue_put_spare(test->priv, batch);
	}
}

static struct swap_batch *get_spare(struct kunit *test, unsigned int owner)
{
	struct swap_batch *batch = swap_queue_get_spare(test->priv);

	KUNIT_ASSERT_NOT_NULL(test, batch);
	KUNIT_EXPECT_NULL(test, batch->owner);
	KUNIT_ASSERT_EQ(test, batch->next, 0);
	KUNIT_ASSERT_EQ(test, batch->nr, 0);
	KUNIT_ASSERT_EQ(test, batch->pages, 0);
	batch->owner = OWNER(owner);

	return batch;
}

/* Every other slot, so that each is a run. */
static void add_single(struct kunit *test, struct swap_batch *batch,
		       unsigned long offset, unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++)
		KUNIT_ASSERT_EQ(test,
				swap_batch_add(batch, 0, offset + 2 * i, 1), 1);
}

/* Queue a run of @nr slots. Return: whether it was merged. */
static bool queue_run(struct kunit *test, unsigned int owner,
		      unsigned long offset, unsigned int nr, u64 now)
{
	struct swap_batch *batch = get_spare(test, owner);

	KUNIT_ASSERT_EQ(test, swap_batch_add(batch, 0, offset, nr), nr);

	return swap_queue_add(test->priv, batch, now);
}

/* The same, but of as many runs of one. */
static bool queue_single(struct kunit *test, unsigned int owner,
			 unsigned long offset, unsigned int nr, u64 now)
{
	struct swap_batch *batch = get_spare(test, owner);

	add_single(test, batch, offset, nr);

	return swap_queue_add(test->priv, batch, now);
}

/* Take what must be @nr runs of @pages slots, @owner's. */
static void take(struct kunit *test, unsigned int owner, u64 queued,
		 unsigned int nr, unsigned int pages, bool last)
{
	struct swap_queue *q = test->priv;
	unsigned long before = q->pages;

	memset(&chunk, GARBAGE, sizeof(chunk));
	KUNIT_EXPECT_EQ(test, q->oldest, queued);
	KUNIT_ASSERT_TRUE(test, swap_queue_take(q, &chunk));
	KUNIT_EXPECT_PTR_EQ(test, chunk.owner, OWNER(owner));
	KUNIT_EXPECT_EQ(test, chunk.queued, queued);
	KUNIT_ASSERT_EQ(test, chunk.nr, nr);
	KUNIT_EXPECT_EQ(test, chunk.pages, pages);
	KUNIT_EXPECT_EQ(test, chunk.last, last);
	KUNIT_EXPECT_EQ(test, q->pages, before - pages);
}

static void expect_run(struct kunit *test, const struct swap_run *run,
		       unsigned int type, unsigned int offset, unsigned int nr)
{
	KUNIT_EXPECT_EQ(test, run->type, type);
	KUNIT_EXPECT_EQ(test, run->offset, offset);
	KUNIT_EXPECT_EQ(test, run->nr, nr);
}

/* Nothing waits, and all @nr batches are there. */
static void expect_empty(struct kunit *test, unsigned int nr)
{
	struct swap_queue *q = test->priv;

	memset(&chunk, GARBAGE, sizeof(chunk));
	KUNIT_EXPECT_FALSE(test, swap_queue_take(q, &chunk));
	KUNIT_EXPECT_EQ(test, chunk.nr, 0);
	KUNIT_EXPECT_EQ(test, chunk.pages, 0);
	KUNIT_EXPECT_FALSE(test, chunk.last);
	KUNIT_EXPECT_EQ(test, q->pages, 0);
	KUNIT_EXPECT_EQ(test, q->nr_waiting, 0);
	KUNIT_EXPECT_EQ(test, q->oldest, U64_MAX);
	KUNIT_EXPECT_EQ(test, q->nr_spare, nr);
	KUNIT_EXPECT_EQ(test, list_count_nodes(&q->spare), nr);
}

static void neighbours_are_one_run(struct kunit *test)
{
	struct swap_run runs[3];
	unsigned int nr = 0;

	KUNIT_EXPECT_TRUE(test, swap_run_add(runs, &nr, 3, 0, 10, 1));
	KUNIT_EXPECT_TRUE(test, swap_run_add(runs, &nr, 3, 0, 11, 2));
	KUNIT_EXPECT_EQ(test, nr, 1);
	/* Behind a gap, and of another device. */
	KUNIT_EXPECT_TRUE(test, swap_run_add(runs, &nr, 3, 0, 14, 1));
	KUNIT_EXPECT_TRUE(test, swap_run_add(runs, &nr, 3, 1, 15, 1));
	KUNIT_ASSERT_EQ(test, nr, 3);
	/* A full array still has room at its end. */
	KUNIT_EXPECT_FALSE(test, swap_run_add(runs, &nr, 3, 1, 15, 1));
	KUNIT_EXPECT_FALSE(test, swap_run_add(runs, &nr, 3, 0, 16, 1));
	KUNIT_EXPECT_TRUE(test, swap_run_add(runs, &nr, 3, 1, 16, 512));
	KUNIT_EXPECT_EQ(test, nr, 3);
	expect_run(test, &runs[0], 0, 10, 3);
	expect_run(test, &runs[1], 0, 14, 1);
	expect_run(test, &runs[2], 1, 15, 513);

	/* No run is longer than its field can tell. */
	nr = 0;
	KUNIT_EXPECT_TRUE(test, swap_run_add(runs, &nr, 3, 0, 1, U16_MAX - 1));
	KUNIT_EXPECT_TRUE(test, swap_run_add(runs, &nr, 3, 0, U16_MAX, 1));
	KUNIT_EXPECT_EQ(test, nr, 1);
	KUNIT_EXPECT_TRUE(test, swap_run_add(runs, &nr, 3, 0, U16_MAX + 1, 1));
	KUNIT_ASSERT_EQ(test, nr, 2);
	expect_run(test, &runs[0], 0, 1, U16_MAX);
	expect_run(test, &runs[1], 0, U16_MAX + 1, 1);
}

static void batch_has_room_for_so_much(struct kunit *test)
{
	struct swap_batch *batch;

	add_batches(test, 1);
	batch = get_spare(test, 0);
	KUNIT_EXPECT_EQ(test, swap_batch_add(batch, 0, 1, 512), 512);
	KUNIT_EXPECT_EQ(test, swap_batch_add(batch, 1, 1, 511), 511);
	KUNIT_EXPECT_FALSE(test, swap_batch_full(batch));
	KUNIT_EXPECT_EQ(test, swap_batch_add(batch, 2, 1, 512), 1);
	KUNIT_EXPECT_TRUE(test, swap_batch_full(batch));
	KUNIT_EXPECT_EQ(test, swap_batch_add(batch, 2, 2, 1), 0);
	KUNIT_EXPECT_EQ(test, batch->nr, 3);
	KUNIT_EXPECT_EQ(test, batch->pages, SWAP_BATCH_PAGES);
	swap_queue_put_spare(test->priv, batch);

	batch = get_spare(test, 0);
	add_single(test, batch, 1, SWAP_BATCH_RUNS - 1);
	KUNIT_EXPECT_FALSE(test, swap_batch_full(batch));
	add_single(test, batch, 5001, 1);
	KUNIT_EXPECT_TRUE(test, swap_batch_full(batch));
	KUNIT_EXPECT_EQ(test, swap_batch_add(batch, 0, 5003, 1), 0);
	KUNIT_EXPECT_EQ(test, swap_batch_add(batch, 0, 5002, 1), 1);
	KUNIT_EXPECT_EQ(test, batch->nr, SWAP_BATCH_RUNS);
	swap_queue_put_spare(test->priv, batch);
	expect_empty(test, 1);
}

static void little_is_taken_at_a_time(struct kunit *test)
{
	struct swap_batch *batch;

	add_batches(test, 1);
	expect_empty(test, 1);
	queue_run(test, 1, 100, 512, START);
	for (unsigned int i = 0; i < 8; i++) {
		take(test, 1, START, 1, SWAP_CHUNK_PAGES, i == 7);
		expect_run(test, &chunk.runs[0], 0, 100 + 64 * i, 64);
	}

	/* The last of so many runs does not fit as a whole. */
	batch = get_spare(test, 2);
	add_single(test, batch, 100, SWAP_CHUNK_RUNS - 1);
	KUNIT_EXPECT_EQ(test, swap_batch_add(batch, 3, 500, 100), 100);
	add_single(test, batch, 700, 2);
	swap_queue_add(test->priv, batch, START + 1);
	take(test, 2, START + 1, SWAP_CHUNK_RUNS, SWAP_CHUNK_PAGES, false);
	expect_run(test, &chunk.runs[0], 0, 100, 1);
	expect_run(test, &chunk.runs[30], 0, 160, 1);
	expect_run(test, &chunk.runs[31], 3, 500, 33);
	take(test, 2, START + 1, 1, SWAP_CHUNK_PAGES, false);
	expect_run(test, &chunk.runs[0], 3, 533, 64);
	take(test, 2, START + 1, 3, 5, true);
	expect_run(test, &chunk.runs[0], 3, 597, 3);
	expect_run(test, &chunk.runs[1], 0, 700, 1);
	expect_run(test, &chunk.runs[2], 0, 702, 1);

	/* Nor are there too many runs, however short. */
	queue_single(test, 3, 1, SWAP_CHUNK_RUNS + 1, START + 2);
	take(test, 3, START + 2, SWAP_CHUNK_RUNS, SWAP_CHUNK_RUNS, false);
	take(test, 3, START + 2, 1, 1, true);
	expect_empty(test, 1);
}

static void oldest_come_first(struct kunit *test)
{
	add_batches(test, 4);
	for (unsigned int i = 0; i < 4; i++)
		KUNIT_EXPECT_FALSE(test, queue_run(test, i % 2, 100 * i + 1,
						   65, START + i));
	KUNIT_EXPECT_NULL(test, swap_queue_get_spare(test->priv));
	for (unsigned int i = 0; i < 4; i++) {
		take(test, i % 2, START + i, 1, 64, false);
		expect_run(test, &chunk.runs[0], 0, 100 * i + 1, 64);
		take(test, i % 2, START + i, 1, 1, true);
		expect_run(test, &chunk.runs[0], 0, 100 * i + 65, 1);
	}
	expect_empty(test, 4);
}

static void is_merged_with_the_last_of_its_owner(struct kunit *test)
{
	struct swap_queue *q = test->priv;

	add_batches(test, 3);
	KUNIT_EXPECT_FALSE(test, queue_run(test, 1, 100, 1, START));
	KUNIT_EXPECT_TRUE(test, queue_run(test, 1, 200, 2, START + 1));
	KUNIT_EXPECT_EQ(test, q->nr_waiting, 1);
	KUNIT_EXPECT_EQ(test, q->nr_spare, 2);
	/* Not with another owner's, nor with one that is not the last. */
	KUNIT_EXPECT_FALSE(test, queue_run(test, 2, 300, 3, START + 2));
	KUNIT_EXPECT_FALSE(test, queue_run(test, 1, 400, 4, START + 3));
	take(test, 1, START, 2, 3, true);
	expect_run(test, &chunk.runs[0], 0, 100, 1);
	expect_run(test, &chunk.runs[1], 0, 200, 2);
	take(test, 2, START + 2, 1, 3, true);
	take(test, 1, START + 3, 1, 4, true);
	expect_empty(test, 3);

	/* What has been taken has left no room among the runs... */
	queue_single(test, 1, 1, 100, START);
	take(test, 1, START, 32, 32, false);
	KUNIT_EXPECT_TRUE(test, queue_single(test, 1, 1001, 404, START + 1));
	KUNIT_EXPECT_FALSE(test, queue_single(test, 1, 9001, 1, START + 2));
	for (unsigned int i = 0; i < 14; i++)
		take(test, 1, START, 32, 32, false);
	take(test, 1, START, 24, 24, true);
	take(test, 1, START + 2, 1, 1, true);

	/* ...but it has among the pages. */
	queue_run(test, 1, 1, 1000, START);
	take(test, 1, START, 1, 64, false);
	KUNIT_EXPECT_TRUE(test, queue_run(test, 1, 2001, 88, START + 1));
	KUNIT_EXPECT_FALSE(test, queue_run(test, 1, 3001, 1, START + 2));
	KUNIT_EXPECT_EQ(test, q->pages, SWAP_BATCH_PAGES + 1);
	for (unsigned int i = 0; i < 16; i++)
		take(test, 1, START, i == 14 ? 2 : 1, 64, i == 15);
	take(test, 1, START + 2, 1, 1, true);
	expect_empty(test, 3);
}

static void last_used_is_spare_first(struct kunit *test)
{
	struct swap_batch *a, *b, *c;

	KUNIT_EXPECT_NULL(test, swap_queue_get_spare(test->priv));
	add_batches(test, 3);
	a = get_spare(test, 1);
	b = get_spare(test, 1);
	c = get_spare(test, 1);
	KUNIT_EXPECT_NULL(test, swap_queue_get_spare(test->priv));
	swap_queue_put_spare(test->priv, c);
	KUNIT_EXPECT_PTR_EQ(test, get_spare(test, 1), c);
	add_single(test, a, 1, 1);
	add_single(test, b, 3, 1);
	KUNIT_EXPECT_FALSE(test, swap_queue_add(test->priv, a, START));
	KUNIT_EXPECT_TRUE(test, swap_queue_add(test->priv, b, START));
	KUNIT_EXPECT_PTR_EQ(test, get_spare(test, 1), b);
	take(test, 1, START, 2, 2, true);
	KUNIT_EXPECT_PTR_EQ(test, get_spare(test, 1), a);
	swap_queue_put_spare(test->priv, c);
	swap_queue_put_spare(test->priv, b);
	swap_queue_put_spare(test->priv, a);
	expect_empty(test, 3);
}

/* --- Random steps against a list of single slots --- */

#define MODEL_BATCHES	5
#define MODEL_SLOTS	(MODEL_BATCHES * SWAP_BATCH_PAGES)
#define MODEL_OWNERS	2
#define MODEL_STEPS	4000

/**
 * struct walk - a random sequence of batches queued and entries taken
 * @test: of this test
 * @rnd: state of the random steps
 * @now: the time
 * @first: the next of @slots to come out
 * @nr: how many there are
 * @slots: all that wait, one by one, in a ring
 * @refs: that the queue has to each owner
 * @merged: how often another batch had room
 * @dry: how often no batch was spare
 */
struct walk {
	struct kunit *test;
	struct rnd_state rnd;
	u64 now;
	unsigned int first;
	unsigned int nr;
	struct {
		unsigned int owner;
		unsigned int type;
		unsigned long offset;
	} slots[MODEL_SLOTS];
	long refs[MODEL_OWNERS];
	unsigned int merged;
	unsigned int dry;
};

static unsigned int rnd_below(struct walk *w, unsigned int limit)
{
	return prandom_u32_state(&w->rnd) % limit;
}

static void walk_queue(struct walk *w)
{
	struct swap_batch *batch = swap_queue_get_spare(w->test->priv);
	unsigned int owner = rnd_below(w, MODEL_OWNERS);
	unsigned int runs = 1 + rnd_below(w, rnd_below(w, 4) ? 20 : 600);

	if (!batch) {
		w->dry++;
		return;
	}
	batch->owner = OWNER(owner);
	while (runs-- && !swap_batch_full(batch)) {
		unsigned int nr = 1 + rnd_below(w, rnd_below(w, 8) ? 2 : 200);
		/* Next to each other by chance as well. */
		unsigned long offset = 1 + rnd_below(w, 8);
		unsigned int type = rnd_below(w, 2);

		nr = swap_batch_add(batch, type, offset, nr);
		KUNIT_ASSERT_GT(w->test, nr, 0);
		KUNIT_ASSERT_LE(w->test, w->nr + nr, MODEL_SLOTS);
		for (unsigned int i = 0; i < nr; i++) {
			unsigned int k = (w->first + w->nr++) % MODEL_SLOTS;

			w->slots[k].owner = owner;
			w->slots[k].type = type;
			w->slots[k].offset = offset + i;
		}
	}
	if (swap_queue_add(w->test->priv, batch, w->now++))
		w->merged++;
	else
		w->refs[owner]++;
}

static void walk_take(struct walk *w)
{
	struct kunit *test = w->test;
	unsigned int owner, pages = 0;

	memset(&chunk, GARBAGE, sizeof(chunk));
	KUNIT_ASSERT_EQ(test, swap_queue_take(test->priv, &chunk), !!w->nr);
	KUNIT_ASSERT_LE(test, chunk.nr, SWAP_CHUNK_RUNS);
	KUNIT_ASSERT_LE(test, chunk.pages, SWAP_CHUNK_PAGES);
	KUNIT_ASSERT_EQ(test, !!chunk.nr, !!w->nr);
	if (!chunk.nr)
		return;

	owner = w->slots[w->first].owner;
	KUNIT_ASSERT_PTR_EQ(test, chunk.owner, OWNER(owner));
	for (unsigned int i = 0; i < chunk.nr; i++) {
		const struct swap_run *run = &chunk.runs[i];

		KUNIT_ASSERT_GT(test, run->nr, 0);
		KUNIT_ASSERT_LE(test, run->nr, w->nr);
		pages += run->nr;
		for (unsigned int k = 0; k < run->nr; k++) {
			unsigned int at = w->first;

			KUNIT_ASSERT_EQ(test, w->slots[at].owner, owner);
			KUNIT_ASSERT_EQ(test, w->slots[at].type, run->type);
			KUNIT_ASSERT_EQ(test, w->slots[at].offset,
					run->offset + k);
			w->first = (at + 1) % MODEL_SLOTS;
			w->nr--;
		}
	}
	KUNIT_ASSERT_EQ(test, chunk.pages, pages);
	w->refs[owner] -= chunk.last;
}

static void walk_check(struct walk *w)
{
	struct swap_queue *q = w->test->priv;
	long refs = 0;

	for (unsigned int i = 0; i < MODEL_OWNERS; i++) {
		KUNIT_ASSERT_GE(w->test, w->refs[i], 0);
		refs += w->refs[i];
	}
	KUNIT_ASSERT_EQ(w->test, q->pages, w->nr);
	KUNIT_ASSERT_EQ(w->test, q->nr_waiting, refs);
	KUNIT_ASSERT_EQ(w->test, q->nr_waiting + q->nr_spare, MODEL_BATCHES);
}

static void all_comes_out_as_it_went_in(struct kunit *test)
{
	struct walk *w = kunit_kzalloc(test, sizeof(*w), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, w);
	w->test = test;
	w->now = START;
	prandom_seed_state(&w->rnd, 1);
	add_batches(test, MODEL_BATCHES);
	for (unsigned int i = 0; i < MODEL_STEPS; i++) {
		/* Sometimes more comes than goes, then the other way round. */
		if (rnd_below(w, 16) < (i / 100 % 2 ? 1 : 6))
			walk_queue(w);
		else
			walk_take(w);
		walk_check(w);
	}
	while (w->nr) {
		walk_take(w);
		walk_check(w);
	}
	expect_empty(test, MODEL_BATCHES);
	/* Otherwise the test proves nothing. */
	KUNIT_EXPECT_GT(test, w->merged, MODEL_STEPS / 100);
	KUNIT_EXPECT_GT(test, w->dry, MODEL_STEPS / 100);
}

/* --- Concurrent threads that fill and that take --- */

#define NR_FILLERS	3
#define MAX_TAKERS	3
#define CROWD_BATCHES	4
#define CROWD_SLOTS	40000
#define CROWD_OWNERS	2

/**
 * struct slot - an entry of a filler's own device
 * @owner: that it was queued for
 * @queued: how often it was queued
 * @taken: how often it was taken
 *
 * Written without atomics by the thread that owns the entry.
 */
struct slot {
	void *owner;
	unsigned int queued;
	unsigned int taken;
};

/**
 * struct shared - what the threads share
 * @q: the queue
 * @slots: of each filler's device
 * @refs: to each owner, of batches in use
 * @fillers: that have not finished
 * @takers: how many there are
 * @time: advances with each batch that is queued
 * @go: for a simultaneous start
 * @merged: how often another batch had room
 * @dry: how often no batch was spare
 * @wrong: violations
 */
struct shared {
	struct swap_queue *q;
	struct slot *slots[NR_FILLERS];
	atomic_long_t refs[CROWD_OWNERS];
	atomic_t fillers;
	unsigned int takers;
	atomic64_t time;
	struct completion go;
	atomic_t merged;
	atomic_t dry;
	atomic_t wrong;
};

/**
 * struct thread - a kthread
 * @shared: with the others
 * @id: among the fillers, or the takers
 * @next: for each device, the next slot
 * @done: it no longer uses the test's data
 */
struct thread {
	struct shared *shared;
	unsigned int id;
	unsigned int next[NR_FILLERS];
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
	if (prandom_u32_state(rnd) % 16 == 0)
		usleep_range(1, 20);
	cond_resched();
}

/* Fill a batch with some of the filler's slots, each of them once. */
static void fill(struct thread *a, struct swap_batch *batch,
		 struct rnd_state *rnd)
{
	unsigned int runs = 1 + prandom_u32_state(rnd) % 60;
	struct slot *slots = a->shared->slots[a->id];

	while (runs-- && !swap_batch_full(batch) &&
	       a->next[0] < CROWD_SLOTS) {
		unsigned int offset = a->next[0] + prandom_u32_state(rnd) % 2;
		unsigned int nr = 1;

		if (prandom_u32_state(rnd) % 8 == 0)
			nr += prandom_u32_state(rnd) % 100;
		nr = min(nr, CROWD_SLOTS + 1 - offset);
		nr = swap_batch_add(batch, a->id, offset, nr);
		expect(a->shared, nr);
		a->next[0] = offset + nr;
		for (unsigned int i = offset; i < offset + nr; i++) {
			slots[i].owner = batch->owner;
			slots[i].queued++;
		}
	}
}

static int filler_fn(void *arg)
{
	struct thread *a = arg;
	struct shared *c = a->shared;
	struct rnd_state rnd;

	prandom_seed_state(&rnd, 1 + a->id);
	wait_for_completion(&c->go);
	while (a->next[0] < CROWD_SLOTS) {
		atomic_long_t *refs;
		struct swap_batch *batch;

		refs = &c->refs[prandom_u32_state(&rnd) % CROWD_OWNERS];
		batch = swap_queue_get_spare(c->q);
		if (!batch) {
			atomic_inc(&c->dry);
			usleep_range(10, 50);
			continue;
		}
		expect(c, !batch->owner && !batch->next);
		expect(c, !batch->nr && !batch->pages);
		batch->owner = refs;
		if (prandom_u32_state(&rnd) % 16 == 0) {
			swap_queue_put_spare(c->q, batch);
			continue;
		}
		atomic_long_inc(refs);
		fill(a, batch, &rnd);
		dawdle(&rnd);
		if (swap_queue_add(c->q, batch,
				   atomic64_inc_return(&c->time))) {
			atomic_long_dec(refs);
			atomic_inc(&c->merged);
		}
		dawdle(&rnd);
	}
	atomic_dec_return_release(&c->fillers);
	complete(&a->done);

	return 0;
}

static void release(struct thread *a, const struct swap_chunk *mine)
{
	struct shared *c = a->shared;
	unsigned int pages = 0;

	expect(c, mine->queued > START);
	expect(c, mine->queued <= atomic64_read(&c->time));
	for (unsigned int i = 0; i < mine->nr; i++) {
		const struct swap_run *run = &mine->runs[i];
		struct slot *slot;

		if (run->type >= NR_FILLERS ||
		    run->offset + run->nr > CROWD_SLOTS + 1) {
			expect(c, false);
			return;
		}
		slot = &c->slots[run->type][run->offset];
		for (unsigned int k = 0; k < run->nr; k++, slot++) {
			expect(c, slot->queued == 1 && !slot->taken++);
			expect(c, slot->owner == mine->owner);
		}
		/* Each filler's come out in the order they went in. */
		if (c->takers == 1) {
			expect(c, run->offset >= a->next[run->type]);
			a->next[run->type] = run->offset + run->nr;
		}
		pages += run->nr;
	}
	expect(c, pages == mine->pages && pages <= SWAP_CHUNK_PAGES);
	if (mine->last)
		expect(c, atomic_long_dec_return(mine->owner) >= 0);
}

static int taker_fn(void *arg)
{
	struct thread *a = arg;
	struct shared *c = a->shared;
	struct rnd_state rnd;

	prandom_seed_state(&rnd, 100 + a->id);
	wait_for_completion(&c->go);
	/* Let all batches be in use once. */
	while (!atomic_read(&c->dry) && atomic_read(&c->fillers))
		usleep_range(10, 50);
	for (;;) {
		bool last = !atomic_read_acquire(&c->fillers);
		struct swap_chunk mine;

		if (swap_queue_take(c->q, &mine)) {
			release(a, &mine);
			dawdle(&rnd);
			continue;
		}
		if (last)
			break;
		usleep_range(10, 50);
	}
	complete(&a->done);

	return 0;
}

static void run_threads(struct kunit *test, unsigned int takers)
{
	unsigned int nr = NR_FILLERS + takers, started = 0, lost = 0;
	struct thread *threads;
	struct shared *c;

	c = kunit_kzalloc(test, sizeof(*c), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, c);
	threads = kunit_kcalloc(test, nr, sizeof(*threads), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, threads);
	for (unsigned int i = 0; i < NR_FILLERS; i++) {
		c->slots[i] = kunit_kcalloc(test, CROWD_SLOTS + 1,
					    sizeof(*c->slots[i]), GFP_KERNEL);
		KUNIT_ASSERT_NOT_NULL(test, c->slots[i]);
	}
	add_batches(test, CROWD_BATCHES);
	c->q = test->priv;
	c->takers = takers;
	atomic64_set(&c->time, START);
	init_completion(&c->go);
	atomic_set(&c->fillers, NR_FILLERS);
	for (unsigned int i = 0; i < nr; i++) {
		threads[i].shared = c;
		threads[i].id = i < takers ? i : i - takers;
		init_completion(&threads[i].done);
	}

	/*
	 * No assertion until all have finished: it would free what they use.
	 * Takers first: without them fillers might not finish.
	 */
	while (started < nr &&
	       !IS_ERR(kthread_run(started < takers ? taker_fn : filler_fn,
				   &threads[started], "swap_kunit/%u",
				   started)))
		started++;
	/* Fillers that were not started count as finished. */
	atomic_sub(nr - max(started, takers), &c->fillers);
	complete_all(&c->go);
	for (unsigned int i = 0; i < started; i++)
		wait_for_completion(&threads[i].done);

	KUNIT_ASSERT_EQ(test, started, nr);
	KUNIT_EXPECT_EQ(test, atomic_read(&c->wrong), 0);
	for (unsigned int i = 0; i < NR_FILLERS; i++) {
		for (unsigned int k = 0; k <= CROWD_SLOTS; k++)
			lost += c->slots[i][k].queued != c->slots[i][k].taken;
	}
	KUNIT_EXPECT_EQ(test, lost, 0);
	for (unsigned int i = 0; i < CROWD_OWNERS; i++)
		KUNIT_EXPECT_EQ(test, atomic_long_read(&c->refs[i]), 0);
	kunit_info(test, "%lld queued, %d merged, %d without a batch\n",
		   atomic64_read(&c->time) - START, atomic_read(&c->merged),
		   atomic_read(&c->dry));
	/* Otherwise the test proves nothing. */
	KUNIT_EXPECT_GT(test, atomic_read(&c->merged), 0);
	KUNIT_EXPECT_GT(test, atomic_read(&c->dry), 0);
	expect_empty(test, CROWD_BATCHES);
}

static void none_is_lost_concurrently(struct kunit *test)
{
	run_threads(test, MAX_TAKERS);
}

static void order_is_kept_for_one_taker(struct kunit *test)
{
	run_threads(test, 1);
}

/*
 * A task needs slots and finds the kernel's own queue empty: all that wait have
 * been taken by other tasks, which are simulated by changes of the counters.
 */
#define TAKEN	5
#define NEWER	1000

static void others_have_released_all(struct kunit *test)
{
	long released = memreap_swap_count();

	atomic_long_add(TAKEN, &memreap_swap_released);
	KUNIT_EXPECT_TRUE(test, memreap_swap_make_room(1, &released));
	/* The second time nothing is new. */
	KUNIT_EXPECT_FALSE(test, memreap_swap_make_room(1, &released));
	atomic_long_sub(TAKEN, &memreap_swap_released);
}

static void others_release_less_than_is_added(struct kunit *test)
{
	long released = memreap_swap_count();

	/* Theirs do not wait any more, but newer ones do. */
	atomic_long_add(TAKEN, &memreap_swap_released);
	atomic_long_add(NEWER, &nr_swap_pages_waiting);
	KUNIT_EXPECT_TRUE(test, memreap_swap_make_room(1, &released));
	atomic_long_sub(NEWER, &nr_swap_pages_waiting);
	atomic_long_sub(TAKEN, &memreap_swap_released);
}

static void others_release_nothing(struct kunit *test)
{
	long released = memreap_swap_count();

	KUNIT_EXPECT_FALSE(test, memreap_swap_make_room(1, &released));
	/* They have been taken, and are not released in time. */
	atomic_long_add(TAKEN, &nr_swap_pages_waiting);
	KUNIT_EXPECT_FALSE(test, memreap_swap_make_room(1, &released));
	atomic_long_sub(TAKEN, &nr_swap_pages_waiting);
}

static struct kunit_case swap_release_test_cases[] = {
	KUNIT_CASE(neighbours_are_one_run),
	KUNIT_CASE(batch_has_room_for_so_much),
	KUNIT_CASE(little_is_taken_at_a_time),
	KUNIT_CASE(oldest_come_first),
	KUNIT_CASE(is_merged_with_the_last_of_its_owner),
	KUNIT_CASE(last_used_is_spare_first),
	KUNIT_CASE(others_have_released_all),
	KUNIT_CASE(others_release_less_than_is_added),
	KUNIT_CASE(others_release_nothing),
	KUNIT_CASE_SLOW(all_comes_out_as_it_went_in),
	KUNIT_CASE_SLOW(none_is_lost_concurrently),
	KUNIT_CASE_SLOW(order_is_kept_for_one_taker),
	{}
};

static struct kunit_suite swap_release_test_suite = {
	.name = "memreap_swap_release",
	.init = swap_release_test_init,
	.test_cases = swap_release_test_cases,
};

kunit_test_suite(swap_release_test_suite);

MODULE_DESCRIPTION("KUnit tests for the queue of swap entries that wait");
MODULE_LICENSE("GPL");
