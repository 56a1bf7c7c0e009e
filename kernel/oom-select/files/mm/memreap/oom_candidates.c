// SPDX-License-Identifier: GPL-2.0-only
/*
 * Find the task with the most points, when the points of most tasks are known
 * only as a range and the exact value is expensive.
 *
 * A task whose highest is below another's lowest is eliminated at once. The
 * others are kept; once all tasks have been added, the points of the remaining
 * ones are determined. A full list is reduced to its winner first. So points
 * are determined at most once per task, and for few tasks unless many are about
 * as large as the largest.
 *
 * Of several with the most points the one that was added last wins, as if each
 * had been compared with the best so far.
 */
#include "oom_candidates.h"

/**
 * oom_candidates_init - begin a choice
 * @candidates: the choice
 * @points: returns a task's points; LONG_MIN if it is not eligible
 * @arg: passed to @points
 */
void oom_candidates_init(struct oom_candidates *candidates,
			 long (*points)(struct task_struct *task, void *arg),
			 void *arg)
{
	candidates->points = points;
	candidates->arg = arg;
	candidates->best = LONG_MIN;
	candidates->nr_tasks = 0;
	candidates->nr_ranged = 0;
	candidates->nr_precise = 0;
	candidates->nr = 0;
}

/**
 * oom_candidates_drop - end a choice without a winner
 * @candidates: the choice
 */
void oom_candidates_drop(struct oom_candidates *candidates)
{
	while (candidates->nr)
		put_task_struct(candidates->candidate[--candidates->nr].task);
}

/* Drops candidates that others have eliminated since they were added. */
static void drop_beaten(struct oom_candidates *candidates)
{
	unsigned int i, kept = 0;

	for (i = 0; i < candidates->nr; i++) {
		struct oom_candidate *candidate = &candidates->candidate[i];

		if (candidate->highest < candidates->best)
			put_task_struct(candidate->task);
		else
			candidates->candidate[kept++] = *candidate;
	}
	candidates->nr = kept;
}

/* Determines a candidate's points, unless they are known or irrelevant. */
static void determine(struct oom_candidates *candidates,
		      struct oom_candidate *candidate)
{
	long points = candidate->highest;

	if (points < candidates->best)
		return;
	if (candidate->lowest != points) {
		points = candidates->points(candidate->task, candidates->arg);
		candidates->nr_precise++;
	}
	candidate->lowest = points;
	candidate->highest = points;
	candidates->best = max(candidates->best, points);
}

/* Keeps only the winner, with its points; none if it is gone. */
static void settle(struct oom_candidates *candidates)
{
	struct oom_candidate winner;
	unsigned int i;

	for (i = 0; i < candidates->nr; i++)
		determine(candidates, &candidates->candidate[i]);

	/* The points of the best one have been determined. */
	drop_beaten(candidates);
	if (!candidates->nr)
		return;

	winner = candidates->candidate[--candidates->nr];
	oom_candidates_drop(candidates);
	candidates->candidate[candidates->nr++] = winner;
}

/**
 * oom_candidates_keep - keep a task that can win
 * @candidates: the choice
 * @task: the task
 * @lowest: minimum of its points
 * @highest: maximum of its points, not less than the best
 *
 * For oom_candidates_add().
 */
void oom_candidates_keep(struct oom_candidates *candidates,
			 struct task_struct *task, long lowest, long highest)
{
	candidates->best = max(candidates->best, lowest);
	if (candidates->nr == ARRAY_SIZE(candidates->candidate))
		drop_beaten(candidates);
	if (candidates->nr == ARRAY_SIZE(candidates->candidate))
		settle(candidates);
	get_task_struct(task);
	candidates->candidate[candidates->nr++] = (struct oom_candidate){
		.task = task,
		.lowest = lowest,
		.highest = highest,
	};
}

/**
 * oom_candidates_choose - end a choice
 * @candidates: the choice
 * @points: set to the winner's points; LONG_MIN if there is none
 *
 * If @points is below the best that was seen, a task shrank or exited after it
 * had eliminated others: the choice has to be repeated.
 *
 * Return: the winner, with a reference, or NULL.
 */
struct task_struct *oom_candidates_choose(struct oom_candidates *candidates,
					  long *points)
{
	*points = LONG_MIN;
	settle(candidates);
	if (!candidates->nr)
		return NULL;

	candidates->nr = 0;
	*points = candidates->candidate->highest;

	return candidates->candidate->task;
}
