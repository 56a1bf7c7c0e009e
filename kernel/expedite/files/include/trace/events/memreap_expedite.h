/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM memreap_expedite

#if !defined(_TRACE_MEMREAP_EXPEDITE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MEMREAP_EXPEDITE_H

#include <linux/hash.h>
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
#endif

TRACE_DEFINE_ENUM(EXPEDITE_BY_FLAG);
TRACE_DEFINE_ENUM(EXPEDITE_BY_CGROUP);
TRACE_DEFINE_ENUM(EXPEDITE_BY_SIZE);
TRACE_DEFINE_ENUM(EXPEDITE_QUEUED);
TRACE_DEFINE_ENUM(EXPEDITE_MERGED);
TRACE_DEFINE_ENUM(EXPEDITE_FULL);
TRACE_DEFINE_ENUM(EXPEDITE_FREED);
TRACE_DEFINE_ENUM(EXPEDITE_EXITED);
TRACE_DEFINE_ENUM(EXPEDITE_SHARED);
TRACE_DEFINE_ENUM(EXPEDITE_FUTEX);
TRACE_DEFINE_ENUM(EXPEDITE_LOCK);
TRACE_DEFINE_ENUM(EXPEDITE_FAILED);

TRACE_EVENT(memreap_expedite_queue,

	TP_PROTO(struct mm_struct *mm, struct task_struct *victim,
		 unsigned long pages, enum memreap_expedite_by by,
		 enum expedite_added added),

	TP_ARGS(mm, victim, pages, by, added),

	TP_STRUCT__entry(
		__field(pid_t, pid)
		__field(unsigned int, mm_id)
		__field(unsigned long, bytes)
		__field(unsigned int, by)
		__field(unsigned int, added)
	),

	TP_fast_assign(
		__entry->pid = victim->tgid;
		__entry->mm_id = hash_ptr(mm, 32);
		__entry->bytes = pages << PAGE_SHIFT;
		__entry->by = by;
		__entry->added = added;
	),

	TP_printk("pid=%d mm_id=%u bytes=%lu by=%s result=%s",
		  __entry->pid, __entry->mm_id, __entry->bytes,
		  __print_symbolic(__entry->by,
				   { EXPEDITE_BY_FLAG, "flag" },
				   { EXPEDITE_BY_CGROUP, "cgroup" },
				   { EXPEDITE_BY_SIZE, "size" }),
		  __print_symbolic(__entry->added,
				   { EXPEDITE_QUEUED, "queued" },
				   { EXPEDITE_MERGED, "merged" },
				   { EXPEDITE_FULL, "full" }))
);

TRACE_EVENT(memreap_expedite_done,

	TP_PROTO(const struct expedite_request *req, u64 ns),

	TP_ARGS(req, ns),

	TP_STRUCT__entry(
		__field(pid_t, pid)
		__field(unsigned int, mm_id)
		__field(unsigned long, bytes)
		__field(u64, ns)
		__field(unsigned int, workers)
		__field(unsigned int, outcome)
	),

	TP_fast_assign(
		__entry->pid = req->victim->tgid;
		__entry->mm_id = hash_ptr(req->mm, 32);
		__entry->bytes = req->freed << PAGE_SHIFT;
		__entry->ns = ns;
		__entry->workers = req->peak_workers;
		__entry->outcome = req->outcome;
	),

	TP_printk("pid=%d mm_id=%u bytes=%lu ns=%llu workers=%u outcome=%s",
		  __entry->pid, __entry->mm_id, __entry->bytes, __entry->ns,
		  __entry->workers,
		  __print_symbolic(__entry->outcome,
				   { EXPEDITE_FREED, "freed" },
				   { EXPEDITE_EXITED, "exited" },
				   { EXPEDITE_SHARED, "shared" },
				   { EXPEDITE_FUTEX, "futex" },
				   { EXPEDITE_LOCK, "lock" },
				   { EXPEDITE_FAILED, "failed" }))
);

#endif /* _TRACE_MEMREAP_EXPEDITE_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
