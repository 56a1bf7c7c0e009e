/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM memreap_rss

#if !defined(_TRACE_MEMREAP_RSS_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MEMREAP_RSS_H

#include <linux/counter_tree.h>
#include <linux/memreap_trace.h>
#include <linux/mm_types.h>
#include <linux/tracepoint.h>

/*
 * A process is about to get a second thread: its RSS counters have been spread
 * over the CPUs, for which so many bytes were allocated, or that failed.
 */
TRACE_EVENT(memreap_rss_spread,
	TP_PROTO(struct mm_struct *mm, int result),
	TP_ARGS(mm, result),

	TP_STRUCT__entry(
		__field(unsigned int, mm_id)
		__field(size_t, bytes)
		__field(int, result)
	),

	TP_fast_assign(
		__entry->mm_id = memreap_mm_id(mm);
		__entry->bytes = counter_tree_bytes(mm->rss_stat);
		__entry->result = result;
	),

	TP_printk("mm_id=%u bytes=%zu result=%d", __entry->mm_id,
		  __entry->bytes, __entry->result)
);

#endif /* _TRACE_MEMREAP_RSS_H */

#include <trace/define_trace.h>
