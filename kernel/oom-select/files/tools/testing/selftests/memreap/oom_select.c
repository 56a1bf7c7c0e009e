// SPDX-License-Identifier: GPL-2.0-only
/*
 * The OOM killer's choice: processes of nearly the same size, of which each CPU
 * has counted some pages that it keeps to itself, run into the limit of their
 * memory cgroup. Who dies has to be the largest.
 */
#define _GNU_SOURCE
#include <linux/limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../kselftest_harness.h"
#include "util.h"

#define TRACEFS		"/sys/kernel/tracing"
#define EVENTS		TRACEFS "/events/memreap_oom"
#define SWITCH		"/sys/module/memreap/parameters/oom_select"

/* Seconds for a test, on a busy host that emulates a kernel full of checks. */
#define LIMIT		600
#define NR_CONTENDERS	8
#define NR_ROUNDS	12
/*
 * Of a storm, however long they take, and those after which the kernel has said
 * enough about OOMs.
 */
#define FEW_ROUNDS	4
#define MANY_ROUNDS	100
/* Pages that a CPU keeps to itself, and pages that all have. */
#define KEPT		31
#define COMMON		1024UL
/* The most that one may have above @COMMON. */
#define DIFFERENCE	80UL

/**
 * struct contender - a process that may be killed
 * @pid: it
 * @size: its pages, as the kernel counts them precisely
 */
struct contender {
	pid_t pid;
	long size;
};

/* --- The memory cgroup --- */

static bool in_cgroup(const char *cgroup, const char *file, const char *text)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", cgroup, file);

	return write_file(path, text);
}

/* The number behind @key in one of its files, or the file's; -1 if none. */
static long of_cgroup(const char *cgroup, const char *file, const char *key)
{
	char path[PATH_MAX], text[1024];
	const char *at = text;

	snprintf(path, sizeof(path), "%s/%s", cgroup, file);
	if (!read_file(path, text, sizeof(text)))
		return -1;
	if (key)
		at = strstr(text, key);

	return at ? atol(at + (key ? strlen(key) : 0)) : -1;
}

static long kills(const char *cgroup)
{
	return of_cgroup(cgroup, "memory.events", "oom_kill ");
}

/* Where cgroup2 is mounted, with the memory controller; NULL if it is not. */
static const char *cgroup_root(void)
{
	static char root[PATH_MAX / 4];

	return cgroup2_mount(root, sizeof(root)) &&
	       in_cgroup(root, "cgroup.subtree_control", "+memory") ? root : NULL;
}

/* --- Contenders --- */

static void *sleep_on(void *arg)
{
	for (;;)
		pause();

	return arg;
}

/*
 * Becomes one with @extra pages above what all have. The counters of one with
 * a second thread lack @KEPT pages of each CPU that it has been on.
 */
static void contend(const char *cgroup, bool threaded, unsigned int nr_cpus,
		    size_t extra, int ready)
{
	size_t size = (COMMON + extra + nr_cpus * KEPT) * PAGE;
	cpu_set_t all, one;
	pthread_t thread;
	char *mem;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	mem = mmap(NULL, size, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED || !in_cgroup(cgroup, "cgroup.procs", "0") ||
	    (threaded && pthread_create(&thread, NULL, sleep_on, NULL)))
		_exit(1);
	madvise(mem, size, MADV_NOHUGEPAGE);
	sched_getaffinity(0, sizeof(all), &all);
	/* In batches first: no CPU has any of these left. */
	touch(mem, COMMON);
	mem += COMMON * PAGE;
	for (int cpu = 0; cpu < CPU_SETSIZE && nr_cpus; cpu++) {
		if (!CPU_ISSET(cpu, &all))
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		sched_setaffinity(0, sizeof(one), &one);
		touch(mem, KEPT);
		mem += KEPT * PAGE;
		nr_cpus--;
	}
	touch(mem, extra);
	/* What it takes to sleep is mapped before it is counted. */
	poll(NULL, 0, 0);
	if (write(ready, "", 1) != 1)
		_exit(1);
	for (;;)
		poll(NULL, 0, -1);
}

/* As the OOM killer counts: in RAM and swap, with page tables. */
static long size_of(pid_t pid)
{
	static const char * const fields[] = {
		"RssAnon:", "RssFile:", "RssShmem:", "VmSwap:", "VmPTE:",
	};
	char path[64], text[8192];
	long size = 0;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	if (!read_file(path, text, sizeof(text)))
		return -1;
	for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
		const char *at = strstr(text, fields[i]);

		if (!at)
			return -1;
		/* All in kB, whole pages. */
		size += atol(at + strlen(fields[i])) * 1024 / (long)PAGE;
	}

	return size;
}

static bool adjust(pid_t pid, int adj)
{
	char path[64], text[16];

	snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", pid);
	snprintf(text, sizeof(text), "%d", adj);

	return write_file(path, text);
}

static bool contender_start(struct contender *c, const char *cgroup,
			    bool threaded, unsigned int nr_cpus, size_t extra)
{
	int ready[2];
	char byte;

	if (pipe(ready))
		return false;
	c->pid = fork();
	if (!c->pid) {
		close(ready[0]);
		contend(cgroup, threaded, nr_cpus, extra, ready[1]);
	}
	close(ready[1]);
	if (c->pid < 0 || read(ready[0], &byte, 1) != 1) {
		close(ready[0]);
		return false;
	}
	close(ready[0]);

	return true;
}

static void contender_stop(struct contender *c)
{
	if (c->pid <= 0)
		return;
	kill(c->pid, SIGKILL);
	waitpid(c->pid, NULL, 0);
	c->pid = 0;
}

/**
 * struct choice - what the kernel tells of a choice
 * @tasks: seen
 * @ranged: whose size was not known exactly
 * @precise: that were summed up
 * @rescans: 1 if all had to be compared exactly
 * @memcg: in a memory cgroup
 * @pid: chosen
 * @points: its
 */
struct choice {
	unsigned int tasks;
	unsigned int ranged;
	unsigned int precise;
	unsigned int rescans;
	unsigned int memcg;
	long pid;
	long points;
};

#define CHOICE	"memreap_oom_select: tasks=%u ranged=%u precise=%u rescans=%u ns=%*u memcg=%u pid=%ld points=%ld"

static bool trace_empty(void)
{
	int fd = open(TRACEFS "/trace", O_WRONLY | O_TRUNC | O_CLOEXEC);

	return fd >= 0 && !close(fd);
}

/* The first one since the trace was emptied in which somebody was chosen. */
static bool first_choice(struct choice *c)
{
	FILE *f = fopen(TRACEFS "/trace", "re");
	bool found = false;
	char line[512];

	while (f && !found && fgets(line, sizeof(line), f)) {
		const char *at = strstr(line, "memreap_oom_select: ");

		if (!at)
			continue;
		found = sscanf(at, CHOICE, &c->tasks, &c->ranged, &c->precise,
			       &c->rescans, &c->memcg, &c->pid,
			       &c->points) == 7 && c->pid > 0;
	}
	if (f)
		fclose(f);

	return found;
}

/* --- The tests --- */

FIXTURE(oom) {
	struct contender contender[NR_CONTENDERS];
	char cgroup[PATH_MAX / 2];
	unsigned long long seed;
	int kmsg;
	struct choice choice;
};

FIXTURE_SETUP(oom)
{
	const char *root = cgroup_root();

	if (geteuid())
		SKIP(return, "needs root");
	if (!root)
		SKIP(return, "no cgroup2 with the memory controller is mounted");
	if (access(TRACEFS "/events", F_OK))
		mount("tracefs", TRACEFS, "tracefs", 0, NULL);
	if (access(EVENTS, F_OK))
		SKIP(return, "no tracepoint memreap_oom_select: CONFIG_MEMREAP_OOM_SELECT");
	snprintf(self->cgroup, sizeof(self->cgroup), "%s/oom_selftest", root);
	ASSERT_TRUE(!mkdir(self->cgroup, 0700) || errno == EEXIST);
	ASSERT_TRUE(in_cgroup(self->cgroup, "memory.max", "max"));
	/* What can be swapped out is no reason to kill. */
	in_cgroup(self->cgroup, "memory.swap.max", "0");
	ASSERT_TRUE(write_file(EVENTS "/enable", "1"));
	self->seed = 0x6d656d72656170ULL;
	self->kmsg = kmsg_open();
}

FIXTURE_TEARDOWN(oom)
{
	char line[1024];

	write_file(EVENTS "/enable", "0");
	for (int i = 0; i < NR_CONTENDERS; i++)
		contender_stop(&self->contender[i]);
	for (int i = 0; i < 1000 && rmdir(self->cgroup); i++)
		usleep(1000);
	EXPECT_FALSE(kernel_complained(self->kmsg, line, sizeof(line))) {
		TH_LOG("%s", line);
	}
	close(self->kmsg);
}

/*
 * Runs the cgroup into its limit, until somebody has been killed: one, unless
 * what it had does not come back in time. Returns which of these was the first
 * to be chosen, and has died; -1 if none of them.
 */
static int run_out(struct _test_data_oom *self)
{
	struct contender *contender = self->contender;
	struct choice *choice = &self->choice;
	const char *cgroup = self->cgroup;
	long before = kills(cgroup), current;
	int status, victim = -1;
	char text[32];
	pid_t pid;

	current = of_cgroup(cgroup, "memory.current", NULL);
	snprintf(text, sizeof(text), "%ld", current + 2 * (long)MIB);
	if (before < 0 || current < 0 || !trace_empty() ||
	    !in_cgroup(cgroup, "memory.max", text))
		return -1;
	/* As it is now: those that have just begun to sleep have grown. */
	for (int i = 0; i < NR_CONTENDERS; i++) {
		contender[i].size = contender[i].pid > 0 ?
					    size_of(contender[i].pid) : 0;
	}
	pid = fork();
	if (!pid) {
		/* Takes what is left, and is not to be killed for it. */
		size_t size = 64 * MIB;
		char *mem = mmap(NULL, size, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (mem == MAP_FAILED || !adjust(getpid(), -1000) ||
		    !in_cgroup(cgroup, "cgroup.procs", "0"))
			_exit(1);
		for (size_t at = 0; at < size && kills(cgroup) == before;
		     at += PAGE)
			mem[at] = 1;
		_exit(kills(cgroup) == before);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status ||
	    !first_choice(choice))
		return -1;
	in_cgroup(cgroup, "memory.max", "max");
	for (int i = 0; i < NR_CONTENDERS; i++) {
		siginfo_t info = {};

		/* What the kernel says is checked, and more may have died. */
		if (contender[i].pid == choice->pid) {
			if (!waitid(P_PID, choice->pid, &info, WEXITED) &&
			    info.si_code == CLD_KILLED)
				victim = i;
			contender[i].pid = 0;
		} else if (contender[i].pid > 0 &&
			   waitpid(contender[i].pid, NULL, WNOHANG) > 0) {
			contender[i].pid = 0;
		}
	}

	return victim;
}

/* New ones in place of those that are gone. */
static bool fill_up(struct _test_data_oom *self)
{
	unsigned int nr_cpus = sysconf(_SC_NPROCESSORS_ONLN);

	for (int i = 0; i < NR_CONTENDERS; i++) {
		struct contender *c = &self->contender[i];

		if (!c->pid &&
		    !contender_start(c, self->cgroup, rnd(&self->seed) % 3,
				     rnd(&self->seed) % (nr_cpus + 1),
				     rnd(&self->seed) % DIFFERENCE))
			return false;
	}

	return true;
}

static long largest(struct _test_data_oom *self)
{
	long most = 0;

	for (int i = 0; i < NR_CONTENDERS; i++) {
		if (self->contender[i].size > most)
			most = self->contender[i].size;
	}

	return most;
}

/* The round, from 1, in which somebody else than the largest is killed, if any. */
static bool first_miss(struct _test_data_oom *self, int *miss)
{
	*miss = 0;
	for (int round = 1; !*miss && round <= NR_ROUNDS; round++) {
		int victim;

		if (!fill_up(self))
			return false;
		victim = run_out(self);
		if (victim < 0)
			return false;
		if (self->contender[victim].size < largest(self))
			*miss = round;
	}

	return true;
}

TEST_F_TIMEOUT(oom, the_largest_is_killed, LIMIT)
{
	int miss;

	ASSERT_TRUE(first_miss(self, &miss));
	EXPECT_EQ(miss, 0);
}

/* That these are populations in which approximate sizes mislead. */
TEST_F_TIMEOUT(oom, without_it_others_are, LIMIT)
{
	bool done;
	int miss;

	ASSERT_TRUE(write_file(SWITCH, "0"));
	done = first_miss(self, &miss);
	ASSERT_TRUE(write_file(SWITCH, "1"));
	ASSERT_TRUE(done);
	EXPECT_GT(miss, 0);
}

TEST_F_TIMEOUT(oom, adjustments_count, LIMIT)
{
	int victim;

	ASSERT_TRUE(fill_up(self));
	/* Nobody but these two, of which the smaller is to go first. */
	for (int i = 0; i < NR_CONTENDERS; i++)
		ASSERT_TRUE(adjust(self->contender[i].pid, -1000));
	ASSERT_TRUE(adjust(self->contender[3].pid, 0));
	ASSERT_TRUE(adjust(self->contender[5].pid, 0));
	victim = size_of(self->contender[3].pid) <
		 size_of(self->contender[5].pid) ? 3 : 5;
	ASSERT_TRUE(adjust(self->contender[victim].pid, 1000));
	ASSERT_EQ(run_out(self), victim);

	/* Of all the others only one can be killed. */
	EXPECT_EQ(run_out(self), 8 - victim);

	/* With the same adjustment size decides. */
	for (int i = 0; i < NR_CONTENDERS; i++) {
		if (self->contender[i].pid)
			ASSERT_TRUE(adjust(self->contender[i].pid, 500));
	}
	victim = run_out(self);
	ASSERT_GE(victim, 0);
	EXPECT_EQ(self->contender[victim].size, largest(self));
}

/* The event says what has been done. */
TEST_F_TIMEOUT(oom, event_tells, LIMIT)
{
	const struct choice *c = &self->choice;
	int victim;

	ASSERT_TRUE(fill_up(self));
	victim = run_out(self);
	ASSERT_GE(victim, 0);
	/* Without the one that is not to be killed. */
	EXPECT_EQ(c->tasks, NR_CONTENDERS);
	EXPECT_GT(c->ranged, 0);
	EXPECT_LT(c->ranged, NR_CONTENDERS);
	EXPECT_LE(c->precise, c->ranged);
	EXPECT_EQ(c->rescans, 0);
	EXPECT_EQ(c->memcg, 1);
	EXPECT_EQ(c->points, self->contender[victim].size);
}

/*
 * Processes that come and go while others are chosen: somebody is killed each
 * time, and never one that is not to be.
 */
TEST_F_TIMEOUT(oom, others_come_and_go, LIMIT)
{
	struct stress stress = { .least = FEW_ROUNDS, .most = MANY_ROUNDS };
	pid_t storm = fork();

	ASSERT_GE(storm, 0);
	if (!storm) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		setpgid(0, 0);
		/* They are killed instead now and then, which is right. */
		for (;;) {
			pid_t pid = fork();

			if (!pid) {
				char *mem = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE,
						 MAP_PRIVATE | MAP_ANONYMOUS,
						 -1, 0);

				prctl(PR_SET_PDEATHSIG, SIGKILL);
				in_cgroup(self->cgroup, "cgroup.procs", "0");
				if (mem != MAP_FAILED)
					touch(mem, 8 * MIB / PAGE);
				_exit(0);
			}
			waitpid(pid, NULL, 0);
		}
	}
	while (stress_goes_on(&stress)) {
		long before = kills(self->cgroup);
		int victim;

		ASSERT_TRUE(fill_up(self));
		adjust(self->contender[0].pid, -1000);
		victim = run_out(self);
		EXPECT_GT(kills(self->cgroup), before);
		EXPECT_NE(victim, 0);
		in_cgroup(self->cgroup, "memory.max", "max");
	}
	EXPECT_EQ(waitpid(self->contender[0].pid, NULL, WNOHANG), 0);
	kill(-storm, SIGKILL);
	kill(storm, SIGKILL);
	waitpid(storm, NULL, 0);
}

TEST_HARNESS_MAIN
