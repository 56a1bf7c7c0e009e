/* SPDX-License-Identifier: GPL-2.0-only */
/* Control of KSM, and ways to make the kernel walk the mappings of a page. */
#ifndef _SELFTESTS_MEMREAP_KSM_H
#define _SELFTESTS_MEMREAP_KSM_H

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cgroup.h"
#include "pagemap.h"
#include "zram.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP	4
#endif
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE	67
#endif

#define KSM_DIR		"/sys/kernel/mm/ksm/"
#define NODES		"/sys/devices/system/node/has_memory"
#define PAGE_IDLE	"/sys/kernel/mm/page_idle/bitmap"

/* --- The settings of KSM --- */

/* See read_setting(). */
static inline bool ksm_read_text(const char *name, char *text, size_t size)
{
	char path[64];

	snprintf(path, sizeof(path), KSM_DIR "%s", name);

	return read_setting(path, text, size);
}

static inline bool ksm_write_text(const char *name, const char *text)
{
	char path[64];

	snprintf(path, sizeof(path), KSM_DIR "%s", name);

	return write_file(path, text);
}

/* -1 if this kernel has no such file. */
static inline long ksm_get(const char *name)
{
	char text[32];

	return ksm_read_text(name, text, sizeof(text)) ? atol(text) : -1;
}

static inline bool ksm_set(const char *name, long value)
{
	char text[32];

	snprintf(text, sizeof(text), "%ld", value);

	return ksm_write_text(name, text);
}

/* In an order in which they can be restored, with all pages unmerged. */
static const char * const ksm_settings[] = {
	"merge_across_nodes", "max_page_sharing", "use_zero_pages",
	"smart_scan", "sleep_millisecs", "pages_to_scan", "advisor_mode",
	"run",
};

struct ksm_saved {
	char value[ARRAY_SIZE(ksm_settings)][32];
};

static inline void ksm_save(struct ksm_saved *saved)
{
	for (size_t i = 0; i < ARRAY_SIZE(ksm_settings); i++) {
		if (!ksm_read_text(ksm_settings[i], saved->value[i],
				   sizeof(saved->value[i])))
			saved->value[i][0] = 0;
	}
}

/* Writes only what changed: some cannot be written at all times. */
static inline void ksm_restore(const struct ksm_saved *saved)
{
	char now[32];

	/* With an advisor, pages_to_scan cannot be written. */
	if (ksm_read_text("advisor_mode", now, sizeof(now)) &&
	    strcmp(now, "none"))
		ksm_write_text("advisor_mode", "none");
	for (size_t i = 0; i < ARRAY_SIZE(ksm_settings); i++) {
		if (saved->value[i][0] &&
		    ksm_read_text(ksm_settings[i], now, sizeof(now)) &&
		    strcmp(now, saved->value[i]))
			ksm_write_text(ksm_settings[i], saved->value[i]);
	}
}

/* Scans everything in one batch, without pauses, and skips no page. */
static inline void ksm_scan_fast(void)
{
	ksm_write_text("advisor_mode", "none");
	ksm_set("pages_to_scan", 1000000);
	ksm_set("sleep_millisecs", 1);
	ksm_set("smart_scan", 0);
}

/* Runs at least @nr full scans and stops ksmd: with run at 0 it is idle. */
static inline bool ksm_scan(unsigned int nr)
{
	/* The first one continues an earlier scan and does not count. */
	long end = ksm_get("full_scans") + nr + 1;
	unsigned long long limit = now_ns() + 60000000000ULL;
	bool done;

	ksm_set("run", 1);
	do {
		usleep(1000);
		done = ksm_get("full_scans") >= end;
	} while (!done && now_ns() < limit);
	ksm_set("run", 0);

	return done;
}

/* --- Nodes --- */

/* Finds up to @max nodes that have memory. Returns how many. */
static inline int memory_nodes(int *nodes, int max)
{
	char text[256], *at = text;
	int nr = 0;

	/* "0-1,4"; without NUMA there is no such file, and one node. */
	if (!read_file(NODES, text, sizeof(text)))
		memcpy(text, "0", 2);
	while (nr < max && *at >= '0' && *at <= '9') {
		int first = strtol(at, &at, 10);
		int last = *at == '-' ? strtol(at + 1, &at, 10) : first;

		for (int node = first; node <= last && nr < max; node++)
			nodes[nr++] = node;
		at += *at == ',';
	}

	return nr;
}

/* Moves shared pages, too. With @nodes NULL, only sets @status. */
static inline int move_pages_all(pid_t pid, unsigned long nr, void **pages,
				 const int *nodes, int *status)
{
	return syscall(__NR_move_pages, pid, nr, pages, nodes, status,
		       MPOL_MF_MOVE_ALL);
}

/* Returns the node of a page, or a negative errno. */
static inline int node_of(pid_t pid, void *addr)
{
	int status = -EINVAL;

	/* Without nodes nothing moves, and no flag is needed. */
	if (syscall(__NR_move_pages, pid, 1UL, &addr, NULL, &status, 0) < 0)
		return -errno;

	return status;
}

/* --- Swap, and a cgroup to reclaim from --- */

/**
 * struct squeeze - a cgroup whose memory is reclaimed on request
 * @cgroups: its @top is that cgroup
 * @swap: zram0 was made a swap device for it
 */
struct squeeze {
	struct cgroups cgroups;
	bool swap;
};

/* Uses swap space that exists, or zram0 if that is unused. */
static inline const char *swap_begin(struct squeeze *s, size_t size)
{
	long disksize;

	if (read_number("/proc/meminfo", "SwapFree:") * 1024 >= (long)size)
		return NULL;
	disksize = read_number("/sys/block/zram0/disksize", NULL);
	if (disksize < 0)
		return "no swap: swapon some, or load zram (CONFIG_ZRAM)";
	if (disksize)
		return "no swap, and zram0 is in use: swapon some";
	s->swap = zram_on(0, size, 0);

	return s->swap ? NULL : "no swap, and zram0 cannot be used for it";
}

/* Undoes squeeze_begin(). Kills all processes in the cgroup. */
static inline void squeeze_end(struct squeeze *s)
{
	cgroups_end(&s->cgroups);
	if (s->swap)
		zram_off(0);
	s->swap = false;
}

/*
 * Creates a cgroup and enters it, with at least @size bytes of swap. Returns
 * NULL, or what is missing.
 */
static inline const char *squeeze_begin(struct squeeze *s, size_t size)
{
	const char *missing = cgroups_begin(&s->cgroups, "+memory");

	s->swap = false;
	if (missing)
		return missing;
	if (access(cgroup_path(&s->cgroups, "memory.reclaim"), W_OK))
		missing = "no memory.reclaim: needs Linux 5.19";
	else
		missing = swap_begin(s, size);
	if (!missing && !cgroup_enter(s->cgroups.top))
		missing = "cannot enter a cgroup";
	if (missing)
		squeeze_end(s);

	return missing;
}

/* Reclaims up to @size bytes. It is no error if fewer are reclaimed. */
static inline void squeeze(const struct squeeze *s, size_t size)
{
	cgroup_write_number(s->cgroups.top, "memory.reclaim", size);
}

#endif /* _SELFTESTS_MEMREAP_KSM_H */
