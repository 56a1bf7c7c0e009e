// SPDX-License-Identifier: GPL-2.0-only
/*
 * Find the mappings of a KSM page.
 *
 * A KSM page is mapped at places that have nothing in common: each has its own
 * anon_vma and its own page index there. KSM knows the places, since it merged
 * the page there, but stock does not record the index and visits all VMAs of
 * the anon_vma. Here it is recorded, see struct memreap_ksm_place, and the tree
 * of VMAs, sorted by index, yields the one VMA that covers it, and its copies
 * made by fork().
 *
 * The index alone does not identify a mapping: two VMAs of one address space
 * can have the same index once one of them has been moved. The address alone
 * does not either, and the tree cannot be searched for it. Both together do.
 *
 * Places are protected by the lock of the folio, VMAs by that of the root of
 * the anon_vma. Page faults need the latter: it is released between two places
 * as soon as another task waits for it.
 */
#include <linux/ksm.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/rmap.h>
#include <linux/sched.h>
#include <linux/sched/clock.h>
#include <linux/sched/signal.h>

#include "../internal.h"
#include "ksm_rmap.h"
#include "switch.h"

#define CREATE_TRACE_POINTS
#include <trace/events/memreap_ksm_rmap.h>

DEFINE_STATIC_KEY_TRUE(memreap_ksm_rmap_key);

/* Waiters that get a CPU at once run after a few microseconds. */
#define MAX_YIELD_NS		(100 * NSEC_PER_USEC)

EXPORT_TRACEPOINT_SYMBOL_GPL(memreap_rmap_walk_start);
EXPORT_TRACEPOINT_SYMBOL_GPL(memreap_rmap_walk_end);

/**
 * struct rmap_trace - a traced walk over the mappings of a folio
 * @rwc: for the walk: its callbacks count, and call those of @given
 * @given: from the caller
 * @count: so far
 */
struct rmap_trace {
	struct rmap_walk_control rwc;
	struct rmap_walk_control *given;
	struct memreap_rmap_count count;
};

static bool traced_invalid_vma(struct vm_area_struct *vma, void *arg)
{
	struct rmap_trace *trace = arg;
	struct rmap_walk_control *given = trace->given;

	trace->count.vmas++;

	return given->invalid_vma && given->invalid_vma(vma, given->arg);
}

static bool traced_rmap_one(struct folio *folio, struct vm_area_struct *vma,
			    unsigned long address, void *arg)
{
	struct rmap_trace *trace = arg;
	struct rmap_walk_control *given = trace->given;

	trace->count.mappings++;

	return given->rmap_one(folio, vma, address, given->arg);
}

/**
 * memreap_rmap_trace_walk - walk over the mappings of a folio, counting
 * @folio: the folio
 * @rwc: the caller's walk
 * @locked: the caller holds the lock of the tree of VMAs
 *
 * Only called while traced, so other walks do not pay for the counts. Walks of
 * KSM pages always count and have tracepoints of their own.
 *
 * Return: false if the caller has to do the walk.
 */
bool memreap_rmap_trace_walk(struct folio *folio, struct rmap_walk_control *rwc,
			     bool locked)
{
	struct rmap_trace trace = { .rwc = *rwc, .given = rwc };
	enum memreap_rmap_kind kind;

	if (folio_test_ksm(folio) || rwc->rmap_one == traced_rmap_one)
		return false;

	kind = folio_test_anon(folio) ? MEMREAP_RMAP_ANON : MEMREAP_RMAP_FILE;
	trace.rwc.arg = &trace;
	trace.rwc.rmap_one = traced_rmap_one;
	trace.rwc.invalid_vma = traced_invalid_vma;

	trace_memreap_rmap_walk_start(folio, kind);
	if (locked)
		rmap_walk_locked(folio, &trace.rwc);
	else
		rmap_walk(folio, &trace.rwc);
	rwc->contended = trace.rwc.contended;
	trace.count.locks = !locked && !rwc->contended;
	trace_memreap_rmap_walk_end(folio, kind, &trace.count);

	return true;
}

static void hold_end(struct memreap_ksm_hold *hold)
{
	if (hold->root)
		up_read(&hold->root->rwsem);
	hold->root = NULL;
}

/* Keeps @hold for a place in @anon_vma, or releases it. Returns which. */
static bool hold_keep(struct memreap_ksm_hold *hold, struct anon_vma *anon_vma)
{
	if (hold->root == anon_vma->root &&
	    hold->places < MEMREAP_KSM_MAX_PLACES &&
	    !rwsem_is_contended(&hold->root->rwsem) && !need_resched()) {
		hold->places++;
		return true;
	}
	hold_end(hold);
	cond_resched();

	return false;
}

/*
 * A reader that takes the lock again at once steals it from the writer that it
 * has just woken, repeatedly, until the writer sets its handoff flag after some
 * milliseconds. So waiters go first, unless they take too long.
 */
static void let_waiters_go_first(struct rw_semaphore *rwsem)
{
	u64 end;

	if (likely(!rwsem_is_contended(rwsem)))
		return;
	end = local_clock() + MAX_YIELD_NS;
	while (rwsem_is_contended(rwsem) && local_clock() < end) {
		cpu_relax();
		cond_resched();
	}
}

static void hold_begin(struct memreap_ksm_hold *hold, struct anon_vma *anon_vma)
{
	let_waiters_go_first(&anon_vma->root->rwsem);
	anon_vma_lock_read(anon_vma);
	hold->root = anon_vma->root;
	hold->places = 1;
}

static bool hold_trybegin(struct memreap_ksm_hold *hold,
			  struct anon_vma *anon_vma)
{
	if (!anon_vma_trylock_read(anon_vma))
		return false;
	hold->root = anon_vma->root;
	hold->places = 1;

	return true;
}

static bool walk_lock(struct memreap_ksm_walk *walk, struct anon_vma *anon_vma)
{
	/* A wide search takes long: release the lock after each place. */
	if (!walk->narrow)
		hold_end(&walk->hold);
	if (hold_keep(&walk->hold, anon_vma))
		return true;

	if (!walk->rwc->try_lock) {
		hold_begin(&walk->hold, anon_vma);
	} else if (!hold_trybegin(&walk->hold, anon_vma)) {
		walk->rwc->contended = true;
		return false;
	}
	walk->count.locks++;

	return true;
}

/**
 * memreap_ksm_walk_start - begin a walk over the mappings of a KSM page
 * @walk: the walk
 * @folio: the page, locked
 * @rwc: the caller's walk
 *
 * To be followed by memreap_ksm_walk_place() for every place of the page, once
 * more for each time that memreap_ksm_walk_again() returns true, and in any
 * case by memreap_ksm_walk_end().
 */
void memreap_ksm_walk_start(struct memreap_ksm_walk *walk, struct folio *folio,
			    struct rmap_walk_control *rwc)
{
	*walk = (struct memreap_ksm_walk){
		.folio = folio,
		.rwc = rwc,
		.narrow = memreap_ksm_rmap_enabled(),
	};
	trace_memreap_rmap_walk_start(folio, MEMREAP_RMAP_KSM);
}

/* Visits @vma, which covers @place. Returns false if the walk is over. */
static bool walk_vma(struct memreap_ksm_walk *walk,
		     const struct memreap_ksm_place *place,
		     struct vm_area_struct *vma)
{
	struct rmap_walk_control *rwc = walk->rwc;

	if (rwc->invalid_vma && rwc->invalid_vma(vma, rwc->arg))
		return true;
	walk->count.mappings++;

	return rwc->rmap_one(walk->folio, vma, place->address, rwc->arg) &&
	       !(rwc->done && rwc->done(walk->folio));
}

/**
 * memreap_ksm_walk_place - visit the mappings of a KSM page at one place
 * @walk: the walk
 * @place: where ksmd merged the page
 *
 * The first pass calls rmap_one() for the VMA of @place's own address space
 * that covers it, the second one for those of others, which were forked from
 * it and have not been scanned since. May sleep.
 *
 * Return: false if the walk is over: because of rmap_one() or done(), or
 * because a trylock failed.
 */
bool memreap_ksm_walk_place(struct memreap_ksm_walk *walk,
			    const struct memreap_ksm_place *place)
{
	const unsigned long first = walk->narrow ? place->pgoff : 0;
	const unsigned long last = walk->narrow ? place->pgoff : ULONG_MAX;
	struct anon_vma_chain *avc;
	bool visited = false;

	if (!walk_lock(walk, place->anon_vma))
		return false;

	anon_vma_interval_tree_foreach(avc, &place->anon_vma->rb_root,
				       first, last) {
		struct vm_area_struct *vma = avc->vma;
		bool own = vma->vm_mm == place->mm;

		cond_resched();
		walk->count.vmas++;
		if (place->address < vma->vm_start ||
		    place->address >= vma->vm_end)
			continue;
		if (!own)
			walk->forked = true;
		if (own != walk->forks) {
			if (!walk_vma(walk, place, vma))
				return false;
			visited = true;
		}
		/* An address space has one VMA for an address. */
		if (!walk->forks && visited && walk->forked)
			break;
	}

	return true;
}

/**
 * memreap_ksm_walk_again - check for another pass over the places
 * @walk: the walk
 *
 * The second pass is for VMAs that were forked from those of the first one, and
 * not needed if that saw none. For a VMA that is forked after the visit of a
 * place, the page table is copied after that, from one which the walk has
 * already processed: fork() puts a VMA into the tree, under the lock that the
 * walk held for the visit, before it copies the page table.
 *
 * Return: true if the caller has to start over with the first place.
 */
bool memreap_ksm_walk_again(struct memreap_ksm_walk *walk)
{
	if (walk->forks || (walk->narrow && !walk->forked))
		return false;
	walk->forks = true;

	return true;
}

/**
 * memreap_ksm_walk_end - end a walk, completed or not
 * @walk: the walk
 */
void memreap_ksm_walk_end(struct memreap_ksm_walk *walk)
{
	hold_end(&walk->hold);
	trace_memreap_rmap_walk_end(walk->folio, MEMREAP_RMAP_KSM,
				    &walk->count);
}

#ifdef CONFIG_MEMORY_FAILURE
static bool is_mapped_at(struct folio *folio, struct vm_area_struct *vma,
			 unsigned long address)
{
	DEFINE_FOLIO_VMA_WALK(pvmw, folio, vma, address, PVMW_SYNC);

	if (!page_vma_mapped_walk(&pvmw))
		return false;
	page_vma_mapped_walk_done(&pvmw);

	return true;
}

/**
 * memreap_ksm_collect_place - find the processes that map a KSM page at a place
 * @collect: the search; all members after @force_early are initially zero
 * @place: where ksmd merged the page
 *
 * Only finds processes that have the page in their page table, not all that
 * share the anon_vma. To be followed by memreap_ksm_collect_end(). May sleep.
 */
void memreap_ksm_collect_place(struct memreap_ksm_collect *collect,
			       const struct memreap_ksm_place *place)
{
	struct anon_vma_chain *avc;

	if (!hold_keep(&collect->hold, place->anon_vma)) {
		hold_begin(&collect->hold, place->anon_vma);
		collect->done = NULL;
	}

	anon_vma_interval_tree_foreach(avc, &place->anon_vma->rb_root,
				       place->pgoff, place->pgoff) {
		struct vm_area_struct *vma = avc->vma;
		struct task_struct *tsk;

		/*
		 * As long as the lock is held no VMA leaves the tree and no
		 * other mm can have the same address: one search through all
		 * processes is sufficient for each mm.
		 */
		if (vma->vm_mm == collect->done ||
		    place->address < vma->vm_start ||
		    place->address >= vma->vm_end ||
		    !is_mapped_at(collect->folio, vma, place->address))
			continue;
		collect->done = vma->vm_mm;

		rcu_read_lock();
		for_each_process(tsk) {
			struct task_struct *t =
				task_early_kill(tsk, collect->force_early);

			if (t && t->mm == vma->vm_mm)
				add_to_kill_ksm(t, collect->page, vma,
						collect->to_kill,
						place->address);
		}
		rcu_read_unlock();
	}
}

/**
 * memreap_ksm_collect_end - end a search for processes
 * @collect: the search
 */
void memreap_ksm_collect_end(struct memreap_ksm_collect *collect)
{
	hold_end(&collect->hold);
}
#endif /* CONFIG_MEMORY_FAILURE */

static const struct memreap_switch ksm_rmap_switch = {
	.key = &memreap_ksm_rmap_key.key,
};

memreap_switch_param(ksm_rmap, &ksm_rmap_switch);
MODULE_PARM_DESC(ksm_rmap, "Search for mappings of KSM pages by page index (default: Y)");
