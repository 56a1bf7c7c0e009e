// SPDX-License-Identifier: GPL-2.0-only
/*
 * RSS counters that use per-CPU memory only for processes with threads.
 *
 * Most processes have one thread. It counts its own pages in mm->rss_own, which
 * no other task writes to: without per-CPU memory, atomics or error, on any
 * CPU. Other tasks that change its pages, reclaim for instance, add to the
 * counters' roots.
 *
 * As soon as a second task may use the address space, rss_own does not change
 * any more. Threads get counters that are spread over the CPUs; a vfork()
 * child, whose parent waits, and a kernel thread that borrows the address space
 * do not need that.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/mm_rss.h>
#include <linux/counter_tree.h>
#include <linux/sched.h>

#define CREATE_TRACE_POINTS
#include <trace/events/memreap_rss.h>

/**
 * mm_rss_init - initialize an address space's counters to 0
 * @mm: the address space
 *
 * Return: 0; the stock version can fail.
 */
int mm_rss_init(struct mm_struct *mm)
{
	/* They share a word of each CPU. */
	BUILD_BUG_ON(NR_MM_COUNTERS > COUNTER_TREE_MAX_COUNTERS);

	counter_tree_init_many(mm->rss_stat, NR_MM_COUNTERS);
	memset(mm->rss_own, 0, sizeof(mm->rss_own));
	mm->rss_shared = false;

	return 0;
}

/**
 * mm_rss_destroy - free the memory of an address space's counters
 * @mm: the address space, which is no longer used
 */
void mm_rss_destroy(struct mm_struct *mm)
{
	counter_tree_destroy_many(mm->rss_stat, NR_MM_COUNTERS);
}

/**
 * mm_rss_share - before another task uses an address space as its own
 * @mm: the address space
 *
 * Called by its owner or by that other task. An owner that does not see it in
 * time still adds to rss_own, alone, which is correct, too.
 */
void mm_rss_share(struct mm_struct *mm)
{
	if (!READ_ONCE(mm->rss_shared))
		WRITE_ONCE(mm->rss_shared, true);
}

/**
 * mm_rss_spread - before an address space gets another thread
 * @mm: the current task's address space
 *
 * Without memory the threads share the roots, which is slower and exact.
 */
void mm_rss_spread(struct mm_struct *mm)
{
	int ret;

	mm_rss_share(mm);
	if (counter_tree_is_spread(mm->rss_stat))
		return;
	ret = counter_tree_spread_many(mm->rss_stat, NR_MM_COUNTERS,
				       GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	trace_memreap_rss_spread(mm, ret);
}

/**
 * mm_rss_total - count the pages of an address space, in RAM and swap
 * @mm: the address space
 *
 * Return: the sum of all its counters, exact without concurrent updates.
 */
long mm_rss_total(struct mm_struct *mm)
{
	long pages = counter_tree_total(mm->rss_stat, NR_MM_COUNTERS);

	for (int i = 0; i < NR_MM_COUNTERS; i++)
		pages += READ_ONCE(mm->rss_own[i]);

	return pages;
}

/**
 * mm_counter_add - add to one of an address space's counters
 * @mm: the address space
 * @member: which, MM_FILEPAGES to MM_SHMEMPAGES
 * @value: pages; may be negative
 *
 * Context: task, with the page table lock if page tables are changed.
 */
void mm_counter_add(struct mm_struct *mm, int member, long value)
{
	if (likely(current->mm == mm && !READ_ONCE(mm->rss_shared)))
		WRITE_ONCE(mm->rss_own[member], mm->rss_own[member] + value);
	else
		counter_tree_add(&mm->rss_stat[member], value);
}
