// SPDX-License-Identifier: GPL-2.0-only
/*
 * percpu_counter_tree.c with the machine it runs on, and access to its cells,
 * which are private to it.
 */
#include CODE

#include "counters.h"

unsigned int nr_cpu_ids = 1;
bool hosted_offline[NR_CPUS];
struct hosted_memory hosted_memory;
_Thread_local unsigned int hosted_cpu;
_Thread_local int hosted_preempt_count;
_Thread_local unsigned long hosted_preempt_disabled;

struct cell counter_cell(const struct percpu_counter_tree *tree,
			 unsigned int nr)
{
	const struct percpu_counter_tree_cells *cells = tree->cells;
	const struct percpu_counter_tree_shape *shape = cells->shape;
	const struct percpu_counter_tree_level *level = shape->level;
	struct cell cell;

	if (nr < shape->nr_nodes) {
		atomic_t *node = node_of(tree, cells, nr);

		while (nr >= level->first + level->nr)
			level++;
		cell.batch = level->batch;
		cell.value = __atomic_load_n(&node->counter, __ATOMIC_RELAXED);
		cell.where = node;
	} else {
		u8 *leaf = per_cpu_ptr(leaf_of(tree, cells),
				       nr - shape->nr_nodes);

		cell.batch = PERCPU_COUNTER_TREE_BATCH;
		cell.value = __atomic_load_n(leaf, __ATOMIC_RELAXED);
		cell.where = leaf;
	}
	cell.held = cell.value ? (long)cell.value - cell.batch : 0;
	cell.announced = find_next_bit(cells->used, nr + 1, nr) == nr;

	return cell;
}
