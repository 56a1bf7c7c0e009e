/* SPDX-License-Identifier: GPL-2.0-only */
/* As "compat.h", with what only KUnit tests need. */
#ifndef _MM_MEMREAP_COMPAT_KUNIT_H
#define _MM_MEMREAP_COMPAT_KUNIT_H

#include <linux/page-isolation.h>

#include "compat.h"

/* Sets the migratetype of a pageblock that has no free pages. */
static inline void compat_block_set_type(struct zone *zone, struct page *page,
					 int type)
{
	set_pageblock_migratetype(page, type);
}

/* Moves the free pages of a pageblock of @type to lists that others use. */
static inline void compat_block_free_type(struct zone *zone, struct page *page,
					  int type)
{
	move_freepages_block_isolate(zone, page, MIGRATE_MOVABLE);
}

#endif /* _MM_MEMREAP_COMPAT_KUNIT_H */
