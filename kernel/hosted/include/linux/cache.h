/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _HOSTED_LINUX_CACHE_H
#define _HOSTED_LINUX_CACHE_H

#define L1_CACHE_BYTES		64
#define L1_CACHE_ALIGN(x)	ALIGN(x, L1_CACHE_BYTES)
#define __ro_after_init

#endif /* _HOSTED_LINUX_CACHE_H */
