// SPDX-License-Identifier: GPL-2.0-only
/*
 * How the swap slots of a process are released: which of them wait for workers,
 * which are free when a system call returns, and that all of them are freed in
 * the end, and none too early.
 */
#define _GNU_SOURCE
#include <linux/loop.h>
#include <sys/ioctl.h>

#include "../kselftest_harness.h"
#include "failslab.h"
#include "folios.h"
#include "swap_slots.h"

#define PAGES		(SIZE / (long)PAGE)

/* Not in a fixture: victims start as copies of the test. */
static struct region memory;
static struct victim victim;

FIXTURE(swap) {
	struct world world;
};

FIXTURE_SETUP(swap)
{
	const char *missing = world_begin(&self->world, SWAP_SIZE);

	if (missing)
		SKIP(return, "%s", missing);
	memory = (struct region){
		.size = SIZE, .seed = 1, .cgroup = self->world.victims
	};
}

FIXTURE_TEARDOWN_PARENT(swap)
{
	world_end(_metadata, &self->world);
}

static const struct victim_ops memory_ops = {
	&memory, region_swap_out, region_check
};

#define BEGIN	(self->world.begin)

/* --- A process is killed --- */

static int by_cgroup(struct victim *v)
{
	return cgroup_write(memory.cgroup, "cgroup.kill", "1");
}

/* Its slots are in use, those of each neighbour beside it. */
static bool swap_out_beside(struct victim *beside, struct region *mine)
{
	static const struct victim_ops ops = {
		.prepare = region_swap_out, .check = region_check
	};
	struct victim_ops own = ops;

	own.arg = mine;

	return victim_start(beside, &own) == GOOD;
}

FIXTURE(killed) {
	struct world world;
};

FIXTURE_VARIANT(killed) {
	int (*how)(struct victim *v);
	size_t size;
	unsigned int stripes;
	/* Slots of which no two are neighbours do not wait. */
	bool at_once;
};

FIXTURE_VARIANT_ADD(killed, by_signal) { kill_plain, SIZE };
FIXTURE_VARIANT_ADD(killed, by_cgroup) { by_cgroup, SIZE };
FIXTURE_VARIANT_ADD(killed, expedited) { kill_expedited, SIZE };
FIXTURE_VARIANT_ADD(killed, one_page) { kill_plain, 4096, .at_once = true };
FIXTURE_VARIANT_ADD(killed, large) { kill_plain, 16 * MIB };
FIXTURE_VARIANT_ADD(killed, in_pieces) { kill_plain, 8 * MIB, 8 };
FIXTURE_VARIANT_ADD(killed, scattered) { kill_plain, 8 * MIB, 1, true };

FIXTURE_SETUP(killed)
{
	const char *missing = world_begin(&self->world, SWAP_SIZE);

	if (missing)
		SKIP(return, "%s", missing);
	if (variant->how == kill_expedited && !expedite_supported())
		SKIP(return, "no PIDFD_SIGNAL_EXPEDITE in this kernel");
	memory = (struct region){
		.size = variant->size < PAGE ? PAGE : variant->size,
		.seed = 1,
		.cgroup = self->world.victims,
		.stripes = variant->stripes,
	};
}

FIXTURE_TEARDOWN_PARENT(killed)
{
	world_end(_metadata, &self->world);
}

TEST_F_TIMEOUT(killed, slots_wait_for_the_worker, LIMIT)
{
	struct region beside = {
		.size = SIZE, .seed = 2, .cgroup = self->world.others
	};
	long pages = memory.size / PAGE;
	struct victim neighbour;
	struct swap_stats f;
	struct told told;

	ASSERT_TRUE(swap_out_beside(&neighbour, &beside));
	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	ASSERT_EQ(cgroup_swap(self->world.victims), pages);
	f = swap_stats();
	ASSERT_EQ(f.queued, BEGIN.queued);

	ASSERT_EQ(variant->how(&victim), 0);
	EXPECT_TRUE(pidfd_exits(victim.pidfd, PATIENCE));
	/* What waits is charged to no cgroup. */
	EXPECT_EQ(cgroup_swap(self->world.victims), 0);
	EXPECT_TRUE(within(PATIENCE, all_released()));
	f = swap_stats();
	if (variant->at_once) {
		EXPECT_LT(f.queued - BEGIN.queued, most(pages));
	} else {
		EXPECT_GE(f.queued - BEGIN.queued, most(pages));
		EXPECT_LE(f.queued - BEGIN.queued, pages);
		EXPECT_GT(f.waiting_max, 0);
	}
	EXPECT_EQ(f.full, BEGIN.full);
	read_events(&told);
	EXPECT_EQ(told.pages, f.queued - BEGIN.queued);
	EXPECT_EQ(told.by[WORKER].pages, told.pages);
	if (memory.stripes > 1)
		EXPECT_GE(told.runs, told.pages / memory.stripes / 2);

	/* All of them are free. */
	EXPECT_EQ(swap_used_exactly(), PAGES);
	/* And no others. */
	EXPECT_EQ(victim_check(&neighbour), GOOD);
}

/* Returns the CPU time of a cgroup in us. */
static long cpu_us(const char *cgroup)
{
	return cgroup_read(cgroup, "cpu.stat", "usage_usec ");
}

static long cpu_system_us(const char *cgroup)
{
	return cgroup_read(cgroup, "cpu.stat", "system_usec ");
}

static int by_mrelease(struct victim *v)
{
	return mrelease(v->pidfd);
}

FIXTURE(parked) {
	struct world world;
};

FIXTURE_VARIANT(parked) {
	int (*how)(struct victim *v);
};

FIXTURE_VARIANT_ADD(parked, mrelease) { by_mrelease };
FIXTURE_VARIANT_ADD(parked, expedited) { kill_expedited };

FIXTURE_SETUP(parked)
{
	const char *missing = world_begin(&self->world, SWAP_SIZE);

	if (missing)
		SKIP(return, "%s", missing);
	if (variant->how == kill_expedited ? !expedite_supported() : !mrelease_supported())
		SKIP(return, "no such way in this kernel");
	memory = (struct region){
		.size = 16 * MIB, .seed = 1, .cgroup = self->world.victims
	};
}

FIXTURE_TEARDOWN_PARENT(parked)
{
	world_end(_metadata, &self->world);
}

/*
 * The victim is stopped, others free its memory, and workers its slots: the CPU
 * time of its cgroup is then the workers' time. The worker of an expedited kill
 * is charged to it, too.
 */
TEST_F_TIMEOUT(parked, others_free_it_and_it_pays, LIMIT)
{
	long pages = memory.size / PAGE, before, before_system, took, used;
	const char *cgroup = self->world.victims;
	unsigned long message;
	struct swap_stats f;
	struct told told;

	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	ASSERT_TRUE(victim_park(&victim));
	/* Waits until it is off its CPU, and what it used is accounted for. */
	ASSERT_EQ(ptrace(PTRACE_GETEVENTMSG, victim.pid, NULL, &message), 0);
	before = cpu_us(cgroup);
	before_system = cpu_system_us(cgroup);
	ASSERT_GT(before, 0);

	ASSERT_EQ(variant->how(&victim), 0);
	ASSERT_TRUE(within(PATIENCE, !cgroup_swap(cgroup) && all_released()));
	f = swap_stats();
	EXPECT_EQ(f.full, BEGIN.full);
	read_events(&told);
	EXPECT_GE(told.pages, most(pages));
	EXPECT_EQ(told.by[WORKER].pages, told.pages);
	took = told.by[WORKER].took_ns / 1000;
	used = cpu_us(cgroup) - before;
	TH_LOG("workers took %ld us, the cgroup used %ld us", took, used);
	EXPECT_GT(took, 0);
	EXPECT_GE(used - took, -2);
	if (variant->how == by_mrelease)
		EXPECT_LE(used - took, 2);
	/* It is no user time; user and system are scaled to fit the sum. */
	EXPECT_GE(cpu_system_us(cgroup) - before_system, took / 2);
	/* Nothing is left for the victim itself. */
	victim_end(&victim);
	EXPECT_EQ(swap_stats().queued, f.queued);
}

static void __attribute__((constructor)) exec_target(void)
{
	if (getenv(EXEC_TARGET))
		_exit(0);
}

/* Returns the CPU time of a process in us, also once it is a zombie. */
static long process_cpu_us(pid_t pid)
{
	struct timespec t;
	clockid_t clock;

	if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &t))
		return -1;

	return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/*
 * A process that starts another program leaves its memory behind, and lives. Its
 * cgroup pays for the worker.
 */
TEST_F_TIMEOUT(swap, exec_leaves_slots_to_the_worker, LIMIT)
{
	const char *cgroup = self->world.victims;
	long own, used, took;
	struct told told;
	siginfo_t info;
	int go[2];
	pid_t pid;
	char byte;

	ASSERT_EQ(pipe(go), 0);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		close(go[1]);
		if (region_swap_out(&memory) != GOOD ||
		    read(go[0], &byte, 1) != 1)
			_exit(1);
		exec_self("1");
	}
	ASSERT_TRUE(within(PATIENCE, cgroup_swap(cgroup) == PAGES));
	/* What it used up to here is accounted for by then. */
	usleep(20000);
	used = cpu_us(cgroup);
	own = process_cpu_us(pid);
	ASSERT_GT(own, 0);
	ASSERT_EQ(write(go[1], "x", 1), 1);
	ASSERT_EQ(waitid(P_PID, pid, &info, WEXITED | WNOWAIT), 0);
	EXPECT_EQ(info.si_status, 0);
	EXPECT_TRUE(within(PATIENCE, all_released()));
	EXPECT_GE(swap_stats().queued - BEGIN.queued, most(PAGES));
	EXPECT_EQ(cgroup_swap(cgroup), 0);
	read_events(&told);
	took = told.by[WORKER].took_ns / 1000;
	EXPECT_GT(took, 0);
	own = process_cpu_us(pid) - own;
	used = cpu_us(cgroup) - used;
	TH_LOG("worker: %ld us, process: %ld us, cgroup: %ld us", took, own, used);
	EXPECT_GE(used - own - took, -10);
	EXPECT_EQ(waitpid(pid, NULL, 0), pid);
}

/* Several at once. */
TEST_F_TIMEOUT(swap, many_are_killed_at_once, LIMIT)
{
	struct victim v[4] = {};
	struct swap_stats f;
	struct told told;

	memory.size = 6 * MIB;
	for (int i = 0; i < 4; i++)
		ASSERT_EQ(victim_start(&v[i], &memory_ops), GOOD);
	ASSERT_EQ(cgroup_write(self->world.victims, "cgroup.kill", "1"), 0);
	for (int i = 0; i < 4; i++)
		EXPECT_TRUE(pidfd_exits(v[i].pidfd, PATIENCE));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	f = swap_stats();
	EXPECT_GE(f.queued - BEGIN.queued, most(4 * (6 * MIB / PAGE)));
	EXPECT_EQ(f.full, BEGIN.full);
	read_events(&told);
	EXPECT_EQ(told.by[WORKER].pages, f.queued - BEGIN.queued);
	EXPECT_EQ(cgroup_swap(self->world.victims), 0);
}

#define NR_PREEMPTED	8

/*
 * Slots in use that are neither charged nor waiting, when no worker releases
 * any; nobody may add some meanwhile.
 */
static long unseen(const char *cgroup)
{
	long waiting, seen, used;

	do {
		waiting = swap_stats().waiting;
		seen = waiting + cgroup_swap(cgroup);
		used = swap_used();
	} while (swap_stats().waiting != waiting);

	return used - seen;
}

/*
 * A dying process that loses its CPU keeps no slots from others, for however
 * long. Here, it loses its CPU to the test itself, time and again.
 */
TEST_F_TIMEOUT(swap, preempted_while_they_die, LIMIT)
{
	const char *cgroup = self->world.victims;
	static struct victim v[NR_PREEMPTED];
	long charged, most_unseen = 0;
	unsigned int samples = 0;

	if (preempt_rt())
		SKIP(return, RT_KEEPS_LOCKS);
	ASSERT_TRUE(run_on(0));
	for (int i = 0; i < NR_PREEMPTED; i++)
		ASSERT_EQ(victim_start(&v[i], &memory_ops), GOOD);
	/* Returns slots that CPUs cache: nobody counts these, either. */
	ASSERT_EQ(swap_used_exactly(), NR_PREEMPTED * PAGES);
	ASSERT_TRUE(set_fifo(1));
	ASSERT_EQ(cgroup_write(cgroup, "cgroup.kill", "1"), 0);
	while ((charged = cgroup_swap(cgroup)) > 0) {
		long now = unseen(cgroup);

		if (charged < NR_PREEMPTED * PAGES)
			samples++;
		if (now > most_unseen)
			most_unseen = now;
		usleep(100);
	}
	ASSERT_TRUE(set_fifo(0));
	TH_LOG("%u samples, at most %ld slots unseen", samples, most_unseen);
	EXPECT_GT(samples, 0);
	EXPECT_EQ(most_unseen, 0);
	for (int i = 0; i < NR_PREEMPTED; i++) {
		EXPECT_TRUE(pidfd_exits(v[i].pidfd, PATIENCE));
		victim_end(&v[i]);
	}
	EXPECT_EQ(charged, 0);
}

/* Huge pages go to swap in one piece, if there is one that is large enough. */
TEST_F_TIMEOUT(swap, huge_pages, LIMIT)
{
	const struct folios folios = { .kib = FOLIO_PMD };
	const size_t huge = FOLIO_PMD * 1024UL;
	struct folio_settings settings;
	long splits, *allocated;
	const char *missing;
	struct told told;
	pid_t pid;

	missing = folios_begin(&settings, &folios);
	if (missing)
		SKIP(return, "%s", missing);
	allocated = map(PAGE, MAP_SHARED);
	ASSERT_NE(allocated, NULL);
	splits = read_number("/proc/vmstat", "thp_swpout ");
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		char *mem = map(4 * huge, MAP_PRIVATE);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (!mem || !cgroup_enter(self->world.victims))
			_exit(1);
		mem += -(uintptr_t)mem % huge;
		madvise(mem, 3 * huge, MADV_HUGEPAGE);
		fill(mem, 3 * huge, 1);
		*allocated = folios_allocated(&settings);
		if (!page_out(mem, 3 * huge, 3 * huge / PAGE))
			_exit(1);
		for (;;)
			pause();
	}
	ASSERT_TRUE(within(PATIENCE, cgroup_swap(self->world.victims) ==
			   3 * huge / PAGE));
	folios_end(&settings);
	EXPECT_GT(*allocated, 0);
	EXPECT_GT(read_number("/proc/vmstat", "thp_swpout "), splits);
	ASSERT_TRUE(kill_pid(pid));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	read_events(&told);
	EXPECT_EQ(told.pages, 3 * huge / PAGE);
	EXPECT_EQ(told.by[WORKER].pages, told.pages);
	TH_LOG("%ld runs", told.runs);
	EXPECT_EQ(cgroup_swap(self->world.victims), 0);
}

/* --- What does not wait --- */

static void unmap(char *mem)
{
	munmap(mem, SIZE);
}

static void dont_need(char *mem)
{
	madvise(mem, SIZE, MADV_DONTNEED);
}

/* Has a page table walk of its own. */
static void let_go(char *mem)
{
	madvise(mem, SIZE, MADV_FREE);
}

static void shrink(char *mem)
{
	/* Not to 0, which is no size. */
	if (mremap(mem, SIZE, PAGE, 0) == mem)
		munmap(mem, PAGE);
}

static void map_over(char *mem)
{
	mmap(mem, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
	     0);
}

FIXTURE(alive) {
	struct world world;
};

FIXTURE_VARIANT(alive) {
	void (*how)(char *mem);
	unsigned int stripes;
};

FIXTURE_VARIANT_ADD(alive, munmap) { unmap };
FIXTURE_VARIANT_ADD(alive, munmap_scattered) { unmap, 1 };
FIXTURE_VARIANT_ADD(alive, dontneed) { dont_need };
FIXTURE_VARIANT_ADD(alive, mremap) { shrink };
FIXTURE_VARIANT_ADD(alive, mmap_fixed) { map_over };
FIXTURE_VARIANT_ADD(alive, free) { let_go };

FIXTURE_SETUP(alive)
{
	const char *missing = world_begin(&self->world, SWAP_SIZE);

	if (missing)
		SKIP(return, "%s", missing);
}

FIXTURE_TEARDOWN_PARENT(alive)
{
	world_end(_metadata, &self->world);
}

TEST_F_TIMEOUT(alive, slots_are_free_on_return, LIMIT)
{
	struct region mine = {
		.size = SIZE, .seed = 3, .cgroup = self->world.others,
		.stripes = variant->stripes
	};
	struct region rest = { .size = SIZE, .seed = 4 };
	long before;

	ASSERT_EQ(region_swap_out(&mine), GOOD);
	ASSERT_EQ(region_swap_out(&rest), GOOD);
	before = swap_free();
	variant->how(mine.mem);
	/* As in stock: CPUs keep slots to themselves. */
	EXPECT_GE(swap_free() - before, PAGES - SLOTS_OF_CPUS);
	EXPECT_EQ(swap_stats().queued, BEGIN.queued);
	EXPECT_EQ(swap_stats().waiting, 0);
	EXPECT_EQ(swap_used_exactly(), PAGES);
	EXPECT_EQ(region_check(&rest), GOOD);
}

#define BATCH_EVENTS	"memreap_swap_batch"

/* What is alive has nothing of it, not even a longer time without preemption. */
TEST_F_TIMEOUT(swap, batches_of_the_dying_only, LIMIT)
{
	struct region mine = {
		.size = SIZE, .seed = 3, .cgroup = self->world.others
	};
	long alive, dying;

	ASSERT_TRUE(trace_enable(BATCH_EVENTS, true));
	ASSERT_EQ(region_swap_out(&mine), GOOD);
	unmap(mine.mem);
	alive = trace_count(BATCH_EVENTS ": ");
	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	EXPECT_TRUE(victim_dies(&victim));
	dying = trace_count(BATCH_EVENTS ": ") - alive;
	trace_enable(BATCH_EVENTS, false);
	EXPECT_EQ(alive, 0);
	EXPECT_GT(dying, 0);
}

/* page_out() finds pages that another CPU has not put on the LRU lists yet. */
TEST_F_TIMEOUT(swap, pages_of_another_cpu, LIMIT)
{
	int last = sysconf(_SC_NPROCESSORS_ONLN) - 1;
	char *mem;

	mem = map_small(SIZE);
	ASSERT_NE(mem, NULL);
	ASSERT_TRUE(run_on(last));
	fill(mem, SIZE, 7);
	ASSERT_TRUE(run_on(0));
	EXPECT_TRUE(page_out(mem, SIZE, PAGES));
	munmap(mem, SIZE);
	EXPECT_EQ(swap_used_exactly(), 0);
}

/* They are dropped instead of swapped out, also where slots would wait. */
TEST_F_TIMEOUT(swap, madv_free_pages, LIMIT)
{
	struct swap_stats f;
	pid_t pid;
	int *state = map(PAGE, MAP_SHARED);

	ASSERT_NE(state, NULL);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		char *mem = map_small(SIZE);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (!mem || !cgroup_enter(self->world.victims))
			_exit(1);
		fill(mem, SIZE, 5);
		madvise(mem, SIZE, MADV_FREE);
		/* Some change their mind. */
		fill(mem, PAGE, 5);
		page_out_once(mem, SIZE);
		*state = swapped(mem, SIZE) <= 1 ? 1 : -1;
		for (;;)
			pause();
	}
	ASSERT_TRUE(within(PATIENCE, __atomic_load_n(state, __ATOMIC_SEQ_CST)));
	EXPECT_EQ(*state, 1);
	ASSERT_TRUE(kill_pid(pid));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	f = swap_stats();
	EXPECT_LE(f.queued - BEGIN.queued, 1);
	EXPECT_EQ(swap_used_exactly(), 0);
}

/* Swapped pages belong to the file, which may outlive its mappings. */
TEST_F_TIMEOUT(swap, shmem, LIMIT)
{
	int fd = memfd_create("swap", MFD_CLOEXEC);
	long before, used;
	char *mem;
	pid_t pid;

	ASSERT_GE(fd, 0);
	ASSERT_EQ(ftruncate(fd, SIZE), 0);
	mem = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ASSERT_NE(mem, MAP_FAILED);
	fill(mem, SIZE, 6);
	ASSERT_TRUE(within(PATIENCE, put_on_lru() && page_out_once(mem, SIZE) &&
			   swap_used() >= PAGES));
	used = swap_used();

	/* One that maps it dies: nothing happens. */
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		for (;;)
			pause();
	}
	ASSERT_TRUE(kill_pid(pid));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	EXPECT_EQ(swap_stats().queued, BEGIN.queued);
	EXPECT_EQ(swap_used(), used);

	before = swap_free();
	ASSERT_EQ(ftruncate(fd, SIZE / 2), 0);
	EXPECT_GE(swap_free() - before, PAGES / 2 - SLOTS_OF_CPUS);
	/* Of the other half, reclaim may have left a few in memory. */
	EXPECT_LE(swap_used_exactly(), PAGES / 2);
	EXPECT_TRUE(filled(mem, SIZE / 2, 6));
	munmap(mem, SIZE);
	close(fd);
	EXPECT_EQ(swap_stats().queued, BEGIN.queued);
	EXPECT_EQ(swap_used_exactly(), 0);
}

/* --- Modes --- */

static bool is_on(const char *path)
{
	char text[8];

	return read_file(path, text, sizeof(text)) && !strcmp(text, "Y\n");
}

TEST_F_TIMEOUT(swap, switches_take_booleans, LIMIT)
{
	static const char * const paths[] = { BATCH, DEFER };
	static const char * const on[] = { "1", "Y\n", "y", "on" };
	static const char * const off[] = { "0", "N", "n\n", "off" };
	static const char * const bad[] = { "\n", " ", "2", "async", "-1" };

	for (size_t p = 0; p < ARRAY_SIZE(paths); p++) {
		for (size_t i = 0; i < ARRAY_SIZE(on); i++) {
			EXPECT_TRUE(write_file(paths[p], off[i]));
			EXPECT_FALSE(is_on(paths[p]));
			EXPECT_TRUE(write_file(paths[p], on[i]));
			EXPECT_TRUE(is_on(paths[p]));
		}
		for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
			errno = 0;
			EXPECT_FALSE(write_file(paths[p], bad[i])) {
				TH_LOG("'%s'", bad[i]);
			}
			EXPECT_EQ(errno, EINVAL);
			EXPECT_TRUE(is_on(paths[p]));
		}
	}
}

TEST_F_TIMEOUT(swap, modes, LIMIT)
{
	for (enum mode mode = STOCK; mode <= DEFERRED; mode++) {
		bool waits = mode == DEFERRED;
		struct swap_stats f;
		struct told told;

		ASSERT_TRUE(set_mode(mode));
		trace_clear();
		BEGIN = swap_stats();
		/* A write resets it. */
		EXPECT_EQ(BEGIN.waiting_max, 0);
		ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
		EXPECT_TRUE(victim_dies(&victim));
		EXPECT_EQ(cgroup_swap(self->world.victims), 0);
		EXPECT_TRUE(within(PATIENCE, all_released()));
		f = swap_stats();
		TH_LOG("mode %d: %ld queued", mode, f.queued - BEGIN.queued);
		EXPECT_EQ(f.queued - BEGIN.queued >= most(PAGES), waits);
		EXPECT_EQ(f.full, BEGIN.full);
		read_events(&told);
		EXPECT_EQ(told.pages, f.queued - BEGIN.queued);
		EXPECT_EQ(f.waiting_max > 0, waits);
		EXPECT_EQ(swap_used_exactly(), 0);
	}
}

/* Returns how many pages zram was told to free, by slot or by discard; or -1. */
static long told_to_free(void)
{
	char text[256];
	long n;

	if (!read_file("/sys/block/zram0/io_stat", text, sizeof(text)) ||
	    sscanf(text, "%*d %*d %*d %ld", &n) != 1)
		return -1;

	return n;
}

/* Clusters whose last slot is released are discarded. */
TEST_F_TIMEOUT(swap, discard, LIMIT)
{
	long pages;

	ASSERT_EQ(swapoff(zram_device(0)), 0);
	ASSERT_EQ(swapon(zram_device(0), SWAP_FLAG_DISCARD), 0);
	memory.size = 16 * MIB;
	pages = memory.size / PAGE;
	for (enum mode mode = STOCK; mode <= DEFERRED; mode++) {
		long before;

		ASSERT_TRUE(set_mode(mode));
		ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
		before = told_to_free();
		ASSERT_GE(before, 0);
		EXPECT_TRUE(victim_dies(&victim));
		EXPECT_TRUE(within(PATIENCE, all_released()));
		/* Each slot, and again the clusters. */
		EXPECT_TRUE(within(PATIENCE, told_to_free() - before >
				   pages + most(pages) / 2)) {
			TH_LOG("mode %d: %ld", mode, told_to_free() - before);
		}
		EXPECT_EQ(swap_used_exactly(), 0);
	}
}

/*
 * While any device is turned off, CPUs cache no slots, and readahead waits for
 * those that look as if they were cached: none of any device may wait.
 */
TEST_F_TIMEOUT(swap, nothing_waits_during_swapoff, LIMIT)
{
	struct region beside = { .size = 16 * MIB, .seed = 2 };
	const char *cgroup = self->world.others;
	struct victim neighbour;
	int status;
	long used;
	pid_t pid;

	if (preempt_rt())
		SKIP(return, RT_KEEPS_LOCKS);
	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	ASSERT_TRUE(zram_on(1, SWAP_SIZE, 10));
	ASSERT_TRUE(swap_out_beside(&neighbour, &beside));
	used = swap_used();

	/* It takes long, as it has a fraction of a CPU. */
	ASSERT_EQ(cgroup_write(cgroup, "cpu.max", "2000 100000"), 0);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(!cgroup_enter(cgroup) || swapoff(zram_device(1)));
	}
	/* CPUs have returned what they cached, or the first slots are free. */
	ASSERT_TRUE(within(PATIENCE, swap_used() < used));
	EXPECT_TRUE(victim_dies(&victim));
	EXPECT_EQ(swap_stats().queued, BEGIN.queued);
	EXPECT_EQ(waitpid(pid, &status, WNOHANG), 0);

	EXPECT_EQ(cgroup_write(cgroup, "cpu.max", "max 100000"), 0);
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	EXPECT_TRUE(within(PATIENCE, zram_reset(1)));
	EXPECT_EQ(victim_check(&neighbour), GOOD);
}

/* --- Entries with several references --- */

/* What a member of a family is asked to do. */
enum ask { NOTHING, CHECK, CHECK_AND_DROP, POISON };

/**
 * struct family - a parent and its child, shared with the test
 * @region: of the parent, in swap before the fork
 * @child: its pid
 * @ask: the child
 * @answer: its
 */
struct family {
	struct region region;
	pid_t child;
	enum ask ask;
	enum verdict answer;
};

static void ignore_signal(int sig)
{
}

static enum verdict family_answer(struct family *f, enum ask ask)
{
	struct region *r = &f->region;
	enum verdict verdict = region_check(r);

	if (ask == CHECK_AND_DROP && madvise(r->mem, r->size, MADV_DONTNEED))
		verdict = BAD;
	if (ask == POISON && madvise(r->mem + PAGE, PAGE, MADV_HWPOISON))
		verdict = errno == EINVAL ? UNSUPPORTED : BAD;

	return verdict;
}

static void family_child(struct family *f)
{
	signal(SIGBUS, ignore_signal);
	for (;;) {
		enum ask ask = __atomic_load_n(&f->ask, __ATOMIC_SEQ_CST);

		if (ask) {
			f->answer = family_answer(f, ask);
			__atomic_store_n(&f->ask, NOTHING, __ATOMIC_SEQ_CST);
		}
		usleep(1000);
	}
}

/* For victim_ops. */
static enum verdict family_start(void *arg)
{
	struct family *f = arg;
	pid_t pid;

	if (region_swap_out(&f->region) != GOOD)
		return BAD;
	pid = fork();
	if (!pid)
		family_child(f);
	f->child = pid;

	return pid > 0 ? GOOD : BAD;
}

static enum verdict family_check(void *arg)
{
	struct family *f = arg;

	return region_check(&f->region);
}

static enum verdict ask_child(struct family *f, enum ask ask)
{
	f->answer = BAD;
	__atomic_store_n(&f->ask, ask, __ATOMIC_SEQ_CST);
	if (!within(PATIENCE, __atomic_load_n(&f->ask, __ATOMIC_SEQ_CST) ==
		    NOTHING))
		return BAD;

	return f->answer;
}

FIXTURE(shared) {
	struct world world;
	struct family *family;
};

FIXTURE_SETUP(shared)
{
	const char *missing = world_begin(&self->world, SWAP_SIZE);
	struct victim_ops ops = {
		.prepare = family_start, .check = family_check
	};

	if (missing)
		SKIP(return, "%s", missing);
	/* For children whose parents are gone. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	self->family = map(PAGE, MAP_SHARED);
	ASSERT_NE(self->family, NULL);
	self->family->region = (struct region){
		.size = SIZE, .seed = 7, .cgroup = self->world.victims
	};
	ops.arg = self->family;
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_EQ(cgroup_swap(self->world.victims), PAGES);
}

FIXTURE_TEARDOWN_PARENT(shared)
{
	world_end(_metadata, &self->world);
}

TEST_F_TIMEOUT(shared, child_dies_first, LIMIT)
{
	ASSERT_TRUE(kill_pid(self->family->child));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	EXPECT_EQ(swap_stats().queued, BEGIN.queued);
	EXPECT_EQ(cgroup_swap(self->world.victims), PAGES);
	EXPECT_EQ(victim_check(&victim), GOOD);
	/* To read is not to change: some may still be in swap as well. */
	ASSERT_TRUE(victim_dies(&victim));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	EXPECT_EQ(swap_used_exactly(), 0);
}

TEST_F_TIMEOUT(shared, parent_dies_first, LIMIT)
{
	ASSERT_TRUE(victim_dies(&victim));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	EXPECT_EQ(swap_stats().queued, BEGIN.queued);
	EXPECT_EQ(cgroup_swap(self->world.victims), PAGES);
	EXPECT_EQ(ask_child(self->family, CHECK), GOOD);
	ASSERT_TRUE(kill_pid(self->family->child));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	EXPECT_EQ(swap_used_exactly(), 0);
}

/* The second one has the last reference to all of them. */
TEST_F_TIMEOUT(shared, both_die, LIMIT)
{
	ASSERT_TRUE(kill_pid(self->family->child));
	ASSERT_TRUE(victim_dies(&victim));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	EXPECT_GE(swap_stats().queued - BEGIN.queued, most(PAGES));
	EXPECT_EQ(cgroup_swap(self->world.victims), 0);
	EXPECT_EQ(swap_used_exactly(), 0);
}

TEST_F_TIMEOUT(shared, both_die_at_once, LIMIT)
{
	long queued;

	ASSERT_EQ(cgroup_write(self->world.victims, "cgroup.kill", "1"), 0);
	EXPECT_TRUE(pidfd_exits(victim.pidfd, PATIENCE));
	EXPECT_TRUE(cgroup_empties(self->world.victims));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	/* Each slot at most once. */
	queued = swap_stats().queued - BEGIN.queued;
	TH_LOG("%ld of %ld queued", queued, PAGES);
	EXPECT_LE(queued, PAGES);
	EXPECT_EQ(cgroup_swap(self->world.victims), 0);
	EXPECT_EQ(swap_used_exactly(), 0);
}

/* More references than one byte counts. */
#define NR_RELATIVES	80

static enum verdict relatives_start(void *arg)
{
	if (region_swap_out(arg) != GOOD)
		return BAD;
	for (int i = 0; i < NR_RELATIVES; i++) {
		pid_t pid = fork();

		if (pid < 0)
			return BAD;
		while (!pid)
			pause();
	}

	return GOOD;
}

TEST_F_TIMEOUT(swap, many_relatives, LIMIT)
{
	struct victim_ops ops = { &memory, relatives_start };

	prctl(PR_SET_CHILD_SUBREAPER, 1);
	memory.size = 64 * PAGE;
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_EQ(cgroup_swap(self->world.victims), 64);
	ASSERT_TRUE(victim_dies(&victim));
	EXPECT_EQ(swap_stats().queued, BEGIN.queued);
	EXPECT_EQ(swap_used_exactly(), 64);
	ASSERT_EQ(cgroup_write(self->world.victims, "cgroup.kill", "1"), 0);
	EXPECT_TRUE(cgroup_empties(self->world.victims));
	EXPECT_EQ(cgroup_swap(self->world.victims), 0);
	EXPECT_TRUE(within(PATIENCE, all_released()));
	EXPECT_EQ(swap_used_exactly(), 0);
}

/* The child has read them, so they are in memory as well, and it uses that. */
TEST_F_TIMEOUT(shared, in_the_swap_cache_and_mapped, LIMIT)
{
	ASSERT_EQ(ask_child(self->family, CHECK), GOOD);
	ASSERT_GE(swap_cached(), PAGES);
	ASSERT_TRUE(victim_dies(&victim));
	EXPECT_EQ(swap_stats().queued, BEGIN.queued);
	EXPECT_EQ(ask_child(self->family, CHECK), GOOD);
	ASSERT_TRUE(kill_pid(self->family->child));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	EXPECT_EQ(swap_used_exactly(), 0);
	EXPECT_EQ(swap_cached(), 0);
}

/* As above, but it no longer maps them: nothing else will free them. */
TEST_F_TIMEOUT(shared, in_the_swap_cache_only, LIMIT)
{
	ASSERT_EQ(ask_child(self->family, CHECK_AND_DROP), GOOD);
	ASSERT_GE(swap_cached(), PAGES);
	ASSERT_TRUE(victim_dies(&victim));
	EXPECT_EQ(swap_stats().queued, BEGIN.queued);
	EXPECT_EQ(swap_used_exactly(), 0);
	EXPECT_EQ(swap_cached(), 0);
	EXPECT_EQ(cgroup_swap(self->world.victims), 0);
}

/*
 * One of those in memory breaks. What the child has of it then is an entry, so
 * that there are two again.
 */
TEST_F_TIMEOUT(shared, in_the_swap_cache_and_poisoned, LIMIT)
{
	if (madvise(NULL, 0, MADV_HWPOISON))
		SKIP(return, "no MADV_HWPOISON (CONFIG_MEMORY_FAILURE)");
	ASSERT_EQ(ask_child(self->family, POISON), GOOD);
	ASSERT_GE(swap_cached(), PAGES - 1);
	ASSERT_TRUE(victim_dies(&victim));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	ASSERT_TRUE(kill_pid(self->family->child));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	EXPECT_EQ(swap_used_exactly(), 0);
}

/* --- Entries that are not swap entries --- */

static enum verdict poison_prepare(void *arg)
{
	struct region *r = arg;
	enum verdict verdict = region_swap_out(arg);

	if (verdict != GOOD)
		return verdict;
	signal(SIGBUS, ignore_signal);
	/* It is in memory again, and broken. */
	for (long i = 1; i < PAGES; i += PAGES / 3) {
		fill(r->mem + i * PAGE, PAGE, 1);
		if (madvise(r->mem + i * PAGE, PAGE, MADV_HWPOISON))
			return BAD;
	}

	return swapped(r->mem, r->size) >= PAGES - 4 ? GOOD : BAD;
}

TEST_F_TIMEOUT(swap, poisoned_pages_between_swapped_ones, LIMIT)
{
	struct victim_ops ops = { &memory, poison_prepare };

	if (madvise(NULL, 0, MADV_HWPOISON))
		SKIP(return, "no MADV_HWPOISON (CONFIG_MEMORY_FAILURE)");
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_TRUE(victim_dies(&victim));
	EXPECT_TRUE(within(PATIENCE, all_released()));
	EXPECT_GE(swap_stats().queued - BEGIN.queued, most(PAGES - 4));
	EXPECT_EQ(swap_used_exactly(), 0);
}

/* --- Forks that fail --- */

#define OVERCOMMIT	"/proc/sys/vm/overcommit_"

FIXTURE(no_fork) {
	struct world world;
	char memory[16];
	char kbytes[16];
	char ratio[16];
};

FIXTURE_SETUP(no_fork)
{
	const char *missing = world_begin(&self->world, SWAP_SIZE);

	if (missing)
		SKIP(return, "%s", missing);
	ASSERT_TRUE(read_file(OVERCOMMIT "memory", self->memory, 16));
	ASSERT_TRUE(read_file(OVERCOMMIT "kbytes", self->kbytes, 16));
	ASSERT_TRUE(read_file(OVERCOMMIT "ratio", self->ratio, 16));
}

FIXTURE_TEARDOWN_PARENT(no_fork)
{
	if (self->memory[0]) {
		write_file(OVERCOMMIT "memory", self->memory);
		/* Each sets the other to 0. */
		write_file(OVERCOMMIT "ratio", self->ratio);
		if (atol(self->kbytes))
			write_file(OVERCOMMIT "kbytes", self->kbytes);
	}
	world_end(_metadata, &self->world);
}

/*
 * The copy of the page tables ends after the swapped memory. Torn down at once,
 * it looks like a dying mm; but none of its references is the last one.
 */
TEST_F_TIMEOUT(no_fork, memory_cannot_be_promised, LIMIT)
{
	const size_t size = 512 * MIB;
	struct region mine = {
		.size = SIZE, .seed = 8, .cgroup = self->world.others
	};
	char text[32];
	/* Above what is mapped later, and unlike it: they must not merge. */
	char *big = map(size, MAP_PRIVATE);

	ASSERT_NE(big, NULL);
	ASSERT_EQ(region_swap_out(&mine), GOOD);
	ASSERT_LT((uintptr_t)mine.mem, (uintptr_t)big);
	/* Room for half of it; swap counts as well. */
	snprintf(text, sizeof(text), "%ld",
		 (pages_of("Committed_AS:") - pages_of("SwapTotal:") +
		  (long)(size / 2 / PAGE)) * (long)(PAGE / 1024));
	ASSERT_TRUE(write_file(OVERCOMMIT "kbytes", text));
	ASSERT_TRUE(write_file(OVERCOMMIT "memory", "2"));
	for (int i = 0; i < 20; i++) {
		pid_t pid = fork();

		if (!pid)
			_exit(0);
		ASSERT_EQ(pid, -1);
		ASSERT_EQ(errno, ENOMEM);
	}
	ASSERT_TRUE(write_file(OVERCOMMIT "memory", self->memory));
	EXPECT_EQ(swap_stats().queued, BEGIN.queued);
	EXPECT_EQ(swapped(mine.mem, SIZE), PAGES);
	EXPECT_EQ(swap_used_exactly(), PAGES);
	EXPECT_EQ(region_check(&mine), GOOD);
}

/* More allocations than there are on the way to a new task. */
#define MOST_ALLOCATIONS	2000

FIXTURE(fail) {
	struct world world;
	struct failslab failslab;
};

FIXTURE_SETUP(fail)
{
	const char *missing;

	if (!failslab_begin(&self->failslab))
		SKIP(return, "no fault injection");
	missing = world_begin(&self->world, SWAP_SIZE);
	if (missing) {
		failslab_end(&self->failslab);
		SKIP(return, "%s", missing);
	}
}

FIXTURE_TEARDOWN_PARENT(fail)
{
	failslab_end(&self->failslab);
	world_end(_metadata, &self->world);
}

TEST_F_TIMEOUT(fail, a_fork_without_memory, 2 * LIMIT)
{
	struct region mine = {
		.size = SIZE, .seed = 9, .cgroup = self->world.others
	};
	int failed = 0, fd, left = 0;

	ASSERT_EQ(region_swap_out(&mine), GOOD);
	fd = open(FAIL_NTH, O_RDWR | O_CLOEXEC);
	ASSERT_GE(fd, 0);
	for (int i = 1; i < MOST_ALLOCATIONS && !left; i++) {
		pid_t pid;

		ASSERT_TRUE(fail_nth(fd, i));
		pid = fork();
		if (!pid)
			_exit(0);
		left = fail_nth_end(fd);
		ASSERT_GE(left, 0);
		if (pid < 0) {
			failed++;
			continue;
		}
		ASSERT_EQ(waitpid(pid, NULL, 0), pid);
	}
	TH_LOG("%d forks failed", failed);
	EXPECT_GT(failed, 10);
	EXPECT_GT(left, 0);
	EXPECT_EQ(swap_stats().queued, BEGIN.queued);
	EXPECT_EQ(swapped(mine.mem, SIZE), PAGES);
	EXPECT_EQ(region_check(&mine), GOOD);
}

/* --- Other things to swap to --- */

#define ZSWAP	"/sys/module/zswap/parameters/enabled"

FIXTURE(zswap) {
	struct world world;
	char enabled[8];
};

FIXTURE_SETUP(zswap)
{
	const char *missing;

	if (!read_file(ZSWAP, self->enabled, sizeof(self->enabled)))
		SKIP(return, "no zswap");
	missing = world_begin(&self->world, SWAP_SIZE);
	if (missing)
		SKIP(return, "%s", missing);
	memory = (struct region){
		.size = SIZE, .seed = 1, .cgroup = self->world.victims
	};
}

FIXTURE_TEARDOWN_PARENT(zswap)
{
	if (self->enabled[0])
		write_file(ZSWAP, self->enabled);
	world_end(_metadata, &self->world);
}

/* On when they are swapped out, on or off when they are released. */
TEST_F_TIMEOUT(zswap, entries_leave_it, LIMIT)
{
	for (int off = 0; off < 2; off++) {
		long held;

		if (!write_file(ZSWAP, "Y"))
			SKIP(return, "zswap cannot be enabled");
		ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
		held = pages_of("Zswapped:");
		EXPECT_GE(held, PAGES);
		if (off)
			ASSERT_TRUE(write_file(ZSWAP, "N"));
		ASSERT_TRUE(victim_dies(&victim));
		EXPECT_EQ(pages_of("Zswapped:"), held - PAGES);
		EXPECT_EQ(swap_used_exactly(), 0);
		/* What it stores is charged, so it does not wait. */
		EXPECT_EQ(swap_stats().queued, BEGIN.queued);
	}
}

FIXTURE(loop) {
	struct world world;
	/* A device over a file in memory; its writes take their time. */
	int number;
	/* What is swapped to, and where its file system is mounted. */
	char path[64];
	char mounted[32];
	bool on;
};

FIXTURE_VARIANT(loop) {
	enum mode mode;
	/* Swap to a file of a file system on the device. */
	bool file;
	/* A disk that turns: there are no clusters, and no locks of them. */
	bool rotational;
};

FIXTURE_VARIANT_ADD(loop, deferred) { DEFERRED };
FIXTURE_VARIANT_ADD(loop, batched) { BATCHED };
FIXTURE_VARIANT_ADD(loop, swap_file) { DEFERRED, .file = true };
FIXTURE_VARIANT_ADD(loop, rotational) { DEFERRED, .rotational = true };

#define FAT_SECTOR	4096
#define FAT_SECTORS	(SWAP_SIZE / FAT_SECTOR)
/* Of 16 bits for each sector. */
#define FAT_TABLE	(FAT_SECTORS * 2 / FAT_SECTOR)

/* An empty FAT16 file system whose clusters are pages, and start at one. */
static bool make_fat(const char *device)
{
	static const unsigned char boot[] = {
		[11] = FAT_SECTOR & 0xff, FAT_SECTOR >> 8,
		1,				/* sectors in a cluster */
		1, 0,				/* reserved sectors */
		1,				/* tables */
		FAT_SECTOR / 32, 0,		/* entries of the root */
		FAT_SECTORS & 0xff, FAT_SECTORS >> 8,
		0xf8,				/* medium: a disk */
		FAT_TABLE, 0,
		[510] = 0x55, 0xaa,
	};
	static const unsigned char table[] = { 0xf8, 0xff, 0xff, 0xff };
	int fd = open(device, O_WRONLY | O_CLOEXEC);
	bool done;

	done = fd >= 0 &&
	       pwrite(fd, boot, sizeof(boot), 0) == sizeof(boot) &&
	       pwrite(fd, table, sizeof(table), FAT_SECTOR) == sizeof(table);
	close(fd);

	return done;
}

/* A file of half of the file system's size. */
static bool make_swap_file(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	bool done = fd >= 0 && !posix_fallocate(fd, 0, SWAP_SIZE / 2);

	close(fd);

	return done && make_swap(path, SWAP_SIZE / 2);
}

static bool loop_do(int number, bool (*how)(int dev, int file), int file)
{
	char path[32];
	bool done;
	int dev;

	snprintf(path, sizeof(path), "/dev/loop%d", number);
	dev = open(path, O_RDWR | O_CLOEXEC);
	done = dev >= 0 && how(dev, file);
	close(dev);

	return done;
}

static bool loop_bind(int dev, int file)
{
	return !ioctl(dev, LOOP_SET_FD, file);
}

static bool loop_clear(int dev, int file)
{
	return !ioctl(dev, LOOP_CLR_FD, 0);
}

FIXTURE_SETUP(loop)
{
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	int file = memfd_create("disk", MFD_CLOEXEC);
	const char *missing;
	char *path = self->path;

	self->number = -1;
	if (control < 0)
		SKIP(return, "no loop devices");
	missing = world_prepare(&self->world);
	if (missing)
		SKIP(return, "%s", missing);
	ASSERT_GE(file, 0);
	ASSERT_EQ(ftruncate(file, SWAP_SIZE), 0);
	self->number = ioctl(control, LOOP_CTL_GET_FREE);
	ASSERT_GE(self->number, 0);
	ASSERT_TRUE(loop_do(self->number, loop_bind, file));
	snprintf(path, sizeof(self->path), "/sys/block/loop%d/queue/rotational",
		 self->number);
	ASSERT_TRUE(write_file(path, variant->rotational ? "1" : "0"));
	snprintf(path, sizeof(self->path), "/dev/loop%d", self->number);
	if (variant->file) {
		char dir[] = "/tmp/swap_defer_XXXXXX";

		ASSERT_TRUE(make_fat(path));
		ASSERT_NE(mkdtemp(dir), NULL);
		snprintf(self->mounted, sizeof(self->mounted), "%s", dir);
		if (mount(path, dir, "msdos", 0, NULL))
			SKIP(return, "no FAT file system");
		snprintf(path, sizeof(self->path), "%s/swap", dir);
		ASSERT_TRUE(make_swap_file(path));
	} else {
		ASSERT_TRUE(make_swap(path, SWAP_SIZE));
	}
	ASSERT_EQ(swapon(path, 0), 0);
	self->on = true;
	ASSERT_TRUE(set_mode(variant->mode));
	self->world.begin = swap_stats();
	memory = (struct region){
		.size = SIZE, .seed = 1, .cgroup = self->world.victims
	};
}

FIXTURE_TEARDOWN_PARENT(loop)
{
	if (self->world.cgroups.made)
		world_empty(&self->world);
	if (self->on) {
		EXPECT_TRUE(within(PATIENCE, all_released()));
		EXPECT_EQ(swapoff(self->path), 0);
	}
	if (self->mounted[0]) {
		umount(self->mounted);
		rmdir(self->mounted);
	}
	if (self->number >= 0)
		loop_do(self->number, loop_clear, -1);
	world_end(_metadata, &self->world);
}

/*
 * As in stock, a page that was being written when its slot was released is in
 * swap and in memory until it is reclaimed.
 */
static bool all_is_free(const char *cgroup)
{
	if (!swap_used_exactly())
		return true;
	cgroup_write(cgroup, "memory.reclaim", "64M");

	return false;
}

TEST_F_TIMEOUT(loop, a_block_device, LIMIT)
{
	ASSERT_EQ(victim_start(&victim, &memory_ops), GOOD);
	ASSERT_TRUE(victim_dies(&victim));
	/* It has nothing to free for a slot, so none waits. */
	EXPECT_EQ(swap_stats().queued, BEGIN.queued);
	EXPECT_TRUE(within(PATIENCE, all_is_free(self->world.victims)));
}

/* They are on their way to the device when the process dies. */
TEST_F_TIMEOUT(loop, while_pages_are_written, LIMIT)
{
	for (int i = 0; i < 20; i++) {
		int *state = map(PAGE, MAP_SHARED);
		pid_t pid;

		ASSERT_NE(state, NULL);
		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid) {
			char *mem = map_small(SIZE);

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (!mem || !cgroup_enter(self->world.victims))
				_exit(1);
			fill(mem, SIZE, i);
			*state = 1;
			page_out_once(mem, SIZE);
			*state = 2;
			for (;;)
				pause();
		}
		ASSERT_TRUE(within(PATIENCE,
				   __atomic_load_n(state, __ATOMIC_SEQ_CST) >
				   i % 2));
		if (!(i % 2))
			usleep(500 * i);
		ASSERT_TRUE(kill_pid(pid));
		ASSERT_EQ(waitpid(pid, NULL, 0), pid);
	}
	EXPECT_TRUE(within(PATIENCE, all_released()));
	TH_LOG("%ld queued, %ld slots left", swap_stats().queued - BEGIN.queued,
	       swap_used());
	EXPECT_TRUE(within(PATIENCE, all_is_free(self->world.victims)));
}

TEST_HARNESS_MAIN
