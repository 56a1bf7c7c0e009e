// SPDX-License-Identifier: GPL-2.0-only
/*
 * Let dying processes exceed the limit of their cgroup a little.
 *
 * To exit, a thread may have to read a page back from swap: the head of its list
 * of robust futexes, or the word that it clears for whoever joins it. When a
 * process of many threads is killed because its cgroup is at its limit, each of
 * them reclaims in vain, and waits for oom_lock, twice. What they wait for is
 * what they are about to give back.
 */
#include <linux/memcontrol.h>
#include <linux/module.h>
#include <linux/page_counter.h>
#include <linux/sizes.h>

#include "../memcontrol-v1.h"
#include "memcg_exit.h"
#include "switch.h"

#define CREATE_TRACE_POINTS
#include <trace/events/memreap_memcg_exit.h>

/*
 * The part of a limit by which it may be exceeded, and the most. Many threads need
 * a page each; their kernel stacks, four pages each, come back meanwhile.
 */
#define RESERVE_DIVISOR		8
#define RESERVE_MAX_PAGES	(SZ_64M / PAGE_SIZE)

DEFINE_STATIC_KEY_TRUE(memreap_memcg_exit_key);

static bool has_reserve(struct page_counter *counter)
{
	for (; counter; counter = counter->parent) {
		unsigned long max = READ_ONCE(counter->max);

		/* PAGE_COUNTER_MAX is far from an overflow. */
		if (page_counter_read(counter) >=
		    max + min(max / RESERVE_DIVISOR, RESERVE_MAX_PAGES))
			return false;
	}

	return true;
}

/**
 * memreap_memcg_has_reserve - whether limits may be exceeded by another page
 * @memory: counts the memory of a cgroup
 * @memsw: counts its memory and swap together in cgroup v1, else NULL
 *
 * Those of all above them, too. Nothing is reserved: each task between this and
 * its charge, which may be preempted there, may exceed them by its page.
 */
bool memreap_memcg_has_reserve(struct page_counter *memory,
			       struct page_counter *memsw)
{
	/* An eighth of the limit of both is no bound for memory. */
	return has_reserve(memory) && has_reserve(memsw);
}

/**
 * memreap_memcg_exit - whether a dying process may exceed a limit by a page
 * @memcg: it or one above it has no room
 */
bool memreap_memcg_exit(struct mem_cgroup *memcg)
{
	struct page_counter *memsw = do_memsw_account() ? &memcg->memsw : NULL;
	bool may;

	/* What is read from swap beside its own pages may be of others. */
	rcu_read_lock();
	may = mem_cgroup_from_task(current) == memcg;
	rcu_read_unlock();
	may = may && memreap_memcg_has_reserve(&memcg->memory, memsw);
	trace_memreap_memcg_exit(memcg, may);

	return may;
}

static const struct memreap_switch memcg_exit_switch = {
	.key = &memreap_memcg_exit_key.key,
};

memreap_switch_param(memcg_exit, &memcg_exit_switch);
MODULE_PARM_DESC(memcg_exit,
		 "Dying processes may exceed the limit of their cgroup a little (default: Y)");
