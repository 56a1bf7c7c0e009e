// SPDX-License-Identifier: GPL-2.0-only
/*
 * A cgroup that was removed is gone when the pages of its processes are: each
 * of them has a reference to it.
 */
#define _GNU_SOURCE
#include "../kselftest_harness.h"
#include "cgroup.h"
#include "victim.h"

/* Seconds, on a busy host that emulates a kernel full of checks. */
#define LIMIT	300
#define SIZE	(8 * MIB)
#define SWITCH	"/sys/module/memreap/parameters/release"

FIXTURE(cgroup) {
	struct cgroups cgroups;
	struct victim victim;
};

FIXTURE_SETUP(cgroup)
{
	const char *missing;

	if (access(SWITCH, F_OK))
		SKIP(return, "no " SWITCH);
	missing = cgroups_begin(&self->cgroups, "+memory");
	if (missing)
		SKIP(return, "%s", missing);
}

FIXTURE_TEARDOWN(cgroup)
{
	victim_end(&self->victim);
	cgroups_end(&self->cgroups);
}

static enum verdict enter_and_fill(void *cgroup)
{
	void *mem = map(SIZE, MAP_PRIVATE);

	if (!mem || !cgroup_enter(cgroup))
		return BAD;
	fill(mem, SIZE, 1);

	return GOOD;
}

static long dying_cgroups(const struct cgroups *c)
{
	return cgroup_read(c->root, "cgroup.stat", "nr_dying_descendants ");
}

TEST_F_TIMEOUT(cgroup, goes_with_its_pages, LIMIT)
{
	const char *cgroup = cgroup_path(&self->cgroups, "victim");
	struct victim_ops ops = { (void *)cgroup, enter_and_fill };
	long dying = dying_cgroups(&self->cgroups);

	ASSERT_GE(dying, 0);
	ASSERT_EQ(cgroup_write(self->cgroups.top, "cgroup.subtree_control",
			       "+memory"), 0);
	ASSERT_EQ(mkdir(cgroup, 0700), 0);
	ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
	ASSERT_GE(cgroup_memory(cgroup), (long)SIZE);

	victim_end(&self->victim);
	ASSERT_TRUE(within(PATIENCE, !rmdir(cgroup)));
	EXPECT_TRUE(within(PATIENCE, dying_cgroups(&self->cgroups) <= dying));
}

TEST_HARNESS_MAIN
