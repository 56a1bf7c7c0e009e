// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which task has the most points, when most tasks' points are known as a range
 * only and finding out more is dear.
 *
 * A task whose highest is below another's lowest is out at once. The others
 * are kept; once all are known, those still in the running have their points
 * determined. A full list is settled in between and goes on with its winner.
 * So points are determined at most once per task, and for few tasks unless
 * many are about as large as the largest.
 *
 * Of several with the most points the one that was added last wins, as if each
 * had been compared with the best so far by its points.
 */
#include "oom_candidates.h"

/**
 * oom_candidates_init - begin a choice
 * @candidates: among these
 * @points: what a task's points are; LONG_MIN if it is out of the question
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

/* Drops those that others have left behind since they were added. */
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

/* Determines a candidate's points, unless they are known or of no use. */
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

/* Leaves only the winner, with its points; nobody if it is gone. */
static void settle(struct oom_candidates *candidates)
{
	struct oom_candidate winner;
	unsigned int i;

	for (i = 0; i < candidates->nr; i++)
		determine(candidates, &candidates->candidate[i]);

	/* Who has the best has been determined. */
	drop_beaten(candidates);
	if (!candidates->nr)
		return;

	winner = candidates->candidate[--candidates->nr];
	oom_candidates_drop(candidates);
	candidates->candidate[candidates->nr++] = winner;
}

/**
 * oom_candidates_keep - keep a task that can win
 * @candidates: in this choice
 * @task: the task
 * @lowest: it has at least so many points
 * @highest: and at most so many, not less than the best
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
 * If @points is below the best that was seen, then somebody shrank or went
 * away after others had been left behind on its account: the choice is to be
 * made again.
 *
 * Return: the winner and the reference to it, or NULL.
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
