/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What swap_queue.c needs from the kernel, in user space. The Makefile includes
 * this file first; it shares the guard of the kernel's file of the same name,
 * which is therefore left out.
 */
#ifndef _MM_MEMREAP_SWAP_QUEUE_INTERNAL_H
#define _MM_MEMREAP_SWAP_QUEUE_INTERNAL_H

#include <string.h>

#include "hosted.h"
#include "linux/atomic.h"
#include "linux/list.h"
#include "linux/minmax.h"

#endif /* _MM_MEMREAP_SWAP_QUEUE_INTERNAL_H */
