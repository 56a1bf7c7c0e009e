// SPDX-License-Identifier: GPL-2.0-only
/*
 * Slots that wait are not charged to cgroups of version 1, with memory or without.
 * In a program of its own: once the controller is used by version 2, as in other
 * tests, version 1 does not get it back.
 */
#define _GNU_SOURCE
#include "../kselftest_harness.h"
#include "swap_slots.h"
#include "swap_oom.h"

#define LIMIT_FILE	"memory.limit_in_bytes"
#define MEMSW		"memory.memsw."

/**
 * struct v1 - what is set up for a test, and settings before it
 * @root: where the controller is mounted
 * @cgroup: one below it
 * @limits: of hogs
 * @batch: the switch of swap-batch before
 * @defer: the switch of swap-defer before
 * @cluster: vm.page-cluster
 * @swappiness: vm.swappiness
 * @mounted: there is something at @root
 * @on: there is swap on zram0
 */
struct v1 {
	char root[32];
	char cgroup[64];
	struct limits limits;
	char batch[8];
	char defer[8];
	char cluster[16];
	char swappiness[16];
	bool mounted;
	bool on;
};

static const char *v1_begin(struct v1 *v1)
{
	if (access(DEFER, F_OK))
		return "no memreap.swap_defer in this kernel";
	if (geteuid())
		return "needs root, for swap and cgroups";
	if (pages_of("SwapTotal:"))
		return "there is swap in use, which the tests would disturb";
	if (!read_file(BATCH, v1->batch, 8) ||
	    !read_file(DEFER, v1->defer, 8) ||
	    !read_file(PAGE_CLUSTER, v1->cluster, 16))
		return "settings cannot be read";
	mkdir("/tmp", 0700);
	snprintf(v1->root, sizeof(v1->root), "/tmp/memswXXXXXX");
	if (!mkdtemp(v1->root))
		return "no folder can be made";
	v1->mounted = !mount("memsw", v1->root, "cgroup", 0, "memory");
	if (!v1->mounted)
		return "no memory controller for cgroups of version 1";
	snprintf(v1->cgroup, sizeof(v1->cgroup), "%s/group", v1->root);
	if (!limits_lift(&v1->limits))
		return "hogs cannot have all CPUs to themselves";
	/* A cgroup of version 1 begins with this. */
	if (!disable_swapping(v1->swappiness, 16) ||
	    mkdir(v1->cgroup, 0700))
		return "no cgroup can be made";
	if (cgroup_read(v1->cgroup, MEMSW "usage_in_bytes", NULL) < 0)
		return "cgroups are not charged for swap";
	v1->on = zram_on(0, SWAP_SIZE, 5);
	if (!v1->on)
		return "zram0 cannot be used for swap";
	write_file(PAGE_CLUSTER, "0");
	set_mode(DEFERRED);

	return NULL;
}

FIXTURE(memsw) {
	struct v1 v1;
};

FIXTURE_SETUP(memsw)
{
	const char *missing = v1_begin(&self->v1);

	if (missing)
		SKIP(return, "%s", missing);
	ASSERT_TRUE(hogs_start());
	/* The test must not be killed. */
	ASSERT_TRUE(set_oom_score_adj(0, -1000));
}

FIXTURE_TEARDOWN_PARENT(memsw)
{
	struct v1 *v1 = &self->v1;

	limits_restore(&v1->limits);
	/* Processes that died with the test are gone, or soon will be. */
	EXPECT_TRUE(within(PATIENCE, !rmdir(v1->cgroup) || errno == ENOENT));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	if (v1->on)
		EXPECT_TRUE(zram_off(0));
	if (v1->mounted)
		umount(v1->root);
	rmdir(v1->root);
	if (v1->swappiness[0])
		write_file(SWAPPINESS, v1->swappiness);
	if (v1->cluster[0])
		write_file(PAGE_CLUSTER, v1->cluster);
	if (v1->batch[0])
		write_file(BATCH, v1->batch);
	if (v1->defer[0])
		write_file(DEFER, v1->defer);
}

/* Of memory and swap together, @more than what is in use. */
static bool limit(const char *cgroup, long more)
{
	more += cgroup_read(cgroup, MEMSW "usage_in_bytes", NULL);

	return !cgroup_write_number(cgroup, LIMIT_FILE, more) &&
	       !cgroup_write_number(cgroup, MEMSW "limit_in_bytes", more);
}

TEST_F_TIMEOUT(memsw, out_of_it, LIMIT)
{
	const size_t size = 16 * MIB;
	struct mlocked mem;

	ASSERT_TRUE(candidates_start(self->v1.cgroup, size));
	ASSERT_TRUE(limit(self->v1.cgroup, 4 * MIB));
	ASSERT_TRUE(cgroup_enter(self->v1.cgroup));
	ASSERT_TRUE(mlocked_map(&mem, 2 * size));
	expect_one_victim(_metadata, &mem, 4 * MIB, size / 2, size / 2);
	cgroup_enter(self->v1.root);
}

/* The limit is lowered as soon as the processes are gone. */
TEST_F_TIMEOUT(memsw, resized, LIMIT)
{
	const char *cgroup = self->v1.cgroup;
	struct swap_stats f;
	int err;

	memory = (struct region){
		.size = SIZE, .seed = 1, .cgroup = self->v1.cgroup,
		.fifo = VICTIM_PRIORITY
	};
	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	ASSERT_EQ(cgroup_write_number(cgroup, LIMIT_FILE, SIZE / 2), 0);
	ASSERT_EQ(cgroup_write_number(cgroup, MEMSW "limit_in_bytes", SIZE / 2),
		  EBUSY);
	ASSERT_TRUE(hogs_run_and_kill(&victim, &f));
	err = cgroup_write_number(cgroup, MEMSW "limit_in_bytes", SIZE / 2);
	ASSERT_TRUE(hogs_stop());

	EXPECT_GE(f.waiting, most(SIZE / PAGE));
	EXPECT_EQ(err, 0);
	victim_end(&victim);
}

static enum verdict sleeper_prepare(void *arg)
{
	struct region *r = arg;

	return cgroup_enter(r->cgroup) && set_fifo(r->fifo) ? GOOD : BAD;
}

static void sleeper_run(void *arg)
{
	struct region *r = arg;
	struct mlocked mem;

	_exit(!mlocked_map(&mem, r->size) || !mlocked_grow(&mem, r->size));
}

/* Without an OOM killer tasks wait until another one makes room. */
TEST_F_TIMEOUT(memsw, out_of_it_without_kills, LIMIT)
{
	const size_t size = 16 * MIB;
	struct region region = {
		.size = size / 2, .cgroup = self->v1.cgroup,
		.fifo = VICTIM_PRIORITY
	};
	struct victim_ops ops = { &region, sleeper_prepare, .run = sleeper_run };
	struct victim sleeper;
	struct swap_stats f;

	memory = (struct region){
		.size = size, .seed = 1, .cgroup = self->v1.cgroup,
		.fifo = VICTIM_PRIORITY
	};
	ASSERT_EQ(cgroup_write(self->v1.cgroup, "memory.oom_control", "1"), 0);
	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	ASSERT_TRUE(limit(self->v1.cgroup, MIB));
	ASSERT_EQ(victim_start(&sleeper, &ops), GOOD);
	ASSERT_TRUE(within(PATIENCE, cgroup_read(self->v1.cgroup,
						 "memory.oom_control",
						 "under_oom ") == 1));
	ASSERT_TRUE(hogs_run_and_kill(&victim, &f));
	/* It looks whether there is room as soon as there could be. */
	usleep(20000);
	ASSERT_TRUE(hogs_stop());

	EXPECT_GT(f.waiting, 0);
	EXPECT_TRUE(within(PATIENCE, all_released()));
	EXPECT_TRUE(pidfd_exits(sleeper.pidfd, PATIENCE));
	victim_end(&victim);
	victim_end(&sleeper);
}

TEST_HARNESS_MAIN
