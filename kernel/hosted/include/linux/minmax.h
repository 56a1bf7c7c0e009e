/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _HOSTED_LINUX_MINMAX_H
#define _HOSTED_LINUX_MINMAX_H

#define min(a, b)							\
({									\
	__auto_type min_a_ = (a);					\
	__auto_type min_b_ = (b);					\
									\
	min_a_ < min_b_ ? min_a_ : min_b_;				\
})

#define max(a, b)							\
({									\
	__auto_type max_a_ = (a);					\
	__auto_type max_b_ = (b);					\
									\
	max_a_ > max_b_ ? max_a_ : max_b_;				\
})

#define min_t(type, a, b)	min((type)(a), (type)(b))

#endif /* _HOSTED_LINUX_MINMAX_H */
