/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _HOSTED_LINUX_EXPORT_H
#define _HOSTED_LINUX_EXPORT_H

#define EXPORT_SYMBOL_GPL(name)	_Static_assert(1, "")

#endif /* _HOSTED_LINUX_EXPORT_H */
