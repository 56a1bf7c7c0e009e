// SPDX-License-Identifier: GPL-2.0-only
/*
 * Does a dying thread own robust futexes?
 *
 * Its list of them is in the memory that is to be freed, and the exiting thread
 * walks it to wake the waiters. If the list is freed before, they wait forever.
 * The OOM reaper delays reaping by two seconds for every victim,
 * process_mrelease(2) ignores the problem. But almost no thread owns a robust
 * futex when it is killed, and that can be checked: then there is no reason to
 * wait.
 */
#include <linux/compat.h>
#include <linux/futex.h>
#include <linux/highmem.h>
#include <linux/hugetlb.h>
#include <linux/memreap_compat.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/pagewalk.h>
#include <linux/sched.h>
#include <linux/secretmem.h>
#include <linux/uaccess.h>

#include "expedite_futex.h"

#ifdef CONFIG_FUTEX

/*
 * Reads user memory of another address space without waiting: pages that are
 * not present are not faulted in.
 */
static bool peek(struct mm_struct *mm, unsigned long addr, void *to, size_t len)
{
	struct vm_area_struct *vma;
	struct folio_walk fw;
	const void *from;

	addr = untagged_addr_remote(mm, addr);
	vma = vma_lookup(mm, addr);

	/*
	 * A walk of hugetlb memory takes a lock that may sleep, and memory of
	 * memfd_secret() is not mapped in the kernel.
	 */
	if (!vma || is_vm_hugetlb_page(vma) || vma_is_secretmem(vma) ||
	    offset_in_page(addr) + len > PAGE_SIZE)
		return false;
	if (!folio_walk_start(&fw, vma, addr, 0))
		return false;
	from = kmap_local_page(fw.page);
	copy_from_user_page(vma, fw.page, addr, to,
			    from + offset_in_page(addr), len);
	kunmap_local(from);
	folio_walk_end(&fw, vma);

	return true;
}

/* An empty list is a head that points to itself, with nothing pending. */
static bool list_is_empty(struct mm_struct *mm,
			  struct robust_list_head __user *head)
{
	unsigned long addr = (unsigned long)head;
	struct robust_list_head list;

	return !addr || (peek(mm, addr, &list, sizeof(list)) &&
			 (unsigned long)list.list.next == addr &&
			 !list.list_op_pending);
}

#ifdef CONFIG_COMPAT
static bool compat_list_is_empty(struct mm_struct *mm,
				 struct compat_robust_list_head __user *head)
{
	unsigned long addr = (unsigned long)head;
	struct compat_robust_list_head list;

	return !addr || (peek(mm, addr, &list, sizeof(list)) &&
			 list.list.next == addr && !list.list_op_pending);
}
#endif

/**
 * memreap_owns_futexes - check whether a thread may still own robust futexes
 * @t: a thread that has been killed and uses @mm
 * @mm: its address space, the mmap_lock held for read
 *
 * A list that cannot be read counts as one with futexes. A thread that is
 * running may be about to change its list: in user space, until the signal
 * reaches it, or in its own walk of the list. One that is not running never
 * runs in user space again, as it has the signal. Sleeps for no page; with
 * PREEMPT_RT, for the owner of a page table's lock.
 *
 * Return: true if the memory of @t must not be freed yet.
 */
bool memreap_owns_futexes(struct task_struct *t, struct mm_struct *mm)
{
	struct robust_list_head __user *head;
	bool none;

	head = READ_ONCE(memreap_futex(t, robust_list));
	none = !head;

#ifdef CONFIG_COMPAT
	none &= !READ_ONCE(memreap_futex(t, compat_robust_list));
#endif
	if (none)
		return false;
	if (task_curr(t) || READ_ONCE(memreap_futex(t, state)) != FUTEX_STATE_OK)
		return true;
	/*
	 * It does not run, so its list is final: if it is read after that.
	 * Pairs with smp_mb__after_spinlock() in __schedule().
	 */
	smp_rmb();
#ifdef CONFIG_COMPAT
	if (!compat_list_is_empty(mm, READ_ONCE(memreap_futex(t, compat_robust_list))))
		return true;
#endif
	return !list_is_empty(mm, head);
}

#endif /* CONFIG_FUTEX */
