/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM memreap_swap

#if !defined(_TRACE_MEMREAP_SWAP_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MEMREAP_SWAP_H

#include <linux/hash.h>
#include <linux/tracepoint.h>

#ifndef _MEMREAP_SWAP_BY
#define _MEMREAP_SWAP_BY
/**
 * enum memreap_swap_by - why swap entries that waited are released
 * @SWAP_BY_WORKER: by a worker, the normal case
 * @SWAP_BY_SWAPOFF: swapoff needs all slots of a device
 * @SWAP_BY_NEED: no free slot, memory.swap.max reached, or out of memory
 * @SWAP_BY_DEADLINE: they waited too long; by a task that uses swap
 * @SWAP_BY_HIBERNATION: none may wait in the image of memory
 */
enum memreap_swap_by {
	SWAP_BY_WORKER,
	SWAP_BY_SWAPOFF,
	SWAP_BY_NEED,
	SWAP_BY_DEADLINE,
	SWAP_BY_HIBERNATION,
};
#endif

TRACE_DEFINE_ENUM(SWAP_BY_WORKER);
TRACE_DEFINE_ENUM(SWAP_BY_SWAPOFF);
TRACE_DEFINE_ENUM(SWAP_BY_NEED);
TRACE_DEFINE_ENUM(SWAP_BY_DEADLINE);
TRACE_DEFINE_ENUM(SWAP_BY_HIBERNATION);

TRACE_EVENT(memreap_swap_queue,

	TP_PROTO(struct mm_struct *mm, const struct swap_batch *batch,
		 long waiting),

	TP_ARGS(mm, batch, waiting),

	TP_STRUCT__entry(
		__field(unsigned int, mm_id)
		__field(unsigned int, runs)
		__field(unsigned long, pages)
		__field(unsigned long, waiting)
	),

	TP_fast_assign(
		__entry->mm_id = hash_ptr(mm, 32);
		__entry->runs = batch->nr;
		__entry->pages = batch->pages;
		__entry->waiting = waiting;
	),

	TP_printk("mm_id=%u runs=%u pages=%lu waiting=%lu",
		  __entry->mm_id, __entry->runs, __entry->pages,
		  __entry->waiting)
);

TRACE_EVENT(memreap_swap_release,

	TP_PROTO(const struct swap_chunk *chunk, enum memreap_swap_by by,
		 unsigned int freed, u64 waited, u64 took),

	TP_ARGS(chunk, by, freed, waited, took),

	TP_STRUCT__entry(
		__field(unsigned int, by)
		__field(unsigned int, pages)
		__field(unsigned int, freed)
		__field(u64, waited)
		__field(u64, took)
	),

	TP_fast_assign(
		__entry->by = by;
		__entry->pages = chunk->pages;
		__entry->freed = freed;
		__entry->waited = waited;
		__entry->took = took;
	),

	TP_printk("by=%s pages=%u freed=%u waited_ns=%llu took_ns=%llu",
		  __print_symbolic(__entry->by,
				   { SWAP_BY_WORKER, "worker" },
				   { SWAP_BY_SWAPOFF, "swapoff" },
				   { SWAP_BY_NEED, "need" },
				   { SWAP_BY_DEADLINE, "deadline" },
				   { SWAP_BY_HIBERNATION, "hibernation" }),
		  __entry->pages, __entry->freed, __entry->waited,
		  __entry->took)
);

#endif /* _TRACE_MEMREAP_SWAP_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
