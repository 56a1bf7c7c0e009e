// SPDX-License-Identifier: GPL-2.0-only
/*
 * Release the pages of a torn-down mapping with short, few holds of the LRU
 * lock.
 *
 * folios_put_refs() takes the lock for 31 folios at a time, keeps it while it
 * drops references and sorts out the folios that live on, and updates the LRU
 * size counters of node, zone and memcg once per folio. Two CPUs that free at
 * the same time spend much of it waiting for that lock. Here everything that
 * needs no lock is done before it is taken, it is taken for more folios, and
 * neighbours with the same counters are accounted as one.
 */
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/pagevec.h>
#include <linux/swap.h>

#include "../internal.h"
#include "../swap.h"
#include "reap.h"

/*
 * Pages per pass: their struct pages (8 KiB) are still in the first-level
 * cache when the pass comes round to them again, and the LRU lock, with
 * interrupts off, is not held for longer than four of stock's batches.
 */
#define RELEASE_PAGES	128

/**
 * struct lru_run - folios taken off one LRU list that are not accounted yet
 * @lruvec: where from, its lru_lock is held; NULL if it is not held
 * @flags: interrupt state from before the lock was taken
 * @lru: the list, or for a multi-gen LRU the type's inactive list
 * @gen: generation of a multi-gen LRU, or -1
 * @zone: zone of the folios
 * @nr_pages: how many pages have been taken off
 */
struct lru_run {
	struct lruvec *lruvec;
	unsigned long flags;
	enum lru_list lru;
	int gen;
	enum zone_type zone;
	long nr_pages;
};

static void account_run(struct lru_run *run)
{
	long nr_pages = run->nr_pages;

	if (!nr_pages)
		return;
	run->nr_pages = 0;

#ifdef CONFIG_LRU_GEN
	if (run->gen >= 0) {
		long *size = &run->lruvec->lrugen.nr_pages[run->gen]
				[run->lru / LRU_INACTIVE_FILE][run->zone];
		enum lru_list lru = run->lru;

		if (lru_gen_is_active(run->lruvec, run->gen))
			lru += LRU_ACTIVE;
		WRITE_ONCE(*size, *size - nr_pages);
		__update_lru_size(run->lruvec, lru, run->zone, -nr_pages);
		return;
	}
#endif
	update_lru_size(run->lruvec, run->lru, run->zone, -nr_pages);
}

static void end_run(struct lru_run *run)
{
	if (!run->lruvec)
		return;
	account_run(run);
	unlock_page_lruvec_irqrestore(run->lruvec, run->flags);
	run->lruvec = NULL;
}

/* The multi-gen LRU generation that a folio about to be freed is in, or -1. */
static int take_generation(struct folio *folio)
{
#ifdef CONFIG_LRU_GEN
	if (folio_lru_gen(folio) >= 0) {
		unsigned long flags;

		flags = set_mask_bits(&folio->flags, LRU_GEN_MASK, 0);
		return ((flags & LRU_GEN_MASK) >> LRU_GEN_PGOFF) - 1;
	}
#endif
	return -1;
}

/* Take a folio without references off its LRU list; the lock is held. */
static void lru_remove(struct lru_run *run, struct folio *folio)
{
	enum lru_list lru = folio_lru_list(folio);
	enum zone_type zone = folio_zonenum(folio);
	int gen = take_generation(folio);

	if (gen >= 0)
		lru = folio_is_file_lru(folio) ? LRU_INACTIVE_FILE :
						 LRU_INACTIVE_ANON;
	if (run->lru != lru || run->gen != gen || run->zone != zone) {
		account_run(run);
		run->lru = lru;
		run->gen = gen;
		run->zone = zone;
	}
	if (lru != LRU_UNEVICTABLE)
		list_del(&folio->lru);
	__folio_clear_lru_flags(folio);
	run->nr_pages += folio_nr_pages(folio);
}

static void lru_remove_all(struct folio **folios, int nr)
{
	struct lru_run run = { .gen = -1 };

	for (int i = 0; i < nr; i++) {
		struct folio *folio = folios[i];

		if (!folio_test_lru(folio))
			continue;
		if (run.lruvec && !folio_matches_lruvec(folio, run.lruvec))
			end_run(&run);
		if (!run.lruvec)
			run.lruvec = folio_lruvec_lock_irqsave(folio, &run.flags);
		lru_remove(&run, folio);
	}
	end_run(&run);
}

/* The few kinds of folio whose last reference is not dropped like the rest. */
static void put_special(struct folio *folio, unsigned int refs)
{
	struct folio_batch one;

	folio_batch_init(&one);
	folio_batch_add(&one, folio);
	folios_put_refs(&one, &refs);
}

static void release(struct encoded_page **pages, int nr)
{
	/* The array is the caller's scratch space from here on. */
	struct folio **dead = (struct folio **)pages;
	struct folio_batch batch;
	int nr_dead = 0;

	for (int i = 0; i < nr; i++) {
		struct encoded_page *entry = pages[i];
		struct folio *folio = page_folio(encoded_page_ptr(entry));
		unsigned int refs = 1;

		if (unlikely(encoded_page_flags(entry) &
			     ENCODED_PAGE_BIT_NR_PAGES_NEXT))
			refs = encoded_nr_pages(pages[++i]);

		free_swap_cache(folio);
		if (unlikely(is_huge_zero_folio(folio) ||
			     folio_is_zone_device(folio) ||
			     folio_test_hugetlb(folio))) {
			put_special(folio, refs);
			continue;
		}
		if (!folio_ref_sub_and_test(folio, refs))
			continue;
		folio_unqueue_deferred_split(folio);
		dead[nr_dead++] = folio;
	}

	lru_remove_all(dead, nr_dead);

	folio_batch_init(&batch);
	for (int i = 0; i < nr_dead; i++) {
		if (folio_batch_add(&batch, dead[i]) && i + 1 < nr_dead)
			continue;
		mem_cgroup_uncharge_folios(&batch);
		free_unref_folios(&batch);
	}
}

/**
 * memreap_release_pages - drop references that an mmu_gather collected
 * @pages: encoded pages as in free_pages_and_swap_cache(); overwritten
 * @nr: entries in @pages
 *
 * Does what free_pages_and_swap_cache() does.
 */
void memreap_release_pages(struct encoded_page **pages, int nr)
{
	lru_add_drain();

	while (nr) {
		int n = min(nr, RELEASE_PAGES);

		/* A page and its count stay together. */
		if (unlikely(encoded_page_flags(pages[n - 1]) &
			     ENCODED_PAGE_BIT_NR_PAGES_NEXT))
			n++;
		release(pages, n);
		pages += n;
		nr -= n;
	}
}
