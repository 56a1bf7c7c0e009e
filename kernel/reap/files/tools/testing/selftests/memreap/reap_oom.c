// SPDX-License-Identifier: GPL-2.0-only
/*
 * The OOM reaper beside a task that reaps the same victim and makes no
 * progress.
 *
 * process_mrelease(2) needs no permission: any user may call it, in a task that
 * is limited or stopped at will. What the OOM reaper reports as reaped must be
 * reaped nevertheless. This holds for any kernel.
 */
#define _GNU_SOURCE
#include "../kselftest_harness.h"
#include "cgroup.h"
#include "victim.h"

/* Seconds for the test, on a busy host that emulates a kernel full of checks. */
#define OOM_LIMIT	300
/* Limit in ms for the OOM reaper, which starts 2 s after the kill. */
#define OOM_PATIENCE	60000

/*
 * More than the other task can reap meanwhile: it has 1 ms a second, until a
 * tick comes, on however fast a machine.
 */
#define VICTIM_SIZE	(384 * MIB)
/* Error of RSS counters: some pages for each of a few CPUs. */
#define RSS_ERROR	(1 * MIB)

FIXTURE(oom) {
	struct cgroups cgroups;
	struct victim victim;
	int kmsg;
	/* Lowers the limit, and waits until the memory is freed. */
	pid_t limiter;
	/* The task that makes no progress. */
	pid_t slow;
};

FIXTURE_SETUP(oom)
{
	const char *missing;

	if (!mrelease_supported())
		SKIP(return, "no process_mrelease()");
	self->kmsg = kmsg_open();
	if (self->kmsg < 0)
		SKIP(return, "no /dev/kmsg");
	missing = cgroups_begin(&self->cgroups, "+cpu +memory");
	if (missing)
		SKIP(return, "%s", missing);
}

FIXTURE_TEARDOWN(oom)
{
	const char *victim = cgroup_path(&self->cgroups, "victim");
	const char *slow = cgroup_path(&self->cgroups, "slow");

	if (self->cgroups.made) {
		cgroup_unthrottle(slow);
		cgroup_write(victim, "memory.max", "max");
	}
	kill_and_wait(self->slow);
	kill_and_wait(self->limiter);
	victim_end(&self->victim);
	cgroups_end(&self->cgroups);
	if (self->kmsg >= 0)
		close(self->kmsg);
}

static enum verdict fill_in_cgroup(void *arg)
{
	char *mem;

	if (!cgroup_enter(arg))
		return BAD;
	mem = map(VICTIM_SIZE, MAP_PRIVATE);
	if (!mem)
		return BAD;
	fill(mem, VICTIM_SIZE, 1);

	return GOOD;
}

/* Returns what is left of @pid in bytes, as the OOM reaper logs it, or -1. */
static long left_by_oom_reaper(int kmsg, pid_t pid)
{
	char line[1024], *at;
	ssize_t len;
	long left;
	int of;

	/* EPIPE: messages were lost, there may be more. */
	while ((len = read(kmsg, line, sizeof(line) - 1)) > 0 ||
	       errno == EPIPE) {
		if (len < 0)
			continue;
		line[len] = 0;
		at = strstr(line, "oom_reaper: reaped process ");
		if (at && sscanf(at, "oom_reaper: reaped process %d (%*[^)]), now anon-rss:%ldkB",
				 &of, &left) == 2 && of == pid)
			return left * 1024;
	}

	return -1;
}

TEST_F_TIMEOUT(oom, reaper_relies_on_nobody, OOM_LIMIT)
{
	const char *victim = cgroup_path(&self->cgroups, "victim");
	const char *slow = cgroup_path(&self->cgroups, "slow");
	struct victim_ops ops = { (void *)victim, fill_in_cgroup };
	long left = -1;
	int ready[2];
	char byte;

	ASSERT_EQ(cgroup_write(self->cgroups.top, "cgroup.subtree_control",
			       "+cpu +memory"), 0);
	ASSERT_EQ(mkdir(victim, 0700), 0);
	ASSERT_EQ(mkdir(slow, 0700), 0);
	ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
	ASSERT_EQ(ptrace(PTRACE_SEIZE, self->victim.pid, NULL,
			 PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL), 0);

	/* Prepared before the kill: the OOM reaper starts 2 s after it. */
	ASSERT_EQ(pipe(ready), 0);
	self->slow = fork();
	ASSERT_GE(self->slow, 0);
	if (!self->slow) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (!cgroup_enter(slow) || read(ready[0], &byte, 1) != 1)
			_exit(255);
		_exit(mrelease(self->victim.pidfd));
	}

	self->limiter = fork();
	ASSERT_GE(self->limiter, 0);
	if (!self->limiter) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(cgroup_write(victim, "memory.max", "1M"));
	}
	self->victim.parked = wait_parked(self->victim.pid);
	ASSERT_TRUE(self->victim.parked);
	ASSERT_EQ(cgroup_throttle(slow, HARDLY_ANY_CPU), 0);
	ASSERT_EQ(write(ready[1], "", 1), 1);

	EXPECT_TRUE(within(OOM_PATIENCE,
			   (left = left_by_oom_reaper(self->kmsg,
						      self->victim.pid)) >= 0));
	/* Otherwise the reaper was alone. */
	EXPECT_EQ(waitpid(self->slow, NULL, WNOHANG | __WALL), 0);
	EXPECT_LT(left, RSS_ERROR);
}

TEST_HARNESS_MAIN
