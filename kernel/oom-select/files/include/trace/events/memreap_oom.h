/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM memreap_oom

#if !defined(_TRACE_MEMREAP_OOM_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MEMREAP_OOM_H

#include <linux/sched.h>
#include <linux/tracepoint.h>

struct oom_candidates;

/*
 * The OOM killer has chosen: the number of eligible tasks, of those whose size
 * was not known exactly, and of those that had to be summed up; whether all had
 * to be scanned once more; the time it took; and the victim: 0 means none, -1
 * that one is already dying.
 */
TRACE_EVENT(memreap_oom_select,
	TP_PROTO(const struct oom_candidates *candidates, unsigned int rescans,
		 u64 ns, bool memcg, const struct task_struct *chosen,
		 bool aborted, long points),
	TP_ARGS(candidates, rescans, ns, memcg, chosen, aborted, points),

	TP_STRUCT__entry(
		__field(unsigned int, tasks)
		__field(unsigned int, ranged)
		__field(unsigned int, precise)
		__field(unsigned int, rescans)
		__field(u64, ns)
		__field(bool, memcg)
		__field(pid_t, pid)
		__field(long, points)
	),

	TP_fast_assign(
		__entry->tasks = candidates->nr_tasks;
		__entry->ranged = candidates->nr_ranged;
		__entry->precise = candidates->nr_precise;
		__entry->rescans = rescans;
		__entry->ns = ns;
		__entry->memcg = memcg;
		__entry->pid = aborted ? -1 : chosen ? chosen->pid : 0;
		__entry->points = points;
	),

	TP_printk("tasks=%u ranged=%u precise=%u rescans=%u ns=%llu memcg=%d pid=%d points=%ld",
		  __entry->tasks, __entry->ranged, __entry->precise,
		  __entry->rescans, __entry->ns, __entry->memcg, __entry->pid,
		  __entry->points)
);

#endif /* _TRACE_MEMREAP_OOM_H */

#include <trace/define_trace.h>
