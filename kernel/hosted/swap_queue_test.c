// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tests of the swap-release topic's queue, at the end with real threads.
 *
 * Usage: swap_queue_test [NAME]...
 *
 * Devices and owners are only compared, and the tests set the time.
 */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "swap_queue.h"
#include "test.h"

/* What the documentation says, and what tests below count on. */
static_assert(SWAP_BATCH_RUNS == 504);
static_assert(SWAP_BATCH_PAGES == 1024);
static_assert(SWAP_CHUNK_RUNS == 32);
static_assert(SWAP_CHUNK_PAGES == 64);
static_assert(sizeof(struct swap_run) == 8);
static_assert(sizeof(struct swap_batch) <= PAGE_SIZE);

/* Start of the tests: 0 would hide an uninitialized time. */
#define START		1000

/* Owners are distinguished by address; NULL is one, too. */
static char owner_places[8];
#define fake_owner(i)	((void *)((i) ? &owner_places[i] : NULL))

#define MOST_BATCHES	16

static struct swap_queue queue;
static struct swap_batch *batches[MOST_BATCHES];
static unsigned int nr_batches;
/* Of these, those that the queue does not have. */
static unsigned int outside;

/* Makes the queue and @nr batches, both out of memory that was in use. */
static void begin(unsigned int nr)
{
	CHECK(nr <= MOST_BATCHES);
	memset(&queue, 0xa5, sizeof(queue));
	swap_queue_init(&queue);
	nr_batches = nr;
	outside = 0;
	for (unsigned int i = 0; i < nr; i++) {
		batches[i] = malloc(sizeof(*batches[i]));
		CHECK(batches[i]);
		memset(batches[i], 0xa5, sizeof(*batches[i]));
		swap_queue_put_spare(&queue, batches[i]);
		CHECK(queue.nr_spare == i + 1);
	}
}

/* The queue agrees with itself, and no batch is missing. */
static void check_queue(void)
{
	unsigned int nr_waiting = 0, nr_spare = 0;
	unsigned long all_pages = 0;
	struct swap_batch *batch;

	list_for_each_entry(batch, &queue.waiting, list) {
		unsigned long pages = 0;

		CHECK(++nr_waiting <= nr_batches);
		CHECK(batch->next < batch->nr && batch->nr <= SWAP_BATCH_RUNS);
		for (unsigned int i = batch->next; i < batch->nr; i++) {
			CHECK(batch->runs[i].nr);
			pages += batch->runs[i].nr;
		}
		CHECK(batch->pages == pages && pages <= SWAP_BATCH_PAGES);
		all_pages += pages;
		if (nr_waiting == 1)
			CHECK(queue.oldest == batch->queued);
	}
	list_for_each_entry(batch, &queue.spare, list)
		CHECK(++nr_spare <= nr_batches);
	CHECK(queue.pages == all_pages);
	CHECK(queue.nr_waiting == nr_waiting);
	CHECK(queue.nr_spare == nr_spare);
	CHECK(nr_waiting + nr_spare + outside == nr_batches);
	if (!nr_waiting)
		CHECK(queue.oldest == U64_MAX);
}

/* Nothing waits, and all batches are there. */
static void end(void)
{
	struct swap_chunk chunk;

	memset(&chunk, 0xa5, sizeof(chunk));
	CHECK(!swap_queue_take(&queue, &chunk));
	CHECK(!chunk.nr && !chunk.pages && !chunk.last);
	CHECK(!outside);
	check_queue();
	for (outside = 0; outside < nr_batches; outside++)
		CHECK(swap_queue_get_spare(&queue));
	CHECK(!swap_queue_get_spare(&queue));
	check_queue();
	for (unsigned int i = 0; i < nr_batches; i++)
		free(batches[i]);
}

static struct swap_batch *get_spare(unsigned int owner)
{
	struct swap_batch *batch = swap_queue_get_spare(&queue);

	CHECK(batch);
	CHECK(!batch->owner && !batch->next && !batch->nr && !batch->pages);
	outside++;
	check_queue();
	batch->owner = fake_owner(owner);

	return batch;
}

static void put_spare(struct swap_batch *batch)
{
	swap_queue_put_spare(&queue, batch);
	outside--;
	check_queue();
}

static bool queue_up(struct swap_batch *batch, u64 now)
{
	unsigned long pages = queue.pages + batch->pages;
	bool merged = swap_queue_add(&queue, batch, now);

	outside--;
	check_queue();
	CHECK(queue.pages == pages);

	return merged;
}

/* Adds every other slot, @nr of them, so that none is next to another. */
static void add_single(struct swap_batch *batch, unsigned long offset,
		       unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++)
		CHECK(swap_batch_add(batch, 0, offset + 2 * i, 1) == 1);
}

/* Queues a run of @nr slots... */
static bool queue_run(unsigned int owner, unsigned long offset,
		      unsigned int nr, u64 now)
{
	struct swap_batch *batch = get_spare(owner);

	CHECK(swap_batch_add(batch, 0, offset, nr) == nr);

	return queue_up(batch, now);
}

/* ...or as many runs of one. */
static bool queue_single(unsigned int owner, unsigned long offset,
			 unsigned int nr, u64 now)
{
	struct swap_batch *batch = get_spare(owner);

	add_single(batch, offset, nr);

	return queue_up(batch, now);
}

/* Takes what must be @nr runs of @pages slots, @owner's, queued at @queued. */
static struct swap_chunk take(unsigned int owner, u64 queued, unsigned int nr,
			      unsigned int pages, bool last)
{
	unsigned int nr_waiting = queue.nr_waiting;
	unsigned long before = queue.pages;
	struct swap_chunk chunk;

	memset(&chunk, 0xa5, sizeof(chunk));
	CHECK(swap_queue_take(&queue, &chunk));
	check_queue();
	CHECK(chunk.owner == fake_owner(owner) && chunk.queued == queued);
	CHECK(chunk.nr == nr && chunk.pages == pages && chunk.last == last);
	CHECK(queue.pages == before - pages);
	CHECK(queue.nr_waiting == nr_waiting - last);

	return chunk;
}

/* Takes all there is: @pages slots, of @nr_last batches. */
static void drain(unsigned long pages, unsigned int nr_last)
{
	struct swap_chunk chunk;

	while (swap_queue_take(&queue, &chunk)) {
		check_queue();
		pages -= chunk.pages;
		nr_last -= chunk.last;
	}
	CHECK(!pages && !nr_last);
}

static void check_run(const struct swap_run *run, unsigned int type,
		      unsigned int offset, unsigned int nr)
{
	CHECK(run->type == type && run->offset == offset && run->nr == nr);
}

static void check_single(const struct swap_chunk *chunk, unsigned int from,
			 unsigned int to, unsigned int offset)
{
	for (unsigned int i = from; i < to; i++)
		check_run(&chunk->runs[i], 0, offset + 2 * (i - from), 1);
}

static void test_runs(void)
{
	struct swap_run *runs = malloc(4 * sizeof(*runs));
	unsigned int nr = 0;

	memset(runs, 0xa5, 4 * sizeof(*runs));
	CHECK(!swap_run_add(runs, &nr, 0, 0, 10, 1) && nr == 0);
	CHECK(swap_run_add(runs, &nr, 4, 0, 10, 1) && nr == 1);
	CHECK(swap_run_add(runs, &nr, 4, 0, 11, 2) && nr == 1);
	/* With a gap, of another device, and one that is there already. */
	CHECK(swap_run_add(runs, &nr, 4, 0, 14, 1) && nr == 2);
	CHECK(swap_run_add(runs, &nr, 4, 1, 15, 3) && nr == 3);
	CHECK(swap_run_add(runs, &nr, 4, 1, 17, 1) && nr == 4);
	check_run(&runs[0], 0, 10, 3);
	check_run(&runs[1], 0, 14, 1);
	check_run(&runs[2], 1, 15, 3);
	check_run(&runs[3], 1, 17, 1);
	/* A full array has room where it ends. */
	CHECK(!swap_run_add(runs, &nr, 4, 1, 19, 1) && nr == 4);
	CHECK(!swap_run_add(runs, &nr, 4, 1, 16, 1) && nr == 4);
	CHECK(!swap_run_add(runs, &nr, 4, 0, 18, 1) && nr == 4);
	CHECK(swap_run_add(runs, &nr, 4, 1, 18, 512) && nr == 4);
	check_run(&runs[3], 1, 17, 513);
	free(runs);
}

static void test_run_limits(void)
{
	const unsigned int end = UINT_MAX;
	struct swap_run runs[4];
	unsigned int nr = 0;

	/* One more than fits is a run of its own, not a long one's end. */
	CHECK(swap_run_add(runs, &nr, 4, 31, 1, U16_MAX) && nr == 1);
	CHECK(swap_run_add(runs, &nr, 4, 31, 1UL + U16_MAX, 1) && nr == 2);
	CHECK(swap_run_add(runs, &nr, 4, 31, 2UL + U16_MAX, U16_MAX - 1) &&
	      nr == 2);
	check_run(&runs[0], 31, 1, U16_MAX);
	check_run(&runs[1], 31, 1 + U16_MAX, U16_MAX);
	/* The last slots of the largest device. */
	CHECK(swap_run_add(runs, &nr, 4, 31, end - 3, 1) && nr == 3);
	CHECK(swap_run_add(runs, &nr, 4, 31, end - 2, 2) && nr == 3);
	check_run(&runs[2], 31, end - 3, 3);
	CHECK(swap_run_add(runs, &nr, 4, 31, 1, 1) && nr == 4);
	check_run(&runs[3], 31, 1, 1);
}

static void test_batch_limits(void)
{
	struct swap_batch *batch;

	begin(1);
	batch = get_spare(0);
	CHECK(!swap_batch_full(batch));
	CHECK(swap_batch_add(batch, 0, 1, 512) == 512);
	CHECK(swap_batch_add(batch, 0, 513, 511) == 511);
	CHECK(!swap_batch_full(batch));
	CHECK(swap_batch_add(batch, 0, 1024, 512) == 1);
	CHECK(swap_batch_full(batch));
	CHECK(!swap_batch_add(batch, 0, 1025, 1));
	CHECK(!swap_batch_add(batch, 0, 9999, 512));
	CHECK(batch->nr == 1 && batch->pages == 1024);
	check_run(&batch->runs[0], 0, 1, 1024);
	put_spare(batch);

	batch = get_spare(0);
	CHECK(swap_batch_add(batch, 0, 1, 1000) == 1000);
	CHECK(swap_batch_add(batch, 1, 1001, 512) == 24);
	CHECK(swap_batch_full(batch));
	CHECK(batch->nr == 2 && batch->pages == 1024);
	check_run(&batch->runs[0], 0, 1, 1000);
	check_run(&batch->runs[1], 1, 1001, 24);
	put_spare(batch);

	batch = get_spare(0);
	add_single(batch, 1, 503);
	CHECK(!swap_batch_full(batch));
	add_single(batch, 5001, 1);
	CHECK(swap_batch_full(batch));
	CHECK(!swap_batch_add(batch, 0, 5003, 2));
	CHECK(batch->nr == 504 && batch->pages == 504);
	/* The last run can grow even so. */
	CHECK(swap_batch_add(batch, 0, 5002, 512) == 512);
	CHECK(swap_batch_add(batch, 0, 5514, 512) == 8);
	CHECK(batch->nr == 504 && batch->pages == 1024);
	check_run(&batch->runs[503], 0, 5001, 521);
	put_spare(batch);
	end();
}

static void test_chunks(void)
{
	struct swap_batch *batch;
	struct swap_chunk chunk;

	begin(1);
	/* A run in pieces. */
	CHECK(!queue_run(1, 100, 512, START));
	for (unsigned int i = 0; i < 8; i++) {
		chunk = take(1, START, 1, 64, i == 7);
		check_run(&chunk.runs[0], 0, 100 + 64 * i, 64);
	}

	CHECK(!queue_single(1, 100, 32, START));
	chunk = take(1, START, 32, 32, true);
	check_single(&chunk, 0, 32, 100);

	CHECK(!queue_single(1, 100, 33, START));
	chunk = take(1, START, 32, 32, false);
	check_single(&chunk, 0, 32, 100);
	chunk = take(1, START, 1, 1, true);
	check_run(&chunk.runs[0], 0, 164, 1);

	/* The 32nd run fills it to the last slot, and not all of it fits. */
	batch = get_spare(1);
	add_single(batch, 100, 31);
	CHECK(swap_batch_add(batch, 3, 500, 100) == 100);
	CHECK(!queue_up(batch, START));
	chunk = take(1, START, 32, 64, false);
	check_single(&chunk, 0, 31, 100);
	check_run(&chunk.runs[31], 3, 500, 33);
	chunk = take(1, START, 1, 64, false);
	check_run(&chunk.runs[0], 3, 533, 64);
	chunk = take(1, START, 1, 3, true);
	check_run(&chunk.runs[0], 3, 597, 3);

	/* It is full where a run ends. */
	batch = get_spare(1);
	CHECK(swap_batch_add(batch, 0, 100, 63) == 63);
	CHECK(swap_batch_add(batch, 0, 200, 1) == 1);
	CHECK(swap_batch_add(batch, 0, 300, 2) == 2);
	CHECK(!queue_up(batch, START));
	chunk = take(1, START, 2, 64, false);
	check_run(&chunk.runs[0], 0, 100, 63);
	check_run(&chunk.runs[1], 0, 200, 1);
	chunk = take(1, START, 1, 2, true);
	check_run(&chunk.runs[0], 0, 300, 2);
	end();
}

static void test_order(void)
{
	begin(5);
	for (unsigned int i = 0; i < 5; i++) {
		CHECK(!queue_run(i % 3, 100 * i + 1, 70, START + i));
		CHECK(queue.oldest == START);
	}
	for (unsigned int i = 0; i < 5; i++) {
		struct swap_chunk chunk;

		CHECK(queue.oldest == START + i);
		chunk = take(i % 3, START + i, 1, 64, false);
		check_run(&chunk.runs[0], 0, 100 * i + 1, 64);
		CHECK(queue.oldest == START + i);
		chunk = take(i % 3, START + i, 1, 6, true);
		check_run(&chunk.runs[0], 0, 100 * i + 65, 6);
	}
	CHECK(queue.oldest == U64_MAX);
	/* What comes next is the oldest again. */
	CHECK(!queue_run(1, 1, 1, START + 9));
	CHECK(queue.oldest == START + 9);
	take(1, START + 9, 1, 1, true);
	end();
}

static void test_merge(void)
{
	struct swap_chunk chunk;

	begin(3);
	CHECK(!queue_run(1, 100, 3, START));
	CHECK(queue_run(1, 103, 2, START + 1));
	CHECK(queue.nr_waiting == 1 && queue.nr_spare == 2);
	/* Not with another owner's, even NULL; nor with an earlier one. */
	CHECK(!queue_run(0, 200, 1, START + 2));
	CHECK(!queue_run(1, 300, 1, START + 3));
	CHECK(queue.nr_waiting == 3);
	chunk = take(1, START, 2, 5, true);
	check_run(&chunk.runs[0], 0, 100, 3);
	check_run(&chunk.runs[1], 0, 103, 2);
	chunk = take(0, START + 2, 1, 1, true);
	check_run(&chunk.runs[0], 0, 200, 1);
	CHECK(queue_run(1, 400, 1, START + 4));
	chunk = take(1, START + 3, 2, 2, true);
	check_run(&chunk.runs[0], 0, 300, 1);
	check_run(&chunk.runs[1], 0, 400, 1);
	/* Nothing remains of the previous one. */
	CHECK(!queue_run(1, 500, 1, START + 5));
	take(1, START + 5, 1, 1, true);

	/* Those without an owner belong together. */
	CHECK(!queue_run(0, 100, 1, START));
	CHECK(queue_run(0, 102, 1, START));
	take(0, START, 2, 2, true);
	end();
}

/* As much as fits, and not one more. */
static void test_merge_limits(void)
{
	begin(2);
	for (unsigned int more = 0; more < 2; more++) {
		CHECK(!queue_single(1, 1, 300, START));
		CHECK(queue_single(1, 1001, 204 + more, START) == !more);
		drain(504 + more, 1 + more);

		CHECK(!queue_run(1, 1, 600, START));
		CHECK(queue_run(1, 1001, 424 + more, START) == !more);
		drain(1024 + more, 1 + more);
	}
	end();
}

/* Slots that were taken have made room, but the array has not. */
static void test_merge_taken(void)
{
	struct swap_chunk chunk;

	begin(2);
	CHECK(!queue_single(1, 1, 100, START));
	chunk = take(1, START, 32, 32, false);
	CHECK(queue_single(1, 1001, 404, START + 1));
	CHECK(!queue_single(1, 5001, 1, START + 2));
	chunk = take(1, START, 32, 32, false);
	check_single(&chunk, 0, 32, 65);
	chunk = take(1, START, 32, 32, false);
	check_single(&chunk, 0, 32, 129);
	chunk = take(1, START, 32, 32, false);
	check_single(&chunk, 0, 4, 193);
	check_single(&chunk, 4, 32, 1001);
	for (unsigned int i = 28; i < 404; i += 32) {
		unsigned int nr = min(404 - i, 32U);

		chunk = take(1, START, nr, nr, i + 32 >= 404);
		check_single(&chunk, 0, nr, 1001 + 2 * i);
	}
	chunk = take(1, START + 2, 1, 1, true);
	check_run(&chunk.runs[0], 0, 5001, 1);

	CHECK(!queue_run(1, 1, 1000, START));
	take(1, START, 1, 64, false);
	CHECK(queue_run(1, 2001, 88, START));
	CHECK(!queue_run(1, 3001, 1, START));
	CHECK(queue.pages == 1025);
	for (unsigned int i = 0; i < 14; i++)
		take(1, START, 1, 64, false);
	take(1, START, 2, 64, false);
	take(1, START, 1, 64, true);
	take(1, START, 1, 1, true);
	end();
}

static void test_spares(void)
{
	struct swap_batch *a, *b, *c;

	begin(3);
	a = get_spare(1);
	b = get_spare(1);
	c = get_spare(1);
	CHECK(a != b && b != c && c != a);
	CHECK(!swap_queue_get_spare(&queue));
	/* The last one that was used is the first to be used again... */
	put_spare(b);
	put_spare(a);
	CHECK(get_spare(1) == a);
	CHECK(get_spare(1) == b);
	/* ...also if it comes back from the queue, merged or empty. */
	add_single(a, 1, 1);
	add_single(b, 3, 1);
	add_single(c, 5, 1);
	CHECK(!queue_up(a, START));
	CHECK(queue_up(b, START));
	CHECK(queue_up(c, START));
	CHECK(get_spare(1) == c);
	take(1, START, 3, 3, true);
	CHECK(get_spare(1) == a);
	CHECK(get_spare(1) == b);
	put_spare(a);
	put_spare(b);
	put_spare(c);
	end();
}

/*
 * Concurrent threads that fill batches and take entries. A batch outside of the
 * queue and a slot are written without atomics, so that a batch with two owners
 * and a slot that is released twice are data races for the thread sanitizer; and
 * a thread that takes a slot reads what its filler wrote.
 */
#define MOST_FILLERS	3
#define MOST_TAKERS	3
#define NR_OWNERS	3
#define NR_SLOTS	(1U << 17)
#define NR_ROUNDS	10
#define NR_FILLS	60

/**
 * struct slot - a reference to a slot of a filler's own device
 * @owner: that it was queued for
 * @queued: how often it was queued
 * @taken: how often it was taken
 */
struct slot {
	void *owner;
	unsigned int queued;
	unsigned int taken;
};

/**
 * struct thread - fills batches, or takes entries
 * @id: among those of its kind; of a filler, also its device
 * @filler: it fills
 * @batch: that it is filling
 * @next: the next slot to fill, or, for each device, to take
 * @alone: there is no other taker
 * @merged: how often another batch had room
 * @dry: how often no batch was spare, or none waited
 * @pages: slots queued, or taken
 */
struct thread {
	unsigned int id;
	bool filler;
	struct swap_batch *batch;
	unsigned int next[MOST_FILLERS];
	bool alone;
	unsigned int merged;
	unsigned int dry;
	unsigned long pages;
};

static struct slot slots[MOST_FILLERS][NR_SLOTS];
static struct thread threads[MOST_FILLERS + MOST_TAKERS];
static unsigned int nr_threads;
static pthread_barrier_t round_over;
static atomic_ullong the_time;
/* References that batches with entries in them hold. */
static atomic_long owner_refs[NR_OWNERS];

static void fill(struct thread *a, uint64_t *seed)
{
	unsigned int runs = 1 + rnd(seed) % 60;

	while (runs-- && !swap_batch_full(a->batch)) {
		unsigned int first = a->next[0] + rnd(seed) % 3;
		unsigned int nr = rnd(seed) % 8 ? 1 : 1 + rnd(seed) % 100;

		/* The device is used up. */
		if (first + nr > NR_SLOTS)
			return;
		nr = swap_batch_add(a->batch, a->id, first, nr);
		CHECK(nr);
		a->next[0] = first + nr;
		for (unsigned int i = first; i < first + nr; i++) {
			slots[a->id][i].owner = a->batch->owner;
			slots[a->id][i].queued++;
		}
	}
}

static void queue_filled(struct thread *a)
{
	atomic_long *refs = (atomic_long *)a->batch->owner;

	a->pages += a->batch->pages;
	if (swap_queue_add(&queue, a->batch,
			   atomic_fetch_add(&the_time, 1) + 1)) {
		atomic_fetch_sub(refs, 1);
		a->merged++;
	}
	a->batch = NULL;
}

static void put_unused(struct thread *a)
{
	atomic_fetch_sub((atomic_long *)a->batch->owner, 1);
	swap_queue_put_spare(&queue, a->batch);
	a->batch = NULL;
}

static void fill_some(struct thread *a, uint64_t *seed)
{
	for (unsigned int i = 0; i < NR_FILLS; i++) {
		if (!a->batch) {
			unsigned int owner = rnd(seed) % NR_OWNERS;

			a->batch = swap_queue_get_spare(&queue);
			if (!a->batch) {
				/* On a busy machine a yield is expensive. */
				if (a->dry++ % 16 == 0)
					sched_yield();
				continue;
			}
			CHECK(!a->batch->owner && !a->batch->next);
			CHECK(!a->batch->nr && !a->batch->pages);
			a->batch->owner = &owner_refs[owner];
			atomic_fetch_add(&owner_refs[owner], 1);
		}
		if (!a->batch->nr && rnd(seed) % 8 == 0) {
			put_unused(a);
			continue;
		}
		fill(a, seed);
		if (a->batch->nr &&
		    (swap_batch_full(a->batch) || rnd(seed) % 4))
			queue_filled(a);
		if (rnd(seed) % 64 == 0)
			sched_yield();
	}
}

static bool take_one(struct thread *a)
{
	struct swap_chunk chunk;
	unsigned int pages = 0;

	memset(&chunk, 0xa5, sizeof(chunk));
	if (!swap_queue_take(&queue, &chunk)) {
		CHECK(!chunk.nr && !chunk.pages && !chunk.last);
		return false;
	}
	CHECK(chunk.nr && chunk.nr <= SWAP_CHUNK_RUNS);
	CHECK(chunk.queued && chunk.queued <= atomic_load(&the_time));
	for (unsigned int i = 0; i < chunk.nr; i++) {
		const struct swap_run *run = &chunk.runs[i];
		struct slot *slot;

		CHECK(run->nr && run->type < MOST_FILLERS);
		CHECK(run->offset + run->nr <= NR_SLOTS);
		slot = &slots[run->type][run->offset];
		for (unsigned int j = 0; j < run->nr; j++, slot++) {
			CHECK(slot->queued == 1 && slot->owner == chunk.owner);
			CHECK(!slot->taken++);
		}
		/* Each filler's come in the order in which it filled them. */
		if (a->alone) {
			CHECK(run->offset >= a->next[run->type]);
			a->next[run->type] = run->offset + run->nr;
		}
		pages += run->nr;
	}
	CHECK(pages == chunk.pages && pages <= SWAP_CHUNK_PAGES);
	a->pages += pages;
	if (chunk.last)
		CHECK(atomic_fetch_sub((atomic_long *)chunk.owner, 1) > 0);

	return true;
}

static void take_some(struct thread *a, uint64_t *seed)
{
	unsigned int nr = rnd(seed) % (16 * NR_FILLS);

	for (unsigned int i = 0; i < nr; i++) {
		/* Without the lock, as the code around the queue does it. */
		unsigned int nr_waiting = READ_ONCE(queue.nr_waiting);
		u64 oldest = READ_ONCE(queue.oldest);

		CHECK(nr_waiting <= nr_batches);
		CHECK(oldest == U64_MAX || oldest <= atomic_load(&the_time));
		/* The fillers might wait for this one at the round's end. */
		if (!take_one(a) && ++a->dry % 64 == 0) {
			sched_yield();
			return;
		}
	}
}

/* No thread uses the queue right now. */
static void check_round(void)
{
	unsigned long pages = 0;

	outside = 0;
	for (unsigned int i = 0; i < nr_threads; i++) {
		if (threads[i].filler)
			pages += threads[i].pages;
		else
			pages -= threads[i].pages;
		outside += !!threads[i].batch;
	}
	check_queue();
	CHECK(queue.pages == pages);
}

static void end_round(void)
{
	if (pthread_barrier_wait(&round_over) == PTHREAD_BARRIER_SERIAL_THREAD)
		check_round();
	pthread_barrier_wait(&round_over);
}

static void *thread_fn(void *arg)
{
	struct thread *a = arg;
	uint64_t seed = 0x9e3779b97f4a7c15 * (a->id + 1 + 10 * a->filler);

	for (unsigned int i = 0; i < NR_ROUNDS; i++) {
		if (a->filler)
			fill_some(a, &seed);
		else if (i)
			/* After the first round much waits. */
			take_some(a, &seed);
		end_round();
	}

	if (a->batch && a->batch->nr)
		queue_filled(a);
	else if (a->batch)
		put_unused(a);
	end_round();
	while (!a->filler && take_one(a))
		;
	end_round();

	return NULL;
}

static void run_storm(unsigned int nr, unsigned int nr_takers)
{
	struct thread sum = { 0 };

	begin(nr);
	memset(slots, 0, sizeof(slots));
	atomic_store(&the_time, START);
	for (unsigned int i = 0; i < NR_OWNERS; i++)
		CHECK(!atomic_load(&owner_refs[i]));
	nr_threads = MOST_FILLERS + nr_takers;
	for (unsigned int i = 0; i < nr_threads; i++) {
		bool filler = i < MOST_FILLERS;

		threads[i] = (struct thread){
			.id = filler ? i : i - MOST_FILLERS,
			.filler = filler,
			.alone = nr_takers == 1,
		};
	}
	pthread_barrier_init(&round_over, NULL, nr_threads);
	run_threads(nr_threads, thread_fn, threads, sizeof(threads[0]));
	pthread_barrier_destroy(&round_over);

	for (unsigned int i = 0; i < nr_threads; i++) {
		sum.merged += threads[i].merged;
		if (threads[i].filler)
			sum.dry += threads[i].dry;
	}
	/* Otherwise the test proves nothing. */
	CHECK(sum.merged && sum.dry);
	for (unsigned int i = 0; i < NR_OWNERS; i++)
		CHECK(!atomic_load(&owner_refs[i]));
	for (unsigned int id = 0; id < MOST_FILLERS; id++) {
		for (unsigned int i = 0; i < NR_SLOTS; i++)
			CHECK(slots[id][i].taken == slots[id][i].queued);
	}
	end();
}

static void test_concurrent(void)
{
	run_storm(MOST_BATCHES, MOST_TAKERS);
}

static void test_concurrent_few(void)
{
	run_storm(MOST_FILLERS + 1, MOST_TAKERS);
}

static void test_concurrent_order(void)
{
	run_storm(MOST_BATCHES, 1);
}

static const struct test tests[] = {
	{ "runs", test_runs },
	{ "run-limits", test_run_limits },
	{ "batch-limits", test_batch_limits },
	{ "chunks", test_chunks },
	{ "order", test_order },
	{ "merge", test_merge },
	{ "merge-limits", test_merge_limits },
	{ "merge-taken", test_merge_taken },
	{ "spares", test_spares },
	{ "concurrent", test_concurrent },
	{ "concurrent-few", test_concurrent_few },
	{ "concurrent-order", test_concurrent_order },
};

int main(int argc, char **argv)
{
	return run_tests(tests, ARRAY_SIZE(tests), argc, argv);
}
