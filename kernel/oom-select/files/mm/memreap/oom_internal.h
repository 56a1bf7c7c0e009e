/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What oom_candidates.c needs from the kernel. kernel/hosted has a file of the
 * same name that provides it in user space, for the sanitizers.
 */
#ifndef _MM_MEMREAP_OOM_INTERNAL_H
#define _MM_MEMREAP_OOM_INTERNAL_H

#include <linux/array_size.h>
#include <linux/limits.h>
#include <linux/minmax.h>
#include <linux/sched/task.h>
#include <linux/types.h>

#endif /* _MM_MEMREAP_OOM_INTERNAL_H */
