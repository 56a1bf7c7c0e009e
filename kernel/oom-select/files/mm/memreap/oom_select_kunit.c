// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests for the OOM killer's choice: among real address spaces it is the
 * same as by an exact comparison, and takes few exact sums.
 */
#include <kunit/test.h>

#include <linux/memreap_oom.h>
#include <linux/mm.h>
#include <linux/mm_rss.h>
#include <linux/oom.h>
#include <linux/prandom.h>
#include <linux/sched/mm.h>

#define NR_TASKS	40

/**
 * struct contest - address spaces of which one is to be chosen
 * @mm: their counters are set; they have no pages
 * @points: for other things
 * @rnd: random numbers
 */
struct contest {
	struct mm_struct *mm[NR_TASKS];
	long points[NR_TASKS];
	struct rnd_state rnd;
};

/* Sets a counter, and leaves nothing for the check when the mm is freed. */
static void set_pages(struct mm_struct *mm, int member, long pages)
{
	add_mm_counter(mm, member, pages - mm_counter_sum(mm, member));
}

static void contest_end(void *arg)
{
	struct contest *c = arg;

	for (int i = 0; i < NR_TASKS && c->mm[i]; i++) {
		for (int k = 0; k < NR_MM_COUNTERS; k++)
			set_pages(c->mm[i], k, 0);
		mmput(c->mm[i]);
	}
}

static int oom_select_test_init(struct kunit *test)
{
	struct contest *c = kunit_kzalloc(test, sizeof(*c), GFP_KERNEL);

	if (!c)
		return -ENOMEM;
	test->priv = c;
	prandom_seed_state(&c->rnd, 5);
	for (int i = 0; i < NR_TASKS; i++) {
		c->mm[i] = mm_alloc();
		if (!c->mm[i])
			break;
		/* Every other one has had threads. */
		if (i % 2)
			mm_rss_spread(c->mm[i]);
	}

	return kunit_add_action_or_reset(test, contest_end, c);
}

/* Moves pages from and to cells, on all CPUs. */
static void stir(struct contest *c, unsigned int cpu, long base, u32 spread)
{
	set_cpus_allowed_ptr(current, cpumask_of(cpu));
	for (int i = 0; i < NR_TASKS; i++) {
		c->points[i] = prandom_u32_state(&c->rnd) % 8;
		for (int k = 0; k < NR_MM_COUNTERS; k++) {
			long pages = base + prandom_u32_state(&c->rnd) % spread;

			set_pages(c->mm[i], k, pages);
		}
	}
}

/* As select_bad_process(). */
static int choose(struct contest *c, struct oom_control *oc)
{
	int chosen = -1;

	oc->chosen_points = LONG_MIN;
	oc->nr_compared = 0;
	oc->nr_summed = 0;
	mutex_lock(&oom_lock);
	for (int i = 0; i < NR_TASKS; i++) {
		long points = c->points[i];

		points += memreap_oom_pages(c->mm[i], points, oc);
		if (points < oc->chosen_points)
			continue;
		oc->chosen_points = points;
		chosen = i;
	}
	mutex_unlock(&oom_lock);

	return chosen;
}

/* Of several with the most points, the last one. */
static int choose_exactly(struct contest *c, long *most)
{
	int chosen = -1;

	for (int i = 0; i < NR_TASKS; i++) {
		long points = c->points[i];

		for (int k = 0; k < NR_MM_COUNTERS; k++)
			points += mm_counter_sum(c->mm[i], k);
		if (chosen >= 0 && points < *most)
			continue;
		*most = points;
		chosen = i;
	}

	return chosen;
}

static void expect_the_same(struct kunit *test, struct oom_control *oc)
{
	struct contest *c = test->priv;
	long points;
	int chosen;

	chosen = choose_exactly(c, &points);
	KUNIT_EXPECT_EQ(test, choose(c, oc), chosen);
	KUNIT_EXPECT_EQ(test, oc->chosen_points, points);
	KUNIT_EXPECT_EQ(test, oc->nr_compared, NR_TASKS);
}

static void oom_select_is_exact(struct kunit *test)
{
	struct contest *c = test->priv;
	struct oom_control oc = {};

	KUNIT_ASSERT_NOT_NULL(test, c->mm[NR_TASKS - 1]);
	for (unsigned int round = 0; round < 200; round++) {
		u32 spread = 1 + prandom_u32_state(&c->rnd) % 60;
		unsigned int cpu;

		for_each_online_cpu(cpu)
			stir(c, cpu, 100, spread);
		expect_the_same(test, &oc);
		/* Others are known exactly. */
		KUNIT_EXPECT_LE(test, oc.nr_summed, NR_TASKS / 2);
		KUNIT_EXPECT_GT(test, oc.nr_summed, 0);
	}
}

/* Sizes that are far apart, ascending and descending. */
static void oom_select_sums_up_few(struct kunit *test)
{
	struct contest *c = test->priv;
	struct oom_control oc = {};

	KUNIT_ASSERT_NOT_NULL(test, c->mm[NR_TASKS - 1]);
	stir(c, 0, 1, 30);
	for (int i = 0; i < NR_TASKS; i++)
		set_pages(c->mm[i], MM_ANONPAGES, 100000L * (NR_TASKS - i));
	expect_the_same(test, &oc);
	KUNIT_EXPECT_EQ(test, oc.nr_summed, 0);
	for (int i = 0; i < NR_TASKS; i++)
		set_pages(c->mm[i], MM_ANONPAGES, 100000L * i);
	expect_the_same(test, &oc);
	KUNIT_EXPECT_EQ(test, oc.nr_summed, NR_TASKS / 2);
}

static struct kunit_case oom_select_cases[] = {
	KUNIT_CASE_SLOW(oom_select_is_exact),
	KUNIT_CASE(oom_select_sums_up_few),
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
