// SPDX-License-Identifier: GPL-2.0-only
/*
 * counter_tree.c with the machine it runs on, and access to its cells,
 * which are private to it.
 */
#include CODE

#include "counters.h"

unsigned int nr_cpu_ids = 1;
bool hosted_offline[NR_CPUS];
struct hosted_memory hosted_memory;
_Thread_local unsigned int hosted_cpu;
_Thread_local int hosted_preempt_count;
_Thread_local bool hosted_irqs_disabled[NR_CPUS];
_Thread_local unsigned long hosted_preempt_disabled;

struct cell counter_cell(const struct counter_tree *tree,
			 unsigned int nr)
{
	const struct counter_tree_cells *cells = tree->cells;
	const struct counter_tree_shape *shape = cells->shape;
	const struct counter_tree_level *level = shape->level;
	struct cell cell;

	unsigned int index = tree->leaf - (u8 *)cells->leaves;
	unsigned int bit;

	if (nr < shape->nr_nodes) {
		atomic_t *node = node_of(cells, nr) + index;

		while (nr >= level->first + level->nr)
			level++;
		bit = first_node_bit(shape) + nr;
		cell.batch = level->batch;
		cell.held = __atomic_load_n(&node->counter, __ATOMIC_RELAXED);
		cell.where = node;
	} else {
		unsigned int cpu = nr - shape->nr_nodes;
		u8 *leaf = per_cpu_ptr(tree->leaf, cpu);

		bit = cpu;
		cell.batch = BATCH;
		cell.value = __atomic_load_n(leaf, __ATOMIC_RELAXED);
		cell.held = cell.value ? (long)cell.value - BATCH : 0;
		cell.where = leaf;
	}
	cell.announced = find_next_bit(cells->used, bit + 1, bit) == bit;
	if (nr < shape->nr_nodes)
		cell.value = cell.announced ? cell.batch + cell.held : 0;

	return cell;
}
