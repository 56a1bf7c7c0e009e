// SPDX-License-Identifier: GPL-2.0-only
/*
 * RSS counters that cost a process what its threads make of it.
 *
 * Most processes have one thread. It counts its own pages without anybody
 * else's leave, in mm->rss_own: no per-CPU memory, no atomics, nothing held
 * back, wherever it runs. Others who change its pages, reclaim for instance,
 * add to the counters' roots.
 *
 * As soon as there can be a second task whose pages these are, rss_own is left
 * as it is for good. Threads get counters that are spread over the CPUs; a
 * vfork() child, whose parent waits, and a kernel thread that borrows the
 * address space do not pay for that.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/mm_rss.h>
#include <linux/percpu_counter_tree.h>
#include <linux/sched.h>

#define CREATE_TRACE_POINTS
#include <trace/events/memreap_rss.h>

/**
 * mm_rss_init - start an address space's counters at 0
 * @mm: the address space
 *
 * Return: 0; without this topic it can fail.
 */
int mm_rss_init(struct mm_struct *mm)
{
	percpu_counter_tree_init_many(mm->rss_stat, NR_MM_COUNTERS);
	memset(mm->rss_own, 0, sizeof(mm->rss_own));
	mm->rss_shared = false;

	return 0;
}

/**
 * mm_rss_destroy - free what an address space's counters were given
 * @mm: the address space, which nobody uses any more
 */
void mm_rss_destroy(struct mm_struct *mm)
{
	percpu_counter_tree_destroy_many(mm->rss_stat, NR_MM_COUNTERS);
}

/**
 * mm_rss_share - before another task has an address space as its own
 * @mm: the address space
 *
 * Called by its owner or by that other task. An owner that does not see it in
 * time goes on alone in rss_own, which is as good.
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
 * Without memory for it the threads share the roots: slower, and exact.
 */
void mm_rss_spread(struct mm_struct *mm)
{
	int ret;

	mm_rss_share(mm);
	if (percpu_counter_tree_is_spread(mm->rss_stat))
		return;
	ret = percpu_counter_tree_spread_many(mm->rss_stat, NR_MM_COUNTERS,
					      GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	trace_memreap_rss_spread(mm, ret);
}

/**
 * mm_counter_add - add to one of an address space's counters
 * @mm: the address space
 * @member: which, MM_FILEPAGES to MM_SHMEMPAGES
 * @value: pages; may be negative
 *
 * Context: a task's; those who change page tables hold their locks.
 */
void mm_counter_add(struct mm_struct *mm, int member, long value)
{
	if (likely(current->mm == mm && !READ_ONCE(mm->rss_shared)))
		WRITE_ONCE(mm->rss_own[member], mm->rss_own[member] + value);
	else
		percpu_counter_tree_add(&mm->rss_stat[member], value);
}
EXPORT_SYMBOL_GPL(mm_counter_add);
