// SPDX-License-Identifier: GPL-2.0-only
/* Entries that wait hold memory, in zram or zswap, that somebody lacks. */
#define _GNU_SOURCE
#include "../kselftest_harness.h"
#include "swap_release.h"
#include "swap_release_oom.h"

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
	ASSERT_TRUE(nothing_is_swapped(self->swappiness, 16));
	/* kswapd, which takes it back, does not get to run. */
	if (read_file(BOOST, self->boost, sizeof(self->boost)))
		ASSERT_TRUE(write_file(BOOST, "0"));
	ASSERT_TRUE(hogs_start());
	/* Whoever dies, not the test. */
	ASSERT_TRUE(set_score(-1000));
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
 * turned off, workers may have been in time.
 */
static void expect_released_by_need(struct __test_metadata *_metadata,
				    const struct limits *limits, size_t size)
{
	struct told told;

	hear(&told);
	TH_LOG("pages by need %ld, deadline %ld, worker %ld",
	       told.by[NEED].pages, told.by[OVERDUE].pages,
	       told.by[WORKER].pages);
	EXPECT_EQ(told.pages, (long)(size / PAGE));
	if (limits->server[0][0])
		EXPECT_GT(told.by[NEED].pages, 0);
}

/* What is to be had before the hogs begin. */
#define LEFT	(16 * MIB)
/* And what is taken before that in small pages: huge ones may not fit. */
#define FILLED	(32 * MIB)

/*
 * Without them, in a kernel full of checks, it would take as long as the test
 * may. The more of them the machine cannot give, the longer it takes.
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
	struct need need;

	ASSERT_TRUE(candidates_start(self->world.victims, size));
	take_hugepages(self->hugepages, sizeof(self->hugepages));
	ASSERT_TRUE(need_begin(&need, pages_of("MemTotal:") * PAGE));
	while (pages_of("MemAvailable:") * PAGE > LEFT)
		ASSERT_TRUE(need_more(&need, MIB));
	expect_one_victim(_metadata, &need, size / 4, size / 2);
	expect_released_by_need(_metadata, &self->limits, size);
}

/*
 * What waits holds nothing of a cgroup's memory: so it is left alone. Before
 * the test that enables zswap, which may have been of use from then on.
 */
TEST_F_TIMEOUT(oom, of_a_cgroup_without_zswap, LIMIT)
{
	struct region other = {
		.size = SIZE, .seed = 3, .cgroup = self->world.others,
		.fifo = VICTIM_PRIORITY
	};
	struct victim_ops ops = { &other, region_swap_out };
	const char *cgroup = self->world.victims;
	struct figures f, after;
	struct victim first;
	struct need need;
	bool found;

	if (read_file(ZSWAP, self->zswap, sizeof(self->zswap)) &&
	    self->zswap[0] == 'Y')
		SKIP(return, "zswap is in use");
	ASSERT_EQ(victim_start(&first, &ops), GOOD);
	ASSERT_TRUE(candidates_start(cgroup, SIZE));
	ASSERT_TRUE(cgroup_write(cgroup, "memory.max", "16M"));
	ASSERT_TRUE(cgroup_enter(cgroup));
	ASSERT_TRUE(need_begin(&need, 32 * MIB));
	ASSERT_TRUE(hogs_go());
	kill(first.pid, SIGKILL);
	ends(first.pidfd);
	f = figures();
	found = need_until_gone(&need, &victim);
	after = figures();
	ASSERT_TRUE(hogs_rest());
	munmap(need.mem, need.size);
	EXPECT_TRUE(found);
	EXPECT_EQ(f.waiting, (long)(SIZE / PAGE));
	EXPECT_EQ(after.flush, f.flush);
	victim_end(&first);
	victim_end(&victim);
	victim_end(&next);
}

/* What zswap keeps for a cgroup's processes is charged to it. */
TEST_F_TIMEOUT(oom, of_a_cgroup_with_zswap, LIMIT)
{
	const char *cgroup = self->world.victims;
	const size_t size = 8 * MIB;
	struct need need;
	char text[32];

	if (!read_file(ZSWAP, self->zswap, sizeof(self->zswap)))
		SKIP(return, "no zswap");
	ASSERT_TRUE(write_file(ZSWAP, "Y"));
	ASSERT_TRUE(candidates_start(cgroup, size));
	ASSERT_GT(cgroup_read(cgroup, "memory.stat", "zswap "),
		  (long)size / 4);
	snprintf(text, sizeof(text), "%ld",
		 cgroup_read(cgroup, "memory.current", NULL) + (long)MIB);
	ASSERT_TRUE(cgroup_write(cgroup, "memory.max", text));
	ASSERT_TRUE(cgroup_enter(cgroup));
	ASSERT_TRUE(need_begin(&need, 2 * size));
	expect_one_victim(_metadata, &need, size / 4, size / 2);
	expect_released_by_need(_metadata, &self->limits, size);
}

TEST_HARNESS_MAIN
