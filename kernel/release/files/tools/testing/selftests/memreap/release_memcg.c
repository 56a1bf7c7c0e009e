// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a cgroup is charged for, and the sizes of its LRU lists, are right once
 * the pages of its processes are gone. One that was removed is gone then, too:
 * on 6.12 each page has a reference to it. On 7.3 it has one to an object that
 * does not keep the cgroup, and that nothing tells of.
 */
#define _GNU_SOURCE
#include "../kselftest_harness.h"
#include "folios.h"
#include "region.h"

/* Seconds, on a busy host that emulates a kernel full of checks. */
#define LIMIT	300
#define SIZE	(8 * MIB)
#define SWITCH	"/sys/module/memreap/parameters/release"

/* Not in the fixture: victims start as copies of the test. */
static struct region memory;

FIXTURE(cgroup) {
	struct cgroups cgroups;
	struct folio_settings settings;
	struct victim victim;
};

FIXTURE_VARIANT(cgroup) {
	struct folios folios;
};

FIXTURE_VARIANT_ADD(cgroup, single_pages) {};
FIXTURE_VARIANT_ADD(cgroup, large_folios) { { .kib = FOLIO_MTHP } };

FIXTURE_SETUP(cgroup)
{
	const char *missing;

	if (access(SWITCH, F_OK))
		SKIP(return, "no " SWITCH);
	missing = cgroups_begin(&self->cgroups, "+memory");
	if (missing)
		SKIP(return, "%s", missing);
	missing = folios_begin(&self->settings, &variant->folios);
	if (missing) {
		cgroups_end(&self->cgroups);
		SKIP(return, "%s", missing);
	}
	memory = (struct region){
		.size = SIZE, .seed = 1, .folio_kib = variant->folios.kib,
		.cgroup = cgroup_path(&self->cgroups, "victim"),
	};
	ASSERT_EQ(cgroup_write(self->cgroups.top, "cgroup.subtree_control",
			       "+memory"), 0);
	ASSERT_EQ(mkdir(memory.cgroup, 0700), 0);
}

FIXTURE_TEARDOWN(cgroup)
{
	victim_end(&self->victim);
	cgroups_end(&self->cgroups);
	folios_end(&self->settings);
}

/* The last pages are in batches of a CPU on which it does not exit. */
static enum verdict fill_and_move(void *arg)
{
	enum verdict filled = run_on(0) ? region_fill(arg) : BAD;

	/* If there is another one. */
	run_on(1);

	return filled;
}

static const struct victim_ops ops = { &memory, fill_and_move };

static long dying_cgroups(const struct cgroups *c)
{
	return cgroup_read(c->root, "cgroup.stat", "nr_dying_descendants ");
}

TEST_F_TIMEOUT(cgroup, goes_with_its_pages, LIMIT)
{
	long dying = dying_cgroups(&self->cgroups);

	ASSERT_GE(dying, 0);
	ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
	ASSERT_GE(cgroup_memory(memory.cgroup), (long)SIZE);
	if (memory.folio_kib)
		ASSERT_GT(folios_allocated(&self->settings), 0);

	victim_end(&self->victim);
	ASSERT_TRUE(put_on_lru());
	ASSERT_TRUE(within(PATIENCE, !rmdir(memory.cgroup)));
	EXPECT_TRUE(within(PATIENCE, dying_cgroups(&self->cgroups) <= dying));
}

/* All but the kernel's, which is not freed with the process. */
static long charged(const char *cgroup)
{
	/* Has what CPUs keep of the charges returned. */
	cgroup_write(cgroup, "memory.max", "0");

	return cgroup_memory(cgroup) -
	       cgroup_read(cgroup, "memory.stat", "\nkernel ");
}

TEST_F_TIMEOUT(cgroup, counters_are_exact, LIMIT)
{
	static const char * const lists[] = {
		"\ninactive_anon ", "\nactive_anon ", "\nunevictable ",
	};
	const char *cgroup = memory.cgroup;
	long listed = 0;

	ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
	ASSERT_GE(cgroup_memory(cgroup), (long)SIZE);
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
		listed += cgroup_read(cgroup, "memory.stat", lists[i]);
	EXPECT_GE(listed, (long)SIZE / 2);

	victim_end(&self->victim);
	ASSERT_TRUE(put_on_lru());
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
		EXPECT_TRUE(within(PATIENCE, !cgroup_read(cgroup, "memory.stat",
							  lists[i])));
	EXPECT_TRUE(within(PATIENCE, !charged(cgroup)));
}

TEST_HARNESS_MAIN
