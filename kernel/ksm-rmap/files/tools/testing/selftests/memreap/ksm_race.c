// SPDX-License-Identifier: GPL-2.0-only
/*
 * KSM pages that are merged, moved, forked, written to, unmapped, reclaimed and
 * migrated concurrently: nothing may get lost, and in the end each of them must
 * be found.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "../kselftest_harness.h"
#include "victim.h"
#include "world.h"

FIXTURE(race) {
	struct world world;
};

FIXTURE_SETUP(race)
{
	const char *missing = world_begin(&self->world, 2);

	if (missing)
		SKIP(return, "%s", missing);
}

FIXTURE_TEARDOWN_PARENT(race)
{
	world_end(_metadata, &self->world);
}

#define RACE_LIMIT	300
/* Seconds that a slow machine has to reach the minimum of was_a_race(). */
#define RACE_MAX_SECONDS	90
#define NR_RACERS	3
#define NR_THREADS	3
#define WINDOW		16

/* The few contents that there are: nearly every page has its like. */
#define NR_CONTENTS	6

/**
 * struct race - what racers and the test share
 * @arena: of each racer, at the same address; two windows for each thread
 * @idle: threads that have stopped, for the test to look at their memory
 * @stop: 1: stop, 2: end
 * @quiet: racers pause, for something to be merged
 * @spoiled: pages with another content than they were given
 * @broken: what went wrong otherwise
 * @rounds: things done
 */
struct race {
	char *arena;
	unsigned int idle;
	int stop;
	int quiet;
	unsigned int spoiled;
	unsigned int broken;
	unsigned int rounds;
};

static struct race *race;

/**
 * struct racer - one thread's memory
 * @window: a page is either in the first or in the second
 * @where: which, for each page
 * @content: seed of each page
 * @seed: for rnd()
 */
struct racer {
	char *window[2];
	unsigned char where[WINDOW];
	unsigned long content[WINDOW];
	unsigned long long seed;
};

static void count(unsigned int *counter)
{
	__atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

static int stopped(void)
{
	return __atomic_load_n(&race->stop, __ATOMIC_RELAXED);
}

static char *window_of(int thread, int which)
{
	return race->arena + (2 * thread + which) * (WINDOW + 1) * PAGE;
}

static char *page_of(const struct racer *r, int i)
{
	return r->window[r->where[i]] + i * PAGE;
}

static void give_content(struct racer *r, int i)
{
	r->content[i] = rnd(&r->seed) % NR_CONTENTS;
	do_fill(page_of(r, i), r->content[i]);
}

static bool contents_fine(const struct racer *r)
{
	for (int i = 0; i < WINDOW; i++) {
		if (do_check(page_of(r, i), r->content[i]) != 1)
			return false;
	}

	return true;
}

/* To the other window, perhaps onto what was left there. */
static bool race_move(struct racer *r, int i)
{
	char *from = page_of(r, i), *to;

	r->where[i] ^= 1;
	to = page_of(r, i);
	if (mremap(from, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
		return false;
	/* So that nothing else is mapped there. */
	return rnd(&r->seed) % 2 ?
		mmap(from, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS |
		     MAP_FIXED, -1, 0) == from :
		map_fixed(from, 1, -1, 0) == from;
}

/* Its own memory is what it was; it writes to some, as others do to theirs. */
static bool race_fork(struct racer *r)
{
	pid_t pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int i = 0; i < WINDOW; i += 1 + rnd(&r->seed) % 4)
			give_content(r, i);
		if (rnd(&r->seed) % 2)
			usleep(rnd(&r->seed) % 20000);
		if (rnd(&r->seed) % 2)
			race_move(r, rnd(&r->seed) % WINDOW);
		_exit(contents_fine(r) ? 0 : 1);
	}

	return exits_cleanly(pid);
}

static bool race_round(struct racer *r)
{
	int i = rnd(&r->seed) % WINDOW;
	char *page = page_of(r, i);

	if (do_check(page, r->content[i]) != 1)
		count(&race->spoiled);
	switch (rnd(&r->seed) % 24) {
	case 0 ... 7:
		give_content(r, i);
		return true;
	case 8 ... 9:
		if (!map_fixed(page, 1, -1, 0))
			return false;
		give_content(r, i);
		return true;
	case 10:
		if (madvise(page, PAGE, MADV_DONTNEED))
			return false;
		give_content(r, i);
		return true;
	case 11 ... 14:
		return race_move(r, i);
	case 15:
		return do_unmergeable(page, PAGE);
	case 16 ... 17:
		return do_mergeable(page, PAGE);
	case 18 ... 19:
		return protect(page, 1, PROT_READ) &&
		       protect(page, 1, PROT_READ | PROT_WRITE);
	case 20:
		return race_fork(r);
	default:
		usleep(rnd(&r->seed) % 5000);
		return true;
	}
}

static void *racer_fn(void *arg)
{
	struct racer *r = arg;

	while (!stopped()) {
		if (__atomic_load_n(&race->quiet, __ATOMIC_RELAXED)) {
			usleep(1000);
			continue;
		}
		if (!race_round(r))
			count(&race->broken);
		count(&race->rounds);
	}
	if (!contents_fine(r))
		count(&race->spoiled);
	/*
	 * A page that was on its way to swap when its VMA stopped to take part
	 * is mapped there without a place, and not found by any walk. Now ksmd
	 * sees all of them again.
	 */
	for (int which = 0; which < 2; which++)
		do_mergeable(r->window[which], WINDOW * PAGE);
	__atomic_fetch_add(&race->idle, 1, __ATOMIC_SEQ_CST);
	while (stopped() < 2)
		usleep(1000);
	if (!contents_fine(r))
		count(&race->spoiled);

	return NULL;
}

static void racer_main(int nr)
{
	struct racer racers[NR_THREADS] = {};
	pthread_t threads[NR_THREADS];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int t = 0; t < NR_THREADS; t++) {
		struct racer *r = &racers[t];

		r->seed = 1 + nr * NR_THREADS + t;
		/* Near each other: VMAs will merge, and share an anon_vma. */
		for (int which = 0; which < 2; which++)
			r->window[which] = window_of(t, which);
		for (int i = 0; i < WINDOW; i++)
			give_content(r, i);
	}
	for (int t = 0; t < NR_THREADS; t++) {
		if (pthread_create(&threads[t], NULL, racer_fn, &racers[t]))
			_exit(1);
	}
	for (int t = 0; t < NR_THREADS; t++)
		pthread_join(threads[t], NULL);
	_exit(0);
}

/*
 * Pages that change all the time are never merged: with a slow ksmd there would
 * be no merged ones. So racers pause; migration continues.
 */
static void let_merge(void)
{
	unsigned long long limit = now_ns() + 2000000000ULL;
	long end = ksm_get("full_scans") + 3;

	__atomic_store_n(&race->quiet, 1, __ATOMIC_RELAXED);
	ksm_set("run", 1);
	while (ksm_get("full_scans") < end && now_ns() < limit && !stopped())
		usleep(1000);
	__atomic_store_n(&race->quiet, 0, __ATOMIC_RELAXED);
}

static void *flip_fn(void *arg)
{
	unsigned long long seed = 100;

	while (!stopped()) {
		unsigned int action = rnd(&seed) % 16;

		/* Mostly on: what is not merged is not interesting. */
		ksm_set("run", action < 14);
		if (action == 15) {
			ksm_set("run", 2);
			/* These work only with nothing merged. */
			ksm_set("max_page_sharing", 2 << rnd(&seed) % 6);
			ksm_set("merge_across_nodes", rnd(&seed) % 4 != 0);
		}
		ksm_set("smart_scan", rnd(&seed) % 2);
		if (switch_saved[0])
			write_file(SWITCH, rnd(&seed) % 4 ? "Y" : "N");
		if (rnd(&seed) % 2)
			let_merge();
		usleep(rnd(&seed) % 200000);
	}

	return NULL;
}

static void *squeeze_fn(void *arg)
{
	unsigned long long seed = 101;

	while (!stopped()) {
		squeeze(&world->squeeze, rnd(&seed) % MIB);
		usleep(rnd(&seed) % 50000);
	}

	return NULL;
}

/* A place of any thread of @pid, whether anything is there or not. */
static void *any_page(unsigned long long *seed)
{
	int thread = rnd(seed) % NR_THREADS, which = rnd(seed) % 2;

	return window_of(thread, which) + rnd(seed) % WINDOW * PAGE;
}

static bool was_a_race(unsigned int moved, long sharing)
{
	return moved > 10 && sharing > 0 &&
	       __atomic_load_n(&race->rounds, __ATOMIC_RELAXED) > 100;
}

TEST_F_TIMEOUT(race, all_at_once, RACE_LIMIT)
{
	struct stress stress = { .min_rounds = UINT_MAX };
	unsigned long long seed = 102, limit;
	const char *no_swap = squeeze_begin(&self->world.squeeze, SWAP_SIZE);
	unsigned int moved = 0, stuck = 0;
	long sharing = 0;
	pthread_t flipper, squeezer;
	pid_t pids[NR_RACERS];
	int status;

	race = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(race, MAP_FAILED);
	race->arena = reserve(2 * NR_THREADS * (WINDOW + 1));
	ASSERT_NE(race->arena, NULL);
	for (int t = 0; t < NR_THREADS; t++) {
		char *window = window_of(t, 0);

		ASSERT_EQ(map_fixed(window, WINDOW, -1, 0), window);
		/* Some memory with a common ancestor, some without. */
		if (t % 2)
			do_fill(window, 1);
	}
	for (int i = 0; i < NR_RACERS; i++) {
		pids[i] = fork();
		ASSERT_GE(pids[i], 0);
		if (!pids[i])
			racer_main(i);
	}
	ASSERT_EQ(pthread_create(&flipper, NULL, flip_fn, NULL), 0);
	if (no_swap)
		TH_LOG("without reclaim: %s", no_swap);
	else
		ASSERT_EQ(pthread_create(&squeezer, NULL, squeeze_fn, NULL), 0);

	limit = now_ns() + RACE_MAX_SECONDS * 1000000000ULL;
	while (stress_continues(&stress)) {
		int nodes[8], states[8];
		void *pages[8];

		if (was_a_race(moved, sharing) || now_ns() > limit)
			stress.min_rounds = 0;
		for (int i = 0; i < 8; i++) {
			pages[i] = any_page(&seed);
			nodes[i] = self->world.nodes[rnd(&seed) % 2];
		}
		if (move_pages_all(pids[rnd(&seed) % NR_RACERS], 8, pages,
				   nodes, states) < 0)
			continue;
		for (int i = 0; i < 8; i++)
			moved += states[i] == nodes[i];
		if (ksm_get("pages_sharing") > sharing)
			sharing = ksm_get("pages_sharing");
		usleep(rnd(&seed) % 1000);
	}
	__atomic_store_n(&race->stop, 1, __ATOMIC_SEQ_CST);
	pthread_join(flipper, NULL);
	if (!no_swap)
		pthread_join(squeezer, NULL);
	if (switch_saved[0])
		write_file(SWITCH, "Y");
	/* Racers that hang, or have died, do not get there. */
	limit = now_ns() + 100000000000ULL;
	while (__atomic_load_n(&race->idle, __ATOMIC_SEQ_CST) <
	       NR_RACERS * NR_THREADS && now_ns() < limit)
		usleep(1000);
	ASSERT_EQ(__atomic_load_n(&race->idle, __ATOMIC_SEQ_CST),
		  NR_RACERS * NR_THREADS);

	/*
	 * Now that all is quiet, and ksmd has seen everything once more, each
	 * page can be moved. (On stock 6.12 one may be stuck, see
	 * moved_to_other_anon_vma.)
	 */
	ASSERT_TRUE(ksm_scan(1));
	for (int i = 0; i < NR_RACERS * NR_THREADS * 2 * WINDOW; i++) {
		int k = i / NR_RACERS, nr = k / WINDOW;
		pid_t pid = pids[i % NR_RACERS];
		void *addr = window_of(nr / 2, nr % 2) + k % WINDOW * PAGE;
		int from = node_of(pid, addr);
		int to = self->world.nodes[from == self->world.nodes[0]];

		/* Nothing there, or in swap, or the zero page. */
		if (from < 0)
			continue;
		status = -EBUSY;
		for (int tries = 0; tries < 10 && status != to; tries++) {
			if (tries)
				usleep(10000);
			ASSERT_GE(move_pages_all(pid, 1, &addr, &to, &status),
				  0);
		}
		if (status != to && !stuck++)
			TH_LOG("%p of %d, page %lx: %s", addr, pid,
			       pfn_at(pid, addr), strerror(-status));
	}
	EXPECT_EQ(stuck, 0);

	__atomic_store_n(&race->stop, 2, __ATOMIC_SEQ_CST);
	for (int i = 0; i < NR_RACERS; i++)
		EXPECT_TRUE(exits_cleanly(pids[i]));
	EXPECT_EQ(race->spoiled, 0);
	EXPECT_EQ(race->broken, 0);
	EXPECT_TRUE(was_a_race(moved, sharing));
	TH_LOG("%u rounds, %u pages moved, %ld merged at a time", race->rounds,
	       moved, sharing);
}

TEST_HARNESS_MAIN
