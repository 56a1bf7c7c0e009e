// SPDX-License-Identifier: GPL-2.0-only
/*
 * Entries that wait while no worker runs: tasks that need swap have to release
 * them. And all of it under stress.
 */
#define _GNU_SOURCE
#include "../kselftest_harness.h"
#include "swap_slots.h"
#include "swap_hogs.h"

#define PAGES		(SIZE / (long)PAGE)
/* What the test itself swaps out. */
#define MINE		(256 * 1024UL)
#define MINE_PAGES	(MINE / (long)PAGE)

/* Not in a fixture: victims start as copies of the test. */
static struct region memory;
static struct victim victim;
static const struct victim_ops memory_ops = {
	&memory, region_swap_out, region_check
};

/* --- No worker gets to run --- */

#define BEGIN	(self->world.begin)

static const char *hogs_begin(struct world *world, struct limits *limits,
			      size_t size)
{
	const char *missing = world_begin(world, size);

	if (missing)
		return missing;
	if (!limits_lift(limits))
		return "hogs cannot have all CPUs to themselves";
	if (!hogs_start())
		return "no threads";
	memory = (struct region){
		.size = SIZE, .seed = 1, .cgroup = world->victims,
		.fifo = VICTIM_PRIORITY
	};
	/* So that pages and slots which this CPU caches are available to it. */
	run_on(sched_getcpu());

	return NULL;
}

static void hogs_end(struct __test_metadata *_metadata, struct world *world,
		     struct limits *limits)
{
	limits_restore(limits);
	world_end(_metadata, world);
}

/* The test's own memory; what victims share is not swapped out on request. */
static char *map_own(size_t size, unsigned long seed)
{
	char *mem = map_small(size);

	if (!mem || madvise(mem, size, MADV_DONTFORK))
		return NULL;
	fill(mem, size, seed);

	return mem;
}

/* Memory that the test is going to swap out. */
static char *mine_begin(struct world *w)
{
	char *mine = cgroup_enter(w->others) ? map_own(MINE, 9) : NULL;

	/* A single attempt to swap it out has to find all of it. */
	return mine && put_on_lru() ? mine : NULL;
}

static long swap_fails(const char *cgroup)
{
	return cgroup_read(cgroup, "memory.swap.events", "fail ");
}

static long swap_maxes(const char *cgroup)
{
	return cgroup_read(cgroup, "memory.swap.events", "max ");
}

/* Fails to swap out, and makes sure that the next attempt finds all pages. */
static void expect_no_swap(struct __test_metadata *_metadata, char *mine,
			   const char *cgroup)
{
	long fails = swap_fails(cgroup);

	page_out_once(mine, MINE);
	ASSERT_EQ(swapped(mine, MINE), 0);
	ASSERT_GT(swap_fails(cgroup), fails);
	ASSERT_TRUE(put_on_lru());
}

FIXTURE(full) {
	struct world world;
	struct limits limits;
};

FIXTURE_SETUP(full)
{
	const char *missing = hogs_begin(&self->world, &self->limits,
					 8 * MIB);

	if (missing)
		SKIP(return, "%s", missing);
}

FIXTURE_TEARDOWN_PARENT(full)
{
	hogs_end(_metadata, &self->world, &self->limits);
}

/* Until there is not a slot left, not even one that a CPU keeps to itself. */
static bool fill_swap(char *rest, size_t size)
{
	return within(PATIENCE, page_out_once(rest, size) && !swap_free());
}

TEST_F_TIMEOUT(full, others_find_room_at_once, LIMIT)
{
	const char *others = self->world.others;
	char *mine, *rest;
	struct swap_stats f;
	struct told told;
	long fails;

	mine = mine_begin(&self->world);
	rest = map_own(8 * MIB, 10);
	ASSERT_NE(mine, NULL);
	ASSERT_NE(rest, NULL);
	for (int i = 0; i < 3; i++) {
		ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
		ASSERT_TRUE(fill_swap(rest, 8 * MIB)) {
			TH_LOG("%ld slots left", swap_free());
		}
		expect_no_swap(_metadata, mine, others);
		fails = swap_fails(others);
		BEGIN = swap_stats();
		trace_clear();

		ASSERT_TRUE(hogs_run_and_kill(&victim, &f));
		page_out_once(mine, MINE);
		ASSERT_TRUE(hogs_stop());

		/* All of it waited, and some of that is in use again. */
		EXPECT_GE(f.waiting, most(PAGES));
		EXPECT_EQ(swapped(mine, MINE), MINE_PAGES);
		EXPECT_EQ(swap_fails(others), fails);
		victim_end(&victim);
		EXPECT_TRUE(within(PATIENCE, all_released()));
		read_events(&told);
		TH_LOG("pages by swap %ld, memory %ld, worker %ld",
		       told.by[SWAP].pages, told.by[MEMORY].pages,
		       told.by[WORKER].pages);
		EXPECT_GT(told.by[SWAP].pages, 0);
		EXPECT_TRUE(filled(mine, MINE, 9));
		/* All in memory again, and in swap no more. */
		fill(mine, MINE, 9);
		fill(rest, MINE, 10);
		EXPECT_TRUE(filled(rest, 8 * MIB, 10));
	}
}

/* --- Two devices --- */

/* All of the first one is in use, and there is a second one, which is slower. */
static bool add_second(char *rest, size_t size)
{
	return fill_swap(rest, size) && zram_on(1, SWAP_SIZE, 1);
}

static long used_of_second(void)
{
	return swap_used_of(zram_device(1));
}

/*
 * What waits is what fills the first device: no page goes to the second one, of
 * which enough is free.
 */
TEST_F_TIMEOUT(full, second_device_is_not_used_while_slots_wait, LIMIT)
{
	char *mine, *rest;
	struct swap_stats f;

	mine = mine_begin(&self->world);
	rest = map_own(8 * MIB, 10);
	ASSERT_NE(mine, NULL);
	ASSERT_NE(rest, NULL);
	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	ASSERT_TRUE(add_second(rest, 8 * MIB));
	ASSERT_EQ(used_of_second(), 0);

	ASSERT_TRUE(hogs_run_and_kill(&victim, &f));
	page_out_once(mine, MINE);
	ASSERT_TRUE(hogs_stop());

	EXPECT_GE(f.waiting, most(PAGES));
	EXPECT_EQ(swapped(mine, MINE), MINE_PAGES);
	EXPECT_EQ(used_of_second(), 0);
	victim_end(&victim);
	EXPECT_TRUE(filled(mine, MINE, 9));
	EXPECT_TRUE(filled(rest, MINE, 10));
}

/* Nothing waits: pages go to the second one, and what is there waits as well. */
TEST_F_TIMEOUT(full, second_device_is_used_if_the_first_is_full, LIMIT)
{
	char *rest;

	rest = map_own(8 * MIB, 10);
	ASSERT_NE(rest, NULL);
	ASSERT_TRUE(add_second(rest, 8 * MIB));
	memory.fifo = 0;
	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	EXPECT_GE(used_of_second(), most(PAGES));
	BEGIN = swap_stats();
	ASSERT_TRUE(victim_dies(&victim));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	EXPECT_GE(swap_stats().queued - BEGIN.queued, most(PAGES));
	EXPECT_TRUE(zram_off(1));
	EXPECT_TRUE(filled(rest, MINE, 10));
}

FIXTURE(hogs) {
	struct world world;
	struct limits limits;
};

FIXTURE_SETUP(hogs)
{
	const char *missing = hogs_begin(&self->world, &self->limits,
					 SWAP_SIZE);

	if (missing)
		SKIP(return, "%s", missing);
}

FIXTURE_TEARDOWN_PARENT(hogs)
{
	hogs_end(_metadata, &self->world, &self->limits);
}

/* Swaps out while the slots of a victim wait, of which none is released. */
static void swap_out_beside_waiting(struct __test_metadata *_metadata,
				    char *mine)
{
	struct swap_stats before, after;

	ASSERT_TRUE(hogs_run_and_kill(&victim, &before));
	page_out_once(mine, MINE);
	after = swap_stats();
	ASSERT_TRUE(hogs_stop());
	EXPECT_GE(before.waiting, most(PAGES));
	EXPECT_EQ(after.waiting, before.waiting);
}

/* The cgroup's limit, or that of one above it. */
static void at_swap_max(struct __test_metadata *_metadata, struct world *w,
			const char *limited)
{
	const char *others = w->others;
	long fails, maxes;
	char *mine;

	mine = mine_begin(w);
	ASSERT_NE(mine, NULL);
	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	ASSERT_EQ(cgroup_write_number(limited, "memory.swap.max",
				      cgroup_swap(limited) * PAGE), 0);
	expect_no_swap(_metadata, mine, others);
	fails = swap_fails(others);
	maxes = swap_maxes(limited);

	/* What waits is not charged, so none of it has to be released. */
	swap_out_beside_waiting(_metadata, mine);
	EXPECT_EQ(swapped(mine, MINE), MINE_PAGES);
	EXPECT_EQ(swap_fails(others), fails);
	EXPECT_EQ(swap_maxes(limited), maxes);
	victim_end(&victim);
	EXPECT_TRUE(filled(mine, MINE, 9));
}

TEST_F_TIMEOUT(hogs, at_the_swap_max_of_its_cgroup, LIMIT)
{
	memory.cgroup = self->world.others;
	at_swap_max(_metadata, &self->world, self->world.others);
}

TEST_F_TIMEOUT(hogs, at_the_swap_max_above_its_cgroup, LIMIT)
{
	at_swap_max(_metadata, &self->world, self->world.cgroups.top);
}

/* At its own limit, a cgroup does not release what others left. */
TEST_F_TIMEOUT(hogs, at_a_swap_max_of_its_own, LIMIT)
{
	char *mine;

	mine = mine_begin(&self->world);
	ASSERT_NE(mine, NULL);
	ASSERT_EQ(cgroup_write(self->world.others, "memory.swap.max", "0"), 0);
	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	swap_out_beside_waiting(_metadata, mine);
	EXPECT_EQ(swapped(mine, MINE), 0);
	EXPECT_TRUE(filled(mine, MINE, 9));
}

/* Enough swap is free: others leave it to the worker. */
TEST_F_TIMEOUT(hogs, those_who_swap_do_not_work_for_others, LIMIT)
{
	char *mine;

	mine = mine_begin(&self->world);
	ASSERT_NE(mine, NULL);
	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	swap_out_beside_waiting(_metadata, mine);
	EXPECT_EQ(swapped(mine, MINE), MINE_PAGES);
	victim_end(&victim);
}

/* The free swap that the kernel reports, and what is in use, do not differ. */
TEST_F_TIMEOUT(hogs, what_waits_counts_as_free, LIMIT)
{
	long before, after, used;
	struct swap_stats f;

	before = swap_free();
	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	ASSERT_LE(swap_free(), before - PAGES);
	ASSERT_TRUE(hogs_run_and_kill(&victim, &f));
	after = swap_free();
	used = swap_used();
	ASSERT_TRUE(hogs_stop());
	EXPECT_GE(f.waiting, most(PAGES));
	EXPECT_GE(after, before - SLOTS_OF_CPUS);
	EXPECT_GE(used, f.waiting);
	victim_end(&victim);
}

static long failed_writes(void)
{
	char text[128];
	long nr;

	if (!read_file("/sys/block/zram0/io_stat", text, sizeof(text)) ||
	    sscanf(text, "%*d %ld", &nr) != 1)
		return -1;

	return nr;
}

static long zram_pages(void)
{
	char text[256];
	long bytes;

	if (!read_file("/sys/block/zram0/mm_stat", text, sizeof(text)) ||
	    sscanf(text, "%*d %*d %ld", &bytes) != 1)
		return -1;

	return bytes / PAGE;
}

/* What waits holds all that zram may use: there is room for others at once. */
TEST_F_TIMEOUT(hogs, at_the_mem_limit, LIMIT)
{
	struct swap_stats f;
	char text[32], *mine;
	long before;

	mine = mine_begin(&self->world);
	ASSERT_NE(mine, NULL);
	/* So that it takes memory. */
	add_noise(mine, MINE, 9);
	memory.noise = true;
	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	snprintf(text, sizeof(text), "%ld", zram_pages() * (long)PAGE);
	ASSERT_TRUE(zram_write(0, "mem_limit", text));
	before = failed_writes();
	ASSERT_GE(before, 0);

	ASSERT_TRUE(hogs_run_and_kill(&victim, &f));
	page_out_once(mine, MINE);
	ASSERT_TRUE(hogs_stop());

	EXPECT_GE(f.waiting, most(PAGES));
	EXPECT_EQ(failed_writes(), before);
	EXPECT_EQ(swapped(mine, MINE), MINE_PAGES);
	EXPECT_TRUE(zram_write(0, "mem_limit", "0"));
	victim_end(&victim);
	EXPECT_TRUE(filled(mine, MINE, 9));
}

/* Reclaim takes the memory that waiting slots hold. */
TEST_F_TIMEOUT(hogs, reclaim_releases_what_waits, LIMIT)
{
	struct swap_stats before, after;
	struct told told;

	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	ASSERT_TRUE(hogs_run_and_kill(&victim, &before));
	/* Calls all shrinkers until they find little. */
	write_file("/proc/sys/vm/drop_caches", "2");
	after = swap_stats();
	ASSERT_TRUE(hogs_stop());
	EXPECT_GE(before.waiting, most(PAGES));
	EXPECT_LT(after.waiting, before.waiting / 2);
	victim_end(&victim);
	EXPECT_TRUE(within(PATIENCE, all_released()));
	read_events(&told);
	EXPECT_GE(told.by[MEMORY].pages, before.waiting / 2);
}

/* Without need, they wait for the worker. */
TEST_F_TIMEOUT(hogs, the_worker_comes_in_the_end, LIMIT)
{
	const char *cgroup = self->world.victims;
	struct swap_stats before, f;
	struct told told;
	long used, took, charged;

	memory.size = 16 * MIB;
	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	ASSERT_TRUE(hogs_run_and_kill(&victim, &before));
	/*
	 * It is not only dead, but off its CPU, which counts its time: soon,
	 * unless the host stalls that CPU meanwhile.
	 */
	usleep(500000);
	before = swap_stats();
	used = cgroup_read(cgroup, "cpu.stat", "usage_usec ");
	/* Neither memory.swap.max nor memory.swap.high counts what waits. */
	charged = cgroup_swap(cgroup);
	ASSERT_TRUE(hogs_stop());
	EXPECT_EQ(charged, 0);

	EXPECT_GE(before.waiting, most(16 * MIB / PAGE));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	f = swap_stats();
	EXPECT_EQ(f.full, BEGIN.full);
	victim_end(&victim);
	read_events(&told);
	EXPECT_EQ(told.by[WORKER].pages, before.waiting);
	EXPECT_EQ(told.by[WORKER].pages, f.queued - BEGIN.queued);
	/* Only the worker was charged to that cgroup. */
	used = cgroup_read(cgroup, "cpu.stat", "usage_usec ") - used;
	took = told.by[WORKER].took_ns / 1000;
	TH_LOG("the worker took %ld us, the cgroup used %ld us", took, used);
	EXPECT_LE(labs(used - took), 2);
	EXPECT_EQ(cgroup_swap(cgroup), 0);
}

static void *swapoff_fn(void *arg)
{
	set_fifo(TEST_PRIORITY);

	return (void *)(long)(swapoff(arg) ? errno : 0);
}

TEST_F_TIMEOUT(hogs, swapoff_releases_what_waits, LIMIT)
{
	struct swap_stats before, after;
	struct told told;
	pthread_t thread;
	void *err;

	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	ASSERT_TRUE(hogs_run_and_kill(&victim, &before));
	/* It cannot finish: for that, RCU has to run. */
	ASSERT_EQ(pthread_create(&thread, NULL, swapoff_fn,
				 (void *)zram_device(0)), 0);
	within(PATIENCE, !swap_stats().waiting);
	after = swap_stats();
	ASSERT_TRUE(hogs_stop());
	ASSERT_EQ(pthread_join(thread, &err), 0);

	EXPECT_EQ(err, NULL);
	EXPECT_GE(before.waiting, most(PAGES));
	EXPECT_EQ(after.waiting, 0);
	victim_end(&victim);
	read_events(&told);
	EXPECT_EQ(told.by[SWAPOFF].pages, before.waiting);
	/* The device is not in use any more. */
	EXPECT_TRUE(zram_reset(0));
	EXPECT_TRUE(zram_on(0, SWAP_SIZE, 5));
}

/* A ring that is full. */
FIXTURE(full_ring) {
	struct world world;
	struct limits limits;
	long pages;
};

/* An entry for so much memory, at most so many, each for a run of slots. */
#define RING_SHARE	(256 * 1024L)
#define RING_ENTRIES	65536L
#define RUN_PAGES	2
/* Seconds for the test, on however busy a machine. */
#define FULL_LIMIT	(3 * LIMIT)
/* What it may take to have them in swap: half of that. */
#define FILL_NS		(FULL_LIMIT / 2 * 1000000000ULL)

FIXTURE_SETUP(full_ring)
{
	long entries = pages_of("MemTotal:") * (long)PAGE / RING_SHARE * 5 / 4;
	const char *missing;

	if (entries > RING_ENTRIES)
		entries = RING_ENTRIES;
	self->pages = entries * RUN_PAGES + 8 * PAGES;
	if (pages_of("MemAvailable:") < self->pages)
		SKIP(return, "needs %ld MiB",
		     self->pages * (long)PAGE / (long)MIB);
	missing = hogs_begin(&self->world, &self->limits,
			     self->pages * PAGE * 2 + 8 * MIB);
	if (missing)
		SKIP(return, "%s", missing);
}

FIXTURE_TEARDOWN_PARENT(full_ring)
{
	hogs_end(_metadata, &self->world, &self->limits);
}

TEST_F_TIMEOUT(full_ring, slots_do_not_wait, FULL_LIMIT)
{
	struct region beside = {
		.size = SIZE, .seed = 4, .cgroup = self->world.others
	};
	struct victim_ops ops = { &beside, region_swap_out, region_check };
	unsigned long long begin = now_ns();
	struct swap_stats before, after;
	struct victim neighbour;

	ASSERT_EQ(victim_start(&neighbour, &ops), GOOD);
	if ((now_ns() - begin) / PAGES * self->pages > FILL_NS)
		SKIP(return, "takes too long in this kernel");
	memory.size = self->pages * PAGE;
	memory.stripes = RUN_PAGES;
	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	before = swap_stats();
	ASSERT_TRUE(hogs_run_and_kill(&victim, &after));
	ASSERT_TRUE(hogs_stop());

	victim_end(&victim);
	TH_LOG("%ld slots: %ld queued, for %ld no room", self->pages,
	       after.queued - before.queued, after.full - before.full);
	EXPECT_GT(after.queued, before.queued);
	EXPECT_GT(after.full, before.full);
	EXPECT_EQ(cgroup_swap(self->world.victims), 0);
	EXPECT_TRUE(within(PATIENCE, all_released()));
	EXPECT_EQ(victim_check(&neighbour), GOOD);
}

/* --- Storms --- */

#define NR_VICTIMS	3
/* Minimum of rounds; and before entries were queued and memory checked. */
#define FEW_ROUNDS	3
#define MANY_ROUNDS	60

/**
 * struct storm - shared by all processes
 * @spoiled: memory with another content
 * @looks: checks of memory
 * @stop: for the thread that disturbs
 * @times: disturbances
 */
struct storm {
	unsigned int spoiled;
	unsigned int looks;
	unsigned int stop;
	unsigned int times;
};

static struct storm *storm;

FIXTURE(storm) {
	struct world world;
	struct limits limits;
};

FIXTURE_VARIANT(storm) {
	size_t size;
	/* Runs in a thread of the test until the storm ends. */
	void *(*disturb)(void *arg);
};

static void look(const char *mem, size_t size, unsigned long seed)
{
	if (!filled(mem, size, seed))
		__atomic_add_fetch(&storm->spoiled, 1, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&storm->looks, 1, __ATOMIC_SEQ_CST);
}

/* Swaps until it is killed. */
static void storm_victim(const char *cgroup, unsigned long long seed)
{
	size_t size = (16 + rnd(&seed) % 384) * PAGE;
	unsigned long content = seed;
	char *mem;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	mem = map_small(size);
	if (!mem || !cgroup_enter(cgroup))
		_exit(1);
	fill(mem, size, content);
	for (;;) {
		size_t from = rnd(&seed) % (size / PAGE) * PAGE;
		pid_t pid = -1;

		page_out_once(mem + from, size - from);
		if (rnd(&seed) % 4 == 0)
			usleep(rnd(&seed) % 2000);
		switch (rnd(&seed) % 8) {
		case 0:
			/* Refers to the same slots, and looks at them. */
			pid = fork();
			if (!pid) {
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				page_out_once(mem, size);
				look(mem, size, content);
				_exit(0);
			}
			if (pid > 0 && rnd(&seed) % 2)
				kill(pid, SIGKILL);
			break;
		case 1:
			madvise(mem, size, MADV_DONTNEED);
			content = seed;
			fill(mem, size, content);
			break;
		case 2:
			munmap(mem, size);
			mem = map_small(size);
			if (!mem)
				_exit(1);
			fill(mem, size, content);
			break;
		default:
			look(mem, size, content);
		}
		/* Now and then it outlives this. */
		while (pid > 0 && waitpid(-1, NULL, rnd(&seed) % 2 ?
					  WNOHANG : 0) > 0)
			;
	}
}

static void nap(unsigned long long *seed, unsigned int us)
{
	usleep(rnd(seed) % us);
}

static bool storm_over(void)
{
	return __atomic_load_n(&storm->stop, __ATOMIC_SEQ_CST);
}

/* A device that is used first, and goes again and again. */
static void *swapoff_and_on(void *arg)
{
	unsigned long long seed = 11;
	bool on = false;

	while (!storm_over()) {
		if (!on)
			on = zram_on(1, SWAP_SIZE / 4, 10);
		nap(&seed, 50000);
		/* What is in there may be more than there is room for. */
		if (on && zram_off(1)) {
			storm->times++;
			on = false;
		}
	}
	within(PATIENCE, !on || zram_off(1));

	return NULL;
}

static void *modes(void *arg)
{
	unsigned long long seed = 12;

	while (!storm_over()) {
		if (set_mode(rnd(&seed) % (DEFERRED + 1)))
			storm->times++;
		nap(&seed, 20000);
	}
	set_mode(DEFERRED);

	return NULL;
}

/* With longer breaks for everything else. */
static void *hogs_come_and_go(void *arg)
{
	unsigned long long seed = 13;

	if (!hogs_start())
		return NULL;
	while (!storm_over()) {
		if (!hogs_run())
			return NULL;
		nap(&seed, 300000);
		if (!hogs_stop())
			return NULL;
		storm->times++;
		nap(&seed, 600000);
	}

	return NULL;
}

static void *limits_change(void *arg)
{
	static const char * const names[] = { "0", "1M", "4M", "max" };
	unsigned long long seed = 14;
	const char *cgroup = arg;

	while (!storm_over()) {
		if (!cgroup_write(cgroup, "memory.swap.max",
				  names[rnd(&seed) % 4]))
			storm->times++;
		nap(&seed, 20000);
		cgroup_write(cgroup, "memory.reclaim", "1M");
	}

	return NULL;
}

FIXTURE_VARIANT_ADD(storm, swapoff) { SWAP_SIZE, swapoff_and_on };
FIXTURE_VARIANT_ADD(storm, modes) { SWAP_SIZE, modes };
FIXTURE_VARIANT_ADD(storm, hogs) { SWAP_SIZE, hogs_come_and_go };
FIXTURE_VARIANT_ADD(storm, little_swap) { 2 * MIB, limits_change };
FIXTURE_VARIANT_ADD(storm, little_swap_and_swapoff) { 2 * MIB, swapoff_and_on };

FIXTURE_SETUP(storm)
{
	const char *missing = world_begin(&self->world, variant->size);

	if (missing)
		SKIP(return, "%s", missing);
	if (!limits_lift(&self->limits))
		SKIP(return, "hogs cannot have all CPUs to themselves");
	/* To wait for orphaned children of victims. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	storm = map(PAGE, MAP_SHARED);
	ASSERT_NE(storm, NULL);
	/*
	 * The first task that touches it is charged. If that were a victim,
	 * reclaim from the victims' cgroup would swap it out.
	 */
	memset(storm, 0, PAGE);
}

FIXTURE_TEARDOWN_PARENT(storm)
{
	limits_restore(&self->limits);
	world_end(_metadata, &self->world);
}

/* Killed by one way or another, sometimes several. */
static void storm_kill(const char *cgroup, const pid_t *pids, const int *pidfds,
		       unsigned long long *seed)
{
	for (int i = 0; i < NR_VICTIMS; i++) {
		switch (rnd(seed) % 4) {
		case 0:
			cgroup_write(cgroup, "cgroup.kill", "1");
			break;
		case 1:
			send_signal(pidfds[i], SIGKILL, NULL,
				    PIDFD_SIGNAL_EXPEDITE);
			break;
		case 2:
			kill(pids[i], SIGKILL);
			sys_process_mrelease(pidfds[i]);
		}
		if (rnd(seed) % 2)
			nap(seed, 3000);
		kill(pids[i], SIGKILL);
	}
}

TEST_F_TIMEOUT(storm, kills, LIMIT)
{
	struct stress stress = { .min_rounds = MANY_ROUNDS };
	const char *cgroup = self->world.victims;
	unsigned long long seed = 1;
	struct swap_stats f;
	pthread_t thread;

	TH_LOG("seed %llu", seed);
	ASSERT_EQ(pthread_create(&thread, NULL, variant->disturb,
				 (void *)cgroup), 0);
	while (stress_continues(&stress)) {
		int pidfds[NR_VICTIMS];
		pid_t pids[NR_VICTIMS];

		for (int i = 0; i < NR_VICTIMS; i++) {
			unsigned long long own = rnd(&seed) | 1;

			pids[i] = fork();
			ASSERT_GE(pids[i], 0);
			if (!pids[i])
				storm_victim(cgroup, own);
			pidfds[i] = pidfd_of(pids[i], 0);
		}
		/* Until one of them has checked its memory. */
		nap(&seed, 200000 * (storm->looks ? 1 : stress.rounds + 1));
		storm_kill(cgroup, pids, pidfds, &seed);
		for (int i = 0; i < NR_VICTIMS; i++) {
			EXPECT_TRUE(pidfd_exits(pidfds[i], PATIENCE));
			close(pidfds[i]);
		}
		while (waitpid(-1, NULL, 0) > 0)
			;
		ASSERT_EQ(storm->spoiled, 0) {
			TH_LOG("round %u", stress.rounds);
		}
		if (storm->looks && swap_stats().queued != BEGIN.queued)
			stress.min_rounds = FEW_ROUNDS;
	}
	__atomic_store_n(&storm->stop, 1, __ATOMIC_SEQ_CST);
	ASSERT_EQ(pthread_join(thread, NULL), 0);
	EXPECT_TRUE(within(PATIENCE, all_released()));
	f = swap_stats();
	TH_LOG("%u looks, %u disturbances", storm->looks, storm->times);
	TH_LOG("%ld queued, %ld not", f.queued - BEGIN.queued,
	       f.full - BEGIN.full);
	EXPECT_GT(storm->looks, 0);
	EXPECT_GT(storm->times, 0);
	EXPECT_GT(f.queued, BEGIN.queued);
	/* Reclaim that walked an mm may drop its last reference. */
	EXPECT_TRUE(within(PATIENCE, !swap_left(&self->world)));
}

TEST_HARNESS_MAIN
