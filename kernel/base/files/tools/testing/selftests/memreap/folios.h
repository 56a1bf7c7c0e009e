/* SPDX-License-Identifier: GPL-2.0-only */
/* The size of the folios that processes get, and the LRU that these are on. */
#ifndef _SELFTESTS_MEMREAP_FOLIOS_H
#define _SELFTESTS_MEMREAP_FOLIOS_H

#include "util.h"

#define THP		"/sys/kernel/mm/transparent_hugepage"
#define LRU_GEN		"/sys/kernel/mm/lru_gen/enabled"

/* Sizes in KiB: folios mapped by a PMD with 4 KiB pages, and smaller ones. */
#define FOLIO_PMD	2048
#define FOLIO_MTHP	64

/**
 * struct folios - the kind of folios to test with
 * @kib: their size where MADV_HUGEPAGE is set, in KiB; 0: single pages
 * @other_lru: they are on the classic LRU instead of the multi-gen one, or the
 *	other way around
 */
struct folios {
	unsigned int kib;
	bool other_lru;
};

/**
 * struct folio_settings - the kernel's settings while a test runs
 * @kib: the size that was set, in KiB; 0 if none was
 * @all: for all sizes, before
 * @size: for the size, before
 * @lru_gen: of the multi-gen LRU, before; empty if it was not changed
 * @allocated: folios of that size allocated before
 */
struct folio_settings {
	unsigned int kib;
	char all[32];
	char size[32];
	char lru_gen[16];
	long allocated;
};

static inline const char *folio_file(unsigned int kib, const char *name)
{
	static char path[128];

	snprintf(path, sizeof(path), THP "/hugepages-%ukB/%s", kib, name);

	return path;
}

static inline long folio_counter(unsigned int kib)
{
	return read_number(folio_file(kib, "stats/anon_fault_alloc"), NULL);
}

/* How many folios of the size there have been since folios_begin(). */
static inline long folios_allocated(const struct folio_settings *s)
{
	return s->kib ? folio_counter(s->kib) - s->allocated : 0;
}

static inline void folios_end(struct folio_settings *s)
{
	if (s->lru_gen[0])
		write_file(LRU_GEN, s->lru_gen);
	if (s->kib) {
		write_file(folio_file(s->kib, "enabled"), s->size);
		write_file(THP "/enabled", s->all);
	}
	memset(s, 0, sizeof(*s));
}

static inline bool folios_set_size(struct folio_settings *s, unsigned int kib)
{
	if (!read_setting(THP "/enabled", s->all, sizeof(s->all)) ||
	    !read_setting(folio_file(kib, "enabled"), s->size, sizeof(s->size)))
		return false;
	s->kib = kib;
	s->allocated = folio_counter(kib);

	/* By default, the largest size inherits the setting for all. */
	return write_file(THP "/enabled", "never") &&
	       write_file(folio_file(kib, "enabled"), "madvise");
}

static inline bool folios_switch_lru(struct folio_settings *s)
{
	char on[16];

	if (!read_file(LRU_GEN, s->lru_gen, sizeof(s->lru_gen)))
		return false;
	/* A mask, in hexadecimal; bit 0 is the multi-gen LRU. */
	snprintf(on, sizeof(on), "%d", !(strtoul(s->lru_gen, NULL, 16) & 1));

	return write_file(LRU_GEN, on);
}

/* Returns NULL, or what is missing, with the settings as they were. */
static inline const char *folios_begin(struct folio_settings *s,
				       const struct folios *folios)
{
	const char *missing = NULL;

	memset(s, 0, sizeof(*s));
	if (folios->kib && !folios_set_size(s, folios->kib))
		missing = "no folios of that size";
	else if (folios->other_lru && !folios_switch_lru(s))
		missing = "no multi-gen LRU beside the classic one";
	if (missing)
		folios_end(s);

	return missing;
}

#endif /* _SELFTESTS_MEMREAP_FOLIOS_H */
