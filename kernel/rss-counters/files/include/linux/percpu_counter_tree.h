/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _LINUX_PERCPU_COUNTER_TREE_H
#define _LINUX_PERCPU_COUNTER_TREE_H
/*
 * Counters that are updated on many CPUs and know how far off they are. See
 * Documentation/core-api/percpu-counter-tree.rst.
 */
#include <linux/atomic.h>
#include <linux/gfp_types.h>
#include <linux/types.h>

/* A CPU hands on what it counted when it is this much. */
#define PERCPU_COUNTER_TREE_BATCH	32
/* The number of levels with which 2^16 CPUs still have their best shape. */
#define PERCPU_COUNTER_TREE_MAX_LEVELS	12

struct percpu_counter_tree_cells;

/**
 * struct percpu_counter_tree - a counter
 * @root: what has arrived from all CPUs
 * @cells: where CPUs hold back what has not; NULL as long as none does
 * @slack: the most that cells can hold back, up or down
 * @index: which of the counters that share @cells it is
 *
 * All zeroes is a counter of value 0, not yet spread.
 */
struct percpu_counter_tree {
	atomic_long_t root;
	struct percpu_counter_tree_cells *cells;
	atomic_t slack;
	unsigned int index;
};

/**
 * struct percpu_counter_tree_level - nodes between the CPUs and the root
 * @shift: a node is shared by 2^@shift CPUs
 * @batch: it hands on what it holds when it is this much
 * @first: its first node's number
 * @nr: how many nodes there are
 */
struct percpu_counter_tree_level {
	unsigned int shift;
	unsigned int batch;
	unsigned int first;
	unsigned int nr;
};

/**
 * struct percpu_counter_tree_shape - the levels for a number of CPUs
 * @nr_cpus: that number
 * @nr_levels: used of @level, from the CPUs' side
 * @nr_nodes: on all levels
 * @bound: the most that all cells of a counter together can hold back
 * @level: the levels
 */
struct percpu_counter_tree_shape {
	unsigned int nr_cpus;
	unsigned int nr_levels;
	unsigned int nr_nodes;
	unsigned int bound;
	struct percpu_counter_tree_level level[PERCPU_COUNTER_TREE_MAX_LEVELS];
};

void percpu_counter_tree_best_shape(struct percpu_counter_tree_shape *shape,
				    unsigned int nr_cpus);
void percpu_counter_tree_init_many(struct percpu_counter_tree *trees,
				   unsigned int nr);
int percpu_counter_tree_spread_many(struct percpu_counter_tree *trees,
				    unsigned int nr, gfp_t gfp);
int percpu_counter_tree_spread_shape(struct percpu_counter_tree *trees,
				     unsigned int nr,
				     const struct percpu_counter_tree_shape *shape,
				     gfp_t gfp);
void percpu_counter_tree_destroy_many(struct percpu_counter_tree *trees,
				      unsigned int nr);
void percpu_counter_tree_add(struct percpu_counter_tree *tree, long amount);
long percpu_counter_tree_precise_sum(const struct percpu_counter_tree *tree);
size_t percpu_counter_tree_bytes(const struct percpu_counter_tree *tree);

/**
 * percpu_counter_tree_is_spread - do CPUs have cells of their own?
 * @tree: the counter
 */
static inline bool
percpu_counter_tree_is_spread(const struct percpu_counter_tree *tree)
{
	return READ_ONCE(tree->cells);
}

/**
 * percpu_counter_tree_approximate_sum - the value without what cells hold back
 * @tree: the counter
 *
 * Exact as long as the counter is not spread. May be below 0 for a counter
 * that never is.
 */
static inline long
percpu_counter_tree_approximate_sum(const struct percpu_counter_tree *tree)
{
	return atomic_long_read(&tree->root);
}

/**
 * percpu_counter_tree_slack - how far off the approximate sum can be
 * @tree: the counter
 *
 * To be read after the sum it is about, with smp_rmb() in between: what the
 * root lacks is held back by cells that were in the slack before, see
 * announce().
 */
static inline long
percpu_counter_tree_slack(const struct percpu_counter_tree *tree)
{
	return atomic_read(&tree->slack);
}

/**
 * percpu_counter_tree_approximate_range - between what the precise sum is
 * @tree: the counter
 * @lowest: set to the least it can be
 * @highest: set to the most it can be
 *
 * Both are the same if nobody can hold anything back. An update that is under
 * way meanwhile can put the sum outside, by what it adds and what the cells on
 * its way can hold back: until it arrives they may have been filled again.
 */
static inline void
percpu_counter_tree_approximate_range(const struct percpu_counter_tree *tree,
				      long *lowest, long *highest)
{
	long sum = percpu_counter_tree_approximate_sum(tree);
	long slack;

	/* See percpu_counter_tree_slack(). */
	smp_rmb();
	slack = percpu_counter_tree_slack(tree);
	*lowest = sum - slack;
	*highest = sum + slack;
}

#endif /* _LINUX_PERCPU_COUNTER_TREE_H */
