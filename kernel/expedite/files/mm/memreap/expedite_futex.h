/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_EXPEDITE_FUTEX_H
#define _MM_MEMREAP_EXPEDITE_FUTEX_H

#include <linux/types.h>

struct mm_struct;
struct task_struct;

#ifdef CONFIG_FUTEX
bool memreap_owns_futexes(struct task_struct *t, struct mm_struct *mm);
#else
static inline bool memreap_owns_futexes(struct task_struct *t,
					struct mm_struct *mm)
{
	return false;
}
#endif

#endif /* _MM_MEMREAP_EXPEDITE_FUTEX_H */
