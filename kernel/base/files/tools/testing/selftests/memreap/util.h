/* SPDX-License-Identifier: GPL-2.0-only */
/* What the tests of several topics need. */
#ifndef _SELFTESTS_MEMREAP_UTIL_H
#define _SELFTESTS_MEMREAP_UTIL_H

#include <ctype.h>
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

/* How long a storm or a race goes on, in seconds; and what it is told by. */
#define STRESS_SECONDS		15
#define STRESS_VARIABLE		"MEMREAP_STRESS_SECONDS"
/* More is more than the limits of tests leave room for. */
#define STRESS_MOST		120

static inline unsigned long long stress_ns(void)
{
	const char *text = getenv(STRESS_VARIABLE);
	unsigned long seconds = STRESS_SECONDS;
	char *end;

	if (text) {
		seconds = strtoul(text, &end, 10);
		if (!isdigit(text[0]) || *end || seconds > STRESS_MOST)
			ksft_exit_fail_msg("%s='%s' is no number from 0 to %d\n",
					   STRESS_VARIABLE, text, STRESS_MOST);
	}

	return seconds * 1000000000ULL;
}

/**
 * struct stress - the rounds of a storm or of a race
 * @least: those without which it means nothing, however long they take
 * @most: those of which more are of no use; 0: there is no such number
 * @sharers: variants of the test that share its time; 0: it is not shared
 * @begin: of the first one
 * @ns: the time for all of them
 * @rounds: done so far, so that in the first one it is 0
 */
struct stress {
	unsigned int least;
	unsigned int most;
	unsigned int sharers;
	unsigned long long begin;
	unsigned long long ns;
	unsigned int rounds;
};

/* Another one? It says how many there were when there is none. */
static inline bool stress_goes_on(struct stress *s)
{
	unsigned long long now = now_ns();

	if (!s->begin) {
		s->begin = now;
		s->ns = stress_ns() / (s->sharers ? s->sharers : 1);
	} else {
		s->rounds++;
	}
	if (s->rounds < s->least ||
	    ((!s->most || s->rounds < s->most) && now - s->begin < s->ns))
		return true;
	ksft_print_msg("%u rounds in %llu ms\n", s->rounds,
		       (now - s->begin) / 1000000);

	return false;
}

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
