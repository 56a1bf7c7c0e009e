// SPDX-License-Identifier: GPL-2.0-only
/* The boot parameters that turn topics off, which can be written later, too. */
#include <linux/kernel.h>
#include <linux/kstrtox.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "switch.h"

static const char * const switch_levels[] = { "N", "Y" };

static const char * const *level_names(const struct memreap_switch *sw)
{
	return sw->levels ?: switch_levels;
}

static unsigned int nr_keys(const struct memreap_switch *sw)
{
	unsigned int nr = 0;

	while (nr < ARRAY_SIZE(sw->keys) && sw->keys[nr])
		nr++;

	return nr;
}

static int switch_set(const char *val, const struct kernel_param *kp)
{
	const struct memreap_switch *sw = kp->arg;
	int top = nr_keys(sw);
	int level = __sysfs_match_string(level_names(sw), top + 1, val);
	bool on;

	if (level < 0) {
		if (kstrtobool(val, &on))
			return -EINVAL;
		level = on ? top : 0;
	}
	if (level == top && sw->wq && !*sw->wq &&
	    system_state == SYSTEM_RUNNING)
		return -ENODEV;

	for (int i = 0; i < top; i++) {
		if (i < level)
			static_key_enable(sw->keys[i]);
		else
			static_key_disable(sw->keys[i]);
	}
	if (sw->changed)
		sw->changed();

	return 0;
}

static int switch_get(char *buffer, const struct kernel_param *kp)
{
	const struct memreap_switch *sw = kp->arg;
	unsigned int top = nr_keys(sw), level = 0;

	while (level < top && static_key_enabled(sw->keys[level]))
		level++;

	return sysfs_emit(buffer, "%s\n", level_names(sw)[level]);
}

const struct kernel_param_ops memreap_switch_ops = {
	.set = switch_set,
	.get = switch_get,
};
