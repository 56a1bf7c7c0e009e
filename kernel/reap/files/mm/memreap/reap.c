// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reap a dying address space in parallel with exit_mmap().
 *
 * exit_mmap() zaps from the bottom. A reaper that walks the same way follows
 * it from page table to page table, and both contend for the same locks. So
 * reapers start at the top and go down in pieces of at most one page table: the
 * two meet once.
 *
 * Several reapers share an address space by a cursor in its mm_struct: it moves
 * down, and the one that moves it owns what is in between. But none relies on
 * another, which can belong to any user and have any priority: one that was not
 * alone walks everything once more in the end. What is reaped already takes
 * little time then.
 */
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/mmu_notifier.h>
#include <linux/sched/coredump.h>
#include <linux/sched/stat.h>
#include <linux/timekeeping.h>

#include <asm/tlb.h>

#include "../internal.h"
#include "reap.h"
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

/*
 * How often a worker of expedite tries to take the lock again after a pause. The
 * OOM reaper has no pace, and keeps the lock.
 */
#define REAP_RELOCK_TRIES	5

/*
 * How long a reaper with a pace works until it checks whether other tasks want
 * the CPU, and the longest pause, as it may have been preempted meanwhile.
 */
#define REAP_SLICE_NS		(NSEC_PER_MSEC / 2)
#define REAP_MAX_PAUSE_NS		(50 * NSEC_PER_MSEC)

/*
 * The unit of claims: 16 page tables where pages have 4 KiB, at least one
 * elsewhere. Aligned, so that it splits no huge page; small enough
 * that reapers finish at about the same time; large enough that the cost of a
 * claim is negligible.
 */
#define REAP_CHUNK_SIZE		MAX(PMD_SIZE, SZ_32M)

/* Empty entries of upper page tables in a piece: less than a slice. */
#define REAP_MAX_STEPS		8192

/**
 * struct reaper - an active reaper
 * @mm: the address space
 * @mas: position in @mm's tree of VMAs; valid while the mmap_lock is held
 * @vma: the VMA at @mas, or NULL when there is none further down
 * @moved: @mas and @vma are not valid for the next search
 * @may_sleep: may wait for the mmap_lock, whose holder may wait for memory
 * @locked: the mmap_lock is held for read
 * @failed: an MMU notifier refused a part
 * @pace: how to share the CPU, or NULL
 * @tlb: gathers the pages of the span being worked on
 * @stat: what the tracepoint reports
 */
struct reaper {
	struct mm_struct *mm;
	struct ma_state mas;
	struct vm_area_struct *vma;
	bool moved;
	bool may_sleep;
	bool locked;
	bool failed;
	struct reap_pace *pace;
	struct mmu_gather tlb;
	struct memreap_reap_stat stat;
};

/* A range of user addresses. */
struct reap_span {
	unsigned long start;
	unsigned long end;
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

/* Sets @size to what an entry of the lowest table that @addr has stands for. */
static bool has_no_table(struct mm_struct *mm, unsigned long addr,
			 unsigned long *size)
{
	pgd_t *pgdp = pgd_offset(mm, addr);
	p4d_t *p4dp, p4d;
	pud_t *pudp, pud;
	pmd_t pmd;

	/* Below a VMA, only tables of the lowest level are freed. */
	*size = PGDIR_SIZE;
	if (pgd_none(*pgdp))
		return true;
	p4dp = p4d_offset(pgdp, addr);
	p4d = p4dp_get(p4dp);
	*size = P4D_SIZE;
	if (p4d_none(p4d))
		return true;
	pudp = pud_offset_lockless(p4dp, p4d, addr);
	/* Others may zap what is mapped here by a single entry. */
	pud = pudp_get(pudp);
	*size = PUD_SIZE;
	if (pud_none(pud) || pud_leaf(pud))
		return pud_none(pud);
	pmd = pmdp_get_lockless(pmd_offset_lockless(pudp, pud, addr));
	*size = PMD_SIZE;

	return pmd_none(pmd);
}

/*
 * Returns how far down from @end, and as far as @floor, it takes not more than
 * one page table of the lowest level: a mapping of terabytes that is hardly
 * used has few. But tables above may be full of empty entries, each of which is
 * a step: after so many the piece ends, so that a reaper gives way in time.
 */
static unsigned long table_start(struct mm_struct *mm, unsigned long end,
				 unsigned long floor)
{
	unsigned int steps = REAP_MAX_STEPS;
	unsigned long addr = end, size;
	bool none;

	do {
		none = has_no_table(mm, addr - 1, &size);
		addr = ALIGN_DOWN(addr - 1, size);
		cond_resched();
	} while (none && addr > floor && --steps);

	return addr;
}

/*
 * Takes the highest chunk that no reaper has claimed. It may hold several VMAs
 * and the gaps between them.
 *
 * Returns false when there is nothing left to claim. @claimed is where the
 * claims of the caller end; if it was not alone, others have some in between.
 */
static bool claim_chunk(struct reaper *r, unsigned long *claimed, bool *alone,
			struct reap_span *chunk)
{
	atomic_long_t *cursor = &r->mm->reap_cursor;
	long top = atomic_long_read(cursor);
	struct vm_area_struct *vma;

	do {
		/* Others may have claimed much: skip it in one step. */
		r->moved = true;
		vma = top ? vma_below(r, top) : NULL;
		if (!vma) {
			*alone &= top == *claimed;
			return false;
		}
		chunk->end = min(vma->vm_end, (unsigned long)top);
		chunk->start = min(ALIGN_DOWN(chunk->end - 1, REAP_CHUNK_SIZE),
				   table_start(r->mm, chunk->end,
					       vma->vm_start));
	} while (!atomic_long_try_cmpxchg(cursor, &top, chunk->start));

	*alone &= top == *claimed;
	*claimed = chunk->start;

	return true;
}

/* Cuts the next piece off the top of @span: one VMA, at most one page table. */
static bool next_piece(struct reaper *r, struct reap_span *span,
		       struct reap_span *piece)
{
	struct vm_area_struct *vma;
	unsigned long floor;

	if (span->start >= span->end)
		return false;

	vma = vma_below(r, span->end);
	if (!vma || vma->vm_end <= span->start)
		return false;

	floor = max(vma->vm_start, span->start);
	piece->end = min(vma->vm_end, span->end);
	piece->start = max(floor, table_start(r->mm, piece->end, floor));
	span->end = piece->start;
	return true;
}

static void begin_gather(struct reaper *r)
{
	tlb_gather_mmu(&r->tlb, r->mm);
}

static void end_gather(struct reaper *r)
{
	tlb_finish_mmu(&r->tlb);
	r->stat.pages += r->tlb.gathered;
}

static void zap_piece(struct reaper *r, const struct reap_span *piece)
{
	struct mmu_notifier_range range;

	/* Not as unmapped, for which some drivers split their own ranges. */
	mmu_notifier_range_init(&range, MMU_NOTIFY_CLEAR, 0, r->mm,
				piece->start, piece->end);
	if (mmu_notifier_invalidate_range_start_nonblock(&range)) {
		r->failed = true;
		return;
	}
	/*
	 * An arm64 that cannot flush ranges flushes less than a page table's
	 * worth page by page, and all CPUs take part in each.
	 */
	if (IS_ENABLED(CONFIG_ARM64))
		__tlb_adjust_range(&r->tlb, piece->start & PMD_MASK, PMD_SIZE);
	zap_range_for_reaping(&r->tlb, r->vma, range.start, range.end);
	mmu_notifier_invalidate_range_end(&range);

	if (r->tlb.gathered - r->tlb.freed >= REAP_FLUSH_PAGES)
		tlb_flush_mmu(&r->tlb);
}

/*
 * Has the reaper used up its time slice, and does another task want this CPU?
 *
 * Return: how long to sleep, in ns.
 */
static u64 pause_needed(struct reap_pace *pace)
{
	u64 now, took;

	if (!pace)
		return 0;
	now = ktime_get_ns();
	took = now - pace->since;
	if (took < REAP_SLICE_NS)
		return 0;
	if (pace->percent == 100 || single_task_running()) {
		pace->since = now;
		return 0;
	}

	/* A piece can take longer than a slice, and then the pause does, too. */
	return div_u64(took * (100 - pace->percent), pace->percent);
}

/**
 * memreap_reap_pause - let others have the CPU
 * @pace: whose time slice may be over; or NULL
 *
 * Sleeps if it is over and others want the CPU.
 *
 * Return: the number of pauses, 1 or 0.
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
 * Lets others have the mmap_lock, most likely the exiting process, or the CPU.
 * Unless the caller may sleep it does not wait for the lock, whose holder may
 * wait for the very memory that is to be freed.
 */
static bool give_way(struct reaper *r)
{
	mmap_read_unlock(r->mm);
	r->locked = false;
	r->moved = true;
	r->stat.yields++;
	r->stat.pauses += memreap_reap_pause(r->pace);

	if (r->may_sleep) {
		r->locked = !mmap_read_lock_killable(r->mm);
		return r->locked;
	}

	r->locked = mmap_read_trylock(r->mm);
	for (int i = 0; i < REAP_RELOCK_TRIES && !r->locked; i++) {
		schedule_timeout_idle(1);
		if (r->pace)
			r->pace->since = ktime_get_ns();
		r->locked = mmap_read_trylock(r->mm);
	}

	return r->locked;
}

/*
 * Does a task wait for the mmap_lock that should have it now? Only a reaper that
 * waits for the lock itself lets it go: others might not get it back while that
 * task cannot run, as one of the victim that has no CPU time.
 */
static bool lock_wanted(struct reaper *r)
{
	return r->may_sleep && mmap_lock_is_contended(r->mm);
}

/*
 * Zaps @span from its top.
 *
 * After giving way there may be no VMAs left: exit_mmap() frees them with the
 * lock held for writing. Until it has, they can be walked. MMF_OOM_SKIP does not
 * tell, as the OOM reaper sets it when it gives up, too.
 *
 * Return: false when reaping has to end because the lock could not be taken.
 */
static bool reap_span(struct reaper *r, struct reap_span span)
{
	struct reap_span piece;

	begin_gather(r);
	while (next_piece(r, &span, &piece)) {
		zap_piece(r, &piece);

		if (!pause_needed(r->pace) && !lock_wanted(r))
			continue;
		end_gather(r);
		if (!give_way(r))
			return false;
		begin_gather(r);
	}
	end_gather(r);
	r->stat.chunks++;

	return true;
}

/* Reaps everything, see memreap_reap_mm(). */
static bool reap_all(struct reaper *r)
{
	struct reap_span all = { 0, ULONG_MAX };
	unsigned long claimed = all.end;
	struct reap_span chunk;
	bool alone = true;

	while (claim_chunk(r, &claimed, &alone, &chunk)) {
		if (!reap_span(r, chunk))
			return false;
	}

	r->moved = true;

	return (alone || reap_span(r, all)) && !r->failed;
}

/*
 * Records the peak of the RSS before it falls, for wait4(2) and the like. This is
 * update_hiwater_rss(), but several reapers may do it at a time.
 */
static void record_peak(struct mm_struct *mm)
{
	unsigned long rss = get_mm_rss(mm);

	/* Whoever else writes it has seen a peak, too. */
	if (data_race(mm->hiwater_rss) < rss)
		/* For those who read it now, either value will do. */
		data_race(mm->hiwater_rss = rss);
}

/**
 * memreap_reap_mm - free the private memory of a dying address space
 * @mm: the address space, pinned by the caller, its mmap_lock held for read
 * @may_sleep: the caller may wait for the mmap_lock
 * @locked: cleared if the mmap_lock is not held on return
 * @pages: if not NULL, the pages that the caller unmapped are added
 * @pace: if not NULL, how to share the CPU
 *
 * Any number of tasks can work on one @mm at a time. If this returns true,
 * everything reapable has been unmapped and, but for what another one is
 * about to free and swap slots that its exit has kept, freed.
 *
 * Return: false if part of @mm was left out and the caller should try again.
 */
bool memreap_reap_mm(struct mm_struct *mm, bool may_sleep, bool *locked,
		     unsigned long *pages, struct reap_pace *pace)
{
	struct reaper r = {
		.mm = mm,
		.may_sleep = may_sleep,
		.locked = true,
		.moved = true,
		.pace = pace,
	};
	u64 start = ktime_get_ns();
	bool complete;

	mas_init(&r.mas, &mm->mm_mt, 0);
	trace_memreap_reap_start(mm);

	/*
	 * Makes get_user() and the like fail instead of reading zeroes. See
	 * __oom_reap_task_mm() for why there is no barrier.
	 */
	mm_flags_set(MMF_UNSTABLE, mm);
	record_peak(mm);
	complete = reap_all(&r);

	r.stat.ns = ktime_get_ns() - start;
	trace_memreap_reap_end(mm, &r.stat, complete);
	*locked = r.locked;
	if (pages)
		*pages += r.stat.pages;

	return complete;
}

static const struct memreap_switch reap_switch = {
	.key = &memreap_reap_key.key,
};

memreap_switch_param(reap, &reap_switch);
MODULE_PARM_DESC(reap, "Reap from the top, with several reapers (default: Y)");
