/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What oom_candidates.c needs from the kernel, in user space. The Makefile
 * includes this file first; it shares the guard of the kernel's file of the
 * same name, which is therefore left out.
 */
#ifndef _MM_MEMREAP_OOM_INTERNAL_H
#define _MM_MEMREAP_OOM_INTERNAL_H

#include "hosted.h"
#include "linux/minmax.h"

#include "../check.h"

/* Defined by the tests. */
struct task_struct {
	unsigned int usage;
};

static inline struct task_struct *get_task_struct(struct task_struct *task)
{
	task->usage++;

	return task;
}

static inline void put_task_struct(struct task_struct *task)
{
	CHECK(task->usage);
	task->usage--;
}

#endif /* _MM_MEMREAP_OOM_INTERNAL_H */
