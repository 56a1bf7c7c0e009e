/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_CHARGE_H
#define _MM_MEMREAP_CHARGE_H

#include <linux/cgroup.h>
#include <linux/irqflags.h>

/*
 * A worker does what a dying process would have done, so its time, in ns, is
 * charged to the cgroup of that process. The caller keeps the cgroup from
 * going away.
 */
static inline void memreap_charge_cpu(struct cgroup *cgrp, u64 ns)
{
#ifdef CONFIG_CGROUPS
	unsigned long flags;

	if (cgrp && cgroup_parent(cgrp)) {
		/* The scheduler's interrupt adds to the same counters. */
		local_irq_save(flags);
		__cgroup_account_cputime(cgrp, ns);
		__cgroup_account_cputime_field(cgrp, CPUTIME_SYSTEM, ns);
		local_irq_restore(flags);
	}
#endif
}

#endif /* _MM_MEMREAP_CHARGE_H */
