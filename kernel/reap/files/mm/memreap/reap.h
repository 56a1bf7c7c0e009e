/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_REAP_H
#define _MM_MEMREAP_REAP_H

#include <linux/bits.h>
#include <linux/build_bug.h>
#include <linux/jump_label.h>
#include <linux/memreap_compat.h>
#include <linux/mm_types.h>
#include <linux/sched.h>
#include <linux/sched/coredump.h>
#include <linux/sizes.h>
#include <linux/types.h>

#include <asm/tlb.h>

/*
 * In mm->flags, between those of core dumps and the others: a task waits for
 * the memory of this process, which has been killed. Not inherited.
 */
#define MMF_MEMREAP_HURRY	15
static_assert((MMF_DUMP_FILTER_MASK >> MMF_MEMREAP_HURRY) == 0);
static_assert((MMF_INIT_LEGACY_MASK & BIT(MMF_MEMREAP_HURRY)) == 0);

/**
 * struct reap_pace - how a high-priority reaper shares its CPU
 * @percent: its share if other tasks want the CPU, 1 to 100
 * @since: start of its time slice, ktime in ns
 */
struct reap_pace {
	unsigned int percent;
	u64 since;
};

#ifdef CONFIG_MEMREAP_REAP

DECLARE_STATIC_KEY_TRUE(memreap_reap_key);

/* The boot parameter memreap.reap=0 selects the stock code. */
static inline bool memreap_reap_enabled(void)
{
	return static_branch_likely(&memreap_reap_key);
}

/*
 * Should exit free unmapped pages without delay, because a task waits for them?
 * A process that is preempted, or waits for a lock, would keep up to 38 MiB.
 * The cost is a TLB flush for each 2 MiB.
 */
static inline bool memreap_reap_hurry(const struct mm_struct *mm)
{
	return memreap_reap_enabled() &&
	       memreap_mm_flags(mm) & (BIT(MMF_UNSTABLE) |
				       BIT(MMF_MEMREAP_HURRY));
}

/*
 * In exit_mmap(), between two page tables: frees what was gathered if that is
 * much, huge pages included, or before the CPU is given up without PREEMPT.
 */
static inline void memreap_reap_exit_flush(struct mmu_gather *tlb)
{
	if (tlb->fullmm &&
	    (need_resched() ||
	     tlb->gathered - tlb->freed >= SZ_2M / PAGE_SIZE) &&
	    memreap_reap_hurry(tlb->mm))
		tlb_flush_mmu(tlb);
}

bool memreap_reap_mm(struct mm_struct *mm, bool may_sleep, bool *locked,
		     unsigned long *pages, struct reap_pace *pace);
unsigned int memreap_reap_pause(struct reap_pace *pace);

#else

static inline bool memreap_reap_enabled(void)
{
	return false;
}

static inline bool memreap_reap_hurry(const struct mm_struct *mm)
{
	return false;
}

static inline void memreap_reap_exit_flush(struct mmu_gather *tlb)
{
}

static inline bool memreap_reap_mm(struct mm_struct *mm, bool may_sleep,
				   bool *locked, unsigned long *pages,
				   struct reap_pace *pace)
{
	return false;
}

#endif /* CONFIG_MEMREAP_REAP */

#endif /* _MM_MEMREAP_REAP_H */
