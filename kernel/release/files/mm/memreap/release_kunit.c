// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests for the release of pages in runs: which pages form a run, into
 * which blocks it is divided, and whether all of it gets back to the allocator.
 */
#include <kunit/test.h>

#include <linux/gfp.h>
#include <linux/kasan.h>
#include <linux/mm.h>
#include <linux/page_ext.h>
#include <linux/page-isolation.h>
#include <linux/page_owner.h>
#include <linux/poison.h>
#include <linux/prandom.h>
#include <linux/string.h>

#include "compat_kunit.h"
#include "release.h"
#include "release_run.h"

#define MAX_FOLIOS	12
#define NR_FAKE_PAGES	64
#define CHUNK_ORDER	6
#define CHUNK_PAGES	BIT(CHUNK_ORDER)

/**
 * struct find_case - folios that die, and the runs that they are in
 * @name: of the case
 * @order: in which they die, each given by its place in memory
 * @nr: entries in @order
 * @large: the place of a large folio; 0 if there is none
 * @border: the first place in another zone; 0 if there is none
 * @runs: what must be found: the lowest place and the number of pages
 */
struct find_case {
	const char *name;
	u8 order[MAX_FOLIOS];
	u8 nr;
	u8 large;
	u8 border;
	struct {
		u8 low, nr;
	} runs[MAX_FOLIOS];
};

#define ORDER(...)						\
	.order = { __VA_ARGS__ },				\
	.nr = sizeof((u8[]){ __VA_ARGS__ })

static const struct find_case find_cases[] = {
	{ "one", ORDER(5), .runs = { { 5, 1 } } },
	{ "two", ORDER(5, 6), .runs = { { 5, 2 } } },
	{ "two, descending", ORDER(6, 5), .runs = { { 5, 2 } } },
	{ "ascending", ORDER(1, 2, 3, 4, 5, 6, 7, 8), .runs = { { 1, 8 } } },
	{ "descending", ORDER(8, 7, 6, 5, 4, 3, 2, 1), .runs = { { 1, 8 } } },
	{ "every other", ORDER(0, 2, 4, 6),
	  .runs = { { 0, 1 }, { 2, 1 }, { 4, 1 }, { 6, 1 } } },
	{ "every other, descending", ORDER(6, 4, 2),
	  .runs = { { 6, 1 }, { 4, 1 }, { 2, 1 } } },
	{ "up, gap, up", ORDER(0, 1, 2, 4, 5, 6, 7),
	  .runs = { { 0, 3 }, { 4, 4 } } },
	{ "up, then down", ORDER(1, 2, 3, 9, 8, 7, 6),
	  .runs = { { 1, 3 }, { 6, 4 } } },
	{ "down, then up from the next page", ORDER(4, 3, 5, 6, 7),
	  .runs = { { 3, 2 }, { 5, 3 } } },
	{ "up, then the page below", ORDER(4, 5, 3, 2),
	  .runs = { { 4, 2 }, { 2, 2 } } },
	{ "mixed", ORDER(9, 1, 2, 7, 11, 10, 4),
	  .runs = { { 9, 1 }, { 1, 2 }, { 7, 1 }, { 10, 2 }, { 4, 1 } } },
	{ "large folio in between", ORDER(1, 2, 3, 4, 5), .large = 3,
	  .runs = { { 1, 2 }, { 3, 1 }, { 4, 2 } } },
	{ "large folio first", ORDER(3, 4, 5), .large = 3,
	  .runs = { { 3, 1 }, { 4, 2 } } },
	{ "large folio, descending", ORDER(5, 4, 3, 2), .large = 4,
	  .runs = { { 5, 1 }, { 4, 1 }, { 2, 2 } } },
	{ "zone border", ORDER(0, 1, 2, 3, 4, 5, 6), .border = 4,
	  .runs = { { 0, 4 }, { 4, 3 } } },
	{ "zone border, descending", ORDER(6, 5, 4, 3, 2), .border = 4,
	  .runs = { { 4, 3 }, { 2, 2 } } },
};

static void find_case_desc(const struct find_case *c, char *desc)
{
	strscpy(desc, c->name, KUNIT_PARAM_DESC_SIZE);
}

KUNIT_ARRAY_PARAM(find, find_cases, find_case_desc);

static void release_test_find(struct kunit *test)
{
	const struct find_case *c = test->param_value;
	struct folio *folios[MAX_FOLIOS];
	unsigned int at = 0, found = 0;
	unsigned long base;
	struct page *pages;

	/* Of these only the flags and the addresses are looked at. */
	pages = kunit_kcalloc(test, NR_FAKE_PAGES, sizeof(*pages), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, pages);
	for (unsigned int i = 0; i < NR_FAKE_PAGES; i++)
		set_page_links(&pages[i], c->border && i >= c->border, 0, 0);
	if (c->large)
		__set_bit(PG_head, &memreap_folio_flags((struct folio *)
							&pages[c->large]));
	for (unsigned int i = 0; i < c->nr; i++)
		folios[i] = (struct folio *)&pages[c->order[i]];
	base = page_to_pfn(pages);

	while (at < c->nr) {
		struct page_run run;
		unsigned int n = page_run_find(folios + at, c->nr - at, &run);

		KUNIT_ASSERT_LT(test, found, MAX_FOLIOS);
		KUNIT_EXPECT_EQ(test, run.pfn - base, c->runs[found].low);
		KUNIT_EXPECT_EQ(test, run.nr, c->runs[found].nr);
		KUNIT_ASSERT_EQ(test, n, run.nr);
		found++;
		at += n;
	}
	KUNIT_EXPECT_EQ(test, at, c->nr);
	if (found < MAX_FOLIOS)
		KUNIT_EXPECT_EQ(test, c->runs[found].nr, 0);
}

/* Divides @run into blocks and checks them. */
static void check_blocks(struct kunit *test, struct page_run run)
{
	unsigned long end = run.pfn + run.nr;
	unsigned long pfn = run.pfn;

	while (run.nr) {
		unsigned int order = page_run_order(&run);
		unsigned long size = 1UL << order;

		KUNIT_ASSERT_EQ(test, run.pfn, pfn);
		KUNIT_ASSERT_LE(test, size, run.nr);
		/* Aligned, and in one pageblock, so of one migratetype. */
		KUNIT_ASSERT_TRUE(test, IS_ALIGNED(pfn, size));
		KUNIT_ASSERT_EQ(test, pfn / pageblock_nr_pages,
				(pfn + size - 1) / pageblock_nr_pages);
		/* There is no larger one. */
		KUNIT_ASSERT_TRUE(test, 2 * size > run.nr ||
				  !IS_ALIGNED(pfn, 2 * size) ||
				  size == pageblock_nr_pages);
		pfn += size;
		run.pfn += size;
		run.nr -= size;
	}
	KUNIT_EXPECT_EQ(test, pfn, end);
}

static void release_test_blocks(struct kunit *test)
{
	unsigned long block = pageblock_nr_pages;
	struct rnd_state rnd;

	check_blocks(test, (struct page_run){ 0, 1 });
	check_blocks(test, (struct page_run){ 0, 4 * block });
	check_blocks(test, (struct page_run){ block - 1, 2 });
	check_blocks(test, (struct page_run){ 8 * block - 3, block + 6 });

	prandom_seed_state(&rnd, 1);
	for (int i = 0; i < 2000; i++) {
		struct page_run run = {
			.pfn = prandom_u32_state(&rnd) % (16 * block),
			.nr = 1 + prandom_u32_state(&rnd) % (2 * block),
		};

		check_blocks(test, run);
	}
}

static void release_test_add(struct kunit *test)
{
	struct page_runs runs = {};

	page_runs_add(&runs, &(struct page_run){ 100, 8 });
	KUNIT_EXPECT_EQ(test, runs.nr, 1);
	/* What continues the last run, above or below, belongs to it. */
	page_runs_add(&runs, &(struct page_run){ 108, 9 });
	page_runs_add(&runs, &(struct page_run){ 90, 10 });
	KUNIT_EXPECT_EQ(test, runs.nr, 1);
	KUNIT_EXPECT_EQ(test, runs.runs[0].pfn, 90);
	KUNIT_EXPECT_EQ(test, runs.runs[0].nr, 27);

	page_runs_add(&runs, &(struct page_run){ 118, 8 });
	page_runs_add(&runs, &(struct page_run){ 50, 39 });
	KUNIT_EXPECT_EQ(test, runs.nr, 3);
	KUNIT_EXPECT_EQ(test, runs.runs[1].pfn, 118);
	KUNIT_EXPECT_EQ(test, runs.runs[1].nr, 8);
	KUNIT_EXPECT_EQ(test, runs.runs[2].pfn, 50);
	KUNIT_EXPECT_EQ(test, runs.runs[2].nr, 39);
}

/* Contiguous pages, each with a reference of its own. */
static struct page *alloc_chunk(struct kunit *test)
{
	struct page *pages = alloc_pages(GFP_HIGHUSER_MOVABLE, CHUNK_ORDER);

	KUNIT_ASSERT_NOT_NULL(test, pages);
	split_page(pages, CHUNK_ORDER);

	return pages;
}

static struct encoded_page **alloc_entries(struct kunit *test)
{
	struct encoded_page **entries;

	entries = kunit_kcalloc(test, CHUNK_PAGES, sizeof(*entries),
				GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, entries);

	return entries;
}

/* The ways in which the pages of a chunk can die. */
static unsigned int place(unsigned int way, unsigned int i)
{
	switch (way % 4) {
	case 0:
		return i;
	case 1:
		return CHUNK_PAGES - 1 - i;
	case 2:
		/* No two neighbours. */
		return (i * 2) % CHUNK_PAGES + (i >= CHUNK_PAGES / 2);
	default:
		/* Runs of eight, from the top. */
		return (CHUNK_PAGES - 8 - (i & ~7U)) + (i & 7);
	}
}

/* Sets the migratetype of a pageblock, all of which is ours. */
static void set_block_type(struct page *pages, int type)
{
	struct zone *zone = page_zone(pages);
	unsigned long flags;

	spin_lock_irqsave(&zone->lock, flags);
	compat_block_set_type(zone, pages, type);
	if (is_migrate_isolate(type))
		zone->nr_isolate_pageblock++;
	spin_unlock_irqrestore(&zone->lock, flags);
}

/* A pageblock of @type, of which each page has a reference of its own. */
static struct page *alloc_block(struct kunit *test, int type)
{
	struct page *pages = alloc_pages(GFP_KERNEL | __GFP_NOWARN,
					 pageblock_order);

	KUNIT_ASSERT_NOT_NULL(test, pages);
	split_page(pages, pageblock_order);
	set_block_type(pages, type);

	return pages;
}

/* Gives a pageblock, all of which is free, to everybody. */
static void end_block(struct page *pages, int type)
{
	struct zone *zone = page_zone(pages);
	unsigned long flags;

	spin_lock_irqsave(&zone->lock, flags);
	compat_block_free_type(zone, pages, type);
	if (is_migrate_isolate(type))
		zone->nr_isolate_pageblock--;
	spin_unlock_irqrestore(&zone->lock, flags);
}

/* Returns how many pages of an isolated block did not come back. */
static unsigned int lost(struct page *pages)
{
	unsigned int nr = 0;

	for (unsigned int i = 0; i < pageblock_nr_pages; i++)
		nr += !is_free_buddy_page(pages + i);

	return nr;
}

static const bool both[] = { false, true };

static void killed_desc(const bool *killed, char *desc)
{
	strscpy(desc, *killed ? "killed" : "not killed", KUNIT_PARAM_DESC_SIZE);
}

KUNIT_ARRAY_PARAM(killed, both, killed_desc);

/* Of an isolated block nobody gets a page: each one must be there. */
static void release_test_all_come_back(struct kunit *test)
{
	const bool killed = *(const bool *)test->param_value;
	struct encoded_page **entries = alloc_entries(test);
	struct page *pages = alloc_block(test, MIGRATE_ISOLATE);

	for (unsigned int at = 0; at < pageblock_nr_pages; at += CHUNK_PAGES) {
		for (unsigned int i = 0; i < CHUNK_PAGES; i++)
			/* Not aligned, so that a run has several blocks. */
			entries[i] = encode_page(pages + at +
				place(at / CHUNK_PAGES, (i + 1) % CHUNK_PAGES),
				0);
		memreap_release_pages(entries, CHUNK_PAGES, killed);
	}
	KUNIT_EXPECT_EQ(test, lost(pages), 0);
	end_block(pages, MIGRATE_ISOLATE);
}

/* Releases a pageblock as one run. */
static void release_block(struct kunit *test, struct page *pages)
{
	struct encoded_page **entries;

	entries = kunit_kcalloc(test, pageblock_nr_pages, sizeof(*entries),
				GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, entries);
	for (unsigned int i = 0; i < pageblock_nr_pages; i++)
		entries[i] = encode_page(pages + i, 0);
	memreap_release_pages(entries, pageblock_nr_pages, true);
}

#ifdef CONFIG_PAGE_OWNER
/* Returns how many pages of a block are in use, if page_owner is on. */
static unsigned int nr_owned(struct page *pages)
{
	unsigned int nr = 0;

	for (unsigned int i = 0; i < pageblock_nr_pages; i++) {
		struct page_ext *ext = page_ext_get(pages + i);

		if (!ext)
			continue;
		nr += test_bit(PAGE_EXT_OWNER_ALLOCATED, &ext->flags);
		page_ext_put(ext);
	}

	return nr;
}

/* A page of a run must not look as if it had leaked. */
static void release_test_owner(struct kunit *test)
{
	struct page *pages = alloc_block(test, MIGRATE_ISOLATE);
	unsigned int before = nr_owned(pages);

	release_block(test, pages);
	KUNIT_EXPECT_EQ(test, nr_owned(pages), 0);
	end_block(pages, MIGRATE_ISOLATE);
	if (!before)
		kunit_skip(test, "boot with page_owner=on");
	KUNIT_EXPECT_EQ(test, before, pageblock_nr_pages);
}
#endif

#ifdef CONFIG_PAGE_POISONING
/* Returns how many pages of a block are not all poison. */
static unsigned int nr_not_poisoned(struct page *pages)
{
	unsigned int nr = 0;

	/* For KASAN they are free. */
	kasan_disable_current();
	for (unsigned int i = 0; i < pageblock_nr_pages; i++)
		nr += !!memchr_inv(kasan_reset_tag(page_address(pages + i)),
				   PAGE_POISON, PAGE_SIZE);
	kasan_enable_current();

	return nr;
}

static void release_test_poison(struct kunit *test)
{
	struct page *pages;

	if (!page_poisoning_enabled_static())
		kunit_skip(test, "boot with page_poison=1");
	pages = alloc_block(test, MIGRATE_ISOLATE);
	release_block(test, pages);
	KUNIT_EXPECT_EQ(test, nr_not_poisoned(pages), 0);
	end_block(pages, MIGRATE_ISOLATE);
}
#endif

/*
 * Several passes, with a folio and its count on either side of the border
 * between two, and more runs than are kept until the zone lock is taken.
 */
static void release_test_many(struct kunit *test)
{
	const unsigned int pieces = pageblock_nr_pages / RELEASE_MIN_RUN;
	struct page *pages = alloc_block(test, MIGRATE_ISOLATE);
	struct folio *folio = folio_alloc(GFP_KERNEL, 2);
	struct encoded_page **entries;
	unsigned int nr = 0;

	entries = kunit_kcalloc(test, pageblock_nr_pages + 2, sizeof(*entries),
				GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, entries);
	KUNIT_ASSERT_NOT_NULL(test, folio);
	KUNIT_ASSERT_GT(test, pieces, 2 * RELEASE_MAX_RUNS);
	folio_ref_add(folio, 2);
	for (unsigned int i = 0; i < pageblock_nr_pages; i++) {
		/* No two pieces are neighbours. */
		unsigned int piece = i / RELEASE_MIN_RUN * 5 % pieces;

		if (nr == 127) {
			entries[nr++] = encode_page(&folio->page,
						    ENCODED_PAGE_BIT_NR_PAGES_NEXT);
			entries[nr++] = encode_nr_pages(2);
		}
		entries[nr++] = encode_page(pages + piece * RELEASE_MIN_RUN +
					    i % RELEASE_MIN_RUN, 0);
	}
	memreap_release_pages(entries, nr, true);

	KUNIT_EXPECT_EQ(test, lost(pages), 0);
	KUNIT_EXPECT_EQ(test, folio_ref_count(folio), 1);
	folio_put(folio);
	end_block(pages, MIGRATE_ISOLATE);
}

/**
 * struct type_case - a migratetype that a pageblock can have
 * @name: of the case
 * @type: the migratetype
 */
struct type_case {
	const char *name;
	int type;
};

static const struct type_case type_cases[] = {
	{ "isolate", MIGRATE_ISOLATE },
	{ "highatomic", MIGRATE_HIGHATOMIC },
#ifdef CONFIG_CMA
	{ "cma", MIGRATE_CMA },
#endif
};

static void type_case_desc(const struct type_case *c, char *desc)
{
	strscpy(desc, c->name, KUNIT_PARAM_DESC_SIZE);
}

KUNIT_ARRAY_PARAM(type, type_cases, type_case_desc);

static bool on_list(struct page *pages, unsigned int order, int type)
{
	struct zone *zone = page_zone(pages);
	unsigned long flags;
	struct page *page;
	bool found = false;

	spin_lock_irqsave(&zone->lock, flags);
	list_for_each_entry(page, &zone->free_area[order].free_list[type],
			    buddy_list)
		found |= page == pages;
	spin_unlock_irqrestore(&zone->lock, flags);

	return found;
}

/* A run goes to the list of its pageblock, and is merged with no other's. */
static void release_test_type(struct kunit *test)
{
	const struct type_case *c = test->param_value;
	struct page *pages = alloc_block(test, c->type);

	release_block(test, pages);
	KUNIT_EXPECT_TRUE(test, on_list(pages, pageblock_order, c->type));
	end_block(pages, c->type);
}

/*
 * The per-CPU list gets the pages of a process that was not killed, and few of
 * one that was.
 */
static void release_test_list_share(struct kunit *test)
{
	const bool killed = *(const bool *)test->param_value;
	struct encoded_page **entries = alloc_entries(test);
	struct page *pages = alloc_chunk(test);
	struct per_cpu_pages *pcp;
	int before, after;

	for (unsigned int i = 0; i < CHUNK_PAGES; i++)
		entries[i] = encode_page(pages + i, 0);
	drain_all_pages(NULL);

	migrate_disable();
	pcp = this_cpu_ptr(page_zone(pages)->per_cpu_pageset);
	before = READ_ONCE(pcp->count);
	memreap_release_pages(entries, CHUNK_PAGES, killed);
	after = READ_ONCE(pcp->count);
	migrate_enable();
	/* Others allocate and free meanwhile. */
	if (killed)
		KUNIT_EXPECT_LE(test, after - before, CHUNK_PAGES / 4);
	else
		KUNIT_EXPECT_GE(test, after - before, CHUNK_PAGES * 3 / 4);
}

/* Pages that others use, or that must not be used again, interrupt a run. */
static void release_test_kept(struct kunit *test)
{
	struct encoded_page **entries = alloc_entries(test);

	for (unsigned int way = 0; way < 4; way++) {
		struct page *pages = alloc_chunk(test);
		struct page *used = pages + 20, *bad = pages + 41;

		get_page(used);
		if (IS_ENABLED(CONFIG_MEMORY_FAILURE))
			SetPageHWPoison(bad);
		else
			get_page(bad);
		for (unsigned int i = 0; i < CHUNK_PAGES; i++)
			entries[i] = encode_page(pages + place(way, i), 0);
		memreap_release_pages(entries, CHUNK_PAGES, true);

		KUNIT_EXPECT_EQ(test, page_count(used), 1);
		KUNIT_EXPECT_FALSE(test, is_free_buddy_page(used));
		put_page(used);
		KUNIT_EXPECT_FALSE(test, is_free_buddy_page(bad));
		if (IS_ENABLED(CONFIG_MEMORY_FAILURE)) {
			KUNIT_EXPECT_EQ(test, page_count(bad), 0);
			ClearPageHWPoison(bad);
			set_page_count(bad, 1);
			/* To page_owner it has been freed. */
			set_page_owner(bad, 0, GFP_KERNEL);
		}
		put_page(bad);
	}
}

static void release_test_large(struct kunit *test)
{
	struct encoded_page **entries = alloc_entries(test);
	struct page *pages = alloc_chunk(test);
	struct folio *folio = folio_alloc(GFP_KERNEL, 2);
	unsigned int nr = 0;

	KUNIT_ASSERT_NOT_NULL(test, folio);
	folio_ref_add(folio, 2);
	for (unsigned int i = 0; i < CHUNK_PAGES - 2; i++) {
		if (i == CHUNK_PAGES / 2) {
			entries[nr++] = encode_page(&folio->page,
						    ENCODED_PAGE_BIT_NR_PAGES_NEXT);
			entries[nr++] = encode_nr_pages(2);
		}
		entries[nr++] = encode_page(pages + i, 0);
	}
	memreap_release_pages(entries, nr, true);

	KUNIT_EXPECT_EQ(test, folio_ref_count(folio), 1);
	KUNIT_EXPECT_EQ(test, folio_order(folio), 2);
	entries[0] = encode_page(&folio->page, 0);
	entries[1] = encode_page(pages + CHUNK_PAGES - 2, 0);
	entries[2] = encode_page(pages + CHUNK_PAGES - 1, 0);
	memreap_release_pages(entries, 3, true);
}

static struct kunit_case release_test_cases[] = {
	KUNIT_CASE_PARAM(release_test_find, find_gen_params),
	KUNIT_CASE(release_test_blocks),
	KUNIT_CASE(release_test_add),
	KUNIT_CASE_PARAM(release_test_all_come_back, killed_gen_params),
#ifdef CONFIG_PAGE_OWNER
	KUNIT_CASE(release_test_owner),
#endif
#ifdef CONFIG_PAGE_POISONING
	KUNIT_CASE(release_test_poison),
#endif
	KUNIT_CASE(release_test_many),
	KUNIT_CASE_PARAM(release_test_type, type_gen_params),
	KUNIT_CASE_PARAM(release_test_list_share, killed_gen_params),
	KUNIT_CASE(release_test_kept),
	KUNIT_CASE(release_test_large),
	{}
};

static struct kunit_suite release_test_suite = {
	.name = "memreap_release",
	.test_cases = release_test_cases,
};

kunit_test_suite(release_test_suite);

MODULE_DESCRIPTION("KUnit tests for the release of pages in runs");
MODULE_LICENSE("GPL");
