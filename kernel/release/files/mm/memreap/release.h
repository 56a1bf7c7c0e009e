/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_RELEASE_H
#define _MM_MEMREAP_RELEASE_H

#include <linux/jump_label.h>
#include <linux/memreap_compat.h>
#include <linux/sched/coredump.h>
#include <linux/sched/signal.h>
#include <linux/types.h>

#include <asm/tlb.h>

struct encoded_page;
struct zone;

#ifdef CONFIG_MEMREAP_RELEASE

DECLARE_STATIC_KEY_TRUE(memreap_release_key);

/* The boot parameter memreap.release=0 selects the stock code. */
static inline bool memreap_release_enabled(void)
{
	return static_branch_likely(&memreap_release_key);
}

void memreap_release_pages(struct encoded_page **pages, int nr, bool killed);

/*
 * Is this the memory of a process that was killed, or is being reaped? If
 * another task is the last one to drop the mm, it counts as not killed.
 *
 * While a signal is being sent, the flag may be set before the code: then the
 * pages that are freed just now take the other way, which is right, too.
 */
static inline bool memreap_release_killed(const struct mmu_gather *tlb)
{
	const struct signal_struct *signal = current->signal;

	return mm_flags_test(MMF_UNSTABLE, tlb->mm) ||
	       (tlb->fullmm &&
		READ_ONCE(signal->flags) & SIGNAL_GROUP_EXIT &&
		READ_ONCE(signal->group_exit_code) & 0x7f);
}

/* In mm/memcontrol.c and mm/page_alloc.c. */
void mem_cgroup_uncharge_pages(unsigned long owner, unsigned int nr_folios,
			       unsigned int nr_pages, int nid);
void free_prepared_block(struct zone *zone, unsigned long pfn,
			 unsigned int order);

#else

static inline bool memreap_release_enabled(void)
{
	return false;
}

static inline void memreap_release_pages(struct encoded_page **pages, int nr,
					 bool killed)
{
}

static inline bool memreap_release_killed(const struct mmu_gather *tlb)
{
	return false;
}

#endif /* CONFIG_MEMREAP_RELEASE */

#endif /* _MM_MEMREAP_RELEASE_H */
