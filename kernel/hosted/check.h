/* SPDX-License-Identifier: GPL-2.0-only */
/* How tests and fuzzers fail. */
#ifndef _HOSTED_CHECK_H
#define _HOSTED_CHECK_H

#include <stdio.h>
#include <stdlib.h>

/* Called before a run ends because of a failed check; a program may provide it. */
void __attribute__((weak)) check_failed(void);

/* Prints what is wrong and where, and aborts: the state is undefined. */
#define CHECK(cond)							\
do {									\
	if (!(cond)) {							\
		fprintf(stderr, "%s:%d: %s: CHECK(%s) failed\n",	\
			__FILE__, __LINE__, __func__, #cond);		\
		if (check_failed)					\
			check_failed();					\
		abort();						\
	}								\
} while (0)

#endif /* _HOSTED_CHECK_H */
