// SPDX-License-Identifier: GPL-2.0-only
/*
 * Release the pages of a torn-down mapping with few and short holds of the LRU
 * lock.
 *
 * folios_put_refs() takes the lock for 31 folios at a time, keeps it while it
 * drops references and skips folios with other references, and updates the LRU
 * size counters of node, zone and memcg once per folio. Two CPUs that free at
 * the same time mostly wait for that lock. Here everything that needs no lock
 * is done before it is taken, it is taken for more folios, and neighbours with
 * the same counters are accounted together.
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
 * Pages per pass: their struct pages (8 KiB) fit into the first-level cache,
 * and the LRU lock, with interrupts disabled, is not held for longer than four
 * of stock's batches.
 */
#define RELEASE_PAGES	128

/* The page flags that select the LRU list of a folio and its counters. */
#ifdef CONFIG_LRU_GEN
#define GEN_FLAGS	LRU_GEN_MASK
#else
#define GEN_FLAGS	0UL
#endif
#define RUN_FLAGS	((SECTIONS_MASK << SECTIONS_PGSHIFT) |	\
			 (NODES_MASK << NODES_PGSHIFT) |	\
			 (ZONES_MASK << ZONES_PGSHIFT) |	\
			 GEN_FLAGS | BIT(PG_swapbacked) |	\
			 BIT(PG_active) | BIT(PG_unevictable))

/**
 * struct lru_run - folios removed from one LRU list and not yet accounted
 * @lruvec: of that list, its lru_lock is held; NULL if it is not held
 * @irq_flags: interrupt state before the lock was taken
 * @memcg: that the folios are charged to
 * @flags: the RUN_FLAGS of the folios
 * @nr_pages: pages that were removed
 */
struct lru_run {
	struct lruvec *lruvec;
	unsigned long irq_flags;
	struct mem_cgroup *memcg;
	unsigned long flags;
	long nr_pages;
};

static bool in_run(const struct lru_run *run, struct folio *folio)
{
	return run->lruvec && run->memcg == folio_memcg(folio) &&
	       run->flags == (folio->flags & RUN_FLAGS);
}

#ifdef CONFIG_LRU_GEN
/* Subtracts @nr_pages from the size of a multi-gen LRU's list. */
static void account_gen(struct lruvec *lruvec, unsigned long flags,
			enum lru_list lru, enum zone_type zone, long nr_pages)
{
	int gen = ((flags & LRU_GEN_MASK) >> LRU_GEN_PGOFF) - 1;
	int type = lru == LRU_INACTIVE_FILE;
	long *size = &lruvec->lrugen.nr_pages[gen][type][zone];

	if (lru_gen_is_active(lruvec, gen))
		lru += LRU_ACTIVE;
	WRITE_ONCE(*size, *size - nr_pages);
	__update_lru_size(lruvec, lru, zone, -nr_pages);
}
#else
static void account_gen(struct lruvec *lruvec, unsigned long flags,
			enum lru_list lru, enum zone_type zone, long nr_pages)
{
}
#endif

static void account_run(struct lru_run *run)
{
	enum zone_type zone = (run->flags >> ZONES_PGSHIFT) & ZONES_MASK;
	enum lru_list lru = run->flags & BIT(PG_swapbacked) ?
				LRU_INACTIVE_ANON : LRU_INACTIVE_FILE;
	long nr_pages = run->nr_pages;

	if (!nr_pages)
		return;
	run->nr_pages = 0;

	if (run->flags & GEN_FLAGS) {
		account_gen(run->lruvec, run->flags, lru, zone, nr_pages);
		return;
	}
	if (run->flags & BIT(PG_unevictable))
		lru = LRU_UNEVICTABLE;
	else if (run->flags & BIT(PG_active))
		lru += LRU_ACTIVE;
	update_lru_size(run->lruvec, lru, zone, -nr_pages);
}

static void end_run(struct lru_run *run)
{
	if (!run->lruvec)
		return;
	account_run(run);
	unlock_page_lruvec_irqrestore(run->lruvec, run->irq_flags);
	run->lruvec = NULL;
}

/* Starts the run that @folio belongs to, with its lock held. */
static void begin_run(struct lru_run *run, struct folio *folio)
{
	if (run->lruvec && folio_matches_lruvec(folio, run->lruvec))
		account_run(run);
	else
		end_run(run);

	if (!run->lruvec)
		run->lruvec = folio_lruvec_lock_irqsave(folio, &run->irq_flags);
	run->memcg = folio_memcg(folio);
	/* Reclaim moves folios between generations, under the lock. */
	run->flags = folio->flags & RUN_FLAGS;
}

/*
 * Removes folios without references from their LRU lists. Only holders of the
 * LRU lock still change their flags, so plain stores are sufficient.
 */
static void lru_remove(struct folio **folios, int nr)
{
	struct lru_run run = {};

	for (int i = 0; i < nr; i++) {
		struct folio *folio = folios[i];

		if (!folio_test_lru(folio))
			continue;
		if (!in_run(&run, folio))
			begin_run(&run, folio);

		if (!(run.flags & BIT(PG_unevictable)))
			list_del(&folio->lru);
		folio->flags &= ~GEN_FLAGS;
		__folio_clear_lru_flags(folio);
		run.nr_pages += folio_nr_pages(folio);
	}
	end_run(&run);
}

/* Drops references to the kinds of folio that stock treats separately. */
static void put_special(struct folio *folio, unsigned int refs)
{
	struct folio_batch one;

	folio_batch_init(&one);
	folio_batch_add(&one, folio);
	folios_put_refs(&one, &refs);
}

static void release(struct encoded_page **pages, int nr)
{
	/* From here on the caller's array is scratch space. */
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

	lru_remove(dead, nr_dead);

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
