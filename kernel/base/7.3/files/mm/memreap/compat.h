/* SPDX-License-Identifier: GPL-2.0-only */
/* As <linux/memreap_compat.h>, with what only mm/ has. */
#ifndef _MM_MEMREAP_COMPAT_H
#define _MM_MEMREAP_COMPAT_H

#include <linux/memreap_compat.h>

#include "../internal.h"
#include "../page_alloc.h"

/* What register_sysctl() takes. */
#define memreap_ctl_table	const struct ctl_table

/* Has kswapd try again on a node where it had given up. */
static inline void compat_wake_hopeless(struct pglist_data *pgdat)
{
	/* Elsewhere direct reclaim does so. */
	if (kswapd_test_hopeless(pgdat) &&
	    next_memory_node(pgdat->node_id) < MAX_NUMNODES)
		kswapd_clear_hopeless(pgdat, KSWAPD_CLEAR_HOPELESS_PCP);
}

#endif /* _MM_MEMREAP_COMPAT_H */
