// SPDX-License-Identifier: GPL-2.0-only
/* KUnit tests for the ring of swap slots that wait, and how shadows are removed. */
#include <kunit/test.h>

#include <linux/prandom.h>
#include <linux/xarray.h>

#include "swap_ring.h"

#define RING_SIZE	40

/* The owners are only compared. */
static struct cgroup *owner_nr(unsigned int nr)
{
	return (struct cgroup *)(uintptr_t)nr;
}

static struct swap_ring new_ring(struct kunit *test)
{
	struct swap_ring ring = { .size = RING_SIZE };

	ring.entries = kunit_kcalloc(test, RING_SIZE, sizeof(*ring.entries),
				     GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, ring.entries);

	return ring;
}

static void add(struct kunit *test, struct swap_ring *ring, unsigned int type,
		unsigned int offset, unsigned int nr, unsigned int owner)
{
	struct swap_run run = { .offset = offset, .nr = nr, .type = type };

	KUNIT_ASSERT_TRUE(test, swap_ring_add(ring, &run, 1, owner_nr(owner)));
}

/* The next batch must consist of @nr runs, the first one at @offset. */
static void take(struct kunit *test, struct swap_ring *ring, unsigned int nr,
		 unsigned int offset, unsigned int owner)
{
	struct swap_batch batch;
	struct cgroup *from;

	swap_ring_take(ring, &batch, &from);
	KUNIT_EXPECT_EQ(test, batch.nr, nr);
	KUNIT_EXPECT_PTR_EQ(test, from, owner_nr(owner));
	if (nr)
		KUNIT_EXPECT_EQ(test, batch.runs[0].offset, offset);
}

static void swap_defer_test_order(struct kunit *test)
{
	struct swap_ring ring = new_ring(test);

	take(test, &ring, 0, 0, 0);
	add(test, &ring, 0, 100, 1, 1);
	add(test, &ring, 0, 50, 2, 1);
	/* Another owner, another device, no owner. */
	add(test, &ring, 0, 60, 3, 2);
	add(test, &ring, 1, 70, 4, 2);
	add(test, &ring, 1, 80, 5, 0);
	take(test, &ring, 2, 100, 1);
	take(test, &ring, 1, 60, 2);
	take(test, &ring, 1, 70, 2);
	take(test, &ring, 1, 80, 0);
	take(test, &ring, 0, 0, 0);
}

static void swap_defer_test_size(struct kunit *test)
{
	struct swap_ring ring = new_ring(test);

	for (unsigned int i = 0; i < RING_SIZE; i++)
		add(test, &ring, 0, i, 1, 1);
	take(test, &ring, SWAP_BATCH_RUNS, 0, 1);
	take(test, &ring, RING_SIZE - SWAP_BATCH_RUNS, SWAP_BATCH_RUNS, 1);

	/* By slots. */
	for (unsigned int i = 0; i < 4; i++)
		add(test, &ring, 0, i, SWAP_BATCH_PAGES / 2, 1);
	add(test, &ring, 0, 4, 1, 1);
	add(test, &ring, 0, 5, SWAP_BATCH_PAGES, 1);
	take(test, &ring, 2, 0, 1);
	take(test, &ring, 2, 2, 1);
	take(test, &ring, 1, 4, 1);
	take(test, &ring, 1, 5, 1);
}

static void swap_defer_test_full(struct kunit *test)
{
	struct swap_run runs[RING_SIZE + 1] = {};
	struct swap_ring ring = new_ring(test);

	KUNIT_EXPECT_FALSE(test, swap_ring_add(&ring, runs, RING_SIZE + 1, NULL));
	KUNIT_EXPECT_EQ(test, ring.nr, 0);
	add(test, &ring, 0, 7, 1, 1);
	KUNIT_EXPECT_FALSE(test, swap_ring_add(&ring, runs, RING_SIZE, NULL));
	KUNIT_EXPECT_TRUE(test, swap_ring_add(&ring, runs, RING_SIZE - 1, NULL));
	KUNIT_EXPECT_FALSE(test, swap_ring_add(&ring, runs, 1, NULL));
	take(test, &ring, 1, 7, 1);
	KUNIT_EXPECT_TRUE(test, swap_ring_add(&ring, runs, 1, NULL));
	KUNIT_EXPECT_EQ(test, ring.nr, RING_SIZE);

	/* Of size 0, as where there was no memory for it. */
	ring = (struct swap_ring){};
	KUNIT_EXPECT_FALSE(test, swap_ring_add(&ring, runs, 1, NULL));
	take(test, &ring, 0, 0, 0);
}

/* Whatever comes and goes, all slots come out once, in their order. */
static void swap_defer_test_random(struct kunit *test)
{
	unsigned int in = 0, out = 0, wraps = 0;
	struct swap_ring ring = new_ring(test);
	struct rnd_state rnd;

	prandom_seed_state(&rnd, 1);
	for (int i = 0; i < 20000; i++) {
		unsigned int nr = prandom_u32_state(&rnd) % 6;
		struct swap_run runs[6];
		struct swap_batch batch;
		struct cgroup *owner;

		for (unsigned int k = 0; k < nr; k++)
			runs[k] = (struct swap_run){
				.offset = in + k, .nr = 1 + i % 40
			};
		if (swap_ring_add(&ring, runs, nr, owner_nr(1 + i % 3)))
			in += nr;
		KUNIT_ASSERT_LE(test, ring.nr, RING_SIZE);
		if (prandom_u32_state(&rnd) % 3)
			continue;
		swap_ring_take(&ring, &batch, &owner);
		KUNIT_ASSERT_TRUE(test, batch.nr || out == in);
		for (unsigned int k = 0; k < batch.nr; k++)
			KUNIT_ASSERT_EQ(test, batch.runs[k].offset, out++);
		wraps += ring.nr && ring.first + ring.nr > RING_SIZE;
	}
	KUNIT_EXPECT_EQ(test, in - out, ring.nr);
	KUNIT_EXPECT_GT(test, wraps, 0);
}

#define NR_SHADOWS	300

/* Whatever part of the nodes a range is, its shadows go, and no others. */
static void swap_defer_test_shadows(struct kunit *test)
{
	struct rnd_state rnd;
	struct xarray xa;

	xa_init(&xa);
	prandom_seed_state(&rnd, 2);
	for (unsigned int i = 0; i < 50; i++) {
		unsigned long first = prandom_u32_state(&rnd) % NR_SHADOWS;
		unsigned long last = first + prandom_u32_state(&rnd) %
					     (NR_SHADOWS - first);
		XA_STATE(xas, &xa, first);

		for (unsigned long k = 0; k < NR_SHADOWS; k++)
			KUNIT_ASSERT_FALSE(test, xa_is_err(xa_store(&xa, k,
								    xa_mk_value(k), GFP_KERNEL)));
		xas_lock(&xas);
		swap_clear_nodes(&xas, last);
		xas_unlock(&xas);
		for (unsigned long k = 0; k < NR_SHADOWS; k++)
			KUNIT_ASSERT_EQ(test, !xa_load(&xa, k),
					k >= first && k <= last);
		/* The stock code goes on behind it, and finds nothing. */
		KUNIT_EXPECT_EQ(test, xas.xa_index, last + 1);
	}
	xa_destroy(&xa);
}

static struct kunit_case swap_defer_test_cases[] = {
	KUNIT_CASE(swap_defer_test_order),
	KUNIT_CASE(swap_defer_test_size),
	KUNIT_CASE(swap_defer_test_full),
	KUNIT_CASE(swap_defer_test_random),
	KUNIT_CASE(swap_defer_test_shadows),
	{}
};

static struct kunit_suite swap_defer_test_suite = {
	.name = "memreap_swap_defer",
	.test_cases = swap_defer_test_cases,
};

kunit_test_suite(swap_defer_test_suite);

MODULE_DESCRIPTION("KUnit tests for swap slots that wait");
MODULE_LICENSE("GPL");
