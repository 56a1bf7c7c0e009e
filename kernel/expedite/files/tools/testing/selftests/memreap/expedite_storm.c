// SPDX-License-Identifier: GPL-2.0-only
/*
 * Many kills with reclaim at once, and concurrent operations on a victim.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <linux/sched.h>

#include "../kselftest_harness.h"
#include "expedite.h"
#include "folios.h"

/* As many as must be taken on at once, and as many that are in the way. */
#define NR_STORM	200
#define NR_DECOYS	512

/* Victims that the decoys must not delay, their size, and how often to try. */
#define NR_REAL		4
#define REAL_SIZE	(16 * MIB)
#define REAL_TRIES	3
/*
 * How much longer freeing one may take beside them. To look at all decoys once
 * takes twice as long as to free one in a kernel full of checks; to wait for
 * those before it would take a hundred times as long.
 */
#define REAL_DELAY	8

/* Sizes above the minimum for expedited kills; and seconds for a storm. */
#define STORM_MIN	(1152 * 1024UL)
#define STORM_SIZE	(2 * MIB)
#define STORM_LIMIT	600
/* ns within which a fast machine populates STORM_SIZE. */
#define FAST_NS		10000000ULL

/* What an empty cgroup may show: CPUs charge 64 pages in advance. */
#define NOTHING		(MIB + 64 * PAGE * sysconf(_SC_NPROCESSORS_ONLN))

#define NR_KILLERS	3

/* Rounds of a race, however long they take. */
#define FEW_ROUNDS	2
/* And those after which the kernel has said enough about OOMs. */
#define MANY_OOMS	100
/* The variants of a race, which share its time. */
#define NR_RACES	12

/* --- Storms --- */

/**
 * struct storm - victims by the hundred, in a cgroup
 * @nr: how many
 * @pids: of them
 * @pidfds: of them
 * @ready: those that have their memory, in memory shared with them
 */
struct storm {
	unsigned int nr;
	pid_t pids[NR_DECOYS];
	int pidfds[NR_DECOYS];
	unsigned int *ready;
};

FIXTURE(storm) {
	struct watch watch;
	struct cgroups cgroups;
	struct storm storm;
};

FIXTURE_SETUP(storm)
{
	const char *missing = watch_begin_cgroups(&self->watch, &self->cgroups);

	if (missing)
		SKIP(return, "%s", missing);
	self->storm.ready = map(PAGE, MAP_SHARED);
	ASSERT_NE(self->storm.ready, NULL);
}

FIXTURE_TEARDOWN_PARENT(storm)
{
	cgroups_end(&self->cgroups);
	wait_alone();
	watch_end(_metadata, &self->watch);
}

/* A thread with something on its list is not to be reaped at once. */
static bool own_something(void)
{
	struct robust_list_head *head = map(PAGE, MAP_PRIVATE);

	if (!head)
		return false;
	head->list.next = (struct robust_list *)(head + 1);
	head->list.next->next = &head->list;

	return !syscall(__NR_set_robust_list, head, sizeof(*head));
}

static void storm_victim(struct storm *s, size_t size, bool own)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!map(size, MAP_PRIVATE | MAP_POPULATE) ||
	    (own && !own_something()))
		_exit(1);
	__atomic_fetch_add(s->ready, 1, __ATOMIC_SEQ_CST);
	for (;;)
		pause();
}

/* Born in the cgroup: to move there takes each of them longer than its life. */
static bool storm_start(struct storm *s, unsigned int nr, size_t size,
			const char *cgroup, bool own)
{
	int fd = open(cgroup, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return false;
	*s->ready = 0;
	for (s->nr = 0; s->nr < nr; s->nr++) {
		struct clone_args args = {
			.flags = CLONE_INTO_CGROUP | CLONE_PIDFD,
			.pidfd = (uintptr_t)&s->pidfds[s->nr],
			.exit_signal = SIGCHLD,
			.cgroup = fd,
		};
		pid_t pid = syscall(__NR_clone3, &args, sizeof(args));

		if (!pid)
			storm_victim(s, size, own);
		if (pid < 0)
			break;
		s->pids[s->nr] = pid;
	}
	close(fd);

	return s->nr == nr && within(4 * PATIENCE, __atomic_load_n(s->ready,
							    __ATOMIC_SEQ_CST) == nr);
}

/* Makes all stop in do_exit(), before they let go of what they own. */
static bool storm_seize(struct storm *s)
{
	for (unsigned int i = 0; i < s->nr; i++) {
		if (ptrace(PTRACE_SEIZE, s->pids[i], NULL,
			   PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL))
			return false;
	}

	return true;
}

/* Lets them exit. */
static bool storm_unpark(struct storm *s)
{
	for (unsigned int i = 0; i < s->nr; i++) {
		if (!wait_parked(s->pids[i]) ||
		    ptrace(PTRACE_CONT, s->pids[i], NULL, NULL))
			return false;
	}

	return true;
}

/* All died of SIGKILL. */
static bool storm_dies(struct storm *s)
{
	bool well = true;

	for (unsigned int i = 0; i < s->nr; i++) {
		int status;

		if (!pidfd_exits(s->pidfds[i], 8 * PATIENCE) ||
		    waitpid(s->pids[i], &status, __WALL) != s->pids[i] ||
		    !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
			well = false;
		close(s->pidfds[i]);
	}

	return well;
}

/* What each of @nr can have of memory and of time; 0 if there is too little. */
static size_t storm_size(unsigned int nr)
{
	size_t each = sysconf(_SC_AVPHYS_PAGES) * PAGE / 5 * 4 / nr;
	unsigned long long begin = now_ns();

	munmap(map(STORM_SIZE, MAP_PRIVATE | MAP_POPULATE), STORM_SIZE);
	if (each >= STORM_SIZE && now_ns() - begin < FAST_NS)
		return STORM_SIZE;

	return each >= STORM_MIN ? STORM_MIN : 0;
}

TEST_F_TIMEOUT(storm, many_at_once, STORM_LIMIT)
{
	long kills = counter("expedite_kill"), fails = counter("expedite_fail");
	struct storm *s = &self->storm;
	size_t size = storm_size(NR_STORM);
	unsigned long long begin;
	struct told told;

	if (!size)
		SKIP(return, "needs %lu MiB", NR_STORM * STORM_MIN / MIB * 5 / 4);
	ASSERT_TRUE(storm_start(s, NR_STORM, size, self->cgroups.top, false)) {
		TH_LOG("%u started, %u ready: %s", s->nr, *s->ready,
		       strerror(errno));
	}
	ASSERT_GE(cgroup_memory(self->cgroups.top), NR_STORM * size);

	begin = now_ns();
	for (unsigned int i = 0; i < s->nr; i++) {
		ASSERT_EQ(send_signal(s->pidfds[i], SIGKILL, NULL,
				      PIDFD_SIGNAL_EXPEDITE), 0);
	}
	TH_LOG("%u kills of %zu KiB in %llu us", s->nr, size / 1024,
	       (now_ns() - begin) / 1000);
	EXPECT_TRUE(storm_dies(s));
	EXPECT_TRUE(within(PATIENCE,
			   cgroup_memory(self->cgroups.top) < 16 * MIB));
	TH_LOG("memory is back after %llu us", (now_ns() - begin) / 1000);

	/*
	 * Each of them was worth it, but for those that had exited before the
	 * killer looked, and none was forgotten.
	 */
	EXPECT_TRUE(wait_all_done(0, &told));
	EXPECT_LE(told.taken, NR_STORM);
	EXPECT_GE(told.taken, NR_STORM / 2);
	EXPECT_EQ(told.done, told.taken);
	EXPECT_EQ(counter("expedite_kill") - kills, told.taken);
	/* After two seconds there is no further attempt. */
	EXPECT_EQ(counter("expedite_fail") - fails, told.gave_up);
	EXPECT_EQ(told.early, 0);
	TH_LOG("%u freed by workers, %lu MiB", told.freed, told.bytes / MIB);
}

/* Victims that free nothing themselves, ready to be killed. */
static bool start_real(struct victim *v)
{
	static struct region region;
	struct victim_ops ops = { &region, region_fill };

	region = (struct region){ .size = REAL_SIZE, .seed = 9 };
	for (int i = 0; i < NR_REAL; i++) {
		if (victim_start(&v[i], &ops) != GOOD)
			return false;
	}

	return true;
}

/* Kills them one by one. Returns the shortest time to free one, ns, or 0. */
static unsigned long long free_real(struct victim *v)
{
	unsigned long long best = 0;
	struct told told;

	for (int i = 0; i < NR_REAL; i++) {
		if (park(&v[i], kill_expedited) ||
		    !wait_all_done(v[i].pid, &told) ||
		    strcmp(told.outcome, "freed") || told.bytes < REAL_SIZE)
			return 0;
		if (!best || told.ns < best)
			best = told.ns;
	}

	return best;
}

static void end_real(struct victim *v)
{
	for (int i = 0; i < NR_REAL; i++)
		victim_end(&v[i]);
}

/*
 * Victims that cannot be freed for as long as the kernel retries do not delay
 * one that can, whoever killed them. A machine with other things to do gets a
 * few tries.
 */
TEST_F_TIMEOUT(storm, decoys, STORM_LIMIT)
{
	long kills = counter("expedite_kill");
	struct storm *s = &self->storm;
	struct victim real[NR_REAL] = {};
	unsigned long long alone, beside;
	struct told told;
	int i;

	if (!storm_size(NR_DECOYS))
		SKIP(return, "needs %lu MiB",
		     NR_DECOYS * STORM_MIN / MIB * 5 / 4);
	/* Or the worker leaves its CPU to decoys, which is no delay in the queue. */
	ASSERT_TRUE(write_file(CPU_PERCENT, "100"));
	for (i = 0; i < REAL_TRIES; i++) {
		trace_clear();
		ASSERT_TRUE(start_real(real));
		alone = free_real(real);
		ASSERT_GT(alone, 0);
		end_real(real);

		ASSERT_TRUE(start_real(real));
		ASSERT_TRUE(storm_start(s, NR_DECOYS, STORM_MIN,
					self->cgroups.top, true)) {
			TH_LOG("%u started, %u ready: %s", s->nr, *s->ready,
			       strerror(errno));
		}
		ASSERT_TRUE(storm_seize(s));
		for (unsigned int k = 0; k < s->nr; k++) {
			ASSERT_EQ(send_signal(s->pidfds[k], SIGKILL, NULL,
					      PIDFD_SIGNAL_EXPEDITE), 0);
		}
		beside = free_real(real);
		ASSERT_GT(beside, 0);
		end_real(real);

		/* None is left out. */
		EXPECT_TRUE(within(8 * PATIENCE, all_done(0, &told)));
		EXPECT_EQ(told.taken, NR_DECOYS + 2 * NR_REAL);
		EXPECT_EQ(told.early, 0);
		ASSERT_TRUE(storm_unpark(s));
		EXPECT_TRUE(storm_dies(s));
		EXPECT_TRUE(within(PATIENCE,
				   cgroup_memory(self->cgroups.top) < 16 * MIB));
		TH_LOG("freed in %llu us, beside %d decoys in %llu us",
		       alone / 1000, NR_DECOYS, beside / 1000);
		if (beside <= REAL_DELAY * alone)
			break;
	}
	EXPECT_LT(i, REAL_TRIES);
	EXPECT_GE(counter("expedite_kill") - kills, NR_DECOYS + 2 * NR_REAL);
}

/* There is a child most of the time, and always one that is just born. */
static void forker_run(void *arg)
{
	for (;;) {
		pid_t pid = fork();

		if (!pid)
			_exit(0);
		if (pid > 0)
			waitpid(pid, NULL, WNOHANG);
	}
}

TEST_F_TIMEOUT(storm, forks_in_a_cgroup, LIMIT)
{
	struct region region = {
		.size = 2 * MIB, .seed = 2, .cgroup = self->cgroups.top
	};
	struct victim_ops ops = { &region, region_fill, .run = forker_run };
	struct stress stress = { .min_rounds = FEW_ROUNDS };
	unsigned long long seed = 1;
	struct victim forkers[4];

	TH_LOG("seed %llu", seed);
	while (stress_continues(&stress)) {
		for (size_t i = 0; i < ARRAY_SIZE(forkers); i++) {
			ASSERT_EQ(victim_start(&forkers[i], &ops), GOOD) {
				TH_LOG("forker %zu", i);
			}
		}
		usleep(rnd(&seed) % 20000);
		ASSERT_EQ(cgroup_write(self->cgroups.top, "cgroup.kill",
				       "1 expedite"), 0);
		for (size_t i = 0; i < ARRAY_SIZE(forkers); i++)
			EXPECT_TRUE(dies(&forkers[i]));
		/* One that was just being born is gone as well. */
		EXPECT_TRUE(cgroup_empties(self->cgroups.top));
		while (waitpid(-1, NULL, 0) > 0)
			;
		EXPECT_TRUE(within(PATIENCE,
				   cgroup_memory(self->cgroups.top) <
				   region.size)) {
			TH_LOG("%ld KiB left",
			       cgroup_memory(self->cgroups.top) / 1024);
		}
	}
}

/* --- What victims do meanwhile --- */

static unsigned long long victim_seed;

/* How long some of those in a race wait, at most, in us. */
#define MAX_WAIT_US	3000

static void exit_run(void *arg)
{
	short_wait(&victim_seed, MAX_WAIT_US);
	_exit(0);
}

static void exec_run(void *arg)
{
	short_wait(&victim_seed, MAX_WAIT_US);
	exec_self("1");
}

static void *exec_fn(void *arg)
{
	exec_run(arg);

	return NULL;
}

/* A thread that execs takes the leader's place; the others are killed. */
static void exec_by_thread_run(void *arg)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, exec_fn, arg))
		_exit(1);
	for (;;)
		pause();
}

static void *map_fn(void *arg)
{
	unsigned long long seed = (uintptr_t)arg;

	for (;;) {
		size_t size = (1 + rnd(&seed) % 64) * PAGE;
		char *mem = map(size, MAP_PRIVATE);

		if (!mem)
			continue;
		fill(mem, size, 1);
		mprotect(mem, PAGE, rnd(&seed) % 2 ? PROT_READ : PROT_NONE);
		madvise(mem + size / 2, size / 2, MADV_DONTNEED);
		munmap(mem, rnd(&seed) % 8 ? size : PAGE);
	}

	return NULL;
}

static void map_run(void *arg)
{
	pthread_t thread;

	for (uintptr_t i = 1; i < 4; i++) {
		if (pthread_create(&thread, NULL, map_fn, (void *)i))
			_exit(1);
	}
	map_fn((void *)4);
}

/* --- What is done to them --- */

/**
 * struct attack - several at one victim, all starting at the same moment
 * @how: what they do; give 0 or an errno
 * @v: the victim
 * @cgroup: it is in, NULL if there are none
 * @threads: one for each of @how
 * @err: and what came of it
 * @seeds: for the moments when they do it
 * @nr: how many
 * @go: the moment
 * @next: the next one to start
 */
struct attack {
	int (*how[NR_KILLERS])(struct attack *a);
	struct victim *v;
	const char *cgroup;
	pthread_t threads[NR_KILLERS];
	int err[NR_KILLERS];
	unsigned long long seeds[NR_KILLERS];
	unsigned int nr;
	pthread_barrier_t go;
	unsigned int next;
};

static int by_flag(struct attack *a)
{
	return kill_expedited(a->v);
}

static int by_file(struct attack *a)
{
	return cgroup_write(a->cgroup, "cgroup.kill", "1 expedite");
}

/* From before it is killed: EINVAL until then. */
static int by_mrelease(struct attack *a)
{
	int err;

	do {
		err = mrelease(a->v->pidfd);
	} while (err == EINVAL && !kill(a->v->pid, 0));

	/* If the kill fails, this is too late, too. */
	return err == EINVAL ? ESRCH : err;
}

/* Holds the address space, and its lock. */
static int by_reading(struct attack *a)
{
	for (int i = 0; i < 50 && rss(a->v->pid) >= 0; i++)
		;

	return 0;
}

/* Wants the lock for itself. */
static int by_locking(struct attack *a)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/clear_refs", a->v->pid);
	for (int i = 0; i < 50 && write_file(path, "5"); i++)
		;

	return 0;
}

static void *attack_fn(void *arg)
{
	struct attack *a = arg;
	unsigned int i = __atomic_fetch_add(&a->next, 1, __ATOMIC_RELAXED);

	pthread_barrier_wait(&a->go);
	short_wait(&a->seeds[i], MAX_WAIT_US);
	a->err[i] = a->how[i](a);

	return NULL;
}

static bool attack(struct attack *a)
{
	pthread_barrier_init(&a->go, NULL, a->nr);
	for (unsigned int i = 0; i < a->nr; i++) {
		if (pthread_create(&a->threads[i], NULL, attack_fn, a))
			return false;
	}
	for (unsigned int i = 0; i < a->nr; i++)
		pthread_join(a->threads[i], NULL);
	pthread_barrier_destroy(&a->go);

	return true;
}

/* Memory that victims begin with, and that stays ours. */
static struct region cow;

FIXTURE(race) {
	struct watch watch;
	struct cgroups cgroups;
	const char *cgroup;
	struct folio_settings settings;
};

FIXTURE_VARIANT(race) {
	void (*run)(void *arg);
	/* It may end by itself, and well. */
	bool exits;
	struct folios folios;
};

FIXTURE_VARIANT_ADD(race, idle) {};
FIXTURE_VARIANT_ADD(race, exit) { .run = exit_run, .exits = true };
FIXTURE_VARIANT_ADD(race, fork) { .run = region_fork };
FIXTURE_VARIANT_ADD(race, exec) { .run = exec_run, .exits = true };
FIXTURE_VARIANT_ADD(race, map) { .run = map_run };
FIXTURE_VARIANT_ADD(race, exec_by_thread) {
	.run = exec_by_thread_run, .exits = true
};

FIXTURE_VARIANT_ADD(race, idle_thp) { .folios = { .kib = FOLIO_PMD } };
FIXTURE_VARIANT_ADD(race, idle_other_lru) { .folios = { .other_lru = true } };

FIXTURE_VARIANT_ADD(race, exit_thp_other_lru) {
	.run = exit_run, .exits = true, .folios = { FOLIO_PMD, true }
};

FIXTURE_VARIANT_ADD(race, exit_mthp) {
	.run = exit_run, .exits = true, .folios = { .kib = FOLIO_MTHP }
};

FIXTURE_VARIANT_ADD(race, fork_thp) {
	.run = region_fork, .folios = { .kib = FOLIO_PMD }
};

FIXTURE_VARIANT_ADD(race, fork_mthp_other_lru) {
	.run = region_fork, .folios = { FOLIO_MTHP, true }
};

FIXTURE_SETUP(race)
{
	const char *missing = watch_begin(&self->watch);

	if (missing)
		SKIP(return, "%s", missing);
	missing = folios_begin(&self->settings, &variant->folios);
	if (missing) {
		watch_restore(&self->watch);
		SKIP(return, "%s", missing);
	}
	missing = cgroups_begin(&self->cgroups, "+cpu +memory");
	if (missing)
		TH_LOG("%s", missing);
	else
		self->cgroup = self->cgroups.top;
	cow = (struct region){
		.size = 2 * MIB, .seed = 3, .folio_kib = variant->folios.kib
	};
	ASSERT_EQ(region_fill(&cow), GOOD);
}

FIXTURE_TEARDOWN_PARENT(race)
{
	folios_end(&self->settings);
	cgroups_end(&self->cgroups);
	wait_alone();
	watch_end(_metadata, &self->watch);
}

/* Those left behind by victims, with their memory intact. */
static void expect_children_well(struct __test_metadata *_metadata,
				 bool may_be_killed)
{
	int status;

	while (waitpid(-1, &status, __WALL) > 0) {
		EXPECT_TRUE(!status || (may_be_killed && WIFSIGNALED(status) &&
					WTERMSIG(status) == SIGKILL)) {
			TH_LOG("status %#x", status);
		}
	}
}

/* The killer, and two beside it. */
static void race(struct __test_metadata *_metadata,
		 struct _test_data_race *self,
		 const struct _fixture_variant_race *variant,
		 int (*second)(struct attack *a), int (*third)(struct attack *a),
		 unsigned long long seed)
{
	struct region region = {
		.size = 2 * MIB + NOTHING,
		.seed = 4,
		.cgroup = self->cgroup,
		.threads = 1,
		.folio_kib = variant->folios.kib,
	};
	unsigned int met = 0;
	struct stress stress = {
		.min_rounds = FEW_ROUNDS, .variants = NR_RACES, .met = &met
	};
	struct victim_ops ops = { &region, region_fill, .run = variant->run };
	long folios = folios_allocated(&self->settings);
	struct told told;

	TH_LOG("seed %llu", seed);
	while (stress_continues(&stress)) {
		struct attack a = {
			.v = &victim,
			.cgroup = self->cgroup,
			.how = { by_flag, second, third },
			.nr = NR_KILLERS,
		};
		int status;

		for (int k = 0; k < NR_KILLERS; k++)
			a.seeds[k] = rnd(&seed) | 1;
		victim_seed = rnd(&seed) | 1;
		ASSERT_EQ(victim_start(&victim, &ops), GOOD);
		ASSERT_TRUE(attack(&a));
		for (int k = 0; k < NR_KILLERS; k++) {
			/* It was faster, or, for some, another one was. */
			EXPECT_TRUE(!a.err[k] || a.err[k] == ESRCH) {
				TH_LOG("attacker %d: errno %d", k, a.err[k]);
			}
		}
		status = victim_status(&victim);
		EXPECT_TRUE((WIFSIGNALED(status) &&
			     WTERMSIG(status) == SIGKILL) ||
			    (variant->exits && !status)) {
			TH_LOG("status %#x", status);
		}
		expect_children_well(_metadata, second == by_file);
		ASSERT_EQ(region_check(&cow), GOOD);
		read_events(0, &told);
		trace_clear();
		met += told.taken;
		if (self->cgroup)
			EXPECT_TRUE(within(PATIENCE, cgroup_memory(self->cgroup) <
						     (long)NOTHING));
	}
	if (variant->folios.kib)
		EXPECT_GT(folios_allocated(&self->settings), folios);
}

TEST_F_TIMEOUT(race, two_kills, LIMIT)
{
	race(_metadata, self, variant, by_flag, by_reading, 1);
}

TEST_F_TIMEOUT(race, mrelease, LIMIT)
{
	race(_metadata, self, variant, by_mrelease, by_mrelease, 2);
}

TEST_F_TIMEOUT(race, lock, LIMIT)
{
	race(_metadata, self, variant, by_locking, by_reading, 3);
}

TEST_F_TIMEOUT(race, cgroup_kill, LIMIT)
{
	if (!self->cgroup)
		SKIP(return, "no cgroups");
	race(_metadata, self, variant, by_file, by_mrelease, 4);
}

FIXTURE(beside) {
	struct watch watch;
	struct cgroups cgroups;
};

FIXTURE_SETUP(beside)
{
	const char *missing = watch_begin(&self->watch);

	if (missing)
		SKIP(return, "%s", missing);
}

FIXTURE_TEARDOWN_PARENT(beside)
{
	cgroups_end(&self->cgroups);
	wait_alone();
	watch_end(_metadata, &self->watch);
}

/**
 * struct launcher - a process with a child in its own memory, again and again
 * @region: the memory
 * @child: the one that is about to exec
 */
struct launcher {
	struct region region;
	pid_t child;
};

static enum verdict launcher_prepare(void *arg)
{
	struct launcher *l = arg;

	return region_fill(&l->region);
}

static enum verdict launcher_launch(void *arg)
{
	struct launcher *l = arg;
	pid_t pid = vfork();

	if (!pid) {
		__atomic_store_n(&l->child, syscall(__NR_getpid),
				 __ATOMIC_SEQ_CST);
		exec_self("1");
	}
	if (pid < 0)
		return BAD;
	/* Until it is known to be dead. */
	while (!waitpid(pid, NULL, WNOHANG)) {
		if (region_check(&l->region) != GOOD)
			return BAD;
	}

	return region_check(&l->region);
}

/*
 * The child is killed while it leaves the parent's memory for its own: only
 * its own may be taken.
 */
TEST_F_TIMEOUT(beside, vfork_and_exec, LIMIT)
{
	struct launcher *l = map(PAGE, MAP_SHARED);
	struct victim_ops ops = { l, launcher_prepare, launcher_launch };
	unsigned int killed = 0;
	struct stress stress = { .min_rounds = FEW_ROUNDS, .met = &killed };
	unsigned long long seed = 5;
	char byte = 0;

	TH_LOG("seed %llu", seed);
	ASSERT_NE(l, NULL);
	l->region = (struct region){ .size = 4 * MIB, .seed = 5 };
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	while (stress_continues(&stress)) {
		struct victim child = {};

		l->child = 0;
		ASSERT_EQ(write(victim.talk, &byte, 1), 1);
		ASSERT_TRUE(within(PATIENCE, __atomic_load_n(&l->child,
							     __ATOMIC_SEQ_CST)));
		child.pid = l->child;
		child.pidfd = pidfd_of(child.pid, 0);
		if (rnd(&seed) % 4)
			usleep(rnd(&seed) % 3000);
		if (child.pidfd >= 0) {
			killed += !kill_expedited(&child);
			close(child.pidfd);
		}
		ASSERT_EQ(read(victim.talk, &byte, 1), 1);
		ASSERT_EQ(byte, GOOD);
	}
	/* Until the last of what was taken on would have been freed. */
	usleep(2500000);
	EXPECT_EQ(victim_check(&victim), GOOD);
	TH_LOG("%u of %u killed", killed, stress.rounds);
}

static void sharers_run(void *arg)
{
	struct sharer *s = arg;

	for (int i = 0; i < 3; i++)
		start_sharer(s);
	for (;;)
		pause();
}

static enum verdict sharers_prepare(void *arg)
{
	struct sharer *s = arg;

	return region_fill(&s->region);
}

TEST_F_TIMEOUT(beside, new_sharers, LIMIT)
{
	struct sharer *s = map(PAGE, MAP_SHARED);
	struct victim_ops ops = {
		s, sharers_prepare, .run = sharers_run
	};
	unsigned int shared = 0;
	struct stress stress = { .min_rounds = FEW_ROUNDS, .met = &shared };
	unsigned long long seed = 6;

	TH_LOG("seed %llu", seed);
	ASSERT_NE(s, NULL);
	while (stress_continues(&stress)) {
		memset(s, 0, sizeof(*s));
		s->region = (struct region){ .size = 2 * MIB, .seed = 6 };
		ASSERT_EQ(victim_start(&victim, &ops), GOOD);
		/* From before the first sharer to after the last. */
		short_wait(&seed, MAX_WAIT_US);
		ASSERT_EQ(kill_expedited(&victim), 0);
		ASSERT_TRUE(dies(&victim));
		usleep(5000);
		shared += !!s->alive;
		__atomic_store_n(&s->stop, 1, __ATOMIC_SEQ_CST);
		expect_children_well(_metadata, false);
		ASSERT_EQ(s->spoiled, 0);
	}
	TH_LOG("%u of %u victims had sharers", shared, stress.rounds);
}

static int by_oom(struct attack *a)
{
	return cgroup_write(a->cgroup, "memory.max", "1M");
}

TEST_F_TIMEOUT(beside, out_of_memory, LIMIT)
{
	const char *missing = cgroups_begin(&self->cgroups, "+cpu +memory");
	struct region region = {
		.size = 16 * MIB, .seed = 7, .cgroup = self->cgroups.top
	};
	struct victim_ops ops = { &region, region_fill };
	struct stress stress = {
		.min_rounds = FEW_ROUNDS, .max_rounds = MANY_OOMS
	};
	unsigned long long seed = 7;

	if (missing)
		SKIP(return, "%s", missing);
	TH_LOG("seed %llu", seed);
	while (stress_continues(&stress)) {
		struct attack a = {
			.v = &victim,
			.cgroup = self->cgroups.top,
			.how = { by_flag, by_oom, by_flag },
			.nr = NR_KILLERS,
		};

		for (int k = 0; k < NR_KILLERS; k++)
			a.seeds[k] = rnd(&seed) | 1;
		ASSERT_EQ(cgroup_write(a.cgroup, "memory.max", "max"), 0);
		ASSERT_EQ(victim_start(&victim, &ops), GOOD);
		ASSERT_TRUE(attack(&a));
		EXPECT_TRUE(dies(&victim));
		EXPECT_TRUE(within(PATIENCE,
				   cgroup_memory(a.cgroup) < (long)NOTHING));
	}
}

TEST_HARNESS_MAIN
