/* SPDX-License-Identifier: GPL-2.0-only */
/* Helpers for the tests of all topics. */
#ifndef _SELFTESTS_MEMREAP_UTIL_H
#define _SELFTESTS_MEMREAP_UTIL_H

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "../kselftest.h"

#define PAGE		((size_t)sysconf(_SC_PAGESIZE))
#define MIB		(1024 * 1024UL)
#define DEBUGFS		"/sys/kernel/debug"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif

/* Limit in ms for what a busy host needs to emulate a kernel full of checks. */
#define PATIENCE	30000

/* Whether the kernel is of this version or a newer one. */
static inline bool kernel_since(unsigned int major, unsigned int minor)
{
	unsigned int is[2];
	struct utsname name;

	if (uname(&name) ||
	    sscanf(name.release, "%u.%u", &is[0], &is[1]) != 2)
		return false;

	return is[0] > major || (is[0] == major && is[1] >= minor);
}

/*
 * With PREEMPT_RT, a task may be preempted while it has a page table locked. If
 * it is not allowed to run, others wait for it, whoever they are.
 */
#define RT_KEEPS_LOCKS	"with PREEMPT_RT, a task that may not run keeps locks"

static inline bool preempt_rt(void)
{
	struct utsname name;

	return !uname(&name) && strstr(name.version, "PREEMPT_RT");
}

/* Reads a short file as a string; cuts it off where it does not fit. */
static inline bool read_file(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t len = 0;
	ssize_t more;

	if (fd < 0)
		return false;
	/* A seq_file returns at most a page at a time. */
	while ((more = read(fd, text + len, size - 1 - len)) > 0)
		len += more;
	close(fd);
	text[len] = 0;

	return more >= 0;
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

/*
 * Reads a setting: the word in brackets of "none [scan-time]", or else the
 * first line.
 */
static inline bool read_setting(const char *path, char *text, size_t size)
{
	char *from, *end;

	if (!read_file(path, text, size))
		return false;
	from = strchr(text, '[');
	end = from ? strchr(from, ']') : strchr(text, '\n');
	if (end)
		*end = 0;
	if (from)
		memmove(text, from + 1, strlen(from + 1) + 1);

	return true;
}

/* Returns the number after @key, or the first one if that is NULL; or -1. */
static inline long number_after(const char *text, const char *key)
{
	if (key) {
		text = strstr(text, key);
		if (!text)
			return -1;
		text += strlen(key);
	}

	return atol(text);
}

/*
 * The same for a file. For one thread at a time: the buffer is static because
 * reading must not change how much memory the caller has.
 */
static inline long read_number(const char *path, const char *key)
{
	static char text[32768];

	return read_file(path, text, sizeof(text)) ? number_after(text, key) :
						     -1;
}

/* Returns the pages mapped by a process, 0 if it gave up its mm, or -1. */
static inline long mapped_pages(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/statm", pid);

	return read_number(path, NULL);
}

/* Mounts debugfs unless @path, a file in it, exists. */
static inline void mount_debugfs(const char *path)
{
	if (access(path, F_OK))
		mount("debugfs", DEBUGFS, "debugfs", 0, NULL);
}

/* Opens the kernel's log at its end, for kernel_complained(); or -1. */
static inline int kmsg_open(void)
{
	int kmsg = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	if (kmsg >= 0)
		lseek(kmsg, 0, SEEK_END);

	return kmsg;
}

/*
 * Returns whether KCSAN reported a race that the stock kernel has: a page fault
 * finds its VMA without the mmap_lock, whose holder changes the maple tree. It is
 * checked by the VMA's lock and boundaries afterwards. The lab also checks that
 * it was a page fault.
 */
static inline bool known_race(const char *line)
{
	return strstr(line, "BUG: KCSAN: data-race in ") &&
	       (strstr(line, "mas_walk / mas_") ||
		(strstr(line, " / mas_walk\n") &&
		 (strstr(line, " mas_") || strstr(line, " __call_rcu_common"))));
}

/* Returns whether the kernel has complained since @kmsg was opened. */
static inline bool kernel_complained(int kmsg, char *line, size_t size)
{
	static const char * const bad[] = {
		"Bad rss-counter state", "BUG: ", "WARNING: ", "non-zero pgtables",
	};
	ssize_t len;

	/* EPIPE: messages were lost, and there may be more. */
	while ((len = read(kmsg, line, size - 1)) > 0 || errno == EPIPE) {
		if (len < 0)
			continue;
		line[len] = 0;
		for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
			if (strstr(line, bad[i]) && !known_race(line))
				return true;
		}
	}

	return false;
}

/* With the harness only. A complaint shows up in the failure's message. */
#define EXPECT_NO_COMPLAINT(kmsg)					\
do {									\
	char _line[1024];						\
									\
	if (!kernel_complained(kmsg, _line, sizeof(_line)))		\
		_line[0] = 0;						\
	EXPECT_STREQ("", _line);					\
} while (0)

/* xorshift: a reproducible sequence, from a seed other than 0. */
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

/* Every other time, sleeps for less than @max_us. */
static inline void short_wait(unsigned long long *seed, unsigned int max_us)
{
	unsigned int us = rnd(seed) % 2 ? rnd(seed) % max_us : 0;

	if (us)
		usleep(us);
}

/* Waits at most @ms for @condition. Evaluates to whether it holds. */
#define within(ms, condition)						\
({									\
	unsigned long long _end = now_ns() + (ms) * 1000000ULL;		\
	bool _done;							\
									\
	while (!(_done = (condition)) && now_ns() < _end)		\
		usleep(1000);						\
	_done;								\
})

/* Seconds for which a storm or a race runs, and the variable that sets them. */
#define STRESS_SECONDS		15
#define STRESS_VARIABLE		"MEMREAP_STRESS_SECONDS"
/* The tests' time limits leave no room for more. */
#define STRESS_MAX_SECONDS	120

static inline unsigned long long stress_ns(void)
{
	const char *text = getenv(STRESS_VARIABLE);
	unsigned long seconds = STRESS_SECONDS;
	char *end;

	if (text) {
		seconds = strtoul(text, &end, 10);
		if (!isdigit(text[0]) || *end || seconds > STRESS_MAX_SECONDS)
			ksft_exit_fail_msg("%s='%s' is no number from 0 to %d\n",
					   STRESS_VARIABLE, text,
					   STRESS_MAX_SECONDS);
	}

	return seconds * 1000000000ULL;
}

/**
 * struct stress - repeats a storm or a race
 * @min_rounds: rounds without which it proves nothing, whatever they take
 * @max_rounds: rounds after which more prove nothing; 0: no limit
 * @variants: of the test, which share its time; 0: the time is not shared
 * @met: if not NULL, how often it met what the test is about: a test that never
 *	does goes on until it times out
 * @begin: start of the first round, in ns
 * @ns: time for all rounds
 * @rounds: completed so far; 0 in the first one
 */
struct stress {
	unsigned int min_rounds;
	unsigned int max_rounds;
	unsigned int variants;
	const unsigned int *met;
	unsigned long long begin;
	unsigned long long ns;
	unsigned int rounds;
};

/* Returns whether to run another round, and prints how many there were. */
static inline bool stress_continues(struct stress *s)
{
	unsigned long long now = now_ns();

	if (!s->begin) {
		s->begin = now;
		s->ns = stress_ns() / (s->variants ? s->variants : 1);
	} else {
		s->rounds++;
	}
	if (s->rounds < s->min_rounds || (s->met && !*s->met) ||
	    ((!s->max_rounds || s->rounds < s->max_rounds) &&
	     now - s->begin < s->ns))
		return true;
	ksft_print_msg("%u rounds in %llu ms\n", s->rounds,
		       (now - s->begin) / 1000000);

	return false;
}

/* Finds where cgroup2 is mounted. */
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

/* Moves the calling thread to @cpu. */
static inline bool run_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);

	return !sched_setaffinity(0, sizeof(set), &set);
}

/*
 * Has each CPU put the pages in its batches on the LRU lists. MADV_PAGEOUT does
 * so only on the CPU where it runs, and skips pages in batches: those that were
 * touched, or could not be swapped out, before the task changed its CPU. That an
 * offline CPU cannot be entered does not matter: it has none.
 */
static inline bool put_on_lru(void)
{
	void *mem = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			 0);
	cpu_set_t before;
	bool done;

	if (mem == MAP_FAILED)
		return false;
	done = !sched_getaffinity(0, sizeof(before), &before);
	for (int cpu = 0; done && cpu < sysconf(_SC_NPROCESSORS_CONF); cpu++) {
		if (run_on(cpu))
			done = !madvise(mem, PAGE, MADV_PAGEOUT);
	}
	done = done && !sched_setaffinity(0, sizeof(before), &before);
	munmap(mem, PAGE);

	return done;
}

/* A thread that does nothing. */
static inline void *idle_fn(void *arg)
{
	for (;;)
		pause();

	return NULL;
}

static inline void touch(char *mem, size_t pages)
{
	for (size_t i = 0; i < pages; i++)
		__atomic_store_n(&mem[i * PAGE], 1, __ATOMIC_RELAXED);
}

#endif /* _SELFTESTS_MEMREAP_UTIL_H */
