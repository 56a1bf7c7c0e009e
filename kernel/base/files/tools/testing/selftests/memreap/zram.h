/* SPDX-License-Identifier: GPL-2.0-only */
/* Swap space on zram devices. */
#ifndef _SELFTESTS_MEMREAP_ZRAM_H
#define _SELFTESTS_MEMREAP_ZRAM_H

#include <sys/swap.h>

#include "util.h"

/* A header as mkswap(8) writes it. */
static inline bool make_swap(const char *device, size_t size)
{
	unsigned int version = 1, last_page = size / PAGE - 1;
	char *page = calloc(1, PAGE);
	int fd = open(device, O_WRONLY | O_CLOEXEC);
	bool done = false;

	if (fd >= 0 && page) {
		memcpy(page + 1024, &version, sizeof(version));
		memcpy(page + 1028, &last_page, sizeof(last_page));
		memcpy(page + PAGE - 10, "SWAPSPACE2", 10);
		done = pwrite(fd, page, PAGE, 0) == (ssize_t)PAGE && !fsync(fd);
	}
	if (fd >= 0)
		close(fd);
	free(page);

	return done;
}

static inline bool zram_write(int nr, const char *file, const char *text)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/block/zram%d/%s", nr, file);

	return write_file(path, text);
}

static inline const char *zram_device(int nr)
{
	static char paths[4][16];

	snprintf(paths[nr], sizeof(paths[nr]), "/dev/zram%d", nr);

	return paths[nr];
}

/* Empties a device. Fails while it is in use. */
static inline bool zram_reset(int nr)
{
	return zram_write(nr, "reset", "1");
}

/* @prio: those with a higher one are used first; at most 100. */
static inline bool zram_on(int nr, size_t size, int prio)
{
	char text[32];

	snprintf(text, sizeof(text), "%zu", size);
	if (!zram_write(nr, "disksize", text))
		return false;
	if (make_swap(zram_device(nr), size) &&
	    !swapon(zram_device(nr), SWAP_FLAG_PREFER | prio))
		return true;
	zram_reset(nr);

	return false;
}

/* A process forked while the device was set up may keep it open for a while. */
static inline bool zram_off(int nr)
{
	return !swapoff(zram_device(nr)) && within(PATIENCE, zram_reset(nr));
}

/*
 * Slots in use, those that wait to be released among them. Of all devices, or of
 * @device.
 */
static inline long swap_used_of(const char *device)
{
	FILE *f = fopen("/proc/swaps", "re");
	char line[512], name[256];
	long used, sum = 0;

	/* Filename Type Size Used Priority, in KiB */
	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%255s %*s %*d %ld", name, &used) == 2 &&
		    (!device || !strcmp(name, device)))
			sum += used * 1024 / (long)PAGE;
	}
	if (f)
		fclose(f);

	return sum;
}

/* A device that was added for the tests of a program; -1: none. */
static int zram_added = -1;
static pid_t zram_owner;

/* For a constructor: adds zram1 if it is missing, until the program ends. */
static inline void zram_add(void)
{
	zram_owner = getpid();
	if (access(zram_device(1), F_OK))
		zram_added = read_number("/sys/class/zram-control/hot_add", NULL);
}

static void __attribute__((destructor)) zram_remove(void)
{
	char text[16];

	if (getpid() != zram_owner || zram_added < 0)
		return;
	snprintf(text, sizeof(text), "%d", zram_added);
	write_file("/sys/class/zram-control/hot_remove", text);
}

#endif /* _SELFTESTS_MEMREAP_ZRAM_H */
