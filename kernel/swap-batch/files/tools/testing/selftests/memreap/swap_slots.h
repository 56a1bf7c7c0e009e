/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Swap space for a test, processes with memory in it, and what the kernel
 * reports about the release of their slots.
 */
#ifndef _SELFTESTS_MEMREAP_SWAP_SLOTS_H
#define _SELFTESTS_MEMREAP_SWAP_SLOTS_H

#include <pthread.h>

#include "cgroup.h"
#include "pagemap.h"
#include "trace.h"
#include "victim.h"
#include "zram.h"

#define EVENTS		"memreap_swap_defer"
#define BATCH		"/sys/module/memreap/parameters/swap_batch"
#define DEFER		"/sys/module/memreap/parameters/swap_defer"
#define PAGE_CLUSTER	"/proc/sys/vm/page-cluster"

/* Seconds for a test, on a busy host that emulates a kernel full of checks. */
#define LIMIT		300
/* Attempts to swap pages out, 1 ms apart. */
#define PAGE_OUT_TRIES	1000

/* Swap space. Tests use half of it at most, unless they say so. */
#define SWAP_SIZE	(64 * MIB)
/* Memory of most victims. */
#define SIZE		(2 * MIB)

/* --- Modes --- */

/* The stock code, slots in batches, and those of dying processes later. */
enum mode { STOCK, BATCHED, DEFERRED };

static inline bool set_mode(enum mode mode)
{
	return write_file(BATCH, mode == STOCK ? "N" : "Y") &&
	       write_file(DEFER, mode == DEFERRED ? "Y" : "N");
}

/* --- What the kernel counts --- */

/**
 * struct swap_stats - the lines swap_defer_* of /proc/vmstat
 * @queued: slots left to the worker
 * @released: of these, those that were released, by any task
 * @full: slots for which there was no room
 * @waiting: slots that wait now
 * @waiting_max: its maximum
 */
struct swap_stats {
	long queued;
	long released;
	long full;
	long waiting;
	long waiting_max;
};

static inline struct swap_stats swap_stats(void)
{
	static char text[32768];
	struct swap_stats f;

	if (!read_file("/proc/vmstat", text, sizeof(text)))
		text[0] = 0;
	f.queued = number_after(text, "swap_defer_queued ");
	f.released = number_after(text, "swap_defer_released ");
	f.full = number_after(text, "swap_defer_full ");
	f.waiting = number_after(text, "swap_defer_waiting ");
	f.waiting_max = number_after(text, "swap_defer_waiting_max ");

	return f;
}

/* Returns a line of /proc/meminfo in pages, or -1. */
static inline long pages_of(const char *name)
{
	long kib = read_number("/proc/meminfo", name);

	return kib < 0 ? -1 : kib * 1024 / (long)PAGE;
}

static inline long swap_free(void)
{
	return pages_of("SwapFree:");
}

/* Pages in both memory and swap. The refresh adds what CPUs count locally. */
static inline long swap_cached(void)
{
	write_file("/proc/sys/vm/stat_refresh", "1");

	return pages_of("SwapCached:");
}

/*
 * Slots that a CPU may cache for allocations, and as many that were returned to
 * it; with little swap it caches none.
 */
#define SLOTS_OF_A_CPU	64
#define SLOTS_OF_CPUS	(2 * SLOTS_OF_A_CPU * sysconf(_SC_NPROCESSORS_ONLN))

/* What waits counts as free, and is in use, too. */
static inline long swap_used(void)
{
	return swap_used_of(NULL);
}

/*
 * Most of @pages: where a page table ends, or a CPU continues elsewhere in swap,
 * some are alone, and do not wait.
 */
static inline long most(long pages)
{
	return pages - pages / 4;
}

/* --- What releases entries --- */

enum by { WORKER, SWAPOFF, SWAP, MEMORY, NR_BY };

/**
 * struct told - sums over the events
 * @queues: times that slots were queued
 * @pages: slots in them
 * @runs: of neighbouring slots in them
 * @by: per reason for the release
 * @by.pages: slots
 * @by.took_ns: time it took
 */
struct told {
	unsigned int queues;
	long pages;
	long runs;
	struct {
		long pages;
		unsigned long long took_ns;
	} by[NR_BY];
};

/* Not while hogs run: it would wait for the rest of the kernel. */
static inline void read_events(struct told *told)
{
	static const char * const names[NR_BY] = {
		"worker", "swapoff", "swap", "memory",
	};
	char line[512], name[16];
	FILE *f;

	memset(told, 0, sizeof(*told));
	f = fopen(INSTANCE "/trace", "re");
	while (f && fgets(line, sizeof(line), f)) {
		char *at = strstr(line, "memreap_swap_");
		unsigned long long took;
		long pages, runs;

		if (!at)
			continue;
		at += strlen("memreap_swap_");
		if (sscanf(at, "queue: mm_id=%*u runs=%ld pages=%ld", &runs,
			   &pages) == 2) {
			told->queues++;
			told->runs += runs;
			told->pages += pages;
		}
		if (sscanf(at, "release: by=%15s runs=%*u pages=%ld took_ns=%llu",
			   name, &pages, &took) != 3)
			continue;
		for (int i = 0; i < NR_BY; i++) {
			if (strcmp(name, names[i]))
				continue;
			told->by[i].pages += pages;
			told->by[i].took_ns += took;
		}
	}
	if (f)
		fclose(f);
}

/* --- Devices to swap to --- */

/*
 * Returns the slots in use, without those that CPUs cache: swapoff of a second
 * device returns these, and releases waiting entries, too.
 */
static inline long swap_used_exactly(void)
{
	if (!zram_on(1, MIB, 0) || !zram_off(1))
		return -1;

	return swap_used();
}

/* --- cgroups --- */

static inline long cgroup_swap(const char *cgroup)
{
	return cgroup_read(cgroup, "memory.swap.current", NULL) / (long)PAGE;
}

/* --- The kernel while a test runs --- */

static void __attribute__((constructor)) world_once(void)
{
	if (geteuid() || access(DEFER, F_OK))
		return;
	trace_begin(EVENTS);
	zram_add();
}

/**
 * struct world - what is set up for a test, and settings before it
 * @cgroups: for the processes of the test
 * @victims: one of them
 * @others: another one
 * @batch: the switch of swap-batch
 * @defer: the switch of swap-defer
 * @cluster: vm.page-cluster
 * @on: there is swap on zram0
 * @begin: counters at the start
 */
struct world {
	struct cgroups cgroups;
	char victims[PATH_MAX / 4 + 16];
	char others[PATH_MAX / 4 + 16];
	char batch[8];
	char defer[8];
	char cluster[16];
	bool on;
	struct swap_stats begin;
};

/* Kills all processes in the cgroups, but not the caller. */
static inline void world_empty(struct world *w)
{
	cgroup_enter(w->cgroups.root);
	cgroup_write(w->cgroups.top, "cgroup.kill", "1");
	cgroup_empties(w->cgroups.top);
}

static inline void world_restore(struct world *w)
{
	if (w->cgroups.made)
		world_empty(w);
	cgroups_end(&w->cgroups);
	if (w->batch[0])
		write_file(BATCH, w->batch);
	if (w->defer[0])
		write_file(DEFER, w->defer);
	if (w->cluster[0])
		write_file(PAGE_CLUSTER, w->cluster);
	trace_enable(EVENTS, false);
}

/* Sets up everything but swap. Returns NULL, or what is missing. */
static inline const char *world_prepare(struct world *w)
{
	const char *missing;

	memset(w, 0, sizeof(*w));
	if (access(DEFER, F_OK))
		return "no memreap.swap_defer in this kernel";
	if (geteuid())
		return "needs root, for swap, cgroups and tracing";
	if (pages_of("SwapTotal:"))
		return "there is swap in use, which the tests would disturb";
	if (access(zram_device(0), F_OK) || access(zram_device(1), F_OK))
		return "no two zram devices to swap to";
	if (access(INSTANCE, F_OK))
		return "no memreap_swap_defer events";
	if (!read_file(BATCH, w->batch, sizeof(w->batch)) ||
	    !read_file(DEFER, w->defer, sizeof(w->defer)) ||
	    !read_file(PAGE_CLUSTER, w->cluster, sizeof(w->cluster)))
		return "settings cannot be read";
	missing = cgroups_begin(&w->cgroups, "+cpu +memory");
	if (missing)
		return missing;
	snprintf(w->victims, sizeof(w->victims), "%s/victims", w->cgroups.top);
	snprintf(w->others, sizeof(w->others), "%s/others", w->cgroups.top);
	if (cgroup_write(w->cgroups.top, "cgroup.subtree_control",
			 "+cpu +memory") ||
	    mkdir(w->victims, 0700) || mkdir(w->others, 0700))
		return "no cgroup can be made";
	/* No readahead: only pages that are accessed leave swap. */
	write_file(PAGE_CLUSTER, "0");
	set_mode(DEFERRED);
	trace_clear();
	if (!trace_enable(EVENTS, true))
		return "no memreap_swap_defer events";
	if (kmsg >= 0)
		lseek(kmsg, 0, SEEK_END);
	/* A victim that died unexpectedly does not answer. */
	signal(SIGPIPE, SIG_IGN);

	return NULL;
}

/* As world_prepare(), with @size of swap space. */
static inline const char *world_begin(struct world *w, size_t size)
{
	const char *missing = world_prepare(w);

	if (missing) {
		world_restore(w);
		return missing;
	}
	w->on = zram_on(0, size, 5);
	if (!w->on) {
		world_restore(w);
		return "zram0 cannot be used for swap";
	}
	w->begin = swap_stats();

	return NULL;
}

/* Returns whether all entries that ever waited have been released. */
static inline bool all_released(void)
{
	struct swap_stats f = swap_stats();

	return !f.waiting && f.queued == f.released;
}

/*
 * Returns the slots in use when no page table refers to any. A page that was
 * locked when its last entry was released keeps its slot until it is reclaimed,
 * as in the stock kernel.
 */
static inline long swap_left(struct world *w)
{
	cgroup_write(w->cgroups.top, "memory.reclaim", "64M");

	return swap_used_exactly();
}

/* For teardown in the test's parent: checks that no slot is left in use. */
static inline void world_end(struct __test_metadata *_metadata,
			     struct world *w)
{
	long used;

	if (!w->cgroups.made)
		return;
	world_empty(w);
	EXPECT_TRUE(within(PATIENCE, all_released())) {
		struct swap_stats f = swap_stats();

		TH_LOG("%ld queued, %ld released, %ld wait", f.queued,
		       f.released, f.waiting);
	}
	if (w->on) {
		/* In case the test ended early. */
		zram_off(1);
		used = swap_left(w);
		EXPECT_EQ(used, 0);
		/* With a lost slot, swapoff would never end. */
		if (!used)
			EXPECT_TRUE(zram_off(0));
	}
	world_restore(w);
	EXPECT_NO_COMPLAINT(kmsg);
}

/* --- Memory that goes to swap --- */

/* Returns how many of these pages are in swap, or -1. */
static inline long swapped(const void *mem, size_t size)
{
	unsigned long entries[512];
	size_t nr = size / PAGE;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	long found = 0;

	for (size_t i = 0; i < nr; ) {
		size_t n = nr - i < 512 ? nr - i : 512;

		if (pread(fd, entries, n * 8, ((uintptr_t)mem / PAGE + i) * 8) !=
		    (ssize_t)(n * 8)) {
			found = -1;
			break;
		}
		for (size_t k = 0; k < n; k++)
			found += entries[k] >> 62 & 1;
		i += n;
	}
	close(fd);

	return found;
}

static inline bool page_out_once(void *mem, size_t size)
{
	return !madvise(mem, size, MADV_PAGEOUT);
}

/* Pages that stay in memory, and kinds of them, that are reported one by one. */
#define TOLD_PAGES	4
#define TOLD_KINDS	8

/* Returns a word of a file with one for each page, or ~0 if it cannot be read. */
static inline uint64_t page_word(int fd, uint64_t index)
{
	uint64_t word;

	if (pread(fd, &word, sizeof(word), index * sizeof(word)) !=
	    sizeof(word))
		return ~0ULL;

	return word;
}

/*
 * Reports what the kernel knows of the pages that are not in swap: flags are
 * those of /proc/kpageflags, in Documentation/admin-guide/mm/pagemap.rst. Not
 * by stdio: a victim may exit without writing its buffer.
 */
static inline void tell_of_pages(const void *mem, size_t size, long pages)
{
	struct { uint64_t flags, mapped; long nr; } kinds[TOLD_KINDS] = {};
	int flags = open("/proc/kpageflags", O_RDONLY | O_CLOEXEC);
	int counts = open("/proc/kpagecount", O_RDONLY | O_CLOEXEC);
	int entries = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	long none = 0, stay = 0, others = 0;

	for (size_t i = 0; i < size / PAGE; i++) {
		uint64_t at = page_word(entries, (uintptr_t)mem / PAGE + i);
		uint64_t f, n;
		int k = 0;

		if (at & PM_SWAPPED && at != ~0ULL)
			continue;
		if (!(at & PM_PRESENT)) {
			none++;
			continue;
		}
		f = page_word(flags, at & PM_PFN);
		n = page_word(counts, at & PM_PFN);
		if (stay++ < TOLD_PAGES)
			dprintf(STDOUT_FILENO,
				"# page %zu: pagemap %016llx flags %llx mapped %lld times\n",
				i, (unsigned long long)at,
				(unsigned long long)f, (long long)n);
		while (k < TOLD_KINDS && kinds[k].nr &&
		       (kinds[k].flags != f || kinds[k].mapped != n))
			k++;
		if (k == TOLD_KINDS) {
			others++;
			continue;
		}
		kinds[k].flags = f;
		kinds[k].mapped = n;
		kinds[k].nr++;
	}
	dprintf(STDOUT_FILENO,
		"# of %zu pages, %ld should be in swap; %ld stay in memory, %ld are nowhere; SwapFree: %ld pages\n",
		size / PAGE, pages, stay, none, swap_free());
	for (int k = 0; k < TOLD_KINDS && kinds[k].nr; k++)
		dprintf(STDOUT_FILENO,
			"# %ld pages: flags %llx mapped %lld times\n",
			kinds[k].nr, (unsigned long long)kinds[k].flags,
			(long long)kinds[k].mapped);
	if (others)
		dprintf(STDOUT_FILENO, "# %ld pages of other kinds\n", others);
	close(entries);
	close(counts);
	close(flags);
}

/*
 * Swaps out until @pages are in swap: a page may be busy, or in a batch. It
 * limits attempts, not time, as one attempt may take long on a slow machine.
 */
static inline bool page_out(void *mem, size_t size, long pages)
{
	for (int i = 0; i < PAGE_OUT_TRIES; i++) {
		if (page_out_once(mem, size) && swapped(mem, size) == pages)
			return true;
		if (!put_on_lru()) {
			dprintf(STDOUT_FILENO,
				"# the batches of the CPUs cannot be emptied: %s\n",
				strerror(errno));
			return false;
		}
		usleep(1000);
	}
	tell_of_pages(mem, size, pages);

	return false;
}

/* Maps memory without huge pages, whatever the system's setting. */
static inline char *map_small(size_t size)
{
	char *mem = map(size, MAP_PRIVATE);

	if (mem)
		madvise(mem, size, MADV_NOHUGEPAGE);

	return mem;
}

/**
 * struct region - memory of a process
 * @size: its size
 * @seed: of its content
 * @cgroup: entered first; or NULL
 * @stripes: so many pages that are neighbours in memory are in swap, the next
 *	ones elsewhere; 0: all are
 * @noise: half of it is incompressible
 * @fifo: real-time priority of the process once it is set up; 0: none
 * @score: its oom_score_adj; 0: unchanged
 * @mem: its address
 */
struct region {
	size_t size;
	unsigned long seed;
	const char *cgroup;
	unsigned int stripes;
	bool noise;
	int fifo;
	int score;
	char *mem;
};

static inline bool set_fifo(int priority)
{
	struct sched_param param = { .sched_priority = priority };

	return !sched_setscheduler(0, priority ? SCHED_FIFO : SCHED_OTHER,
				   &param);
}

static inline bool swap_out_stripes(struct region *r)
{
	long pages = r->size / PAGE, done = 0;

	for (long odd = 0; odd < 2; odd++) {
		for (long i = 0; i < pages; i++) {
			if (i / r->stripes % 2 != odd)
				continue;
			fill(r->mem + i * PAGE, PAGE, r->seed + i * PAGE);
			done++;
		}
		if (!page_out(r->mem, r->size, done))
			return false;
	}

	return true;
}

/* Keeps what fill() wrote. */
static inline void add_noise(char *mem, size_t size, unsigned long long seed)
{
	for (size_t i = 0; i < size; i += PAGE) {
		unsigned int *words = (unsigned int *)(mem + i);

		for (size_t k = 2; k < PAGE / 2 / sizeof(*words); k++)
			words[k] = rnd(&seed);
	}
}

/* For victim_ops: swaps all of the memory out. */
static inline enum verdict region_swap_out(void *arg)
{
	struct region *r = arg;

	if (r->cgroup && !cgroup_enter(r->cgroup))
		return BAD;
	if (r->score && !set_oom_score_adj(0, r->score))
		return BAD;
	r->mem = map_small(r->size);
	if (!r->mem)
		return BAD;
	if (r->stripes) {
		if (!swap_out_stripes(r))
			return BAD;
	} else {
		fill(r->mem, r->size, r->seed);
		if (r->noise)
			add_noise(r->mem, r->size, r->seed);
		if (!page_out(r->mem, r->size, r->size / PAGE))
			return BAD;
	}

	return !r->fifo || set_fifo(r->fifo) ? GOOD : BAD;
}

/* For victim_ops. */
static inline enum verdict region_check(void *arg)
{
	struct region *r = arg;

	return filled(r->mem, r->size, r->seed) ? GOOD : BAD;
}

/* --- Exits --- */

/* Kills a process that may be the child of another one. */
static inline bool kill_pid(pid_t pid)
{
	int pidfd = pidfd_of(pid, 0);
	bool exited = pidfd >= 0 && !kill(pid, SIGKILL) &&
		      pidfd_exits(pidfd, PATIENCE);

	close(pidfd);

	return exited;
}

/* Kills a victim and waits until its memory is freed. */
static inline bool victim_killed(struct victim *v)
{
	return !kill_plain(v) && pidfd_exits(v->pidfd, PATIENCE);
}

/* The same, and waits for the victim. */
static inline bool victim_dies(struct victim *v)
{
	bool exited = victim_killed(v);

	victim_end(v);

	return exited;
}

#endif /* _SELFTESTS_MEMREAP_SWAP_SLOTS_H */
