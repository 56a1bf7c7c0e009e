/* SPDX-License-Identifier: GPL-2.0-only */
/* How tests and fuzzers fail. */
#ifndef _HOSTED_CHECK_H
#define _HOSTED_CHECK_H

#include <stdio.h>
#include <stdlib.h>

/* Says what is wrong and where, and ends the run: the state is of no use. */
#define CHECK(cond)							\
do {									\
	if (!(cond)) {							\
		fprintf(stderr, "%s:%d: %s: CHECK(%s) failed\n",	\
			__FILE__, __LINE__, __func__, #cond);		\
		abort();						\
	}								\
} while (0)

#endif /* _HOSTED_CHECK_H */
