/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How much memory a process has, as the kernel counts it and as its page
 * tables show it; ways to make it change on all CPUs; and what the kernel
 * tells of how it counts.
 */
#ifndef _SELFTESTS_MEMREAP_RSS_COUNTERS_H
#define _SELFTESTS_MEMREAP_RSS_COUNTERS_H

#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "victim.h"
#include "zram.h"

#ifndef __NR_process_madvise
#define __NR_process_madvise		440
#endif
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT			21
#endif

#define TRACEFS		"/sys/kernel/tracing"
#define INSTANCE	TRACEFS "/instances/memreap_rss_selftest"
#define EVENTS		"/events/memreap_rss"

/* Seconds for a test, on a busy host that emulates a kernel full of checks. */
#define LIMIT		600
/* ms for what may take its time, as there. */
#define PATIENCE	30000

/* --- CPUs --- */

/* Those that this test may use. */
static cpu_set_t cpus;

static void __attribute__((constructor)) cpus_begin(void)
{
	sched_getaffinity(0, sizeof(cpus), &cpus);
}

/* The next one after @cpu, CPU_SETSIZE behind the last; the first after -1. */
static inline int next_cpu(int cpu)
{
	do {
		cpu++;
	} while (cpu < CPU_SETSIZE && !CPU_ISSET(cpu, &cpus));

	return cpu;
}

/* The calling thread continues on @cpu. */
static inline bool run_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);

	return !sched_setaffinity(0, sizeof(set), &set);
}

static inline void run_anywhere(void)
{
	sched_setaffinity(0, sizeof(cpus), &cpus);
}

/* --- What a process has, in pages --- */

/**
 * struct rss - what the kernel says, and what is so
 * @stat: in /proc/PID/stat
 * @statm: in /proc/PID/statm
 * @status: VmRSS, the sum of the next three
 * @anon: RssAnon
 * @file: RssFile
 * @shmem: RssShmem
 * @swap: VmSwap
 * @mapped: Rss in smaps_rollup, found in the page tables
 * @swapped: Swap there
 */
struct rss {
	long stat;
	long statm;
	long status;
	long anon;
	long file;
	long shmem;
	long swap;
	long mapped;
	long swapped;
};

/*
 * Reading must not change what is read: not a page that was not there when the
 * same was read before.
 */
static inline bool rss_file(pid_t pid, const char *name, char *text,
			    size_t size)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);

	return read_file(path, text, size) && text[0];
}

/* Of a line "Name:   123 kB". */
static inline long rss_field(const char *text, const char *name)
{
	const char *at = strstr(text, name);

	return at ? atol(at + strlen(name)) * 1024 / (long)PAGE : -1;
}

static inline bool rss_read(pid_t pid, struct rss *rss)
{
	static char text[8192];
	char *at;

	if (!rss_file(pid, "stat", text, sizeof(text)))
		return false;
	/* 1 (name) R 3 4 ..., where the name may be anything. */
	at = strrchr(text, ')');
	for (int field = 2; at && field < 24; field++)
		at = strchr(at + 1, ' ');
	if (!at)
		return false;
	rss->stat = atol(at);
	if (!rss_file(pid, "statm", text, sizeof(text)))
		return false;
	rss->statm = atol(strchr(text, ' '));
	if (!rss_file(pid, "status", text, sizeof(text)))
		return false;
	rss->status = rss_field(text, "VmRSS:");
	rss->anon = rss_field(text, "RssAnon:");
	rss->file = rss_field(text, "RssFile:");
	rss->shmem = rss_field(text, "RssShmem:");
	rss->swap = rss_field(text, "VmSwap:");
	if (!rss_file(pid, "smaps_rollup", text, sizeof(text)))
		return false;
	rss->mapped = rss_field(text, "\nRss:");
	rss->swapped = rss_field(text, "\nSwap:");

	return true;
}

/* What is counted is what there is. */
static inline bool rss_exact(const struct rss *rss)
{
	return rss->stat == rss->mapped && rss->statm == rss->mapped &&
	       rss->status == rss->mapped && rss->swap == rss->swapped &&
	       rss->anon + rss->file + rss->shmem == rss->mapped;
}

static inline const char *rss_text(const struct rss *r)
{
	static char text[256];

	snprintf(text, sizeof(text),
		 "stat %ld, statm %ld, status %ld (%ld anon, %ld file, %ld shmem), mapped %ld, swap %ld, swapped %ld",
		 r->stat, r->statm, r->status, r->anon, r->file, r->shmem,
		 r->mapped, r->swap, r->swapped);

	return text;
}

/* Reads @pid's, and expects it to be exact. */
#define ASSERT_RSS(pid, into)						\
do {									\
	struct rss *_rss = (into);					\
									\
	ASSERT_TRUE(rss_read(pid, _rss));				\
	ASSERT_TRUE(rss_exact(_rss)) {					\
		TH_LOG("%s", rss_text(_rss));				\
	}								\
} while (0)

/**
 * struct pages - memory that is done something to
 * @mem: it
 * @nr: so many pages
 */
struct pages {
	char *mem;
	size_t nr;
};

static inline void touch_pages(void *arg)
{
	struct pages *pages = arg;

	touch(pages->mem, pages->nr);
}

static inline void unmap_pages(void *arg)
{
	struct pages *pages = arg;

	munmap(pages->mem, pages->nr * PAGE);
}

/* --- Threads that are there, and do as they are told --- */

/**
 * struct worker - a thread that does one thing at a time
 * @thread: it
 * @cpu: where
 * @work: what it is to do
 * @arg: for @work
 * @turn: for each, goes up when there is something to do, then when it is done
 */
struct worker {
	pthread_t thread;
	int cpu;
	void (*work)(void *arg);
	void *arg;
	unsigned int turn;
};

static inline void *worker_fn(void *arg)
{
	struct worker *w = arg;

	for (;;) {
		while (!(__atomic_load_n(&w->turn, __ATOMIC_ACQUIRE) & 1))
			usleep(200);
		if (!w->work)
			return NULL;
		run_on(w->cpu);
		w->work(w->arg);
		__atomic_add_fetch(&w->turn, 1, __ATOMIC_RELEASE);
	}
}

/* Begins; @work is NULL for its end. */
static inline void worker_begin(struct worker *w, int cpu,
				void (*work)(void *arg), void *arg)
{
	w->cpu = cpu;
	w->work = work;
	w->arg = arg;
	__atomic_add_fetch(&w->turn, 1, __ATOMIC_RELEASE);
}

static inline void worker_wait(struct worker *w)
{
	while (__atomic_load_n(&w->turn, __ATOMIC_ACQUIRE) & 1)
		usleep(200);
}

static inline void worker_do(struct worker *w, int cpu,
			     void (*work)(void *arg), void *arg)
{
	worker_begin(w, cpu, work, arg);
	worker_wait(w);
}

static inline void worker_practise(void *arg)
{
}

/* What it needs for itself, it has when this returns: it counts, too. */
static inline bool worker_start(struct worker *w)
{
	memset(w, 0, sizeof(*w));
	if (pthread_create(&w->thread, NULL, worker_fn, w))
		return false;
	worker_do(w, sched_getcpu(), worker_practise, NULL);
	usleep(1000);
	worker_do(w, sched_getcpu(), worker_practise, NULL);

	return true;
}

static inline void worker_end(struct worker *w)
{
	worker_begin(w, 0, NULL, NULL);
	pthread_join(w->thread, NULL);
}

/* --- What the kernel tells --- */

/**
 * struct spreads - the events of processes' counters being spread over CPUs
 * @nr: how many
 * @bytes: that the last one took
 * @result: of the last one
 * @pid: the last one's
 */
struct spreads {
	unsigned int nr;
	long bytes;
	int result;
	pid_t pid;
};

/* Of @pid, or of all if that is 0. */
static inline bool listen_to(pid_t pid, struct spreads *told)
{
	char line[512];
	FILE *f;

	memset(told, 0, sizeof(*told));
	f = fopen(INSTANCE "/trace", "re");
	if (!f)
		return false;
	while (fgets(line, sizeof(line), f)) {
		char *at = strstr(line, "memreap_rss_spread:");
		/* "   name-123     [000] ...", where the name may be anything. */
		char *end = strstr(line, " [");
		long bytes;
		int result;

		if (!at || !end || line[0] == '#')
			continue;
		while (end > line && end[-1] == ' ')
			end--;
		*end = 0;
		end = strrchr(line, '-');
		if (!end || (pid && atoi(end + 1) != pid) ||
		    sscanf(at, "memreap_rss_spread: mm_id=%*u bytes=%ld result=%d",
			   &bytes, &result) != 2)
			continue;
		told->nr++;
		told->pid = atoi(end + 1);
		told->bytes = bytes;
		told->result = result;
	}
	fclose(f);

	return true;
}

/* --- The kernel while a test runs --- */

/* Of the process that outlives the tests, as the teardown of each does. */
static pid_t harness;
static int kmsg = -1;
static bool mounted;

/*
 * Once for all tests: to make an instance takes longer than most of them. Of
 * our own, so that other users of tracing are not disturbed.
 */
static void __attribute__((constructor)) trace_begin(void)
{
	harness = getpid();
	if (access(TRACEFS "/events", F_OK))
		mounted = !mount("tracefs", TRACEFS, "tracefs", 0, NULL);
	if (access(TRACEFS EVENTS, F_OK))
		return;
	kmsg = kmsg_open();
	mkdir(INSTANCE, 0700);
}

static void __attribute__((destructor)) trace_end(void)
{
	if (getpid() != harness)
		return;
	rmdir(INSTANCE);
	if (mounted)
		umount(TRACEFS);
}

/* This kernel has what is tested here. */
static inline bool counters_supported(void)
{
	return !access(INSTANCE EVENTS, F_OK);
}

/* Begin to look at the kernel. */
static inline void watch_begin(void)
{
	/* That empties it. */
	close(open(INSTANCE "/trace", O_WRONLY | O_TRUNC | O_CLOEXEC));
	write_file(INSTANCE EVENTS "/enable", "1");
	lseek(kmsg, 0, SEEK_END);
}

/*
 * For the parent's teardown: an address space is looked at when it goes, and a
 * CPU that has nothing to do may keep the last one for a while. Gives whether
 * the kernel complained.
 */
static inline bool watch_end(void)
{
	char line[1024];
	bool bad;
	int cpu;

	for (cpu = next_cpu(-1); cpu < CPU_SETSIZE; cpu = next_cpu(cpu))
		run_on(cpu);
	run_anywhere();
	write_file(INSTANCE EVENTS "/enable", "0");
	bad = kmsg >= 0 && kernel_complained(kmsg, line, sizeof(line));
	if (bad)
		ksft_print_msg("the kernel says: %s", line);

	return bad;
}

/* --- Swap space on zram --- */

#define ZRAM_SIZE	(64 * MIB)

/* Reclaim the pages of another process. Gives whether it could be asked for. */
static inline bool page_out(int pidfd, void *mem, size_t size)
{
	struct iovec range = { mem, size };

	return syscall(__NR_process_madvise, pidfd, &range, 1UL, MADV_PAGEOUT,
		       0UL) >= 0;
}

#endif /* _SELFTESTS_MEMREAP_RSS_COUNTERS_H */
