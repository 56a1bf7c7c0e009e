// SPDX-License-Identifier: GPL-2.0-only
/*
 * Kills with reclaim and cgroups: "1 expedite" in cgroup.kill, and victims
 * that get almost no CPU time, or none, to free their memory themselves.
 */
#define _GNU_SOURCE
#include "../kselftest_harness.h"
#include "expedite.h"

/*
 * A victim that would need seconds to free it with what it may run, and keeps
 * most of it however fast the machine: a tick may come 10 ms after its time.
 */
#define BIG		(384 * MIB)
/* Victims until one is not faster than that. */
#define CATCH_TRIES	10

#define NR_NESTED	3

/* Of victims that are started by a fixture. */
static struct region memory;

static struct victim victims[NR_NESTED];
static struct parking parkings[NR_NESTED];

FIXTURE(kill_file) {
	struct watch watch;
	struct cgroups cgroups;
	long kills;
};

static const char * const nested[NR_NESTED] = { "a", "a/b", "a/b/c" };

FIXTURE_SETUP(kill_file)
{
	struct victim_ops ops = { &memory, region_fill, region_check };
	const char *missing = watch_begin_cgroups(&self->watch, &self->cgroups);

	if (missing)
		SKIP(return, "%s", missing);
	for (int i = 0; i < NR_NESTED; i++) {
		const char *cgroup = cgroup_path(&self->cgroups, nested[i]);

		ASSERT_TRUE(!mkdir(cgroup, 0700) || errno == EEXIST);
		memory = (struct region){
			.size = SIZE, .seed = i, .cgroup = cgroup, .threads = 2
		};
		ASSERT_EQ(victim_start(&victims[i], &ops), GOOD);
	}
	self->kills = counter("expedite_kill");
}

FIXTURE_TEARDOWN_PARENT(kill_file)
{
	cgroups_end(&self->cgroups);
	wait_alone();
	watch_end(_metadata, &self->watch);
}

#define KILL(cgroup, text)						\
	cgroup_write(cgroup_path(&self->cgroups, cgroup), "cgroup.kill", text)

/* They are unharmed, and nothing was queued. */
#define EXPECT_UNHARMED()						\
do {									\
	for (int _i = 0; _i < NR_NESTED; _i++) {			\
		EXPECT_EQ(victim_check(&victims[_i]), GOOD);	\
		EXPECT_TRUE(never_queued(victims[_i].pid));	\
	}								\
	EXPECT_EQ(counter("expedite_kill"), self->kills);		\
} while (0)

TEST_F_TIMEOUT(kill_file, frees_all_below, LIMIT)
{
	const char *top = self->cgroups.top;

	for (int i = 0; i < NR_NESTED; i++) {
		ASSERT_TRUE(seize_threads(&parkings[i],
					  &victims[i]));
	}
	ASSERT_GE(cgroup_memory(top), NR_NESTED * SIZE);
	ASSERT_EQ(KILL("a", "1 expedite\n"), 0);
	for (int i = 0; i < NR_NESTED; i++) {
		struct victim *v = &victims[i];
		struct told told;

		for (unsigned int k = 0; k < parkings[i].nr; k++) {
			ASSERT_TRUE(wait_parked(parkings[i].tids[k])) {
				TH_LOG("thread %u of victim %d", k, i);
			}
		}
		v->parked = true;
		EXPECT_TRUE(memory_returns(v->pid, SHARED_LEFT));
		ASSERT_TRUE(wait_all_done(v->pid, &told));
		EXPECT_EQ(told.taken, 1);
		EXPECT_STREQ(told.by, "cgroup");
		EXPECT_STREQ(told.outcome, "freed");
		EXPECT_GE(told.bytes, SIZE);
	}
	EXPECT_EQ(counter("expedite_kill"), self->kills + NR_NESTED);
	EXPECT_LT(cgroup_memory(top), SIZE);
}

TEST_F_TIMEOUT(kill_file, kills_all_below, LIMIT)
{
	ASSERT_EQ(KILL("a", "1 expedite"), 0);
	for (int i = 0; i < NR_NESTED; i++)
		EXPECT_TRUE(dies(&victims[i]));
	EXPECT_TRUE(cgroup_empties(cgroup_path(&self->cgroups, "a")));
	EXPECT_TRUE(within(PATIENCE,
			   cgroup_memory(self->cgroups.top) < SIZE));
}

TEST_F_TIMEOUT(kill_file, leaves_those_above, LIMIT)
{
	ASSERT_EQ(KILL("a/b", "1 expedite\n"), 0);
	EXPECT_TRUE(dies(&victims[1]));
	EXPECT_TRUE(dies(&victims[2]));
	EXPECT_EQ(victim_check(&victims[0]), GOOD);
	EXPECT_TRUE(memory_stays(victims[0].pid, SIZE));
	EXPECT_TRUE(never_queued(victims[0].pid));
}

TEST_F_TIMEOUT(kill_file, nothing_else_is_taken, LIMIT)
{
	static const char * const bad[] = {
		"1 foo", "2 expedite", "0 expedite", "-1 expedite", "expedite",
		" expedite", "1expedite", "1 expedite x", "1 expedite 1",
		"1 expedite expedite", "1 expedit", "1 expedited", "1 Expedite",
		"1 1", "1,expedite", "1 -expedite", "x expedite", "0", "2", " ",
	};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		int err = KILL("a", bad[i]);

		ASSERT_TRUE(err == EINVAL || err == ERANGE) {
			TH_LOG("'%s': errno %d", bad[i], err);
		}
	}
	EXPECT_UNHARMED();
}

TEST_F_TIMEOUT(kill_file, nothing_else_is_taken_when_off, LIMIT)
{
	if (!watch_switch(&self->watch))
		SKIP(return, "cannot be switched off while running");
	ASSERT_TRUE(write_file(SWITCH, "N"));
	EXPECT_EQ(KILL("a", "1 expedite"), EINVAL);
	EXPECT_EQ(KILL("a", "1 expedite\n"), EINVAL);
	EXPECT_UNHARMED();
	EXPECT_EQ(KILL("a", "1"), 0);
	for (int i = 0; i < NR_NESTED; i++)
		EXPECT_TRUE(dies(&victims[i]));
	EXPECT_EQ(counter("expedite_kill"), self->kills);
}

/* What was written before there was a second word. */
TEST_F_TIMEOUT(kill_file, plain, LIMIT)
{
	static const char * const texts[NR_NESTED] = { "1", "1\n", " 0x1\n" };

	/* From the innermost outwards. */
	for (int i = NR_NESTED - 1; i >= 0; i--) {
		struct victim *v = &victims[i];

		ASSERT_TRUE(seize_threads(&parkings[i], v));
		ASSERT_EQ(KILL(nested[i], texts[i]), 0);
		for (unsigned int k = 0; k < parkings[i].nr; k++) {
			ASSERT_TRUE(wait_parked(parkings[i].tids[k])) {
				TH_LOG("thread %u of victim %d", k, i);
			}
		}
		v->parked = true;
		EXPECT_TRUE(memory_stays(v->pid, SIZE));
		EXPECT_TRUE(never_queued(v->pid));
	}
	EXPECT_EQ(counter("expedite_kill"), self->kills);
}

/* Also expedites processes that are already dying. */
TEST_F_TIMEOUT(kill_file, late, LIMIT)
{
	struct victim *v = &victims[2];

	ASSERT_EQ(park_threads(&parkings[2], v, kill_plain), 0);
	EXPECT_TRUE(memory_stays(v->pid, SIZE));
	ASSERT_EQ(KILL("a/b/c", "1 expedite\n"), 0);
	EXPECT_TRUE(memory_returns(v->pid, SHARED_LEFT));
}

static const char *init_cgroup;

static enum verdict kill_own_cgroup(void *arg)
{
	for (int i = 0; i < 10; i++) {
		if (cgroup_write(init_cgroup, "cgroup.kill", "1 expedite"))
			return BAD;
	}

	return region_check(&memory);
}

/* The init of a PID namespace is immune to kills from inside. */
TEST_F_TIMEOUT(kill_file, init_is_immune_from_inside, LIMIT)
{
	struct victim_ops ops = { &memory, region_fill, kill_own_cgroup };
	struct victim init;
	enum verdict verdict;

	init_cgroup = cgroup_path(&self->cgroups, "init");
	ASSERT_TRUE(!mkdir(init_cgroup, 0700) || errno == EEXIST);
	memory = (struct region){
		.size = SIZE, .seed = NR_NESTED, .cgroup = init_cgroup
	};
	verdict = start_init(&init, &ops);
	if (verdict == UNSUPPORTED)
		SKIP(return, "no PID namespaces");
	ASSERT_EQ(verdict, GOOD);
	EXPECT_EQ(victim_check(&init), GOOD);
	EXPECT_TRUE(never_queued(init.pid));
	EXPECT_UNHARMED();
	/* Outside it is killed as any other. */
	EXPECT_EQ(KILL("init", "1 expedite"), 0);
	EXPECT_TRUE(dies(&init));
}

TEST_F_TIMEOUT(kill_file, threaded_is_not_supported, LIMIT)
{
	const char *cgroup = cgroup_path(&self->cgroups, "a/b/c/t");

	ASSERT_TRUE(!mkdir(cgroup, 0700) || errno == EEXIST);
	if (cgroup_write(cgroup, "cgroup.type", "threaded"))
		SKIP(return, "no threaded cgroups");
	EXPECT_EQ(cgroup_write(cgroup, "cgroup.kill", "1 expedite"),
		  EOPNOTSUPP);
	EXPECT_UNHARMED();
}

/* --- A core dump --- */

#define CORE_PATTERN	"/proc/sys/kernel/core_pattern"
/* Does not read the dump, and ends when the test has long failed. */
#define NO_READER	"|/bin/sleep 60"

/* The pipe is locked while the kernel copies from us. */
static long write_pipe(struct stuck *s)
{
	return write(s->fd, s->page, 1);
}

static int locked_pipe[2];
static struct stuck writer = { .call = write_pipe };

FIXTURE(dump) {
	struct watch watch;
	struct cgroups cgroups;
	char pattern[256];
};

FIXTURE_SETUP(dump)
{
	const char *missing = watch_begin_cgroups(&self->watch, &self->cgroups);

	if (missing)
		SKIP(return, "%s", missing);
	ASSERT_TRUE(read_file(CORE_PATTERN, self->pattern,
			      sizeof(self->pattern)));
}

FIXTURE_TEARDOWN_PARENT(dump)
{
	if (self->pattern[0])
		write_file(CORE_PATTERN, self->pattern);
	cgroups_end(&self->cgroups);
	wait_alone();
	watch_end(_metadata, &self->watch);
}

static void *dump_core(void *arg)
{
	while (state_of(getpid()) != 'D')
		usleep(1000);
	raise(SIGSEGV);

	return NULL;
}

static enum verdict dump_prepare(void *arg)
{
	pthread_t thread;

	/* For the writer, only that of the test counts. */
	close(writer.uffd);
	if (region_fill(arg) != GOOD ||
	    pthread_create(&thread, NULL, dump_core, NULL))
		return BAD;

	return GOOD;
}

/* The leader waits for the pipe, and no signal reaches it there. */
static void dump_run(void *arg)
{
	char byte;

	if (read(locked_pipe[0], &byte, 1))
		return;
}

static bool dumps_core(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/status", pid);

	return read_number(path, "CoreDumping:") == 1;
}

/*
 * The first thread has been sent SIGKILL by the dump, and has not seen it yet.
 * The one that dumps has not, and must be.
 */
TEST_F_TIMEOUT(dump, ends_at_once, LIMIT)
{
	struct victim_ops ops = { &memory, dump_prepare, .run = dump_run };

	ASSERT_EQ(pipe(locked_pipe), 0);
	writer.fd = locked_pipe[1];
	if (!stuck_start(&writer))
		SKIP(return, "no userfaultfd");
	memory = (struct region){
		.size = SIZE, .seed = 5, .cgroup = self->cgroups.top
	};
	ASSERT_TRUE(write_file(CORE_PATTERN, NO_READER));
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_TRUE(within(PATIENCE, dumps_core(victim.pid)));
	ASSERT_EQ(cgroup_write(self->cgroups.top, "cgroup.kill", "1 expedite"),
		  0);
	close(writer.uffd);
	EXPECT_TRUE(dies(&victim));
}

/* --- Victims that cannot help themselves --- */

FIXTURE(held) {
	struct watch watch;
	struct cgroups cgroups;
	const char *cgroup;
};

FIXTURE_SETUP(held)
{
	struct victim_ops ops = { &memory, region_fill };
	const char *missing;

	if (read_number("/proc/meminfo", "MemAvailable:") <
	    (long)BIG / 1024 * 5 / 4)
		SKIP(return, "needs %lu MiB", BIG / MIB * 5 / 4);
	missing = watch_begin_cgroups(&self->watch, &self->cgroups);
	if (missing)
		SKIP(return, "%s", missing);
	self->cgroup = self->cgroups.top;
	memory = (struct region){
		.size = BIG, .seed = 1, .cgroup = self->cgroup
	};
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_GE(cgroup_memory(self->cgroup), BIG);
}

FIXTURE_TEARDOWN_PARENT(held)
{
	/* Before all else: those that are held cannot go. */
	cgroups_end(&self->cgroups);
	wait_alone();
	watch_end(_metadata, &self->watch);
}

/*
 * All but a few pages, and most of it by workers; since 7.3 a task that exits is
 * not throttled, and frees as much.
 */
#define EXPECT_MOSTLY_BY_WORKERS(pid)					\
do {									\
	struct told _told;						\
									\
	EXPECT_TRUE(within(PATIENCE,					\
			   cgroup_memory(self->cgroup) < BIG / 16));	\
	ASSERT_TRUE(wait_all_done(pid, &_told));			\
	EXPECT_STREQ(_told.outcome, "freed");				\
	EXPECT_GT(_told.bytes, kernel_since(7, 3) ? BIG / 8 : BIG / 2);	\
	TH_LOG("%lu MiB by workers in %llu ms", _told.bytes / MIB,	\
	       _told.ns / 1000000);					\
} while (0)

TEST_F_TIMEOUT(held, one_percent_of_a_cpu, LIMIT)
{
	pid_t pid = victim.pid;

	ASSERT_EQ(cgroup_throttle(self->cgroup, ONE_PERCENT), 0);
	ASSERT_EQ(kill_expedited(&victim), 0);
	EXPECT_MOSTLY_BY_WORKERS(pid);
}

/* A worker does the work of the victim, which is not given it for nothing. */
TEST_F_TIMEOUT(held, workers_are_charged, LIMIT)
{
	long before, after;
	struct told told;

	ASSERT_EQ(park(&victim, kill_plain), 0);
	before = cgroup_read(self->cgroup, "cpu.stat", "system_usec ");
	ASSERT_GE(before, 0);
	ASSERT_EQ(kill_expedited(&victim), 0);
	ASSERT_TRUE(wait_all_done(victim.pid, &told));
	EXPECT_STREQ(told.outcome, "freed");
	after = cgroup_read(self->cgroup, "cpu.stat", "system_usec ");
	TH_LOG("%ld us charged of %llu", after - before, told.ns / 1000);
	/* The rest of the time it waited for a CPU. */
	EXPECT_GE(after - before, (long)(told.ns / 1000 / 10));
}

TEST_F_TIMEOUT(held, killed_before, LIMIT)
{
	pid_t pid = victim.pid;

	ASSERT_EQ(cgroup_throttle(self->cgroup, ONE_PERCENT), 0);
	ASSERT_EQ(kill_plain(&victim), 0);
	ASSERT_EQ(kill_expedited(&victim), 0);
	EXPECT_MOSTLY_BY_WORKERS(pid);
}

#define NOT_THROTTLED	"since Linux 7.3 a task that exits is not throttled"

/*
 * Kills the victim, and waits until it is throttled in exit_mmap(): nothing
 * leads from the process to its memory any more, and it still has most of that.
 * One that frees too much before is followed by another.
 */
static bool catch_in_exit_mmap(const char *cgroup)
{
	struct victim_ops ops = { &memory, region_fill };

	for (int i = 0; i < CATCH_TRIES; i++) {
		if (i && (cgroup_unthrottle(cgroup) || !dies(&victim) ||
			  victim_start(&victim, &ops) != GOOD))
			return false;
		if (cgroup_throttle(cgroup, ONE_PERCENT) ||
		    kill_plain(&victim) ||
		    !within(PATIENCE, !mapped_pages(victim.pid)))
			return false;
		if (cgroup_memory(cgroup) >= (long)BIG * 3 / 4)
			return true;
	}

	return false;
}

TEST_F_TIMEOUT(held, in_exit_mmap, LIMIT)
{
	if (kernel_since(7, 3))
		SKIP(return, NOT_THROTTLED);
	ASSERT_TRUE(catch_in_exit_mmap(self->cgroup));
	ASSERT_EQ(kill_expedited(&victim), 0);
	EXPECT_MOSTLY_BY_WORKERS(victim.pid);
}

TEST_F_TIMEOUT(held, in_exit_mmap_by_file, LIMIT)
{
	if (kernel_since(7, 3))
		SKIP(return, NOT_THROTTLED);
	ASSERT_TRUE(catch_in_exit_mmap(self->cgroup));
	ASSERT_EQ(cgroup_write(self->cgroup, "cgroup.kill", "1 expedite"), 0);
	EXPECT_MOSTLY_BY_WORKERS(victim.pid);
}

TEST_F_TIMEOUT(held, frozen, LIMIT)
{
	pid_t pid = victim.pid;

	ASSERT_EQ(cgroup_write(self->cgroup, "cgroup.freeze", "1"), 0);
	ASSERT_TRUE(within(PATIENCE, cgroup_read(self->cgroup, "cgroup.events",
						 "frozen ") == 1));
	ASSERT_EQ(park(&victim, kill_expedited), 0);
	EXPECT_TRUE(memory_returns(pid, SHARED_LEFT));
	EXPECT_TRUE(within(PATIENCE, cgroup_memory(self->cgroup) < BIG / 16));
}

TEST_F_TIMEOUT(held, frozen_by_file, LIMIT)
{
	pid_t pid = victim.pid;
	struct told told;

	ASSERT_EQ(cgroup_write(self->cgroup, "cgroup.freeze", "1"), 0);
	ASSERT_TRUE(within(PATIENCE, cgroup_read(self->cgroup, "cgroup.events",
						 "frozen ") == 1));
	ASSERT_EQ(cgroup_write(self->cgroup, "cgroup.kill", "1 expedite"), 0);
	EXPECT_TRUE(dies(&victim));
	EXPECT_TRUE(within(PATIENCE, cgroup_memory(self->cgroup) < BIG / 16));
	ASSERT_TRUE(wait_all_done(pid, &told));
	EXPECT_STREQ(told.by, "cgroup");
}

TEST_HARNESS_MAIN
