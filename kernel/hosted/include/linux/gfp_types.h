/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _HOSTED_LINUX_GFP_TYPES_H
#define _HOSTED_LINUX_GFP_TYPES_H

#define GFP_KERNEL		0xcc0U

#endif /* _HOSTED_LINUX_GFP_TYPES_H */
