/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory runs out while waiting entries hold some of it and no worker runs: one
 * victim is killed, and no second one.
 */
#ifndef _SELFTESTS_MEMREAP_SWAP_OOM_H
#define _SELFTESTS_MEMREAP_SWAP_OOM_H

#include "swap_slots.h"
#include "swap_hogs.h"

#define SWAPPINESS	"/proc/sys/vm/swappiness"

/* oom_score_adj of the victim, and of the process that would be next. */
#define VICTIM_SCORE	1000
#define NEXT_SCORE	0
/* Above the test, which does not sleep: victims exit before it continues. */
#define DYING_PRIORITY	(TEST_PRIORITY + 5)
/* Memory of the process that would be next. */
#define NEXT_SIZE	(8 * MIB)

/* Not in a fixture: victims start as copies of the test. */
static struct region memory;
static struct region next_memory;
static struct victim victim;
static struct victim next;

static enum verdict stay_in_memory(void *arg)
{
	struct region *r = arg;

	if ((r->cgroup && !cgroup_enter(r->cgroup)) || !set_oom_score_adj(0, r->score))
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

/* Starts both, with @size of the victim in swap. */
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
	return pidfd_exits(v->pidfd, 0);
}

/**
 * struct mlocked - memory that cannot be reclaimed, used from its start on
 * @mem: its address
 * @size: mapped
 * @used: of these, the bytes in memory
 */
struct mlocked {
	char *mem;
	size_t size;
	size_t used;
};

static inline bool mlocked_map(struct mlocked *m, size_t size)
{
	m->used = 0;
	m->size = size;
	m->mem = map(size, MAP_PRIVATE | MAP_NORESERVE);

	if (!m->mem)
		return false;
	/* Fails in a kernel without huge pages. */
	madvise(m->mem, size, MADV_NOHUGEPAGE);

	return !madvise(m->mem, size, MADV_DONTFORK) &&
	       !mlock2(m->mem, size, MLOCK_ONFAULT);
}

static inline bool mlocked_grow(struct mlocked *m, size_t size)
{
	if (m->size - m->used < size)
		return false;
	touch(m->mem + m->used, size / PAGE);
	m->used += size;
	hogs_keep_alive();

	return true;
}

/* Uses at most @most: what a victim frees while it dies is there to be used. */
static inline bool mlocked_grow_until_gone(struct mlocked *m,
					   const struct victim *v, size_t most)
{
	unsigned long long end = now_ns() + PATIENCE * 1000000ULL;

	while (!gone(v)) {
		if (m->used + 16 * PAGE > most)
			usleep(1000);
		else if (!mlocked_grow(m, 16 * PAGE))
			return false;
		if (now_ns() > end)
			return false;
	}

	return true;
}

/* Reclaim that swaps out would release waiting entries. */
static inline bool disable_swapping(char *before, size_t size)
{
	return read_file(SWAPPINESS, before, size) &&
	       write_file(SWAPPINESS, "0");
}

/*
 * Grows by @least, and then by at most @most until nothing waits: memory left in
 * lists of other CPUs may be used first.
 */
static inline bool mlocked_grow_until_released(struct mlocked *m, size_t least,
					       size_t most)
{
	size_t end = m->used + most;

	if (!mlocked_grow(m, least))
		return false;
	while (m->used < end && swap_stats().waiting) {
		if (!mlocked_grow(m, 16 * PAGE))
			return false;
	}

	return true;
}

/*
 * Grows until the victim is gone, and then as the function above; @before: what
 * is free at the beginning, 0 if that is not known.
 */
static inline void expect_one_victim(struct __test_metadata *_metadata,
				     struct mlocked *m, size_t before,
				     size_t least, size_t most)
{
	size_t end = before ? before + least : SIZE_MAX;
	bool one, enough, none, all;

	ASSERT_FALSE(gone(&victim));
	ASSERT_TRUE(hogs_run());
	one = mlocked_grow_until_gone(m, &victim, end);
	if (before)
		least = end - m->used;
	enough = mlocked_grow_until_released(m, least, most);
	none = !gone(&next);
	/* Before another task runs out of memory. */
	munmap(m->mem, m->size);
	all = hogs_stop();

	EXPECT_TRUE(all);
	ASSERT_TRUE(one);
	ASSERT_TRUE(enough);
	EXPECT_TRUE(none) {
		TH_LOG("a second victim after %zu MiB", m->used / MIB);
	}
	victim_end(&victim);
	EXPECT_TRUE(within(PATIENCE, all_released()));
	if (none)
		EXPECT_EQ(victim_check(&next), GOOD);
	victim_end(&next);
}

#endif /* _SELFTESTS_MEMREAP_SWAP_OOM_H */
