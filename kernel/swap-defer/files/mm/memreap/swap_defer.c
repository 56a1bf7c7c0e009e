// SPDX-License-Identifier: GPL-2.0-only
/*
 * Release the swap slots of a dying process after its pages.
 *
 * A slot costs more to release than a page, and frees less memory. The slots of
 * a process that dies are put into a ring, and released by a worker when its
 * pages are free.
 *
 * What waits is nobody's: no page table refers to it, and it is charged to no
 * cgroup. It counts as free swap, and any task may release it: one that needs
 * swap, and reclaim, which comes before any OOM kill, do. So nobody waits for the
 * worker.
 */
#include <linux/blkdev.h>
#include <linux/cgroup.h>
#include <linux/kernel_stat.h>
#include <linux/memreap_swap_defer.h>
#include <linux/mm.h>
#include <linux/sched/cputime.h>
#include <linux/sched/signal.h>
#include <linux/sched/stat.h>
#include <linux/seq_file.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/swap.h>
#include <linux/swap_slots.h>
#include <linux/swapops.h>
#include <linux/workqueue.h>
#include <linux/zswap.h>

#include "charge.h"
#include "swap_defer.h"
#include "swap_ring.h"
#include "switch.h"

#define CREATE_TRACE_POINTS
#include <trace/events/memreap_swap_defer.h>

static DEFINE_STATIC_KEY_TRUE(memreap_swap_defer_key);

/* An entry of the ring, 16 bytes, for so many pages of RAM; most of them. */
#define RING_SHARE		(SZ_256K / PAGE_SIZE)
#define RING_MAX_ENTRIES	SZ_64K

/* The most slots that wait. */
#define DEFER_MAX_PAGES		(SZ_1G / PAGE_SIZE)

/* While no CPU is idle, the worker starts after this time at the latest. */
#define DEFER_MS		50

/* Slots that a full device releases before it tries again to store a page. */
#define ROOM_PAGES		(8 * SWAP_BATCH_PAGES)

static struct swap_ring ring;
static DEFINE_SPINLOCK(ring_lock);	/* never taken with interrupts disabled */
static struct workqueue_struct *defer_wq;
static void defer_work(struct work_struct *work);
static DECLARE_DELAYED_WORK(defer_worker, defer_work);

/* Slots in the ring, or taken out of it and not released yet. */
atomic_long_t nr_swap_pages_waiting;
EXPORT_SYMBOL_GPL(nr_swap_pages_waiting);

static atomic_long_t defer_queued;
static atomic_long_t defer_released;
static atomic_long_t defer_full;
static atomic_long_t defer_waiting_peak;

/* --- Release --- */

static void put_owners(struct cgroup *owner, unsigned int nr)
{
#ifdef CONFIG_CGROUPS
	if (owner)
		css_put_many(&owner->self, nr);
#endif
}

/*
 * Releases the slots that came first. A task that has taken them must not be
 * preempted: they count as free. With PREEMPT_RT, where the locks sleep, it may
 * be.
 */
static unsigned int release_batch(enum memreap_swap_by by)
{
	struct swap_batch batch;
	struct cgroup *owner;
	u64 took;

	if (!memreap_swap_waiting())
		return 0;
	swap_preempt_disable();
	spin_lock(&ring_lock);
	swap_ring_take(&ring, &batch, &owner);
	spin_unlock(&ring_lock);
	if (batch.nr) {
		/* Not wall time: with PREEMPT_RT, this may wait for locks. */
		took = task_sched_runtime(current);
		swap_free_ours(batch.runs, batch.nr);
		took = task_sched_runtime(current) - took;
		if (by == SWAP_BY_WORKER)
			memreap_charge_cpu(owner, took);
		trace_memreap_swap_release(&batch, by, took);
		atomic_long_add(batch.pages, &defer_released);
		atomic_long_sub(batch.pages, &nr_swap_pages_waiting);
	}
	swap_preempt_enable();
	put_owners(owner, batch.nr);

	return batch.pages;
}

/* Releases at least @pages of the slots that wait, or all; returns how many. */
static unsigned long drain(unsigned long pages, enum memreap_swap_by by)
{
	unsigned long done = 0;
	unsigned int nr;

	while (done < pages) {
		nr = release_batch(by);
		if (!nr)
			break;
		done += nr;
		cond_resched();
	}

	return done;
}

static void defer_work(struct work_struct *work)
{
	drain(ULONG_MAX, SWAP_BY_WORKER);
}

/**
 * memreap_swap_start - all pages of a dying process are free
 */
void memreap_swap_start(void)
{
	if (memreap_swap_waiting())
		mod_delayed_work(defer_wq, &defer_worker, 0);
}

/**
 * memreap_swap_help_out - release a few slots, by a task that will allocate one
 */
void memreap_swap_help_out(void)
{
	drain(SWAP_BATCH_PAGES, SWAP_BY_SWAP);
}

/**
 * memreap_swap_make_room - release slots: a device may store no more
 *
 * Not all: whoever stores a page does not wait for what others need.
 *
 * Return: whether any were released.
 */
bool memreap_swap_make_room(void)
{
	return drain(ROOM_PAGES, SWAP_BY_MEMORY);
}
EXPORT_SYMBOL_GPL(memreap_swap_make_room);

/**
 * memreap_swap_flush - release all that waits
 *
 * For swapoff, which would not find slots to which no page table refers.
 */
void memreap_swap_flush(void)
{
	drain(ULONG_MAX, SWAP_BY_SWAPOFF);
}

/* --- Deferral --- */

/*
 * Returns whether it pays to release slots later. Not if the device has nothing
 * to free for each of them, or if no two of them are neighbours: then they cost
 * little, or as much as in the stock code. What zswap stores is charged to a
 * cgroup, which may be at its limit. What is on a device that is being turned
 * off must not wait; if swapoff starts right now, it flushes this. While any
 * device is turned off, readahead waits for slots that are marked as in the slot
 * cache, as that is disabled.
 */
static bool pays(struct swap_info_struct *si, unsigned int nr,
		 unsigned int pages)
{
	/* They may change at any time, as soon as this returns. */
	unsigned long flags = data_race(si->flags);

	return READ_ONCE(swap_slot_cache_enabled) &&
	       (flags & SWP_WRITEOK) && (flags & SWP_BLKDEV) &&
	       si->bdev->bd_disk->fops->swap_slot_free_notify &&
	       zswap_never_enabled() && pages >= 2 * nr;
}

/*
 * Returns the cgroup of the process with @mm, with @nr references. Once the last
 * thread has given up the mm, by exit or execve(), it is the current task,
 * unless another task drops the last reference to the mm, or a reaper frees what
 * is left of it: then it is none.
 */
static struct cgroup *get_owners(struct mm_struct *mm, unsigned int nr)
{
	struct cgroup *owner = NULL;
#ifdef CONFIG_CGROUPS
	struct task_struct *task = NULL;

	rcu_read_lock();
#ifdef CONFIG_MEMCG
	task = rcu_dereference(mm->owner);
#endif
	if (!task && (current->flags & PF_EXITING || current->in_execve))
		task = current;
	if (task) {
		owner = task_dfl_cgroup(task);
		if (cgroup_tryget(owner))
			css_get_many(&owner->self, nr - 1);
		else
			owner = NULL;
	}
	rcu_read_unlock();
#endif

	return owner;
}

static void note_peak(long waiting)
{
	long old = atomic_long_read(&defer_waiting_peak);

	while (waiting > old &&
	       !atomic_long_try_cmpxchg(&defer_waiting_peak, &old, waiting))
		;
}

/**
 * memreap_swap_defer - release slots later, if that pays and they may wait
 * @ours: the slots, as for swap_free_ours()
 * @nr: entries in @ours, at least one
 * @mm: that they belonged to, which dies
 *
 * Return: false if the caller has to release them.
 */
bool memreap_swap_defer(const struct swap_run *ours, unsigned int nr,
			struct mm_struct *mm)
{
	unsigned int pages = 0;
	struct cgroup *owner;
	bool added = false;
	long waiting;

	if (!static_branch_likely(&memreap_swap_defer_key) || !ring.size)
		return false;
	for (unsigned int i = 0; i < nr; i++)
		pages += ours[i].nr;
	if (!pays(swp_swap_info(swp_entry(ours->type, ours->offset)), nr, pages))
		return false;

	owner = get_owners(mm, nr);
	/* Before they can be taken. */
	waiting = atomic_long_add_return(pages, &nr_swap_pages_waiting);
	if (waiting <= DEFER_MAX_PAGES) {
		spin_lock(&ring_lock);
		added = swap_ring_add(&ring, ours, nr, owner);
		if (added)
			atomic_long_add(pages, &defer_queued);
		spin_unlock(&ring_lock);
	}
	if (!added) {
		atomic_long_sub(pages, &nr_swap_pages_waiting);
		atomic_long_add(pages, &defer_full);
		put_owners(owner, nr);
		return false;
	}
	trace_memreap_swap_queue(mm, nr, pages, waiting);
	note_peak(waiting);

	/* Once, when something begins to wait: nr_running() looks at each CPU. */
	if (waiting == pages && nr_running() < num_online_cpus())
		mod_delayed_work(defer_wq, &defer_worker, 0);
	else
		queue_delayed_work(defer_wq, &defer_worker,
				   msecs_to_jiffies(DEFER_MS));

	return true;
}

/* --- Memory that waiting slots hold --- */

static unsigned long defer_count(struct shrinker *shrinker,
				 struct shrink_control *sc)
{
	return memreap_swap_waiting();
}

/* In pieces, between which a task that has been killed stops. */
static unsigned long defer_scan(struct shrinker *shrinker,
				struct shrink_control *sc)
{
	unsigned long freed = 0;

	if (!fatal_signal_pending(current))
		freed = drain(sc->nr_to_scan, SWAP_BY_MEMORY);

	return freed ?: SHRINK_STOP;
}

/* --- Settings and counters --- */

/**
 * memreap_swap_vmstat - print this topic's lines of /proc/vmstat
 * @m: the file
 */
void memreap_swap_vmstat(struct seq_file *m)
{
	static const struct {
		const char *name;
		const atomic_long_t *value;
	} lines[] = {
		{ "swap_defer_queued ", &defer_queued },
		{ "swap_defer_released ", &defer_released },
		{ "swap_defer_full ", &defer_full },
		{ "swap_defer_waiting ", &nr_swap_pages_waiting },
		{ "swap_defer_waiting_max ", &defer_waiting_peak },
	};

	for (unsigned int i = 0; i < ARRAY_SIZE(lines); i++) {
		seq_put_decimal_ull(m, lines[i].name,
				    atomic_long_read(lines[i].value));
		seq_putc(m, '\n');
	}
}

static void defer_switch_changed(void)
{
	atomic_long_set(&defer_waiting_peak, 0);
}

static const struct memreap_switch defer_switch = {
	.key = &memreap_swap_defer_key.key,
	.wq = &defer_wq,
	.changed = defer_switch_changed,
};

memreap_switch_param(swap_defer, &defer_switch);
MODULE_PARM_DESC(swap_defer,
		 "Release swap slots of dying processes after their pages (default: Y)");

static int __init swap_defer_init(void)
{
	unsigned int size = clamp(totalram_pages() / RING_SHARE, 1UL,
				  (unsigned long)RING_MAX_ENTRIES);
	struct shrinker *shrinker = shrinker_alloc(0, "memreap-swap");

	ring.entries = kvcalloc(size, sizeof(*ring.entries), GFP_KERNEL);
	defer_wq = alloc_workqueue("memreap_swap",
				   WQ_UNBOUND | WQ_MEM_RECLAIM | WQ_SYSFS, 1);
	if (!shrinker || !ring.entries || !defer_wq)
		goto no_memory;
	shrinker->count_objects = defer_count;
	shrinker->scan_objects = defer_scan;
	/* What waits is of no use to anybody. */
	shrinker->seeks = 0;
	shrinker_register(shrinker);
	ring.size = size;

	return 0;

no_memory:
	static_branch_disable(&memreap_swap_defer_key);
	if (defer_wq)
		destroy_workqueue(defer_wq);
	defer_wq = NULL;
	kvfree(ring.entries);
	shrinker_free(shrinker);

	return -ENOMEM;
}
subsys_initcall(swap_defer_init);
