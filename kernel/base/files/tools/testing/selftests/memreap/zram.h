/* SPDX-License-Identifier: GPL-2.0-only */
/* Swap space on zram0, for tests of what is swapped out. */
#ifndef _SELFTESTS_MEMREAP_ZRAM_H
#define _SELFTESTS_MEMREAP_ZRAM_H

#include <sys/swap.h>

#include "util.h"

#define ZRAM		"/sys/block/zram0/"
#define ZRAM_DEVICE	"/dev/zram0"

/* A header as mkswap(8) writes it. */
static inline bool zram_make_swap(size_t size)
{
	unsigned int version = 1, last_page = size / PAGE - 1;
	char *page = calloc(1, PAGE);
	int fd = open(ZRAM_DEVICE, O_WRONLY | O_CLOEXEC);
	bool done = false;

	if (fd >= 0 && page) {
		memcpy(page + 1024, &version, sizeof(version));
		memcpy(page + 1028, &last_page, sizeof(last_page));
		memcpy(page + PAGE - 10, "SWAPSPACE2", 10);
		done = pwrite(fd, page, PAGE, 0) == (ssize_t)PAGE &&
		       !fsync(fd);
	}
	if (fd >= 0)
		close(fd);
	free(page);

	return done;
}

/* Returns NULL, or what is missing. */
static inline const char *zram_swap_on(size_t size)
{
	char text[32];

	snprintf(text, sizeof(text), "%zu", size);
	if (!write_file(ZRAM "disksize", text))
		return "no swap, and zram0 takes no size";
	if (!zram_make_swap(size) || swapon(ZRAM_DEVICE, 0)) {
		write_file(ZRAM "reset", "1");
		return "no swap, and zram0 cannot be used for it";
	}

	return NULL;
}

static inline void zram_swap_off(void)
{
	swapoff(ZRAM_DEVICE);
	write_file(ZRAM "reset", "1");
}

#endif /* _SELFTESTS_MEMREAP_ZRAM_H */
