/* SPDX-License-Identifier: GPL-2.0-only */
/* A tracing instance for the tests of a program: others are not disturbed. */
#ifndef _SELFTESTS_MEMREAP_TRACE_H
#define _SELFTESTS_MEMREAP_TRACE_H

#include <sys/stat.h>

#include "util.h"

#define TRACEFS		"/sys/kernel/tracing"
#define INSTANCE	TRACEFS "/instances/memreap_selftest"

/* The process that outlives the tests; 0 without trace_begin(). */
static pid_t trace_owner;
static bool trace_mounted;
/* The kernel's log, from trace_begin() on. */
static int kmsg = -1;

/*
 * For a constructor, because creating an instance takes longer than most tests.
 * There is no INSTANCE afterwards if the kernel lacks @events.
 */
static inline void trace_begin(const char *events)
{
	char path[128];

	trace_owner = getpid();
	kmsg = kmsg_open();
	if (access(TRACEFS "/events", F_OK))
		trace_mounted = !mount("tracefs", TRACEFS, "tracefs", 0, NULL);
	snprintf(path, sizeof(path), TRACEFS "/events/%s", events);
	if (!access(path, F_OK))
		mkdir(INSTANCE, 0700);
}

static void __attribute__((destructor)) trace_end(void)
{
	if (getpid() != trace_owner)
		return;
	rmdir(INSTANCE);
	if (trace_mounted)
		umount(TRACEFS);
}

static inline bool trace_enable(const char *events, bool on)
{
	char path[128];

	snprintf(path, sizeof(path), INSTANCE "/events/%s/enable", events);

	return write_file(path, on ? "1" : "0");
}

static inline void trace_clear(void)
{
	close(open(INSTANCE "/trace", O_WRONLY | O_TRUNC | O_CLOEXEC));
}

/* Returns how many lines of the trace have this in them; -1 if there is none. */
static inline int trace_count(const char *text)
{
	char line[512];
	int nr = 0;
	FILE *f;

	f = fopen(INSTANCE "/trace", "re");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f))
		nr += !!strstr(line, text);
	fclose(f);

	return nr;
}

#endif /* _SELFTESTS_MEMREAP_TRACE_H */
