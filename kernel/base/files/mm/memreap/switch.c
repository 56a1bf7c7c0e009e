// SPDX-License-Identifier: GPL-2.0-only
/* The boot parameters that turn topics off, which can be written later, too. */
#include <linux/kernel.h>
#include <linux/kstrtox.h>
#include <linux/sysfs.h>

#include "switch.h"

static int switch_set(const char *val, const struct kernel_param *kp)
{
	const struct memreap_switch *sw = kp->arg;
	bool on;

	if (kstrtobool(val, &on))
		return -EINVAL;
	if (on && sw->wq && !*sw->wq && system_state == SYSTEM_RUNNING)
		return -ENODEV;

	if (on)
		static_key_enable(sw->key);
	else
		static_key_disable(sw->key);
	if (sw->changed)
		sw->changed();

	return 0;
}

static int switch_get(char *buffer, const struct kernel_param *kp)
{
	const struct memreap_switch *sw = kp->arg;

	return sysfs_emit(buffer, "%c\n", static_key_enabled(sw->key) ? 'Y' : 'N');
}

const struct kernel_param_ops memreap_switch_ops = {
	.set = switch_set,
	.get = switch_get,
};
