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
 * See Documentation/core-api/counter-tree.rst for the bound and why it
 * holds.
 */
#include <linux/bitmap.h>
#include <linux/bitops.h>
#include <linux/cache.h>
#include <linux/cpumask.h>
#include <linux/init.h>
#include <linux/irqflags.h>
#include <linux/math.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/counter_tree.h>
#include <linux/preempt.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#define BATCH		COUNTER_TREE_BATCH
#define MAX_COUNTERS	COUNTER_TREE_MAX_COUNTERS

/* 16 CPUs share a node, which follows from their batch. */
#define LEAF_SHIFT	4
/* Four nodes share a wider one. */
#define NODE_SHIFT	2
/* With one CPU more, two nodes would hold back more than they save. */
#define FLAT_CPUS	17

/*
 * A CPU's cells are the bytes of a word, one for each counter of a set. A byte
 * is BATCH plus what it holds back, which is always less than BATCH in either
 * direction; and 0 until the CPU is first used. So a sum of all four fits in a
 * byte, too.
 */
#define LEAF_OF_EACH	0x01010101U
#define EMPTY_LEAVES	(BATCH * LEAF_OF_EACH)
static_assert(MAX_COUNTERS * (2 * BATCH - 1) <= U8_MAX);

/**
 * struct counter_tree_cells - the cells of a set of counters
 * @leaves: a word for each CPU
 * @nodes: what each node holds back, MAX_COUNTERS atomics in a line of their own
 * @shape: the levels
 * @slack: the maximum that cells in use can hold back, of all counters together
 * @used: a bit for each CPU whose cells are in use, and from first_node_bit()
 *	on for each node
 *
 * Only written to when a cell is used for the first time, except for @nodes.
 */
struct counter_tree_cells {
	u32 __percpu *leaves;
	void *nodes;
	const struct counter_tree_shape *shape;
	atomic_t slack;
	unsigned long used[];
};

static struct counter_tree_shape default_shape __ro_after_init;

/**
 * counter_tree_init_shape - set the levels for a number of CPUs
 * @shape: set to them
 * @nr_cpus: number of CPUs, at most 2^16
 *
 * Nodes of 16 CPUs, of 64, of 256 and so on, as long as there is more than one
 * of a width. A cell's batch is twice the number of CPUs below its parent, as
 * for the CPUs of a flat counter, so no cache line is written to more often
 * than the count of that. The bound is at most a tenth above the smallest that
 * any widths would have.
 */
void counter_tree_init_shape(struct counter_tree_shape *shape,
			     unsigned int nr_cpus)
{
	struct counter_tree_level *level = shape->level;
	unsigned int shift;

	*shape = (struct counter_tree_shape){
		.nr_cpus = nr_cpus,
		.bound = nr_cpus * (BATCH - 1),
	};
	for (shift = LEAF_SHIFT; nr_cpus > FLAT_CPUS && nr_cpus > 1U << shift;
	     shift += NODE_SHIFT) {
		unsigned int wider = 1U << (shift + NODE_SHIFT);

		level->shift = shift;
		level->batch = 2 * min(nr_cpus, wider);
		level->first = shape->nr_nodes;
		level->nr = DIV_ROUND_UP(nr_cpus, 1U << shift);
		shape->nr_nodes += level->nr;
		shape->bound += level->nr * (level->batch - 1);
		shape->nr_levels++;
		level++;
	}
}

/* Of the map. The CPUs' bits are in words of their own. */
static unsigned int
first_node_bit(const struct counter_tree_shape *shape)
{
	return BITS_TO_LONGS(shape->nr_cpus) * BITS_PER_LONG;
}

static unsigned int
nr_used_words(const struct counter_tree_shape *shape)
{
	return BITS_TO_LONGS(first_node_bit(shape) + shape->nr_nodes);
}

#define NODE_BYTES	L1_CACHE_ALIGN(MAX_COUNTERS * sizeof(atomic_t))

static size_t cells_bytes(const struct counter_tree_shape *shape)
{
	size_t bytes = offsetof(struct counter_tree_cells,
				used[nr_used_words(shape)]);

	if (!shape->nr_nodes)
		return bytes;

	/* The alignment of the nodes takes up to a line. */
	return bytes + L1_CACHE_BYTES + (size_t)shape->nr_nodes * NODE_BYTES;
}

/* Returns a node's MAX_COUNTERS cells. */
static atomic_t *node_of(const struct counter_tree_cells *cells,
			 unsigned int node)
{
	return cells->nodes + node * NODE_BYTES;
}

/**
 * hold_back - add to what a cell holds back
 * @held: that, which is updated
 * @batch: its batch
 * @amount: to add
 *
 * It adds @amount, or moves all that it holds to its parent.
 *
 * Return: what to add to the parent.
 */
static long hold_back(int *held, int batch, long amount)
{
	long sum = *held + amount;

	if (abs(sum) < batch) {
		*held = sum;
		return 0;
	}
	*held = 0;

	return sum;
}

/*
 * Before a cell is used: a reader that finds less in the root than there is
 * must also find the slack, and the cell for the rest.
 */
static void announce(struct counter_tree_cells *cells, unsigned int bit,
		     unsigned int batch)
{
	int slack = MAX_COUNTERS * (batch - 1);

	if (test_bit(bit, cells->used))
		return;
	atomic_add(slack, &cells->slack);
	/* Fully ordered. Pairs with smp_rmb() in the readers. */
	if (test_and_set_bit(bit, cells->used))
		atomic_sub(slack, &cells->slack);
}

/* Returns what to add to the node's parent. */
static long add_to_node(struct counter_tree_cells *cells,
			unsigned int node, unsigned int index, int batch,
			long amount)
{
	unsigned int bit = first_node_bit(cells->shape) + node;
	atomic_t *cell = node_of(cells, node) + index;
	int old, new;
	long rest;

	if (!test_bit(bit, cells->used)) {
		/* A cell cannot hold back that much. */
		if (abs(amount) >= batch)
			return amount;
		announce(cells, bit, batch);
	}
	old = atomic_read(cell);
	do {
		new = old;
		rest = hold_back(&new, batch, amount);
	} while (!atomic_try_cmpxchg(cell, &old, new));

	return rest;
}

/* All leaves of a CPU, so that readers need not look at each of them. */
static void use_leaves(struct counter_tree_cells *cells,
		       unsigned int cpu)
{
	unsigned long flags;

	/* An interrupt must not use them before they are announced. */
	local_irq_save(flags);
	if (!this_cpu_read(*cells->leaves)) {
		this_cpu_write(*cells->leaves, EMPTY_LEAVES);
		announce(cells, cpu, BATCH);
	}
	local_irq_restore(flags);
}

/* The same for @cpu, the current one. */
static long add_to_leaf(struct counter_tree_cells *cells,
			unsigned int cpu, u8 __percpu *leaf, long amount)
{
	long rest;
	int held;
	u8 old;

	if (!this_cpu_read(*leaf)) {
		if (abs(amount) >= BATCH)
			return amount;
		use_leaves(cells, cpu);
	}
	old = this_cpu_read(*leaf);
	do {
		held = old - BATCH;
		rest = hold_back(&held, BATCH, amount);
	} while (!this_cpu_try_cmpxchg(*leaf, &old, BATCH + held));

	return rest;
}

static noinline void add_through_levels(struct counter_tree *tree,
					u8 __percpu *leaf, long amount)
{
	/* Is set before the leaf, which was read with acquire semantics. */
	struct counter_tree_cells *cells = tree->cells;
	const struct counter_tree_shape *shape = cells->shape;
	const struct counter_tree_level *level = shape->level;
	unsigned int index = leaf - (u8 __percpu *)cells->leaves;
	unsigned int cpu, node;

	/* The nodes have to be those above the CPU whose cell is used. */
	preempt_disable();
	cpu = smp_processor_id();
	amount = add_to_leaf(cells, cpu, leaf, amount);
	for (; amount && level < shape->level + shape->nr_levels; level++) {
		node = level->first + (cpu >> level->shift);
		amount = add_to_node(cells, node, index, level->batch, amount);
	}
	if (amount)
		atomic_long_add(amount, &tree->root);
	preempt_enable();
}

/**
 * counter_tree_add - add to a counter
 * @tree: the counter
 * @amount: may be negative
 *
 * Context: any, interrupts included.
 */
void counter_tree_add(struct counter_tree *tree, long amount)
{
	/* Pairs with smp_store_release() where the counter is spread. */
	u8 __percpu *leaf = smp_load_acquire(&tree->leaf);
	unsigned long new;
	u8 old;

	if (!leaf) {
		atomic_long_add(amount, &tree->root);
		return;
	}
	old = this_cpu_read(*leaf);
	do {
		new = old + amount;
		if (unlikely(!old || new - 1 >= 2 * BATCH - 1)) {
			add_through_levels(tree, leaf, amount);
			return;
		}
	} while (!this_cpu_try_cmpxchg(*leaf, &old, new));
}

/* --- Sums --- */

/*
 * Adds what nodes hold back of the counters from @first on. From the root down:
 * against the direction in which amounts move.
 */
static void sum_nodes(const struct counter_tree_cells *cells,
		      unsigned int first, unsigned int nr, long *sums)
{
	const struct counter_tree_shape *shape = cells->shape;
	unsigned int base = first_node_bit(shape), i, bit;
	const struct counter_tree_level *level;

	for (level = shape->level + shape->nr_levels; level-- > shape->level; ) {
		bit = base + level->first;
		for_each_set_bit_from(bit, cells->used,
				      base + level->first + level->nr) {
			for (i = 0; i < nr; i++)
				sums[i] += atomic_read(node_of(cells, bit - base) +
						       first + i);
		}
	}
}

/**
 * counter_tree_sums - the values of some counters, including all cells
 * @trees: the first of them; they were initialized together
 * @nr: how many
 * @sums: set to the values, exact without concurrent additions
 *
 * Reads the cells that have been used, also on offline CPUs. What a CPU moves
 * up meanwhile may be missed or, if the machine reorders loads, seen twice: a
 * sum is off by no more than what it adds and what the cells on its way can
 * hold back.
 */
void counter_tree_sums(const struct counter_tree *trees,
		       unsigned int nr, long *sums)
{
	/* Pairs with smp_store_release() where the counters are spread. */
	u8 __percpu *leaf = smp_load_acquire(&trees->leaf);
	const struct counter_tree_cells *cells;
	unsigned int cpu = 0, i;

	for (i = 0; i < nr; i++)
		sums[i] = counter_tree_approximate_sum(&trees[i]);
	if (!leaf)
		return;

	cells = trees->cells;
	sum_nodes(cells, leaf - (u8 __percpu *)cells->leaves, nr, sums);
	for_each_set_bit_from(cpu, cells->used, cells->shape->nr_cpus) {
		/* Those of a CPU are not empty before it is announced. */
		smp_rmb();
		for (i = 0; i < nr; i++)
			sums[i] += READ_ONCE(*per_cpu_ptr(leaf + i, cpu)) - BATCH;
	}
}

/**
 * counter_tree_total - the sum of the values of a set of counters
 * @trees: all counters that were initialized together
 * @nr: how many
 *
 * As by counter_tree_sums(), in a fraction of the time: counters are
 * summed up together, and CPUs found with a few instructions.
 *
 * Return: the sum.
 */
long counter_tree_total(const struct counter_tree *trees,
			unsigned int nr)
{
	/* Pairs with smp_store_release() where the counters are spread. */
	u8 __percpu *leaf = smp_load_acquire(&trees->leaf);
	const struct counter_tree_cells *cells;
	long sums[MAX_COUNTERS] = {}, total = 0;
	u32 __percpu *leaves;
	unsigned int base, i;

	for (i = 0; i < nr; i++)
		total += counter_tree_approximate_sum(&trees[i]);
	if (!leaf)
		return total;

	cells = trees->cells;
	sum_nodes(cells, 0, nr, sums);
	for (i = 0; i < nr; i++)
		total += sums[i];
	leaves = cells->leaves;
	for (base = 0; base < cells->shape->nr_cpus; base += BITS_PER_LONG) {
		unsigned long used = READ_ONCE(cells->used[base / BITS_PER_LONG]);

		total -= (long)hweight_long(used) * MAX_COUNTERS * BATCH;
		/* Those of a CPU are not empty before it is announced. */
		smp_rmb();
		for (; used; used &= used - 1) {
			u32 word = READ_ONCE(*per_cpu_ptr(leaves, base + __ffs(used)));

			/* The highest byte of the product is the sum of all. */
			total += word * LEAF_OF_EACH >> 24;
		}
	}

	return total;
}

/**
 * counter_tree_slack - maximum error of the approximate sums of a set
 * @trees: counters that were initialized together
 *
 * Return: by how much these sums, added up, can be off in either direction. To
 * be read after them, with smp_rmb() in between: what the roots lack is held
 * back by cells that were added to the slack before, see announce().
 */
long counter_tree_slack(const struct counter_tree *trees)
{
	/* Pairs with smp_store_release() where the counters are spread. */
	return smp_load_acquire(&trees->leaf) ?
	       atomic_read(&trees->cells->slack) : 0;
}

/* --- Set-up --- */

/**
 * counter_tree_init_many - initialize counters to 0
 * @trees: the counters
 * @nr: how many, at most COUNTER_TREE_MAX_COUNTERS
 *
 * They need no memory until they are spread. A counter that never was need not
 * be destroyed.
 */
void counter_tree_init_many(struct counter_tree *trees,
			    unsigned int nr)
{
	memset(trees, 0, nr * sizeof(*trees));
}

/* Where vfree() could not sleep, too. */
static void free_cells(struct counter_tree_cells *cells)
{
	free_percpu(cells->leaves);
	if (is_vmalloc_addr(cells))
		vfree_atomic(cells);
	else
		kfree(cells);
}

static struct counter_tree_cells *
alloc_cells(const struct counter_tree_shape *shape, gfp_t gfp)
{
	struct counter_tree_cells *cells;

	/* Of a few thousand CPUs, more than there is in one piece. */
	cells = kvzalloc(cells_bytes(shape), gfp);
	if (!cells)
		return NULL;
	cells->leaves = __alloc_percpu_gfp(sizeof(u32), sizeof(u32), gfp);
	if (!cells->leaves) {
		free_cells(cells);
		return NULL;
	}
	cells->nodes = PTR_ALIGN((void *)&cells->used[nr_used_words(shape)],
				 L1_CACHE_BYTES);
	cells->shape = shape;

	return cells;
}

/**
 * counter_tree_spread_shape - spread counters over the CPUs
 * @trees: counters that were initialized together
 * @nr: how many
 * @shape: the levels; must exist as long as the counters
 * @gfp: for the allocation
 *
 * May be called concurrently, and during additions.
 *
 * Return: 0, also if they are spread already or another task is about to do so;
 * -ENOMEM without memory: they are unchanged.
 */
int counter_tree_spread_shape(struct counter_tree *trees,
			      unsigned int nr,
			      const struct counter_tree_shape *shape,
			      gfp_t gfp)
{
	struct counter_tree_cells *cells, *others = NULL;
	unsigned int i;

	if (counter_tree_is_spread(trees))
		return 0;
	cells = alloc_cells(shape, gfp);
	if (!cells)
		return -ENOMEM;
	if (!try_cmpxchg(&trees->cells, &others, cells)) {
		free_cells(cells);
		return 0;
	}
	for (i = 0; i < nr; i++) {
		WRITE_ONCE(trees[i].cells, cells);
		/* Who finds the leaf finds the cells, with all they contain. */
		smp_store_release(&trees[i].leaf,
				  (u8 __percpu *)cells->leaves + i);
	}

	return 0;
}

/**
 * counter_tree_spread_many - spread counters over the CPUs
 * @trees: counters that were initialized together
 * @nr: how many
 * @gfp: for the allocation
 *
 * From now on additions on different CPUs do not contend, and the root alone is
 * approximate. See counter_tree_spread_shape().
 *
 * Return: 0, or -ENOMEM.
 */
int counter_tree_spread_many(struct counter_tree *trees,
			     unsigned int nr, gfp_t gfp)
{
	return counter_tree_spread_shape(trees, nr, &default_shape, gfp);
}

/**
 * counter_tree_destroy_many - free the memory of counters
 * @trees: counters that were initialized together, and are no longer used
 * @nr: how many
 *
 * Context: any that may free memory.
 */
void counter_tree_destroy_many(struct counter_tree *trees,
			       unsigned int nr)
{
	struct counter_tree_cells *cells = trees->cells;

	if (!cells)
		return;
	counter_tree_init_many(trees, nr);
	free_cells(cells);
}

/**
 * counter_tree_bytes - memory of a set of counters
 * @tree: one of them
 *
 * Return: bytes, 0 unless they are spread.
 */
size_t counter_tree_bytes(const struct counter_tree *tree)
{
	/* Pairs with smp_store_release() where the counters are spread. */
	if (!smp_load_acquire(&tree->leaf))
		return 0;

	return cells_bytes(tree->cells->shape) +
	       sizeof(u32) * num_possible_cpus();
}

/* Before the first thread for which counters are spread. */
static int __init counter_tree_setup(void)
{
	counter_tree_init_shape(&default_shape, nr_cpu_ids);

	return 0;
}
early_initcall(counter_tree_setup);
