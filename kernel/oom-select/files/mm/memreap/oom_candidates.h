/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Find the task with the most points, when the points of most tasks are known
 * only as a range and the exact value is expensive.
 */
#ifndef _MM_MEMREAP_OOM_CANDIDATES_H
#define _MM_MEMREAP_OOM_CANDIDATES_H

#include "oom_internal.h"

/* Enough unless many tasks are of about the same size. */
#define OOM_CANDIDATES	64

/**
 * struct oom_candidate - a task that can still win
 * @task: a reference to it
 * @lowest: minimum of its points
 * @highest: maximum of its points
 */
struct oom_candidate {
	struct task_struct *task;
	long lowest;
	long highest;
};

/**
 * struct oom_candidates - the tasks that can still win
 * @points: returns a task's points; LONG_MIN if it is not eligible
 * @arg: passed to @points
 * @best: points that some task has at least; with less, a task cannot win
 * @nr_tasks: added so far
 * @nr_ranged: of these, those with a range of more than one value
 * @nr_precise: calls of @points
 * @nr: in @candidate
 * @candidate: in the order in which they were added
 */
struct oom_candidates {
	long (*points)(struct task_struct *task, void *arg);
	void *arg;
	long best;
	unsigned int nr_tasks;
	unsigned int nr_ranged;
	unsigned int nr_precise;
	unsigned int nr;
	struct oom_candidate candidate[OOM_CANDIDATES];
};

void oom_candidates_init(struct oom_candidates *candidates,
			 long (*points)(struct task_struct *task, void *arg),
			 void *arg);
void oom_candidates_keep(struct oom_candidates *candidates,
			 struct task_struct *task, long lowest, long highest);
struct task_struct *oom_candidates_choose(struct oom_candidates *candidates,
					  long *points);
void oom_candidates_drop(struct oom_candidates *candidates);

/**
 * oom_candidates_add - add a task to a choice
 * @candidates: the choice
 * @task: the task, to which a reference is kept as long as it can win
 * @lowest: minimum of its points, more than LONG_MIN
 * @highest: maximum of its points
 *
 * Context: where points() may be called.
 */
static inline void oom_candidates_add(struct oom_candidates *candidates,
				      struct task_struct *task, long lowest,
				      long highest)
{
	candidates->nr_tasks++;
	candidates->nr_ranged += lowest != highest;
	/* Most tasks cannot win. */
	if (highest >= candidates->best)
		oom_candidates_keep(candidates, task, lowest, highest);
}

#endif /* _MM_MEMREAP_OOM_CANDIDATES_H */
