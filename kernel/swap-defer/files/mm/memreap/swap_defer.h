/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_SWAP_DEFER_H
#define _MM_MEMREAP_SWAP_DEFER_H

#include "swap_batch.h"

#ifdef CONFIG_MEMREAP_SWAP_DEFER
bool memreap_swap_defer(const struct swap_run *ours, unsigned int nr,
			struct mm_struct *mm);
#else
static inline bool memreap_swap_defer(const struct swap_run *ours,
				      unsigned int nr, struct mm_struct *mm)
{
	return false;
}
#endif

#endif /* _MM_MEMREAP_SWAP_DEFER_H */
