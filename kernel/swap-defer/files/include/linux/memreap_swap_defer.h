/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _LINUX_MEMREAP_SWAP_DEFER_H
#define _LINUX_MEMREAP_SWAP_DEFER_H

#include <linux/atomic.h>

struct seq_file;

#ifdef CONFIG_MEMREAP_SWAP_DEFER

extern atomic_long_t nr_swap_pages;
extern atomic_long_t nr_swap_pages_waiting;

bool swap_first_is_full(void);
void memreap_swap_help_out(void);
bool memreap_swap_make_room(void);
void memreap_swap_flush(void);
void memreap_swap_start(void);
void memreap_swap_vmstat(struct seq_file *m);

/* Slots that wait to be released and count as free. */
static inline long memreap_swap_waiting(void)
{
	return atomic_long_read(&nr_swap_pages_waiting);
}

/* Before a slot is allocated: some may have to be released first. */
static inline void memreap_swap_help(void)
{
	long waiting = memreap_swap_waiting();

	if (waiting && (atomic_long_read(&nr_swap_pages) < waiting ||
			swap_first_is_full()))
		memreap_swap_help_out();
}

#else

static inline long memreap_swap_waiting(void)
{
	return 0;
}

static inline void memreap_swap_help(void)
{
}

static inline bool memreap_swap_make_room(void)
{
	return false;
}

static inline void memreap_swap_flush(void)
{
}

static inline void memreap_swap_start(void)
{
}

static inline void memreap_swap_vmstat(struct seq_file *m)
{
}

#endif /* CONFIG_MEMREAP_SWAP_DEFER */

#endif /* _LINUX_MEMREAP_SWAP_DEFER_H */
