/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What expedite_queue.c needs from the kernel. kernel/hosted has a file of the
 * same name that provides it in user space, for the sanitizers.
 */
#ifndef _MM_MEMREAP_EXPEDITE_INTERNAL_H
#define _MM_MEMREAP_EXPEDITE_INTERNAL_H

#include <linux/list.h>
#include <linux/minmax.h>
#include <linux/pgtable.h>
#include <linux/sizes.h>
#include <linux/spinlock.h>
#include <linux/time64.h>
#include <linux/types.h>

#endif /* _MM_MEMREAP_EXPEDITE_INTERNAL_H */
