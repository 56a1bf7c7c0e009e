// SPDX-License-Identifier: GPL-2.0-only
/*
 * Release the swap slots of a page table together.
 *
 * The stock code releases them one by one, or by runs of neighbours, while it
 * holds the lock of the page table: with it the locks of device and cluster, and
 * for each slot a store into the swap cache, to remove a shadow, and a call of
 * the device, which frees what it stored. Here the entries are only recorded
 * under the page table lock.
 */
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/swap.h>
#include <linux/swapops.h>
#include <linux/xarray.h>

#include "../swap.h"
#include "swap_batch.h"
#include "switch.h"

#define CREATE_TRACE_POINTS
#include <trace/events/memreap_swap_batch.h>

DEFINE_STATIC_KEY_TRUE(memreap_swap_batch_key);

/**
 * memreap_swap_batch_add - record swap entries of a page table
 * @batch: which is not full; preemption is disabled until it is released
 * @entry: the first entry
 * @nr: entries, contiguous, as many as there is room for
 *
 * Instead of free_swap_and_cache_nr(), with the page table locked.
 */
void memreap_swap_batch_add(struct swap_batch *batch, swp_entry_t entry,
			    int nr)
{
	struct swap_info_struct *si = swp_swap_info(entry);

	/* The page table is corrupted: the stock code reports that. */
	if (unlikely(!si || swp_offset(entry) + nr > si->max)) {
		free_swap_and_cache_nr(entry, nr);
		return;
	}

	if (!batch->nr)
		swap_preempt_disable();
	batch->runs[batch->nr++] = (struct swap_run){
		.offset = swp_offset(entry), .nr = nr, .type = swp_type(entry)
	};
	batch->pages += nr;
}

/**
 * memreap_swap_batch_free - release the entries of a batch
 * @batch: which is not empty, and whose page table is not locked any more
 */
void memreap_swap_batch_free(struct swap_batch *batch)
{
	unsigned int freed = swap_free_batch(batch);

	trace_memreap_swap_batch(batch, freed);
	swap_preempt_enable();
}

/**
 * swap_clear_nodes - remove the shadows of free slots, by nodes or parts of them
 * @xas: at the first of them, locked; it will be behind the last one
 * @last: their last index, or any behind it that ends the tree
 *
 * There are no folios among them.
 */
void swap_clear_nodes(struct xa_state *xas, unsigned long last)
{
	unsigned long index = xas->xa_index;
	unsigned int order;

	last = min(last, SWAP_ADDRESS_SPACE_PAGES - 1UL);
	for (; index <= last; index += 1UL << order) {
		order = min_t(unsigned int, __ffs(index | XA_CHUNK_SIZE),
			      ilog2(last - index + 1));
		xas_set_order(xas, index, order);
		xas_store(xas, NULL);
	}
	xas_set(xas, index);
}

static const struct memreap_switch swap_batch_switch = {
	.key = &memreap_swap_batch_key.key,
};

memreap_switch_param(swap_batch, &swap_batch_switch);
MODULE_PARM_DESC(swap_batch,
		 "Release swap slots in batches, not under page table locks (default: Y)");
