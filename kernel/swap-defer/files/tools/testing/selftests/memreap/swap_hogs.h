/* SPDX-License-Identifier: GPL-2.0-only */
/* Tasks that keep all workers from running. */
#ifndef _SELFTESTS_MEMREAP_SWAP_HOGS_H
#define _SELFTESTS_MEMREAP_SWAP_HOGS_H

#include "swap_slots.h"

#define FAIR_SERVER	DEBUGFS "/sched/fair_server"
#define RT_RUNTIME	"/proc/sys/kernel/sched_rt_runtime_us"
#define RCU_STALL	"/sys/module/rcupdate/parameters/rcu_cpu_stall_timeout"
/* Seconds, the maximum: RCU's thread does not get to run. */
#define RCU_STALL_MAX	"300"

/* Priorities: the test, its victims, hogs, and then all others. */
#define TEST_PRIORITY	90
#define VICTIM_PRIORITY	80
#define HOG_PRIORITY	50
/* ns without hogs_keep_alive() after which hogs stop: the test is stuck. */
#define HOG_TIMEOUT_NS	40000000000ULL

#define MAX_CPUS	64

/* --- Hogs --- */

static struct {
	unsigned int nr;
	unsigned int running;
	bool run;
	unsigned long long alive_ns;
} hogs;

/* The test makes progress. */
static inline void hogs_keep_alive(void)
{
	__atomic_store_n(&hogs.alive_ns, now_ns(), __ATOMIC_SEQ_CST);
}

static inline bool hogs_alive(void)
{
	/* Read before the clock, which must not be the earlier one. */
	unsigned long long last = __atomic_load_n(&hogs.alive_ns,
						  __ATOMIC_SEQ_CST);

	return now_ns() - last < HOG_TIMEOUT_NS;
}

static inline void *hog_fn(void *arg)
{
	if (!run_on((unsigned long)arg) || !set_fifo(HOG_PRIORITY))
		return NULL;
	for (;;) {
		if (!__atomic_load_n(&hogs.run, __ATOMIC_RELAXED)) {
			usleep(500);
			continue;
		}
		__atomic_add_fetch(&hogs.running, 1, __ATOMIC_SEQ_CST);
		while (__atomic_load_n(&hogs.run, __ATOMIC_RELAXED) &&
		       hogs_alive())
			;
		__atomic_sub_fetch(&hogs.running, 1, __ATOMIC_SEQ_CST);
		while (__atomic_load_n(&hogs.run, __ATOMIC_RELAXED))
			usleep(500);
	}

	return NULL;
}

/* Starts a thread for each CPU, which sleeps. */
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
 * From now on only hogs, the test and victims with a priority of their own run.
 * The test must not wait for RCU or a worker.
 */
static inline bool hogs_run(void)
{
	bool all;

	if (!set_fifo(TEST_PRIORITY))
		return false;
	hogs_keep_alive();
	__atomic_store_n(&hogs.run, true, __ATOMIC_SEQ_CST);
	all = within(PATIENCE, __atomic_load_n(&hogs.running,
					       __ATOMIC_SEQ_CST) == hogs.nr);
	/* Until everything else is preempted. */
	usleep(1000);

	return all;
}

/* Stops them. Returns whether they have run all the time. */
static inline bool hogs_stop(void)
{
	bool all = __atomic_load_n(&hogs.running, __ATOMIC_SEQ_CST) == hogs.nr;

	__atomic_store_n(&hogs.run, false, __ATOMIC_SEQ_CST);

	return set_fifo(0) && all;
}

/**
 * struct limits - settings that keep hogs from using all of the CPUs
 * @rt: sched_rt_runtime_us
 * @stall: after how many seconds RCU complains that it makes no progress
 * @server: guarantee for ordinary tasks on each CPU, in ns per second
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

/*
 * Kills a victim while only hogs run, which hogs_stop() ends. Returns false if
 * they do not; @after: counters once the victim has exited.
 */
static inline bool hogs_run_and_kill(struct victim *v, struct swap_stats *after)
{
	if (!hogs_run())
		return false;
	victim_killed(v);
	*after = swap_stats();

	return true;
}

static inline bool limits_lift(struct limits *l)
{
	char path[64];

	mount_debugfs(DEBUGFS "/sched");
	if (!read_file(RT_RUNTIME, l->rt, sizeof(l->rt)) ||
	    !write_file(RT_RUNTIME, "-1"))
		return false;
	if (read_file(RCU_STALL, l->stall, sizeof(l->stall)))
		write_file(RCU_STALL, RCU_STALL_MAX);
	/* Without these files the guarantee does not exist or stays. */
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

#endif /* _SELFTESTS_MEMREAP_SWAP_HOGS_H */
