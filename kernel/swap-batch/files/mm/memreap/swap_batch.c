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
#include <linux/mm.h>
#include <linux/swap.h>
#include <linux/swapops.h>

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

static const struct memreap_switch swap_batch_switch = {
	.key = &memreap_swap_batch_key.key,
};

memreap_switch_param(swap_batch, &swap_batch_switch);
MODULE_PARM_DESC(swap_batch,
		 "Release swap slots in batches, not under page table locks (default: Y)");
