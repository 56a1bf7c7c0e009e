/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM memreap_reap

#if !defined(_TRACE_MEMREAP_REAP_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MEMREAP_REAP_H

#include <linux/memreap_trace.h>
#include <linux/mm.h>
#include <linux/tracepoint.h>

#ifndef _MEMREAP_REAP_STAT
#define _MEMREAP_REAP_STAT
/**
 * struct memreap_reap_stat - what one reaper did in one pass
 * @pages: unmapped, in units of PAGE_SIZE: 512 for a huge page of 2 MiB
 * @chunks: chunks claimed and processed; all of it, if done once more, is one
 * @yields: releases of the mmap_lock because another task waited for it or the
 *	CPU
 * @pauses: pauses because another task wanted the CPU
 * @ns: from the start to the end of the pass, including waiting
 */
struct memreap_reap_stat {
	unsigned long pages;
	unsigned int chunks;
	unsigned int yields;
	unsigned int pauses;
	u64 ns;
};
#endif

TRACE_EVENT(memreap_reap_start,

	TP_PROTO(struct mm_struct *mm),

	TP_ARGS(mm),

	TP_STRUCT__entry(
		__field(unsigned int, mm_id)
		__field(unsigned long, rss)
	),

	TP_fast_assign(
		__entry->mm_id = memreap_mm_id(mm);
		__entry->rss = get_mm_rss(mm);
	),

	TP_printk("mm_id=%u rss=%luKiB", __entry->mm_id,
		  __entry->rss << (PAGE_SHIFT - 10))
);

TRACE_EVENT(memreap_reap_end,

	TP_PROTO(struct mm_struct *mm, const struct memreap_reap_stat *stat,
		 bool complete),

	TP_ARGS(mm, stat, complete),

	TP_STRUCT__entry(
		__field(unsigned int, mm_id)
		__field(unsigned long, bytes)
		__field(unsigned int, chunks)
		__field(unsigned int, yields)
		__field(unsigned int, pauses)
		__field(u64, ns)
		__field(bool, complete)
	),

	TP_fast_assign(
		__entry->mm_id = memreap_mm_id(mm);
		__entry->bytes = stat->pages << PAGE_SHIFT;
		__entry->chunks = stat->chunks;
		__entry->yields = stat->yields;
		__entry->pauses = stat->pauses;
		__entry->ns = stat->ns;
		__entry->complete = complete;
	),

	TP_printk("mm_id=%u bytes=%lu chunks=%u yields=%u ns=%llu complete=%d pauses=%u",
		  __entry->mm_id, __entry->bytes, __entry->chunks,
		  __entry->yields, __entry->ns, __entry->complete,
		  __entry->pauses)
);

#endif /* _TRACE_MEMREAP_REAP_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
