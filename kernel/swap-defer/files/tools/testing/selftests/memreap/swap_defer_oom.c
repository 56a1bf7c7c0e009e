// SPDX-License-Identifier: GPL-2.0-only
/* Out of memory while entries that wait hold memory, in zram or zswap. */
#define _GNU_SOURCE
#include "../kselftest_harness.h"
#include "swap_slots.h"
#include "swap_oom.h"

#define ZSWAP		"/sys/module/zswap/parameters/enabled"
#define NR_HUGEPAGES	"/proc/sys/vm/nr_hugepages"
#define BOOST		"/proc/sys/vm/watermark_boost_factor"

FIXTURE(oom) {
	struct world world;
	struct limits limits;
	char swappiness[16];
	char zswap[8];
	char hugepages[32];
	char boost[16];
};

FIXTURE_SETUP(oom)
{
	const char *missing = world_begin(&self->world, 2 * SWAP_SIZE);

	if (missing)
		SKIP(return, "%s", missing);
	if (!limits_lift(&self->limits))
		SKIP(return, "hogs cannot have all CPUs to themselves");
	ASSERT_TRUE(disable_swapping(self->swappiness, 16));
	/* kswapd, which takes it back, does not get to run. */
	if (read_file(BOOST, self->boost, sizeof(self->boost)))
		ASSERT_TRUE(write_file(BOOST, "0"));
	ASSERT_TRUE(hogs_start());
	/* The test must not be killed. */
	ASSERT_TRUE(set_oom_score_adj(0, -1000));
}

FIXTURE_TEARDOWN_PARENT(oom)
{
	if (self->swappiness[0])
		write_file(SWAPPINESS, self->swappiness);
	if (self->zswap[0])
		write_file(ZSWAP, self->zswap);
	if (self->hugepages[0])
		write_file(NR_HUGEPAGES, self->hugepages);
	if (self->boost[0])
		write_file(BOOST, self->boost);
	limits_restore(&self->limits);
	world_end(_metadata, &self->world);
}

/*
 * Where ordinary tasks are guaranteed some of each CPU, and that cannot be
 * turned off, the worker may have been in time.
 */
static void expect_released_for_memory(struct __test_metadata *_metadata,
				       const struct limits *limits, size_t size)
{
	struct told told;

	read_events(&told);
	TH_LOG("pages by memory %ld, swap %ld, worker %ld",
	       told.by[MEMORY].pages, told.by[SWAP].pages,
	       told.by[WORKER].pages);
	EXPECT_GE(told.pages, most(size / PAGE));
	if (limits->server[0][0])
		EXPECT_GT(told.by[MEMORY].pages, 0);
}

/* Memory to leave available before the hogs start. */
#define LEFT	(16 * MIB)
/* Memory to use up before that in small pages: huge ones may not fit. */
#define FILLED	(32 * MIB)

/*
 * Uses up memory by huge pages. In a kernel full of checks, small pages alone
 * would take longer than the test may.
 */
static void take_hugepages(char *before, size_t size)
{
	long nr = pages_of("MemAvailable:") - (long)((LEFT + FILLED) / PAGE);
	long each = pages_of("Hugepagesize:");
	char text[32];

	if (nr <= 0 || each <= 0 || !read_file(NR_HUGEPAGES, before, size))
		return;
	snprintf(text, sizeof(text), "%ld", atol(before) + nr / each);
	write_file(NR_HUGEPAGES, text);
}

TEST_F_TIMEOUT(oom, of_the_machine, LIMIT)
{
	const size_t size = 16 * MIB;
	struct mlocked mem;

	ASSERT_TRUE(candidates_start(self->world.victims, size));
	take_hugepages(self->hugepages, sizeof(self->hugepages));
	ASSERT_TRUE(mlocked_map(&mem, pages_of("MemTotal:") * PAGE));
	while (pages_of("MemAvailable:") * PAGE > LEFT)
		ASSERT_TRUE(mlocked_grow(&mem, MIB));
	expect_one_victim(_metadata, &mem, 0, size / 4, size / 2);
	expect_released_for_memory(_metadata, &self->limits, size);
}

/*
 * What waits holds nothing of a cgroup's memory: so it is left alone. Before
 * the test that enables zswap, with which nothing waits from then on.
 */
TEST_F_TIMEOUT(oom, of_a_cgroup_without_zswap, LIMIT)
{
	struct region other = {
		.size = SIZE, .seed = 3, .cgroup = self->world.others,
		.fifo = VICTIM_PRIORITY
	};
	struct victim_ops ops = { &other, region_swap_out };
	const char *cgroup = self->world.victims;
	struct victim first;
	struct swap_stats f;
	struct mlocked mem;
	struct told told;
	bool found;

	if (read_file(ZSWAP, self->zswap, sizeof(self->zswap)) &&
	    self->zswap[0] == 'Y')
		SKIP(return, "zswap is in use");
	ASSERT_EQ(victim_start(&first, &ops), GOOD);
	ASSERT_TRUE(candidates_start(cgroup, SIZE));
	ASSERT_EQ(cgroup_write(cgroup, "memory.max", "16M"), 0);
	ASSERT_TRUE(cgroup_enter(cgroup));
	ASSERT_TRUE(mlocked_map(&mem, 32 * MIB));
	ASSERT_TRUE(hogs_run_and_kill(&first, &f));
	found = mlocked_grow_until_gone(&mem, &victim, SIZE_MAX);
	ASSERT_TRUE(hogs_stop());
	munmap(mem.mem, mem.size);
	read_events(&told);
	EXPECT_TRUE(found);
	EXPECT_GE(f.waiting, most(SIZE / PAGE));
	EXPECT_EQ(told.by[MEMORY].pages, 0);
	victim_end(&first);
	victim_end(&victim);
	victim_end(&next);
}

/* What zswap keeps for a cgroup's processes is charged to it: none waits. */
TEST_F_TIMEOUT(oom, of_a_cgroup_with_zswap, LIMIT)
{
	const char *cgroup = self->world.victims;
	const size_t size = 8 * MIB;
	struct mlocked mem;

	if (!read_file(ZSWAP, self->zswap, sizeof(self->zswap)))
		SKIP(return, "no zswap");
	ASSERT_TRUE(write_file(ZSWAP, "Y"));
	ASSERT_TRUE(candidates_start(cgroup, size));
	ASSERT_GT(cgroup_read(cgroup, "memory.stat", "zswap "),
		  (long)size / 4);
	ASSERT_EQ(cgroup_write_number(cgroup, "memory.max",
				      cgroup_memory(cgroup) + MIB), 0);
	ASSERT_TRUE(cgroup_enter(cgroup));
	ASSERT_TRUE(mlocked_map(&mem, 2 * size));
	expect_one_victim(_metadata, &mem, MIB, size / 4, size / 2);
	EXPECT_EQ(swap_stats().queued, self->world.begin.queued);
}

TEST_HARNESS_MAIN
