/* SPDX-License-Identifier: GPL-2.0-only */
/* The topics' code is written for Linux 7.3. What other series lack is here. */
#ifndef _LINUX_MEMREAP_COMPAT_H
#define _LINUX_MEMREAP_COMPAT_H

struct mmu_gather;
struct vm_area_struct;

/* The flags of a folio, as an lvalue. */
#define memreap_folio_flags(folio)	((folio)->flags.f)

/* The first 32 flags of an address space. */
#define memreap_mm_flags(mm)		__mm_flags_get_word(mm)

/* Stock does without as well. */
#define memreap_lru_add_drain()		do { } while (0)

/* In mm/memory.c. */
void zap_range_for_reaping(struct mmu_gather *tlb, struct vm_area_struct *vma,
			   unsigned long start, unsigned long end);

/* What futexes keep of a task. */
#define memreap_futex(task, member)	((task)->futex.member)

/* What the OOM killer compares and prints. */
#define stock_oom_counter(mm, member)	get_mm_counter_sum(mm, member)

#endif /* _LINUX_MEMREAP_COMPAT_H */
