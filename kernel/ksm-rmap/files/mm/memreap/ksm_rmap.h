/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_KSM_RMAP_H
#define _MM_MEMREAP_KSM_RMAP_H

#include <linux/jump_label.h>

struct folio;

#ifdef CONFIG_MEMREAP_KSM_RMAP

DECLARE_STATIC_KEY_TRUE(memreap_ksm_rmap_key);

/* The boot parameter memreap.ksm_rmap=0 makes walks visit all VMAs. */
static inline bool memreap_ksm_rmap_enabled(void)
{
	return static_branch_likely(&memreap_ksm_rmap_key);
}

void memreap_ksm_rmap_walked(struct folio *folio, unsigned int mappings,
			     unsigned int vmas);

#else

static inline bool memreap_ksm_rmap_enabled(void)
{
	return false;
}

static inline void memreap_ksm_rmap_walked(struct folio *folio,
					   unsigned int mappings,
					   unsigned int vmas)
{
}

#endif /* CONFIG_MEMREAP_KSM_RMAP */

#endif /* _MM_MEMREAP_KSM_RMAP_H */
