// SPDX-License-Identifier: GPL-2.0-only
/*
 * The release of swap slots in batches. Included by mm/swapfile.c, of whose
 * functions, locks and counters it is made.
 */
#include "swap_batch.h"

static void swap_range_free(struct swap_info_struct *si, unsigned long offset,
			    unsigned int nr_entries);
static unsigned char __swap_entry_free_locked(struct swap_info_struct *si,
					      unsigned long offset,
					      unsigned char usage);

/* Drops what is stored for slots that only the caller can access. */
static void swap_range_forget(struct swap_info_struct *si, unsigned long offset,
			      unsigned int nr)
{
	const struct block_device_operations *fops;

	/* Atomically: the slots beside them may belong to others. */
	for (unsigned int i = 0; i < nr; i++) {
		if (test_bit(offset + i, si->zeromap))
			clear_bit(offset + i, si->zeromap);
		arch_swap_invalidate_page(si->type, offset + i);
	}
	/* Others change other flags, with the device's lock. */
	if (data_race(si->flags & SWP_BLKDEV)) {
		fops = si->bdev->bd_disk->fops;
		if (fops->swap_slot_free_notify)
			fops->swap_slot_free_notify(si->bdev, offset, nr);
	}
	clear_shadow_from_swap_cache(si->type, offset, offset + nr - 1);
}

#ifdef CONFIG_MEMREAP_SWAP_BATCH

/*
 * Drops a reference to each of some slots of one cluster. Slots without other
 * references are added to @ours: like slots in the slot cache, they are marked
 * SWAP_HAS_CACHE without a folio, which excludes all other tasks.
 *
 * Return: how many slots @ours had room for.
 */
static unsigned int swap_put_slots(struct swap_info_struct *si,
				   unsigned long offset, unsigned int nr,
				   struct swap_run *ours, unsigned int *nr_ours)
{
	unsigned char *map = si->swap_map + offset;
	struct swap_cluster_info *ci;
	bool cached = false;
	unsigned int i, n;

	nr = min_t(unsigned int, nr,
		   SWAPFILE_CLUSTER - offset % SWAPFILE_CLUSTER);
	ci = lock_cluster_or_swap_info(si, offset);
	for (i = 0; i < nr && *nr_ours < SWAP_BATCH_RUNS; i += n) {
		/* The usual case: no other reference, and not in the cache. */
		for (n = 0; i + n < nr && map[i + n] == 1; n++)
			WRITE_ONCE(map[i + n], SWAP_HAS_CACHE);
		if (!n) {
			unsigned char usage;

			n = 1;
			if (WARN_ON_ONCE(!map[i]))
				continue;
			usage = __swap_entry_free_locked(si, offset + i, 1);
			cached |= usage == SWAP_HAS_CACHE;
			if (usage)
				continue;
		}
		ours[(*nr_ours)++] = (struct swap_run){
			.offset = offset + i, .nr = n, .type = si->type
		};
	}
	unlock_cluster_or_swap_info(si, ci);

	/* As free_swap_and_cache_nr() does it; ours have no folio. */
	for (unsigned int j = 0; cached && j < i; ) {
		int pages = 1;

		if (READ_ONCE(map[j]) == SWAP_HAS_CACHE)
			pages = __try_to_reclaim_swap(si, offset + j,
						      TTRS_UNMAPPED | TTRS_FULL);
		pages = max(abs(pages), 1);
		j = ALIGN(offset + j + 1, pages) - offset;
	}

	return i;
}

/*
 * With cgroups of version 1, a fault may have uncharged some of the slots since
 * they were recorded: so each memcg is read now that they are ours.
 */
static void swap_uncharge_ours(const struct swap_run *run)
{
	for (unsigned int i = 0, n; i < run->nr; i += n) {
		swp_entry_t entry = swp_entry(run->type, run->offset + i);
		unsigned short id = lookup_swap_cgroup_id(entry);

		for (n = 1; i + n < run->nr; n++) {
			if (lookup_swap_cgroup_id(swp_entry(run->type,
							    run->offset + i + n)) != id)
				break;
		}
		mem_cgroup_uncharge_swap(entry, n);
	}
}

/**
 * swap_free_ours() - free slots that only the caller can access
 * @ours: the slots, of one device, which are not charged to any memcg
 * @nr: entries in @ours
 *
 * They cannot be allocated before the end, so what is stored for them is dropped
 * without a lock.
 */
void swap_free_ours(const struct swap_run *ours, unsigned int nr)
{
	struct swap_info_struct *si = swap_info[ours->type];
	const struct swap_run *run, *end = ours + nr;
	struct swap_cluster_info *ci;

	for (run = ours; run < end; run++) {
		for (unsigned int i = 0; !zswap_never_enabled() && i < run->nr;
		     i++)
			zswap_invalidate(swp_entry(run->type, run->offset + i));
		swap_range_forget(si, run->offset, run->nr);
	}

	spin_lock(&si->lock);
	for (run = ours; run < end; run++) {
		ci = lock_cluster(si, run->offset);
		memset(si->swap_map + run->offset, 0, run->nr);
		dec_cluster_info_page(si, ci, run->nr);
		unlock_cluster(ci);
		swap_range_free(si, run->offset, run->nr);
	}
	spin_unlock(&si->lock);
}

/**
 * swap_free_batch() - release references to swap entries
 * @batch: the entries
 *
 * Like free_swap_and_cache_nr() for each run, but slots are freed together, and
 * only what needs a lock is done under it.
 *
 * Return: how many slots had no other references.
 */
unsigned int swap_free_batch(const struct swap_batch *batch)
{
	const struct swap_run *run = batch->runs, *end = run + batch->nr;
	struct swap_run ours[SWAP_BATCH_RUNS];
	unsigned int nr_ours, freed = 0, done = 0;
	struct swap_info_struct *si;

	while (run < end) {
		unsigned int type = run->type;

		nr_ours = 0;
		si = get_swap_device(swp_entry(type, run->offset));
		while (run < end && run->type == type &&
		       nr_ours < SWAP_BATCH_RUNS) {
			if (si)
				done += swap_put_slots(si, run->offset + done,
						       run->nr - done, ours,
						       &nr_ours);
			if (!si || done == run->nr) {
				run++;
				done = 0;
			}
		}
		if (!si)
			continue;
		for (unsigned int i = 0; i < nr_ours; i++) {
			swap_uncharge_ours(&ours[i]);
			freed += ours[i].nr;
		}
		if (nr_ours)
			swap_free_ours(ours, nr_ours);
		put_swap_device(si);
	}

	return freed;
}

#endif /* CONFIG_MEMREAP_SWAP_BATCH */
