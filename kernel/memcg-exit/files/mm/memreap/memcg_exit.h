/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_MEMCG_EXIT_H
#define _MM_MEMREAP_MEMCG_EXIT_H

#include <linux/jump_label.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>

struct mem_cgroup;
struct page_counter;

#ifdef CONFIG_MEMREAP_MEMCG_EXIT

DECLARE_STATIC_KEY_TRUE(memreap_memcg_exit_key);

bool memreap_memcg_has_reserve(struct page_counter *memory,
			       struct page_counter *memsw,
			       unsigned long nr_pages);
bool memreap_memcg_exit(struct mem_cgroup *memcg, unsigned long nr_pages);

/*
 * In try_charge_memcg(), if @memcg or one above it does not have room for
 * @nr_pages. For processes that die as a whole: what one thread of many reads
 * back stays.
 */
static inline bool memcg_exit_may_exceed(struct mem_cgroup *memcg,
					 unsigned long nr_pages)
{
	return static_branch_likely(&memreap_memcg_exit_key) &&
	       current->flags & PF_EXITING &&
	       READ_ONCE(current->signal->flags) & SIGNAL_GROUP_EXIT &&
	       memreap_memcg_exit(memcg, nr_pages);
}

#else

static inline bool memcg_exit_may_exceed(struct mem_cgroup *memcg,
					 unsigned long nr_pages)
{
	return false;
}

#endif /* CONFIG_MEMREAP_MEMCG_EXIT */

#endif /* _MM_MEMREAP_MEMCG_EXIT_H */
