/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _HOSTED_LINUX_IRQFLAGS_H
#define _HOSTED_LINUX_IRQFLAGS_H

#include "cpumask.h"

/* On each CPU. */
extern _Thread_local bool hosted_irqs_disabled[NR_CPUS];
extern _Thread_local unsigned int hosted_cpu;

#define local_irq_save(flags)						\
do {									\
	others_may_run();						\
	(flags) = hosted_irqs_disabled[hosted_cpu];				\
	hosted_irqs_disabled[hosted_cpu] = true;				\
} while (0)

#define local_irq_restore(flags)	(hosted_irqs_disabled[hosted_cpu] = (flags))

#endif /* _HOSTED_LINUX_IRQFLAGS_H */
