/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which task has the most points, when most tasks' points are known as a range
 * only and finding out more is dear.
 */
#ifndef _MM_MEMREAP_OOM_CANDIDATES_H
#define _MM_MEMREAP_OOM_CANDIDATES_H

#include "oom_internal.h"

/* More than can win at a time, unless many tasks are of the same size. */
#define OOM_CANDIDATES	64

/**
 * struct oom_candidate - a task that can still win
 * @task: a reference to it
 * @lowest: it has at least so many points
 * @highest: and at most so many
 */
struct oom_candidate {
	struct task_struct *task;
	long lowest;
	long highest;
};

/**
 * struct oom_candidates - the tasks that can still win
 * @points: what a task's points are; LONG_MIN if it is out of the question
 * @arg: passed to @points
 * @best: some task had at least so many: who has less cannot win
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
 * oom_candidates_add - let a task take part
 * @candidates: in this choice
 * @task: the task, of which a reference is kept as long as it can win
 * @lowest: it has at least so many points, more than LONG_MIN
 * @highest: and at most so many
 *
 * Context: where the points may be determined.
 */
static inline void oom_candidates_add(struct oom_candidates *candidates,
				      struct task_struct *task, long lowest,
				      long highest)
{
	candidates->nr_tasks++;
	candidates->nr_ranged += lowest != highest;
	/* Most cannot. */
	if (highest >= candidates->best)
		oom_candidates_keep(candidates, task, lowest, highest);
}

#endif /* _MM_MEMREAP_OOM_CANDIDATES_H */
