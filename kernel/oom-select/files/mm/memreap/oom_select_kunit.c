// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests for what the OOM killer compares: the sizes of real address spaces,
 * exact where they decide, with few exact sums. That it chooses by them is tested
 * by the selftest oom_select.
 */
#include <kunit/test.h>

#include <linux/kprobes.h>
#include <linux/memreap_oom.h>
#include <linux/mm.h>
#include <linux/mm_rss.h>
#include <linux/oom.h>
#include <linux/prandom.h>
#include <linux/sched/mm.h>

#define NR_TASKS	40

/**
 * struct contest - address spaces of tasks that are compared
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

/* The exact points of task @i. */
static long points_of(struct contest *c, int i)
{
	long points = c->points[i];

	for (int k = 0; k < NR_MM_COUNTERS; k++)
		points += mm_counter_sum(c->mm[i], k);

	return points;
}

/* Those that task @i is compared by, where the best one so far has @best. */
static long compared_by(struct contest *c, struct oom_control *oc, int i,
			long best)
{
	long points;

	oc->chosen_points = best;
	mutex_lock(&oom_lock);
	points = c->points[i] + memreap_oom_pages(c->mm[i], c->points[i], oc);
	mutex_unlock(&oom_lock);

	return points;
}

/* Who can win is compared by exact points, whoever cannot does not win. */
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
		for (int i = 0; i < NR_TASKS; i++) {
			long exact = points_of(c, i), less;
			struct mm_struct *mm = c->mm[i];

			less = exact - prandom_u32_state(&c->rnd) % 500;
			KUNIT_EXPECT_EQ(test, compared_by(c, &oc, i, exact), exact);
			KUNIT_EXPECT_EQ(test, compared_by(c, &oc, i, less), exact);
			KUNIT_EXPECT_LE(test, compared_by(c, &oc, i, exact + 1),
					exact);
			less = prandom_u32_state(&c->rnd) % 500;
			KUNIT_EXPECT_LE(test, compared_by(c, &oc, i, exact + less + 1),
					exact + less);
			/* For /proc/PID/oom_score. */
			KUNIT_EXPECT_EQ(test, memreap_oom_pages(mm, 0, NULL),
					exact - c->points[i]);
		}
	}
}

/* Nobody without threads, and of the others those that may win. */
static void oom_select_sums_up_few(struct kunit *test)
{
	struct contest *c = test->priv;
	struct oom_control oc = {};

	KUNIT_ASSERT_NOT_NULL(test, c->mm[NR_TASKS - 1]);
	stir(c, 0, 1, 30);
	for (int i = 0; i < NR_TASKS; i++)
		compared_by(c, &oc, i, points_of(c, i) + 100000);
	KUNIT_EXPECT_EQ(test, oc.nr_summed, 0);
	KUNIT_EXPECT_EQ(test, oc.nr_compared, NR_TASKS);
	for (int i = 0; i < NR_TASKS; i++)
		compared_by(c, &oc, i, points_of(c, i) - 100000);
	KUNIT_EXPECT_EQ(test, oc.nr_summed, NR_TASKS / 2);
	KUNIT_EXPECT_EQ(test, oc.nr_compared, 2 * NR_TASKS);
}

static struct task_struct *touching;
static unsigned int nr_touched;

static int touched(struct kprobe *p, struct pt_regs *regs)
{
	if (current == touching)
		nr_touched++;

	return 0;
}

/* So that a choice among very many tasks is not taken for a soft lockup. */
static void oom_select_touches_the_watchdog(struct kunit *test)
{
	struct kprobe probe = {
		.symbol_name = "touch_softlockup_watchdog",
		.pre_handler = touched,
	};
	struct contest *c = test->priv;
	struct oom_control oc = {};

	if (!IS_ENABLED(CONFIG_KPROBES) || !IS_ENABLED(CONFIG_SOFTLOCKUP_DETECTOR))
		kunit_skip(test, "needs KPROBES and SOFTLOCKUP_DETECTOR");
	KUNIT_ASSERT_NOT_NULL(test, c->mm[0]);
	touching = current;
	nr_touched = 0;
	KUNIT_ASSERT_EQ(test, register_kprobe(&probe), 0);
	for (int i = 0; i < 4096; i++)
		compared_by(c, &oc, 0, 0);
	unregister_kprobe(&probe);
	KUNIT_EXPECT_EQ(test, nr_touched, 4);
}

static struct kunit_case oom_select_cases[] = {
	KUNIT_CASE_SLOW(oom_select_is_exact),
	KUNIT_CASE(oom_select_sums_up_few),
	KUNIT_CASE(oom_select_touches_the_watchdog),
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
