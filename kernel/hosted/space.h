/* SPDX-License-Identifier: GPL-2.0-only */
/* Address spaces as arrays of spans, and checks of how one was shared. */
#ifndef _HOSTED_SPACE_H
#define _HOSTED_SPACE_H

#include "check.h"
#include "reap_session.h"

#define MAX_SPANS	32

/**
 * struct space - an address space
 * @nr: entries in @spans
 * @spans: reapable memory, from the bottom to the top
 */
struct space {
	unsigned int nr;
	struct reap_span spans[MAX_SPANS];
};

static inline unsigned long min_ul(unsigned long a, unsigned long b)
{
	return a < b ? a : b;
}

static inline unsigned long max_ul(unsigned long a, unsigned long b)
{
	return a > b ? a : b;
}

/* A reap_below_fn; @arg is a struct space. */
static inline bool space_below(void *arg, unsigned long top,
			       struct reap_span *span)
{
	const struct space *space = arg;

	for (unsigned int i = space->nr; i-- > 0;) {
		if (space->spans[i].start >= top)
			continue;
		span->start = space->spans[i].start;
		span->end = min_ul(space->spans[i].end, top);
		return true;
	}

	return false;
}

/* How much of @space lies within @within. */
static inline unsigned long space_size(const struct space *space,
				       const struct reap_span *within)
{
	unsigned long size = 0;

	for (unsigned int i = 0; i < space->nr; i++) {
		unsigned long start = max_ul(space->spans[i].start,
					     within->start);
		unsigned long end = min_ul(space->spans[i].end, within->end);

		if (start < end)
			size += end - start;
	}

	return size;
}

/* Invariants of each chunk, whichever thread got it. */
static inline void check_chunk(const struct space *space,
			       const struct reap_span *chunk)
{
	struct reap_span last_page = { chunk->end - PAGE_SIZE, chunk->end };

	CHECK(chunk->start < chunk->end);
	CHECK(chunk->start == ALIGN_DOWN(chunk->end - 1, REAP_CHUNK_SIZE));
	CHECK(space_size(space, &last_page) == PAGE_SIZE);
}

/*
 * @chunks, in the order of the claims, go down and hold all of @space. As no
 * two overlap, they hold no byte twice when the sizes add up.
 */
static inline void check_chunks(const struct space *space,
				const struct reap_span *chunks, unsigned int nr)
{
	const struct reap_span all = { 0, ULONG_MAX };
	unsigned long above = ULONG_MAX;
	unsigned long size = 0;

	for (unsigned int i = 0; i < nr; i++) {
		check_chunk(space, &chunks[i]);
		CHECK(chunks[i].end <= above);
		size += space_size(space, &chunks[i]);
		above = chunks[i].start;
	}
	CHECK(size == space_size(space, &all));
}

#endif /* _HOSTED_SPACE_H */
