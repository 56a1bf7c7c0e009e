/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _LINUX_MM_RSS_H
#define _LINUX_MM_RSS_H
/*
 * Set-up and teardown of an address space's RSS counters. <linux/mm.h> has the
 * functions that read them and add to them.
 */
#include <linux/mm_types.h>
#include <linux/percpu_counter.h>

#ifdef CONFIG_MEMREAP_RSS_COUNTERS

int mm_rss_init(struct mm_struct *mm);
void mm_rss_destroy(struct mm_struct *mm);
void mm_rss_share(struct mm_struct *mm);
void mm_rss_spread(struct mm_struct *mm);

#else

static inline int mm_rss_init(struct mm_struct *mm)
{
	return percpu_counter_init_many(mm->rss_stat, 0, GFP_KERNEL_ACCOUNT,
					NR_MM_COUNTERS);
}

static inline void mm_rss_destroy(struct mm_struct *mm)
{
	percpu_counter_destroy_many(mm->rss_stat, NR_MM_COUNTERS);
}

static inline void mm_rss_share(struct mm_struct *mm)
{
}

static inline void mm_rss_spread(struct mm_struct *mm)
{
}

#endif /* CONFIG_MEMREAP_RSS_COUNTERS */

#endif /* _LINUX_MM_RSS_H */
