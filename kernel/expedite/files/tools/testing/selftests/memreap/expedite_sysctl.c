// SPDX-License-Identifier: GPL-2.0-only
/*
 * vm.expedite_min_kbytes: any kill starts the reclaim if the victim is large
 * enough, whichever way it is killed. vm.expedite_cpu_percent: the share of a
 * CPU that a worker takes from other tasks.
 */
#define _GNU_SOURCE
#include <linux/sched.h>

#include "../kselftest_harness.h"
#include "expedite.h"
#include "folios.h"

/* Of victims that are started by a fixture, or by START(). */
static struct region memory;
static struct parking parking;

/* The limit, and victims on either side of it. */
#define MIN_TEXT	"8192"
#define LARGE		(16 * MIB)
#define SMALL		(4 * MIB)

/* --- Ways to kill --- */

static int kill_by_tgkill(struct victim *v)
{
	return syscall(__NR_tgkill, v->pid, v->pid, SIGKILL) ? errno : 0;
}

static int kill_by_tkill(struct victim *v)
{
	return syscall(__NR_tkill, v->pid, SIGKILL) ? errno : 0;
}

static int kill_group(struct victim *v)
{
	if (setpgid(v->pid, v->pid))
		return errno;

	return kill(-v->pid, SIGKILL) ? errno : 0;
}

static int kill_by_pidfd(struct victim *v)
{
	return send_signal(v->pidfd, SIGKILL, NULL, 0);
}

static int kill_queued(struct victim *v)
{
	union sigval value = {};

	return sigqueue(v->pid, SIGKILL, value) ? errno : 0;
}

/* The kernel itself kills: the parent, a thread of ours, is gone. */
static int kill_by_orphaning(struct victim *v);

/* Of the running test. */
static const char *cgroup;

static int kill_by_file(struct victim *v)
{
	return cgroup_write(cgroup, "cgroup.kill", "1");
}

/* The memory that the victim has is more than it may have. */
static int kill_by_oom(struct victim *v)
{
	return cgroup_write(cgroup, "memory.max", "1M");
}

FIXTURE(size) {
	struct watch watch;
	struct cgroups cgroups;
	long kills;
};

FIXTURE_VARIANT(size) {
	int (*how)(struct victim *v);
	bool cgroup;
	/* Dies of its parent's death, and so is started by another thread. */
	bool orphan;
	/* The OOM reaper frees it, too, whatever the size. */
	bool oom;
};

FIXTURE_VARIANT_ADD(size, kill) { .how = kill_plain };
FIXTURE_VARIANT_ADD(size, tgkill) { .how = kill_by_tgkill };
FIXTURE_VARIANT_ADD(size, tkill) { .how = kill_by_tkill };
FIXTURE_VARIANT_ADD(size, group) { .how = kill_group };
FIXTURE_VARIANT_ADD(size, pidfd) { .how = kill_by_pidfd };
FIXTURE_VARIANT_ADD(size, sigqueue) { .how = kill_queued };
FIXTURE_VARIANT_ADD(size, orphan) { .how = kill_by_orphaning, .orphan = true };
FIXTURE_VARIANT_ADD(size, cgroup) { .how = kill_by_file, .cgroup = true };
FIXTURE_VARIANT_ADD(size, oom) {
	.how = kill_by_oom, .cgroup = true, .oom = true
};

/**
 * struct parent - a thread of the test that has a victim for a child
 * @thread: itself
 * @victim: its child
 * @ops: what that does
 * @verdict: of its start
 * @born: there is a verdict
 * @leave: it may end, which kills the victim
 */
struct parent {
	pthread_t thread;
	struct victim *victim;
	const struct victim_ops *ops;
	enum verdict verdict;
	pthread_barrier_t born;
	pthread_barrier_t leave;
};

static struct parent parent;

static void *parent_fn(void *arg)
{
	parent.verdict = victim_start(parent.victim, parent.ops);
	pthread_barrier_wait(&parent.born);
	pthread_barrier_wait(&parent.leave);

	return NULL;
}

static enum verdict start_by_thread(struct victim *v,
				    const struct victim_ops *ops)
{
	parent.victim = v;
	parent.ops = ops;
	pthread_barrier_init(&parent.born, NULL, 2);
	pthread_barrier_init(&parent.leave, NULL, 2);
	if (pthread_create(&parent.thread, NULL, parent_fn, NULL))
		return BAD;
	pthread_barrier_wait(&parent.born);

	return parent.verdict;
}

static int kill_by_orphaning(struct victim *v)
{
	pthread_barrier_wait(&parent.leave);
	pthread_join(parent.thread, NULL);

	return 0;
}

FIXTURE_SETUP(size)
{
	const char *missing = watch_begin(&self->watch);

	if (missing)
		SKIP(return, "%s", missing);
	if (variant->cgroup) {
		missing = cgroups_begin(&self->cgroups, "+cpu +memory");
		if (missing) {
			watch_restore(&self->watch);
			SKIP(return, "%s", missing);
		}
		cgroup = self->cgroups.top;
	}
	ASSERT_TRUE(write_file(MIN_KBYTES, MIN_TEXT));
	self->kills = counter("expedite_kill");
}

FIXTURE_TEARDOWN_PARENT(size)
{
	cgroups_end(&self->cgroups);
	wait_alone();
	watch_end(_metadata, &self->watch);
}

#define START(bytes)							\
do {									\
	struct victim_ops _ops = { &memory, region_fill };	\
									\
	memory = (struct region){ .size = bytes, .seed = 1 };	\
	if (variant->cgroup)						\
		memory.cgroup = cgroup;			\
	ASSERT_EQ(variant->orphan ?					\
		  start_by_thread(&victim, &_ops) :		\
		  victim_start(&victim, &_ops), GOOD);		\
} while (0)

TEST_F_TIMEOUT(size, large_ones_are_freed, LIMIT)
{
	struct told told;
	pid_t pid;

	START(LARGE);
	pid = victim.pid;
	if (variant->oom) {
		/*
		 * The OOM killer holds the task_lock() of its victim. That is
		 * queued when it exits, and the OOM reaper frees it, too.
		 */
		ASSERT_EQ(variant->how(&victim), 0);
		EXPECT_TRUE(dies(&victim));
		ASSERT_TRUE(wait_all_done(pid, &told));
	} else {
		ASSERT_EQ(park(&victim, variant->how), 0);
		EXPECT_TRUE(memory_returns(pid, SHARED_LEFT));
		ASSERT_TRUE(wait_all_done(pid, &told));
		EXPECT_STREQ(told.outcome, "freed");
		EXPECT_GE(told.bytes, LARGE);
	}
	EXPECT_EQ(told.taken, 1);
	EXPECT_STREQ(told.by, "size");
	EXPECT_EQ(counter("expedite_kill"), self->kills + 1);
}

TEST_F_TIMEOUT(size, small_ones_just_die, LIMIT)
{
	pid_t pid;

	START(SMALL);
	pid = victim.pid;
	ASSERT_EQ(park(&victim, variant->how), 0);
	EXPECT_TRUE(variant->oom || memory_stays(pid, SMALL));
	EXPECT_TRUE(never_queued(pid));
	EXPECT_EQ(counter("expedite_kill"), self->kills);
}

TEST_F_TIMEOUT(size, all_just_die_without, LIMIT)
{
	pid_t pid;

	ASSERT_TRUE(write_file(MIN_KBYTES, "0"));
	START(LARGE);
	pid = victim.pid;
	ASSERT_EQ(park(&victim, variant->how), 0);
	EXPECT_TRUE(variant->oom || memory_stays(pid, LARGE));
	EXPECT_TRUE(never_queued(pid));
	EXPECT_EQ(counter("expedite_kill"), self->kills);
}

TEST_F_TIMEOUT(size, they_die, LIMIT)
{
	START(LARGE);
	ASSERT_EQ(variant->how(&victim), 0);
	EXPECT_TRUE(dies(&victim));
}

/* --- The value, and what does not count as a kill --- */

FIXTURE(value) {
	struct watch watch;
	long kills;
};

FIXTURE_SETUP(value)
{
	const char *missing = watch_begin(&self->watch);

	if (missing)
		SKIP(return, "%s", missing);
	self->kills = counter("expedite_kill");
}

FIXTURE_TEARDOWN_PARENT(value)
{
	wait_alone();
	watch_end(_metadata, &self->watch);
}

TEST_F_TIMEOUT(value, bad_ones_change_nothing, LIMIT)
{
	static const char * const bad[] = {
		"-1", "-8192", "x", "8k", "0x", "99999999999999999999999",
	};
	char text[32];

	ASSERT_TRUE(write_file(MIN_KBYTES, MIN_TEXT));
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		write_file(MIN_KBYTES, bad[i]);
		ASSERT_TRUE(read_file(MIN_KBYTES, text, sizeof(text)));
		ASSERT_STREQ(text, MIN_TEXT "\n") {
			TH_LOG("after '%s'", bad[i]);
		}
	}
	EXPECT_FALSE(write_file(MIN_KBYTES, "x"));
}

/* More than any process has; some are 0 after an overflow in bytes. */
TEST_F_TIMEOUT(value, the_largest, LIMIT)
{
	static const char * const values[] = {
		"18446744073709551615", "18014398509481984", "4294967295",
		"4194304",
	};
	struct victim_ops ops = { &memory, region_fill };
	unsigned int taken = 0;

	memory = (struct region){ .size = LARGE, .seed = 2 };
	for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
		if (!write_file(MIN_KBYTES, values[i]))
			continue;
		taken++;
		ASSERT_EQ(victim_start(&victim, &ops), GOOD);
		ASSERT_EQ(park(&victim, kill_plain), 0);
		EXPECT_TRUE(memory_stays(victim.pid, LARGE)) {
			TH_LOG("with %s", values[i]);
		}
		victim_end(&victim);
	}
	EXPECT_GE(taken, 1);
	EXPECT_EQ(counter("expedite_kill"), self->kills);
}

/* The flag does not care how large a victim is, if it is worth it at all. */
TEST_F_TIMEOUT(value, the_flag_beside_it, LIMIT)
{
	struct victim_ops ops = { &memory, region_fill };
	struct told told;
	pid_t pid;

	ASSERT_TRUE(write_file(MIN_KBYTES, MIN_TEXT));
	memory = (struct region){ .size = SMALL, .seed = 3 };
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	pid = victim.pid;
	ASSERT_EQ(park(&victim, kill_expedited), 0);
	EXPECT_TRUE(memory_returns(pid, 0));
	ASSERT_TRUE(wait_all_done(pid, &told));
	EXPECT_STREQ(told.by, "flag");
	victim_end(&victim);

	/* A large one is found by both, and taken on once. */
	memory = (struct region){ .size = LARGE, .seed = 4 };
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	pid = victim.pid;
	ASSERT_EQ(park(&victim, kill_expedited), 0);
	EXPECT_TRUE(memory_returns(pid, 0));
	ASSERT_TRUE(wait_all_done(pid, &told));
	EXPECT_GE(told.bytes, LARGE);
}

TEST_F_TIMEOUT(value, switched_off, LIMIT)
{
	struct victim_ops ops = { &memory, region_fill };

	if (!watch_switch(&self->watch))
		SKIP(return, "cannot be switched off while running");
	ASSERT_TRUE(write_file(MIN_KBYTES, MIN_TEXT));
	ASSERT_TRUE(write_file(SWITCH, "N"));
	memory = (struct region){ .size = LARGE, .seed = 5 };
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_EQ(park(&victim, kill_plain), 0);
	EXPECT_TRUE(memory_stays(victim.pid, LARGE));
	EXPECT_EQ(counter("expedite_kill"), self->kills);
	victim_end(&victim);

	/* And on again, with the value that it had. */
	ASSERT_TRUE(write_file(SWITCH, "Y"));
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_EQ(park(&victim, kill_plain), 0);
	EXPECT_TRUE(memory_returns(victim.pid, 0));
}

#ifdef CLONE_PIDFD_AUTOKILL
/* Dies with the last user of a file, which sends no signal of its own. */
TEST_F_TIMEOUT(value, killed_by_closing_its_pidfd, LIMIT)
{
	int pidfd, other, ready[2];
	struct clone_args args = {
		.flags = CLONE_PIDFD | CLONE_PIDFD_AUTOKILL | CLONE_AUTOREAP,
		.pidfd = (uintptr_t)&pidfd,
	};
	struct told told;
	char byte;
	pid_t pid;

	ASSERT_TRUE(write_file(MIN_KBYTES, MIN_TEXT));
	ASSERT_EQ(pipe(ready), 0);
	pid = syscall(__NR_clone3, &args, sizeof(args));
	if (!pid) {
		if (!map(LARGE, MAP_PRIVATE | MAP_POPULATE) ||
		    write(ready[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	ASSERT_GT(pid, 0);
	close(ready[1]);
	ASSERT_EQ(read(ready[0], &byte, 1), 1);
	other = pidfd_of(pid, 0);
	ASSERT_GE(other, 0);
	close(pidfd);
	EXPECT_TRUE(pidfd_exits(other, PATIENCE));
	ASSERT_TRUE(wait_all_done(pid, &told));
	EXPECT_EQ(told.taken, 1);
	EXPECT_STREQ(told.by, "size");
}
#endif

static int kill_by_term(struct victim *v)
{
	return kill(v->pid, SIGTERM) ? errno : 0;
}

/* Only SIGKILL is about getting memory back, others may want to leave more. */
TEST_F_TIMEOUT(value, other_signals, LIMIT)
{
	struct victim_ops ops = { &memory, region_fill };

	ASSERT_TRUE(write_file(MIN_KBYTES, MIN_TEXT));
	memory = (struct region){ .size = LARGE, .seed = 6 };
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	/* The tracer passes SIGTERM on. */
	ASSERT_TRUE(seize_threads(&parking, &victim));
	ASSERT_EQ(kill_by_term(&victim), 0);
	ASSERT_EQ(waitpid(victim.pid, NULL, __WALL), victim.pid);
	ASSERT_EQ(ptrace(PTRACE_CONT, victim.pid, NULL, SIGTERM), 0);
	ASSERT_TRUE(wait_parked(victim.pid));
	victim.parked = true;
	EXPECT_TRUE(memory_stays(victim.pid, LARGE));
	EXPECT_EQ(counter("expedite_kill"), self->kills);
}

/* Threads that an exec gets rid of are killed, but the process is not. */
TEST_F_TIMEOUT(value, threads_killed_by_exec, LIMIT)
{
	int status;
	pid_t pid;

	ASSERT_TRUE(write_file(MIN_KBYTES, "1024"));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		struct region region = {
			.size = LARGE, .seed = 7, .threads = 3
		};

		if (region_fill(&region) != GOOD)
			_exit(1);
		exec_self("1");
	}
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	EXPECT_TRUE(never_queued(pid));
}

/* --- How much of a CPU --- */

#define WORKQUEUE	"/sys/devices/virtual/workqueue/memreap_expedite"

/* So large that it takes a worker several turns... */
#define SEVERAL_TURNS	(96 * MIB)
/* ...and so many that together need several, each much less than one. */
#define MANY		64
/* So many that the middle one is not one in which the machine stalled. */
#define TRIES		5

FIXTURE(percent) {
	struct watch watch;
	char cpus[64];
	char nice[8];
};

FIXTURE_SETUP(percent)
{
	const char *missing = watch_begin(&self->watch);

	if (missing)
		SKIP(return, "%s", missing);
	if (!read_file(WORKQUEUE "/cpumask", self->cpus, sizeof(self->cpus)) ||
	    !read_file(WORKQUEUE "/nice", self->nice, sizeof(self->nice)))
		SKIP(return, "no workqueue");
}

FIXTURE_TEARDOWN_PARENT(percent)
{
	wait_alone();
	if (self->nice[0]) {
		write_file(WORKQUEUE "/nice", self->nice);
		write_file(WORKQUEUE "/cpumask", self->cpus);
	}
	watch_end(_metadata, &self->watch);
}

/* It keeps nobody waiting; where something has set it at boot, it differs. */
TEST_F_TIMEOUT(percent, the_default, LIMIT)
{
	EXPECT_EQ(atoi(self->watch.percent), 75);
}

TEST_F_TIMEOUT(percent, bad_ones_change_nothing, LIMIT)
{
	static const char * const bad[] = {
		"-1", "0", "1", "9", "101", "4294967346", "x", "50%",
	};
	static const char * const good[] = { "10", "50", "100" };
	char text[32];

	ASSERT_TRUE(write_file(CPU_PERCENT, "70"));
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		write_file(CPU_PERCENT, bad[i]);
		ASSERT_TRUE(read_file(CPU_PERCENT, text, sizeof(text)));
		ASSERT_STREQ(text, "70\n") {
			TH_LOG("after '%s'", bad[i]);
		}
	}
	for (size_t i = 0; i < ARRAY_SIZE(good); i++)
		ASSERT_TRUE(write_file(CPU_PERCENT, good[i]));
}

/**
 * struct other - a task that wants to run on the CPU of a worker
 * @thread: itself
 * @cpu: which CPU
 * @ready: it runs
 * @stop: it may end
 */
struct other {
	pthread_t thread;
	int cpu;
	bool ready;
	bool stop;
};

static void *other_fn(void *arg)
{
	struct other *o = arg;

	if (!run_on(o->cpu))
		return NULL;
	__atomic_store_n(&o->ready, true, __ATOMIC_SEQ_CST);
	while (!__atomic_load_n(&o->stop, __ATOMIC_RELAXED))
		;

	return NULL;
}

/*
 * Returns for how long it wanted to run and did not, since some point in time.
 * If the host preempts the CPU, the guest's kernel counts that as running, so it
 * makes no difference.
 */
static long long other_waited(const struct other *o)
{
	struct timespec ran;
	clockid_t clock;

	if (pthread_getcpuclockid(o->thread, &clock) ||
	    clock_gettime(clock, &ran))
		return 0;

	return now_ns() - (ran.tv_sec * 1000000000LL + ran.tv_nsec);
}

/*
 * Kill @nr victims that cannot free anything, with worker and other on one CPU.
 * Returns how much of the time until all is freed the other did not get, in
 * per cent; -1 if it did not work.
 */
static long lost_beside_worker(int cpu, const char *percent, int nr,
			       struct region *region)
{
	struct victim_ops ops = { region, region_fill };
	struct other other = { .cpu = cpu };
	static struct victim v[MANY];
	struct told told;
	long long waited = 0;
	int started = 0;
	bool ok = true;

	while (ok && started < nr) {
		ok = victim_start(&v[started], &ops) == GOOD &&
		     !park(&v[started], kill_plain);
		started++;
	}
	ok = ok && write_file(CPU_PERCENT, percent) &&
	     write_file(INSTANCE "/trace", "\n") &&
	     !pthread_create(&other.thread, NULL, other_fn, &other);
	if (!ok)
		goto end;
	ok = within(PATIENCE, __atomic_load_n(&other.ready, __ATOMIC_SEQ_CST));
	waited = other_waited(&other);
	for (int i = 0; ok && i < nr; i++)
		ok = !kill_expedited(&v[i]);
	ok = ok && within(PATIENCE, all_done(0, &told) && told.done >= nr) &&
	     told.bytes >= nr * region->size;
	waited = other_waited(&other) - waited;
	__atomic_store_n(&other.stop, true, __ATOMIC_RELAXED);
	pthread_join(other.thread, NULL);
end:
	while (started--)
		victim_end(&v[started]);

	return ok ? waited * 100 / (long long)told.ns : -1;
}

/* On one CPU, before all that is not real-time, as by default. */
static bool pin_worker(int cpu)
{
	char mask[16];

	snprintf(mask, sizeof(mask), "%x", 1U << cpu);

	return cpu >= 0 && cpu < 32 &&
	       write_file(WORKQUEUE "/cpumask", mask) &&
	       write_file(WORKQUEUE "/nice", "-20");
}

/* Sorts, for so few. Returns the one in the middle. */
static long median(long *values)
{
	for (int i = 0; i < TRIES; i++) {
		for (int k = i; k > 0 && values[k] < values[k - 1]; k--) {
			long higher = values[k - 1];

			values[k - 1] = values[k];
			values[k] = higher;
		}
	}

	return values[TRIES / 2];
}

/* What a task that shares a CPU with a worker does not get of it, in per cent. */
static void usually_lost(struct __test_metadata *_metadata, const char *percent,
			 int nr, struct region *region, long *lost)
{
	int cpu = sched_getcpu();
	long each[TRIES];

	ASSERT_TRUE(pin_worker(cpu));
	for (int i = 0; i < TRIES; i++) {
		each[i] = lost_beside_worker(cpu, percent, nr, region);
		TH_LOG("%ld %% lost", each[i]);
		ASSERT_GE(each[i], 0);
	}
	*lost = median(each);
}

/* Nothing of it... */
TEST_F_TIMEOUT(percent, all_of_a_cpu, LIMIT)
{
	struct region region = { .size = SEVERAL_TURNS, .seed = 8 };
	long lost;

	usually_lost(_metadata, "100", 1, &region, &lost);
	EXPECT_GE(lost, 85);
}

/* ...or what is left over. */
TEST_F_TIMEOUT(percent, half_of_a_cpu, LIMIT)
{
	struct region region = { .size = SEVERAL_TURNS, .seed = 8 };
	long lost;

	usually_lost(_metadata, "50", 1, &region, &lost);
	EXPECT_LE(lost, 75);
}

/* Many small ones are together as much as a large one. */
TEST_F_TIMEOUT(percent, many_small_ones, LIMIT)
{
	const struct folios folios = { .kib = FOLIO_PMD };
	struct region region = { .size = 2 * MIB, .seed = 9 };
	struct folio_settings settings;
	long lost;

	/* Of small pages (PREEMPT_RT), fewer take as long. */
	if (!folios_begin(&settings, &folios))
		region.folio_kib = folios.kib;
	else
		region.size /= 4;
	usually_lost(_metadata, "10", MANY, &region, &lost);
	folios_end(&settings);
	EXPECT_LE(lost, 50);
}

TEST_HARNESS_MAIN
