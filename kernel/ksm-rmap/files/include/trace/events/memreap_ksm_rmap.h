/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM memreap_ksm_rmap

#if !defined(_TRACE_MEMREAP_KSM_RMAP_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_MEMREAP_KSM_RMAP_H

#include <linux/mm.h>
#include <linux/tracepoint.h>

struct memreap_rmap_count;

#ifndef _MEMREAP_RMAP_KIND
#define _MEMREAP_RMAP_KIND
/* Kinds of pages, which differ in how their mappings are found. */
enum memreap_rmap_kind {
	MEMREAP_RMAP_KSM,
	MEMREAP_RMAP_ANON,
	MEMREAP_RMAP_FILE,
};
#endif

TRACE_DEFINE_ENUM(MEMREAP_RMAP_KSM);
TRACE_DEFINE_ENUM(MEMREAP_RMAP_ANON);
TRACE_DEFINE_ENUM(MEMREAP_RMAP_FILE);

#define show_rmap_kind(kind)						\
	__print_symbolic(kind,						\
			 { MEMREAP_RMAP_KSM, "ksm" },			\
			 { MEMREAP_RMAP_ANON, "anon" },			\
			 { MEMREAP_RMAP_FILE, "file" })

TRACE_EVENT(memreap_rmap_walk_start,

	TP_PROTO(struct folio *folio, enum memreap_rmap_kind kind),

	TP_ARGS(folio, kind),

	TP_STRUCT__entry(
		__field(unsigned long, pfn)
		__field(unsigned int, kind)
		__field(int, mapcount)
	),

	TP_fast_assign(
		__entry->pfn = folio_pfn(folio);
		__entry->kind = kind;
		__entry->mapcount = folio_mapcount(folio);
	),

	TP_printk("pfn=0x%lx kind=%s mapcount=%d",
		  __entry->pfn, show_rmap_kind(__entry->kind),
		  __entry->mapcount)
);

TRACE_EVENT(memreap_rmap_walk_end,

	TP_PROTO(struct folio *folio, enum memreap_rmap_kind kind,
		 const struct memreap_rmap_count *count),

	TP_ARGS(folio, kind, count),

	TP_STRUCT__entry(
		__field(unsigned long, pfn)
		__field(unsigned int, kind)
		__field(unsigned int, mappings)
		__field(unsigned int, vmas)
		__field(unsigned int, locks)
	),

	TP_fast_assign(
		__entry->pfn = folio_pfn(folio);
		__entry->kind = kind;
		__entry->mappings = count->mappings;
		__entry->vmas = count->vmas;
		__entry->locks = count->locks;
	),

	TP_printk("pfn=0x%lx kind=%s mappings=%u vmas=%u locks=%u",
		  __entry->pfn, show_rmap_kind(__entry->kind),
		  __entry->mappings, __entry->vmas, __entry->locks)
);

#endif /* _TRACE_MEMREAP_KSM_RMAP_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
