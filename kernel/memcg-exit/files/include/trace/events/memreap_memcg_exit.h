/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM memreap_memcg_exit

#if !defined(_TRACE_MEMREAP_MEMCG_EXIT_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MEMREAP_MEMCG_EXIT_H

#include <linux/cgroup.h>
#include <linux/memcontrol.h>
#include <linux/tracepoint.h>

TRACE_EVENT(memreap_memcg_exit,

	TP_PROTO(struct mem_cgroup *memcg, bool may),

	TP_ARGS(memcg, may),

	TP_STRUCT__entry(
		__field(u64, memcg)
		__field(unsigned long, usage)
		__field(unsigned long, max)
		__field(bool, may)
	),

	TP_fast_assign(
		__entry->memcg = cgroup_ino(memcg->css.cgroup);
		__entry->usage = page_counter_read(&memcg->memory);
		__entry->max = READ_ONCE(memcg->memory.max);
		__entry->may = may;
	),

	TP_printk("memcg=%llu usage=%lu max=%lu may=%d", __entry->memcg,
		  __entry->usage, __entry->max, __entry->may)
);

#endif /* _TRACE_MEMREAP_MEMCG_EXIT_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
