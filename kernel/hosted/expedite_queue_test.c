// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tests of the expedite topic's queue, at the end with real threads.
 *
 * Usage: expedite_queue_test [NAME]...
 *
 * The tests set the time.
 */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "expedite_queue.h"
#include "test.h"

#define SHARE		((unsigned long)EXPEDITE_SHARE)
#define PAUSE		((u64)EXPEDITE_PAUSE_NS)
#define PATIENCE	((u64)EXPEDITE_RETRY_NS)

/* Start of the tests: 0 would hide an uninitialized time. */
#define START		(1000 * PATIENCE)

#define NR_PLACES	EXPEDITE_MAX_REQUESTS

/* An mm and a victim are distinguished by address. */
static char mm_places[2 * NR_PLACES];
static char victim_places[2 * NR_PLACES];
#define fake_mm(i)	((struct mm_struct *)&mm_places[i])
#define fake_victim(i)	((struct task_struct *)&victim_places[i])

static struct expedite_queue queue;

static enum expedite_added add(unsigned int i, unsigned long pages, u64 now)
{
	return expedite_queue_add(&queue, fake_mm(i), fake_victim(i), pages,
				  now);
}

/* Becomes a worker of fake_mm(@i), which must be the next request. */
static struct expedite_turn take(unsigned int i, u64 now)
{
	struct expedite_turn turn;

	CHECK(expedite_queue_ready(&queue, now));
	CHECK(expedite_queue_take(&queue, now, &turn));
	CHECK(turn.req->mm == fake_mm(i));
	CHECK(turn.more == expedite_queue_ready(&queue, now));

	return turn;
}

/* There must be no work. Returns when there will be. */
static u64 idle_until(u64 now)
{
	struct expedite_turn turn;

	CHECK(!expedite_queue_ready(&queue, now));
	CHECK(!expedite_queue_take(&queue, now, &turn));
	CHECK(!turn.req && !turn.more && turn.next > now);
	if (turn.next != EXPEDITE_NEVER) {
		CHECK(!expedite_queue_ready(&queue, turn.next - 1));
		CHECK(expedite_queue_ready(&queue, turn.next));
	}

	return turn.next;
}

/* Stops working; there must be other workers, or another attempt. */
static void put(const struct expedite_turn *turn, unsigned long freed,
		enum expedite_outcome outcome, u64 now)
{
	struct expedite_request over = { 0 };

	CHECK(!expedite_queue_put(&queue, turn->req, freed, outcome, now,
				  &over));
	CHECK(!over.mm && !over.victim);
}

/* Stops working, which must be the end of the request. */
static struct expedite_request put_last(const struct expedite_turn *turn,
					unsigned long freed,
					enum expedite_outcome outcome, u64 now)
{
	struct mm_struct *mm = turn->req->mm;
	struct expedite_request over;

	CHECK(expedite_queue_put(&queue, turn->req, freed, outcome, now,
				 &over));
	CHECK(over.mm == mm);
	CHECK(!over.workers);

	return over;
}

/* All places are free: as many as there are can be filled, and emptied. */
static void check_places(void)
{
	static bool seen[NR_PLACES];
	struct expedite_turn turn;

	memset(seen, 0, sizeof(seen));
	CHECK(idle_until(START) == EXPEDITE_NEVER);
	for (unsigned int i = 0; i < NR_PLACES; i++)
		CHECK(add(i, 1, START) == EXPEDITE_QUEUED);
	CHECK(add(NR_PLACES, 1, START) == EXPEDITE_FULL);
	for (unsigned int i = 0; i < NR_PLACES; i++) {
		struct expedite_request over;
		unsigned int nr;

		CHECK(expedite_queue_take(&queue, START, &turn));
		over = put_last(&turn, 0, EXPEDITE_EXITED, START);
		nr = (char *)over.mm - mm_places;
		CHECK(nr < NR_PLACES && !seen[nr]);
		CHECK(over.victim == fake_victim(nr));
		seen[nr] = true;
	}
	CHECK(idle_until(START) == EXPEDITE_NEVER);
}

static void test_places(void)
{
	struct expedite_turn turn;

	expedite_queue_init(&queue);
	check_places();
	check_places();

	/* A full queue still knows its own, and has room after each end. */
	for (unsigned int i = 0; i < NR_PLACES; i++)
		CHECK(add(i, i + 1, START) == EXPEDITE_QUEUED);
	for (unsigned int i = NR_PLACES; i-- > 0;) {
		CHECK(add(i, 1, START) == EXPEDITE_MERGED);
		CHECK(add(NR_PLACES + i, 1, START) == EXPEDITE_FULL);
		turn = take(i, START);
		CHECK(add(NR_PLACES + i, 1, START) == EXPEDITE_FULL);
		put_last(&turn, 0, EXPEDITE_FREED, START);
		/* Small enough to come after all of the first ones. */
		CHECK(add(NR_PLACES + i, 0, START) == EXPEDITE_QUEUED);
	}
	for (unsigned int i = 0; i < NR_PLACES; i++) {
		CHECK(expedite_queue_take(&queue, START, &turn));
		put_last(&turn, 0, EXPEDITE_FREED, START);
	}
	check_places();
}

static void test_merge(void)
{
	struct expedite_request over;
	struct expedite_turn turn;

	expedite_queue_init(&queue);
	CHECK(add(0, 100, START) == EXPEDITE_QUEUED);
	CHECK(expedite_queue_add(&queue, fake_mm(0), fake_victim(1), 200,
				 START + 1) == EXPEDITE_MERGED);
	turn = take(0, START + 2);
	CHECK(add(0, 300, START + 3) == EXPEDITE_MERGED);
	CHECK(idle_until(START + 3) == EXPEDITE_NEVER);
	over = put_last(&turn, 7, EXPEDITE_FREED, START + 4);
	CHECK(over.victim == fake_victim(0));
	CHECK(over.pages == 100 && over.freed == 7);
	CHECK(over.queued == START && over.peak_workers == 1);
	CHECK(over.outcome == EXPEDITE_FREED);

	/* Finished requests are not merged with, and leave nothing behind. */
	CHECK(add(0, 50, START + 5) == EXPEDITE_QUEUED);
	turn = take(0, START + 5);
	CHECK(turn.first && turn.may_retry);
	over = put_last(&turn, 0, EXPEDITE_EXITED, START + 6);
	CHECK(over.pages == 50 && !over.freed && over.queued == START + 5);
}

static void test_order(void)
{
	uint64_t seed = 1;

	expedite_queue_init(&queue);
	for (int round = 0; round < 20; round++) {
		unsigned long above = ULONG_MAX;
		struct expedite_turn turn;

		for (unsigned int i = 0; i < NR_PLACES; i++)
			CHECK(add(i, rnd(&seed) % 1000 * (SHARE / 100),
				  START) == EXPEDITE_QUEUED);
		for (unsigned int i = 0; i < NR_PLACES; i++) {
			CHECK(expedite_queue_take(&queue, START, &turn));
			CHECK(turn.first && turn.may_retry);
			CHECK(turn.more == (i + 1 < NR_PLACES));
			CHECK(turn.req->pages <= above);
			above = turn.req->pages;
			put_last(&turn, 0, EXPEDITE_FREED, START);
		}
	}
	check_places();
}

/* Returns how many workers may work on a request of @pages at a time. */
static unsigned int workers_for(unsigned long pages)
{
	struct expedite_turn turns[16];
	struct expedite_request over;
	unsigned int nr = 1;

	CHECK(add(0, pages, START) == EXPEDITE_QUEUED);
	turns[0] = take(0, START);
	CHECK(turns[0].first && !turns[0].more);
	CHECK(idle_until(START) == EXPEDITE_NEVER);
	if (expedite_queue_open(&queue, turns[0].req)) {
		do {
			CHECK(nr < 16);
			turns[nr] = take(0, START);
			CHECK(!turns[nr].first);
			CHECK(turns[nr].req == turns[0].req);
		} while (turns[nr++].more);
	}
	CHECK(idle_until(START) == EXPEDITE_NEVER);
	/* There would be a share for another one now, but it is too late. */
	for (unsigned int i = nr - 1; i > 0; i--) {
		put(&turns[i], 10, EXPEDITE_FREED, START);
		CHECK(idle_until(START) == EXPEDITE_NEVER);
	}
	over = put_last(&turns[0], 1, EXPEDITE_FREED, START);
	CHECK(over.peak_workers == nr);
	CHECK(over.freed == (nr - 1) * 10 + 1);

	return nr;
}

static void test_peak_workers(void)
{
	expedite_queue_init(&queue);
	CHECK(workers_for(0) == 1);
	CHECK(workers_for(1) == 1);
	for (unsigned int nr = 2; nr < 10; nr++) {
		CHECK(workers_for(nr * SHARE - 1) == nr - 1);
		CHECK(workers_for(nr * SHARE) == nr);
	}
}

static void test_shares(void)
{
	/* Of 5, 3 and hardly any: 5 / 2, 5 / 3, 3 / 2, 5 / 4, 3 / 3. */
	static const unsigned int order[] = { 0, 1, 0, 0, 1, 0, 1, 2 };
	const unsigned int nr = ARRAY_SIZE(order);
	struct expedite_turn turns[ARRAY_SIZE(order)];
	unsigned int workers[] = { 4, 3, 1 };

	expedite_queue_init(&queue);
	add(0, 5 * SHARE - 1, START);
	add(1, 3 * SHARE, START);
	add(2, 1, START);
	for (unsigned int i = 0; i < nr; i++) {
		turns[i] = take(order[i], START);
		CHECK(turns[i].first == (i < 2 || i == nr - 1));
		if (turns[i].first)
			expedite_queue_open(&queue, turns[i].req);
		CHECK(turns[i].more == (i < nr - 1));
	}
	for (unsigned int i = 0; i < nr; i++) {
		if (--workers[order[i]])
			put(&turns[i], 0, EXPEDITE_FREED, START);
		else
			put_last(&turns[i], 0, EXPEDITE_FREED, START);
	}
	check_places();
}

static void test_deadline(void)
{
	const u64 end = START + PATIENCE;

	expedite_queue_init(&queue);
	for (enum expedite_outcome outcome = EXPEDITE_SHARED;
	     outcome <= EXPEDITE_FAILED; outcome++) {
		u64 pause = 1 * NSEC_PER_MSEC, now = START;
		struct expedite_request over;
		struct expedite_turn turn;
		unsigned int tries = 0;

		CHECK(add(0, 8 * SHARE, START) == EXPEDITE_QUEUED);
		while (now < end) {
			u64 next = now + pause < end ? now + pause : end;

			turn = take(0, now);
			CHECK(turn.first && turn.may_retry);
			/* Open in one attempt is not open in the next. */
			expedite_queue_open(&queue, turn.req);
			put(&turn, tries++, outcome, now);
			CHECK(idle_until(now) == next);
			now = next;
			if (pause < 64 * NSEC_PER_MSEC)
				pause *= 2;
		}
		/* After 0, 1, 3, 7, 15, 31, 63, 127, 191, ... 1983 ms. */
		CHECK(tries == 37);
		turn = take(0, end);
		CHECK(turn.first && !turn.may_retry);
		over = put_last(&turn, 0, outcome, end);
		CHECK(over.outcome == outcome);
		CHECK(over.freed == tries * (tries - 1) / 2);
		CHECK(idle_until(end) == EXPEDITE_NEVER);
	}
}

/* The deadline may pass between two attempts. */
static void test_late(void)
{
	struct expedite_turn turn;

	expedite_queue_init(&queue);
	add(0, 1, START);
	turn = take(0, START + PATIENCE - 1);
	CHECK(turn.may_retry);
	put(&turn, 0, EXPEDITE_LOCK, START + 3 * PATIENCE);
	turn = take(0, START + 3 * PATIENCE);
	CHECK(!turn.may_retry);
	put_last(&turn, 0, EXPEDITE_LOCK, START + 3 * PATIENCE);

	add(0, 1, START);
	turn = take(0, START + PATIENCE);
	CHECK(!turn.may_retry);
	put_last(&turn, 0, EXPEDITE_LOCK, START + PATIENCE);
}

/* Further requests change neither the attempts nor the deadline. */
static void test_merge_repeats(void)
{
	const u64 end = START + PATIENCE;
	struct expedite_turn turn;
	unsigned int tries = 0;
	u64 now = START, next;

	expedite_queue_init(&queue);
	add(0, 1, now);
	for (; now < end; now = next) {
		turn = take(0, now);
		CHECK(turn.may_retry);
		tries++;
		/* While it is worked on, and while it waits. */
		CHECK(add(0, 1, now) == EXPEDITE_MERGED);
		put(&turn, 0, EXPEDITE_SHARED, now);
		next = idle_until(now);
		CHECK(add(0, 1, next - 1) == EXPEDITE_MERGED);
		CHECK(idle_until(next - 1) == next);
	}
	/* As many as without them. */
	CHECK(tries == 37);

	/* The last attempt stays the last one. */
	turn = take(0, now);
	CHECK(!turn.may_retry);
	CHECK(add(0, 1, now) == EXPEDITE_MERGED);
	put_last(&turn, 0, EXPEDITE_SHARED, now);
}

static void test_outcomes(void)
{
	expedite_queue_init(&queue);
	for (enum expedite_outcome a = EXPEDITE_EXITED; a <= EXPEDITE_FAILED;
	     a++) {
		for (enum expedite_outcome b = EXPEDITE_EXITED;
		     b <= EXPEDITE_FAILED; b++) {
			enum expedite_outcome worst = a > b ? a : b;
			struct expedite_turn first, second;
			struct expedite_request over;

			add(0, 2 * SHARE, START);
			first = take(0, START);
			CHECK(expedite_queue_open(&queue, first.req));
			second = take(0, START);
			CHECK(second.may_retry);
			put(&first, 1, a, START);
			if (worst <= EXPEDITE_FREED) {
				over = put_last(&second, 2, b, START);
				CHECK(over.outcome == worst);
				CHECK(over.freed == 3 && over.peak_workers == 2);
				continue;
			}
			put(&second, 2, b, START);
			/* Each attempt has an outcome of its own. */
			first = take(0, START + PAUSE);
			CHECK(first.first && !first.more);
			over = put_last(&first, 4, EXPEDITE_EXITED,
					START + PAUSE);
			CHECK(over.outcome == EXPEDITE_EXITED);
			CHECK(over.freed == 7 && over.peak_workers == 2);
		}
	}
}

/*
 * Concurrent killers and workers for few address spaces, which are used again
 * and again. The first worker of a request owns it until it is open, and others
 * join afterwards: they access it without atomics, so that two at a time are a
 * data race for the thread sanitizer.
 */
#define NR_KILLERS	3
#define NR_WORKERS	5
#define NR_KILLS	4000
#define NR_MMS		24

/**
 * struct victim - a kill
 * @mm: whose
 * @freed: freed, as reported by workers
 * @seen: written by workers without company
 * @kept: the queue refused it
 * @over: it came back
 */
struct victim {
	unsigned int mm;
	atomic_ulong freed;
	unsigned int seen;
	unsigned int kept;
	unsigned int over;
};

static struct victim victims[NR_KILLERS * NR_KILLS];
static unsigned int tries_of[NR_MMS];
static atomic_uint nr_killers;
static atomic_ullong the_time;

struct thread {
	unsigned int id;
	bool killer;
	pthread_barrier_t *go;
	unsigned int full;
	unsigned int merged;
	unsigned int joined;
	unsigned int given_up;
};

static void kill_some(struct thread *a, uint64_t *seed)
{
	for (unsigned int i = 0; i < NR_KILLS; i++) {
		struct victim *v = &victims[a->id * NR_KILLS + i];

		v->mm = rnd(seed) % NR_MMS;
		switch (expedite_queue_add(&queue, fake_mm(v->mm),
					   (struct task_struct *)v,
					   rnd(seed) % (5 * SHARE),
					   atomic_load(&the_time))) {
		case EXPEDITE_MERGED:
			a->merged++;
			v->kept++;
			break;
		case EXPEDITE_FULL:
			a->full++;
			v->kept++;
			break;
		case EXPEDITE_QUEUED:
			break;
		}
		if (rnd(seed) % 4 == 0)
			sched_yield();
	}
	atomic_fetch_sub(&nr_killers, 1);
}

static void work(struct thread *a, const struct expedite_turn *turn,
		 uint64_t *seed)
{
	struct victim *v = (struct victim *)turn->req->victim;
	enum expedite_outcome outcome = EXPEDITE_FREED;
	unsigned long freed = rnd(seed) % 100;
	struct expedite_request over;

	CHECK(turn->req->mm == fake_mm(v->mm));
	if (turn->first) {
		tries_of[v->mm]++;
		v->seen++;
		if (rnd(seed) % 2)
			sched_yield();
		tries_of[v->mm]++;
		if (rnd(seed) % 4)
			expedite_queue_open(&queue, turn->req);
	} else {
		a->joined++;
	}
	/* Odd is what only a first worker may see. */
	CHECK(v->seen && tries_of[v->mm] % 2 == 0);
	if (rnd(seed) % 4 == 0)
		sched_yield();
	if (rnd(seed) % 2)
		outcome = rnd(seed) % (EXPEDITE_FAILED + 1);

	atomic_fetch_add(&v->freed, freed);
	if (!expedite_queue_put(&queue, turn->req, freed, outcome,
				atomic_load(&the_time), &over))
		return;
	CHECK(over.victim == (struct task_struct *)v);
	CHECK(over.mm == fake_mm(v->mm));
	CHECK(over.freed == atomic_load(&v->freed));
	CHECK(over.peak_workers >= 1 && over.peak_workers <= NR_WORKERS);
	a->given_up += over.outcome > EXPEDITE_FREED;
	v->over++;
}

static void work_some(struct thread *a, uint64_t *seed)
{
	for (;;) {
		bool last = !atomic_load(&nr_killers);
		u64 now = atomic_load(&the_time);
		struct expedite_turn turn;

		if (expedite_queue_take(&queue, now, &turn)) {
			work(a, &turn, seed);
			/* Sometimes so long that the deadline passes. */
			atomic_fetch_add(&the_time, rnd(seed) % 32 ?
						    PAUSE / 8 : PATIENCE);
		} else if (turn.next != EXPEDITE_NEVER) {
			CHECK(turn.next > now);
			atomic_compare_exchange_strong(&the_time, &now,
						       turn.next);
		} else {
			/* A worker that is busy will look again. */
			if (last)
				return;
			sched_yield();
		}
	}
}

static void *thread_fn(void *arg)
{
	struct thread *a = arg;
	uint64_t seed = 0x9e3779b97f4a7c15 * (a->id + 1 + 10 * a->killer);

	pthread_barrier_wait(a->go);
	if (a->killer)
		kill_some(a, &seed);
	else
		work_some(a, &seed);

	return NULL;
}

/* Leaves only @nr places, so that a queue is full at times. */
static void init_small(unsigned int nr)
{
	expedite_queue_init(&queue);
	INIT_LIST_HEAD(&queue.free);
	for (unsigned int i = 0; i < nr; i++)
		list_add_tail(&queue.places[i].list, &queue.free);
}

static void run_storm(unsigned int nr_places)
{
	struct thread threads[NR_KILLERS + NR_WORKERS];
	struct thread sum = { 0 };
	pthread_barrier_t go;

	init_small(nr_places);
	memset(victims, 0, sizeof(victims));
	memset(tries_of, 0, sizeof(tries_of));
	atomic_store(&nr_killers, NR_KILLERS);
	atomic_store(&the_time, START);
	pthread_barrier_init(&go, NULL, NR_KILLERS + NR_WORKERS);
	for (unsigned int i = 0; i < NR_KILLERS + NR_WORKERS; i++) {
		bool killer = i < NR_KILLERS;

		threads[i] = (struct thread){
			.id = killer ? i : i - NR_KILLERS,
			.killer = killer,
			.go = &go,
		};
	}
	run_threads(NR_KILLERS + NR_WORKERS, thread_fn, threads,
		    sizeof(threads[0]));
	pthread_barrier_destroy(&go);

	CHECK(idle_until(START) == EXPEDITE_NEVER);
	for (unsigned int i = 0; i < NR_KILLERS * NR_KILLS; i++)
		CHECK(victims[i].kept + victims[i].over == 1);
	for (unsigned int i = 0; i < NR_KILLERS + NR_WORKERS; i++) {
		sum.full += threads[i].full;
		sum.merged += threads[i].merged;
		sum.joined += threads[i].joined;
		sum.given_up += threads[i].given_up;
	}
	/* Otherwise the test proves nothing. */
	CHECK(sum.merged && sum.joined && sum.given_up);
	CHECK(sum.full || nr_places >= NR_MMS);
	/* No place is lost. */
	for (unsigned int i = 0; i < nr_places; i++)
		CHECK(add(i, 1, START) == EXPEDITE_QUEUED);
	CHECK(add(nr_places, 1, START) == EXPEDITE_FULL);
}

static void test_concurrent(void)
{
	run_storm(NR_MMS);
}

static void test_concurrent_full(void)
{
	run_storm(NR_MMS / 3);
}

static const struct test tests[] = {
	{ "places", test_places },
	{ "merge", test_merge },
	{ "order", test_order },
	{ "peak_workers", test_peak_workers },
	{ "shares", test_shares },
	{ "deadline", test_deadline },
	{ "late", test_late },
	{ "merge-repeats", test_merge_repeats },
	{ "outcomes", test_outcomes },
	{ "concurrent", test_concurrent },
	{ "concurrent-full", test_concurrent_full },
};

int main(int argc, char **argv)
{
	return run_tests(tests, ARRAY_SIZE(tests), argc, argv);
}
