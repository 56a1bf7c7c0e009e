/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * For counter_tree.c: the CPUs, the cells inside a counter, and what
 * always has to be true of them.
 */
#ifndef _HOSTED_COUNTERS_H
#define _HOSTED_COUNTERS_H

#include <linux/bitmap.h>
#include <linux/init.h>
#include <linux/irqflags.h>
#include <linux/math.h>
#include <linux/percpu.h>
#include <linux/counter_tree.h>

#include "check.h"

#define LEAF_BATCH		((long)COUNTER_TREE_BATCH)
#define MAX_COUNTERS		COUNTER_TREE_MAX_COUNTERS

/* A CPU's and one of each level. */
#define MAX_WAY			(COUNTER_TREE_MAX_LEVELS + 1)

/**
 * struct cell - state of a cell
 * @value: its batch plus what it holds back, 0 if it is not in use
 * @batch: its batch
 * @held: what it holds back
 * @announced: its bit for readers is set
 * @where: its address
 */
struct cell {
	unsigned int value;
	unsigned int batch;
	long held;
	bool announced;
	const void *where;
};

/* In counter_tree_host.c. @nr: nodes first, then CPUs. */
struct cell counter_cell(const struct counter_tree *tree,
			 unsigned int nr);

/**
 * struct way - the cells from a CPU to the root
 * @nr: entries in @cell
 * @cell: the cells, the CPU's first
 * @root: value of the root
 */
struct way {
	unsigned int nr;
	struct cell cell[MAX_WAY];
	long root;
};

static inline unsigned int
way_cell(const struct counter_tree_shape *shape, unsigned int cpu,
	 unsigned int i)
{
	return i ? shape->level[i - 1].first + (cpu >> shape->level[i - 1].shift) :
		   shape->nr_nodes + cpu;
}

static inline struct way
way_of(const struct counter_tree *tree,
       const struct counter_tree_shape *shape, unsigned int cpu)
{
	struct way way = { .root = counter_tree_approximate_sum(tree) };

	if (counter_tree_is_spread(tree))
		way.nr = shape->nr_levels + 1;
	for (unsigned int i = 0; i < way.nr; i++)
		way.cell[i] = counter_cell(tree, way_cell(shape, cpu, i));

	return way;
}

/*
 * The rule: a cell takes an amount in if it stays below its batch, or hands on
 * all there is; and what could not be held back does not make it one in use.
 */
static inline void way_add(struct way *way, long amount)
{
	for (unsigned int i = 0; i < way->nr; i++) {
		struct cell *cell = &way->cell[i];
		long batch = cell->batch;
		long sum = cell->held + amount;

		if (!cell->value && (amount >= batch || amount <= -batch))
			continue;
		if (sum < batch && sum > -batch) {
			cell->held = sum;
			cell->value = batch + sum;
			return;
		}
		cell->held = 0;
		cell->value = batch;
		amount = sum;
	}
	way->root += amount;
}

static inline bool ways_equal(const struct way *a, const struct way *b)
{
	for (unsigned int i = 0; i < a->nr; i++) {
		if (a->cell[i].value != b->cell[i].value)
			return false;
	}

	return a->nr == b->nr && a->root == b->root;
}

/* A counter's value has been asked for, and was @value or thereabouts. */
static inline void check_sum(const struct counter_tree *tree,
			     long value, long off)
{
	long sum = counter_tree_precise_sum(tree);

	CHECK(sum >= value - off && sum <= value + off);
}

/* The same for all of them, whose values are @total together. */
static inline void check_total(const struct counter_tree *trees,
			       unsigned int nr, long total, long off)
{
	long sum = counter_tree_total(trees, nr);
	long roots = 0, slack;

	CHECK(sum >= total - off && sum <= total + off);
	for (unsigned int i = 0; i < nr; i++)
		roots += counter_tree_approximate_sum(&trees[i]);
	smp_rmb();
	slack = counter_tree_slack(trees);
	CHECK(roots - slack <= total + off && total - off <= roots + slack);
}

static inline void check_cell(const struct cell *cell)
{
	CHECK(cell->value < 2 * cell->batch);
	CHECK(!cell->value == !cell->announced);
	CHECK(cell->announced || !cell->held);
}

/*
 * Checks the invariants of the @nr counters @trees with the values @value, while
 * they are not in use.
 */
static inline void
check_counters(const struct counter_tree *trees, unsigned int nr,
	       const struct counter_tree_shape *shape, const long *value)
{
	unsigned int nr_cells = shape->nr_nodes + shape->nr_cpus;
	long sums[MAX_COUNTERS], total = 0, slack = 0;

	CHECK(!hosted_preempt_count);
	for (unsigned int cpu = 0; cpu < nr_cpu_ids; cpu++)
		CHECK(!hosted_irqs_disabled[cpu]);
	counter_tree_sums(trees, nr, sums);
	for (unsigned int i = 0; i < nr; i++) {
		const struct counter_tree *tree = &trees[i];
		long held = 0;

		check_sum(tree, value[i], 0);
		CHECK(sums[i] == value[i]);
		total += value[i];
		for (unsigned int c = 0; c < nr_cells &&
		     counter_tree_is_spread(tree); c++) {
			struct cell cell = counter_cell(tree, c);

			check_cell(&cell);
			held += cell.held;
			if (!i && cell.value)
				slack += MAX_COUNTERS * (cell.batch - 1L);
		}
		CHECK(counter_tree_approximate_sum(tree) + held ==
		      value[i]);
	}
	check_total(trees, nr, total, 0);
	CHECK(counter_tree_slack(trees) == slack);
	CHECK(slack <= MAX_COUNTERS * (long)shape->bound);
}

/*
 * By how much a sum can be off meanwhile for an addition that is under way: it
 * carries @amount and what the cells on its way held back.
 */
static inline long carried(const struct counter_tree_shape *shape,
			   long amount)
{
	long most = abs(amount) + LEAF_BATCH - 1;

	for (unsigned int i = 0; i < shape->nr_levels; i++)
		most += shape->level[i].batch - 1;

	return most;
}

/* Starts a machine of @nr CPUs, of which this thread is the first. */
static inline void boot(unsigned int nr)
{
	CHECK(nr && nr <= NR_CPUS);
	nr_cpu_ids = nr;
	hosted_cpu = 0;
	hosted_preempt_count = 0;
	memset(hosted_offline, 0, sizeof(hosted_offline));
	CHECK(!hosted_initcall());
}

static inline void add_on(unsigned int cpu, struct counter_tree *tree,
			  long amount)
{
	hosted_cpu = cpu;
	counter_tree_add(tree, amount);
}

/**
 * odd_shape - a shape that counter_tree_init_shape() would not choose
 * @nr_cpus: for so many CPUs
 * @nr: how many levels
 * @shift: of each level, ascending
 * @batch: of each level, at least 2
 */
static inline struct counter_tree_shape
odd_shape(unsigned int nr_cpus, unsigned int nr, const unsigned int *shift,
	  const unsigned int *batch)
{
	struct counter_tree_shape shape = {
		.nr_cpus = nr_cpus,
		.nr_levels = nr,
		.bound = nr_cpus * (LEAF_BATCH - 1),
	};

	CHECK(nr <= COUNTER_TREE_MAX_LEVELS);
	for (unsigned int i = 0; i < nr; i++) {
		shape.level[i].shift = shift[i];
		shape.level[i].batch = batch[i];
		shape.level[i].first = shape.nr_nodes;
		shape.level[i].nr = ((nr_cpus - 1) >> shift[i]) + 1;
		shape.nr_nodes += shape.level[i].nr;
		shape.bound += shape.level[i].nr * (batch[i] - 1);
	}

	return shape;
}

#endif /* _HOSTED_COUNTERS_H */
