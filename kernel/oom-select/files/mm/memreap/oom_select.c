// SPDX-License-Identifier: GPL-2.0-only
/*
 * The OOM killer's choice, exact at about the cost of an approximate one.
 *
 * RSS counters know a range for their value. With it, two comparisons eliminate
 * most tasks; only the remaining ones are summed up over the CPUs. Their list
 * is in oom_candidates.c. If the winner turns out smaller than the minimum of
 * another task, because that one has exited since, all tasks are scanned once
 * more and compared exactly.
 */
#include <linux/ktime.h>
#include <linux/lockdep.h>
#include <linux/memreap_oom.h>
#include <linux/moduleparam.h>
#include <linux/oom.h>
#include <linux/sched/task.h>

#include "oom_candidates.h"

#define CREATE_TRACE_POINTS
#include <trace/events/memreap_oom.h>

bool memreap_oom_select __read_mostly = true;

#undef MODULE_PARAM_PREFIX
#define MODULE_PARAM_PREFIX "memreap."
module_param_named(oom_select, memreap_oom_select, bool, 0644);
MODULE_PARM_DESC(oom_select,
		 "The OOM killer compares exact sizes (default: Y)");

/* The choice in progress, under oom_lock. */
static struct oom_candidates candidates;
bool memreap_oom_by_range;
static unsigned int rescans;
static u64 began;

static long candidate_points(struct task_struct *task, void *arg)
{
	struct oom_control *oc = arg;

	return oom_badness(task, oc->totalpages);
}

/**
 * memreap_oom_select_begin - before the first scan over the tasks
 * @oc: the OOM killer's control
 */
void memreap_oom_select_begin(struct oom_control *oc)
{
	lockdep_assert_held(&oom_lock);
	oom_candidates_init(&candidates, candidate_points, oc);
	memreap_oom_by_range = READ_ONCE(memreap_oom_select);
	rescans = 0;
	began = ktime_get_ns();
}

/**
 * memreap_oom_add - add an eligible task in a scan by ranges
 * @task: the task
 * @lowest: minimum of its points
 * @highest: maximum of its points
 */
void memreap_oom_add(struct task_struct *task, long lowest, long highest)
{
	oom_candidates_add(&candidates, task, lowest, highest);
}

/**
 * memreap_oom_select_again - after a scan over the tasks
 * @oc: the OOM killer's control; the choice is set unless the scan has done so
 *
 * Return: true if another scan is needed, in which all tasks are compared by
 * their exact points.
 */
bool memreap_oom_select_again(struct oom_control *oc)
{
	bool aborted = oc->chosen == (void *)-1UL;

	if (memreap_oom_by_range && aborted) {
		oom_candidates_drop(&candidates);
	} else if (memreap_oom_by_range) {
		oc->chosen = oom_candidates_choose(&candidates,
						   &oc->chosen_points);
		if (oc->chosen_points < candidates.best) {
			if (oc->chosen)
				put_task_struct(oc->chosen);
			oc->chosen = NULL;
			memreap_oom_by_range = false;
			candidates.nr_precise += candidates.nr_tasks;
			rescans++;
			return true;
		}
	}
	trace_memreap_oom_select(&candidates, rescans, ktime_get_ns() - began,
				 !!oc->memcg, aborted ? NULL : oc->chosen,
				 aborted, oc->chosen_points);

	return false;
}
