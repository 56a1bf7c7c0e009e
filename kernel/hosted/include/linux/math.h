/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _HOSTED_LINUX_MATH_H
#define _HOSTED_LINUX_MATH_H

/* Has an abs() of its own, for int alone. */
#include <stdlib.h>

#define abs(x)								\
({									\
	__auto_type abs_x_ = (x);					\
									\
	abs_x_ < 0 ? -abs_x_ : abs_x_;					\
})

#define DIV_ROUND_UP(n, d)	(((n) + (d) - 1) / (d))

#endif /* _HOSTED_LINUX_MATH_H */
