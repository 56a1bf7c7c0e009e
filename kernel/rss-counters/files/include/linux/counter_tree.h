/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _LINUX_COUNTER_TREE_H
#define _LINUX_COUNTER_TREE_H
/*
 * Counters that are updated on many CPUs and know their maximum error. See
 * Documentation/core-api/counter-tree.rst.
 */
#include <linux/atomic.h>
#include <linux/gfp_types.h>
#include <linux/types.h>

/* The amount at which a CPU moves what it counted to its parent. */
#define COUNTER_TREE_BATCH	32
/* Counters that share cells: the bytes of a CPU's word. */
#define COUNTER_TREE_MAX_COUNTERS	4
/* Levels for 2^16 CPUs. */
#define COUNTER_TREE_MAX_LEVELS	6

struct counter_tree_cells;

/**
 * struct counter_tree - a counter
 * @root: the shared count
 * @leaf: a byte for each CPU, which holds back what is not in @root; NULL unless
 *	the counter is spread
 * @cells: these and all others that hold something back
 *
 * All zeroes is a counter of value 0, not yet spread.
 */
struct counter_tree {
	atomic_long_t root;
	u8 __percpu *leaf;
	struct counter_tree_cells *cells;
};

/**
 * struct counter_tree_level - nodes between the CPUs and the root
 * @shift: a node is shared by 2^@shift CPUs
 * @batch: amount at which a node moves what it holds to its parent
 * @first: index of its first node
 * @nr: number of nodes
 */
struct counter_tree_level {
	unsigned int shift;
	unsigned int batch;
	unsigned int first;
	unsigned int nr;
};

/**
 * struct counter_tree_shape - the levels for a number of CPUs
 * @nr_cpus: that number
 * @nr_levels: entries used in @level
 * @nr_nodes: on all levels
 * @bound: the maximum that all cells of a counter can hold back, for tests
 * @level: the levels, beginning at the CPUs
 */
struct counter_tree_shape {
	unsigned int nr_cpus;
	unsigned int nr_levels;
	unsigned int nr_nodes;
	unsigned int bound;
	struct counter_tree_level level[COUNTER_TREE_MAX_LEVELS];
};

void counter_tree_init_shape(struct counter_tree_shape *shape,
			     unsigned int nr_cpus);
void counter_tree_init_many(struct counter_tree *trees,
			    unsigned int nr);
int counter_tree_spread_many(struct counter_tree *trees,
			     unsigned int nr, gfp_t gfp);
int counter_tree_spread_shape(struct counter_tree *trees,
			      unsigned int nr,
			      const struct counter_tree_shape *shape,
			      gfp_t gfp);
void counter_tree_destroy_many(struct counter_tree *trees,
			       unsigned int nr);
void counter_tree_add(struct counter_tree *tree, long amount);
void counter_tree_sums(const struct counter_tree *trees,
		       unsigned int nr, long *sums);
long counter_tree_total(const struct counter_tree *trees,
			unsigned int nr);
long counter_tree_slack(const struct counter_tree *trees);
size_t counter_tree_bytes(const struct counter_tree *tree);

/**
 * counter_tree_is_spread - check whether CPUs have cells
 * @tree: the counter
 */
static inline bool
counter_tree_is_spread(const struct counter_tree *tree)
{
	return READ_ONCE(tree->leaf);
}

/**
 * counter_tree_approximate_sum - the value without the cells
 * @tree: the counter
 *
 * Exact unless the counter is spread. May be below 0 for a counter whose value
 * never is.
 */
static inline long
counter_tree_approximate_sum(const struct counter_tree *tree)
{
	return atomic_long_read(&tree->root);
}

/**
 * counter_tree_precise_sum - the value including all cells
 * @tree: the counter
 *
 * Return: the value, as by counter_tree_sums().
 */
static inline long
counter_tree_precise_sum(const struct counter_tree *tree)
{
	long sum;

	counter_tree_sums(tree, 1, &sum);

	return sum;
}

#endif /* _LINUX_COUNTER_TREE_H */
