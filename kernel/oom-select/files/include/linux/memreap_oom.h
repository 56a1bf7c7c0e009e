/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _LINUX_MEMREAP_OOM_H
#define _LINUX_MEMREAP_OOM_H
/*
 * For the OOM killer: find the same victim as an exact comparison, without
 * comparing all tasks exactly.
 */
#include <linux/mm.h>

struct oom_control;

#ifdef CONFIG_MEMREAP_OOM_SELECT

extern bool memreap_oom_select;
extern bool memreap_oom_by_range;

void memreap_oom_select_begin(struct oom_control *oc);
void memreap_oom_add(struct task_struct *task, long lowest, long highest);
bool memreap_oom_select_again(struct oom_control *oc);

/* The values that are shown are those that the selection is based on. */
static inline unsigned long oom_mm_counter(struct mm_struct *mm, int member)
{
	return READ_ONCE(memreap_oom_select) ? get_mm_counter_sum(mm, member) :
					       get_mm_counter(mm, member);
}

/* Returns whether the scan in progress compares ranges. */
static inline bool memreap_oom_ranged(void)
{
	return memreap_oom_by_range;
}

static inline void oom_mm_range(struct mm_struct *mm, long *lowest,
				long *highest)
{
	get_mm_pages_range(mm, lowest, highest);
}

#else

static inline unsigned long oom_mm_counter(struct mm_struct *mm, int member)
{
	return get_mm_counter(mm, member);
}

static inline void oom_mm_range(struct mm_struct *mm, long *lowest,
				long *highest)
{
}

static inline void memreap_oom_select_begin(struct oom_control *oc)
{
}

static inline void memreap_oom_add(struct task_struct *task, long lowest,
				   long highest)
{
}

static inline bool memreap_oom_ranged(void)
{
	return false;
}

static inline bool memreap_oom_select_again(struct oom_control *oc)
{
	return false;
}

#endif /* CONFIG_MEMREAP_OOM_SELECT */

static inline unsigned long oom_mm_rss(struct mm_struct *mm)
{
	return oom_mm_counter(mm, MM_FILEPAGES) +
	       oom_mm_counter(mm, MM_ANONPAGES) +
	       oom_mm_counter(mm, MM_SHMEMPAGES);
}

#endif /* _LINUX_MEMREAP_OOM_H */
