/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_RELEASE_RUN_H
#define _MM_MEMREAP_RELEASE_RUN_H

#include <linux/bitops.h>
#include <linux/log2.h>
#include <linux/memreap_compat.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/pageblock-flags.h>

/*
 * The shortest run that goes to the buddy lists as blocks: already one of four
 * pages saves a quarter of the instructions of an exit.
 */
#define RELEASE_MIN_RUN		4

/*
 * Runs per hold of the zone lock, with interrupts disabled: if they are short,
 * as many pages as a per-CPU list passes on at once.
 */
#define RELEASE_MAX_RUNS	16

/**
 * struct page_run - physically contiguous single pages of one zone
 * @pfn: the lowest page
 * @nr: number of pages
 */
struct page_run {
	unsigned long pfn;
	unsigned long nr;
};

/**
 * struct page_runs - pages that have been prepared for the buddy lists
 * @zone: of all of them
 * @nr: entries in @runs
 * @runs: the pages
 */
struct page_runs {
	struct zone *zone;
	unsigned int nr;
	struct page_run runs[RELEASE_MAX_RUNS];
};

/* Flags that are the same in all pages of a run. */
#define PAGE_RUN_FLAGS	((SECTIONS_MASK << SECTIONS_PGSHIFT) |	\
			 (NODES_MASK << NODES_PGSHIFT) |	\
			 (ZONES_MASK << ZONES_PGSHIFT) | BIT(PG_head))

/**
 * page_run_find - find contiguous single pages at the start of an array
 * @folios: folios in the order in which they die
 * @nr: entries in @folios, at least 1
 * @run: set to the pages found
 *
 * Addresses that were touched in ascending order have ascending pages after
 * a boot, and descending ones where a process got what another had freed.
 *
 * Return: how many of @folios are in @run; 1 for a folio that is in none.
 */
static inline unsigned int page_run_find(struct folio **folios, unsigned int nr,
					 struct page_run *run)
{
	unsigned long flags = memreap_folio_flags(folios[0]);
	unsigned long pfn = folio_pfn(folios[0]);
	unsigned long step = 1;
	unsigned int n = 1;

	if (nr > 1 && folio_pfn(folios[1]) == pfn - 1)
		step = -1;
	if (!(flags & BIT(PG_head)))
		while (n < nr && folio_pfn(folios[n]) == pfn + n * step &&
		       !((memreap_folio_flags(folios[n]) ^ flags) &
			 PAGE_RUN_FLAGS))
			n++;

	run->pfn = step == 1 ? pfn : pfn - (n - 1);
	run->nr = n;

	return n;
}

/**
 * page_run_order - order of the first block of a run
 * @run: the pages
 *
 * A block is aligned and does not reach beyond its pageblock, so all of it has
 * the same migratetype.
 *
 * Return: the largest possible order.
 */
static inline unsigned int page_run_order(const struct page_run *run)
{
	unsigned int order = min_t(unsigned int, ilog2(run->nr),
				   pageblock_order);

	return run->pfn ? min_t(unsigned int, order, __ffs(run->pfn)) : order;
}

/**
 * page_runs_add - add a run
 * @runs: of the same zone, with room for one more
 * @run: the pages, which are in none of @runs
 */
static inline void page_runs_add(struct page_runs *runs,
				 const struct page_run *run)
{
	struct page_run *last = runs->runs + runs->nr - 1;

	/* Large runs come in parts, one per pass. */
	if (runs->nr && last->pfn + last->nr == run->pfn) {
		last->nr += run->nr;
	} else if (runs->nr && run->pfn + run->nr == last->pfn) {
		last->pfn = run->pfn;
		last->nr += run->nr;
	} else {
		runs->runs[runs->nr++] = *run;
	}
}

#endif /* _MM_MEMREAP_RELEASE_RUN_H */
