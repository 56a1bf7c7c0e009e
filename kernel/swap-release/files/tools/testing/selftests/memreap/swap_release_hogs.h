/* SPDX-License-Identifier: GPL-2.0-only */
/* Tasks that keep all workers from running, for tests of what goes on then. */
#ifndef _SELFTESTS_MEMREAP_SWAP_RELEASE_HOGS_H
#define _SELFTESTS_MEMREAP_SWAP_RELEASE_HOGS_H

#include "swap_release.h"

#define FAIR_SERVER	"/sys/kernel/debug/sched/fair_server"
#define RT_RUNTIME	"/proc/sys/kernel/sched_rt_runtime_us"
#define RCU_STALL	"/sys/module/rcupdate/parameters/rcu_cpu_stall_timeout"
/* Seconds, the longest there is: RCU's own thread does not get to run. */
#define RCU_STALL_MAX	"300"

/* Who runs before whom: the test, its victims, hogs, all others. */
#define TEST_PRIORITY	90
#define VICTIM_PRIORITY	80
#define HOG_PRIORITY	50
/* ns after which hogs stop if the test has got stuck: it feeds them else. */
#define HOG_NS		40000000000ULL

#define MAX_CPUS	64

/* --- Hogs --- */

static struct {
	unsigned int nr;
	unsigned int running;
	bool go;
	unsigned long long fed_ns;
} hogs;

/* The test has come further. */
static inline void hogs_feed(void)
{
	__atomic_store_n(&hogs.fed_ns, now_ns(), __ATOMIC_SEQ_CST);
}

static inline bool hogs_are_fed(void)
{
	/* Read first: it may be fed after that, but not before. */
	unsigned long long fed = __atomic_load_n(&hogs.fed_ns,
						 __ATOMIC_SEQ_CST);

	return now_ns() - fed < HOG_NS;
}

static inline void *hog_fn(void *arg)
{
	unsigned long cpu = (unsigned long)arg;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set) ||
	    !set_fifo(HOG_PRIORITY))
		return NULL;
	for (;;) {
		if (!__atomic_load_n(&hogs.go, __ATOMIC_RELAXED)) {
			usleep(500);
			continue;
		}
		__atomic_add_fetch(&hogs.running, 1, __ATOMIC_SEQ_CST);
		while (__atomic_load_n(&hogs.go, __ATOMIC_RELAXED) &&
		       hogs_are_fed())
			;
		__atomic_sub_fetch(&hogs.running, 1, __ATOMIC_SEQ_CST);
		while (__atomic_load_n(&hogs.go, __ATOMIC_RELAXED))
			usleep(500);
	}

	return NULL;
}

/* One for each CPU, at rest. */
static inline bool hogs_start(void)
{
	cpu_set_t cpus;

	if (sched_getaffinity(0, sizeof(cpus), &cpus))
		return false;
	for (unsigned long cpu = 0; cpu < MAX_CPUS; cpu++) {
		pthread_t thread;

		if (!CPU_ISSET(cpu, &cpus))
			continue;
		if (pthread_create(&thread, NULL, hog_fn, (void *)cpu))
			return false;
		hogs.nr++;
	}

	return true;
}

/*
 * From now on nobody runs but hogs, the test, and victims of their own
 * priority. Nothing may be done that waits for RCU, nor for a worker.
 */
static inline bool hogs_go(void)
{
	bool all;

	if (!set_fifo(TEST_PRIORITY))
		return false;
	hogs_feed();
	__atomic_store_n(&hogs.go, true, __ATOMIC_SEQ_CST);
	all = within(PATIENCE, __atomic_load_n(&hogs.running,
					       __ATOMIC_SEQ_CST) == hogs.nr);
	/* Whoever was at work has no chance to go on. */
	usleep(1000);

	return all;
}

/* Gives whether they have been there all the time. */
static inline bool hogs_rest(void)
{
	bool all = __atomic_load_n(&hogs.running, __ATOMIC_SEQ_CST) == hogs.nr;

	__atomic_store_n(&hogs.go, false, __ATOMIC_SEQ_CST);

	return set_fifo(0) && all;
}

/**
 * struct limits - what keeps hogs from having all CPUs to themselves
 * @rt: sched_rt_runtime_us
 * @stall: after how many seconds RCU complains that it makes no progress
 * @server: what ordinary tasks are guaranteed on each CPU, ns in a second
 */
struct limits {
	char rt[16];
	char stall[16];
	char server[MAX_CPUS][16];
};

static inline void server_path(char *path, size_t size, int cpu)
{
	snprintf(path, size, FAIR_SERVER "/cpu%d/runtime", cpu);
}

static inline bool limits_lift(struct limits *l)
{
	char path[64];

	if (access("/sys/kernel/debug/sched", F_OK))
		mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL);
	if (!read_file(RT_RUNTIME, l->rt, sizeof(l->rt)) ||
	    !write_file(RT_RUNTIME, "-1"))
		return false;
	if (read_file(RCU_STALL, l->stall, sizeof(l->stall)))
		write_file(RCU_STALL, RCU_STALL_MAX);
	/* Without these files there is no such guarantee, or it cannot go. */
	for (int cpu = 0; cpu < MAX_CPUS; cpu++) {
		server_path(path, sizeof(path), cpu);
		if (read_file(path, l->server[cpu], sizeof(l->server[cpu])))
			write_file(path, "0");
	}

	return true;
}

static inline void limits_restore(struct limits *l)
{
	char path[64];

	for (int cpu = 0; cpu < MAX_CPUS; cpu++) {
		server_path(path, sizeof(path), cpu);
		if (l->server[cpu][0])
			write_file(path, l->server[cpu]);
	}
	if (l->stall[0])
		write_file(RCU_STALL, l->stall);
	if (l->rt[0])
		write_file(RT_RUNTIME, l->rt);
}

#endif /* _SELFTESTS_MEMREAP_SWAP_RELEASE_HOGS_H */
