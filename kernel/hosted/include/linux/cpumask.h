/* SPDX-License-Identifier: GPL-2.0-only */
/* CPUs 0 to nr_cpu_ids - 1 are possible; the tests say which of them run. */
#ifndef _HOSTED_LINUX_CPUMASK_H
#define _HOSTED_LINUX_CPUMASK_H

#include "../check.h"

#define NR_CPUS			8192

extern unsigned int nr_cpu_ids;
extern bool hosted_offline[NR_CPUS];

#define num_possible_cpus()	nr_cpu_ids

static inline bool cpu_online(unsigned int cpu)
{
	CHECK(cpu < nr_cpu_ids);
	return !hosted_offline[cpu];
}

#endif /* _HOSTED_LINUX_CPUMASK_H */
