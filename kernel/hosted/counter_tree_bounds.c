// SPDX-License-Identifier: GPL-2.0-only
/*
 * Prints by how much a counter can be off, against one of Linux 6.12.
 *
 * Usage: counter_tree-bounds   (make bounds)
 *
 * Looks at all numbers of CPUs from 1 to 8192 first; exits with 1 if one of
 * them is worse than it should be.
 */
#include "bounds.h"

/* NR_MM_COUNTERS: file, anonymous, swap, shmem. */
#define NR_RSS		4

#define PAGES_PER_MB	(1048576.0 / PAGE_SIZE)

static const unsigned int rows[] = {
	1, 2, 4, 8, 16, 17, 18, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512,
	1024, 2048, 4096, 8192,
};

static void print_row(unsigned int nr_cpus)
{
	struct counter_tree trees[NR_RSS];
	struct counter_tree_shape shape;
	char groups[64] = "-";
	long flat = flat_bound(nr_cpus);
	int at = 0;

	boot(nr_cpus);
	counter_tree_init_shape(&shape, nr_cpus);
	for (unsigned int i = 0; i < shape.nr_levels; i++)
		at += snprintf(groups + at, sizeof(groups) - at, "%s%u",
			       i ? "," : "", 1U << shape.level[i].shift);
	counter_tree_init_many(trees, NR_RSS);
	CHECK(!counter_tree_spread_many(trees, NR_RSS, GFP_KERNEL));
	printf("%4u %8u %8.1f %11ld %10.1f %8.2f %8zu %8zu  %6u  %s\n", nr_cpus,
	       shape.bound, shape.bound / PAGES_PER_MB, flat,
	       flat / PAGES_PER_MB, (double)flat / shape.bound,
	       counter_tree_bytes(trees), nr_cpus * NR_RSS * sizeof(int),
	       shape.nr_levels, groups);
	counter_tree_destroy_many(trees, NR_RSS);
}

int main(void)
{
	if (!check_bounds())
		return 1;

	printf("The most that a counter's approximate value is off, in pages and MB (pages of 4 KiB): tree, once all\n"
	       "its cells are in use, and flat, Linux 6.12. bytes: a process's %d counters on all CPUs; tree: once the\n"
	       "process has threads, before that none. groups: so many CPUs share a node, on each of the levels.\n\n",
	       NR_RSS);
	printf("%4s %8s %8s %11s %10s %8s %8s %8s  %6s  %s\n", "", "tree",
	       "", "flat", "", "flat", "tree", "flat", "", "");
	printf("%4s %8s %8s %11s %10s %8s %8s %8s  %6s  %s\n", "CPUs", "pages",
	       "MB", "pages", "MB", "/ tree", "bytes", "bytes", "levels",
	       "groups");
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		print_row(rows[i]);
	printf("\nok: at each of 1 to %d CPUs tree is at most flat, and no line is written to more often than flat's\n"
	       "shared count (but at %d CPUs, every %d pages of a CPU instead of %ld); at %d CPUs at most 1/%d of flat.\n",
	       NR_CPUS, FASTER_CPUS, COUNTER_TREE_BATCH,
	       flat_batch(FASTER_CPUS), MUCH_BETTER_CPUS, MUCH_BETTER);

	return 0;
}
