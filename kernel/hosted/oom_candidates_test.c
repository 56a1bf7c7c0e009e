// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tests of the OOM killer's choice among tasks whose points are ranges.
 *
 * Usage: oom_candidates_test [NAME]...
 */
#include "oom_candidates.h"
#include "test.h"

#define NR_TASKS	2000

/**
 * struct fake - a task
 * @task: for the code under test
 * @lowest: minimum of its range
 * @highest: maximum of its range
 * @points: its exact points
 * @asked: how often they were determined
 */
struct fake {
	struct task_struct task;
	long lowest;
	long highest;
	long points;
	unsigned int asked;
};

static struct fake fakes[NR_TASKS];
static unsigned int nr_fakes;
static struct oom_candidates candidates;

static long fake_points(struct task_struct *task, void *arg)
{
	struct fake *fake = (struct fake *)task;

	CHECK(arg == &candidates);
	/* Only with a reference, and never in vain. */
	CHECK(task->usage);
	CHECK(fake->lowest != fake->highest);
	fake->asked++;

	return fake->points;
}

static void begin(void)
{
	memset(fakes, 0, sizeof(fakes));
	nr_fakes = 0;
	oom_candidates_init(&candidates, fake_points, &candidates);
}

static struct fake *add(long lowest, long points, long highest)
{
	struct fake *fake = &fakes[nr_fakes++];

	*fake = (struct fake){
		.lowest = lowest,
		.points = points,
		.highest = highest,
	};
	oom_candidates_add(&candidates, &fake->task, lowest, highest);

	return fake;
}

/* Only the winner is referenced, and no task was determined twice. */
static struct fake *choose(long *points)
{
	struct task_struct *chosen = oom_candidates_choose(&candidates, points);
	unsigned int asked = 0;

	CHECK(!chosen == (*points == LONG_MIN));
	for (unsigned int i = 0; i < nr_fakes; i++) {
		CHECK(fakes[i].task.usage == (&fakes[i].task == chosen));
		CHECK(fakes[i].asked <= 1);
		asked += fakes[i].asked;
	}
	CHECK(candidates.nr_tasks == nr_fakes);
	CHECK(candidates.nr_precise == asked);
	CHECK(!candidates.nr);

	return (struct fake *)chosen;
}

/* The exact winner, the later one of equals. */
static struct fake *exact_choice(void)
{
	struct fake *best = NULL;

	for (unsigned int i = 0; i < nr_fakes; i++) {
		if (!best || fakes[i].points >= best->points)
			best = &fakes[i];
	}

	return best;
}

static void choose_exactly(void)
{
	struct fake *best = exact_choice();
	long points;

	CHECK(choose(&points) == best);
	CHECK(points == best->points);
	CHECK(points >= candidates.best);
}

static void test_nobody(void)
{
	long points;

	begin();
	CHECK(!choose(&points));
	/* Nothing was eliminated by mistake: no other scan is needed. */
	CHECK(points >= candidates.best);
}

static void test_one(void)
{
	long points;

	begin();
	add(-7, -7, -7);
	choose_exactly();
	begin();
	add(-7, -5, -3);
	choose_exactly();
	CHECK(candidates.nr_precise == 1 && candidates.nr_ranged == 1);
	/* Both of it. */
	begin();
	add(LONG_MAX, LONG_MAX, LONG_MAX);
	add(1, 5, 9);
	CHECK(choose(&points) == &fakes[0]);
	CHECK(points == LONG_MAX && !candidates.nr_precise);
}

/* Exact ranges need no exact sums, and of equals the later wins. */
static void test_ties(void)
{
	begin();
	for (unsigned int i = 0; i < 3 * OOM_CANDIDATES; i++)
		add(5, 5, 5);
	choose_exactly();
	CHECK(!candidates.nr_precise && !candidates.nr_ranged);
	begin();
	for (unsigned int i = 0; i < 3 * OOM_CANDIDATES; i++)
		add(0, 5, 10);
	choose_exactly();
	CHECK(candidates.nr_precise == nr_fakes);
	begin();
	add(0, 5, 10);
	add(5, 5, 5);
	add(0, 5, 10);
	add(0, 4, 5);
	choose_exactly();
}

/* A task below another's lowest is not determined, in either order. */
static void test_ranges(void)
{
	begin();
	add(0, 5, 9);
	add(10, 15, 20);
	/* Out at once. */
	CHECK(!add(0, 5, 9)->task.usage);
	choose_exactly();
	CHECK(candidates.nr_precise == 1);
	CHECK(fakes[1].asked);
	begin();
	add(10, 15, 20);
	add(0, 5, 10);
	choose_exactly();
	CHECK(!fakes[1].asked);
	/* As high as the lowest is not below it. */
	begin();
	add(0, 10, 10);
	add(10, 10, 20);
	choose_exactly();
	CHECK(fakes[1].asked);
}

/* Rising sizes: each is the best so far, and few are kept. */
static void test_rising(void)
{
	begin();
	for (long i = 0; i < NR_TASKS; i++)
		add(10 * i, 10 * i + 5, 10 * i + 12);
	choose_exactly();
	CHECK(candidates.nr_precise == 2);
	begin();
	for (long i = NR_TASKS; i > 0; i--)
		add(10 * i, 10 * i + 5, 10 * i + 12);
	choose_exactly();
	CHECK(candidates.nr_precise <= 2);
}

/* More that can win than the list holds. */
static void test_full(void)
{
	uint64_t seed = 1;

	for (unsigned int round = 0; round < 20; round++) {
		begin();
		for (unsigned int i = 0; i < NR_TASKS; i++) {
			long points = rnd(&seed) % 1000;

			add(points - 1000, points, points + 1000);
		}
		choose_exactly();
		CHECK(candidates.nr_precise <= nr_fakes);
	}
}

static void test_random(void)
{
	uint64_t seed = 2;

	for (unsigned int round = 0; round < 2000; round++) {
		long spread = 1 + rnd(&seed) % 500;
		unsigned int nr = 1 + rnd(&seed) % 300;
		long width = 1 + rnd(&seed) % 100;

		begin();
		while (nr--) {
			long points = rnd(&seed) % spread - spread / 3;
			bool known = rnd(&seed) % 3 == 0;

			if (known)
				add(points, points, points);
			else
				add(points - rnd(&seed) % width, points,
				    points + rnd(&seed) % width);
		}
		choose_exactly();
	}
}

/* A task that exited does not win, and what it eliminated is scanned again. */
static void test_gone(void)
{
	long points;

	begin();
	add(0, 5, 9);
	add(10, LONG_MIN, 20);
	CHECK(!choose(&points));
	CHECK(points < candidates.best);
	begin();
	add(0, 5, 9);
	add(10, LONG_MIN, 20);
	add(5, 12, 14);
	CHECK(choose(&points) == &fakes[2]);
	CHECK(points == 12 && points >= candidates.best);
	/* It shrank below the maximum of a task that it eliminated. */
	begin();
	add(3, 5, 9);
	add(10, 4, 20);
	CHECK(!choose(&points));
	CHECK(points < candidates.best);
	/* The same in the middle, with a full list. */
	begin();
	for (unsigned int i = 0; i < OOM_CANDIDATES; i++)
		add(10, LONG_MIN, 20);
	add(5, 11, 20);
	CHECK(choose(&points) == &fakes[OOM_CANDIDATES]);
	CHECK(points == 11);
}

static void test_drop(void)
{
	begin();
	for (unsigned int i = 0; i < OOM_CANDIDATES + 5; i++)
		add(0, 5, 10);
	oom_candidates_drop(&candidates);
	for (unsigned int i = 0; i < nr_fakes; i++)
		CHECK(!fakes[i].task.usage);
	CHECK(!candidates.nr);
}

static const struct test tests[] = {
	{ "nobody", test_nobody },
	{ "one", test_one },
	{ "ties", test_ties },
	{ "ranges", test_ranges },
	{ "rising", test_rising },
	{ "full", test_full },
	{ "random", test_random },
	{ "gone", test_gone },
	{ "drop", test_drop },
};

int main(int argc, char **argv)
{
	return run_tests(tests, ARRAY_SIZE(tests), argc, argv);
}
