/* SPDX-License-Identifier: GPL-2.0-only */
/* KSM by order, pages seen from below, and ways to have them walked. */
#ifndef _SELFTESTS_MEMREAP_KSM_H
#define _SELFTESTS_MEMREAP_KSM_H

#include <limits.h>
#include <linux/mempolicy.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

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

/* A text without its newline; of "none [scan-time]" what is in brackets. */
static inline bool ksm_read_text(const char *name, char *text, size_t size)
{
	char path[64], *from, *end;

	snprintf(path, sizeof(path), KSM_DIR "%s", name);
	if (!read_file(path, text, size))
		return false;
	from = strchr(text, '[');
	end = from ? strchr(from, ']') : strchr(text, '\n');
	if (end)
		*end = 0;
	if (from)
		memmove(text, from + 1, strlen(from + 1) + 1);

	return true;
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

/* In the order in which they can be written back, with all pages unmerged. */
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

/* What is as it was is left alone: some cannot be written at all times. */
static inline void ksm_restore(const struct ksm_saved *saved)
{
	char now[32];

	/* An advisor does not let others write pages_to_scan. */
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

/* All that there is in one batch, one batch after the other, nothing skipped. */
static inline void ksm_scan_fast(void)
{
	ksm_write_text("advisor_mode", "none");
	ksm_set("pages_to_scan", 1000000);
	ksm_set("sleep_millisecs", 1);
	ksm_set("smart_scan", 0);
}

/*
 * Let ksmd look at everything @nr times or more, and stop it: once run is 0,
 * it does nothing any more.
 */
static inline bool ksm_scan(unsigned int nr)
{
	/* The one that goes on where the last left off does not count. */
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

/* --- Pages --- */

/* Of a word in /proc/PID/pagemap. */
#define PM_PRESENT	0x8000000000000000ULL
#define PM_SWAPPED	0x4000000000000000ULL
#define PM_PFN		0x007fffffffffffffULL

/* A 64-bit word of a file in /proc that has one for each page. */
static inline uint64_t page_word(const char *path, unsigned long nr)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint64_t word = 0;

	if (fd < 0)
		return 0;
	if (pread(fd, &word, sizeof(word), nr * sizeof(word)) != sizeof(word))
		word = 0;
	close(fd);

	return word;
}

static inline uint64_t pagemap_word(pid_t pid, const void *addr)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/pagemap", pid ? pid : getpid());

	return page_word(path, (unsigned long)addr / PAGE);
}

/* 0 if there is no page at the moment. */
static inline unsigned long pfn_at(pid_t pid, const void *addr)
{
	uint64_t word = pagemap_word(pid, addr);

	return word & PM_PRESENT ? word & PM_PFN : 0;
}

static inline bool swapped_out(pid_t pid, const void *addr)
{
	return (pagemap_word(pid, addr) & (PM_PRESENT | PM_SWAPPED)) == PM_SWAPPED;
}

/* --- Nodes --- */

/* The first @max nodes that have memory; how many there are of these. */
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

/* Pages on which others depend move as well. With @nodes NULL, only @status. */
static inline int move_pages_all(pid_t pid, unsigned long nr, void **pages,
				 const int *nodes, int *status)
{
	return syscall(__NR_move_pages, pid, nr, pages, nodes, status,
		       MPOL_MF_MOVE_ALL);
}

/* A negative errno if it is nowhere. */
static inline int node_of(pid_t pid, void *addr)
{
	int status = -EINVAL;

	/* Without nodes no page moves, and no flag is wanted. */
	if (syscall(__NR_move_pages, pid, 1UL, &addr, NULL, &status, 0) < 0)
		return -errno;

	return status;
}

/* --- Swap, and a cgroup to be reclaimed --- */

/**
 * struct squeeze - a cgroup whose memory can be reclaimed on order
 * @cgroup: its folder
 * @parent: the folder above
 * @made: @cgroup was made here
 * @enabled: the memory controller was switched on here
 * @swap: zram0 was made a swap device here
 */
struct squeeze {
	char cgroup[PATH_MAX / 4];
	char parent[PATH_MAX / 8];
	bool made;
	bool enabled;
	bool swap;
};

static inline long meminfo_kib(const char *field)
{
	char text[8192], *at;

	if (!read_file("/proc/meminfo", text, sizeof(text)))
		return -1;
	at = strstr(text, field);

	return at ? atol(at + strlen(field) + 1) : -1;
}

/* What swap there is will do; or zram0, if nobody uses it. */
static inline const char *swap_begin(struct squeeze *s, size_t size)
{
	const char *missing;
	char text[32];

	if (meminfo_kib("SwapFree:") * 1024 >= (long)size)
		return NULL;
	if (!read_file(ZRAM "disksize", text, sizeof(text)))
		return "no swap: swapon some, or load zram (CONFIG_ZRAM)";
	if (atoll(text))
		return "no swap, and zram0 is in use: swapon some";
	missing = zram_swap_on(size);
	s->swap = !missing;

	return missing;
}

/* Undo what squeeze_begin() did. All that is in the cgroup dies. */
static inline void squeeze_end(struct squeeze *s)
{
	char path[PATH_MAX / 2];

	if (s->made) {
		snprintf(path, sizeof(path), "%s/cgroup.kill", s->cgroup);
		write_file(path, "1");
		for (int i = 0; i < 5000 && rmdir(s->cgroup) &&
		     errno != ENOENT; i++)
			usleep(1000);
		s->made = false;
	}
	if (s->enabled) {
		snprintf(path, sizeof(path), "%s/cgroup.subtree_control",
			 s->parent);
		write_file(path, "-memory");
		s->enabled = false;
	}
	if (s->swap) {
		zram_swap_off();
		s->swap = false;
	}
}

/*
 * Make a cgroup and enter it, with at least @size bytes of swap. Returns NULL,
 * or what is missing.
 */
static inline const char *squeeze_begin(struct squeeze *s, size_t size)
{
	char line[PATH_MAX], path[PATH_MAX / 2];
	const char *missing;

	memset(s, 0, sizeof(*s));
	if (!cgroup2_mount(s->parent, sizeof(s->parent)))
		return "no cgroup2 is mounted: mount one at /sys/fs/cgroup";

	snprintf(path, sizeof(path), "%s/cgroup.subtree_control", s->parent);
	if (!read_file(path, line, sizeof(line)))
		return "the cgroup2 mount cannot be read";
	if (!strstr(line, "memory")) {
		if (!write_file(path, "+memory"))
			return "no memory controller for cgroup2 (CONFIG_MEMCG)";
		s->enabled = true;
	}
	snprintf(s->cgroup, sizeof(s->cgroup), "%s/memreap_selftest",
		 s->parent);
	s->made = !mkdir(s->cgroup, 0700) || errno == EEXIST;
	missing = "no cgroup can be made";
	if (!s->made)
		goto fail;
	snprintf(path, sizeof(path), "%s/memory.reclaim", s->cgroup);
	missing = "no memory.reclaim: needs Linux 5.19";
	if (access(path, W_OK))
		goto fail;
	missing = swap_begin(s, size);
	if (missing)
		goto fail;
	snprintf(path, sizeof(path), "%s/cgroup.procs", s->cgroup);
	snprintf(line, sizeof(line), "%d", getpid());
	missing = "cannot enter a cgroup";
	if (write_file(path, line))
		return NULL;
fail:
	squeeze_end(s);

	return missing;
}

/* Take away what can be had, up to @size bytes. */
static inline void squeeze(const struct squeeze *s, size_t size)
{
	char path[PATH_MAX / 2], text[32];

	snprintf(path, sizeof(path), "%s/memory.reclaim", s->cgroup);
	snprintf(text, sizeof(text), "%zu", size);
	/* Fails if less came back, and that is no news. */
	write_file(path, text);
}

#endif /* _SELFTESTS_MEMREAP_KSM_H */
