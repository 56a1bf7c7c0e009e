/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _HOSTED_LINUX_PREEMPT_H
#define _HOSTED_LINUX_PREEMPT_H

#include "../check.h"

/* While it is not 0 a thread stays on its CPU. */
extern _Thread_local int hosted_preempt_count;
/* How often it was disabled. */
extern _Thread_local unsigned long hosted_preempt_disabled;

static inline void preempt_disable(void)
{
	hosted_preempt_disabled++;
	hosted_preempt_count++;
}

static inline void preempt_enable(void)
{
	CHECK(hosted_preempt_count > 0);
	hosted_preempt_count--;
}

#endif /* _HOSTED_LINUX_PREEMPT_H */
