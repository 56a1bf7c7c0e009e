// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whether the swap device that is used first is full. Included by mm/swapfile.c,
 * of whose lists it is made.
 */
#ifdef CONFIG_MEMREAP_SWAP_DEFER

static int first_prio(const struct plist_head *head)
{
	const struct list_head *first = READ_ONCE(head->node_list.next);

	if (first == &head->node_list)
		return INT_MAX;

	/* Without the lock: these nodes are never freed. */
	return data_race(list_entry(first, struct plist_node, node_list)->prio);
}

/**
 * swap_first_is_full - tell whether a slot would come from a device that is used
 *	only because those of a higher priority are full, or from none
 *
 * If slots wait, they may be what fills it.
 */
bool swap_first_is_full(void)
{
	return first_prio(&swap_avail_heads[numa_node_id()]) >
	       first_prio(&swap_active_head);
}

#endif /* CONFIG_MEMREAP_SWAP_DEFER */
