// SPDX-License-Identifier: GPL-2.0-only
/*
 * The OOM killer's choice, exact at about the cost of an approximate one.
 *
 * The points of the best task so far are always exact. RSS counters know the
 * most that they can be; a task that would have fewer points even then cannot
 * win, and only the others are summed up over the CPUs.
 */
#include <linux/lockdep.h>
#include <linux/memreap_oom.h>
#include <linux/mm_rss.h>
#include <linux/moduleparam.h>
#include <linux/nmi.h>
#include <linux/oom.h>

#define CREATE_TRACE_POINTS
#include <trace/events/memreap_oom.h>

bool memreap_oom_select __read_mostly = true;

#undef MODULE_PARAM_PREFIX
#define MODULE_PARAM_PREFIX "memreap."
module_param_named(oom_select, memreap_oom_select, bool, 0644);
MODULE_PARM_DESC(oom_select,
		 "The OOM killer compares exact sizes (default: Y)");

/**
 * memreap_oom_pages - count the pages of a task, in RAM and swap
 * @mm: its address space
 * @points: that it gets for other things
 * @oc: the choice in progress; or NULL
 *
 * Return: their exact number, or, if that cannot be enough to be chosen, one
 * that is not enough either.
 */
long memreap_oom_pages(struct mm_struct *mm, long points,
		       struct oom_control *oc)
{
	long near, slack;

	if (unlikely(!READ_ONCE(memreap_oom_select)))
		return stock_oom_pages(mm);
	near = mm_rss_near(mm, &slack);
	if (oc) {
		lockdep_assert_held(&oom_lock);
		/* Avoid potential softlockup warning */
		if (!(++oc->nr_compared & 1023))
			touch_softlockup_watchdog();
		if (points + near + slack < oc->chosen_points)
			return near;
		oc->nr_summed += !!slack;
	}

	return slack ? mm_rss_total(mm) : near;
}

/**
 * memreap_oom_chosen - report a choice
 * @oc: the OOM killer's control
 * @began: when the choice did
 */
void memreap_oom_chosen(const struct oom_control *oc, ktime_t began)
{
	trace_memreap_oom_select(oc, ktime_to_ns(ktime_sub(ktime_get(), began)));
}
