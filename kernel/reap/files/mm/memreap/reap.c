// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reap a dying address space beside exit_mmap() instead of against it.
 *
 * exit_mmap() zaps from the bottom. A reaper that walks the same way follows
 * it from page table to page table and both spend their time on each other's
 * locks. So reapers start at the top and go down in pieces no larger than one
 * page table: the two meet once. Several reapers share the work by claiming
 * chunks, see reap_session.c.
 */
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/mmu_notifier.h>
#include <linux/oom.h>
#include <linux/sched/coredump.h>
#include <linux/sched/signal.h>
#include <linux/sched/stat.h>
#include <linux/timekeeping.h>

#include <asm/tlb.h>

#include "../internal.h"
#include "reap.h"
#include "reap_session.h"
#include "switch.h"

#define CREATE_TRACE_POINTS
#include <trace/events/memreap_reap.h>

DEFINE_STATIC_KEY_TRUE(memreap_reap_key);

/*
 * Free what a reaper gathered once it comes to about one page table's worth of
 * pages: the struct pages are still in the cache then, memory comes back while
 * the rest is zapped, and a reaper that loses its CPU keeps no more than this
 * and a huge page.
 */
#define REAP_FLUSH_PAGES	(PTRS_PER_PTE - PTRS_PER_PTE / 8)

/* How often the OOM reaper tries to get a lock back that it gave up. */
#define REAP_RELOCK_TRIES	5

/*
 * How long a reaper with a pace works until it looks who else wants the CPU,
 * and the longest pause, as it may itself have been kept from running.
 */
#define REAP_TURN		NSEC_PER_MSEC
#define REAP_PAUSE_MAX		(50 * NSEC_PER_MSEC)

/**
 * struct reaper - one reaper at work
 * @mm: the address space
 * @session: shared with the other reapers of @mm
 * @mas: position in @mm's tree of VMAs; valid while the mmap_lock is held
 * @vma: the VMA at @mas, or NULL when there is none further down
 * @moved: @mas and @vma say nothing about the place asked for next
 * @who: what it may wait for
 * @locked: the mmap_lock is held for read
 * @pace: how to share the CPU, or NULL
 * @tlb: gathers the pages of the chunk being worked on
 * @freed: pages that @tlb gathered and has freed
 * @stat: what the tracepoint reports
 */
struct reaper {
	struct mm_struct *mm;
	struct reap_session *session;
	struct ma_state mas;
	struct vm_area_struct *vma;
	bool moved;
	enum reap_who who;
	bool locked;
	struct reap_pace *pace;
	struct mmu_gather tlb;
	unsigned long freed;
	struct memreap_reap_stat stat;
};

/*
 * Only private memory has a good chance to be dropped without steps that
 * cannot be afforded when memory has run out; hugetlb and PFN mappings need
 * such steps too. See __oom_reap_task_mm().
 */
static bool reapable(const struct vm_area_struct *vma)
{
	if (vma->vm_flags & (VM_HUGETLB | VM_PFNMAP))
		return false;

	return vma_is_anonymous((struct vm_area_struct *)vma) ||
	       !(vma->vm_flags & VM_SHARED);
}

/*
 * The highest reapable VMA that starts below @top, which only goes down from
 * call to call unless the position was declared void.
 */
static struct vm_area_struct *vma_below(struct reaper *r, unsigned long top)
{
	if (r->moved) {
		mas_set(&r->mas, top - 1);
		r->vma = mas_find_rev(&r->mas, 0);
		r->moved = false;
	}
	while (r->vma && (r->vma->vm_start >= top || !reapable(r->vma)))
		r->vma = mas_find_rev(&r->mas, 0);

	return r->vma;
}

static bool span_below(void *arg, unsigned long top, struct reap_span *span)
{
	struct reaper *r = arg;
	struct vm_area_struct *vma;

	/* Others may have claimed much in between: do not step through it. */
	r->moved = true;
	vma = vma_below(r, top);
	if (!vma)
		return false;

	span->start = vma->vm_start;
	span->end = min(vma->vm_end, top);
	return true;
}

/* Cut the next piece off the top of @chunk: one VMA, at most one page table. */
static bool next_piece(struct reaper *r, struct reap_span *chunk,
		       struct reap_span *piece)
{
	struct vm_area_struct *vma;

	if (chunk->start >= chunk->end)
		return false;

	vma = vma_below(r, chunk->end);
	if (!vma || vma->vm_end <= chunk->start)
		return false;

	piece->end = min(vma->vm_end, chunk->end);
	piece->start = max3(vma->vm_start, chunk->start,
			    ALIGN_DOWN(piece->end - 1, PMD_SIZE));
	chunk->end = piece->start;
	return true;
}

static void begin_gather(struct reaper *r)
{
	tlb_gather_mmu(&r->tlb, r->mm);
	r->freed = 0;
}

static void end_gather(struct reaper *r)
{
	tlb_finish_mmu(&r->tlb);
	r->stat.pages += r->tlb.gathered;
}

static void zap_piece(struct reaper *r, const struct reap_span *piece)
{
	struct mmu_notifier_range range;

	mmu_notifier_range_init(&range, MMU_NOTIFY_UNMAP, 0, r->mm,
				piece->start, piece->end);
	if (mmu_notifier_invalidate_range_start_nonblock(&range)) {
		WRITE_ONCE(r->session->failed, true);
		return;
	}
	unmap_page_range(&r->tlb, r->vma, range.start, range.end, NULL);
	mmu_notifier_invalidate_range_end(&range);

	if (r->tlb.gathered - r->freed >= REAP_FLUSH_PAGES) {
		tlb_flush_mmu(&r->tlb);
		r->freed = r->tlb.gathered;
	}
}

/*
 * Somebody waits for the mmap_lock, most likely to let the process die. Let
 * them pass. Only process_mrelease() may sleep on the lock: its holder may need
 * the very memory that is to be freed.
 */
static bool relock(struct reaper *r)
{
	mmap_read_unlock(r->mm);
	r->locked = false;
	r->moved = true;
	r->stat.yields++;

	if (r->who == REAP_MRELEASE) {
		r->locked = !mmap_read_lock_killable(r->mm);
		return r->locked;
	}

	for (int i = 0; i < REAP_RELOCK_TRIES && !r->locked; i++) {
		schedule_timeout_idle(1);
		r->locked = mmap_read_trylock(r->mm);
	}

	return r->locked;
}

/*
 * Has the reaper had its turn, and does anybody else want this CPU?
 *
 * Return: for how long to leave it, in ns.
 */
static u64 turn_over(struct reap_pace *pace)
{
	u64 now, took;

	if (!pace || pace->percent == 100)
		return 0;
	now = ktime_get_ns();
	took = now - pace->since;
	if (took < REAP_TURN)
		return 0;
	if (single_task_running()) {
		pace->since = now;
		return 0;
	}

	/* A piece can take longer than a turn, and then the pause does, too. */
	return div_u64(took * (100 - pace->percent), pace->percent);
}

/**
 * memreap_reap_pause - leave the CPU to others, if it is their turn
 * @pace: of the calling reaper
 *
 * Return: how often it was: 1 or 0.
 */
unsigned int memreap_reap_pause(struct reap_pace *pace)
{
	u64 ns = min(turn_over(pace), REAP_PAUSE_MAX);
	unsigned long us = div_u64(ns, NSEC_PER_USEC);

	if (!us)
		return 0;
	usleep_range(us, us + us / 4);
	pace->since = ktime_get_ns();

	return 1;
}

/*
 * Zap @chunk from its top.
 *
 * After a relock there may be no VMAs any more: exit_mmap() frees them with the
 * lock held for writing. Until it has, they can be walked. MMF_OOM_SKIP says
 * nothing about that, as the OOM reaper sets it when it gives up, too.
 *
 * Return: false when reaping has to end because the lock did not come back.
 */
static bool reap_chunk(struct reaper *r, struct reap_span *chunk)
{
	struct reap_span piece;

	begin_gather(r);
	while (next_piece(r, chunk, &piece)) {
		zap_piece(r, &piece);

		if (!turn_over(r->pace) && !mmap_lock_is_contended(r->mm))
			continue;
		end_gather(r);
		r->stat.pauses += memreap_reap_pause(r->pace);
		if (mmap_lock_is_contended(r->mm) && !relock(r)) {
			/* All of the session miss what is left. */
			WRITE_ONCE(r->session->failed, true);
			return false;
		}
		begin_gather(r);
	}
	end_gather(r);
	r->stat.chunks++;

	return true;
}

/*
 * Wait until the other reapers have finished what they claimed. The lock is
 * given up: one that needs it back must not wait for us.
 */
static bool wait_finished(struct reaper *r)
{
	if (reap_session_finished(r->session))
		return true;
	if (r->locked)
		mmap_read_unlock(r->mm);
	r->locked = false;

	return !wait_event_killable(r->session->idle,
				    reap_session_finished(r->session));
}

/**
 * memreap_reap_mm - free the private memory of a dying address space
 * @mm: the address space, pinned by the caller, its mmap_lock held for read
 * @who: who reaps
 * @locked: cleared when the mmap_lock was given up and is not held on return
 * @pages: if not NULL, what the caller has unmapped is added, in pages
 * @pace: if not NULL, how to share the CPU
 *
 * Any number of tasks can work on one @mm at a time. For REAP_MRELEASE, all
 * that was to be reaped has been when this returns true, whoever did it; for
 * REAP_OOM it has been by the caller or before.
 *
 * Return: false if part of @mm was left out and the caller should try again.
 */
bool memreap_reap_mm(struct mm_struct *mm, enum reap_who who, bool *locked,
		     unsigned long *pages, struct reap_pace *pace)
{
	struct reap_session own;
	struct reaper r = {
		.mm = mm,
		.who = who,
		.locked = true,
		.moved = true,
		.pace = pace,
	};
	u64 start = ktime_get_ns();
	struct reap_span chunk;
	bool complete = true;

	mas_init(&r.mas, &mm->mm_mt, 0);
	/*
	 * What others have claimed may take them for ever: they can be
	 * anybody's, at any priority. The OOM reaper goes through all of it.
	 */
	r.session = who == REAP_OOM ? reap_session_alone(mm, &own) :
				      reap_session_join(mm, &own);
	trace_memreap_reap_start(mm, atomic_read(&r.session->working));

	/*
	 * get_user() and its like now fail on what is no longer there instead
	 * of seeing zeroes. See __oom_reap_task_mm() for why no barrier.
	 */
	set_bit(MMF_UNSTABLE, &mm->flags);

	while (reap_session_claim(r.session, span_below, &r, &chunk)) {
		if (!reap_chunk(&r, &chunk))
			break;
	}
	reap_session_finish(r.session);
	if (who == REAP_MRELEASE)
		complete = wait_finished(&r);
	complete &= reap_session_leave(r.session);

	r.stat.ns = ktime_get_ns() - start;
	trace_memreap_reap_end(mm, &r.stat, complete);
	*locked = r.locked;
	if (pages)
		*pages += r.stat.pages;

	return complete;
}

static const struct memreap_switch reap_switch = {
	.keys = { &memreap_reap_key.key },
};

memreap_switch_param(reap, &reap_switch);
MODULE_PARM_DESC(reap, "Reap from the top, with several reapers (default: Y)");
