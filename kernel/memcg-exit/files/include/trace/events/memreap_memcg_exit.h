/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM memreap_memcg_exit

#if !defined(_TRACE_MEMREAP_MEMCG_EXIT_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MEMREAP_MEMCG_EXIT_H

#include <linux/page_counter.h>
#include <linux/tracepoint.h>

TRACE_EVENT(memreap_memcg_exit,

	TP_PROTO(struct page_counter *counter, unsigned long nr_pages,
		 bool may),

	TP_ARGS(counter, nr_pages, may),

	TP_STRUCT__entry(
		__field(unsigned long, usage)
		__field(unsigned long, max)
		__field(unsigned long, nr_pages)
		__field(bool, may)
	),

	TP_fast_assign(
		__entry->usage = page_counter_read(counter);
		__entry->max = READ_ONCE(counter->max);
		__entry->nr_pages = nr_pages;
		__entry->may = may;
	),

	TP_printk("usage=%lu max=%lu nr_pages=%lu may=%d",
		  __entry->usage, __entry->max, __entry->nr_pages,
		  __entry->may)
);

#endif /* _TRACE_MEMREAP_MEMCG_EXIT_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
