/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _HOSTED_LINUX_BITMAP_H
#define _HOSTED_LINUX_BITMAP_H

#include "math.h"

#define BITS_PER_LONG		64
#define BIT(nr)			(1UL << (nr))
#define BITS_TO_LONGS(nr)	DIV_ROUND_UP(nr, BITS_PER_LONG)

static inline bool test_bit(unsigned long nr, const unsigned long *map)
{
	others_may_run();

	return __atomic_load_n(&map[nr / BITS_PER_LONG], __ATOMIC_RELAXED) &
	       BIT(nr % BITS_PER_LONG);
}

static inline bool test_and_set_bit(unsigned long nr, unsigned long *map)
{
	others_may_run();

	return __atomic_fetch_or(&map[nr / BITS_PER_LONG],
				 BIT(nr % BITS_PER_LONG), __ATOMIC_SEQ_CST) &
	       BIT(nr % BITS_PER_LONG);
}

#define hweight_long(word)	__builtin_popcountl(word)
#define __ffs(word)		__builtin_ctzl(word)

static inline unsigned long find_next_bit(const unsigned long *map,
					  unsigned long size, unsigned long nr)
{
	while (nr < size) {
		unsigned long word = __atomic_load_n(&map[nr / BITS_PER_LONG],
						     __ATOMIC_RELAXED);

		word >>= nr % BITS_PER_LONG;
		if (word) {
			nr += __builtin_ctzl(word);
			break;
		}
		nr = ALIGN_DOWN(nr, BITS_PER_LONG) + BITS_PER_LONG;
	}

	return nr < size ? nr : size;
}

#define for_each_set_bit_from(bit, map, size)				\
	for (; (bit) = find_next_bit(map, size, bit), (bit) < (size); (bit)++)
#define for_each_set_bit(bit, map, size)				\
	for ((bit) = 0;							\
	     (bit) = find_next_bit(map, size, bit), (bit) < (size); (bit)++)

#endif /* _HOSTED_LINUX_BITMAP_H */
