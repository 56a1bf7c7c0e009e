/* SPDX-License-Identifier: GPL-2.0-only */
/* What the topics' tracepoints have in common. */
#ifndef _LINUX_MEMREAP_TRACE_H
#define _LINUX_MEMREAP_TRACE_H

#include <linux/string.h>

struct mm_struct;

/* The mm_id of an address space in all events, as in those of kmem:rss_stat. */
static inline unsigned int memreap_mm_id(const struct mm_struct *mm)
{
	unsigned long hash;

	/* Early at boot there is no key to hash with. */
	return ptr_to_hashval(mm, &hash) ? 0 : hash;
}

#endif /* _LINUX_MEMREAP_TRACE_H */
