// SPDX-License-Identifier: GPL-2.0-only
/*
 * Release swap entries outside of the exit path.
 *
 * Releasing a swap slot costs several times as much as freeing a page, and
 * frees less memory. When a process dies, its slots are gathered while its
 * pages are freed, and released afterwards by workers. The entries that wait
 * are bounded, count as free swap, and can be released by any task that needs
 * swap if no worker gets to run. Otherwise, and if too many wait already, slots
 * are released at once, but not under the page table lock.
 */
#include <linux/cgroup.h>
#include <linux/delay.h>
#include <linux/kernel_stat.h>
#include <linux/mm.h>
#include <linux/oom.h>
#include <linux/rcupdate.h>
#include <linux/sched/coredump.h>
#include <linux/sched/stat.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/suspend.h>
#include <linux/swap.h>
#include <linux/swapops.h>
#include <linux/timekeeping.h>
#include <linux/workqueue.h>

#include <asm/tlb.h>

#include "charge.h"
#include "swap_queue.h"
#include "swap_release.h"
#include "switch.h"

#define CREATE_TRACE_POINTS
#include <trace/events/memreap_swap.h>

DEFINE_STATIC_KEY_TRUE(memreap_swap_sync_key);
DEFINE_STATIC_KEY_TRUE(memreap_swap_async_key);

/* Workers at a time, if there are CPUs for them. */
#define SWAP_MAX_WORKERS	4

/*
 * Batches: one for each 4 MiB of RAM, up to 256, which take 1 MiB and keep up
 * to 1 GiB of swap waiting, or 504 MiB if none of it is contiguous.
 */
#define SWAP_MAX_BATCHES	256
#define SWAP_BATCH_SHARE	(SZ_4M / PAGE_SIZE)

/* Entries that wait for longer are released by tasks that need swap. */
#define SWAP_DEADLINE_NS		(100 * NSEC_PER_MSEC)

/* Slots that such a task releases for each one that it needs, or queues. */
#define SWAP_HELP_PAGES		SWAP_CHUNK_PAGES

/* After this time a worker starts in any case. */
#define SWAP_KICK_MS		50

/* How long to wait, in us, for entries that other CPUs are releasing. */
#define SWAP_OTHERS_US		1000

static struct swap_queue swap_queue;
static unsigned int swap_batches;
static struct workqueue_struct *swap_wq;
static struct work_struct swap_works[SWAP_MAX_WORKERS];
static struct delayed_work swap_kick;

/* One bit for each of swap_works that is queued or runs. */
static unsigned long swap_active;

/* While an image of memory is made and written, no entry waits. */
static bool swap_hibernating;

/* Slots in the queue, or taken out of it and not released yet. */
atomic_long_t nr_swap_pages_waiting;
EXPORT_SYMBOL_GPL(nr_swap_pages_waiting);

/* Slots that were in the queue and are free now. */
atomic_long_t memreap_swap_released;

static atomic_long_t swap_pages_queued;
static atomic_long_t swap_pages_inline;
static atomic_long_t swap_flushes;
static atomic_long_t swap_waiting_peak;
static atomic_long_t swap_wait_us_peak;

static void note_peak(atomic_long_t *peak, long value)
{
	long old = atomic_long_read(peak);

	while (value > old && !atomic_long_try_cmpxchg(peak, &old, value))
		;
}

/* --- Release --- */

static void put_owner(struct cgroup *cgrp)
{
#ifdef CONFIG_CGROUPS
	if (cgrp)
		cgroup_put(cgrp);
#endif
}

/*
 * Takes a few entries and releases them.
 *
 * The release of entries that have been taken must not be delayed, or a task
 * that fails to allocate swap would not know that there is some: so preemption
 * is disabled. This is shorter than what stock code does under a page table
 * lock. With PREEMPT_RT the locks below may sleep, and a few entries may be
 * delayed.
 */
static unsigned int release_chunk(enum memreap_swap_by by)
{
	struct swap_chunk chunk;
	unsigned int freed;
	u64 begin, took;

	rcu_read_lock();
	if (!IS_ENABLED(CONFIG_PREEMPT_RT))
		preempt_disable();
	if (!swap_queue_take(&swap_queue, &chunk))
		goto out;

	begin = ktime_get_ns();
	freed = swap_free_runs(chunk.runs, chunk.nr);
	took = ktime_get_ns() - begin;
	note_peak(&swap_wait_us_peak,
		  div_u64(begin + took - chunk.queued, NSEC_PER_USEC));
	/* Under RCU, as nothing else keeps the cgroup. */
	if (by == SWAP_BY_WORKER)
		memreap_charge_cpu(chunk.owner, took);
	trace_memreap_swap_release(&chunk, by, freed, begin - chunk.queued,
				   took);
	/* After everything else that is reported about the release. */
	smp_mb__before_atomic();
	atomic_long_add(chunk.pages, &memreap_swap_released);
	/* Last: entries that no longer wait have been counted as released. */
	smp_mb__before_atomic();
	atomic_long_sub(chunk.pages, &nr_swap_pages_waiting);
out:
	if (!IS_ENABLED(CONFIG_PREEMPT_RT))
		preempt_enable();
	rcu_read_unlock();
	if (chunk.last)
		put_owner(chunk.owner);

	return chunk.pages;
}

/*
 * Releases at least @pages of the slots that wait, or all. Never waits for a
 * worker, so it may be called in reclaim, with a folio locked.
 */
static unsigned long drain(unsigned long pages, enum memreap_swap_by by)
{
	unsigned long done = 0;
	unsigned int chunk;

	while (done < pages) {
		chunk = release_chunk(by);
		if (!chunk)
			break;
		done += chunk;
		cond_resched();
	}

	return done;
}

/* --- Workers --- */

/* The tasks that wait for the memory need to run, too. */
static unsigned int max_workers(void)
{
	return clamp(num_online_cpus() / 2, 1U, SWAP_MAX_WORKERS);
}

/* Wakes a worker if one is idle. */
static void wake_worker(void)
{
	for (unsigned int i = 0; i < max_workers(); i++) {
		if (!test_and_set_bit(i, &swap_active)) {
			queue_work(swap_wq, &swap_works[i]);
			return;
		}
	}
}

static void swap_work(struct work_struct *work)
{
	unsigned int me = work - swap_works;

again:
	do {
		/* One batch is not worth another CPU. */
		if (READ_ONCE(swap_queue.nr_waiting) >
		    hweight_long(READ_ONCE(swap_active)))
			wake_worker();
		cond_resched();
	} while (release_chunk(SWAP_BY_WORKER));

	clear_bit(me, &swap_active);
	/*
	 * A task that queues a batch and finds all workers active relies on
	 * them: either it sees the bit clear, or this sees the batch.
	 */
	smp_mb__after_atomic();
	if (READ_ONCE(swap_queue.nr_waiting) &&
	    !test_and_set_bit(me, &swap_active))
		goto again;
}

static void swap_kick_work(struct work_struct *work)
{
	if (READ_ONCE(swap_queue.nr_waiting))
		wake_worker();
}

/* Returns whether the oldest entry has waited for longer than the deadline. */
static bool overdue(void)
{
	/* Never in the future, and U64_MAX if there is none. */
	u64 oldest = READ_ONCE(swap_queue.oldest);

	return oldest != U64_MAX && ktime_get_ns() - oldest > SWAP_DEADLINE_NS;
}

/* --- Gathering --- */

/*
 * Returns the cgroup of the process with @mm, with a reference. Once the last
 * thread has given up the mm, it is the current task, unless another task drops
 * the last reference to the mm.
 */
static struct cgroup *get_owner(struct mm_struct *mm)
{
	struct cgroup *cgrp = NULL;
#ifdef CONFIG_CGROUPS
	struct task_struct *task = NULL;

	rcu_read_lock();
#ifdef CONFIG_MEMCG
	task = rcu_dereference(mm->owner);
#endif
	if (!task && current->flags & PF_EXITING)
		task = current;
	if (task) {
		cgrp = task_dfl_cgroup(task);
		if (!cgroup_tryget(cgrp))
			cgrp = NULL;
	}
	rcu_read_unlock();
#endif

	return cgrp;
}

/*
 * Returns whether the entries of @mm may wait. Not if it lives: madvise() and
 * munmap() must have released slots when they return. An mm without users is
 * being torn down; a reaped one is no longer used by its remaining users.
 */
static bool mm_dies(struct mm_struct *mm)
{
	return !atomic_read(&mm->mm_users) ||
	       test_bit(MMF_UNSTABLE, &mm->flags);
}

/*
 * Returns whether to defer these slots. Only the last reference to a slot is
 * expensive to drop: at least one of them has to be the last. In a child whose
 * fork() failed halfway none is. The slots of a device that is being turned off
 * are not deferred.
 */
static bool may_wait(struct swap_info_struct *si, unsigned long offset,
		     unsigned int nr)
{
	/* If swapoff starts right now, it flushes what is queued here. */
	if (!(data_race(si->flags) & SWP_WRITEOK))
		return false;
	for (unsigned int i = 0; i < nr; i++) {
		unsigned char count = READ_ONCE(si->swap_map[offset + i]);

		if ((count & ~SWAP_HAS_CACHE) == 1)
			return true;
	}

	return false;
}

/* Adds slots to the batch of @tlb. Returns how many were added. */
static unsigned int gather_to_wait(struct swap_zap *zap, struct mmu_gather *tlb,
				   unsigned int type, unsigned long offset,
				   unsigned int nr)
{
	struct swap_batch *batch = tlb->swap_batch;
	unsigned int taken;

	if (!batch) {
		batch = swap_queue_get_spare(&swap_queue);
		if (!batch) {
			atomic_long_add(nr, &swap_pages_inline);
			return 0;
		}
		batch->owner = get_owner(tlb->mm);
		tlb->swap_batch = batch;
	}
	taken = swap_batch_add(batch, type, offset, nr);
	zap->full |= swap_batch_full(batch);

	return taken;
}

/**
 * memreap_swap_gather - gather swap entries of a page table
 * @zap: of this page table
 * @tlb: of the teardown
 * @entry: the first entry
 * @nr: entries, contiguous, no more than a page table holds
 *
 * Called under the page table lock. The references to the slots are dropped
 * after that is released. Must not be called again if @zap is full then.
 */
void memreap_swap_gather(struct swap_zap *zap, struct mmu_gather *tlb,
			 swp_entry_t entry, int nr)
{
	struct swap_info_struct *si = swp_swap_info(entry);
	unsigned long offset = swp_offset(entry);
	unsigned int taken = 0;

	/* The page table is corrupted: the stock code reports that. */
	if (unlikely(!si || offset + nr > si->max)) {
		free_swap_and_cache_nr(entry, nr);
		return;
	}

	if (static_branch_likely(&memreap_swap_async_key) &&
	    mm_dies(tlb->mm) && !READ_ONCE(swap_hibernating) &&
	    may_wait(si, offset, nr))
		taken = gather_to_wait(zap, tlb, swp_type(entry), offset, nr);
	if (taken == nr)
		return;

	/* There is room: otherwise @zap would have been full. */
	swap_run_add(zap->runs, &zap->nr, SWAP_CHUNK_RUNS, swp_type(entry),
		     offset + taken, nr - taken);
	zap->full |= zap->nr == SWAP_CHUNK_RUNS;
}

/* Queues what @tlb has gathered. */
static void queue_batch(struct mmu_gather *tlb)
{
	struct swap_batch *batch = tlb->swap_batch;
	struct cgroup *owner = batch->owner;
	unsigned long pages = batch->pages;
	long waiting;
	bool merged;

	tlb->swap_batch = NULL;
	/* Slots that count as free have to be available without delay. */
	if (!IS_ENABLED(CONFIG_PREEMPT_RT))
		preempt_disable();
	waiting = atomic_long_add_return(pages, &nr_swap_pages_waiting);
	trace_memreap_swap_queue(tlb->mm, batch, waiting);
	merged = swap_queue_add(&swap_queue, batch, ktime_get_ns());
	if (!IS_ENABLED(CONFIG_PREEMPT_RT))
		preempt_enable();
	if (merged)
		put_owner(owner);
	atomic_long_add(pages, &swap_pages_queued);
	note_peak(&swap_waiting_peak, waiting);

	/*
	 * If no worker runs, or entries must not wait, release as much as was
	 * added.
	 */
	if (unlikely(READ_ONCE(swap_hibernating)))
		drain(pages, SWAP_BY_HIBERNATION);
	else if (overdue())
		drain(2 * pages, SWAP_BY_DEADLINE);
}

/*
 * Pages are freed before slots: starts the workers if a CPU is idle, if few
 * batches are left, or if all pages of the process are free.
 */
static void start_release(bool over)
{
	unsigned int waiting = READ_ONCE(swap_queue.nr_waiting);

	if (!waiting)
		return;
	if (over || 2 * waiting > READ_ONCE(swap_batches) ||
	    nr_running() < num_online_cpus())
		wake_worker();
	else
		queue_delayed_work(swap_wq, &swap_kick,
				   msecs_to_jiffies(SWAP_KICK_MS));
}

/**
 * memreap_swap_gathered - the page table lock has been dropped
 * @zap: of this page table; empty afterwards
 * @tlb: of the teardown
 */
void memreap_swap_gathered(struct swap_zap *zap, struct mmu_gather *tlb)
{
	if (zap->nr)
		swap_free_runs(zap->runs, zap->nr);
	if (tlb->swap_batch && swap_batch_full(tlb->swap_batch)) {
		queue_batch(tlb);
		start_release(false);
	}
	swap_zap_begin(zap);
}

/**
 * memreap_swap_finish - the end of a teardown
 * @tlb: of the teardown
 */
void memreap_swap_finish(struct mmu_gather *tlb)
{
	if (!tlb->swap_batch)
		return;
	queue_batch(tlb);
	start_release(tlb->fullmm);
}

/* --- Tasks that need swap --- */

/**
 * memreap_swap_flush - release all that waits
 *
 * For swapoff, which does not find an entry that is in no page table, and would
 * wait forever.
 */
void memreap_swap_flush(void)
{
	if (!atomic_long_read(&nr_swap_pages_waiting))
		return;
	atomic_long_inc(&swap_flushes);
	drain(ULONG_MAX, SWAP_BY_SWAPOFF);
}

/**
 * memreap_swap_make_room - swap, or memory, has run out: release what waits
 * @pages: slots wanted
 * @released: memreap_swap_count() before the caller's attempt; is updated
 *
 * Return: true if entries have been released since then: try again.
 */
bool memreap_swap_make_room(unsigned long pages, long *released)
{
	long before = *released;
	bool waiting;

	if (atomic_long_read(&nr_swap_pages_waiting)) {
		atomic_long_inc(&swap_flushes);
		drain(max_t(unsigned long, pages, SWAP_HELP_PAGES),
		      SWAP_BY_NEED);
	}

	/*
	 * Other tasks may have taken the last ones. They are running, and
	 * need no lock that the caller may hold.
	 */
	for (int us = 0; us < SWAP_OTHERS_US; us++) {
		waiting = atomic_long_read(&nr_swap_pages_waiting);
		/* See release_chunk(). */
		smp_rmb();
		*released = atomic_long_read(&memreap_swap_released);
		if (*released != before)
			return true;
		if (!waiting || IS_ENABLED(CONFIG_PREEMPT_RT))
			break;
		udelay(1);
	}

	return false;
}

/**
 * memreap_swap_help_out - the caller needs a slot, and entries wait
 *
 * If they have waited for too long, because tasks of higher priority keep the
 * workers from running, tasks that need swap do the work.
 */
void memreap_swap_help_out(void)
{
	if (overdue())
		drain(SWAP_HELP_PAGES, SWAP_BY_DEADLINE);
}

/* --- Settings and counters --- */

/**
 * memreap_swap_prepare - allocate the pool, at swapon
 *
 * Without memory there are fewer batches, and more entries that do not wait.
 */
void memreap_swap_prepare(void)
{
	static DEFINE_MUTEX(lock);
	unsigned long want = min(totalram_pages() / SWAP_BATCH_SHARE,
				 (unsigned long)SWAP_MAX_BATCHES);
	struct swap_batch *batch;

	BUILD_BUG_ON(sizeof(*batch) > SZ_4K);

	mutex_lock(&lock);
	while (swap_wq && swap_batches < want) {
		batch = kmalloc(sizeof(*batch), GFP_KERNEL | __GFP_NOWARN);
		if (!batch)
			break;
		swap_queue_put_spare(&swap_queue, batch);
		WRITE_ONCE(swap_batches, swap_batches + 1);
	}
	mutex_unlock(&lock);
}

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
		{ "swap_release_queued ", &swap_pages_queued },
		{ "swap_release_released ", &memreap_swap_released },
		{ "swap_release_inline ", &swap_pages_inline },
		{ "swap_release_flush ", &swap_flushes },
		{ "swap_release_waiting ", &nr_swap_pages_waiting },
		{ "swap_release_waiting_max ", &swap_waiting_peak },
		{ "swap_release_wait_max_us ", &swap_wait_us_peak },
	};

	for (unsigned int i = 0; i < ARRAY_SIZE(lines); i++) {
		seq_put_decimal_ull(m, lines[i].name,
				    atomic_long_read(lines[i].value));
		seq_putc(m, '\n');
	}
}

static void swap_switch_changed(void)
{
	atomic_long_set(&swap_waiting_peak, 0);
	atomic_long_set(&swap_wait_us_peak, 0);
}

static const char * const swap_levels[] = { "off", "sync", "async" };

static const struct memreap_switch swap_switch = {
	.keys = { &memreap_swap_sync_key.key, &memreap_swap_async_key.key },
	.levels = swap_levels,
	.wq = &swap_wq,
	.changed = swap_switch_changed,
};

memreap_switch_param(swap_release, &swap_switch);
MODULE_PARM_DESC(swap_release,
		 "How swap slots are released: off (as in stock), sync (not under locks), async (later, if a process dies; default)");

static int swap_pm_event(struct notifier_block *nb, unsigned long event,
			 void *unused)
{
	switch (event) {
	case PM_HIBERNATION_PREPARE:
	case PM_RESTORE_PREPARE:
		WRITE_ONCE(swap_hibernating, true);
		drain(ULONG_MAX, SWAP_BY_HIBERNATION);
		break;
	case PM_POST_HIBERNATION:
	case PM_POST_RESTORE:
		WRITE_ONCE(swap_hibernating, false);
		break;
	}

	return NOTIFY_DONE;
}

/*
 * No process is killed for memory that waiting entries hold in zram or zswap.
 * For a cgroup's memory, see mem_cgroup_out_of_memory().
 */
static int swap_oom_event(struct notifier_block *nb, unsigned long unused,
			  void *freed)
{
	long released = memreap_swap_count();

	if (memreap_swap_make_room(ULONG_MAX, &released))
		(*(unsigned long *)freed)++;

	return NOTIFY_OK;
}

static struct notifier_block swap_oom_nb = {
	.notifier_call = swap_oom_event,
};

static int __init swap_release_init(void)
{
	swap_queue_init(&swap_queue);
	for (int i = 0; i < SWAP_MAX_WORKERS; i++)
		INIT_WORK(&swap_works[i], swap_work);
	INIT_DELAYED_WORK(&swap_kick, swap_kick_work);
	swap_wq = alloc_workqueue("memreap_swap",
				  WQ_UNBOUND | WQ_MEM_RECLAIM | WQ_SYSFS, 0);
	/* Without a batch nothing waits. */
	if (!swap_wq)
		return -ENOMEM;
	pm_notifier(swap_pm_event, 0);

	return register_oom_notifier(&swap_oom_nb);
}
subsys_initcall(swap_release_init);
