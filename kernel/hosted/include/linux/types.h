/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _HOSTED_LINUX_TYPES_H
#define _HOSTED_LINUX_TYPES_H

#include <stdbool.h>
#include <stddef.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned int gfp_t;

typedef struct { int counter; } atomic_t;
typedef struct { long counter; } atomic_long_t;

/* The kernel has them in limits.h, which here is the C library's. */
#define U8_MAX			((u8)~0)
#define U16_MAX			((u16)~0)
#define U64_MAX			((u64)~0)

#endif /* _HOSTED_LINUX_TYPES_H */
