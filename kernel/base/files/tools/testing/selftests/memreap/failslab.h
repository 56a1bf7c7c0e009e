/* SPDX-License-Identifier: GPL-2.0-only */
/* Slab allocations that fail on request. */
#ifndef _SELFTESTS_MEMREAP_FAILSLAB_H
#define _SELFTESTS_MEMREAP_FAILSLAB_H

#include "util.h"

#define FAIL_NTH	"/proc/thread-self/fail-nth"
#define FAILSLAB	DEBUGFS "/failslab/"

/* The settings before failslab_begin(); empty without. */
struct failslab {
	char wait[8];
	char verbose[8];
};

static inline bool failslab_begin(struct failslab *f)
{
	mount_debugfs(DEBUGFS "/tracing");
	if (access(FAIL_NTH, F_OK) ||
	    !read_file(FAILSLAB "ignore-gfp-wait", f->wait, sizeof(f->wait)) ||
	    !read_file(FAILSLAB "verbose", f->verbose, sizeof(f->verbose)))
		return false;
	write_file(FAILSLAB "ignore-gfp-wait", "N");
	write_file(FAILSLAB "verbose", "0");

	return true;
}

static inline void failslab_end(const struct failslab *f)
{
	if (f->wait[0])
		write_file(FAILSLAB "ignore-gfp-wait", f->wait);
	if (f->verbose[0])
		write_file(FAILSLAB "verbose", f->verbose);
}

/* Lets the @nth allocation of this thread fail. @fd: of FAIL_NTH. */
static inline bool fail_nth(int fd, int nth)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", nth);

	return pwrite(fd, text, strlen(text), 0) > 0;
}

/* Ends that. Returns how many more it would have taken; -1 on an error. */
static inline int fail_nth_end(int fd)
{
	char text[16] = "";

	if (pread(fd, text, sizeof(text) - 1, 0) <= 0 ||
	    pwrite(fd, "0", 1, 0) != 1)
		return -1;

	return atoi(text);
}

#endif /* _SELFTESTS_MEMREAP_FAILSLAB_H */
