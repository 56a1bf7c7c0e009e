/* SPDX-License-Identifier: GPL-2.0-only */
/* cgroups for the processes of a test. */
#ifndef _SELFTESTS_MEMREAP_CGROUP_H
#define _SELFTESTS_MEMREAP_CGROUP_H

#include <ftw.h>
#include <limits.h>
#include <linux/membarrier.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "util.h"

/**
 * struct cgroups - cgroups of a test, below one that is created for it
 * @root: where cgroup2 is mounted
 * @top: directory of the one at the top
 * @made: @top exists
 */
struct cgroups {
	char root[PATH_MAX / 8];
	char top[PATH_MAX / 4];
	bool made;
};

/* Returns the directory of a cgroup below the top; valid for 7 more calls. */
static inline const char *cgroup_path(const struct cgroups *c,
				      const char *name)
{
	static char paths[8][PATH_MAX / 2];
	static unsigned int next;
	char *path = paths[next++ % ARRAY_SIZE(paths)];

	snprintf(path, sizeof(paths[0]), "%s/%s", c->top, name);

	return path;
}

/* Writes to a file of a cgroup. Returns 0 or an errno. */
static inline int cgroup_write(const char *cgroup, const char *file,
			       const char *text)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", cgroup, file);

	return write_file(path, text) ? 0 : errno;
}

static inline int cgroup_write_number(const char *cgroup, const char *file,
				      long number)
{
	char text[32];

	snprintf(text, sizeof(text), "%ld", number);

	return cgroup_write(cgroup, file, text);
}

/* See read_number(). */
static inline long cgroup_read(const char *cgroup, const char *file,
			       const char *key)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", cgroup, file);

	return read_number(path, key);
}

static inline bool cgroup_enter(const char *cgroup)
{
	return !cgroup_write(cgroup, "cgroup.procs", "0");
}

/* For cgroup_throttle(): 1 ms of a CPU per second, the minimum. */
#define HARDLY_ANY_CPU	"1000 1000000"
#define ONE_PERCENT	"1000 100000"

static inline void report_rcu_stalls(bool report)
{
	write_file("/sys/module/rcupdate/parameters/rcu_cpu_stall_suppress",
		   report ? "0" : "1");
}

/*
 * Limits the CPU time of a cgroup until cgroup_unthrottle(). A task that is
 * preempted while it reads under RCU holds up grace periods for as long as it
 * is throttled, in any kernel: such stalls are not reported. How long that is
 * depends on the host: if it stops a virtual CPU for 50 ms, the task has used
 * up the time of 50 seconds. Returns 0 or an errno.
 */
static inline int cgroup_throttle(const char *cgroup, const char *cpu_max)
{
	report_rcu_stalls(false);

	return cgroup_write(cgroup, "cpu.max", cpu_max);
}

/* Returns once no grace period is held up any more: 0 or an errno. */
static inline int cgroup_unthrottle(const char *cgroup)
{
	int error = cgroup_write(cgroup, "cpu.max", "max");

	if (!error) {
		/* Waits for a grace period. */
		syscall(__NR_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0);
		report_rcu_stalls(true);
	}

	return error;
}

static inline int cgroup_remove(const char *path, const struct stat *st,
				int type, struct FTW *ftw)
{
	if (type == FTW_DP)
		rmdir(path);

	return 0;
}

/* Kills all processes in these cgroups. */
static inline void cgroups_end(struct cgroups *c)
{
	if (!c->made)
		return;
	cgroup_unthrottle(c->top);
	cgroup_write(c->top, "cgroup.freeze", "0");
	cgroup_write(c->top, "cgroup.kill", "1");
	within(PATIENCE, !nftw(c->top, cgroup_remove, 8, FTW_DEPTH | FTW_PHYS) &&
	       access(c->top, F_OK));
	c->made = false;
}

/* @controllers: such as "+memory". Returns NULL, or what is missing. */
static inline const char *cgroups_begin(struct cgroups *c,
					const char *controllers)
{
	memset(c, 0, sizeof(*c));
	if (!cgroup2_mount(c->root, sizeof(c->root)))
		return "no cgroup2 is mounted: mount one at /sys/fs/cgroup";
	/* They stay enabled: others may have begun to use them. */
	if (cgroup_write(c->root, "cgroup.subtree_control", controllers))
		return "no cpu or memory controller for cgroup2";
	snprintf(c->top, sizeof(c->top), "%s/memreap_selftest", c->root);
	/* Never one with the settings of another test. */
	c->made = true;
	if (!access(c->top, F_OK))
		cgroups_end(c);
	c->made = !mkdir(c->top, 0700);
	if (!c->made)
		return "no cgroup can be made";

	return NULL;
}

static inline long cgroup_memory(const char *cgroup)
{
	return cgroup_read(cgroup, "memory.current", NULL);
}

/* Waits until the processes of a cgroup, and of those below it, are gone. */
static inline bool cgroup_empties(const char *cgroup)
{
	return within(PATIENCE,
		      !cgroup_read(cgroup, "cgroup.events", "populated "));
}

#endif /* _SELFTESTS_MEMREAP_CGROUP_H */
