/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_MEMCG_EXIT_H
#define _MM_MEMREAP_MEMCG_EXIT_H

#include <linux/gfp_types.h>
#include <linux/jump_label.h>
#include <linux/oom.h>
#include <linux/sched.h>

struct mem_cgroup;
struct page_counter;

#ifdef CONFIG_MEMREAP_MEMCG_EXIT

DECLARE_STATIC_KEY_TRUE(memreap_memcg_exit_key);

bool memreap_memcg_has_reserve(struct page_counter *memory,
			       struct page_counter *memsw);
bool memreap_memcg_exit(struct mem_cgroup *memcg);

/*
 * In try_charge_memcg(), if @memcg or one above it does not have room for
 * @nr_pages. For processes that die as a whole: what one thread of many reads
 * back stays. Once the OOM killer waits for them, as reclaim was in vain: before,
 * it may help, and later others at the limit would be killed for the excess. And
 * for pages without which it cannot exit: who asks for several, or for readahead,
 * goes on with fewer.
 */
static inline bool memcg_exit_may_exceed(struct mem_cgroup *memcg, gfp_t gfp,
					 unsigned int nr_pages)
{
	return static_branch_likely(&memreap_memcg_exit_key) &&
	       current->flags & PF_EXITING &&
	       tsk_is_oom_victim(current) &&
	       nr_pages == 1 &&
	       !(gfp & (__GFP_NORETRY | __GFP_RETRY_MAYFAIL)) &&
	       memreap_memcg_exit(memcg);
}

#else

static inline bool memcg_exit_may_exceed(struct mem_cgroup *memcg, gfp_t gfp,
					 unsigned int nr_pages)
{
	return false;
}

#endif /* CONFIG_MEMREAP_MEMCG_EXIT */

#endif /* _MM_MEMREAP_MEMCG_EXIT_H */
