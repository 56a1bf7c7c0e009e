// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests for reaping beside others.
 *
 * Each test reaps an address space of its own, which it gets for this.
 */
#include <kunit/test.h>

#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/mman.h>
#include <linux/mmap_lock.h>
#include <linux/mmu_notifier.h>
#include <linux/oom.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sizes.h>
#include <linux/swap.h>
#include <linux/uaccess.h>

#include <trace/events/memreap_reap.h>

#include "../internal.h"
#include "reap.h"

/* At least the unit of claims, and a multiple of it. */
#define CHUNK		MAX(PMD_SIZE, SZ_32M)
/* Some tests need more than four page tables. */
#if PMD_SHIFT > 25
#define CHUNKS		16
#else
#define CHUNKS		3
#endif
#define SIZE		((unsigned long)CHUNKS * CHUNK)
/* A page in each page table. */
#define PAGES		(SIZE / PMD_SIZE)

/**
 * struct space - the address space of a test
 * @mm: of the current thread
 * @addr: a mapping in it
 * @passes: by reapers, as traced
 * @stat: of the last one
 * @complete: likewise
 */
struct space {
	struct mm_struct *mm;
	unsigned long addr;
	unsigned int passes;
	struct memreap_reap_stat stat;
	bool complete;
};

static void note_pass(void *data, struct mm_struct *mm,
		      const struct memreap_reap_stat *stat, bool complete)
{
	struct space *space = data;

	if (mm != space->mm)
		return;
	space->passes++;
	space->stat = *stat;
	space->complete = complete;
}

/* Maps @size, and touches every @step of it. */
static struct space *space_begin(struct kunit *test, unsigned long size,
				 unsigned long step)
{
	struct space *space = kunit_kzalloc(test, sizeof(*space), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, space);
	space->addr = kunit_vm_mmap(test, NULL, 0, size, PROT_READ | PROT_WRITE,
				    MAP_ANONYMOUS | MAP_PRIVATE | MAP_NORESERVE,
				    0);
	KUNIT_ASSERT_FALSE(test, IS_ERR_VALUE(space->addr));
	KUNIT_ASSERT_NE(test, space->addr, 0);
	space->mm = current->mm;
	for (unsigned long at = 0; at < size; at += step)
		KUNIT_ASSERT_EQ(test, put_user(1, (int __user *)(space->addr + at)), 0);
	KUNIT_ASSERT_EQ(test, register_trace_memreap_reap_end(note_pass, space),
			0);

	return space;
}

static bool space_reap(struct kunit *test, struct space *space)
{
	unsigned long pages = 0;
	bool locked = true;
	bool complete;

	mmap_read_lock(space->mm);
	complete = memreap_reap_mm(space->mm, true, &locked, &pages, NULL);
	if (locked)
		mmap_read_unlock(space->mm);
	KUNIT_EXPECT_EQ(test, complete, space->complete);
	KUNIT_EXPECT_EQ(test, pages, space->stat.pages);

	return complete;
}

static void space_end(struct space *space)
{
	unregister_trace_memreap_reap_end(note_pass, space);
	tracepoint_synchronize_unregister();
}

static long anon_pages(const struct space *space)
{
	return get_mm_counter_sum(space->mm, MM_ANONPAGES);
}

/*
 * The OOM reaper also sets MMF_OOM_SKIP when it gives up, while others reap: they
 * have to continue.
 */
static void skip_is_not_exit(struct kunit *test)
{
	struct space *space = space_begin(test, SIZE, PMD_SIZE);

	KUNIT_EXPECT_EQ(test, anon_pages(space), PAGES);
	mm_flags_set(MMF_OOM_SKIP, space->mm);
	KUNIT_EXPECT_TRUE(test, space_reap(test, space));
	KUNIT_EXPECT_EQ(test, anon_pages(space), 0);
	KUNIT_EXPECT_EQ(test, space->stat.pages, PAGES);
	/* Alone, it claims everything and walks nothing twice. */
	KUNIT_EXPECT_GE(test, space->stat.chunks, CHUNKS);
	KUNIT_EXPECT_LE(test, space->stat.chunks, CHUNKS + 1);
	space_end(space);
}

/* Others have claimed the upper part, or all of it, and may never finish. */
static void claims_of_others(struct kunit *test)
{
	struct space *space = space_begin(test, SIZE, PMD_SIZE);

	atomic_long_set(&space->mm->reap_cursor,
			*(const bool *)test->param_value ?
			0 : ALIGN(space->addr + CHUNK, CHUNK));
	KUNIT_EXPECT_TRUE(test, space_reap(test, space));
	KUNIT_EXPECT_EQ(test, anon_pages(space), 0);
	KUNIT_EXPECT_EQ(test, space->stat.pages, PAGES);
	space_end(space);
}

static const bool all_of_it[] = { false, true };

static void all_desc(const bool *all, char *desc)
{
	strscpy(desc, *all ? "all" : "upper part", KUNIT_PARAM_DESC_SIZE);
}

KUNIT_ARRAY_PARAM(all, all_of_it, all_desc);

/* A refusal does not keep it from the rest, and a retry reaps what was missed. */
struct refuser {
	struct mmu_notifier notifier;
	unsigned long from;
	unsigned long to;
	bool refuses;
	unsigned int wrong;
};

static int refuse(struct mmu_notifier *notifier,
		  const struct mmu_notifier_range *range)
{
	struct refuser *r = container_of(notifier, struct refuser, notifier);

	/* The mapping stays: some drivers forget what is unmapped. */
	r->wrong += range->event != MMU_NOTIFY_CLEAR;
	if (!r->refuses || mmu_notifier_range_blockable(range) ||
	    range->end <= r->from || range->start >= r->to)
		return 0;

	return -EAGAIN;
}

static const struct mmu_notifier_ops refuser_ops = {
	.invalidate_range_start = refuse,
};

static void notifier_refuses(struct kunit *test)
{
	struct space *space = space_begin(test, SIZE, PMD_SIZE);
	unsigned long middle = ALIGN(space->addr + SIZE / 2, PMD_SIZE);
	struct refuser refuser = {
		.notifier.ops = &refuser_ops,
		.from = middle,
		.to = middle + 4 * PMD_SIZE,
		.refuses = true,
	};

	KUNIT_ASSERT_EQ(test, mmu_notifier_register(&refuser.notifier,
						    space->mm), 0);
	for (int i = 0; i < 2; i++) {
		KUNIT_EXPECT_FALSE(test, space_reap(test, space));
		KUNIT_EXPECT_EQ(test, anon_pages(space), 4);
	}
	refuser.refuses = false;
	KUNIT_EXPECT_TRUE(test, space_reap(test, space));
	KUNIT_EXPECT_EQ(test, anon_pages(space), 0);
	KUNIT_EXPECT_EQ(test, space->stat.pages, 4);
	KUNIT_EXPECT_EQ(test, refuser.wrong, 0);
	mmu_notifier_unregister(&refuser.notifier, space->mm);
	space_end(space);
}

#ifdef CONFIG_ARM64
/* What is flushed from the TLBs. */
struct flushes {
	struct mmu_notifier notifier;
	unsigned int nr;
	unsigned long smallest;
};

static void note_flush(struct mmu_notifier *notifier, struct mm_struct *mm,
		       unsigned long start, unsigned long end)
{
	struct flushes *f = container_of(notifier, struct flushes, notifier);

	f->nr++;
	f->smallest = min(f->smallest, end - start);
}

static const struct mmu_notifier_ops flushes_ops = {
	.arch_invalidate_secondary_tlbs = note_flush,
};

/* A whole page table is flushed, also for a single page in it. */
static void whole_table_is_flushed(struct kunit *test)
{
	struct space *space = space_begin(test, SIZE, SIZE);
	struct flushes flushes = {
		.notifier.ops = &flushes_ops,
		.smallest = ULONG_MAX,
	};

	KUNIT_ASSERT_EQ(test, mmu_notifier_register(&flushes.notifier,
						    space->mm), 0);
	KUNIT_EXPECT_TRUE(test, space_reap(test, space));
	KUNIT_EXPECT_EQ(test, space->stat.pages, 1);
	mmu_notifier_unregister(&flushes.notifier, space->mm);
	KUNIT_EXPECT_GT(test, flushes.nr, 0);
	KUNIT_EXPECT_GE(test, flushes.smallest, PMD_SIZE);
	space_end(space);
}
#endif

/**
 * struct writer - a thread that waits for the mmap_lock
 * @mm: whose lock
 * @keeps: it holds the lock until it is stopped
 */
struct writer {
	struct mm_struct *mm;
	bool keeps;
};

static int writer_fn(void *data)
{
	const struct writer *w = data;

	mmap_write_lock(w->mm);
	if (!w->keeps)
		mmap_write_unlock(w->mm);
	while (!kthread_should_stop())
		schedule_timeout_idle(1);
	if (w->keeps)
		mmap_write_unlock(w->mm);

	return 0;
}

/*
 * A reaper that may sleep gives its lock to a task that waits for it. One that
 * may not does not: that task could keep it out, as one that cannot run.
 */
static void writer_waits(struct kunit *test)
{
	struct space *space = space_begin(test, SIZE, PMD_SIZE);
	bool may_sleep = *(const bool *)test->param_value;
	struct mm_struct *mm = space->mm;
	struct writer w = { mm, !may_sleep };
	struct task_struct *writer;
	bool locked = true;

	mmap_read_lock(mm);
	writer = kthread_run(writer_fn, &w, "writer");
	if (!IS_ERR(writer)) {
		while (!mmap_lock_is_contended(mm))
			schedule_timeout_idle(1);
		KUNIT_EXPECT_TRUE(test, memreap_reap_mm(mm, may_sleep, &locked,
							NULL, NULL));
	}
	if (locked)
		mmap_read_unlock(mm);
	KUNIT_ASSERT_FALSE(test, IS_ERR(writer));
	KUNIT_EXPECT_EQ(test, space->stat.yields > 0, may_sleep);
	KUNIT_EXPECT_EQ(test, anon_pages(space), 0);
	kthread_stop(writer);
	space_end(space);
}

static const bool sleeps[] = { false, true };

static void sleeps_desc(const bool *may_sleep, char *desc)
{
	strscpy(desc, *may_sleep ? "may sleep" : "may not sleep",
		KUNIT_PARAM_DESC_SIZE);
}

KUNIT_ARRAY_PARAM(sleeps, sleeps, sleeps_desc);

/*
 * A terabyte of address space with a page here and there: what has no page
 * tables takes no time, even if another task wants the CPU.
 */
static void sparse(struct kunit *test)
{
	struct space *space = space_begin(test, SZ_1G * 1024UL, SZ_1G * 256UL);
	unsigned int chunks;

	KUNIT_EXPECT_EQ(test, anon_pages(space), 4);
	KUNIT_EXPECT_TRUE(test, space_reap(test, space));
	KUNIT_EXPECT_EQ(test, anon_pages(space), 0);
	KUNIT_EXPECT_EQ(test, space->stat.pages, 4);
	chunks = space->stat.chunks;
	/* Not 32,768. */
	KUNIT_EXPECT_LT(test, chunks, 100);

	/*
	 * Once more, as the page tables are still there. preempt_count() is left
	 * alone: need_resched() shall stay true for as long as possible. With
	 * pages left, zap_pte_range() would wait until it is false.
	 */
	atomic_long_set(&space->mm->reap_cursor, ULONG_MAX);
	set_tsk_need_resched(current);
	KUNIT_EXPECT_TRUE(test, space_reap(test, space));
	KUNIT_EXPECT_EQ(test, space->stat.chunks, chunks);
	space_end(space);
}

#if defined(CONFIG_TRANSPARENT_HUGEPAGE) && PMD_SHIFT <= 25
/*
 * An exit that others wait for keeps no more than a page table's worth, huge
 * pages included.
 */
static void huge_pages_are_not_kept(struct kunit *test)
{
	struct space *space = space_begin(test, SIZE, SIZE);
	unsigned long addr = ALIGN(space->addr + 1, HPAGE_PMD_SIZE);
	unsigned long end = space->addr + SIZE;
	struct mm_struct *mm = space->mm;
	struct vm_area_struct *vma;
	struct mmu_gather tlb;
	bool enabled;

	mmap_write_lock(mm);
	vma = vma_lookup(mm, addr);
	if (vma)
		vm_flags_set(vma, VM_HUGEPAGE);
	mmap_write_unlock(mm);
	KUNIT_ASSERT_NOT_NULL(test, vma);
	enabled = test_and_set_bit(TRANSPARENT_HUGEPAGE_REQ_MADV_FLAG,
				   &transparent_hugepage_flags);
	for (unsigned long at = addr; at < end; at += HPAGE_PMD_SIZE)
		KUNIT_EXPECT_EQ(test, put_user(1, (int __user *)at), 0);
	if (!enabled)
		clear_bit(TRANSPARENT_HUGEPAGE_REQ_MADV_FLAG,
			  &transparent_hugepage_flags);
	if (anon_pages(space) < 2 * HPAGE_PMD_NR) {
		space_end(space);
		kunit_skip(test, "no huge pages");
	}

	mm_flags_set(MMF_MEMREAP_HURRY, mm);
	mmap_read_lock(mm);
	tlb_gather_mmu_fullmm(&tlb, mm);
	zap_range_for_reaping(&tlb, vma, vma->vm_start, vma->vm_end);
	KUNIT_EXPECT_GE(test, tlb.gathered, 2 * HPAGE_PMD_NR);
	KUNIT_EXPECT_LE(test, tlb.gathered - tlb.freed, HPAGE_PMD_NR);
	tlb_finish_mmu(&tlb);
	mmap_read_unlock(mm);
	mm_flags_clear(MMF_MEMREAP_HURRY, mm);
	KUNIT_EXPECT_EQ(test, anon_pages(space), 0);
	space_end(space);
}
#endif

static struct page *touch_a_page(void)
{
	unsigned long addr = vm_mmap(NULL, 0, PAGE_SIZE, PROT_READ | PROT_WRITE,
				     MAP_ANONYMOUS | MAP_PRIVATE, 0);
	struct page *page;

	if (IS_ERR_VALUE(addr) || put_user(1, (int __user *)addr) ||
	    get_user_pages_fast(addr, 1, 0, &page) != 1)
		return NULL;

	return page;
}

static int leaver_fn(void *mm)
{
	mmput(mm);
	while (!kthread_should_stop())
		schedule_timeout_idle(1);

	return 0;
}

/* An exit that others wait for keeps no pages while it waits for the mmap_lock. */
static void none_kept_for_the_lock(struct kunit *test)
{
	struct mm_struct *mm = mm_alloc();
	struct task_struct *leaver;
	struct page *page;

	KUNIT_ASSERT_NOT_NULL(test, mm);
	arch_pick_mmap_layout(mm, &current->signal->rlim[RLIMIT_STACK]);
	kthread_use_mm(mm);
	page = touch_a_page();
	kthread_unuse_mm(mm);
	/* Batches on their way to the LRU lists have references, too. */
	lru_add_drain_all();
	mm_flags_set(MMF_MEMREAP_HURRY, mm);

	mmgrab(mm);
	mmap_read_lock(mm);
	leaver = kthread_run(leaver_fn, mm, "leaver");
	while (!IS_ERR(leaver) && !mmap_lock_is_contended(mm))
		schedule_timeout_idle(1);
	KUNIT_EXPECT_NOT_NULL(test, page);
	if (page) {
		KUNIT_EXPECT_EQ(test, page_count(page), 1);
		put_page(page);
	}
	mmap_read_unlock(mm);
	if (IS_ERR(leaver))
		mmput(mm);
	else
		kthread_stop(leaver);
	mmdrop(mm);
	KUNIT_EXPECT_FALSE(test, IS_ERR(leaver));
}

static struct kunit_case reap_test_cases[] = {
#if defined(CONFIG_TRANSPARENT_HUGEPAGE) && PMD_SHIFT <= 25
	KUNIT_CASE(huge_pages_are_not_kept),
#endif
	KUNIT_CASE(skip_is_not_exit),
	KUNIT_CASE_PARAM(claims_of_others, all_gen_params),
	KUNIT_CASE(none_kept_for_the_lock),
	KUNIT_CASE(notifier_refuses),
	KUNIT_CASE(sparse),
#ifdef CONFIG_ARM64
	KUNIT_CASE(whole_table_is_flushed),
#endif
	KUNIT_CASE_PARAM(writer_waits, sleeps_gen_params),
	{}
};

static struct kunit_suite reap_test_suite = {
	.name = "memreap_reap",
	.test_cases = reap_test_cases,
};

kunit_test_suite(reap_test_suite);

MODULE_DESCRIPTION("KUnit tests for reaping beside others");
MODULE_LICENSE("GPL");
