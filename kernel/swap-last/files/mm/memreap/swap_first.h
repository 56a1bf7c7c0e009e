/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Included by mm/swapfile.c, of whose lists it is made: whether the swap device
 * that is used first is full.
 */
#ifndef _MM_MEMREAP_SWAP_FIRST_H
#define _MM_MEMREAP_SWAP_FIRST_H

#include <linux/memreap_swap_last.h>

static inline int swap_first_prio(const struct plist_head *head)
{
	const struct list_head *first = READ_ONCE(head->node_list.next);

	if (first == &head->node_list)
		return INT_MAX;

	/* Without the lock: these nodes are never freed. */
	return data_race(list_entry(first, struct plist_node, node_list)->prio);
}

/*
 * Slots that wait may be all that fills a device. Live pages do not go to a
 * slower one for them, unless those of one page table are all on others.
 */
static inline void memreap_swap_before_alloc(void)
{
	if (memreap_swap_waits() && swap_first_prio(&swap_avail_head) >
				    swap_first_prio(&swap_active_head))
		memreap_swap_help();
}

#endif /* _MM_MEMREAP_SWAP_FIRST_H */
