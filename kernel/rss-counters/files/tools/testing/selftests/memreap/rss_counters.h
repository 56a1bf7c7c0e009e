/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The memory of a process, as the kernel counts it and as its page tables show
 * it; ways to change it on all CPUs; and the events about its counters.
 */
#ifndef _SELFTESTS_MEMREAP_RSS_COUNTERS_H
#define _SELFTESTS_MEMREAP_RSS_COUNTERS_H

#include <limits.h>
#include <pthread.h>
#include <sys/uio.h>

#include "trace.h"
#include "victim.h"
#include "zram.h"

#ifndef __NR_process_madvise
#define __NR_process_madvise		440
#endif

#define EVENTS		"memreap_rss"

/* Seconds for a test, on a busy host that emulates a kernel full of checks. */
#define LIMIT		600

/* --- CPUs --- */

/* CPUs that this test may use. */
static cpu_set_t cpus;

static void __attribute__((constructor)) cpus_begin(void)
{
	sched_getaffinity(0, sizeof(cpus), &cpus);
}

/* Returns the next one after @cpu, or CPU_SETSIZE; the first one after -1. */
static inline int next_cpu(int cpu)
{
	do {
		cpu++;
	} while (cpu < CPU_SETSIZE && !CPU_ISSET(cpu, &cpus));

	return cpu;
}

static inline void run_anywhere(void)
{
	sched_setaffinity(0, sizeof(cpus), &cpus);
}

/* --- Memory of a process, in pages --- */

/**
 * struct rss - what the kernel counts, and what is mapped
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

/* Reading must not change the result: the second time no page is added. */
static inline bool rss_file(pid_t pid, const char *name, char *text,
			    size_t size)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);

	return read_file(path, text, size) && text[0];
}

/* Returns the pages in a line "Name:   123 kB", or -1. */
static inline long rss_field(const char *text, const char *name)
{
	long kib = number_after(text, name);

	return kib < 0 ? -1 : kib * 1024 / (long)PAGE;
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

/* Reads the memory of @pid, which must be counted exactly. */
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
 * struct pages - the memory that a worker changes
 * @mem: its address
 * @nr: its pages
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

/* --- Threads that execute one function at a time --- */

/**
 * struct worker - a thread that executes one function at a time
 * @thread: the thread
 * @cpu: where to execute it
 * @work: the function
 * @arg: for @work
 * @turn: odd while there is something to do
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

/* Starts @work; NULL ends the thread. */
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

static inline void worker_warm_up(void *arg)
{
}

/* Its own memory, which is counted, too, does not change after this. */
static inline bool worker_start(struct worker *w)
{
	memset(w, 0, sizeof(*w));
	if (pthread_create(&w->thread, NULL, worker_fn, w))
		return false;
	worker_do(w, sched_getcpu(), worker_warm_up, NULL);
	usleep(1000);
	worker_do(w, sched_getcpu(), worker_warm_up, NULL);

	return true;
}

static inline void worker_end(struct worker *w)
{
	worker_begin(w, 0, NULL, NULL);
	pthread_join(w->thread, NULL);
}

/* --- What the kernel reports --- */

/**
 * struct spreads - events for counters that are spread over CPUs
 * @nr: how many
 * @bytes: allocated for the last one
 * @result: of the last one
 * @pid: of the last one
 */
struct spreads {
	unsigned int nr;
	long bytes;
	int result;
	pid_t pid;
};

/* About @pid, or about all if that is 0. */
static inline bool read_events(pid_t pid, struct spreads *told)
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

static void __attribute__((constructor)) rss_trace_begin(void)
{
	trace_begin(EVENTS);
}

static inline bool counters_supported(void)
{
	return !access(INSTANCE, F_OK);
}

static inline void watch_begin(void)
{
	trace_clear();
	trace_enable(EVENTS, true);
	lseek(kmsg, 0, SEEK_END);
}

/*
 * For teardown in the test's parent. The counters are checked when the mm is
 * freed; an idle CPU may keep the last one until it runs something else.
 */
static inline void watch_end(struct __test_metadata *_metadata)
{
	int cpu;

	for (cpu = next_cpu(-1); cpu < CPU_SETSIZE; cpu = next_cpu(cpu))
		run_on(cpu);
	run_anywhere();
	trace_enable(EVENTS, false);
	EXPECT_NO_COMPLAINT(kmsg);
}

/* --- Swap space on zram --- */

#define ZRAM_SIZE	(64 * MIB)

/* Reclaims pages of another process. Returns whether that is possible. */
static inline bool page_out(int pidfd, void *mem, size_t size)
{
	struct iovec range = { mem, size };

	return syscall(__NR_process_madvise, pidfd, &range, 1UL, MADV_PAGEOUT,
		       0UL) >= 0;
}

#endif /* _SELFTESTS_MEMREAP_RSS_COUNTERS_H */
