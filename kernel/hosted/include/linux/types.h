/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _HOSTED_LINUX_TYPES_H
#define _HOSTED_LINUX_TYPES_H

#include <stdbool.h>
#include <stddef.h>

typedef unsigned char u8;
typedef unsigned int gfp_t;

typedef struct { int counter; } atomic_t;
typedef struct { long counter; } atomic_long_t;

#define U8_MAX			((u8)~0)

#endif /* _HOSTED_LINUX_TYPES_H */
