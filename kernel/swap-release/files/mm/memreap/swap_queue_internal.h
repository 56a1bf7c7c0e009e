/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What swap_queue.c needs from the kernel. kernel/hosted has a file of the
 * same name that provides it in user space, for the sanitizers.
 */
#ifndef _MM_MEMREAP_SWAP_QUEUE_INTERNAL_H
#define _MM_MEMREAP_SWAP_QUEUE_INTERNAL_H

#include <linux/compiler.h>
#include <linux/limits.h>
#include <linux/list.h>
#include <linux/minmax.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/types.h>

#endif /* _MM_MEMREAP_SWAP_QUEUE_INTERNAL_H */
