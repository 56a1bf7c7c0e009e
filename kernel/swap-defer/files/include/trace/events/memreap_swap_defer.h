/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM memreap_swap_defer

#if !defined(_TRACE_MEMREAP_SWAP_DEFER_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MEMREAP_SWAP_DEFER_H

#include <linux/memreap_trace.h>
#include <linux/tracepoint.h>

#ifndef _MEMREAP_SWAP_BY
#define _MEMREAP_SWAP_BY
/**
 * enum memreap_swap_by - why swap slots that waited are released
 * @SWAP_BY_WORKER: by the worker, the normal case
 * @SWAP_BY_SWAPOFF: swapoff needs all slots of a device
 * @SWAP_BY_SWAP: a task needs a slot
 * @SWAP_BY_MEMORY: reclaim, or a device at its limit, needs what they hold
 */
enum memreap_swap_by {
	SWAP_BY_WORKER,
	SWAP_BY_SWAPOFF,
	SWAP_BY_SWAP,
	SWAP_BY_MEMORY,
};
#endif

TRACE_DEFINE_ENUM(SWAP_BY_WORKER);
TRACE_DEFINE_ENUM(SWAP_BY_SWAPOFF);
TRACE_DEFINE_ENUM(SWAP_BY_SWAP);
TRACE_DEFINE_ENUM(SWAP_BY_MEMORY);

TRACE_EVENT(memreap_swap_queue,

	TP_PROTO(struct mm_struct *mm, unsigned int runs, unsigned int pages,
		 unsigned long waiting),

	TP_ARGS(mm, runs, pages, waiting),

	TP_STRUCT__entry(
		__field(unsigned int, mm_id)
		__field(unsigned int, runs)
		__field(unsigned int, pages)
		__field(unsigned long, waiting)
	),

	TP_fast_assign(
		__entry->mm_id = memreap_mm_id(mm);
		__entry->runs = runs;
		__entry->pages = pages;
		__entry->waiting = waiting;
	),

	TP_printk("mm_id=%u runs=%u pages=%u waiting=%lu",
		  __entry->mm_id, __entry->runs, __entry->pages,
		  __entry->waiting)
);

TRACE_EVENT(memreap_swap_release,

	TP_PROTO(const struct swap_batch *batch, enum memreap_swap_by by,
		 u64 took),

	TP_ARGS(batch, by, took),

	TP_STRUCT__entry(
		__field(unsigned int, by)
		__field(unsigned int, runs)
		__field(unsigned int, pages)
		__field(u64, took)
	),

	TP_fast_assign(
		__entry->by = by;
		__entry->runs = batch->nr;
		__entry->pages = batch->pages;
		__entry->took = took;
	),

	TP_printk("by=%s runs=%u pages=%u took_ns=%llu",
		  __print_symbolic(__entry->by,
				   { SWAP_BY_WORKER, "worker" },
				   { SWAP_BY_SWAPOFF, "swapoff" },
				   { SWAP_BY_SWAP, "swap" },
				   { SWAP_BY_MEMORY, "memory" }),
		  __entry->runs, __entry->pages, __entry->took)
);

#endif /* _TRACE_MEMREAP_SWAP_DEFER_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
