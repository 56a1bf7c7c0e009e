// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reap a dying address space in parallel with exit_mmap().
 *
 * exit_mmap() zaps from the bottom. A reaper that walks the same way follows
 * it from page table to page table, and both contend for the same locks. So
 * reapers start at the top and go down in pieces of at most one page table: the
 * two meet once. Several reapers share the work by claiming chunks, see
 * reap_session.c.
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
 * Free what a reaper gathered once it amounts to about one page table's worth
 * of pages: the struct pages are still cached then, memory is freed while the
 * rest is zapped, and a preempted reaper keeps no more than this and a huge
 * page.
 */
#define REAP_FLUSH_PAGES	(PTRS_PER_PTE - PTRS_PER_PTE / 8)

/* How often the OOM reaper tries to take a lock again that it released. */
#define REAP_RELOCK_TRIES	5

/*
 * How long a reaper with a pace works until it checks whether other tasks want
 * the CPU, and the longest pause, as it may have been preempted meanwhile.
 */
#define REAP_SLICE_NS		NSEC_PER_MSEC
#define REAP_MAX_PAUSE_NS		(50 * NSEC_PER_MSEC)

/**
 * struct reaper - an active reaper
 * @mm: the address space
 * @session: shared with the other reapers of @mm
 * @mas: position in @mm's tree of VMAs; valid while the mmap_lock is held
 * @vma: the VMA at @mas, or NULL when there is none further down
 * @moved: @mas and @vma are not valid for the next search
 * @who: kind of caller
 * @locked: the mmap_lock is held for read
 * @pace: how to share the CPU, or NULL
 * @tlb: gathers the pages of the chunk being worked on
 * @freed: pages that @tlb has freed
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
 * Only private memory is likely to be freed without further allocations or
 * locks, which are not possible when memory has run out; hugetlb and PFN
 * mappings may need some, too. See __oom_reap_task_mm().
 */
static bool reapable(const struct vm_area_struct *vma)
{
	if (vma->vm_flags & (VM_HUGETLB | VM_PFNMAP))
		return false;

	return vma_is_anonymous((struct vm_area_struct *)vma) ||
	       !(vma->vm_flags & VM_SHARED);
}

/*
 * Returns the highest reapable VMA that starts below @top, which must not grow
 * from call to call unless @r->moved is set.
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

	/* Others may have claimed much in between: skip it in one step. */
	r->moved = true;
	vma = vma_below(r, top);
	if (!vma)
		return false;

	span->start = vma->vm_start;
	span->end = min(vma->vm_end, top);
	return true;
}

/* Cuts the next piece off the top of @chunk: one VMA, at most one page table. */
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
 * Another task waits for the mmap_lock, most likely the exiting process:
 * release it. Only process_mrelease() may sleep on the lock: its holder may wait
 * for the very memory that is to be freed.
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
 * Has the reaper used up its time slice, and does another task want this CPU?
 *
 * Return: how long to sleep, in ns.
 */
static u64 pause_needed(struct reap_pace *pace)
{
	u64 now, took;

	if (!pace || pace->percent == 100)
		return 0;
	now = ktime_get_ns();
	took = now - pace->since;
	if (took < REAP_SLICE_NS)
		return 0;
	if (single_task_running()) {
		pace->since = now;
		return 0;
	}

	/* A piece can take longer than a slice, and then the pause does, too. */
	return div_u64(took * (100 - pace->percent), pace->percent);
}

/**
 * memreap_reap_pause - sleep if the time slice is over and others want the CPU
 * @pace: of the calling reaper
 *
 * Return: the number of pauses: 1 or 0.
 */
unsigned int memreap_reap_pause(struct reap_pace *pace)
{
	u64 ns = min(pause_needed(pace), REAP_MAX_PAUSE_NS);
	unsigned long us = div_u64(ns, NSEC_PER_USEC);

	if (!us)
		return 0;
	usleep_range(us, us + us / 4);
	pace->since = ktime_get_ns();

	return 1;
}

/*
 * Zaps @chunk from its top.
 *
 * After a relock there may be no VMAs left: exit_mmap() frees them with the
 * lock held for writing. Until it has, they can be walked. MMF_OOM_SKIP does not
 * tell, as the OOM reaper sets it when it gives up, too.
 *
 * Return: false when reaping has to end because the lock could not be taken.
 */
static bool reap_chunk(struct reaper *r, struct reap_span *chunk)
{
	struct reap_span piece;

	begin_gather(r);
	while (next_piece(r, chunk, &piece)) {
		zap_piece(r, &piece);

		if (!pause_needed(r->pace) && !mmap_lock_is_contended(r->mm))
			continue;
		end_gather(r);
		r->stat.pauses += memreap_reap_pause(r->pace);
		if (mmap_lock_is_contended(r->mm) && !relock(r)) {
			/* The rest of the chunk is missed by the session. */
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
 * Waits until the other reapers have finished what they claimed, without the
 * lock: a reaper that has to take it again must not wait for this one.
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
 * @who: kind of caller
 * @locked: cleared if the mmap_lock is not held on return
 * @pages: if not NULL, the pages that the caller unmapped are added
 * @pace: if not NULL, how to share the CPU
 *
 * Any number of tasks can work on one @mm at a time. If this returns true,
 * everything reapable has been reaped: for REAP_MRELEASE by any of them, for
 * REAP_OOM by the caller or before.
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
	 * Other reapers may never finish: they can belong to any user and have
	 * any priority. The OOM reaper walks everything itself.
	 */
	r.session = who == REAP_OOM ? reap_session_alone(mm, &own) :
				      reap_session_join(mm, &own);
	trace_memreap_reap_start(mm, atomic_read(&r.session->working));

	/*
	 * Makes get_user() and the like fail instead of reading zeroes. See
	 * __oom_reap_task_mm() for why there is no barrier.
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
