/* SPDX-License-Identifier: GPL-2.0-only */
/* Swap slots that wait to be released, in a ring of fixed size. */
#ifndef _MM_MEMREAP_SWAP_RING_H
#define _MM_MEMREAP_SWAP_RING_H

#include "swap_batch.h"

struct cgroup;

/**
 * struct swap_ring_entry - slots that wait
 * @run: the slots
 * @owner: the cgroup whose process had them, with a reference; or NULL
 */
struct swap_ring_entry {
	struct swap_run run;
	struct cgroup *owner;
};

/**
 * struct swap_ring - slots that wait, in the order in which they came
 * @entries: the ring
 * @size: of @entries
 * @first: the entry that came first
 * @nr: entries in use
 */
struct swap_ring {
	struct swap_ring_entry *entries;
	unsigned int size;
	unsigned int first;
	unsigned int nr;
};

/**
 * swap_ring_add - add slots, all or none
 * @ring: the ring
 * @runs: the slots
 * @nr: entries in @runs
 * @owner: of all of them; with all of them, @nr references pass to the ring
 *
 * Return: whether there was room.
 */
static inline bool swap_ring_add(struct swap_ring *ring,
				 const struct swap_run *runs, unsigned int nr,
				 struct cgroup *owner)
{
	unsigned int at = ring->first + ring->nr;

	if (ring->size - ring->nr < nr)
		return false;
	ring->nr += nr;
	for (; nr; nr--, at++)
		ring->entries[at % ring->size] = (struct swap_ring_entry){
			.run = *runs++, .owner = owner
		};

	return true;
}

/**
 * swap_ring_take - take a batch of the slots that came first
 * @ring: the ring
 * @batch: set to slots of one device
 * @owner: set to the owner of all of them; the references pass to the caller
 */
static inline void swap_ring_take(struct swap_ring *ring,
				  struct swap_batch *batch,
				  struct cgroup **owner)
{
	batch->mm = NULL;
	batch->nr = 0;
	batch->pages = 0;
	*owner = NULL;
	while (ring->nr && !swap_batch_full(batch)) {
		struct swap_ring_entry *entry = &ring->entries[ring->first];

		if (batch->nr && (entry->owner != *owner ||
				  entry->run.type != batch->runs[0].type ||
				  batch->pages + entry->run.nr > SWAP_BATCH_PAGES))
			break;
		*owner = entry->owner;
		batch->runs[batch->nr++] = entry->run;
		batch->pages += entry->run.nr;
		ring->first = (ring->first + 1) % ring->size;
		ring->nr--;
	}
}

#endif /* _MM_MEMREAP_SWAP_RING_H */
