// SPDX-License-Identifier: GPL-2.0-only
/*
 * Release the swap slots of a dying process after its exit.
 *
 * A slot costs more to release than a page, and frees less memory. An exit
 * leaves them where they are, in its page tables, and these to workers: there
 * is nothing to allocate and nothing to copy. What waits counts as in use, and is
 * charged to the same cgroups, until it has been released.
 *
 * So any task that needs what waits releases some of it, before it fails or
 * kills: whoever allocates a slot, reclaim, a cgroup at its limit, swapoff.
 */
#include <linux/list.h>
#include <linux/memcontrol.h>
#include <linux/memreap_swap_last.h>
#include <linux/mm.h>
#include <linux/pgalloc.h>
#include <linux/sched/cputime.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/shrinker.h>
#include <linux/swap.h>
#include <linux/swapops.h>
#include <linux/workqueue.h>
#include <linux/zswap.h>

#include <asm/tlb.h>

#include "charge.h"
#include "compat.h"
#include "switch.h"

#define CREATE_TRACE_POINTS
#include <trace/events/memreap_swap_last.h>

static DEFINE_STATIC_KEY_TRUE(swap_last_key);

/* In a page table, whose flags have no other use: it holds slots that wait. */
#define PG_HOLDS_SLOTS		PG_workingset

/* Page tables of processes that are gone. */
static LIST_HEAD(waiting_tables);
static DEFINE_SPINLOCK(waiting_lock);

/* Slots in these page tables. */
atomic_long_t memreap_swap_waiting;
EXPORT_SYMBOL_GPL(memreap_swap_waiting);

static atomic_long_t nr_waited;
static atomic_long_t nr_helped;

/* Processes exit on several CPUs, and so are their slots released: on so many. */
#define MAX_WORKERS		4U

static struct work_struct release_workers[MAX_WORKERS];
static atomic_t next_worker;
static struct workqueue_struct *release_wq;

/* --- At the exit --- */

/**
 * memreap_swap_keep - leave the swap entries of a dying process where they are
 * @tlb: of the process, or of one that frees its memory beside it
 * @vma: where the entries are
 * @pte: the first entry, its page table locked
 * @nr: entries, all of swap
 * @counted: where the caller counts them
 *
 * What zswap holds is charged to a cgroup, whose limit it may be that kills. And
 * khugepaged frees page tables of files, if it finds nothing that says that they
 * are in use: an exit unlinks the VMA's anon_vma before it frees the table.
 *
 * Return: false if they have to be put now.
 */
bool memreap_swap_keep(struct mmu_gather *tlb,
		       const struct vm_area_struct *vma, pte_t *pte,
		       unsigned int nr, int *counted)
{
	struct ptdesc *table = virt_to_ptdesc(pte);

	if (!vma_is_anonymous(vma))
		return false;
	/* A reaper beside the exit: they may have been left, and counted. */
	if (!tlb->fullmm)
		return test_bit(PG_HOLDS_SLOTS, &table->pt_flags.f);
	if (!static_branch_likely(&swap_last_key) || !release_wq ||
	    !zswap_never_enabled())
		return false;
	if (!test_and_set_bit(PG_HOLDS_SLOTS, &table->pt_flags.f))
		table->pt_index = 0;
	table->pt_index += nr;
	*counted -= nr;
	tlb->nr_kept += nr;

	return true;
}

/**
 * memreap_swap_keeps - whether swap entries of a dying process were left
 * @tlb: of the process
 *
 * Return: true if they have to be handed over.
 */
bool memreap_swap_keeps(const struct mmu_gather *tlb)
{
	return tlb->nr_kept;
}

/**
 * memreap_swap_keep_table - keep a page table if it holds slots
 * @tlb: of the process
 * @token: the page table, to which nothing refers any more
 *
 * Return: false if it has to be freed as usual.
 */
bool memreap_swap_keep_table(struct mmu_gather *tlb, pgtable_t token)
{
	struct ptdesc *table = page_ptdesc(token);

	if (!test_and_clear_bit(PG_HOLDS_SLOTS, &table->pt_flags.f))
		return false;
	list_add_tail(&table->pt_list, &tlb->kept);

	return true;
}

/**
 * memreap_swap_hand_over - have a worker release what was kept
 * @tlb: of the process, of which no CPU has anything in its TLB any more
 *
 * Until then the process has memory: the OOM killer does not choose another.
 */
void memreap_swap_hand_over(struct mmu_gather *tlb)
{
	unsigned int worker;

	if (!tlb->nr_kept)
		return;
	trace_memreap_swap_wait(tlb->mm, tlb->nr_kept);
	atomic_long_add(tlb->nr_kept, &nr_waited);
	/* Before they can be taken. */
	atomic_long_add(tlb->nr_kept, &memreap_swap_waiting);
	spin_lock(&waiting_lock);
	list_splice_tail(&tlb->kept, &waiting_tables);
	spin_unlock(&waiting_lock);
	worker = atomic_inc_return(&next_worker);
	worker %= min(num_online_cpus(), MAX_WORKERS);
	queue_work(release_wq, &release_workers[worker]);
	mm_flags_set(MMF_OOM_SKIP, tlb->mm);
}

/* --- Release --- */

static void put_slots(pte_t *pte)
{
	for (unsigned int i = 0, nr; i < PTRS_PER_PTE; i += nr) {
		pte_t ptent = ptep_get(pte + i);
		softleaf_t entry = softleaf_from_pte(ptent);

		nr = 1;
		if (!softleaf_is_swap(entry))
			continue;
		nr = swap_pte_batch(pte + i, PTRS_PER_PTE - i, ptent);
		swap_put_entries_direct(entry, nr);
	}
}

/* The page table is charged to the cgroup of its process. */
static void charge_owner(struct ptdesc *table, u64 ns)
{
#ifdef CONFIG_MEMCG
	struct mem_cgroup *memcg;

	rcu_read_lock();
	memcg = folio_memcg(ptdesc_folio(table));
	if (memcg)
		memreap_charge_cpu(memcg->css.cgroup, ns);
	rcu_read_unlock();
#endif
}

/* Releases the slots of the table that came first; returns how many. */
static unsigned int release_table(enum memreap_swap_by by)
{
	bool charge = by == SWAP_BY_WORKER;
	struct ptdesc *table;
	unsigned int pages;
	u64 runtime;

	spin_lock(&waiting_lock);
	table = list_first_entry_or_null(&waiting_tables, struct ptdesc,
					 pt_list);
	if (table)
		list_del(&table->pt_list);
	spin_unlock(&waiting_lock);
	if (!table)
		return 0;

	runtime = charge ? task_sched_runtime(current) : 0;
	put_slots(ptdesc_address(table));
	pages = table->pt_index;
	if (charge)
		charge_owner(table, task_sched_runtime(current) - runtime);
	else
		atomic_long_add(pages, &nr_helped);
	pagetable_dtor_free(table);
	atomic_long_sub(pages, &memreap_swap_waiting);
	trace_memreap_swap_release(by, pages);

	return pages;
}

static void release_work(struct work_struct *work)
{
	while (release_table(SWAP_BY_WORKER))
		cond_resched();
}

/* As the loop of memory_max_write(), for which a removed cgroup waits. */
static bool has_to_stop(struct mem_cgroup *memcg)
{
	return fatal_signal_pending(current) ||
	       (memcg && (signal_pending(current) || memcg_is_dying(memcg)));
}

/*
 * Releases so many slots at least, if there are, table by table. Returns how
 * many.
 */
static unsigned long release_slots(unsigned long nr, struct mem_cgroup *memcg)
{
	unsigned long done = 0;
	unsigned int pages;

	while (done < nr && !has_to_stop(memcg)) {
		pages = release_table(SWAP_BY_NEED);
		if (!pages)
			break;
		done += pages;
		cond_resched();
	}

	return done;
}

/**
 * memreap_swap_release_some - release a few slots, for a task that needs one
 *
 * Return: false if there were none.
 */
bool memreap_swap_release_some(void)
{
	return release_table(SWAP_BY_NEED);
}
EXPORT_SYMBOL_GPL(memreap_swap_release_some);

/**
 * memreap_swap_release_waiting - release what waits now
 * @memcg: whose limit is set, by a task that a signal stops; else NULL
 *
 * Not what comes meanwhile.
 *
 * Return: false for a task that was killed, which goes on to the OOM killer as
 * without it. What sets a limit looks for itself whether it has to stop.
 */
bool memreap_swap_release_waiting(struct mem_cgroup *memcg)
{
	release_slots(atomic_long_read(&memreap_swap_waiting), memcg);

	return memcg || !fatal_signal_pending(current);
}

/**
 * memreap_swap_release_all - release all that waits
 *
 * For swapoff, which would not find slots of processes that are gone, and which
 * a signal stops.
 */
void memreap_swap_release_all(void)
{
	while (!signal_pending(current) && release_table(SWAP_BY_SWAPOFF))
		cond_resched();
}

/* --- Memory that waiting slots hold --- */

static unsigned long release_count(struct shrinker *shrinker,
				   struct shrink_control *sc)
{
	return atomic_long_read(&memreap_swap_waiting);
}

static unsigned long release_scan(struct shrinker *shrinker,
				  struct shrink_control *sc)
{
	unsigned long done = release_slots(sc->nr_to_scan, NULL);

	/* A table has more than was asked for. */
	sc->nr_scanned = max(done, sc->nr_to_scan);

	return done ?: SHRINK_STOP;
}

/* --- Settings and counters --- */

/**
 * memreap_swap_vmstat - print this topic's lines of /proc/vmstat
 * @m: the file
 */
void memreap_swap_vmstat(struct seq_file *m)
{
	seq_put_decimal_ull(m, "swap_last_waited ",
			    atomic_long_read(&nr_waited));
	seq_put_decimal_ull(m, "\nswap_last_helped ",
			    atomic_long_read(&nr_helped));
	seq_put_decimal_ull(m, "\nswap_last_waiting ",
			    atomic_long_read(&memreap_swap_waiting));
	seq_putc(m, '\n');
}

static const struct memreap_switch swap_last_switch = {
	.key = &swap_last_key.key,
	.wq = &release_wq,
};

memreap_switch_param(swap_last, &swap_last_switch);
MODULE_PARM_DESC(swap_last,
		 "Release swap slots of dying processes after their exit (default: Y)");

/* A hypervisor of Xen knows of each page table for as long as it is one. */
static bool __init tables_are_ours(void)
{
#ifdef CONFIG_XEN_PV
	return !cpu_feature_enabled(X86_FEATURE_XENPV);
#else
	return true;
#endif
}

static int __init swap_last_init(void)
{
	struct shrinker *shrinker;

	if (!tables_are_ours())
		return 0;
	shrinker = shrinker_alloc(0, "memreap-swap");
	if (!shrinker)
		return -ENOMEM;
	shrinker->count_objects = release_count;
	shrinker->scan_objects = release_scan;
	/* Of no use to anybody, but a task that needs a page needs not all. */
	shrinker->seeks = 1;
	shrinker_register(shrinker);
	for (int i = 0; i < MAX_WORKERS; i++)
		INIT_WORK(&release_workers[i], release_work);
	release_wq = alloc_workqueue("memreap_swap",
				     WQ_UNBOUND | WQ_MEM_RECLAIM | WQ_SYSFS,
				     MAX_WORKERS);

	return release_wq ? 0 : -ENOMEM;
}
subsys_initcall(swap_last_init);
