/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_SWAP_RELEASE_H
#define _MM_MEMREAP_SWAP_RELEASE_H

#include <linux/jump_label.h>
#include <linux/memreap_swap_release.h>
#include <linux/swap.h>

struct folio;
struct mmu_gather;
struct seq_file;

#ifdef CONFIG_MEMREAP_SWAP_RELEASE

DECLARE_STATIC_KEY_TRUE(memreap_swap_sync_key);
DECLARE_STATIC_KEY_TRUE(memreap_swap_async_key);

extern atomic_long_t memreap_swap_released;

/**
 * struct swap_zap - swap entries gathered from a page table under its lock
 * @nr: entries in @runs
 * @full: there may be no room for another entry
 * @runs: to be released once the lock has been released
 */
struct swap_zap {
	unsigned int nr;
	bool full;
	struct swap_run runs[SWAP_CHUNK_RUNS];
};

void memreap_swap_gather(struct swap_zap *zap, struct mmu_gather *tlb,
			 swp_entry_t entry, int nr);
void memreap_swap_gathered(struct swap_zap *zap, struct mmu_gather *tlb);
void memreap_swap_finish(struct mmu_gather *tlb);
void memreap_swap_prepare(void);
void memreap_swap_flush(void);
bool memreap_swap_make_room(unsigned long pages, long *released);
void memreap_swap_help_out(void);
void memreap_swap_vmstat(struct seq_file *m);

/* mm/swapfile.c */
unsigned int swap_free_runs(const struct swap_run *runs, unsigned int nr);

/* In zap_pte_range(), before the page table lock is taken... */
static inline void swap_zap_begin(struct swap_zap *zap)
{
	zap->nr = 0;
	zap->full = false;
}

/* ...with the lock held, instead of free_swap_and_cache_nr()... */
static inline void swap_zap_entries(struct swap_zap *zap,
				    struct mmu_gather *tlb,
				    swp_entry_t entry, int nr)
{
	if (static_branch_likely(&memreap_swap_sync_key))
		memreap_swap_gather(zap, tlb, entry, nr);
	else
		free_swap_and_cache_nr(entry, nr);
}

/* ...before each page table entry... */
static inline bool swap_zap_full(const struct swap_zap *zap)
{
	return zap->full;
}

/* ...and once the lock has been released. */
static inline void swap_zap_end(struct swap_zap *zap, struct mmu_gather *tlb)
{
	if (zap->nr || zap->full)
		memreap_swap_gathered(zap, tlb);
}

/* In folio_alloc_swap(), before it searches for a slot. */
static inline void swap_release_overdue(void)
{
	if (atomic_long_read(&nr_swap_pages_waiting))
		memreap_swap_help_out();
}

/* Before an attempt after which memreap_swap_make_room() may be called. */
static inline long memreap_swap_count(void)
{
	return atomic_long_read_acquire(&memreap_swap_released);
}

#else

struct swap_zap {
};

static inline void swap_zap_begin(struct swap_zap *zap)
{
}

static inline void swap_zap_entries(struct swap_zap *zap,
				    struct mmu_gather *tlb,
				    swp_entry_t entry, int nr)
{
	free_swap_and_cache_nr(entry, nr);
}

static inline bool swap_zap_full(const struct swap_zap *zap)
{
	return false;
}

static inline void swap_zap_end(struct swap_zap *zap, struct mmu_gather *tlb)
{
}

static inline void memreap_swap_finish(struct mmu_gather *tlb)
{
}

static inline void memreap_swap_prepare(void)
{
}

static inline void memreap_swap_flush(void)
{
}

static inline void swap_release_overdue(void)
{
}

static inline long memreap_swap_count(void)
{
	return 0;
}

static inline bool memreap_swap_make_room(unsigned long pages, long *released)
{
	return false;
}

static inline void memreap_swap_vmstat(struct seq_file *m)
{
}

#endif /* CONFIG_MEMREAP_SWAP_RELEASE */

#endif /* _MM_MEMREAP_SWAP_RELEASE_H */
