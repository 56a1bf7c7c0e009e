/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM memreap_oom

#if !defined(_TRACE_MEMREAP_OOM_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MEMREAP_OOM_H

#include <linux/oom.h>
#include <linux/sched.h>
#include <linux/tracepoint.h>

/*
 * The OOM killer has chosen: the number of tasks whose sizes were compared, and
 * of those that had to be summed up over the CPUs; the time it took; and the
 * victim: 0 means none, -1 that one is already dying.
 */
TRACE_EVENT(memreap_oom_select,
	TP_PROTO(const struct oom_control *oc, u64 ns),
	TP_ARGS(oc, ns),

	TP_STRUCT__entry(
		__field(unsigned int, tasks)
		__field(unsigned int, summed)
		__field(u64, ns)
		__field(bool, memcg)
		__field(pid_t, pid)
		__field(long, points)
	),

	TP_fast_assign(
		__entry->tasks = oc->nr_compared;
		__entry->summed = oc->nr_summed;
		__entry->ns = ns;
		__entry->memcg = oc->memcg;
		__entry->pid = oc->chosen == (void *)-1UL ? -1 :
			       oc->chosen ? oc->chosen->pid : 0;
		__entry->points = oc->chosen_points;
	),

	TP_printk("tasks=%u summed=%u ns=%llu memcg=%d pid=%d points=%ld",
		  __entry->tasks, __entry->summed, __entry->ns, __entry->memcg,
		  __entry->pid, __entry->points)
);

#endif /* _TRACE_MEMREAP_OOM_H */

#include <trace/define_trace.h>
