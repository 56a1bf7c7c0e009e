/* SPDX-License-Identifier: GPL-2.0-only */
/* The part of the kernel that swap_batch.h needs, in user space. */
#ifndef _HOSTED_SWAP_ENV_H
#define _HOSTED_SWAP_ENV_H

#include "linux/atomic.h"
#include "linux/bitmap.h"
#include "linux/minmax.h"
#include "linux/types.h"

#define CONFIG_MEMREAP_SWAP_BATCH

#define IS_ENABLED(option)		0
#define DECLARE_STATIC_KEY_TRUE(key)	extern const bool key
#define static_branch_likely(key)	(*(key))

/* One that has no users dies. */
struct mm_struct {
	atomic_t mm_users;
	unsigned long flags;
};

#define MMF_UNSTABLE			22

typedef struct {
	unsigned int type;
	unsigned long offset;
} swp_entry_t;

void free_swap_and_cache_nr(swp_entry_t entry, int nr);

#endif /* _HOSTED_SWAP_ENV_H */
