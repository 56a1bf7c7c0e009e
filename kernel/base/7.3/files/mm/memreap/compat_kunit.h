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
	if (is_migrate_isolate(type))
		pageblock_isolate_and_move_free_pages(zone, page);
	else
		move_freepages_block(zone, page, MIGRATE_UNMOVABLE, type);
}

/* Moves the free pages of a pageblock of @type to lists that others use. */
static inline void compat_block_free_type(struct zone *zone, struct page *page,
					  int type)
{
	if (is_migrate_isolate(type))
		pageblock_unisolate_and_move_free_pages(zone, page);
	else
		move_freepages_block(zone, page, type, MIGRATE_MOVABLE);
}

#endif /* _MM_MEMREAP_COMPAT_KUNIT_H */
