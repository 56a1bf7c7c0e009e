// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests for the OOM killer's choice: that it is the same as by an exact
 * comparison, and that the ranges are valid for a real process.
 */
#include <kunit/test.h>

#include <linux/mm.h>
#include <linux/memreap_oom.h>
#include <linux/prandom.h>
#include <linux/refcount.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "oom_candidates.h"

#define NR_TASKS	300

/**
 * struct choice - a choice among artificial tasks
 * @candidates: under test
 * @task: the tasks; only their reference counts are used
 * @lowest: of the same index
 * @highest: of the same index
 * @points: of the same index
 * @nr: how many there are
 */
struct choice {
	struct oom_candidates candidates;
	struct task_struct *task[NR_TASKS];
	long lowest[NR_TASKS];
	long highest[NR_TASKS];
	long points[NR_TASKS];
	unsigned int nr;
};

static long made_up_points(struct task_struct *task, void *arg)
{
	struct choice *choice = arg;

	for (unsigned int i = 0; i < choice->nr; i++) {
		if (choice->task[i] == task)
			return choice->points[i];
	}

	return LONG_MIN;
}

static int oom_select_test_init(struct kunit *test)
{
	struct choice *choice;

	choice = kunit_kzalloc(test, sizeof(*choice), GFP_KERNEL);
	if (!choice)
		return -ENOMEM;
	for (unsigned int i = 0; i < NR_TASKS; i++) {
		choice->task[i] = kunit_kzalloc(test, sizeof(**choice->task),
						GFP_KERNEL);
		if (!choice->task[i])
			return -ENOMEM;
		refcount_set(&choice->task[i]->usage, 1);
	}
	test->priv = choice;

	return 0;
}

static struct choice *begin(struct kunit *test)
{
	struct choice *choice = test->priv;

	choice->nr = 0;
	oom_candidates_init(&choice->candidates, made_up_points, choice);

	return choice;
}

static void add(struct choice *choice, long lowest, long points, long highest)
{
	unsigned int i = choice->nr++;

	choice->lowest[i] = lowest;
	choice->points[i] = points;
	choice->highest[i] = highest;
	oom_candidates_add(&choice->candidates, choice->task[i], lowest,
			   highest);
}

/* Returns the winner's index, -1 if there is none; checks the references. */
static int choose(struct kunit *test, long *points)
{
	struct choice *choice = test->priv;
	struct task_struct *chosen;
	int winner = -1;

	chosen = oom_candidates_choose(&choice->candidates, points);
	for (unsigned int i = 0; i < choice->nr; i++) {
		if (choice->task[i] == chosen) {
			put_task_struct(chosen);
			winner = i;
		}
		KUNIT_ASSERT_EQ(test,
				refcount_read(&choice->task[i]->usage), 1);
	}
	KUNIT_ASSERT_EQ(test, winner < 0, !chosen);

	return winner;
}

static void choose_exactly(struct kunit *test)
{
	struct choice *choice = test->priv;
	int best = -1;
	long points;

	for (unsigned int i = 0; i < choice->nr; i++) {
		if (best < 0 || choice->points[i] >= choice->points[best])
			best = i;
	}
	KUNIT_EXPECT_EQ(test, choose(test, &points), best);
	KUNIT_EXPECT_EQ(test, points, choice->points[best]);
	KUNIT_EXPECT_GE(test, points, choice->candidates.best);
}

static void oom_select_random(struct kunit *test)
{
	struct rnd_state rnd;

	prandom_seed_state(&rnd, 5);
	for (unsigned int round = 0; round < 200; round++) {
		u32 spread = 1 + prandom_u32_state(&rnd) % 500;
		u32 width = 1 + prandom_u32_state(&rnd) % 100;
		u32 nr = 1 + prandom_u32_state(&rnd) % NR_TASKS;
		struct choice *choice = begin(test);

		while (nr--) {
			long points = prandom_u32_state(&rnd) % spread;
			long below = prandom_u32_state(&rnd) % width;
			long above = prandom_u32_state(&rnd) % width;

			if (prandom_u32_state(&rnd) % 3)
				add(choice, points - below, points,
				    points + above);
			else
				add(choice, points, points, points);
		}
		choose_exactly(test);
	}
}

/* All of one size, more than the list holds: each is determined once. */
static void oom_select_equal(struct kunit *test)
{
	struct choice *choice = begin(test);

	for (unsigned int i = 0; i < NR_TASKS; i++)
		add(choice, 0, 100, 200);
	choose_exactly(test);
	KUNIT_EXPECT_EQ(test, choice->candidates.nr_precise, NR_TASKS);

	/* Exact ones are not. */
	choice = begin(test);
	for (unsigned int i = 0; i < NR_TASKS; i++)
		add(choice, 100, 100, 100);
	choose_exactly(test);
	KUNIT_EXPECT_EQ(test, choice->candidates.nr_precise, 0);
}

/* Far apart: only those that overlap with the largest are determined. */
static void oom_select_few(struct kunit *test)
{
	struct choice *choice = begin(test);

	for (long i = 0; i < NR_TASKS; i++)
		add(choice, 100 * i - 60, 100 * i, 100 * i + 60);
	choose_exactly(test);
	KUNIT_EXPECT_EQ(test, choice->candidates.nr_precise, 2);
	KUNIT_EXPECT_EQ(test, choice->candidates.nr_ranged, NR_TASKS);
}

/* A task that exited does not win, and what it eliminated is scanned again. */
static void oom_select_gone(struct kunit *test)
{
	struct choice *choice = begin(test);
	long points;

	add(choice, 0, 5, 9);
	add(choice, 10, LONG_MIN, 20);
	KUNIT_EXPECT_EQ(test, choose(test, &points), -1);
	KUNIT_EXPECT_LT(test, points, choice->candidates.best);

	choice = begin(test);
	add(choice, 0, 5, 9);
	add(choice, 10, LONG_MIN, 20);
	add(choice, 5, 12, 14);
	KUNIT_EXPECT_EQ(test, choose(test, &points), 2);
	KUNIT_EXPECT_GE(test, points, choice->candidates.best);
}

/* An address space's sum is within its range, spread or not. */
static void oom_select_range(struct kunit *test)
{
	struct mm_struct *mm = mm_alloc();
	long lowest, highest, sum;
	struct rnd_state rnd;
	int ret = 0;

	KUNIT_ASSERT_NOT_NULL(test, mm);
	prandom_seed_state(&rnd, 7);
	for (unsigned int i = 0; i < 2000; i++) {
		if (i == 1000)
			ret = percpu_counter_tree_spread_many(mm->rss_stat,
							      NR_MM_COUNTERS,
							      GFP_KERNEL);
		KUNIT_ASSERT_EQ(test, ret, 0);
		add_mm_counter(mm, i % NR_MM_COUNTERS,
			       prandom_u32_state(&rnd) % 50);
		sum = oom_mm_rss(mm) + oom_mm_counter(mm, MM_SWAPENTS);
		oom_mm_range(mm, &lowest, &highest);
		KUNIT_ASSERT_LE(test, lowest, sum);
		KUNIT_ASSERT_GE(test, highest, sum);
		if (i < 1000)
			KUNIT_ASSERT_EQ(test, lowest, highest);
	}
	/* Otherwise the test proves nothing. */
	KUNIT_EXPECT_LT(test, lowest, highest);
	for (int i = 0; i < NR_MM_COUNTERS; i++)
		add_mm_counter(mm, i, -(long)get_mm_counter_sum(mm, i));
	mmput(mm);
}

static struct kunit_case oom_select_cases[] = {
	KUNIT_CASE(oom_select_random),
	KUNIT_CASE(oom_select_equal),
	KUNIT_CASE(oom_select_few),
	KUNIT_CASE(oom_select_gone),
	KUNIT_CASE(oom_select_range),
	{}
};

static struct kunit_suite oom_select_suite = {
	.name = "memreap_oom_select",
	.init = oom_select_test_init,
	.test_cases = oom_select_cases,
};

kunit_test_suite(oom_select_suite);

MODULE_DESCRIPTION("KUnit tests for the OOM killer's choice");
MODULE_LICENSE("GPL");
