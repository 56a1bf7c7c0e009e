// SPDX-License-Identifier: GPL-2.0-only
/*
 * Who may exceed limits, for what, and by how much.
 */
#include <kunit/test.h>
#include <linux/gfp.h>
#include <linux/memcontrol.h>
#include <linux/page_counter.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sizes.h>

#include "memcg_exit.h"

#define LIMIT	1600UL
#define RESERVE	200UL

/* Counters of memory, one below the other, and one of memory and swap. */
struct counters {
	struct page_counter top, middle, leaf, memsw;
};

static struct counters *counters(struct kunit *test)
{
	struct counters *c = kunit_kzalloc(test, sizeof(*c), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, c);
	page_counter_init(&c->top, NULL, false);
	page_counter_init(&c->middle, &c->top, false);
	page_counter_init(&c->leaf, &c->middle, false);
	page_counter_init(&c->memsw, NULL, false);

	return c;
}

static bool has_reserve(struct page_counter *memory)
{
	return memreap_memcg_has_reserve(memory, NULL);
}

static void memcg_exit_one_limit(struct kunit *test)
{
	struct counters *c = counters(test);

	c->leaf.max = LIMIT;
	page_counter_charge(&c->leaf, LIMIT + RESERVE - 1);
	KUNIT_EXPECT_TRUE(test, has_reserve(&c->leaf));

	page_counter_charge(&c->leaf, 1);
	KUNIT_EXPECT_FALSE(test, has_reserve(&c->leaf));
}

static void memcg_exit_limits_above(struct kunit *test)
{
	struct counters *c = counters(test);

	c->leaf.max = LIMIT;
	c->top.max = 2 * LIMIT;
	page_counter_charge(&c->leaf, LIMIT);
	page_counter_charge(&c->middle, LIMIT + 2 * RESERVE - 1);
	KUNIT_EXPECT_TRUE(test, has_reserve(&c->leaf));
	page_counter_charge(&c->middle, 1);
	KUNIT_EXPECT_FALSE(test, has_reserve(&c->leaf));
	KUNIT_EXPECT_FALSE(test, has_reserve(&c->middle));
}

/* However large a limit is, it is exceeded by 64 MiB at most. */
static void memcg_exit_large_limit(struct kunit *test)
{
	const unsigned long reserve = SZ_64M / PAGE_SIZE;
	struct counters *c = counters(test);

	c->leaf.max = 32 * reserve;
	page_counter_charge(&c->leaf, 33 * reserve - 1);
	KUNIT_EXPECT_TRUE(test, has_reserve(&c->leaf));
	page_counter_charge(&c->leaf, 1);
	KUNIT_EXPECT_FALSE(test, has_reserve(&c->leaf));
}

static void memcg_exit_no_limit(struct kunit *test)
{
	struct counters *c = counters(test);

	page_counter_charge(&c->leaf, LIMIT);
	KUNIT_EXPECT_TRUE(test, has_reserve(&c->leaf));
}

/* Nothing may be exceeded by a part of nothing. */
static void memcg_exit_limit_zero(struct kunit *test)
{
	struct counters *c = counters(test);

	c->leaf.max = 0;
	KUNIT_EXPECT_FALSE(test, has_reserve(&c->leaf));
}

/* In cgroup v1, the limit of both is larger, and may be the one without room. */
static void memcg_exit_memory_and_swap(struct kunit *test)
{
	struct counters *c = counters(test);

	c->leaf.max = LIMIT;
	c->memsw.max = 5 * LIMIT;
	page_counter_charge(&c->leaf, LIMIT + RESERVE - 1);
	page_counter_charge(&c->memsw, 5 * (LIMIT + RESERVE) - 1);
	KUNIT_EXPECT_TRUE(test, memreap_memcg_has_reserve(&c->leaf, &c->memsw));

	page_counter_charge(&c->leaf, 1);
	KUNIT_EXPECT_FALSE(test, memreap_memcg_has_reserve(&c->leaf, &c->memsw));

	page_counter_uncharge(&c->leaf, LIMIT);
	KUNIT_EXPECT_TRUE(test, memreap_memcg_has_reserve(&c->leaf, &c->memsw));
	page_counter_charge(&c->memsw, 1);
	KUNIT_EXPECT_FALSE(test, memreap_memcg_has_reserve(&c->leaf, &c->memsw));
}

/* Asks as a thread with these flags. Nobody looks at them meanwhile. */
static bool may_exceed(unsigned int exiting, struct mm_struct *victim,
		       gfp_t gfp, unsigned int nr_pages)
{
	bool may;

	preempt_disable();
	current->flags |= exiting;
	current->signal->oom_mm = victim;
	may = memcg_exit_may_exceed(root_mem_cgroup, gfp, nr_pages);
	current->signal->oom_mm = NULL;
	current->flags &= ~exiting;
	preempt_enable();

	return may;
}

/* A thread that is exiting, of a process for which the OOM killer waits. */
static void memcg_exit_who(struct kunit *test)
{
	if (mem_cgroup_disabled())
		kunit_skip(test, "cgroup_disable=memory");
	for (int i = 0; i < 4; i++) {
		unsigned int exiting = i & 1 ? PF_EXITING : 0;
		struct mm_struct *victim = i & 2 ? &init_mm : NULL;

		KUNIT_EXPECT_EQ(test, may_exceed(exiting, victim, GFP_KERNEL, 1),
				exiting && victim);
	}
}

/* A page that is needed: not several, and none that it can do without. */
static void memcg_exit_what(struct kunit *test)
{
	static const struct {
		gfp_t gfp;
		unsigned int nr_pages;
		bool may;
	} charges[] = {
		{ GFP_KERNEL, 1, true },
		{ GFP_HIGHUSER_MOVABLE, 1, true },
		{ GFP_KERNEL, 2, false },
		{ GFP_TRANSHUGE, 512, false },
		{ GFP_KERNEL | __GFP_NORETRY, 1, false },
		{ GFP_KERNEL | __GFP_RETRY_MAYFAIL, 1, false },
	};

	if (mem_cgroup_disabled())
		kunit_skip(test, "cgroup_disable=memory");
	for (int i = 0; i < ARRAY_SIZE(charges); i++)
		KUNIT_EXPECT_EQ_MSG(test, may_exceed(PF_EXITING, &init_mm,
						     charges[i].gfp,
						     charges[i].nr_pages),
				    charges[i].may, "%pGg, %u pages",
				    &charges[i].gfp, charges[i].nr_pages);
}

static struct kunit_case memcg_exit_cases[] = {
	KUNIT_CASE(memcg_exit_who),
	KUNIT_CASE(memcg_exit_what),
	KUNIT_CASE(memcg_exit_one_limit),
	KUNIT_CASE(memcg_exit_limits_above),
	KUNIT_CASE(memcg_exit_large_limit),
	KUNIT_CASE(memcg_exit_no_limit),
	KUNIT_CASE(memcg_exit_limit_zero),
	KUNIT_CASE(memcg_exit_memory_and_swap),
	{}
};

static struct kunit_suite memcg_exit_suite = {
	.name = "memreap_memcg_exit",
	.test_cases = memcg_exit_cases,
};

kunit_test_suite(memcg_exit_suite);

MODULE_DESCRIPTION("KUnit tests for charges of dying processes");
MODULE_LICENSE("GPL");
