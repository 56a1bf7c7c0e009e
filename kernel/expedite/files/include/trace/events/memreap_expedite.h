/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM memreap_expedite

#if !defined(_TRACE_MEMREAP_EXPEDITE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MEMREAP_EXPEDITE_H

#include <linux/memreap_expedite.h>
#include <linux/memreap_trace.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/tracepoint.h>

#ifndef _MEMREAP_EXPEDITE_BY
#define _MEMREAP_EXPEDITE_BY
/**
 * enum memreap_expedite_by - what asked for the reclaim
 * @EXPEDITE_BY_FLAG: PIDFD_SIGNAL_EXPEDITE
 * @EXPEDITE_BY_CGROUP: "1 expedite" in cgroup.kill
 * @EXPEDITE_BY_SIZE: vm.expedite_min_kbytes
 */
enum memreap_expedite_by {
	EXPEDITE_BY_FLAG,
	EXPEDITE_BY_CGROUP,
	EXPEDITE_BY_SIZE,
};

/**
 * enum expedite_outcome - result of an attempt
 * @EXPEDITE_EXITED: the process has freed the rest itself
 * @EXPEDITE_FREED: everything that can be reaped has been
 * @EXPEDITE_SHARED: another process may use the address space, or a core dump
 * @EXPEDITE_FUTEX: a thread may still own robust futexes
 * @EXPEDITE_THREADS: there are too many threads to look for those
 * @EXPEDITE_LOCK: the trylock of the mmap_lock failed
 * @EXPEDITE_FAILED: a part was left out, for an MMU notifier
 *
 * All but the first two are retried.
 */
enum expedite_outcome {
	EXPEDITE_EXITED,
	EXPEDITE_FREED,
	EXPEDITE_SHARED,
	EXPEDITE_FUTEX,
	EXPEDITE_THREADS,
	EXPEDITE_LOCK,
	EXPEDITE_FAILED,
};
#endif

TRACE_DEFINE_ENUM(EXPEDITE_BY_FLAG);
TRACE_DEFINE_ENUM(EXPEDITE_BY_CGROUP);
TRACE_DEFINE_ENUM(EXPEDITE_BY_SIZE);
TRACE_DEFINE_ENUM(EXPEDITE_FREED);
TRACE_DEFINE_ENUM(EXPEDITE_EXITED);
TRACE_DEFINE_ENUM(EXPEDITE_SHARED);
TRACE_DEFINE_ENUM(EXPEDITE_FUTEX);
TRACE_DEFINE_ENUM(EXPEDITE_THREADS);
TRACE_DEFINE_ENUM(EXPEDITE_LOCK);
TRACE_DEFINE_ENUM(EXPEDITE_FAILED);

TRACE_EVENT(memreap_expedite_queue,

	TP_PROTO(const struct memreap_expedite *e, enum memreap_expedite_by by),

	TP_ARGS(e, by),

	TP_STRUCT__entry(
		__field(pid_t, pid)
		__field(unsigned int, mm_id)
		__field(unsigned long, bytes)
		__field(unsigned int, by)
	),

	TP_fast_assign(
		__entry->pid = e->victim->tgid;
		__entry->mm_id = memreap_mm_id(e->mm);
		__entry->bytes = get_mm_counter_sum(e->mm, MM_ANONPAGES);
		__entry->bytes += get_mm_counter_sum(e->mm, MM_SWAPENTS);
		__entry->bytes <<= PAGE_SHIFT;
		__entry->by = by;
	),

	TP_printk("pid=%d mm_id=%u bytes=%lu by=%s",
		  __entry->pid, __entry->mm_id, __entry->bytes,
		  __print_symbolic(__entry->by,
				   { EXPEDITE_BY_FLAG, "flag" },
				   { EXPEDITE_BY_CGROUP, "cgroup" },
				   { EXPEDITE_BY_SIZE, "size" }))
);

TRACE_EVENT(memreap_expedite_done,

	TP_PROTO(const struct memreap_expedite *e,
		 enum expedite_outcome outcome, u64 ns),

	TP_ARGS(e, outcome, ns),

	TP_STRUCT__entry(
		__field(pid_t, pid)
		__field(unsigned int, mm_id)
		__field(unsigned long, bytes)
		__field(u64, ns)
		__field(unsigned int, outcome)
	),

	TP_fast_assign(
		__entry->pid = e->victim->tgid;
		__entry->mm_id = memreap_mm_id(e->mm);
		__entry->bytes = e->freed << PAGE_SHIFT;
		__entry->ns = ns;
		__entry->outcome = outcome;
	),

	TP_printk("pid=%d mm_id=%u bytes=%lu ns=%llu outcome=%s",
		  __entry->pid, __entry->mm_id, __entry->bytes, __entry->ns,
		  __print_symbolic(__entry->outcome,
				   { EXPEDITE_FREED, "freed" },
				   { EXPEDITE_EXITED, "exited" },
				   { EXPEDITE_SHARED, "shared" },
				   { EXPEDITE_FUTEX, "futex" },
				   { EXPEDITE_THREADS, "threads" },
				   { EXPEDITE_LOCK, "lock" },
				   { EXPEDITE_FAILED, "failed" }))
);

#endif /* _TRACE_MEMREAP_EXPEDITE_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
