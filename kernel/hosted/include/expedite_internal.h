/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What expedite_queue.c needs from the kernel, in user space. The Makefile
 * includes this file first; it shares the guard of the kernel's file of the
 * same name, which is therefore left out.
 */
#ifndef _MM_MEMREAP_EXPEDITE_INTERNAL_H
#define _MM_MEMREAP_EXPEDITE_INTERNAL_H

#include "hosted.h"
#include "linux/list.h"
#include "linux/minmax.h"

#define SZ_64M			0x4000000
#define NSEC_PER_MSEC		1000000L
#define NSEC_PER_SEC		1000000000L

#endif /* _MM_MEMREAP_EXPEDITE_INTERNAL_H */
