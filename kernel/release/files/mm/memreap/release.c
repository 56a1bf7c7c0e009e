// SPDX-License-Identifier: GPL-2.0-only
/*
 * Release the pages of a torn-down mapping in runs.
 *
 * folios_put_refs() takes the LRU lock for 31 folios at a time, keeps it while
 * it drops references and skips folios with other references, and updates the
 * LRU size counters of node, zone and memcg once per folio. Two CPUs that free
 * at the same time mostly wait for that lock. Here everything that needs no
 * lock is done before it is taken, it is taken for more folios, and neighbours
 * with the same counters are accounted together.
 *
 * free_unref_folios() puts each page on a per-CPU list. Once that is full, it
 * passes pages on to the buddy lists one by one, under the zone lock. Most of
 * the pages of a large process arrive in the order in which the buddy lists
 * gave them away: here, contiguous ones return as blocks, if the process was
 * killed. What others free is soon used again by the same CPU, without a lock.
 */
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/swap.h>
#include <linux/vmstat.h>

#include <trace/events/kmem.h>

#include "compat.h"
#include "release.h"
#include "release_run.h"
#include "switch.h"

DEFINE_STATIC_KEY_TRUE(memreap_release_key);

/*
 * Pages per pass: their struct pages (8 KiB) fit into the first-level cache,
 * and the LRU lock, with interrupts disabled, is held for about four of
 * stock's batches.
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

/* Those that only mean something on a list. */
#define LRU_FLAGS	(GEN_FLAGS | BIT(PG_lru) | BIT(PG_active) |	\
			 BIT(PG_unevictable))

/**
 * struct lru_run - folios removed from one LRU list and not yet accounted
 * @lruvec: of that list, its lru_lock is held; NULL if it is not held
 * @irq_flags: interrupt state before the lock was taken
 * @owner: what the folios are charged to, see owner_of()
 * @flags: the RUN_FLAGS of the folios
 * @nr_pages: pages that were removed
 */
struct lru_run {
	struct lruvec *lruvec;
	unsigned long irq_flags;
	unsigned long owner;
	unsigned long flags;
	long nr_pages;
};

/* The memcg, or object cgroup, of a folio: to compare only. */
static unsigned long owner_of(const struct folio *folio)
{
#ifdef CONFIG_MEMCG
	return folio->memcg_data;
#else
	return 0;
#endif
}

static bool in_run(const struct lru_run *run, struct folio *folio)
{
	return run->lruvec && run->owner == owner_of(folio) &&
	       run->flags == (memreap_folio_flags(folio) & RUN_FLAGS);
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
	lruvec_unlock_irqrestore(run->lruvec, run->irq_flags);
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
	run->owner = owner_of(folio);
	/* Reclaim moves folios between generations, under the lock. */
	run->flags = memreap_folio_flags(folio) & RUN_FLAGS;
}

/*
 * Removes folios without references from their LRU lists. Only holders of the
 * LRU lock still change their flags, so plain stores are sufficient, as in
 * stock; a memory failure can be lost, as there.
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
		memreap_folio_flags(folio) &= ~LRU_FLAGS;
		run.nr_pages += folio_nr_pages(folio);
	}
	end_run(&run);
}

/* The kinds of folio that stock treats separately. */
static bool is_special(struct folio *folio)
{
	if (folio_test_large(folio) &&
	    (is_huge_zero_folio(folio) || folio_test_hugetlb(folio)))
		return true;

	return folio_is_zone_device(folio);
}

static void put_special(struct folio *folio, unsigned int refs)
{
	struct folio_batch one;

	folio_batch_init(&one);
	folio_batch_add(&one, folio);
	folios_put_refs(&one, &refs);
}

/*
 * Drops the references in @pages, and removes the folios that have no more from
 * their LRU lists. Returns how many these are; @pages then holds them instead.
 */
static unsigned int put_pages(struct encoded_page **pages, unsigned int nr)
{
	struct folio **dead = (struct folio **)pages;
	unsigned int nr_dead = 0;

	for (unsigned int i = 0; i < nr; i++) {
		struct encoded_page *entry = pages[i];
		struct folio *folio = page_folio(encoded_page_ptr(entry));
		unsigned int refs = 1;

		if (unlikely(encoded_page_flags(entry) &
			     ENCODED_PAGE_BIT_NR_PAGES_NEXT))
			refs = encoded_nr_pages(pages[++i]);

		if (folio_test_swapcache(folio))
			free_swap_cache(folio);
		if (unlikely(is_special(folio))) {
			put_special(folio, refs);
			continue;
		}
		if (!folio_ref_sub_and_test(folio, refs))
			continue;
		folio_unqueue_deferred_split(folio);
		dead[nr_dead++] = folio;
	}
	lru_remove(dead, nr_dead);

	return nr_dead;
}

/* Uncharges folios. Those of a process mostly belong to one memcg. */
static void uncharge(struct folio **folios, unsigned int nr)
{
#ifdef CONFIG_MEMCG
	unsigned int nr_folios = 0, nr_pages = 0;
	unsigned long owner = 0;
	int nid = 0;

	for (unsigned int i = 0; i < nr; i++) {
		struct folio *folio = folios[i];

		if (owner_of(folio) != owner) {
			if (folio_memcg_kmem(folio)) {
				mem_cgroup_uncharge(folio);
				continue;
			}
			if (owner)
				mem_cgroup_uncharge_pages(owner, nr_folios,
							  nr_pages, nid);
			owner = owner_of(folio);
			nid = folio_nid(folio);
			nr_folios = 0;
			nr_pages = 0;
		}
		nr_folios++;
		nr_pages += folio_nr_pages(folio);
		folio->memcg_data = 0;
	}
	if (owner)
		mem_cgroup_uncharge_pages(owner, nr_folios, nr_pages, nid);
#endif
}

/* As stock does when it has given pages back: only then does it look. */
static void note_refill(struct zone *zone)
{
	if (test_bit(ZONE_BELOW_HIGH, &zone->flags) &&
	    zone_watermark_ok(zone, 0, high_wmark_pages(zone), ZONE_MOVABLE,
			      0)) {
		clear_bit(ZONE_BELOW_HIGH, &zone->flags);
		compat_wake_hopeless(zone->zone_pgdat);
	}
}

/*
 * Gives all of @runs to the buddy lists. Not inlined, so that whoever traces
 * contended locks can tell this one from the LRU lock.
 */
static noinline void free_runs(struct page_runs *runs)
{
	unsigned long nr_pages = 0;
	unsigned long flags;

	if (!runs->nr)
		return;

	spin_lock_irqsave(&runs->zone->lock, flags);
	for (unsigned int i = 0; i < runs->nr; i++) {
		struct page_run *run = &runs->runs[i];

		nr_pages += run->nr;
		while (run->nr) {
			unsigned int order = page_run_order(run);

			free_prepared_block(runs->zone, run->pfn, order);
			run->pfn += 1UL << order;
			run->nr -= 1UL << order;
		}
	}
	spin_unlock_irqrestore(&runs->zone->lock, flags);
	count_vm_events(PGFREE, nr_pages);
	note_refill(runs->zone);
	runs->nr = 0;
}

static void add_run(struct page_runs *runs, struct zone *zone,
		    unsigned long pfn, unsigned long end)
{
	struct page_run run = { .pfn = pfn, .nr = end - pfn };

	if (!run.nr)
		return;
	if (runs->nr == RELEASE_MAX_RUNS || (runs->nr && runs->zone != zone))
		free_runs(runs);
	runs->zone = zone;
	page_runs_add(runs, &run);
}

/* Prepares the pages of @run, and adds to @runs those that may be used again. */
static void prepare_run(struct page_runs *runs, const struct page_run *run)
{
	unsigned long end = run->pfn + run->nr;
	unsigned long start = run->pfn;
	struct zone *zone = page_zone(pfn_to_page(start));

	for (unsigned long pfn = start; pfn < end; pfn++) {
		struct page *page = pfn_to_page(pfn);

		if (likely(free_pages_prepare(page, 0))) {
			trace_mm_page_free_batched(page);
			continue;
		}
		/* Poisoned by a memory failure, or in a bad state. */
		add_run(runs, zone, start, pfn);
		start = pfn + 1;
	}
	add_run(runs, zone, start, end);
}

/* Frees folios, those in runs at the latest when @runs are freed. */
static void free_dead(struct folio **folios, unsigned int nr,
		      struct page_runs *runs)
{
	struct folio_batch batch;
	struct page_run run;

	folio_batch_init(&batch);
	while (nr) {
		unsigned int n = runs ? page_run_find(folios, nr, &run) : 1;

		if (n >= RELEASE_MIN_RUN) {
			prepare_run(runs, &run);
		} else {
			for (unsigned int i = 0; i < n; i++)
				if (!folio_batch_add(&batch, folios[i]))
					free_unref_folios(&batch);
		}
		folios += n;
		nr -= n;
	}
	if (batch.nr)
		free_unref_folios(&batch);
}

/**
 * memreap_release_pages - drop references that an mmu_gather collected
 * @pages: encoded pages as in free_pages_and_swap_cache(); overwritten
 * @nr: entries in @pages
 * @killed: whether contiguous pages return as blocks
 *
 * Does what free_pages_and_swap_cache() does.
 */
void memreap_release_pages(struct encoded_page **pages, int nr, bool killed)
{
	struct page_runs runs;

	memreap_lru_add_drain();

	runs.nr = 0;
	while (nr) {
		/* The caller's array is scratch space, for the folios. */
		struct folio **dead = (struct folio **)pages;
		unsigned int n = min(nr, RELEASE_PAGES);
		unsigned int nr_dead;

		/* A page and its count stay together. */
		if (unlikely(encoded_page_flags(pages[n - 1]) &
			     ENCODED_PAGE_BIT_NR_PAGES_NEXT))
			n++;
		nr_dead = put_pages(pages, n);
		uncharge(dead, nr_dead);
		free_dead(dead, nr_dead, killed ? &runs : NULL);
		pages += n;
		nr -= n;
	}
	free_runs(&runs);
}

static const struct memreap_switch release_switch = {
	.key = &memreap_release_key.key,
};

memreap_switch_param(release, &release_switch);
MODULE_PARM_DESC(release, "Release the pages of a mapping in runs (default: Y)");
