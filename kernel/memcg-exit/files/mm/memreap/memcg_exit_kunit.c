// SPDX-License-Identifier: GPL-2.0-only
/*
 * Who may exceed limits, and by how much.
 */
#include <kunit/test.h>
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

static bool has_reserve(struct page_counter *memory, unsigned long nr_pages)
{
	return memreap_memcg_has_reserve(memory, NULL, nr_pages);
}

static void memcg_exit_one_limit(struct kunit *test)
{
	struct counters *c = counters(test);

	c->leaf.max = LIMIT;
	page_counter_charge(&c->leaf, LIMIT);
	KUNIT_EXPECT_TRUE(test, has_reserve(&c->leaf, RESERVE));
	KUNIT_EXPECT_FALSE(test, has_reserve(&c->leaf, RESERVE + 1));

	page_counter_charge(&c->leaf, RESERVE);
	KUNIT_EXPECT_FALSE(test, has_reserve(&c->leaf, 1));
}

static void memcg_exit_limits_above(struct kunit *test)
{
	struct counters *c = counters(test);

	c->leaf.max = LIMIT;
	c->top.max = 2 * LIMIT;
	page_counter_charge(&c->leaf, LIMIT);
	page_counter_charge(&c->middle, LIMIT + 2 * RESERVE - 1);
	KUNIT_EXPECT_TRUE(test, has_reserve(&c->leaf, 1));
	KUNIT_EXPECT_FALSE(test, has_reserve(&c->leaf, 2));
	KUNIT_EXPECT_FALSE(test, has_reserve(&c->middle, 2));
}

/* However large a limit is, it is exceeded by 64 MiB at most. */
static void memcg_exit_large_limit(struct kunit *test)
{
	const unsigned long reserve = SZ_64M / PAGE_SIZE;
	struct counters *c = counters(test);

	c->leaf.max = 32 * reserve;
	page_counter_charge(&c->leaf, 32 * reserve);
	KUNIT_EXPECT_TRUE(test, has_reserve(&c->leaf, reserve));
	KUNIT_EXPECT_FALSE(test, has_reserve(&c->leaf, reserve + 1));
}

static void memcg_exit_no_limit(struct kunit *test)
{
	struct counters *c = counters(test);

	page_counter_charge(&c->leaf, LIMIT);
	KUNIT_EXPECT_TRUE(test, has_reserve(&c->leaf, LIMIT));
}

/* Nothing may be exceeded by a part of nothing. */
static void memcg_exit_limit_zero(struct kunit *test)
{
	struct counters *c = counters(test);

	c->leaf.max = 0;
	KUNIT_EXPECT_FALSE(test, has_reserve(&c->leaf, 1));
}

/* In cgroup v1, the limit of both is larger, and may be the one without room. */
static void memcg_exit_memory_and_swap(struct kunit *test)
{
	struct counters *c = counters(test);

	c->leaf.max = LIMIT;
	c->memsw.max = 5 * LIMIT;
	page_counter_charge(&c->leaf, LIMIT);
	page_counter_charge(&c->memsw, 5 * LIMIT);
	KUNIT_EXPECT_TRUE(test, memreap_memcg_has_reserve(&c->leaf, &c->memsw,
							  RESERVE));
	KUNIT_EXPECT_FALSE(test, memreap_memcg_has_reserve(&c->leaf, &c->memsw,
							   RESERVE + 1));

	page_counter_uncharge(&c->leaf, LIMIT);
	KUNIT_EXPECT_TRUE(test, memreap_memcg_has_reserve(&c->leaf, &c->memsw,
							  5 * RESERVE));
	KUNIT_EXPECT_FALSE(test, memreap_memcg_has_reserve(&c->leaf, &c->memsw,
							   5 * RESERVE + 1));
}

/*
 * A thread that is exiting, of a process that dies as a whole. Nobody looks at
 * the flags meanwhile.
 */
static void memcg_exit_who(struct kunit *test)
{
	for (int i = 0; i < 4; i++) {
		unsigned int exiting = i & 1 ? PF_EXITING : 0;
		unsigned int dies = i & 2 ? SIGNAL_GROUP_EXIT : 0;
		bool may;

		preempt_disable();
		current->flags |= exiting;
		current->signal->flags |= dies;
		may = memcg_exit_may_exceed(root_mem_cgroup, 1);
		current->signal->flags &= ~dies;
		current->flags &= ~exiting;
		preempt_enable();
		KUNIT_EXPECT_EQ(test, may, exiting && dies);
	}
}

static struct kunit_case memcg_exit_cases[] = {
	KUNIT_CASE(memcg_exit_who),
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
