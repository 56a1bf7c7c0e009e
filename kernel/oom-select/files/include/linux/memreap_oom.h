/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _LINUX_MEMREAP_OOM_H
#define _LINUX_MEMREAP_OOM_H
/*
 * For the OOM killer: find the same victim as an exact comparison, without
 * summing up the counters of all tasks.
 */
#include <linux/ktime.h>
#include <linux/memreap_compat.h>
#include <linux/mm.h>

struct oom_control;

static inline long stock_oom_pages(struct mm_struct *mm)
{
	return stock_oom_counter(mm, MM_FILEPAGES) +
	       stock_oom_counter(mm, MM_ANONPAGES) +
	       stock_oom_counter(mm, MM_SHMEMPAGES) +
	       stock_oom_counter(mm, MM_SWAPENTS);
}

#ifdef CONFIG_MEMREAP_OOM_SELECT

extern bool memreap_oom_select;

long memreap_oom_pages(struct mm_struct *mm, long points,
		       struct oom_control *oc);
void memreap_oom_chosen(const struct oom_control *oc, ktime_t began);

/* The values that are shown are those that the selection is based on. */
static inline unsigned long oom_mm_counter(struct mm_struct *mm, int member)
{
	return READ_ONCE(memreap_oom_select) ? get_mm_counter_sum(mm, member) :
					       stock_oom_counter(mm, member);
}

/* For the event mark_victim. */
static inline unsigned long oom_marked_counter(struct mm_struct *mm, int member)
{
	return oom_mm_counter(mm, member);
}

static inline void oom_mm_counters(struct mm_struct *mm, long *pages)
{
	if (READ_ONCE(memreap_oom_select)) {
		get_mm_counter_sums(mm, pages);
	} else {
		for (int i = 0; i < NR_MM_COUNTERS; i++)
			pages[i] = stock_oom_counter(mm, i);
	}
}

#else

static inline long memreap_oom_pages(struct mm_struct *mm, long points,
				     struct oom_control *oc)
{
	return stock_oom_pages(mm);
}

static inline void memreap_oom_chosen(const struct oom_control *oc,
				      ktime_t began)
{
}

static inline unsigned long oom_mm_counter(struct mm_struct *mm, int member)
{
	return stock_oom_counter(mm, member);
}

static inline unsigned long oom_marked_counter(struct mm_struct *mm, int member)
{
	return get_mm_counter(mm, member);
}

static inline void oom_mm_counters(struct mm_struct *mm, long *pages)
{
	for (int i = 0; i < NR_MM_COUNTERS; i++)
		pages[i] = stock_oom_counter(mm, i);
}

#endif /* CONFIG_MEMREAP_OOM_SELECT */

#endif /* _LINUX_MEMREAP_OOM_H */
