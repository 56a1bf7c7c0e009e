/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_SWITCH_H
#define _MM_MEMREAP_SWITCH_H

#include <linux/jump_label.h>
#include <linux/moduleparam.h>

struct workqueue_struct;

/* Static keys of a switch, which has one more level than keys. */
#define MEMREAP_SWITCH_MAX_KEYS	2

/**
 * struct memreap_switch - a boot parameter that turns a topic off or on
 * @keys: static keys in ascending order, NULL-terminated if there is room;
 *	level n enables the first n keys and disables the others
 * @levels: names of the levels, lowest first; NULL: "N" and "Y"
 * @wq: if not NULL, what the highest level needs once the system is running
 * @changed: if not NULL, called after each successful write
 *
 * Besides the names any word that kstrtobool() knows is accepted: false is the
 * lowest level, true the highest one.
 */
struct memreap_switch {
	struct static_key *keys[MEMREAP_SWITCH_MAX_KEYS];
	const char * const *levels;
	struct workqueue_struct **wq;
	void (*changed)(void);
};

extern const struct kernel_param_ops memreap_switch_ops;

/* memreap.@name= at boot, /sys/module/memreap/parameters/@name at run time. */
#define memreap_switch_param(name, sw)					\
	__module_param_call("memreap.", name, &memreap_switch_ops,	\
			    (void *)(sw), 0644, -1, 0)

#endif /* _MM_MEMREAP_SWITCH_H */
