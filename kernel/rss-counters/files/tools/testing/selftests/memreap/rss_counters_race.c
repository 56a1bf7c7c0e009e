// SPDX-License-Identifier: GPL-2.0-only
/*
 * RSS counters under stress: processes that start and end while threads run,
 * CPU hotplug, failed allocations.
 *
 * A lost count is reported in the kernel's log when the process is gone, and
 * before that shows in /proc once all of its threads wait.
 */
#define _GNU_SOURCE
#include "../kselftest_harness.h"
#include "failslab.h"
#include "rss_counters.h"

#define NR_THREADS	4
/* What a process of a storm has at most, for each of its threads. */
#define STORM_PAGES	100
/* Rounds until any number of threads has had any time, and other rounds. */
#define MANY_ROUNDS	(3 * NR_THREADS)
#define FEW_ROUNDS	3

FIXTURE(storm) {
	bool swap;
};

FIXTURE_SETUP(storm)
{
	if (!counters_supported())
		SKIP(return, "no counters of this kind");
	watch_begin();
}

FIXTURE_TEARDOWN_PARENT(storm)
{
	if (self->swap)
		zram_off(0);
	watch_end(_metadata);
}

/* --- Processes that end in the middle of it --- */

static void go_somewhere(unsigned long long *seed)
{
	int cpu = rnd(seed) % CPU_SETSIZE % (CPU_COUNT(&cpus) + 2);

	if (CPU_ISSET(cpu, &cpus))
		run_on(cpu);
}

static void use_memory(unsigned long long *seed)
{
	size_t nr = 1 + rnd(seed) % STORM_PAGES;
	char *mem = map(nr * PAGE, rnd(seed) % 8 ? MAP_PRIVATE : MAP_SHARED);

	if (!mem)
		return;
	touch(mem, 1 + rnd(seed) % nr);
	go_somewhere(seed);
	if (rnd(seed) % 16)
		munmap(mem, nr * PAGE);
}

static void *busy_fn(void *arg)
{
	unsigned long long seed = 1 + syscall(__NR_gettid);

	for (;;)
		use_memory(&seed);

	return NULL;
}

static void *short_fn(void *arg)
{
	unsigned long long seed = 1 + syscall(__NR_gettid);

	for (int i = 0; i < 5; i++)
		use_memory(&seed);

	return NULL;
}

static bool start_threads(int nr)
{
	pthread_t thread;

	for (int i = 0; i < nr; i++) {
		if (pthread_create(&thread, NULL, busy_fn, NULL))
			return false;
	}

	return true;
}

static void __attribute__((constructor)) exec_target(void)
{
	unsigned long long seed = getpid();

	if (!getenv(EXEC_TARGET))
		return;
	use_memory(&seed);
	_exit(start_threads(1) ? 0 : 1);
}

/* Processes that exit, or execute another program, while threads run. */
static void end_threads(struct __test_metadata *_metadata, bool exec,
			unsigned long long seed)
{
	struct stress stress = { .min_rounds = MANY_ROUNDS };

	while (stress_continues(&stress)) {
		pid_t pid = fork();

		ASSERT_GE(pid, 0);
		if (!pid) {
			if (!start_threads(1 + stress.rounds % NR_THREADS))
				_exit(1);
			usleep(rnd(&seed) % 5000 * (stress.rounds % 3));
			if (exec)
				exec_self("1");
			_exit(0);
		}
		rnd(&seed);
		ASSERT_TRUE(exits_cleanly(pid));
	}
}

TEST_F_TIMEOUT(storm, exit_with_threads_at_work, LIMIT)
{
	end_threads(_metadata, false, 1);
}

TEST_F_TIMEOUT(storm, exec_with_threads_at_work, LIMIT)
{
	end_threads(_metadata, true, 2);
}

static int touch_and_exit(void *arg)
{
	unsigned long long seed = 7;

	touch(arg, 16);
	go_somewhere(&seed);
	madvise(arg, 8 * PAGE, MADV_DONTNEED);
	syscall(__NR_exit, 0);

	return 0;
}

/*
 * Short-lived threads, and children of every kind. The parent kills it at any
 * point.
 */
static void everything(void *arg)
{
	unsigned long long seed = 1 + getpid();
	const size_t size = STACK_SIZE;
	char *stack = map(size, MAP_PRIVATE);
	char *mem = map(16 * PAGE, MAP_PRIVATE);
	pthread_t thread;
	pid_t pid = -1;

	while (stack && mem) {
		go_somewhere(&seed);
		use_memory(&seed);
		switch (rnd(&seed) % 6) {
		case 0:
			if (!pthread_create(&thread, NULL, short_fn, NULL))
				pthread_detach(thread);
			continue;
		case 1:
			pid = fork();
			if (!pid) {
				use_memory(&seed);
				_exit(0);
			}
			break;
		case 2:
			pid = fork();
			if (!pid)
				exec_self("1");
			break;
		case 3:
			pid = clone(touch_and_exit, stack + size,
				    CLONE_VM | CLONE_VFORK | SIGCHLD, mem);
			break;
		case 4:
			pid = clone(touch_and_exit, stack + size,
				    CLONE_VM | SIGCHLD, mem);
			break;
		default:
			pid = fork();
			if (!pid) {
				start_threads(2);
				_exit(0);
			}
		}
		/* All but threads, one at a time; some share the stack. */
		if (pid > 0)
			waitpid(pid, NULL, __WALL);
	}
}

TEST_F_TIMEOUT(storm, killed_in_the_middle_of_everything, LIMIT)
{
	struct stress stress = { .min_rounds = FEW_ROUNDS };
	struct victim_ops ops = { .run = everything };
	unsigned long long seed = 3;
	struct victim v[2];

	/* To wait for orphaned children of victims. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	while (stress_continues(&stress)) {
		for (int k = 0; k < 2; k++)
			ASSERT_EQ(victim_start(&v[k], &ops), GOOD);
		usleep(rnd(&seed) % 100000);
		for (int k = 0; k < 2; k++)
			victim_end(&v[k]);
		while (waitpid(-1, NULL, __WALL) > 0)
			;
	}
}

/* --- The moment when there is a second one --- */

/**
 * struct beginner - a process that begins to have threads, then waits
 * @mem: its memory
 * @nr: pages
 */
struct beginner {
	char *mem;
	size_t nr;
};

static void *touch_all_fn(void *arg)
{
	struct beginner *b = arg;

	touch(b->mem, b->nr);

	return NULL;
}

static enum verdict beginner_prepare(void *arg)
{
	struct beginner *b = arg;

	touch(b->mem, b->nr);

	return GOOD;
}

/* On request: threads, which touch what was taken away. */
static enum verdict beginner_begin(void *arg)
{
	struct beginner *b = arg;
	pthread_t threads[3];

	for (int i = 0; i < 3; i++) {
		touch(b->mem, b->nr / 2);
		if (pthread_create(&threads[i], NULL, touch_all_fn, b))
			return BAD;
	}
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);

	return GOOD;
}

/* Others take pages away and add to the counters while that happens. */
TEST_F_TIMEOUT(storm, reclaimed_while_threads_begin, LIMIT)
{
	struct beginner b = { .nr = 500 };
	struct victim_ops ops = { &b, beginner_prepare, beginner_begin };
	struct stress stress = { .min_rounds = FEW_ROUNDS };
	struct victim v;
	struct rss rss;
	char byte = 0;

	self->swap = zram_on(0, ZRAM_SIZE, 0);
	if (!self->swap)
		SKIP(return, "no zram to swap to");
	b.mem = map(b.nr * PAGE, MAP_PRIVATE);
	ASSERT_NE(b.mem, NULL);
	while (stress_continues(&stress)) {
		ASSERT_EQ(victim_start(&v, &ops), GOOD);
		ASSERT_EQ(write(v.talk, &byte, 1), 1);
		for (int k = 0; k < 20; k++)
			page_out(v.pidfd, b.mem, b.nr * PAGE);
		ASSERT_EQ(read(v.talk, &byte, 1), 1);
		ASSERT_EQ(byte, GOOD);
		ASSERT_TRUE(within(PATIENCE, rss_read(v.pid, &rss) &&
				   rss_exact(&rss))) {
			TH_LOG("round %u: %s", stress.rounds, rss_text(&rss));
		}
		victim_end(&v);
	}
}

static void *vfork_fn(void *arg)
{
	const size_t size = STACK_SIZE;
	char *stack = map(size, MAP_PRIVATE);

	for (int i = 0; i < 50 && stack; i++) {
		pid_t pid = clone(touch_and_exit, stack + size,
				  CLONE_VM | CLONE_VFORK | SIGCHLD, arg);

		if (pid > 0)
			waitpid(pid, NULL, __WALL);
	}
	munmap(stack, size);

	return NULL;
}

/* A parent that waits for its vforked child, and threads that do not. */
TEST_F_TIMEOUT(storm, vforked_children_beside_threads, LIMIT)
{
	struct stress stress = { .min_rounds = FEW_ROUNDS };
	pthread_t forker, threads[2];
	struct rss rss;
	char *mem;

	mem = map(16 * PAGE, MAP_PRIVATE);
	ASSERT_NE(mem, NULL);
	while (stress_continues(&stress)) {
		ASSERT_EQ(pthread_create(&forker, NULL, vfork_fn, mem), 0);
		for (int i = 0; i < 2; i++)
			ASSERT_EQ(pthread_create(&threads[i], NULL, short_fn,
						 NULL), 0);
		pthread_join(forker, NULL);
		for (int i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
		ASSERT_TRUE(rss_read(getpid(), &rss));
		ASSERT_RSS(getpid(), &rss);
	}
}

static int clone_and_exit(void *arg)
{
	const size_t size = STACK_SIZE;
	char *stack = map(size, MAP_PRIVATE);
	pid_t pid;

	/* Spreads the counters while the owner of the memory waits. */
	pid = clone(touch_and_exit, stack + size, CLONE_VM | SIGCHLD, arg);
	touch((char *)arg + 16 * PAGE, 16);
	waitpid(pid, NULL, __WALL);
	munmap(stack, size);
	syscall(__NR_exit, 0);

	return 0;
}

TEST_F_TIMEOUT(storm, spread_by_a_vforked_child, LIMIT)
{
	const size_t size = STACK_SIZE;
	char *stack = map(size, MAP_PRIVATE);
	struct rss first, now;
	struct spreads told;
	char *mem;
	int cpu;

	ASSERT_NE(stack, NULL);
	for (int round = 0; round < 3; round++) {
		mem = map(32 * PAGE, MAP_PRIVATE);
		ASSERT_NE(mem, NULL);
		ASSERT_TRUE(rss_read(getpid(), &first));
		ASSERT_TRUE(exits_cleanly(clone(clone_and_exit, stack + size,
					    CLONE_VM | CLONE_VFORK | SIGCHLD,
					    mem)));
		ASSERT_TRUE(read_events(0, &told));
		ASSERT_EQ(told.nr, 1);
		ASSERT_NE(told.pid, getpid());
		ASSERT_TRUE(rss_read(getpid(), &now));
		if (round) {
			ASSERT_RSS(getpid(), &now);
			/* Half of the first 16 went again. */
			ASSERT_EQ(now.anon, first.anon + 24);
		}
		for (cpu = next_cpu(-1); cpu < CPU_SETSIZE; cpu = next_cpu(cpu)) {
			ASSERT_TRUE(run_on(cpu));
			touch(mem, 16);
			ASSERT_EQ(madvise(mem, 8 * PAGE, MADV_DONTNEED), 0);
			if (round)
				ASSERT_RSS(getpid(), &now);
		}
		ASSERT_EQ(munmap(mem, 32 * PAGE), 0);
		ASSERT_TRUE(rss_read(getpid(), &now));
		if (round) {
			ASSERT_RSS(getpid(), &now);
			ASSERT_EQ(now.anon, first.anon);
		}
	}
}

/* --- CPU hotplug --- */

static bool cpu_online(int cpu, bool online)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/online",
		 cpu);

	return write_file(path, online ? "1" : "0");
}

FIXTURE(hotplug) {
	/* That is to go. */
	int cpu;
};

FIXTURE_SETUP(hotplug)
{
	int cpu;

	self->cpu = -1;
	if (!counters_supported())
		SKIP(return, "no counters of this kind");
	for (cpu = next_cpu(-1); cpu < CPU_SETSIZE; cpu = next_cpu(cpu)) {
		if (cpu && cpu_online(cpu, false)) {
			self->cpu = cpu;
			break;
		}
	}
	if (self->cpu < 0 || !cpu_online(self->cpu, true))
		SKIP(return, "no CPU that can be taken offline");
	watch_begin();
}

FIXTURE_TEARDOWN_PARENT(hotplug)
{
	if (self->cpu >= 0)
		cpu_online(self->cpu, true);
	watch_end(_metadata);
}

TEST_F_TIMEOUT(hotplug, what_a_cpu_held_back_stays, LIMIT)
{
	struct pages pages = { .nr = 31 };
	struct rss first, now;
	struct worker w;

	ASSERT_TRUE(worker_start(&w));
	for (int round = 0; round < 3; round++) {
		pages.mem = map(pages.nr * PAGE, MAP_PRIVATE);
		ASSERT_NE(pages.mem, NULL);
		ASSERT_TRUE(rss_read(getpid(), &first));
		worker_do(&w, self->cpu, touch_pages, &pages);
		ASSERT_TRUE(cpu_online(self->cpu, false));
		ASSERT_TRUE(rss_read(getpid(), &now));
		if (round) {
			ASSERT_RSS(getpid(), &now);
			ASSERT_EQ(now.anon, first.anon + pages.nr);
		}
		/* They go on another CPU. */
		if (round == 1)
			worker_do(&w, 0, unmap_pages, &pages);
		ASSERT_TRUE(rss_read(getpid(), &now));
		ASSERT_TRUE(cpu_online(self->cpu, true));
		if (round) {
			ASSERT_RSS(getpid(), &now);
			ASSERT_EQ(now.anon, first.anon +
				  (round == 1 ? 0 : pages.nr));
		}
		/* Or where they came. */
		if (round != 1)
			worker_do(&w, self->cpu, unmap_pages, &pages);
		ASSERT_TRUE(rss_read(getpid(), &now));
		if (round) {
			ASSERT_RSS(getpid(), &now);
			ASSERT_EQ(now.anon, first.anon);
		}
	}
	worker_end(&w);
}

/* In the order in which a CPU can be absent in the life of a process. */
TEST_F_TIMEOUT(hotplug, processes_end_without_it, LIMIT)
{
	for (int i = 0; i < 6; i++) {
		pid_t pid;

		/* Not there when the counters are spread. */
		if (i % 3 == 2)
			ASSERT_TRUE(cpu_online(self->cpu, false));
		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid) {
			struct pages pages = { map(31 * PAGE, MAP_PRIVATE), 31 };
			struct worker w;

			if (!pages.mem || !worker_start(&w))
				_exit(1);
			if (i % 3 == 2)
				cpu_online(self->cpu, true);
			worker_do(&w, self->cpu, touch_pages, &pages);
			/* Not there when they are needed no more. */
			if (i % 3 == 1)
				cpu_online(self->cpu, false);
			_exit(0);
		}
		ASSERT_TRUE(exits_cleanly(pid));
		ASSERT_TRUE(cpu_online(self->cpu, true));
	}
}

static void *churn_fn(void *arg)
{
	unsigned long long seed = 1 + syscall(__NR_gettid);

	while (!__atomic_load_n((int *)arg, __ATOMIC_RELAXED)) {
		size_t nr = 1 + rnd(&seed) % STORM_PAGES;
		char *mem = map(nr * PAGE, MAP_PRIVATE);

		if (!mem)
			break;
		touch(mem, nr);
		go_somewhere(&seed);
		munmap(mem, nr * PAGE);
	}

	return NULL;
}

TEST_F_TIMEOUT(hotplug, goes_while_threads_work, LIMIT)
{
	struct stress stress = { .min_rounds = 2 };
	pthread_t threads[NR_THREADS];
	struct rss now;
	int stop = 1;

	/* First for practice, with nothing to do. */
	while (stress_continues(&stress)) {
		for (int i = 0; i < NR_THREADS; i++)
			ASSERT_EQ(pthread_create(&threads[i], NULL, churn_fn,
						 &stop), 0);
		for (int i = 0; i < 5; i++) {
			ASSERT_TRUE(cpu_online(self->cpu, false));
			usleep(5000);
			ASSERT_TRUE(cpu_online(self->cpu, true));
			usleep(5000);
		}
		__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
		for (int i = 0; i < NR_THREADS; i++)
			pthread_join(threads[i], NULL);
		/* Maps the text that it takes, before it counts. */
		ASSERT_TRUE(rss_read(getpid(), &now));
		ASSERT_RSS(getpid(), &now);
		stop = 0;
	}
}

/* --- No memory to spread --- */

/* More allocations than there are on the way to a new task. */
#define MOST_ALLOCATIONS	150

FIXTURE(fail) {
	struct failslab failslab;
};

FIXTURE_SETUP(fail)
{
	if (!counters_supported())
		SKIP(return, "no counters of this kind");
	if (!failslab_begin(&self->failslab))
		SKIP(return, "no fault injection");
	watch_begin();
}

FIXTURE_TEARDOWN_PARENT(fail)
{
	failslab_end(&self->failslab);
	watch_end(_metadata);
}

/* Results of an attempt. */
enum { NO_TASK, EXACT, NO_FAILURE, WRONG };

static int sharer_fn(void *arg)
{
	worker_fn(arg);
	syscall(__NR_exit, 0);

	return 0;
}

/* Lets @w touch memory on all CPUs, and frees it. */
static bool counts_together(struct worker *w, struct rss *now)
{
	struct pages pages = { map(40 * PAGE, MAP_PRIVATE), 40 };
	struct rss first;
	int cpu;

	if (!pages.mem || !rss_read(getpid(), &first))
		return false;
	for (cpu = next_cpu(-1); cpu < CPU_SETSIZE; cpu = next_cpu(cpu)) {
		worker_do(w, cpu, touch_pages, &pages);
		if (!rss_read(getpid(), now) || !rss_exact(now) ||
		    now->anon != first.anon + 40)
			return false;
		run_on(cpu);
		if (madvise(pages.mem, 40 * PAGE, MADV_DONTNEED))
			return false;
	}
	touch(pages.mem, 33);
	unmap_pages(&pages);

	return rss_read(getpid(), now) && rss_exact(now) &&
	       now->anon == first.anon;
}

/* Starts a task that shares the memory; the @nth allocation fails. */
static int try_with_failure(int nth)
{
	const size_t size = STACK_SIZE;
	char *stack = map(size, MAP_PRIVATE);
	static struct worker w;
	struct rss now;
	int fd, left;
	pid_t pid;

	fd = open(FAIL_NTH, O_RDWR | O_CLOEXEC);
	if (fd < 0 || !stack || !rss_read(getpid(), &now))
		return WRONG;
	touch(stack, size / PAGE);
	if (!fail_nth(fd, nth))
		return WRONG;
	pid = clone(sharer_fn, stack + size, CLONE_VM | SIGCHLD, &w);
	left = fail_nth_end(fd);
	if (left < 0)
		return WRONG;
	if (pid < 0)
		return errno == ENOMEM || errno == EAGAIN ? NO_TASK : WRONG;
	/* A first time for warming up. */
	counts_together(&w, &now);
	if (!counts_together(&w, &now)) {
		printf("# failure %d: %s\n", nth, rss_text(&now));
		return WRONG;
	}
	worker_begin(&w, 0, NULL, NULL);
	if (!exits_cleanly(pid))
		return WRONG;

	return left ? NO_FAILURE : EXACT;
}

TEST_F_TIMEOUT(fail, goes_on_without_memory, LIMIT)
{
	unsigned int failed = 0, unspread = 0;
	struct spreads told;
	int result = EXACT;
	int i, go;

	/*
	 * What is at hand need not be allocated, which differs from time to
	 * time: another go may hit what this one missed.
	 */
	for (i = 1, go = 0; go < 20 && i < MOST_ALLOCATIONS; i++) {
		int status;
		pid_t pid = fork();

		ASSERT_GE(pid, 0);
		if (!pid) {
			fflush(stdout);
			result = try_with_failure(i);
			fflush(stdout);
			_exit(result);
		}
		ASSERT_EQ(waitpid(pid, &status, 0), pid);
		ASSERT_TRUE(WIFEXITED(status));
		result = WEXITSTATUS(status);
		ASSERT_NE(result, WRONG) {
			TH_LOG("failure %d", i);
		}
		failed += result == NO_TASK;
		ASSERT_TRUE(read_events(pid, &told));
		if (told.nr && told.result) {
			unspread++;
			/* It is no reason not to start the thread. */
			ASSERT_EQ(told.result, -ENOMEM);
			ASSERT_EQ(told.bytes, 0);
			ASSERT_EQ(result, EXACT);
		}
		if (result == NO_FAILURE && unspread)
			break;
		if (result == NO_FAILURE) {
			go++;
			i = 0;
		}
	}
	TH_LOG("%u times no task, %u times not spread", failed, unspread);
	ASSERT_EQ(result, NO_FAILURE);
	ASSERT_GT(unspread, 0);
}

TEST_HARNESS_MAIN
