/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _MM_MEMREAP_SWITCH_H
#define _MM_MEMREAP_SWITCH_H

#include <linux/jump_label.h>
#include <linux/moduleparam.h>

struct workqueue_struct;

/**
 * struct memreap_switch - a boot parameter that turns a topic off or on
 * @key: its static key
 * @wq: if not NULL, what it needs to be on once the system is running
 * @changed: if not NULL, called after each successful write
 *
 * Any word that kstrtobool() knows is accepted.
 */
struct memreap_switch {
	struct static_key *key;
	struct workqueue_struct **wq;
	void (*changed)(void);
};

extern const struct kernel_param_ops memreap_switch_ops;

/* memreap.@name= at boot, /sys/module/memreap/parameters/@name at run time. */
#define memreap_switch_param(name, sw)					\
	__module_param_call("memreap.", name, &memreap_switch_ops,	\
			    (void *)(sw), 0644, -1, 0)

#endif /* _MM_MEMREAP_SWITCH_H */
