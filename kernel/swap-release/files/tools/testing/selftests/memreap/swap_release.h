/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Swap space of a test's own, processes with memory in it, and what the kernel
 * tells of how their slots come back.
 */
#ifndef _SELFTESTS_MEMREAP_SWAP_RELEASE_H
#define _SELFTESTS_MEMREAP_SWAP_RELEASE_H

#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/swap.h>

#include "victim.h"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT		21
#endif

#define TRACEFS		"/sys/kernel/tracing"
#define INSTANCE	TRACEFS "/instances/memreap_swap_selftest"
#define EVENTS		"/events/memreap_swap"
#define MODE		"/sys/module/memreap/parameters/swap_release"
#define PAGE_CLUSTER	"/proc/sys/vm/page-cluster"
#define DROP_CACHES	"/proc/sys/vm/drop_caches"

/* Seconds for a test, on a busy host that emulates a kernel full of checks. */
#define LIMIT		300
/* ms for what may take its time, as there. */
#define PATIENCE	30000
/* How often pages are tried to be swapped out, 1 ms apart. */
#define PAGE_OUT_TRIES	1000
/* ms for which entries wait before others than workers release them. */
#define DEADLINE	100

/* Swap space, of which no test uses more than half if it does not say so. */
#define SWAP_SIZE	(64 * MIB)
/* The memory of most victims: their entries fit into one batch. */
#define SIZE		(2 * MIB)

/* --- What the kernel counts --- */

/**
 * struct figures - the lines swap_release_* in /proc/vmstat
 * @queued: entries left to workers
 * @released: those of them that were released, by whomever
 * @unqueued: entries that found no room to wait
 * @flush: how often somebody in need, or swapoff, released what waits
 * @waiting: now
 * @waiting_max: most of them at a time
 * @wait_max_us: the longest wait
 */
struct figures {
	long queued;
	long released;
	long unqueued;
	long flush;
	long waiting;
	long waiting_max;
	long wait_max_us;
};

static inline long vmstat_line(const char *text, const char *name)
{
	const char *at = strstr(text, name);

	return at ? atol(at + strlen(name)) : -1;
}

static inline struct figures figures(void)
{
	static char text[32768];
	struct figures f;

	if (!read_file("/proc/vmstat", text, sizeof(text)))
		text[0] = 0;
	f.queued = vmstat_line(text, "swap_release_queued ");
	f.released = vmstat_line(text, "swap_release_released ");
	f.unqueued = vmstat_line(text, "swap_release_inline ");
	f.flush = vmstat_line(text, "swap_release_flush ");
	f.waiting = vmstat_line(text, "swap_release_waiting ");
	f.waiting_max = vmstat_line(text, "swap_release_waiting_max ");
	f.wait_max_us = vmstat_line(text, "swap_release_wait_max_us ");

	return f;
}

/* A line of /proc/meminfo, in pages. */
static inline long pages_of(const char *name)
{
	static char text[8192];
	const char *at;

	if (!read_file("/proc/meminfo", text, sizeof(text)))
		return -1;
	at = strstr(text, name);

	return at ? atol(at + strlen(name)) * 1024 / (long)PAGE : -1;
}

static inline long swap_free(void)
{
	return pages_of("SwapFree:");
}

/* Pages that are in memory and in swap. CPUs are late to tell of theirs. */
static inline long swap_cached(void)
{
	write_file("/proc/sys/vm/stat_refresh", "1");

	return pages_of("SwapCached:");
}

/*
 * A CPU may keep this many slots to itself, to allocate from, and as many that
 * it was given back; with little swap it does not.
 */
#define SLOTS_OF_A_CPU	64
#define SLOTS_OF_CPUS	(2 * SLOTS_OF_A_CPU * sysconf(_SC_NPROCESSORS_ONLN))

static inline long swap_used(void)
{
	return pages_of("SwapTotal:") - swap_free();
}

/* --- Who releases entries --- */

enum by { WORKER, SWAPOFF, NEED, OVERDUE, HIBERNATION, NR_BY };

/**
 * struct told - what the events say
 * @queues: batches that were queued
 * @pages: slots in them
 * @runs: of neighbouring slots in them
 * @by: for those who release them...
 * @by.pages: slots
 * @by.took_ns: time it took
 * @by.waited_ns: the longest wait
 */
struct told {
	unsigned int queues;
	long pages;
	long runs;
	struct {
		long pages;
		unsigned long long took_ns;
		unsigned long long waited_ns;
	} by[NR_BY];
};

/* Not while hogs keep the rest of the kernel from running: it would wait. */
static inline void hear(struct told *told)
{
	static const char * const names[NR_BY] = {
		"worker", "swapoff", "need", "deadline", "hibernation",
	};
	char line[512], name[16];
	FILE *f;

	memset(told, 0, sizeof(*told));
	f = fopen(INSTANCE "/trace", "re");
	while (f && fgets(line, sizeof(line), f)) {
		char *at = strstr(line, "memreap_swap_");
		unsigned long long waited, took;
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
		if (sscanf(at, "release: by=%15s pages=%ld freed=%*u waited_ns=%llu took_ns=%llu",
			   name, &pages, &waited, &took) != 4)
			continue;
		for (int i = 0; i < NR_BY; i++) {
			if (strcmp(name, names[i]))
				continue;
			told->by[i].pages += pages;
			told->by[i].took_ns += took;
			if (waited > told->by[i].waited_ns)
				told->by[i].waited_ns = waited;
		}
	}
	if (f)
		fclose(f);
}

/*
 * Released by those whose task it is: by workers, or, where it takes a machine
 * longer than entries may wait to get there, by those who queue more.
 */
static inline long in_due_course(const struct told *told)
{
	return told->by[WORKER].pages + told->by[OVERDUE].pages;
}

static inline void forget(void)
{
	close(open(INSTANCE "/trace", O_WRONLY | O_TRUNC | O_CLOEXEC));
}

/* --- Devices to swap to --- */

/* A header as mkswap(8) writes it. */
static inline bool make_swap(const char *device, size_t size)
{
	unsigned int version = 1, last_page = size / PAGE - 1;
	char *page = calloc(1, PAGE);
	int fd = open(device, O_WRONLY | O_CLOEXEC);
	bool done = false;

	if (fd >= 0 && page) {
		memcpy(page + 1024, &version, sizeof(version));
		memcpy(page + 1028, &last_page, sizeof(last_page));
		memcpy(page + PAGE - 10, "SWAPSPACE2", 10);
		done = pwrite(fd, page, PAGE, 0) == (ssize_t)PAGE && !fsync(fd);
	}
	if (fd >= 0)
		close(fd);
	free(page);

	return done;
}

static inline bool zram_write(int nr, const char *file, const char *text)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/block/zram%d/%s", nr, file);

	return write_file(path, text);
}

static inline const char *zram_device(int nr)
{
	static char paths[4][16];

	snprintf(paths[nr], sizeof(paths[nr]), "/dev/zram%d", nr);

	return paths[nr];
}

/* Not in use afterwards, with nothing in it; fails if it is still in use. */
static inline bool zram_reset(int nr)
{
	return zram_write(nr, "reset", "1");
}

/* @prio: those with a higher one are used first; at most 100. */
static inline bool zram_on(int nr, size_t size, int prio)
{
	char text[32];

	snprintf(text, sizeof(text), "%zu", size);
	if (!zram_write(nr, "disksize", text))
		return false;
	if (make_swap(zram_device(nr), size) &&
	    !swapon(zram_device(nr), SWAP_FLAG_PREFER | prio))
		return true;
	zram_reset(nr);

	return false;
}

/* A process forked while the device was being set up may hold on to it. */
static inline bool zram_off(int nr)
{
	return !swapoff(zram_device(nr)) && within(PATIENCE, zram_reset(nr));
}

/*
 * Slots in use, without those that CPUs keep to themselves: to turn a device
 * off makes them give these back. It releases what waits, too.
 */
static inline long swap_used_exactly(void)
{
	if (!zram_on(1, MIB, 0) || !zram_off(1))
		return -1;

	return swap_used();
}

/* --- cgroups --- */

static inline bool cgroup_write(const char *cgroup, const char *file,
				const char *text)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", cgroup, file);

	return write_file(path, text);
}

/* The number after @key, or the only one if that is NULL; -1 if none. */
static inline long cgroup_read(const char *cgroup, const char *file,
			       const char *key)
{
	char path[PATH_MAX], text[4096], *at = text;

	snprintf(path, sizeof(path), "%s/%s", cgroup, file);
	if (!read_file(path, text, sizeof(text)))
		return -1;
	if (key) {
		at = strstr(text, key);
		if (!at)
			return -1;
		at += strlen(key);
	}

	return atol(at);
}

static inline bool cgroup_enter(const char *cgroup)
{
	return cgroup_write(cgroup, "cgroup.procs", "0");
}

static inline long cgroup_swap(const char *cgroup)
{
	return cgroup_read(cgroup, "memory.swap.current", NULL) / (long)PAGE;
}

static inline int cgroup_remove(const char *path, const struct stat *st,
				int type, struct FTW *ftw)
{
	if (type == FTW_DP)
		rmdir(path);

	return 0;
}

/* --- The kernel while a test runs --- */

/* Of the process that outlives the tests. */
static pid_t harness;
static int kmsg = -1;
static bool mounted;
static int added = -1;

/*
 * Once for all tests: to make an instance takes longer than most of them. Of
 * our own, so that other users of tracing are not disturbed.
 */
static void __attribute__((constructor)) world_once(void)
{
	char text[16];

	harness = getpid();
	if (geteuid() || access(MODE, F_OK))
		return;
	kmsg = kmsg_open();
	if (access(TRACEFS "/events", F_OK))
		mounted = !mount("tracefs", TRACEFS, "tracefs", 0, NULL);
	mkdir(INSTANCE, 0700);
	if (access(zram_device(1), F_OK) &&
	    read_file("/sys/class/zram-control/hot_add", text, sizeof(text)))
		added = atoi(text);
}

static void __attribute__((destructor)) world_at_last(void)
{
	char text[16];

	if (getpid() != harness)
		return;
	rmdir(INSTANCE);
	if (mounted)
		umount(TRACEFS);
	snprintf(text, sizeof(text), "%d", added);
	if (added >= 0)
		write_file("/sys/class/zram-control/hot_remove", text);
}

/**
 * struct world - what is set up for a test, and how it was before
 * @root: where cgroup2 is mounted
 * @top: a cgroup for all processes of the test
 * @victims: one below it
 * @others: likewise
 * @mode: how entries were released
 * @cluster: vm.page-cluster
 * @on: there is swap on zram0
 * @begin: figures
 */
struct world {
	char root[PATH_MAX / 8];
	char top[PATH_MAX / 4];
	char victims[PATH_MAX / 4 + 16];
	char others[PATH_MAX / 4 + 16];
	char mode[16];
	char cluster[16];
	bool on;
	struct figures begin;
};

/* All processes below the top end; the caller is none of them. */
static inline void world_empty(struct world *w)
{
	cgroup_enter(w->root);
	cgroup_write(w->top, "cgroup.kill", "1");
	within(PATIENCE, !cgroup_read(w->top, "cgroup.events", "populated "));
}

static inline void world_restore(struct world *w)
{
	if (w->top[0]) {
		world_empty(w);
		within(PATIENCE, !nftw(w->top, cgroup_remove, 8,
				       FTW_DEPTH | FTW_PHYS) &&
		       access(w->top, F_OK));
	}
	if (w->mode[0])
		write_file(MODE, w->mode);
	if (w->cluster[0])
		write_file(PAGE_CLUSTER, w->cluster);
	write_file(INSTANCE EVENTS "/enable", "0");
	w->top[0] = 0;
}

/* Returns NULL, or what is missing. There is no swap yet. */
static inline const char *world_prepare(struct world *w)
{
	memset(w, 0, sizeof(*w));
	if (access(MODE, F_OK))
		return "no memreap.swap_release in this kernel";
	if (geteuid())
		return "needs root, for swap, cgroups and tracing";
	if (pages_of("SwapTotal:"))
		return "there is swap in use, which the tests would disturb";
	if (access(zram_device(0), F_OK) || access(zram_device(1), F_OK))
		return "no two zram devices to swap to";
	if (access(INSTANCE EVENTS, F_OK))
		return "no memreap_swap events";
	if (!cgroup2_mount(w->root, sizeof(w->root)))
		return "no cgroup2 is mounted: mount one at /sys/fs/cgroup";
	/* Left on: to take them away might harm those who came to use them. */
	if (!cgroup_write(w->root, "cgroup.subtree_control", "+cpu +memory"))
		return "no cpu and memory controllers for cgroup2";

	if (!read_file(MODE, w->mode, sizeof(w->mode)) ||
	    !read_file(PAGE_CLUSTER, w->cluster, sizeof(w->cluster)))
		return "settings cannot be read";
	snprintf(w->top, sizeof(w->top), "%s/swap_selftest", w->root);
	snprintf(w->victims, sizeof(w->victims), "%s/victims", w->top);
	snprintf(w->others, sizeof(w->others), "%s/others", w->top);
	if (mkdir(w->top, 0700) ||
	    !cgroup_write(w->top, "cgroup.subtree_control", "+cpu +memory") ||
	    mkdir(w->victims, 0700) || mkdir(w->others, 0700))
		return "no cgroup can be made";
	/* What nobody asked for stays in swap. */
	write_file(PAGE_CLUSTER, "0");
	write_file(MODE, "async");
	forget();
	if (!write_file(INSTANCE EVENTS "/enable", "1"))
		return "no memreap_swap events";
	if (kmsg >= 0)
		lseek(kmsg, 0, SEEK_END);
	/* A victim that should live and does not is told by its silence. */
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
	w->begin = figures();

	return NULL;
}

/* Nothing waits, and all that ever did has been released. */
static inline bool all_released(void)
{
	struct figures f = figures();

	return !f.waiting && f.queued == f.released;
}

/*
 * Slots that are still in use when nothing refers to them any more. A page that
 * somebody has locked when its last entry goes keeps its slot, as in the stock
 * kernel, until reclaim comes by.
 */
static inline long swap_left(struct world *w)
{
	cgroup_write(w->top, "memory.reclaim", "64M");

	return swap_used_exactly();
}

/* For the parent's teardown: nothing is left of the test, not even in swap. */
static inline void world_end(struct __test_metadata *_metadata,
			     struct world *w)
{
	char line[1024];
	long used;

	if (!w->top[0])
		return;
	world_empty(w);
	EXPECT_TRUE(within(PATIENCE, all_released())) {
		struct figures f = figures();

		TH_LOG("%ld queued, %ld released, %ld wait", f.queued,
		       f.released, f.waiting);
	}
	if (w->on) {
		/* If a test came to its end before it did this. */
		zram_off(1);
		used = swap_left(w);
		EXPECT_EQ(used, 0);
		/* A slot that is lost would never let it go. */
		if (!used)
			EXPECT_TRUE(zram_off(0));
	}
	world_restore(w);
	if (kmsg < 0)
		return;
	if (!kernel_complained(kmsg, line, sizeof(line)))
		line[0] = 0;
	EXPECT_STREQ(line, "");
}

/* --- Memory that goes to swap --- */

/* How many of these pages are in swap. */
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

/*
 * A page may be busy: until @pages are in swap. So many tries and not so much
 * time, as on a slow machine the first one can take that long. Pages that this
 * task touched on a CPU where it ran before may not be on the lists of reclaim
 * yet: dropping caches, here in silence, has all CPUs put theirs there.
 */
static inline bool page_out(void *mem, size_t size, long pages)
{
	for (int i = 0; i < PAGE_OUT_TRIES; i++) {
		if (page_out_once(mem, size) && swapped(mem, size) == pages)
			return true;
		write_file(DROP_CACHES, "5");
		usleep(1000);
	}

	return false;
}

/* Memory without huge pages, whatever the system's setting. */
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
 * @seed: tells it from others
 * @cgroup: where to go first; NULL for none
 * @stripes: no two neighbours in memory are neighbours in swap
 * @noise: half of it does not compress
 * @fifo: the process' priority as soon as it is set up; 0 for an ordinary one
 * @score: its oom_score_adj; 0 to keep what it has
 * @mem: where it is
 */
struct region {
	size_t size;
	unsigned long seed;
	const char *cgroup;
	bool stripes;
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
	long pages = r->size / PAGE;

	for (long odd = 0; odd < 2; odd++) {
		for (long i = odd; i < pages; i += 2)
			fill(r->mem + i * PAGE, PAGE, r->seed + i * PAGE);
		if (!page_out(r->mem, r->size, odd ? pages : (pages + 1) / 2))
			return false;
	}

	return true;
}

static inline bool set_score(int score)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", score);

	return write_file("/proc/self/oom_score_adj", text);
}

/* Leaves alone what fill() puts there. */
static inline void add_noise(char *mem, size_t size, unsigned long long seed)
{
	for (size_t i = 0; i < size; i += PAGE) {
		unsigned int *words = (unsigned int *)(mem + i);

		for (size_t k = 2; k < PAGE / 2 / sizeof(*words); k++)
			words[k] = rnd(&seed);
	}
}

/* For victim_ops: all of the memory is in swap. */
static inline enum verdict region_swap_out(void *arg)
{
	struct region *r = arg;

	if (r->cgroup && !cgroup_enter(r->cgroup))
		return BAD;
	if (r->score && !set_score(r->score))
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

/* For victim_ops: it is what it was. */
static inline enum verdict region_check(void *arg)
{
	struct region *r = arg;

	return filled(r->mem, r->size, r->seed) ? GOOD : BAD;
}

/* --- Ends --- */

/* Of any process: its memory is gone by then. */
static inline bool ends(int pidfd)
{
	struct pollfd fd = { .fd = pidfd, .events = POLLIN };

	return poll(&fd, 1, PATIENCE) == 1;
}

static inline int pidfd_of(pid_t pid)
{
	return syscall(__NR_pidfd_open, pid, 0);
}

/* Kill somebody else's child. */
static inline bool kill_pid(pid_t pid)
{
	int pidfd = pidfd_of(pid);
	bool well = pidfd >= 0 && !kill(pid, SIGKILL) && ends(pidfd);

	close(pidfd);

	return well;
}

/* Kill a victim and wait until it is gone. */
static inline bool victim_dies(struct victim *v)
{
	bool well = !kill(v->pid, SIGKILL) && ends(v->pidfd);

	victim_end(v);

	return well;
}

#endif /* _SELFTESTS_MEMREAP_SWAP_RELEASE_H */
