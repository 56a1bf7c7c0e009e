/* SPDX-License-Identifier: GPL-2.0-only */
/* cgroups of a test's own, with the cpu and memory controllers. */
#ifndef _SELFTESTS_MEMREAP_CGROUP_H
#define _SELFTESTS_MEMREAP_CGROUP_H

#include <ftw.h>
#include <limits.h>
#include <sys/stat.h>

#include "util.h"

/* ms for what may take its time, on a busy host that emulates a kernel full of checks. */
#define CGROUP_PATIENCE	30000

/**
 * struct cgroups - cgroups of our own, below one at the top of the hierarchy
 * @top: its folder
 * @made: it was made here
 */
struct cgroups {
	char top[PATH_MAX / 4];
	bool made;
};

/* The folder of a cgroup below the top; good for some more calls. */
static inline const char *cgroup_path(const struct cgroups *c,
				      const char *name)
{
	static char paths[8][PATH_MAX / 2];
	static unsigned int next;
	char *path = paths[next++ % ARRAY_SIZE(paths)];

	snprintf(path, sizeof(paths[0]), "%s/%s", c->top, name);

	return path;
}

/* Write to a file of a cgroup. Returns 0 or an errno. */
static inline int cgroup_write(const char *cgroup, const char *file,
			       const char *text)
{
	ssize_t len = strlen(text);
	char path[PATH_MAX];
	int fd, err;

	snprintf(path, sizeof(path), "%s/%s", cgroup, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	err = write(fd, text, len) == len ? 0 : errno;
	close(fd);

	return err;
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
	return !cgroup_write(cgroup, "cgroup.procs", "0");
}

static inline int cgroup_remove(const char *path, const struct stat *st,
				int type, struct FTW *ftw)
{
	if (type == FTW_DP)
		rmdir(path);

	return 0;
}

/* All that is in there dies. */
static inline void cgroups_end(struct cgroups *c)
{
	if (!c->made)
		return;
	cgroup_write(c->top, "cpu.max", "max");
	cgroup_write(c->top, "cgroup.freeze", "0");
	cgroup_write(c->top, "cgroup.kill", "1");
	within(CGROUP_PATIENCE, !nftw(c->top, cgroup_remove, 8, FTW_DEPTH | FTW_PHYS) &&
	       access(c->top, F_OK));
	c->made = false;
}

/* Returns NULL, or what is missing. */
static inline const char *cgroups_begin(struct cgroups *c)
{
	char root[PATH_MAX / 8];

	memset(c, 0, sizeof(*c));
	if (!cgroup2_mount(root, sizeof(root)))
		return "no cgroup2 is mounted: mount one at /sys/fs/cgroup";
	/* Left on: to take them away might harm those who came to use them. */
	if (cgroup_write(root, "cgroup.subtree_control", "+cpu +memory"))
		return "no cpu and memory controllers for cgroup2";
	snprintf(c->top, sizeof(c->top), "%s/memreap_selftest", root);
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

/* All processes of a cgroup and of those below it are gone. */
static inline bool cgroup_empties(const char *cgroup)
{
	return within(CGROUP_PATIENCE, !cgroup_read(cgroup, "cgroup.events",
					     "populated "));
}

#endif /* _SELFTESTS_MEMREAP_CGROUP_H */
