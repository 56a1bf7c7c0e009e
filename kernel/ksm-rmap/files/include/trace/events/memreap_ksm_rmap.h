/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM memreap_ksm_rmap

#if !defined(_TRACE_MEMREAP_KSM_RMAP_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MEMREAP_KSM_RMAP_H

#include <linux/mm.h>
#include <linux/tracepoint.h>

/* A walk over the mappings of a KSM page has ended, completed or not. */
TRACE_EVENT(memreap_ksm_rmap_walk,

	TP_PROTO(struct folio *folio, unsigned int mappings, unsigned int vmas),

	TP_ARGS(folio, mappings, vmas),

	TP_STRUCT__entry(
		__field(unsigned long, pfn)
		__field(int, mapcount)
		__field(unsigned int, mappings)
		__field(unsigned int, vmas)
	),

	TP_fast_assign(
		__entry->pfn = folio_pfn(folio);
		__entry->mapcount = folio_mapcount(folio);
		__entry->mappings = mappings;
		__entry->vmas = vmas;
	),

	TP_printk("pfn=0x%lx mapcount=%d mappings=%u vmas=%u", __entry->pfn,
		  __entry->mapcount, __entry->mappings, __entry->vmas)
);

#endif /* _TRACE_MEMREAP_KSM_RMAP_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
