/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_SWAP_BATCH_H
#define _MM_MEMREAP_SWAP_BATCH_H

#include <linux/jump_label.h>
#include <linux/minmax.h>
#include <linux/mm_types.h>
#include <linux/preempt.h>
#include <linux/sched/coredump.h>
#include <linux/swap.h>

struct xa_state;

#ifdef CONFIG_MEMREAP_SWAP_BATCH

/* Capacity of a batch. */
#define SWAP_BATCH_RUNS		32
#define SWAP_BATCH_PAGES	64

/**
 * struct swap_run - neighbouring slots of a swap device
 * @offset: of the first slot
 * @nr: slots
 * @type: of the device
 */
struct swap_run {
	unsigned int offset;
	u16 nr;
	u16 type;
};

/**
 * struct swap_batch - swap entries of a page table, to be released together
 * @mm: of the page table; NULL if they are released one by one
 * @nr: entries in @runs
 * @pages: slots in @runs
 * @runs: the entries
 *
 * Entries are added with the page table locked, and released once it is not. In
 * between, preemption is disabled: a task that may not run for a long time, as
 * one that is throttled, holds no slots that others could use.
 */
struct swap_batch {
	struct mm_struct *mm;
	unsigned int nr;
	unsigned int pages;
	struct swap_run runs[SWAP_BATCH_RUNS];
};

/* With PREEMPT_RT, the locks that are taken meanwhile sleep. */
static inline void swap_preempt_disable(void)
{
	if (!IS_ENABLED(CONFIG_PREEMPT_RT))
		preempt_disable();
}

static inline void swap_preempt_enable(void)
{
	if (!IS_ENABLED(CONFIG_PREEMPT_RT))
		preempt_enable();
}

DECLARE_STATIC_KEY_TRUE(memreap_swap_batch_key);

void memreap_swap_batch_add(struct swap_batch *batch, swp_entry_t entry,
			    int nr);
void memreap_swap_batch_free(struct swap_batch *batch);
void swap_clear_nodes(struct xa_state *xas, unsigned long last);

/* swap_free_batch.c, in mm/swapfile.c */
unsigned int swap_free_batch(const struct swap_batch *batch);
void swap_free_ours(const struct swap_run *ours, unsigned int nr);

/*
 * Returns whether @mm is torn down as a whole: it has no users, or has been
 * reaped and those do not use it. What is alive keeps the stock code: munmap()
 * and madvise() gain nothing.
 */
static inline bool swap_mm_dies(struct mm_struct *mm)
{
	return !atomic_read(&mm->mm_users) ||
	       test_bit(MMF_UNSTABLE, &mm->flags);
}

static inline void swap_batch_init(struct swap_batch *batch,
				   struct mm_struct *mm)
{
	batch->mm = NULL;
	if (static_branch_likely(&memreap_swap_batch_key) && swap_mm_dies(mm))
		batch->mm = mm;
	batch->nr = 0;
	batch->pages = 0;
}

static inline void swap_batch_add(struct swap_batch *batch, swp_entry_t entry,
				  int nr)
{
	if (batch->mm)
		memreap_swap_batch_add(batch, entry, nr);
	else
		free_swap_and_cache_nr(entry, nr);
}

/* Returns for how many of @nr entries in a row there is room, at least one. */
static inline int swap_batch_room(const struct swap_batch *batch, int nr)
{
	if (!batch->mm)
		return nr;

	return min_t(int, nr, SWAP_BATCH_PAGES - batch->pages);
}

/* Returns whether there is no room for another entry. */
static inline bool swap_batch_full(const struct swap_batch *batch)
{
	return batch->nr == SWAP_BATCH_RUNS || batch->pages >= SWAP_BATCH_PAGES;
}

static inline void swap_batch_free(struct swap_batch *batch)
{
	if (batch->nr)
		memreap_swap_batch_free(batch);
}

#else

struct swap_batch {
};

static inline void swap_batch_init(struct swap_batch *batch,
				   struct mm_struct *mm)
{
}

static inline void swap_batch_add(struct swap_batch *batch, swp_entry_t entry,
				  int nr)
{
	free_swap_and_cache_nr(entry, nr);
}

static inline int swap_batch_room(const struct swap_batch *batch, int nr)
{
	return nr;
}

static inline bool swap_batch_full(const struct swap_batch *batch)
{
	return false;
}

static inline void swap_batch_free(struct swap_batch *batch)
{
}

static inline void swap_clear_nodes(struct xa_state *xas, unsigned long last)
{
}

#endif /* CONFIG_MEMREAP_SWAP_BATCH */

#endif /* _MM_MEMREAP_SWAP_BATCH_H */
