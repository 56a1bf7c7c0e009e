/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _LINUX_MEMREAP_SWAP_LAST_H
#define _LINUX_MEMREAP_SWAP_LAST_H

#include <linux/atomic.h>
#include <linux/mm_types.h>

struct mem_cgroup;
struct mmu_gather;
struct seq_file;

#ifdef CONFIG_MEMREAP_SWAP_LAST

/*
 * How often a task releases some for a limit: they may be of another cgroup or
 * device, and others may go on exiting.
 */
#define MEMREAP_SWAP_HELPS	8

extern atomic_long_t memreap_swap_waiting;

bool memreap_swap_keep(struct mmu_gather *tlb,
		       const struct vm_area_struct *vma, pte_t *pte,
		       unsigned int nr, int *counted);
bool memreap_swap_keeps(const struct mmu_gather *tlb);
bool memreap_swap_keep_table(struct mmu_gather *tlb, pgtable_t table);
void memreap_swap_hand_over(struct mmu_gather *tlb);
bool memreap_swap_release_some(void);
bool memreap_swap_release_waiting(struct mem_cgroup *memcg);
void memreap_swap_release_all(void);
void memreap_swap_vmstat(struct seq_file *m);

static inline bool memreap_swap_waits(void)
{
	return atomic_long_read(&memreap_swap_waiting);
}

/*
 * Somebody needs what slots that wait hold. Returns whether some of them were
 * released, so that it may try again.
 */
static inline bool memreap_swap_help(void)
{
	return memreap_swap_waits() && memreap_swap_release_some();
}

/*
 * The same before the OOM killer acts: all that waits. @memcg: whose limit is
 * set, by a task that a signal or its removal has to stop; else NULL.
 */
static inline bool memreap_swap_help_all(struct mem_cgroup *memcg)
{
	return memreap_swap_waits() && memreap_swap_release_waiting(memcg);
}

#else

#define MEMREAP_SWAP_HELPS	0

static inline bool memreap_swap_keep(struct mmu_gather *tlb,
				     const struct vm_area_struct *vma,
				     pte_t *pte, unsigned int nr, int *counted)
{
	return false;
}

static inline bool memreap_swap_keeps(const struct mmu_gather *tlb)
{
	return false;
}

static inline bool memreap_swap_keep_table(struct mmu_gather *tlb,
					   pgtable_t table)
{
	return false;
}

static inline void memreap_swap_hand_over(struct mmu_gather *tlb)
{
}

static inline bool memreap_swap_waits(void)
{
	return false;
}

static inline bool memreap_swap_help(void)
{
	return false;
}

static inline bool memreap_swap_help_all(struct mem_cgroup *memcg)
{
	return false;
}

static inline void memreap_swap_release_all(void)
{
}

static inline void memreap_swap_vmstat(struct seq_file *m)
{
}

#endif /* CONFIG_MEMREAP_SWAP_LAST */

#endif /* _LINUX_MEMREAP_SWAP_LAST_H */
