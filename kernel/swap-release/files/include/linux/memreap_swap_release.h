/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _LINUX_MEMREAP_SWAP_RELEASE_H
#define _LINUX_MEMREAP_SWAP_RELEASE_H

#include <linux/limits.h>
#include <linux/types.h>

/* Maximum number of runs that are released together. */
#define SWAP_CHUNK_RUNS		32

/**
 * struct swap_run - neighbouring slots of a swap device
 * @offset: of the first slot
 * @nr: slots
 * @type: of the device
 */
struct swap_run {
	unsigned int offset;
	u16 nr;
	u16 type;
};

/**
 * swap_run_add - add slots to an array of runs
 * @runs: the array
 * @nr_runs: entries in @runs
 * @max: capacity of @runs
 * @type: of the swap device
 * @offset: of the first slot
 * @nr: slots, at most U16_MAX
 *
 * Slots that follow those added last become part of their run.
 *
 * Return: false if there is no room.
 */
static inline bool swap_run_add(struct swap_run *runs, unsigned int *nr_runs,
				unsigned int max, unsigned int type,
				unsigned long offset, unsigned int nr)
{
	struct swap_run *last;

	if (*nr_runs) {
		last = &runs[*nr_runs - 1];
		if (last->type == type && last->offset + last->nr == offset &&
		    last->nr + nr <= U16_MAX) {
			last->nr += nr;
			return true;
		}
	}
	if (*nr_runs == max)
		return false;
	last = &runs[(*nr_runs)++];
	last->offset = offset;
	last->nr = nr;
	last->type = type;

	return true;
}

#endif /* _LINUX_MEMREAP_SWAP_RELEASE_H */
