/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What reap_session.c needs from the kernel. kernel/hosted has a file of the
 * same name that provides it in user space, for the sanitizers.
 */
#ifndef _MM_MEMREAP_REAP_INTERNAL_H
#define _MM_MEMREAP_REAP_INTERNAL_H

#include <linux/align.h>
#include <linux/atomic.h>
#include <linux/compiler.h>
#include <linux/pgtable.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>

#endif /* _MM_MEMREAP_REAP_INTERNAL_H */
