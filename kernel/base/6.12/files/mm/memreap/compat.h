/* SPDX-License-Identifier: GPL-2.0-only */
/* As <linux/memreap_compat.h>, with what only mm/ has. */
#ifndef _MM_MEMREAP_COMPAT_H
#define _MM_MEMREAP_COMPAT_H

#include <linux/memreap_compat.h>

#include "../internal.h"

/* What register_sysctl() takes. */
#define memreap_ctl_table	struct ctl_table

/* Stock does not either. */
static inline void compat_wake_hopeless(struct pglist_data *pgdat)
{
}

/* In mm/oom_kill.c: stock marks nobody who dies already. */
#ifdef CONFIG_MEMREAP_MEMCG_EXIT
void memcg_exit_mark_victim(void);
#else
static inline void memcg_exit_mark_victim(void)
{
}
#endif

#endif /* _MM_MEMREAP_COMPAT_H */
