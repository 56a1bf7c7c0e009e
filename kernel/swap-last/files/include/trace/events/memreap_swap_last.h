/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM memreap_swap_last

#if !defined(_TRACE_MEMREAP_SWAP_LAST_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MEMREAP_SWAP_LAST_H

#include <linux/memreap_trace.h>
#include <linux/tracepoint.h>

#ifndef _MEMREAP_SWAP_BY
#define _MEMREAP_SWAP_BY
/**
 * enum memreap_swap_by - why swap slots that waited are released
 * @SWAP_BY_WORKER: by the worker, the normal case
 * @SWAP_BY_SWAPOFF: swapoff needs all slots of a device
 * @SWAP_BY_NEED: a task needs a slot, or memory that they hold
 */
enum memreap_swap_by {
	SWAP_BY_WORKER,
	SWAP_BY_SWAPOFF,
	SWAP_BY_NEED,
};
#endif

TRACE_DEFINE_ENUM(SWAP_BY_WORKER);
TRACE_DEFINE_ENUM(SWAP_BY_SWAPOFF);
TRACE_DEFINE_ENUM(SWAP_BY_NEED);

TRACE_EVENT(memreap_swap_wait,

	TP_PROTO(struct mm_struct *mm, unsigned long pages),

	TP_ARGS(mm, pages),

	TP_STRUCT__entry(
		__field(unsigned int, mm_id)
		__field(unsigned long, pages)
	),

	TP_fast_assign(
		__entry->mm_id = memreap_mm_id(mm);
		__entry->pages = pages;
	),

	TP_printk("mm_id=%u pages=%lu", __entry->mm_id, __entry->pages)
);

TRACE_EVENT(memreap_swap_release,

	TP_PROTO(enum memreap_swap_by by, unsigned int pages),

	TP_ARGS(by, pages),

	TP_STRUCT__entry(
		__field(unsigned int, by)
		__field(unsigned int, pages)
	),

	TP_fast_assign(
		__entry->by = by;
		__entry->pages = pages;
	),

	TP_printk("by=%s pages=%u",
		  __print_symbolic(__entry->by,
				   { SWAP_BY_WORKER, "worker" },
				   { SWAP_BY_SWAPOFF, "swapoff" },
				   { SWAP_BY_NEED, "need" }),
		  __entry->pages)
);

#endif /* _TRACE_MEMREAP_SWAP_LAST_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
