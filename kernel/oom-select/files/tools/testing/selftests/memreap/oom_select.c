// SPDX-License-Identifier: GPL-2.0-only
/*
 * The OOM killer's choice: processes of nearly the same size, each with some
 * pages on every CPU that are missing in the approximate counter, hit the limit
 * of their memory cgroup, or the system is out of memory. The largest one must be
 * killed, of those that may be.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "../kselftest_harness.h"
#include "cgroup.h"
#include "trace.h"
#include "victim.h"
#include "zram.h"

#define EVENTS		"memreap_oom"
#define SWITCH		"/sys/module/memreap/parameters/oom_select"

/* Seconds for a test, on a busy host that emulates a kernel full of checks. */
#define LIMIT		600
#define NR_CONTENDERS	8
#define HIGH_FRACTION	"/proc/sys/vm/percpu_pagelist_high_fraction"
#define NR_ROUNDS	12
#define NR_GLOBAL_ROUNDS	4
/* Rounds of a storm: at least, and before the kernel's log gets too long. */
#define STORM_MIN_ROUNDS	4
#define STORM_MAX_ROUNDS	100
/* Pages that each CPU keeps back, and pages that all processes have. */
#define KEPT		31
#define COMMON		1024UL
/* The size of a process above @COMMON is less than that. */
#define DIFFERENCE	80UL

/**
 * struct contender - a process that may be killed
 * @pid: of the process
 * @size: its pages, counted precisely
 */
struct contender {
	pid_t pid;
	long size;
};

static long kills(const char *cgroup)
{
	return cgroup_read(cgroup, "memory.events", "oom_kill ");
}

/* --- Contenders --- */

/*
 * Makes the caller a contender with @extra pages above COMMON. With a second
 * thread, its approximate counters lack KEPT pages for each CPU it ran on.
 */
static void contend(const char *cgroup, bool threaded, unsigned int nr_cpus,
		    size_t extra, int ready)
{
	size_t size = (COMMON + extra + nr_cpus * KEPT) * PAGE;
	cpu_set_t all;
	pthread_t thread;
	char *mem;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	mem = mmap(NULL, size, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED || !cgroup_enter(cgroup) ||
	    (threaded && pthread_create(&thread, NULL, idle_fn, NULL)))
		_exit(1);
	madvise(mem, size, MADV_NOHUGEPAGE);
	sched_getaffinity(0, sizeof(all), &all);
	/* In whole batches: no CPU keeps any of these back. */
	touch(mem, COMMON);
	mem += COMMON * PAGE;
	for (int cpu = 0; cpu < CPU_SETSIZE && nr_cpus; cpu++) {
		if (!CPU_ISSET(cpu, &all))
			continue;
		run_on(cpu);
		touch(mem, KEPT);
		mem += KEPT * PAGE;
		nr_cpus--;
	}
	touch(mem, extra);
	/* So that the code and stack of poll() are mapped before the count. */
	poll(NULL, 0, 0);
	if (write(ready, "", 1) != 1)
		_exit(1);
	for (;;)
		poll(NULL, 0, -1);
}

/* Returns the pages that the OOM killer counts: RAM, swap, page tables. */
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
		long kib = number_after(text, fields[i]);

		if (kib < 0)
			return -1;
		size += kib * 1024 / (long)PAGE;
	}

	return size;
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
	/* It may be stopped before its exit. */
	if (c->pid > 0)
		ptrace(PTRACE_CONT, c->pid, NULL, NULL);
	kill_and_wait(c->pid);
	c->pid = 0;
}

/**
 * struct choice - the event for a choice
 * @tasks: compared
 * @summed: of these, those that were summed up over the CPUs
 * @memcg: out of memory in a cgroup
 * @pid: of the victim
 * @points: of the victim
 */
struct choice {
	unsigned int tasks;
	unsigned int summed;
	unsigned int memcg;
	long pid;
	long points;
};

#define CHOICE	"memreap_oom_select: tasks=%u summed=%u ns=%*u memcg=%u pid=%ld points=%ld"

/* Finds the first choice of a victim since the trace was cleared. */
static bool first_choice(struct choice *c)
{
	FILE *f = fopen(INSTANCE "/trace", "re");
	bool found = false;
	char line[512];

	while (f && !found && fgets(line, sizeof(line), f)) {
		const char *at = strstr(line, "memreap_oom_select: ");

		if (!at)
			continue;
		found = sscanf(at, CHOICE, &c->tasks, &c->summed, &c->memcg,
			       &c->pid, &c->points) == 5 && c->pid > 0;
	}
	if (f)
		fclose(f);

	return found;
}

/* --- The tests --- */

static void __attribute__((constructor)) oom_trace_begin(void)
{
	trace_begin(EVENTS);
}

FIXTURE(oom) {
	struct contender contender[NR_CONTENDERS];
	struct cgroups cgroups;
	const char *cgroup;
	unsigned long long seed;
	struct choice choice;
	bool swap;
	bool short_lists;
};

FIXTURE_SETUP(oom)
{
	const char *missing;

	if (geteuid())
		SKIP(return, "needs root");
	if (access(INSTANCE, F_OK))
		SKIP(return, "no tracepoint memreap_oom_select: CONFIG_MEMREAP_OOM_SELECT");
	missing = cgroups_begin(&self->cgroups, "+memory");
	if (missing)
		SKIP(return, "%s", missing);
	self->cgroup = self->cgroups.top;
	/* Memory that can be swapped out is no reason to kill. */
	cgroup_write(self->cgroup, "memory.swap.max", "0");
	ASSERT_TRUE(trace_enable(EVENTS, true));
	self->seed = 0x6d656d72656170ULL;
}

FIXTURE_TEARDOWN(oom)
{
	trace_enable(EVENTS, false);
	for (int i = 0; i < NR_CONTENDERS; i++)
		contender_stop(&self->contender[i]);
	cgroups_end(&self->cgroups);
	if (self->swap)
		EXPECT_TRUE(zram_off(0));
	if (self->short_lists)
		EXPECT_TRUE(write_file(HIGH_FRACTION, "0"));
	EXPECT_NO_COMPLAINT(kmsg);
}

/* Only when all are asleep: those that just went to sleep have grown. */
static void measure(struct _test_data_oom *self)
{
	for (int i = 0; i < NR_CONTENDERS; i++) {
		struct contender *c = &self->contender[i];

		c->size = c->pid > 0 ? size_of(c->pid) : 0;
	}
}

/*
 * Starts a process in @cgroup that must not be killed, and uses up memory until
 * another one below the top is. Returns whether one was.
 */
static bool use_up(struct _test_data_oom *self, const char *cgroup, size_t size)
{
	/* To look costs as much as many pages. */
	const unsigned int often = size > 64 * MIB ? 64 : 1;
	const char *top = self->cgroup;
	long before = kills(top);
	pid_t pid = fork();

	if (!pid) {
		char *mem = mmap(NULL, size, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
				 -1, 0);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (mem == MAP_FAILED || !set_oom_score_adj(0, -1000) ||
		    !cgroup_enter(cgroup))
			_exit(1);
		for (size_t at = 0; at < size; at += PAGE) {
			mem[at] = 1;
			if (!(at / PAGE % often) && kills(top) != before)
				_exit(0);
		}
		_exit(1);
	}

	return exits_cleanly(pid);
}

/*
 * Runs the cgroup into its limit until a process is killed: one, unless its
 * memory is freed too late. Returns whether one was.
 */
static bool run_into_limit(struct _test_data_oom *self)
{
	const char *cgroup = self->cgroup;
	long current = cgroup_memory(cgroup), before = kills(cgroup);
	bool used, done;

	trace_clear();
	if (current < 0 ||
	    cgroup_write_number(cgroup, "memory.max", current + 2 * (long)MIB))
		return false;
	measure(self);
	used = use_up(self, cgroup, 64 * MIB);
	done = used && first_choice(&self->choice);
	if (!done)
		ksft_print_msg("of %ld bytes %ld are left after %ld kills%s\n",
			       current, cgroup_memory(cgroup),
			       kills(cgroup) - before,
			       used ? ", no choice was traced" : "");
	cgroup_write(cgroup, "memory.max", "max");

	return done;
}

/* Has the OOM killer choose among all processes, as if memory had run out. */
static bool run_globally(struct _test_data_oom *self)
{
	trace_clear();
	measure(self);

	return write_file("/proc/sysrq-trigger", "f") &&
	       within(PATIENCE, first_choice(&self->choice));
}

/* Returns the contender that was chosen first and died, or -1. */
static int victim_of(struct _test_data_oom *self)
{
	struct contender *contender = self->contender;
	struct choice *choice = &self->choice;
	int victim = -1;

	for (int i = 0; i < NR_CONTENDERS; i++) {
		siginfo_t info = {};

		/* The event is checked; more processes may have died. */
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

static int run_out(struct _test_data_oom *self)
{
	return run_into_limit(self) ? victim_of(self) : -1;
}

/* Replaces contenders that died. */
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

/* Sets @miss to the first round in which another than the largest is killed. */
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

/*
 * Shows that approximate sizes mislead in these populations. From 7.3 on, the
 * kernel sums sizes up exactly without the topic, too.
 */
TEST_F_TIMEOUT(oom, without_it_others_are, LIMIT)
{
	bool done;
	int miss;

	ASSERT_TRUE(write_file(SWITCH, "0"));
	done = first_miss(self, &miss);
	ASSERT_TRUE(write_file(SWITCH, "1"));
	ASSERT_TRUE(done);
	EXPECT_EQ(miss > 0, !kernel_since(7, 3));
}

/* Kills the smaller one of two, @victim, as no other may be killed but @other. */
static bool only_by_adjustment(struct _test_data_oom *self, int *victim,
			       int *other)
{
	struct contender *c = self->contender;

	for (int i = 0; i < NR_CONTENDERS; i++) {
		if (!set_oom_score_adj(c[i].pid, i == 3 || i == 5 ? 0 : -1000))
			return false;
	}
	*victim = size_of(c[3].pid) < size_of(c[5].pid) ? 3 : 5;
	*other = 8 - *victim;

	return set_oom_score_adj(c[*victim].pid, 1000) &&
	       run_out(self) == *victim;
}

TEST_F_TIMEOUT(oom, adjustments_count, LIMIT)
{
	int victim, other, tries = NR_ROUNDS;
	long before;

	/* If the memory of the first one is freed too late, both are killed. */
	do {
		ASSERT_GT(tries--, 0);
		ASSERT_TRUE(fill_up(self));
		before = kills(self->cgroup);
		ASSERT_TRUE(only_by_adjustment(self, &victim, &other));
		if (kills(self->cgroup) != before + 1)
			contender_stop(&self->contender[other]);
	} while (!self->contender[other].pid);

	/* Now only the other one of the two can be killed. */
	EXPECT_EQ(run_out(self), other);

	/* With the same adjustment for all, the size decides. */
	for (int i = 0; i < NR_CONTENDERS; i++) {
		if (self->contender[i].pid)
			ASSERT_TRUE(set_oom_score_adj(self->contender[i].pid, 500));
	}
	victim = run_out(self);
	ASSERT_GE(victim, 0);
	EXPECT_EQ(self->contender[victim].size, largest(self));
}

/* Without a cgroup's limit, it chooses among all processes. */
TEST_F_TIMEOUT(oom, the_largest_of_all_is_killed, LIMIT)
{
	for (int round = 0; round < NR_GLOBAL_ROUNDS; round++) {
		int victim;

		ASSERT_TRUE(fill_up(self));
		/* More than the other processes of the system. */
		for (int i = 0; i < NR_CONTENDERS; i++)
			ASSERT_TRUE(set_oom_score_adj(self->contender[i].pid, 500));
		ASSERT_TRUE(run_globally(self));
		EXPECT_EQ(self->choice.memcg, 0);
		/* And some more, at least init and this one. */
		EXPECT_GT(self->choice.tasks, NR_CONTENDERS);
		victim = victim_of(self);
		ASSERT_GE(victim, 0);
		EXPECT_EQ(self->contender[victim].size, largest(self));
	}
}

static long score_of(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/oom_score", pid);

	return read_number(path, NULL);
}

/* One that has been reaped, and does not exit, is not chosen again. */
TEST_F_TIMEOUT(oom, the_reaped_is_not_chosen_again, LIMIT)
{
	struct contender *c = self->contender;
	pid_t reaped;

	for (int i = 0; i < 3; i++) {
		ASSERT_TRUE(contender_start(&c[i], self->cgroup, false, 0, 0));
		ASSERT_TRUE(set_oom_score_adj(c[i].pid, 1000 - 100 * i));
	}
	reaped = c[0].pid;
	ASSERT_EQ(ptrace(PTRACE_SEIZE, reaped, NULL,
			 PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL), 0);
	ASSERT_TRUE(run_into_limit(self));
	ASSERT_EQ(self->choice.pid, reaped);
	ASSERT_TRUE(wait_parked(reaped));
	/* It has the most points until the OOM reaper is done. */
	ASSERT_TRUE(within(PATIENCE, !score_of(reaped)));

	ASSERT_TRUE(run_globally(self));
	EXPECT_EQ(victim_of(self), 1);
	ASSERT_TRUE(run_into_limit(self));
	EXPECT_EQ(victim_of(self), 2);
}

/* One that reads back what others have in swap is to blame, whatever its size. */
TEST_F_TIMEOUT(oom, swapoff_is_chosen, LIMIT)
{
	const size_t swapped = 8 * MIB;
	const char *cgroup = self->cgroup;
	pid_t pid;
	int status;

	if (!zram_on(0, 64 * MIB, 0))
		SKIP(return, "no zram0");
	self->swap = true;
	ASSERT_EQ(cgroup_write(cgroup, "memory.swap.max", "max"), 0);
	ASSERT_TRUE(contender_start(&self->contender[0], cgroup, false, 0,
				    2 * swapped / PAGE));
	ASSERT_TRUE(within(PATIENCE,
			   (cgroup_write_number(cgroup, "memory.reclaim", swapped),
			    cgroup_read(cgroup, "memory.swap.current", NULL) >=
			    (long)swapped)));
	ASSERT_EQ(cgroup_write(cgroup, "memory.swap.max", "0"), 0);
	trace_clear();
	ASSERT_EQ(cgroup_write_number(cgroup, "memory.max",
				      cgroup_memory(cgroup) + 2 * (long)MIB), 0);
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(cgroup_enter(cgroup) ? swapoff(zram_device(0)) : 1);
	}
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_TRUE(WIFSIGNALED(status));
	ASSERT_TRUE(first_choice(&self->choice));
	EXPECT_EQ(self->choice.pid, pid);
	EXPECT_EQ(self->choice.points, LONG_MAX);
	EXPECT_EQ(waitpid(self->contender[0].pid, NULL, WNOHANG), 0);
	cgroup_write(cgroup, "memory.max", "max");
}

/*
 * Where the memory of a cpuset is used up, none is chosen that has nothing there:
 * of two nodes, the smaller process is on the one without memory.
 */
TEST_F_TIMEOUT(oom, only_the_cpuset_counts, LIMIT)
{
	struct contender *c = self->contender;
	const char *path[2];

	if (access("/sys/devices/system/node/node1", F_OK))
		SKIP(return, "one memory node: boot with numa=fake=2");
	ASSERT_EQ(cgroup_write(self->cgroups.root, "cgroup.subtree_control",
			       "+cpuset"), 0);
	ASSERT_EQ(cgroup_write(self->cgroup, "cgroup.subtree_control",
			       "+cpuset +memory"), 0);
	for (int node = 0; node < 2; node++) {
		path[node] = cgroup_path(&self->cgroups, node ? "one" : "zero");
		ASSERT_EQ(mkdir(path[node], 0700), 0);
		ASSERT_EQ(cgroup_write_number(path[node], "cpuset.mems", node), 0);
		ASSERT_TRUE(contender_start(&c[node], path[node], false, 0,
					    (2 - node) * COMMON));
		ASSERT_TRUE(set_oom_score_adj(c[node].pid, 500));
	}
	/*
	 * The memory of the first victim may come back after the last look at the
	 * free pages, and before the next choice: then these die, not the test. And
	 * not all of it may go to a CPU's own lists, where nobody finds it.
	 */
	for (int i = 2; i < NR_CONTENDERS; i++) {
		ASSERT_TRUE(contender_start(&c[i], path[1], false, 0, COMMON));
		ASSERT_TRUE(set_oom_score_adj(c[i].pid, 250));
	}
	self->short_lists = write_file(HIGH_FRACTION, "2147483647");
	EXPECT_TRUE(self->short_lists);
	trace_clear();
	measure(self);
	ASSERT_GT(c[0].size, c[1].size);
	ASSERT_TRUE(use_up(self, path[1], 4096 * MIB));
	ASSERT_TRUE(first_choice(&self->choice));
	EXPECT_EQ(self->choice.memcg, 0);
	EXPECT_EQ(victim_of(self), 1);
	EXPECT_EQ(waitpid(c[0].pid, NULL, WNOHANG), 0);
}

TEST_F_TIMEOUT(oom, event_tells, LIMIT)
{
	const struct choice *c = &self->choice;
	int victim;

	ASSERT_TRUE(fill_up(self));
	victim = run_out(self);
	ASSERT_GE(victim, 0);
	/* Without the one that must not be killed. */
	EXPECT_EQ(c->tasks, NR_CONTENDERS);
	/* Some have threads, and are of about the largest size. */
	EXPECT_GT(c->summed, 0);
	EXPECT_LT(c->summed, NR_CONTENDERS);
	EXPECT_EQ(c->memcg, 1);
	EXPECT_EQ(c->points, self->contender[victim].size);
}

/*
 * While processes come and go, one is killed in each round, and never one that
 * must not be.
 */
TEST_F_TIMEOUT(oom, others_come_and_go, LIMIT)
{
	struct stress stress = {
		.min_rounds = STORM_MIN_ROUNDS, .max_rounds = STORM_MAX_ROUNDS
	};
	pid_t storm = fork();

	ASSERT_GE(storm, 0);
	if (!storm) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		setpgid(0, 0);
		/* Sometimes one of these is killed instead, which is correct. */
		for (;;) {
			pid_t pid = fork();

			if (!pid) {
				char *mem = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE,
						 MAP_PRIVATE | MAP_ANONYMOUS,
						 -1, 0);

				prctl(PR_SET_PDEATHSIG, SIGKILL);
				cgroup_enter(self->cgroup);
				if (mem != MAP_FAILED)
					touch(mem, 8 * MIB / PAGE);
				_exit(0);
			}
			waitpid(pid, NULL, 0);
		}
	}
	while (stress_continues(&stress)) {
		long before = kills(self->cgroup);
		int victim;

		ASSERT_TRUE(fill_up(self));
		set_oom_score_adj(self->contender[0].pid, -1000);
		victim = run_out(self);
		EXPECT_GT(kills(self->cgroup), before);
		EXPECT_NE(victim, 0);
		cgroup_write(self->cgroup, "memory.max", "max");
	}
	EXPECT_EQ(waitpid(self->contender[0].pid, NULL, WNOHANG), 0);
	kill(-storm, SIGKILL);
	kill(storm, SIGKILL);
	waitpid(storm, NULL, 0);
}

TEST_HARNESS_MAIN
