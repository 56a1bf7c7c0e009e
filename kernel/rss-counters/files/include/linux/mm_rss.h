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
long mm_rss_total(struct mm_struct *mm);

/**
 * mm_rss_near - count the pages of an address space, without its CPUs' cells
 * @mm: the address space
 * @slack: set to the most by which the result can be off
 *
 * Takes the same time however many CPUs it has been used on.
 *
 * Return: a value as by mm_rss_total(), exact unless the address space has
 * threads.
 */
static inline long mm_rss_near(struct mm_struct *mm, long *slack)
{
	long pages = 0;

	/* Loops that are short enough to be unrolled. */
	for (int i = 0; i < NR_MM_COUNTERS; i++)
		pages += READ_ONCE(mm->rss_own[i]);
	for (int i = 0; i < NR_MM_COUNTERS; i++)
		pages += counter_tree_approximate_sum(&mm->rss_stat[i]);
	/* See counter_tree_slack(). */
	smp_rmb();
	*slack = counter_tree_is_spread(mm->rss_stat) ?
		 counter_tree_slack(mm->rss_stat) : 0;

	return pages;
}

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
