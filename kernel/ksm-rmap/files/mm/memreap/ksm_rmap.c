// SPDX-License-Identifier: GPL-2.0-only
/*
 * The switch of the search for mappings of KSM pages by page index, and its
 * tracepoint. The search itself is rmap_walk_ksm() in mm/ksm.c.
 */
#include <linux/module.h>

#include "ksm_rmap.h"
#include "switch.h"

#define CREATE_TRACE_POINTS
#include <trace/events/memreap_ksm_rmap.h>

DEFINE_STATIC_KEY_TRUE(memreap_ksm_rmap_key);

/**
 * memreap_ksm_rmap_walked - report a walk over the mappings of a KSM page
 * @folio: the page
 * @mappings: calls of rmap_one()
 * @vmas: VMAs visited
 */
void memreap_ksm_rmap_walked(struct folio *folio, unsigned int mappings,
			     unsigned int vmas)
{
	trace_memreap_ksm_rmap_walk(folio, mappings, vmas);
}

static const struct memreap_switch ksm_rmap_switch = {
	.key = &memreap_ksm_rmap_key.key,
};

memreap_switch_param(ksm_rmap, &ksm_rmap_switch);
MODULE_PARM_DESC(ksm_rmap, "Search for mappings of KSM pages by page index (default: Y)");
