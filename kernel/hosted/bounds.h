/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * For counter_tree.c: the most that its counters can be off, against
 * those that Linux 6.12 counts RSS with.
 */
#ifndef _HOSTED_BOUNDS_H
#define _HOSTED_BOUNDS_H

#include "counters.h"

/* The batch of a flat counter. */
static inline long flat_batch(unsigned int nr_cpus)
{
	return nr_cpus > 16 ? 2L * nr_cpus : 32;
}

static inline long flat_bound(unsigned int nr_cpus)
{
	return nr_cpus * (flat_batch(nr_cpus) - 1);
}

/* At most so much of a flat counter's bound, from where it matters. */
#define MUCH_BETTER_CPUS	256
#define MUCH_BETTER		5

/*
 * The one number of CPUs for which the root is written to more often than a
 * flat counter's shared count: 17 batches of 32 where that has 34.
 */
#define FASTER_CPUS		17

/**
 * bound_error - check a shape
 * @shape: counter_tree_init_shape() of @nr_cpus
 * @nr_cpus: that number
 *
 * Return: NULL if it is as promised.
 */
static inline const char *
bound_error(const struct counter_tree_shape *shape, unsigned int nr_cpus)
{
	long bound = nr_cpus * (LEAF_BATCH - 1);
	long batch = LEAF_BATCH;

	for (unsigned int i = 0; i <= shape->nr_levels; i++) {
		const struct counter_tree_level *level = &shape->level[i];
		bool root = i == shape->nr_levels;
		long below = root ? nr_cpus : 1L << level->shift;

		/* So many write to a line, each after that many of its own. */
		if (batch < 2 * below && nr_cpus != FASTER_CPUS)
			return "a line is written to more often than a flat counter's";
		if (root)
			break;
		batch = level->batch;
		bound += ((nr_cpus + below - 1) / below) * (batch - 1);
	}
	if (shape->nr_cpus != nr_cpus || shape->bound != bound)
		return "the bound is not what the cells can hold back";
	if (bound > flat_bound(nr_cpus))
		return "the bound is above a flat counter's";
	if (nr_cpus == MUCH_BETTER_CPUS &&
	    MUCH_BETTER * bound > flat_bound(nr_cpus))
		return "the bound is above 1/5 of a flat counter's";

	return NULL;
}

/**
 * check_bounds - check the shapes for all numbers of CPUs
 *
 * Return: whether all are as promised. Says which is not, and why.
 */
static inline bool check_bounds(void)
{
	for (unsigned int nr = 1; nr <= NR_CPUS; nr++) {
		struct counter_tree_shape shape;
		const char *error;

		counter_tree_init_shape(&shape, nr);
		error = bound_error(&shape, nr);
		if (error) {
			fprintf(stderr, "%u CPUs: %s (%u pages, flat %ld, %u levels)\n",
				nr, error, shape.bound, flat_bound(nr),
				shape.nr_levels);
			return false;
		}
	}

	return true;
}

#endif /* _HOSTED_BOUNDS_H */
