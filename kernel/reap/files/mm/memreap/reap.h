/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_REAP_H
#define _MM_MEMREAP_REAP_H

#include <linux/jump_label.h>
#include <linux/types.h>

struct encoded_page;
struct mm_struct;
struct task_struct;

#ifdef CONFIG_MEMREAP_REAP

DECLARE_STATIC_KEY_TRUE(memreap_reap_key);

/* The boot parameter memreap.reap=0 brings the stock code back. */
static inline bool memreap_reap_enabled(void)
{
	return static_branch_likely(&memreap_reap_key);
}

bool memreap_reap_mm(struct task_struct *victim, struct mm_struct *mm,
		     bool may_sleep, bool *locked, unsigned long *pages);
void memreap_release_pages(struct encoded_page **pages, int nr);

#else

static inline bool memreap_reap_enabled(void)
{
	return false;
}

static inline bool memreap_reap_mm(struct task_struct *victim,
				   struct mm_struct *mm, bool may_sleep,
				   bool *locked, unsigned long *pages)
{
	return false;
}

static inline void memreap_release_pages(struct encoded_page **pages, int nr)
{
}

#endif /* CONFIG_MEMREAP_REAP */

#endif /* _MM_MEMREAP_REAP_H */
