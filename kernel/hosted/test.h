/* SPDX-License-Identifier: GPL-2.0-only */
/* What the programs with real threads have in common. */
#ifndef _HOSTED_TEST_H
#define _HOSTED_TEST_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

/* The whole run, all tests, in seconds; a hang is a failure. */
#define RUN_LIMIT	120

/* xorshift: cheap, seeded, one per thread. */
static inline unsigned int rnd(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state >> 32;
}

static inline void run_threads(unsigned int nr, void *(*fn)(void *),
			       void *args, size_t arg_size)
{
	pthread_t threads[64];

	CHECK(nr <= ARRAY_SIZE(threads));
	for (unsigned int i = 0; i < nr; i++)
		CHECK(!pthread_create(&threads[i], NULL, fn,
				      (char *)args + i * arg_size));
	for (unsigned int i = 0; i < nr; i++)
		CHECK(!pthread_join(threads[i], NULL));
}

/**
 * struct test - what a program of tests runs
 * @name: may be given on the command line
 * @fn: ends the run if it fails
 */
struct test {
	const char *name;
	void (*fn)(void);
};

static inline bool test_wanted(const char *name, int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], name))
			return true;
	}

	return argc < 2;
}

/* The main() of a program of tests. */
static inline int run_tests(const struct test *tests, size_t nr, int argc,
			    char **argv)
{
	unsigned int run = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(RUN_LIMIT);
	for (size_t i = 0; i < nr; i++) {
		struct timespec start, end;

		if (!test_wanted(tests[i].name, argc, argv))
			continue;
		clock_gettime(CLOCK_MONOTONIC, &start);
		tests[i].fn();
		clock_gettime(CLOCK_MONOTONIC, &end);
		printf("ok %s (%ld ms)\n", tests[i].name,
		       (end.tv_sec - start.tv_sec) * 1000 +
		       (end.tv_nsec - start.tv_nsec) / 1000000);
		run++;
	}
	if (!run) {
		fprintf(stderr, "no test has this name\n");
		return 2;
	}

	return 0;
}

#endif /* _HOSTED_TEST_H */
