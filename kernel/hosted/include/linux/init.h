/* SPDX-License-Identifier: GPL-2.0-only */
/* The tests boot, and more than once: with another number of CPUs. */
#ifndef _HOSTED_LINUX_INIT_H
#define _HOSTED_LINUX_INIT_H

#define __init
#define early_initcall(fn)	int (*const hosted_initcall)(void) = fn

extern int (*const hosted_initcall)(void);

#endif /* _HOSTED_LINUX_INIT_H */
