// SPDX-License-Identifier: GPL-2.0-only
/*
 * Threads that exit in a cgroup at its limit: each has its control block in
 * swap, and has to read it back, as the head of its list of robust futexes is
 * there.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>

#include "../kselftest_harness.h"
#include "cgroup.h"
#include "victim.h"
#include "zram.h"

/* Seconds for the test, on a busy host that emulates a kernel full of checks. */
#define LIMIT		600

#define NR_THREADS	512
/* Of the limit, a sixteenth is more than a page for each thread. */
#define RESIDENT	(32 * MIB)
#define ZRAM_SIZE	(256 * MIB)
/* Attempts to have threads at the limit with the switch off. */
#define MAX_TRIES	5
/* By this part of it a limit may be exceeded. */
#define RESERVE_DIVISOR	16

#define SWITCH		"/sys/module/memreap/parameters/memcg_exit"

FIXTURE(exit) {
	struct cgroups cgroups;
	struct victim victim;
	bool swap;
};

FIXTURE_SETUP(exit)
{
	const char *missing;

	if (access(SWITCH, W_OK))
		SKIP(return, "no " SWITCH);
	missing = cgroups_begin(&self->cgroups, "+memory");
	if (missing)
		SKIP(return, "%s", missing);
	self->swap = zram_on(0, ZRAM_SIZE, 0);
	if (!self->swap)
		SKIP(return, "no zram0");
}

FIXTURE_TEARDOWN(exit)
{
	write_file(SWITCH, "Y");
	victim_end(&self->victim);
	cgroups_end(&self->cgroups);
	if (self->swap)
		EXPECT_TRUE(zram_off(0));
}

/* What the victim holds that cannot go to swap. */
static char *resident;

static enum verdict start_threads(void *cgroup)
{
	pthread_attr_t attr;
	pthread_t thread;

	resident = map(2 * RESIDENT, MAP_PRIVATE);
	if (!resident || !cgroup_enter(cgroup) || pthread_attr_init(&attr) ||
	    pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN))
		return BAD;
	for (int i = 0; i < NR_THREADS; i++)
		if (pthread_create(&thread, &attr, idle_fn, NULL))
			return BAD;

	return GOOD;
}

/* At the second request, exceeds the limit and dies. */
static enum verdict take(void *cgroup)
{
	static unsigned int taken;

	touch(resident + taken++ * RESIDENT, RESIDENT / PAGE);

	return GOOD;
}

static bool request(struct victim *v)
{
	return write(v->talk, "", 1) == 1;
}

/* Returns how often the OOM killer was asked for when a job of threads died. */
static long kill_threads(struct __test_metadata *_metadata,
			 struct victim *victim, const char *cgroup)
{
	struct victim_ops ops = { (void *)cgroup, start_threads, take };
	long limit, peak;

	ASSERT_EQ(mkdir(cgroup, 0700), 0);
	ASSERT_EQ(victim_start(victim, &ops), GOOD);
	/* As much as possible: EAGAIN says that it was not all. */
	for (int i = 0; i < 10; i++)
		cgroup_write_number(cgroup, "memory.reclaim",
				    cgroup_memory(cgroup));
	ASSERT_GE(cgroup_read(cgroup, "memory.swap.current", NULL),
		  NR_THREADS * PAGE);
	ASSERT_EQ(cgroup_write(cgroup, "memory.swap.max", "0"), 0);
	ASSERT_EQ(victim_check(victim), GOOD);
	limit = cgroup_memory(cgroup);
	ASSERT_EQ(cgroup_write_number(cgroup, "memory.max", limit), 0);
	ASSERT_EQ(cgroup_read(cgroup, "memory.events", "oom "), 0);

	ASSERT_TRUE(request(victim));
	EXPECT_TRUE(pidfd_exits(victim->pidfd, PATIENCE));
	EXPECT_EQ(cgroup_read(cgroup, "memory.events", "oom_kill "), 1);
	peak = cgroup_read(cgroup, "memory.peak", NULL);
	EXPECT_LE(peak, limit + limit / RESERVE_DIVISOR);
	victim_end(victim);

	return cgroup_read(cgroup, "memory.events", "oom ");
}

TEST_F_TIMEOUT(exit, does_not_wait_for_the_oom_killer, LIMIT)
{
	long without = 0, with;
	char name[16];

	ASSERT_EQ(cgroup_write(self->cgroups.top, "cgroup.subtree_control",
			       "+memory"), 0);
	ASSERT_TRUE(write_file(SWITCH, "N"));
	/* Few, if the stacks of the first threads come back before the others exit. */
	for (int i = 0; i < MAX_TRIES && without < NR_THREADS / 4; i++) {
		snprintf(name, sizeof(name), "without%d", i);
		without = kill_threads(_metadata, &self->victim,
				       cgroup_path(&self->cgroups, name));
	}
	ASSERT_TRUE(write_file(SWITCH, "Y"));
	with = kill_threads(_metadata, &self->victim,
			    cgroup_path(&self->cgroups, "with"));

	TH_LOG("%ld times of %d threads, %ld with the switch off", with,
	       NR_THREADS, without);
	/* Otherwise nobody was at the limit. */
	EXPECT_GE(without, NR_THREADS / 4);
	EXPECT_LE(with, NR_THREADS / 64);
}

TEST_HARNESS_MAIN
