// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counters that are updated on many CPUs and know their maximum error.
 *
 * A flat per-CPU counter holds back up to a batch on each CPU. To avoid
 * contention for the shared count the batch has to grow with the CPUs, and the
 * error grows with their square. Here CPUs keep a small batch and move it to
 * nodes that a few of them share, those to wider nodes, the last to the root.
 * The slack, the maximum that can be held back, is counted over the cells that
 * have ever been used, which are few for most counters.
 *
 * See Documentation/core-api/percpu-counter-tree.rst for the bound and why it
 * holds.
 */
#include <linux/bitmap.h>
#include <linux/cache.h>
#include <linux/cpumask.h>
#include <linux/export.h>
#include <linux/init.h>
#include <linux/math.h>
#include <linux/percpu.h>
#include <linux/percpu_counter_tree.h>
#include <linux/preempt.h>
#include <linux/slab.h>

/* 16 CPUs share a node, which follows from their batch. */
#define LEAF_SHIFT	4
/* With one CPU more, two nodes would hold back more than they save. */
#define FLAT_CPUS	17

/*
 * A cell, a CPU's as well as a node's, is 0 until it is first used. From then
 * on it is its batch plus what it holds back, which is always less than the
 * batch in either direction: from 1 to 2 * batch - 1. A CPU's fits in a byte.
 */
static_assert(2 * PERCPU_COUNTER_TREE_BATCH - 1 <= U8_MAX);

/**
 * struct percpu_counter_tree_cells - the cells of a set of counters
 * @leaves: a byte per counter on each CPU
 * @nodes: a cell per counter for each node
 * @shape: the levels
 * @nr: number of counters
 * @used: a bit for each node, then for each CPU, whose cells may be in use
 *
 * Only written to when a cell is used for the first time, except for @nodes,
 * each of which has cache lines of its own.
 */
struct percpu_counter_tree_cells {
	u8 __percpu *leaves;
	void *nodes;
	const struct percpu_counter_tree_shape *shape;
	unsigned int nr;
	unsigned long used[];
};

static struct percpu_counter_tree_shape default_shape __ro_after_init;

/* Sets the levels whose shifts are the bits of @shifts. */
static void set_levels(struct percpu_counter_tree_shape *shape,
		       unsigned int nr_cpus, unsigned long shifts)
{
	struct percpu_counter_tree_level *level = shape->level;
	unsigned long shift;

	*shape = (struct percpu_counter_tree_shape){
		.nr_cpus = nr_cpus,
		.bound = nr_cpus * (PERCPU_COUNTER_TREE_BATCH - 1),
	};
	for_each_set_bit(shift, &shifts, BITS_PER_LONG) {
		level->shift = shift;
		level->first = shape->nr_nodes;
		level->nr = DIV_ROUND_UP(nr_cpus, 1U << shift);
		shape->nr_nodes += level->nr;
		level++;
	}
	shape->nr_levels = level - shape->level;

	for (level = shape->level; level < shape->level + shape->nr_levels;
	     level++) {
		bool last = level == &shape->level[shape->nr_levels - 1];

		level->batch = last ? 2 * nr_cpus : 2U << level[1].shift;
		shape->bound += level->nr * (level->batch - 1);
	}
}

/* The maximum error; another level has to reduce it by a sixteenth. */
static u64 cost(const struct percpu_counter_tree_shape *shape)
{
	return (u64)shape->bound * (16 + shape->nr_levels);
}

/**
 * percpu_counter_tree_best_shape - find the levels with the smallest error
 * @shape: set to them
 * @nr_cpus: number of CPUs, at most 2^16
 *
 * A cell's batch is twice the number of CPUs below its parent node, as for the
 * CPUs of a flat counter, so no cache line is written to more often than the
 * count of that. Of all shapes for which this holds it is the one with the
 * smallest bound, without levels that reduce it too little.
 */
void percpu_counter_tree_best_shape(struct percpu_counter_tree_shape *shape,
				    unsigned int nr_cpus)
{
	struct percpu_counter_tree_shape other;
	unsigned int nr_wider = 0;
	unsigned long wider;

	set_levels(shape, nr_cpus, 0);
	if (nr_cpus <= FLAT_CPUS)
		return;

	while (nr_cpus > 2U << (LEAF_SHIFT + nr_wider))
		nr_wider++;
	set_levels(shape, nr_cpus, BIT(LEAF_SHIFT));
	for (wider = 1; wider < BIT(nr_wider); wider++) {
		set_levels(&other, nr_cpus,
			   BIT(LEAF_SHIFT) | wider << (LEAF_SHIFT + 1));
		if (cost(&other) < cost(shape))
			*shape = other;
	}
}
EXPORT_SYMBOL_GPL(percpu_counter_tree_best_shape);

static size_t node_bytes(unsigned int nr)
{
	return L1_CACHE_ALIGN(nr * sizeof(atomic_t));
}

static size_t cells_bytes(const struct percpu_counter_tree_shape *shape,
			  unsigned int nr)
{
	size_t nr_used = BITS_TO_LONGS(shape->nr_nodes + shape->nr_cpus);
	size_t bytes = offsetof(struct percpu_counter_tree_cells, used[nr_used]);

	if (!shape->nr_nodes)
		return bytes;

	/* The alignment of the nodes takes up to a line. */
	return bytes + L1_CACHE_BYTES + shape->nr_nodes * node_bytes(nr);
}

static u8 __percpu *leaf_of(const struct percpu_counter_tree *tree,
			    const struct percpu_counter_tree_cells *cells)
{
	return cells->leaves + tree->index;
}

static atomic_t *node_of(const struct percpu_counter_tree *tree,
			 const struct percpu_counter_tree_cells *cells,
			 unsigned int node)
{
	atomic_t *cell = cells->nodes + node * node_bytes(cells->nr);

	return cell + tree->index;
}

static long held_back(unsigned int cell, unsigned int batch)
{
	return cell ? (long)cell - batch : 0;
}

/**
 * absorb - add to a cell in use
 * @cell: its value, which is updated
 * @batch: its batch
 * @amount: to add
 *
 * It adds @amount, or moves all that it holds to its parent.
 *
 * Return: what to add to the parent.
 */
static long absorb(unsigned int *cell, unsigned int batch, long amount)
{
	long sum = held_back(*cell, batch) + amount;

	if (abs(sum) < batch) {
		*cell = batch + sum;
		return 0;
	}
	*cell = batch;

	return sum;
}

/*
 * Before a cell is used: a reader that finds less in the root than there is
 * must also find the slack, and the cell for the rest.
 */
static void announce(struct percpu_counter_tree *tree,
		     struct percpu_counter_tree_cells *cells, unsigned int bit,
		     unsigned int batch)
{
	atomic_add(batch - 1, &tree->slack);
	set_bit(bit, cells->used);
	/* Pairs with smp_rmb() before percpu_counter_tree_slack(). */
	smp_mb__after_atomic();
}

/* Another task has just done the same. */
static void withdraw(struct percpu_counter_tree *tree, unsigned int batch)
{
	atomic_sub(batch - 1, &tree->slack);
}

/* Returns what to add to the node's parent. */
static long add_to_node(struct percpu_counter_tree *tree,
			struct percpu_counter_tree_cells *cells,
			unsigned int node, unsigned int batch, long amount)
{
	atomic_t *cell = node_of(tree, cells, node);
	int old = atomic_read(cell);
	unsigned int new;
	long rest;

	if (!old) {
		/* A cell cannot hold back that much. */
		if (abs(amount) >= batch)
			return amount;
		announce(tree, cells, node, batch);
		if (atomic_try_cmpxchg(cell, &old, batch))
			old = batch;
		else
			withdraw(tree, batch);
	}
	do {
		new = old;
		rest = absorb(&new, batch, amount);
	} while (!atomic_try_cmpxchg(cell, &old, new));

	return rest;
}

/* The same for @cpu, the current one. */
static long add_to_leaf(struct percpu_counter_tree *tree,
			struct percpu_counter_tree_cells *cells,
			unsigned int cpu, long amount)
{
	const unsigned int batch = PERCPU_COUNTER_TREE_BATCH;
	u8 __percpu *leaf = leaf_of(tree, cells);
	u8 old = this_cpu_read(*leaf);
	unsigned int new;
	long rest;

	if (!old) {
		if (abs(amount) >= batch)
			return amount;
		announce(tree, cells, cells->shape->nr_nodes + cpu, batch);
		/* An interrupt may have been first. */
		if (this_cpu_try_cmpxchg(*leaf, &old, batch))
			old = batch;
		else
			withdraw(tree, batch);
	}
	do {
		new = old;
		rest = absorb(&new, batch, amount);
	} while (!this_cpu_try_cmpxchg(*leaf, &old, new));

	return rest;
}

static noinline void add_through_levels(struct percpu_counter_tree *tree,
					struct percpu_counter_tree_cells *cells,
					long amount)
{
	const struct percpu_counter_tree_shape *shape = cells->shape;
	const struct percpu_counter_tree_level *level = shape->level;
	unsigned int cpu, node;

	/* The nodes have to be those above the CPU whose cell is used. */
	preempt_disable();
	cpu = smp_processor_id();
	amount = add_to_leaf(tree, cells, cpu, amount);
	for (; amount && level < shape->level + shape->nr_levels; level++) {
		node = level->first + (cpu >> level->shift);
		amount = add_to_node(tree, cells, node, level->batch, amount);
	}
	if (amount)
		atomic_long_add(amount, &tree->root);
	preempt_enable();
}

/**
 * percpu_counter_tree_add - add to a counter
 * @tree: the counter
 * @amount: may be negative
 *
 * Context: any, interrupts included.
 */
void percpu_counter_tree_add(struct percpu_counter_tree *tree, long amount)
{
	struct percpu_counter_tree_cells *cells = READ_ONCE(tree->cells);
	unsigned long new;
	u8 __percpu *leaf;
	u8 old;

	if (!cells) {
		atomic_long_add(amount, &tree->root);
		return;
	}
	leaf = leaf_of(tree, cells);
	old = this_cpu_read(*leaf);
	do {
		new = old + amount;
		if (unlikely(!old || new - 1 >= 2 * PERCPU_COUNTER_TREE_BATCH - 1)) {
			add_through_levels(tree, cells, amount);
			return;
		}
	} while (!this_cpu_try_cmpxchg(*leaf, &old, new));
}
EXPORT_SYMBOL_GPL(percpu_counter_tree_add);

/**
 * percpu_counter_tree_precise_sum - the value including all cells
 * @tree: the counter
 *
 * Reads the cells that have been used, also on offline CPUs. What a CPU moves
 * up meanwhile may be missed or, if the machine reorders loads, seen twice: the
 * sum is off by no more than what it adds and what the cells on its way can
 * hold back.
 *
 * Return: the value, exact without concurrent additions.
 */
long percpu_counter_tree_precise_sum(const struct percpu_counter_tree *tree)
{
	const struct percpu_counter_tree_cells *cells = READ_ONCE(tree->cells);
	long sum = percpu_counter_tree_approximate_sum(tree);
	const struct percpu_counter_tree_shape *shape;
	const struct percpu_counter_tree_level *level;
	u8 __percpu *leaf;
	unsigned int bit;

	if (!cells)
		return sum;

	/* From the root down: against the direction in which amounts move. */
	shape = cells->shape;
	for (level = shape->level + shape->nr_levels; level-- > shape->level; ) {
		bit = level->first;
		for_each_set_bit_from(bit, cells->used, level->first + level->nr)
			sum += held_back(atomic_read(node_of(tree, cells, bit)),
					 level->batch);
	}
	leaf = leaf_of(tree, cells);
	bit = shape->nr_nodes;
	for_each_set_bit_from(bit, cells->used, shape->nr_nodes + shape->nr_cpus)
		sum += held_back(READ_ONCE(*per_cpu_ptr(leaf, bit - shape->nr_nodes)),
				 PERCPU_COUNTER_TREE_BATCH);

	return sum;
}
EXPORT_SYMBOL_GPL(percpu_counter_tree_precise_sum);

/**
 * percpu_counter_tree_init_many - initialize counters to 0
 * @trees: the counters
 * @nr: how many
 *
 * They need no memory until they are spread. A counter that never was need not
 * be destroyed.
 */
void percpu_counter_tree_init_many(struct percpu_counter_tree *trees,
				   unsigned int nr)
{
	unsigned int i;

	for (i = 0; i < nr; i++)
		trees[i] = (struct percpu_counter_tree){ .index = i };
}
EXPORT_SYMBOL_GPL(percpu_counter_tree_init_many);

/**
 * percpu_counter_tree_spread_shape - spread counters over the CPUs
 * @trees: counters that were initialized together
 * @nr: how many
 * @shape: the levels; must exist as long as the counters
 * @gfp: for the allocation
 *
 * May be called concurrently, and during additions.
 *
 * Return: 0, also if they are spread already; -ENOMEM without memory: they are
 * unchanged.
 */
int percpu_counter_tree_spread_shape(struct percpu_counter_tree *trees,
				     unsigned int nr,
				     const struct percpu_counter_tree_shape *shape,
				     gfp_t gfp)
{
	size_t nr_used = BITS_TO_LONGS(shape->nr_nodes + shape->nr_cpus);
	struct percpu_counter_tree_cells *cells, *others = NULL;
	unsigned int i;

	if (percpu_counter_tree_is_spread(trees))
		return 0;
	cells = kzalloc(cells_bytes(shape, nr), gfp);
	if (!cells)
		return -ENOMEM;
	cells->leaves = __alloc_percpu_gfp(nr, sizeof(u8), gfp);
	if (!cells->leaves) {
		kfree(cells);
		return -ENOMEM;
	}
	cells->nodes = PTR_ALIGN((void *)&cells->used[nr_used], L1_CACHE_BYTES);
	cells->shape = shape;
	cells->nr = nr;

	if (!try_cmpxchg(&trees->cells, &others, cells)) {
		free_percpu(cells->leaves);
		kfree(cells);
		return 0;
	}
	for (i = 1; i < nr; i++) {
		/* Initialized before it is visible, as with try_cmpxchg(). */
		smp_store_release(&trees[i].cells, cells);
	}

	return 0;
}
EXPORT_SYMBOL_GPL(percpu_counter_tree_spread_shape);

/**
 * percpu_counter_tree_spread_many - spread counters over the CPUs
 * @trees: counters that were initialized together
 * @nr: how many
 * @gfp: for the allocation
 *
 * From now on additions on different CPUs do not contend, and the root alone is
 * approximate. See percpu_counter_tree_spread_shape().
 *
 * Return: 0, or -ENOMEM.
 */
int percpu_counter_tree_spread_many(struct percpu_counter_tree *trees,
				    unsigned int nr, gfp_t gfp)
{
	return percpu_counter_tree_spread_shape(trees, nr, &default_shape, gfp);
}
EXPORT_SYMBOL_GPL(percpu_counter_tree_spread_many);

/**
 * percpu_counter_tree_destroy_many - free the memory of counters
 * @trees: counters that were initialized together, and are no longer used
 * @nr: how many
 *
 * Context: any that may free memory.
 */
void percpu_counter_tree_destroy_many(struct percpu_counter_tree *trees,
				      unsigned int nr)
{
	struct percpu_counter_tree_cells *cells = trees->cells;
	unsigned int i;

	if (!cells)
		return;
	for (i = 0; i < nr; i++)
		trees[i].cells = NULL;
	free_percpu(cells->leaves);
	kfree(cells);
}
EXPORT_SYMBOL_GPL(percpu_counter_tree_destroy_many);

/**
 * percpu_counter_tree_bytes - memory of a set of counters
 * @tree: one of them
 *
 * Return: bytes, 0 unless they are spread.
 */
size_t percpu_counter_tree_bytes(const struct percpu_counter_tree *tree)
{
	const struct percpu_counter_tree_cells *cells = READ_ONCE(tree->cells);

	if (!cells)
		return 0;

	return cells_bytes(cells->shape, cells->nr) +
	       (size_t)cells->nr * num_possible_cpus();
}
EXPORT_SYMBOL_GPL(percpu_counter_tree_bytes);

/* Before the first thread for which counters are spread. */
static int __init percpu_counter_tree_setup(void)
{
	percpu_counter_tree_best_shape(&default_shape, nr_cpu_ids);

	return 0;
}
early_initcall(percpu_counter_tree_setup);
