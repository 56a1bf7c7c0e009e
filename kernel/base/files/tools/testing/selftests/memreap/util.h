/* SPDX-License-Identifier: GPL-2.0-only */
/* What the tests of several topics need. */
#ifndef _SELFTESTS_MEMREAP_UTIL_H
#define _SELFTESTS_MEMREAP_UTIL_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../kselftest.h"

#define PAGE		((size_t)sysconf(_SC_PAGESIZE))
#define MIB		(1024 * 1024UL)

/* All of a short file, as a string. */
static inline bool read_file(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t len;

	if (fd < 0)
		return false;
	len = read(fd, text, size - 1);
	close(fd);
	if (len < 0)
		return false;
	text[len] = 0;

	return true;
}

static inline bool write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool done;

	if (fd < 0)
		return false;
	done = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	close(fd);

	return done;
}

/* The kernel's log from now on, for kernel_complained(); -1 if there is none. */
static inline int kmsg_open(void)
{
	int kmsg = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	if (kmsg >= 0)
		lseek(kmsg, 0, SEEK_END);

	return kmsg;
}

/* Has the kernel complained since @kmsg was opened? */
static inline bool kernel_complained(int kmsg, char *line, size_t size)
{
	static const char * const bad[] = {
		"Bad rss-counter state", "BUG: ", "WARNING: ", "non-zero pgtables",
	};
	ssize_t len;

	/* EPIPE: messages were lost, there may be more. */
	while ((len = read(kmsg, line, size - 1)) > 0 || errno == EPIPE) {
		if (len < 0)
			continue;
		line[len] = 0;
		for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
			if (strstr(line, bad[i]))
				return true;
		}
	}

	return false;
}

/* xorshift: the same every time, from a seed other than 0. */
static inline unsigned int rnd(unsigned long long *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;

	return *state >> 32;
}

static inline unsigned long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);

	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

/* Until @condition holds, or @ms are over. Gives whether it holds. */
#define within(ms, condition)						\
({									\
	unsigned long long _end = now_ns() + (ms) * 1000000ULL;		\
	bool _done;							\
									\
	while (!(_done = (condition)) && now_ns() < _end)		\
		usleep(1000);						\
	_done;								\
})

/* Where cgroup2 is mounted; false if it is not. */
static inline bool cgroup2_mount(char *path, size_t size)
{
	char line[4096], where[1024], kind[32];
	FILE *f = fopen("/proc/mounts", "re");
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f))
		found = sscanf(line, "%*s %1023s %31s", where, kind) == 2 &&
			!strcmp(kind, "cgroup2") && strlen(where) < size;
	if (f)
		fclose(f);
	if (found)
		memcpy(path, where, strlen(where) + 1);

	return found;
}

static inline void touch(char *mem, size_t pages)
{
	for (size_t i = 0; i < pages; i++)
		__atomic_store_n(&mem[i * PAGE], 1, __ATOMIC_RELAXED);
}

#endif /* _SELFTESTS_MEMREAP_UTIL_H */
