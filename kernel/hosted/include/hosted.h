/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What several files under test need from the kernel, in user space; what the
 * kernel has in a header of its own is in linux/.
 *
 * Atomics are the compiler's, with the ordering that the kernel documents: the
 * thread sanitizer supports them, and reports accesses that only a kernel
 * barrier orders as races.
 */
#ifndef _HOSTED_H
#define _HOSTED_H

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "linux/types.h"

#define PAGE_SIZE		4096UL
#define ARRAY_SIZE(array)	(sizeof(array) / sizeof((array)[0]))
#define ALIGN(x, a)		(((x) + (a) - 1) & ~((__typeof__(x))(a) - 1))
#define ALIGN_DOWN(x, a)	((x) & ~((__typeof__(x))(a) - 1))
#define PTR_ALIGN(p, a)		((__typeof__(p))ALIGN((unsigned long)(p), a))

#define static_assert(cond)	_Static_assert(cond, #cond)
#define likely(x)		__builtin_expect(!!(x), 1)
#define unlikely(x)		__builtin_expect(!!(x), 0)
#define noinline		__attribute__((noinline))

/**
 * hosted_others - simulates concurrent CPUs and interrupts
 *
 * Called before each access to shared memory. Tests may provide it to do
 * something else first: another CPU, an interrupt.
 */
void __attribute__((weak)) hosted_others(void);

static inline void others_may_run(void)
{
	if (hosted_others)
		hosted_others();
}

#endif /* _HOSTED_H */
