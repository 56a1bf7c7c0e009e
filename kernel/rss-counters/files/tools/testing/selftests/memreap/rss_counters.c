// SPDX-License-Identifier: GPL-2.0-only
/*
 * RSS counters: the kernel counts exactly the pages in a process's page tables,
 * whichever task added them and on whichever CPU.
 */
#define _GNU_SOURCE
#include <linux/io_uring.h>
#include <spawn.h>
#include <sys/syscall.h>

#include "../kselftest_harness.h"
#include "rss_counters.h"

extern char **environ;

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif

/* Pages of a counter that a CPU may hold back with threads. */
#define MOST_HELD	31

FIXTURE(rss) {
	bool swap;
};

FIXTURE_SETUP(rss)
{
	if (!counters_supported())
		SKIP(return, "no counters of this kind");
	watch_begin();
}

FIXTURE_TEARDOWN_PARENT(rss)
{
	if (self->swap)
		zram_off(0);
	watch_end(_metadata);
}

/* --- One task that gets around --- */

FIXTURE(hop) {
};

/* How much on each CPU, and what more there is in the process. */
FIXTURE_VARIANT(hop) {
	size_t pages;
	bool threaded;
	int flags;
};

FIXTURE_VARIANT_ADD(hop, alone_1) {
	.pages = 1, .flags = MAP_PRIVATE
};

FIXTURE_VARIANT_ADD(hop, threaded_1) {
	.pages = 1, .flags = MAP_PRIVATE, .threaded = true
};

FIXTURE_VARIANT_ADD(hop, alone_31) {
	.pages = 31, .flags = MAP_PRIVATE
};

FIXTURE_VARIANT_ADD(hop, threaded_31) {
	.pages = 31, .flags = MAP_PRIVATE, .threaded = true
};

FIXTURE_VARIANT_ADD(hop, alone_32) {
	.pages = 32, .flags = MAP_PRIVATE
};

FIXTURE_VARIANT_ADD(hop, threaded_32) {
	.pages = 32, .flags = MAP_PRIVATE, .threaded = true
};

FIXTURE_VARIANT_ADD(hop, alone_33) {
	.pages = 33, .flags = MAP_PRIVATE
};

FIXTURE_VARIANT_ADD(hop, threaded_33) {
	.pages = 33, .flags = MAP_PRIVATE, .threaded = true
};

FIXTURE_VARIANT_ADD(hop, alone_100) {
	.pages = 100, .flags = MAP_PRIVATE
};

FIXTURE_VARIANT_ADD(hop, threaded_100) {
	.pages = 100, .flags = MAP_PRIVATE, .threaded = true
};

FIXTURE_VARIANT_ADD(hop, alone_shared) {
	.pages = 31, .flags = MAP_SHARED
};

FIXTURE_VARIANT_ADD(hop, threaded_shared) {
	.pages = 31, .flags = MAP_SHARED, .threaded = true
};

FIXTURE_SETUP(hop)
{
	if (!counters_supported())
		SKIP(return, "no counters of this kind");
	watch_begin();
}

FIXTURE_TEARDOWN_PARENT(hop)
{
	watch_end(_metadata);
}

TEST_F_TIMEOUT(hop, every_page_is_counted_at_once, LIMIT)
{
	size_t pages = variant->pages, nr = CPU_COUNT(&cpus);
	struct worker sleeper;
	struct rss first, now;
	long got;
	char *mem;
	int cpu;

	if (variant->threaded)
		ASSERT_TRUE(worker_start(&sleeper));
	/* A first round for warming up: all code and tables are mapped then. */
	for (int round = 0; round < 3; round++) {
		mem = map(nr * pages * PAGE, variant->flags);
		ASSERT_NE(mem, NULL);
		ASSERT_TRUE(rss_read(getpid(), &first));
		if (round)
			ASSERT_RSS(getpid(), &first);
		got = 0;
		for (cpu = next_cpu(-1); cpu < CPU_SETSIZE; cpu = next_cpu(cpu)) {
			ASSERT_TRUE(run_on(cpu));
			touch(mem + got * PAGE, pages);
			got += pages;
			ASSERT_TRUE(rss_read(getpid(), &now));
			if (!round)
				continue;
			ASSERT_RSS(getpid(), &now);
			ASSERT_EQ(now.anon + now.shmem,
				  first.anon + first.shmem + got);
		}
		/* Some go where they came, all others on the last CPU. */
		ASSERT_FALSE(munmap(mem + PAGE, PAGE * (nr * pages - 1)));
		ASSERT_TRUE(rss_read(getpid(), &now));
		if (round) {
			ASSERT_RSS(getpid(), &now);
			ASSERT_EQ(now.anon + now.shmem,
				  first.anon + first.shmem + 1);
		}
		ASSERT_FALSE(munmap(mem, PAGE));
	}
	ASSERT_RSS(getpid(), &now);
	ASSERT_EQ(now.anon, first.anon);
	ASSERT_EQ(now.shmem, first.shmem);
	if (variant->threaded)
		worker_end(&sleeper);
}

/* --- Memory of each kind --- */

static void read_pages(void *arg)
{
	struct pages *pages = arg;

	for (size_t i = 0; i < pages->nr; i++)
		__atomic_load_n(&pages->mem[i * PAGE], __ATOMIC_RELAXED);
}

/*
 * Read from a file, then written to: they leave one counter for another, on
 * another CPU than that on which they were counted.
 */
TEST_F_TIMEOUT(rss, pages_change_kind, LIMIT)
{
	size_t nr = 20 * CPU_COUNT(&cpus);
	struct worker w;
	struct rss first, now;
	char *mem, *file;
	int cpu, fd;

	fd = memfd_create("rss", MFD_CLOEXEC);
	ASSERT_GE(fd, 0);
	ASSERT_EQ(ftruncate(fd, nr * PAGE), 0);
	file = mmap(NULL, nr * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ASSERT_NE(file, MAP_FAILED);
	touch(file, nr);
	ASSERT_TRUE(worker_start(&w));
	for (int round = 0; round < 2; round++) {
		struct pages pages;

		mem = mmap(NULL, nr * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE,
			   fd, 0);
		ASSERT_NE(mem, MAP_FAILED);
		ASSERT_TRUE(rss_read(getpid(), &first));
		if (round)
			ASSERT_RSS(getpid(), &first);
		pages = (struct pages){ mem, 20 };
		for (cpu = next_cpu(-1); cpu < CPU_SETSIZE; cpu = next_cpu(cpu)) {
			worker_do(&w, cpu, read_pages, &pages);
			pages.mem += 20 * PAGE;
			if (round)
				ASSERT_RSS(getpid(), &now);
		}
		ASSERT_TRUE(rss_read(getpid(), &now));
		if (round)
			ASSERT_EQ(now.shmem, first.shmem + nr);
		for (cpu = next_cpu(-1); cpu < CPU_SETSIZE; cpu = next_cpu(cpu)) {
			pages.mem -= 20 * PAGE;
			worker_do(&w, cpu, touch_pages, &pages);
			ASSERT_TRUE(rss_read(getpid(), &now));
			if (round)
				ASSERT_RSS(getpid(), &now);
		}
		if (round) {
			ASSERT_EQ(now.shmem, first.shmem);
			ASSERT_EQ(now.anon, first.anon + nr);
		}
		pages = (struct pages){ mem, nr };
		worker_do(&w, 0, unmap_pages, &pages);
	}
	ASSERT_RSS(getpid(), &now);
	ASSERT_EQ(now.anon, first.anon);
	worker_end(&w);
}

/* --- Threads on all CPUs at the same time --- */

struct team {
	struct worker *workers;
	struct pages *pages;
	int nr;
};

static bool team_start(struct team *team, int per_cpu)
{
	team->nr = per_cpu * CPU_COUNT(&cpus);
	team->workers = calloc(team->nr, sizeof(*team->workers));
	team->pages = calloc(team->nr, sizeof(*team->pages));
	for (int i = 0; i < team->nr; i++) {
		if (!worker_start(&team->workers[i]))
			return false;
	}

	return true;
}

static void team_do(struct team *team, void (*work)(void *arg))
{
	int cpu, i = 0;

	while (i < team->nr) {
		for (cpu = next_cpu(-1); cpu < CPU_SETSIZE; cpu = next_cpu(cpu)) {
			worker_begin(&team->workers[i], cpu, work,
				     &team->pages[i]);
			i++;
		}
	}
	for (i = 0; i < team->nr; i++)
		worker_wait(&team->workers[i]);
}

static void team_end(struct team *team)
{
	for (int i = 0; i < team->nr; i++)
		worker_end(&team->workers[i]);
	free(team->workers);
	free(team->pages);
}

static void churn(void *arg)
{
	struct pages *pages = arg;
	unsigned long long seed = (uintptr_t)arg;

	for (int i = 0; i < 100; i++) {
		size_t nr = 1 + rnd(&seed) % pages->nr;

		touch(pages->mem + (pages->nr - nr) * PAGE, nr);
		madvise(pages->mem, (1 + rnd(&seed) % pages->nr) * PAGE,
			MADV_DONTNEED);
	}
	/* As many as everybody knows. */
	madvise(pages->mem, pages->nr * PAGE, MADV_DONTNEED);
	touch(pages->mem, pages->nr - 1);
}

TEST_F_TIMEOUT(rss, threads_at_the_same_time, LIMIT)
{
	const size_t nr = 70;
	struct rss first, now;
	struct team team;

	ASSERT_TRUE(team_start(&team, 2));
	for (int i = 0; i < team.nr; i++)
		team.pages[i] = (struct pages){ map(nr * PAGE, MAP_PRIVATE), nr };
	team_do(&team, churn);
	for (int i = 0; i < team.nr; i++)
		madvise(team.pages[i].mem, nr * PAGE, MADV_DONTNEED);
	ASSERT_TRUE(rss_read(getpid(), &first));
	ASSERT_RSS(getpid(), &first);
	for (int round = 0; round < 5; round++) {
		team_do(&team, churn);
		ASSERT_RSS(getpid(), &now);
		ASSERT_EQ(now.anon, first.anon + team.nr * (nr - 1));
	}
	team_do(&team, unmap_pages);
	ASSERT_RSS(getpid(), &now);
	ASSERT_EQ(now.anon, first.anon);
	team_end(&team);
	ASSERT_RSS(getpid(), &now);
}

/* --- Children that use the memory of a parent that waits --- */

static int vfork_child(void *arg)
{
	struct pages *pages = arg;
	int cpu;

	for (cpu = next_cpu(-1); cpu < CPU_SETSIZE; cpu = next_cpu(cpu)) {
		run_on(cpu);
		touch(pages->mem, MOST_HELD);
		pages->mem += MOST_HELD * PAGE;
		/* And some that go again. */
		touch(pages->mem, 7);
		madvise(pages->mem, 7 * PAGE, MADV_DONTNEED);
	}
	_exit(0);
}

static bool run_vforked(struct pages *pages)
{
	const size_t size = STACK_SIZE;
	char *stack = map(size, MAP_PRIVATE);
	bool exited;

	exited = exits_cleanly(clone(vfork_child, stack + size, CLONE_VM |
				     CLONE_VFORK | SIGCHLD, pages));
	munmap(stack, size);

	return exited;
}

TEST_F_TIMEOUT(rss, vforked_children_count_for_their_parent, LIMIT)
{
	size_t nr = (CPU_COUNT(&cpus) + 1) * MOST_HELD;
	struct rss first, now;
	struct spreads told;
	struct worker w;
	int cpu;

	for (int round = 0; round < 4; round++) {
		struct pages pages = { map(nr * PAGE, MAP_PRIVATE), nr };
		char *mem = pages.mem;

		ASSERT_NE(mem, NULL);
		/* After the last of them there are threads, too. */
		if (round == 3)
			ASSERT_TRUE(worker_start(&w));
		ASSERT_TRUE(rss_read(getpid(), &first));
		if (round)
			ASSERT_RSS(getpid(), &first);
		ASSERT_TRUE(run_vforked(&pages));
		ASSERT_TRUE(rss_read(getpid(), &now));
		if (round) {
			ASSERT_RSS(getpid(), &now);
			ASSERT_EQ(now.anon, first.anon + nr - MOST_HELD);
		}
		/* The parent frees what the child brought, and more. */
		for (cpu = next_cpu(-1); cpu < CPU_SETSIZE; cpu = next_cpu(cpu)) {
			ASSERT_TRUE(run_on(cpu));
			ASSERT_EQ(madvise(mem + 7 * PAGE, 9 * PAGE,
					  MADV_DONTNEED), 0);
			touch(mem, MOST_HELD);
			mem += MOST_HELD * PAGE;
			if (round)
				ASSERT_RSS(getpid(), &now);
		}
		ASSERT_EQ(munmap(mem - (nr - MOST_HELD) * PAGE, nr * PAGE), 0);
		ASSERT_RSS(getpid(), &now);
		if (round)
			ASSERT_EQ(now.anon, first.anon);
		ASSERT_TRUE(read_events(0, &told));
		ASSERT_EQ(told.nr, round == 3);
	}
	worker_end(&w);
}

/* --- When counters are spread --- */

static void *nothing_fn(void *arg)
{
	return NULL;
}

static bool short_thread(void)
{
	pthread_t thread;

	return !pthread_create(&thread, NULL, nothing_fn, NULL) &&
	       !pthread_join(thread, NULL);
}

static void __attribute__((constructor)) exec_target(void)
{
	const char *what = getenv(EXEC_TARGET);

	if (!what)
		return;
	if (!strcmp(what, "thread"))
		_exit(short_thread() ? 0 : 1);
	_exit(0);
}

static bool fork_exec(const char *what)
{
	pid_t pid = fork();

	if (!pid)
		exec_self(what);

	return exits_cleanly(pid);
}

static bool vfork_exec(const char *what)
{
	pid_t pid = vfork();

	if (!pid)
		exec_self(what);

	return exits_cleanly(pid);
}

static bool spawn_exec(const char *what)
{
	pid_t pid;

	return !posix_spawn(&pid, "/proc/self/exe", NULL, NULL, exec_argv,
			    exec_env(what)) && exits_cleanly(pid);
}

TEST_F_TIMEOUT(rss, are_spread_for_the_first_thread, LIMIT)
{
	struct spreads told;

	for (int i = 0; i < 3; i++) {
		ASSERT_TRUE(short_thread());
		ASSERT_TRUE(read_events(0, &told));
		ASSERT_EQ(told.nr, 1);
		ASSERT_EQ(told.pid, getpid());
		ASSERT_EQ(told.result, 0);
		/* A byte per counter and CPU at the least. */
		ASSERT_GE(told.bytes, 4 * CPU_COUNT(&cpus));
	}
}

TEST_F_TIMEOUT(rss, are_not_spread_for_other_children, LIMIT)
{
	struct spreads told;
	pid_t pid;

	for (int i = 0; i < 3; i++) {
		pid = fork();
		if (!pid)
			_exit(0);
		ASSERT_TRUE(exits_cleanly(pid));
		ASSERT_TRUE(fork_exec("nothing"));
		ASSERT_TRUE(vfork_exec("nothing"));
		ASSERT_TRUE(spawn_exec("nothing"));
	}
	ASSERT_TRUE(read_events(0, &told));
	ASSERT_EQ(told.nr, 0);
	/* That vfork() was there before makes no difference. */
	ASSERT_TRUE(short_thread());
	ASSERT_TRUE(read_events(0, &told));
	ASSERT_EQ(told.nr, 1);
	ASSERT_EQ(told.result, 0);
}

/* After fork() and exec() a process has one thread, and begins anew. */
TEST_F_TIMEOUT(rss, are_spread_anew_after_fork_and_exec, LIMIT)
{
	struct spreads told;
	pid_t pid;

	ASSERT_TRUE(short_thread());
	pid = fork();
	if (!pid)
		_exit(0);
	ASSERT_TRUE(exits_cleanly(pid));
	ASSERT_TRUE(read_events(0, &told));
	ASSERT_EQ(told.nr, 1);

	pid = fork();
	if (!pid)
		_exit(short_thread() ? 0 : 1);
	ASSERT_TRUE(exits_cleanly(pid));
	ASSERT_TRUE(read_events(pid, &told));
	ASSERT_EQ(told.nr, 1);

	ASSERT_TRUE(fork_exec("nothing"));
	ASSERT_TRUE(spawn_exec("nothing"));
	ASSERT_TRUE(read_events(0, &told));
	ASSERT_EQ(told.nr, 2);
	ASSERT_TRUE(fork_exec("thread"));
	ASSERT_TRUE(spawn_exec("thread"));
	ASSERT_TRUE(read_events(0, &told));
	ASSERT_EQ(told.nr, 4);
}

static int share_child(void *arg)
{
	syscall(__NR_exit, 0);

	return 0;
}

/* A process of its own that has the same memory is as good as a thread. */
TEST_F_TIMEOUT(rss, are_spread_for_who_shares_the_memory, LIMIT)
{
	const size_t size = STACK_SIZE;
	char *stack = map(size, MAP_PRIVATE);
	struct spreads told;

	ASSERT_NE(stack, NULL);
	for (int i = 0; i < 2; i++) {
		ASSERT_TRUE(exits_cleanly(clone(share_child, stack + size,
					    CLONE_VM | SIGCHLD, NULL)));
		ASSERT_TRUE(read_events(0, &told));
		ASSERT_EQ(told.nr, 1);
		ASSERT_EQ(told.pid, getpid());
		ASSERT_EQ(told.result, 0);
	}
}

/* What was counted before is not lost, wherever that was. */
TEST_F_TIMEOUT(rss, are_spread_as_they_are, LIMIT)
{
	size_t nr = CPU_COUNT(&cpus) * 50;
	struct rss first, now;
	struct worker w;
	char *mem;
	int cpu;

	for (int i = 0; i < 2; i++)
		ASSERT_TRUE(rss_read(getpid(), &first));
	mem = map(nr * PAGE, MAP_PRIVATE);
	ASSERT_NE(mem, NULL);
	for (cpu = next_cpu(-1); cpu < CPU_SETSIZE; cpu = next_cpu(cpu)) {
		ASSERT_TRUE(run_on(cpu));
		touch(mem, 50);
		mem += 50 * PAGE;
	}
	ASSERT_RSS(getpid(), &now);
	ASSERT_EQ(now.anon, first.anon + nr);
	ASSERT_TRUE(worker_start(&w));
	ASSERT_RSS(getpid(), &now);
	ASSERT_GE(now.anon, first.anon + nr);
	first = now;
	ASSERT_EQ(munmap(mem - nr * PAGE, nr * PAGE), 0);
	ASSERT_RSS(getpid(), &now);
	ASSERT_EQ(now.anon, first.anon - nr);
	worker_end(&w);
}

/* --- Memory that other tasks change --- */

/**
 * struct toucher - a process that touches its pages over and over
 * @mem: of @nr pages
 * @threads: beside the first one, that do the same
 */
struct toucher {
	char *mem;
	size_t nr;
	int threads;
};

static void touch_for_ever(void *arg)
{
	struct toucher *t = arg;
	unsigned long long seed = syscall(__NR_gettid);

	for (;;) {
		size_t first = rnd(&seed) % t->nr;
		int cpu = rnd(&seed) % CPU_SETSIZE;

		/* Any CPU, now and then. */
		if (CPU_ISSET(cpu, &cpus))
			run_on(cpu);
		touch(t->mem + first * PAGE, rnd(&seed) % (t->nr - first));
		if (rnd(&seed) % 8 == 0)
			madvise(t->mem + first * PAGE, PAGE, MADV_DONTNEED);
	}
}

static void *touch_fn(void *arg)
{
	touch_for_ever(arg);

	return NULL;
}

static enum verdict toucher_prepare(void *arg)
{
	struct toucher *t = arg;
	pthread_t thread;

	fill(t->mem, t->nr * PAGE, 1);
	for (int i = 0; i < t->threads; i++) {
		if (pthread_create(&thread, NULL, touch_fn, t))
			return BAD;
	}

	return GOOD;
}

/* All of its threads have stopped, none is in the middle of anything. */
static bool freeze(pid_t pid)
{
	int status;

	return !kill(pid, SIGSTOP) &&
	       waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status);
}

/*
 * Waits until @pid's counters are exact: the stop of each thread is not reported,
 * and pages that are being swapped out may be missing in both counts.
 */
static bool exact_soon(pid_t pid, struct rss *rss)
{
	return within(PATIENCE, rss_read(pid, rss) && rss_exact(rss));
}

/* What another process can do to the memory of a process, and how often. */
enum { PAGED_OUT, WRITTEN, MOVED, COLLAPSED, NR_DONE };

/* As a debugger does. */
static bool write_to(pid_t pid, char *at)
{
	char path[32];
	bool done;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	done = fd >= 0 && pwrite(fd, "", 1, (uintptr_t)at) == 1;
	close(fd);

	return done;
}

static void done_to(struct victim *v, struct toucher *t,
		    unsigned long long *seed, unsigned long *done)
{
	struct iovec all = { t->mem, t->nr * PAGE };
	size_t first = rnd(seed) % t->nr;
	char *at = t->mem + first * PAGE;
	int node = rnd(seed) % 2, status = -1;

	switch (rnd(seed) % 8) {
	case 0:
	case 1:
		done[WRITTEN] += write_to(v->pid, at);
		break;
	case 2:
	case 3:
		syscall(__NR_move_pages, v->pid, 1UL, &at, &node, &status, 2);
		done[MOVED] += status == node;
		break;
	case 4:
		done[COLLAPSED] += syscall(__NR_process_madvise, v->pidfd, &all,
					   1UL, MADV_COLLAPSE, 0) > 0;
		break;
	default:
		done[PAGED_OUT] += page_out(v->pidfd, at,
					    (t->nr - first) * PAGE);
	}
}

static void change_from_outside(struct __test_metadata *_metadata,
				int threads)
{
	struct toucher t = { .nr = 1024, .threads = threads };
	unsigned long done[NR_DONE] = {};
	struct victim_ops ops = {
		.arg = &t, .prepare = toucher_prepare, .run = touch_for_ever
	};
	struct stress stress = { .min_rounds = 16 };
	unsigned long long seed = 3 + threads;
	long swapped = 0, least = LONG_MAX;
	struct victim v;
	struct rss rss;

	/* With two huge pages in it, if there are any. */
	t.mem = map(2 * t.nr * PAGE, MAP_PRIVATE);
	ASSERT_NE(t.mem, NULL);
	t.mem += -(uintptr_t)t.mem % (t.nr * PAGE);
	ASSERT_EQ(victim_start(&v, &ops), GOOD);
	while (stress_continues(&stress)) {
		unsigned long long end = now_ns() + 250000000;
		bool frozen = stress.rounds % 4 == 3;

		/* While it runs, and now and then when it does not. */
		if (frozen)
			ASSERT_TRUE(freeze(v.pid));
		do {
			done_to(&v, &t, &seed, done);
		} while (!frozen && now_ns() < end);
		if (!frozen)
			ASSERT_TRUE(freeze(v.pid));
		ASSERT_TRUE(exact_soon(v.pid, &rss)) {
			TH_LOG("round %u: %s", stress.rounds, rss_text(&rss));
		}
		swapped = rss.swap > swapped ? rss.swap : swapped;
		least = rss.anon < least ? rss.anon : least;
		ASSERT_EQ(kill(v.pid, SIGCONT), 0);
		usleep(rnd(&seed) % 3000);
	}
	victim_end(&v);
	TH_LOG("at most %ld pages in swap, at least %ld in memory", swapped, least);
	TH_LOG("paged out %lu times, written to %lu, moved %lu, collapsed %lu",
	       done[PAGED_OUT], done[WRITTEN], done[MOVED], done[COLLAPSED]);
	ASSERT_GT(swapped, 0);
	ASSERT_GT(done[WRITTEN], 0);
}

TEST_F_TIMEOUT(rss, changed_by_others_while_one_faults, LIMIT)
{
	self->swap = zram_on(0, ZRAM_SIZE, 0);
	if (!self->swap)
		SKIP(return, "no zram to swap to");
	change_from_outside(_metadata, 0);
}

TEST_F_TIMEOUT(rss, changed_by_others_while_threads_fault, LIMIT)
{
	self->swap = zram_on(0, ZRAM_SIZE, 0);
	if (!self->swap)
		SKIP(return, "no zram to swap to");
	change_from_outside(_metadata, 3);
}

/* --- Kernel threads that fill the process's memory --- */

/**
 * struct ring - an io_uring whose work a thread of the kernel does
 * @fd: it
 * @sq: the submissions' ring
 * @cq: the completions', in the same mapping
 * @sqes: the submissions
 */
struct ring {
	int fd;
	char *sq;
	struct io_uring_params params;
	struct io_uring_sqe *sqes;
};

static bool ring_open(struct ring *ring)
{
	struct io_sqring_offsets *off = &ring->params.sq_off;
	size_t size;

	memset(ring, 0, sizeof(*ring));
	ring->params.flags = IORING_SETUP_SQPOLL;
	ring->params.sq_thread_idle = 1000;
	ring->fd = syscall(__NR_io_uring_setup, 8, &ring->params);
	if (ring->fd < 0)
		return false;
	size = ring->params.cq_off.cqes +
	       ring->params.cq_entries * sizeof(struct io_uring_cqe);
	if (size < off->array + ring->params.sq_entries * sizeof(unsigned int))
		size = off->array + ring->params.sq_entries * sizeof(unsigned int);
	ring->sq = mmap(NULL, size, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQ_RING);
	ring->sqes = mmap(NULL, ring->params.sq_entries * sizeof(*ring->sqes),
			  PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
			  ring->fd, IORING_OFF_SQES);

	return ring->sq != MAP_FAILED && ring->sqes != MAP_FAILED;
}

static unsigned int *ring_word(struct ring *ring, unsigned int offset)
{
	return (unsigned int *)(ring->sq + offset);
}

/* Has @fd read into @mem by the kernel's thread. Returns what that says. */
static int ring_read(struct ring *ring, int fd, void *mem, size_t size)
{
	struct io_sqring_offsets *sq = &ring->params.sq_off;
	struct io_cqring_offsets *cq = &ring->params.cq_off;
	unsigned int *tail = ring_word(ring, sq->tail);
	unsigned int *head = ring_word(ring, cq->head);
	unsigned int at = *tail & *ring_word(ring, sq->ring_mask);
	struct io_uring_cqe *cqe;

	ring->sqes[at] = (struct io_uring_sqe){
		.opcode = IORING_OP_READ,
		.fd = fd,
		.addr = (uintptr_t)mem,
		.len = size,
	};
	ring_word(ring, sq->array)[at] = at;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_SEQ_CST);
	if (!within(PATIENCE, !syscall(__NR_io_uring_enter, ring->fd, 0, 0,
				       IORING_ENTER_SQ_WAKEUP, NULL, 0) &&
		    __atomic_load_n(ring_word(ring, cq->tail),
				    __ATOMIC_ACQUIRE) != *head))
		return -ETIMEDOUT;
	cqe = (struct io_uring_cqe *)(ring->sq + cq->cqes) +
	      (*head & *ring_word(ring, cq->ring_mask));
	at = cqe->res;
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);

	return at;
}

TEST_F_TIMEOUT(rss, filled_by_a_thread_of_the_kernel, LIMIT)
{
	const size_t nr = 40;
	struct rss first, now;
	struct spreads told;
	struct ring ring;
	int fd, cpu;
	char *mem;

	if (!ring_open(&ring))
		SKIP(return, "no io_uring with a thread: %m");
	ASSERT_TRUE(read_events(0, &told));
	ASSERT_EQ(told.nr, 1);
	ASSERT_EQ(told.result, 0);
	fd = memfd_create("rss", MFD_CLOEXEC);
	ASSERT_GE(fd, 0);
	ASSERT_EQ(ftruncate(fd, nr * PAGE), 0);
	for (int round = 0; round < 3; round++) {
		mem = map(nr * PAGE, MAP_PRIVATE);
		ASSERT_NE(mem, NULL);
		ASSERT_TRUE(rss_read(getpid(), &first));
		if (round)
			ASSERT_RSS(getpid(), &first);
		ASSERT_EQ(lseek(fd, 0, SEEK_SET), 0);
		ASSERT_EQ(ring_read(&ring, fd, mem, nr * PAGE), nr * PAGE);
		ASSERT_TRUE(rss_read(getpid(), &now));
		if (round) {
			ASSERT_RSS(getpid(), &now);
			ASSERT_EQ(now.anon, first.anon + nr);
		}
		/* Gone by our own doing, on whatever CPU. */
		for (cpu = next_cpu(-1); cpu < CPU_SETSIZE; cpu = next_cpu(cpu))
			run_on(cpu);
		ASSERT_EQ(munmap(mem, nr * PAGE), 0);
		ASSERT_TRUE(rss_read(getpid(), &now));
		if (round) {
			ASSERT_RSS(getpid(), &now);
			ASSERT_EQ(now.anon, first.anon);
		}
	}
	close(ring.fd);
}

TEST_HARNESS_MAIN
