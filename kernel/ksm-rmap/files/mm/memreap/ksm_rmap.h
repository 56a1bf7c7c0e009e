/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_KSM_RMAP_H
#define _MM_MEMREAP_KSM_RMAP_H

#include <linux/jump_label.h>
#include <linux/rmap.h>
#include <linux/tracepoint-defs.h>
#include <linux/types.h>

struct list_head;

/**
 * struct memreap_rmap_count - what a reverse-map walk did
 * @mappings: calls of rmap_one()
 * @vmas: VMAs visited
 * @locks: times that the walk itself took the lock of a tree of VMAs
 */
struct memreap_rmap_count {
	unsigned int mappings;
	unsigned int vmas;
	unsigned int locks;
};

/**
 * struct memreap_ksm_place - where ksmd merged a page
 * @anon_vma: of the VMA that it was in
 * @mm: that VMA's address space; only compared
 * @address: in @mm, page aligned
 * @pgoff: linear page index of @address in that VMA. Unlike the VMA's bounds
 *	and offset it does not change with a split or a merge of VMAs. The tree
 *	of @anon_vma is sorted by it, and not by @address, which makes a
 *	difference once the VMA has been moved.
 */
struct memreap_ksm_place {
	struct anon_vma *anon_vma;
	struct mm_struct *mm;
	unsigned long address;
	pgoff_t pgoff;
};

/*
 * Places that are visited under one hold of an uncontended lock. Taking it is
 * cheap, but on many CPUs a miss of its cache line may cost more than the
 * visit. More places gain nothing.
 */
#define MEMREAP_KSM_MAX_PLACES	4

/**
 * struct memreap_ksm_hold - an anon_vma lock kept from one place to the next
 * @root: whose lock is held for reading, NULL if none
 * @places: visited since it was taken
 */
struct memreap_ksm_hold {
	struct anon_vma *root;
	unsigned int places;
};

/**
 * struct memreap_ksm_walk - a walk over the mappings of a KSM page
 * @folio: the page
 * @rwc: the caller's walk
 * @hold: the lock
 * @count: so far
 * @narrow: search for the page index of a place, not through all VMAs
 * @forks: second pass, over VMAs in other address spaces than the place's
 * @forked: the first pass saw such VMAs
 */
struct memreap_ksm_walk {
	struct folio *folio;
	struct rmap_walk_control *rwc;
	struct memreap_ksm_hold hold;
	struct memreap_rmap_count count;
	bool narrow;
	bool forks;
	bool forked;
};

/**
 * struct memreap_ksm_collect - a search for the processes that map a KSM page
 * @folio: the KSM page
 * @page: the same as a struct page
 * @to_kill: where add_to_kill_ksm() puts them
 * @force_early: for task_early_kill()
 * @hold: the lock
 * @done: mm whose processes were collected under this hold of the lock
 */
struct memreap_ksm_collect {
	struct folio *folio;
	struct page *page;
	struct list_head *to_kill;
	int force_early;
	struct memreap_ksm_hold hold;
	struct mm_struct *done;
};

#ifdef CONFIG_MEMREAP_KSM_RMAP

DECLARE_STATIC_KEY_TRUE(memreap_ksm_rmap_key);

/* The boot parameter memreap.ksm_rmap=0 makes walks visit all VMAs. */
static inline bool memreap_ksm_rmap_enabled(void)
{
	return static_branch_likely(&memreap_ksm_rmap_key);
}

DECLARE_TRACEPOINT(memreap_rmap_walk_start);
DECLARE_TRACEPOINT(memreap_rmap_walk_end);

bool memreap_rmap_trace_walk(struct folio *folio, struct rmap_walk_control *rwc,
			     bool locked);

/* Does and counts the walk if it is traced. Returns whether it did. */
static inline bool memreap_rmap_walk_traced(struct folio *folio,
					    struct rmap_walk_control *rwc,
					    bool locked)
{
	return (tracepoint_enabled(memreap_rmap_walk_start) ||
		tracepoint_enabled(memreap_rmap_walk_end)) &&
	       memreap_rmap_trace_walk(folio, rwc, locked);
}

#else

static inline bool memreap_ksm_rmap_enabled(void)
{
	return false;
}

static inline bool memreap_rmap_walk_traced(struct folio *folio,
					    struct rmap_walk_control *rwc,
					    bool locked)
{
	return false;
}

#endif /* CONFIG_MEMREAP_KSM_RMAP */

/* Neither defined nor called without CONFIG_MEMREAP_KSM_RMAP. */
void memreap_ksm_walk_start(struct memreap_ksm_walk *walk, struct folio *folio,
			    struct rmap_walk_control *rwc);
bool memreap_ksm_walk_place(struct memreap_ksm_walk *walk,
			    const struct memreap_ksm_place *place);
bool memreap_ksm_walk_again(struct memreap_ksm_walk *walk);
void memreap_ksm_walk_end(struct memreap_ksm_walk *walk);

void memreap_ksm_collect_place(struct memreap_ksm_collect *collect,
			       const struct memreap_ksm_place *place);
void memreap_ksm_collect_end(struct memreap_ksm_collect *collect);

#endif /* _MM_MEMREAP_KSM_RMAP_H */
