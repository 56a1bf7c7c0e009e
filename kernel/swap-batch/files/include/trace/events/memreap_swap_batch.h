/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM memreap_swap_batch

#if !defined(_TRACE_MEMREAP_SWAP_BATCH_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MEMREAP_SWAP_BATCH_H

#include <linux/memreap_trace.h>
#include <linux/tracepoint.h>

TRACE_EVENT(memreap_swap_batch,

	TP_PROTO(const struct swap_batch *batch, unsigned int freed),

	TP_ARGS(batch, freed),

	TP_STRUCT__entry(
		__field(unsigned int, mm_id)
		__field(unsigned int, runs)
		__field(unsigned int, pages)
		__field(unsigned int, freed)
	),

	TP_fast_assign(
		__entry->mm_id = memreap_mm_id(batch->mm);
		__entry->runs = batch->nr;
		__entry->pages = batch->pages;
		__entry->freed = freed;
	),

	TP_printk("mm_id=%u runs=%u pages=%u freed=%u",
		  __entry->mm_id, __entry->runs, __entry->pages,
		  __entry->freed)
);

#endif /* _TRACE_MEMREAP_SWAP_BATCH_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
