/* SPDX-License-Identifier: GPL-2.0-only */
/* The topics' code is written for Linux 7.3. What 6.12 lacks is here. */
#ifndef _LINUX_MEMREAP_COMPAT_H
#define _LINUX_MEMREAP_COMPAT_H

#include <linux/bitops.h>

/* The flags of a folio, as an lvalue. */
#define memreap_folio_flags(folio)	((folio)->flags)

#define MMF_INIT_LEGACY_MASK		MMF_INIT_MASK

#define memreap_mm_flags(mm)		READ_ONCE((mm)->flags)
#define mm_flags_test(flag, mm)		test_bit(flag, &(mm)->flags)
#define mm_flags_set(flag, mm)		set_bit(flag, &(mm)->flags)
#define mm_flags_clear(flag, mm)	clear_bit(flag, &(mm)->flags)

#define lruvec_unlock_irqrestore(lruvec, flags) \
	unlock_page_lruvec_irqrestore(lruvec, flags)

/* The folios to be freed may have references of the lists that are not full. */
#define memreap_lru_add_drain()		lru_add_drain()

/* In mm/internal.h. */
#define zap_range_for_reaping(tlb, vma, start, end) \
	unmap_page_range(tlb, vma, start, end, NULL)

/* What futexes keep of a task. */
#define memreap_futex(task, member)	((task)->MEMREAP_FUTEX_##member)
#define MEMREAP_FUTEX_robust_list	robust_list
#define MEMREAP_FUTEX_compat_robust_list compat_robust_list
#define MEMREAP_FUTEX_state		futex_state

/* What the OOM killer compares and prints. */
#define stock_oom_counter(mm, member)	get_mm_counter(mm, member)

#endif /* _LINUX_MEMREAP_COMPAT_H */
