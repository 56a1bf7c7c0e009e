/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory runs out while entries wait that hold some of it, and no worker gets
 * to run: for one victim that was needed, no other must die.
 */
#ifndef _SELFTESTS_MEMREAP_SWAP_RELEASE_OOM_H
#define _SELFTESTS_MEMREAP_SWAP_RELEASE_OOM_H

#include "swap_release.h"
#include "swap_release_hogs.h"

#define SWAPPINESS	"/proc/sys/vm/swappiness"

/* The victim, who goes first, and one who need not die. */
#define VICTIM_SCORE	1000
#define NEXT_SCORE	0
/* Whoever is killed is gone before the test, which does not sleep, goes on. */
#define DYING_PRIORITY	(TEST_PRIORITY + 5)
/* What the one who is next would bring. */
#define NEXT_SIZE	(8 * MIB)

/* Not in a fixture: victims begin as copies of the test. */
static struct region memory;
static struct region next_memory;
static struct victim victim;
static struct victim next;

static enum verdict stay_in_memory(void *arg)
{
	struct region *r = arg;

	if ((r->cgroup && !cgroup_enter(r->cgroup)) || !set_score(r->score))
		return BAD;
	r->mem = map_small(r->size);
	if (!r->mem)
		return BAD;
	fill(r->mem, r->size, r->seed);

	return set_fifo(r->fifo) ? GOOD : BAD;
}

static const struct victim_ops memory_ops = {
	&memory, region_swap_out, region_check
};

static const struct victim_ops next_ops = {
	&next_memory, stay_in_memory, region_check
};

/* Both, with @size of the victim's in swap. */
static inline bool candidates_start(const char *cgroup, size_t size)
{
	memory = (struct region){
		.size = size, .seed = 1, .cgroup = cgroup, .noise = true,
		.fifo = DYING_PRIORITY, .score = VICTIM_SCORE
	};
	next_memory = (struct region){
		.size = NEXT_SIZE, .seed = 2, .cgroup = cgroup,
		.fifo = DYING_PRIORITY, .score = NEXT_SCORE
	};

	return victim_start(&victim, &memory_ops) == GOOD &&
	       victim_start(&next, &next_ops) == GOOD;
}

static inline bool gone(const struct victim *v)
{
	struct pollfd fd = { .fd = v->pidfd, .events = POLLIN };

	return poll(&fd, 1, 0) == 1;
}

/**
 * struct need - memory that cannot be reclaimed, used from its begin on
 * @mem: where it is
 * @size: what there may be of it
 * @used: what there is
 */
struct need {
	char *mem;
	size_t size;
	size_t used;
};

static inline bool need_begin(struct need *need, size_t size)
{
	need->used = 0;
	need->size = size;
	need->mem = map(size, MAP_PRIVATE | MAP_NORESERVE);

	return need->mem && !madvise(need->mem, size, MADV_NOHUGEPAGE) &&
	       !madvise(need->mem, size, MADV_DONTFORK) &&
	       !mlock2(need->mem, size, MLOCK_ONFAULT);
}

static inline bool need_more(struct need *need, size_t size)
{
	if (need->size - need->used < size)
		return false;
	touch(need->mem + need->used, size / PAGE);
	need->used += size;
	hogs_feed();

	return true;
}

static inline bool need_until_gone(struct need *need, const struct victim *v)
{
	while (!gone(v)) {
		if (!need_more(need, 16 * PAGE))
			return false;
	}

	return true;
}

/*
 * Reclaim that finds something to swap out comes across what waits, and
 * releases it. Where there is nothing, it does not.
 */
static inline bool nothing_is_swapped(char *before, size_t size)
{
	return read_file(SWAPPINESS, before, size) &&
	       write_file(SWAPPINESS, "0");
}

/*
 * @least, and up to @most until somebody in need, which @flush counts, has
 * released what waits: what the OOM killer left, in lists of other CPUs, may be
 * used first.
 */
static inline bool need_until_released(struct need *need, size_t least,
				       size_t most, long flush)
{
	size_t end = need->used + most;

	if (!need_more(need, least))
		return false;
	while (need->used < end && figures().flush == flush) {
		if (!need_more(need, 16 * PAGE))
			return false;
	}

	return true;
}

/* Until there is too little for the victim, and then @least, up to @most. */
static inline void expect_one_victim(struct __test_metadata *_metadata,
				     struct need *need, size_t least,
				     size_t most)
{
	bool one, enough, none, all;
	long flush = figures().flush;

	ASSERT_FALSE(gone(&victim));
	ASSERT_TRUE(hogs_go());
	one = need_until_gone(need, &victim);
	enough = need_until_released(need, least, most, flush);
	none = !gone(&next);
	/* Before anybody else can lack it. */
	munmap(need->mem, need->size);
	all = hogs_rest();

	EXPECT_TRUE(all);
	ASSERT_TRUE(one);
	ASSERT_TRUE(enough);
	EXPECT_TRUE(none) {
		TH_LOG("a second victim after %zu MiB", need->used / MIB);
	}
	victim_end(&victim);
	EXPECT_TRUE(within(PATIENCE, all_released()));
	if (none)
		EXPECT_EQ(victim_check(&next), GOOD);
	victim_end(&next);
}

#endif /* _SELFTESTS_MEMREAP_SWAP_RELEASE_OOM_H */
