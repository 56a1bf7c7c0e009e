// SPDX-License-Identifier: GPL-2.0-only
/*
 * Are all mappings of a KSM page found?
 *
 * If a mapping is not found, the page can neither be migrated to another node
 * nor be swapped out. So these tests create mappings in all possible ways, and
 * then migrate the page.
 *
 * They hold for any kernel with KSM. Where stock 6.12 fails, the test says so.
 */
#define _GNU_SOURCE
#include <sys/uio.h>

#include "../kselftest_harness.h"
#include "world.h"

FIXTURE(ksm) {
	struct world world;
};

FIXTURE_SETUP(ksm)
{
	const char *missing = world_begin(&self->world, 2);

	if (missing)
		SKIP(return, "%s", missing);
}

FIXTURE_TEARDOWN_PARENT(ksm)
{
	world_end(_metadata, &self->world);
}

/* --- Moved by mremap(): the index is no longer that of the address --- */

/*
 * A merged page moves, is merged again where it is now, and is found there;
 * also in a child. Returns where it is: the third of four pages.
 */
static void move_and_find(struct __test_metadata *_metadata, char *from,
			  char *to, struct place *sibling)
{
	const unsigned long seed = 1;
	struct place before[] = { { SELF, from + 2 * PAGE }, *sibling };
	struct place after[] = { { SELF, to + 2 * PAGE }, *sibling };
	struct place forked[] = {
		after[0], *sibling, { 0, after[0].addr }, { 0, sibling->addr },
	};

	ASSERT_MERGES(before);
	ASSERT_EQ(mremap(from, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE |
			 MREMAP_FIXED, to), to);
	/* Else it would be at an address that KSM knows nothing of. */
	ASSERT_NE(page_at(&after[0]), page_at(&after[1]));
	ASSERT_MERGES(after);
	ASSERT_MIGRATES(after, seed);

	ASSERT_TRUE(start_mate(0));
	ASSERT_MIGRATES(forked, seed);
	ASSERT_EQ(ask(0, do_unmap, sibling->addr, PAGE), 1);
	ASSERT_MIGRATES(((struct place[]){ forked[0], forked[1], forked[2] }),
			seed);
}

static void move_by(struct __test_metadata *_metadata, long pages)
{
	char *area = reserve(64), *from = area + 32 * PAGE;
	struct place sibling = { SELF, map_region(1) };

	ASSERT_NE(area, NULL);
	ASSERT_NE(sibling.addr, NULL);
	ASSERT_EQ(map_fixed(from, 4, -1, 0), from);
	fill_region(from, 4, 2, 1);
	do_fill(sibling.addr, 1);
	move_and_find(_metadata, from, from + pages * (long)PAGE, &sibling);
}

TEST_F_TIMEOUT(ksm, moved_up, LIMIT)
{
	move_by(_metadata, 20);
}

TEST_F_TIMEOUT(ksm, moved_down, LIMIT)
{
	move_by(_metadata, -20);
}

/* Where KSM still lists a page at that address, of this or other content. */
static void move_onto_merged(struct __test_metadata *_metadata,
			     unsigned long old_seed)
{
	char *from = map_region(4), *to = map_region(4), *keep = map_region(2);
	struct place sibling = { SELF, keep };
	struct place old[] = { { SELF, to + 2 * PAGE }, { SELF, keep + PAGE } };

	ASSERT_NE(from, NULL);
	ASSERT_NE(to, NULL);
	ASSERT_NE(keep, NULL);
	fill_region(from, 4, 2, 1);
	fill_region(to, 4, 2, old_seed);
	do_fill(keep, 1);
	do_fill(keep + PAGE, old_seed);
	ASSERT_MERGES(old);
	move_and_find(_metadata, from, to, &sibling);

	/* What stayed alone of the old one is found as well. */
	ASSERT_MIGRATES(((struct place[]){ old[1] }), old_seed);
}

TEST_F_TIMEOUT(ksm, moved_onto_merged, LIMIT)
{
	move_onto_merged(_metadata, 2);
}

/* All is one page: before the move it is mapped three times. */
TEST_F_TIMEOUT(ksm, moved_onto_same, LIMIT)
{
	char *from = map_region(4), *to = map_region(4), *keep = map_region(1);
	struct place before[] = {
		{ SELF, from + 2 * PAGE }, { SELF, to + 2 * PAGE },
		{ SELF, keep },
	};
	struct place after[] = { { SELF, to + 2 * PAGE }, { SELF, keep } };

	ASSERT_NE(from, NULL);
	ASSERT_NE(to, NULL);
	ASSERT_NE(keep, NULL);
	fill_region(from, 4, 2, 1);
	fill_region(to, 4, 2, 1);
	do_fill(keep, 1);
	ASSERT_MERGES(before);
	ASSERT_EQ(mremap(from, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE |
			 MREMAP_FIXED, to), to);
	ASSERT_MERGES(after);
	ASSERT_MIGRATES(after, 1);
}

/* Without an anon_vma nothing holds a VMA to its old index. */
TEST_F_TIMEOUT(ksm, moved_before_first_fault, LIMIT)
{
	char *from = map_region(4), *to = reserve(4), *keep = map_region(1);
	struct place places[] = { { SELF, to + PAGE }, { SELF, keep } };

	ASSERT_NE(from, NULL);
	ASSERT_NE(to, NULL);
	ASSERT_NE(keep, NULL);
	ASSERT_EQ(mremap(from, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE |
			 MREMAP_FIXED, to), to);
	fill_region(to, 4, 1, 1);
	do_fill(keep, 1);
	ASSERT_MERGES(places);
	ASSERT_MIGRATES(places, 1);
}

/* Only the middle: what was one VMA has parts far from each other. */
TEST_F_TIMEOUT(ksm, part_moved, LIMIT)
{
	char *mem = map_region(7), *to = reserve(1);
	struct place places[] = {
		{ SELF, mem }, { SELF, to }, { SELF, mem + 6 * PAGE },
	};
	struct place forked[] = {
		places[0], places[1], places[2],
		{ 0, places[0].addr }, { 0, places[1].addr },
		{ 0, places[2].addr },
	};

	ASSERT_NE(mem, NULL);
	ASSERT_NE(to, NULL);
	fill_region(mem, 7, 0, 1);
	do_fill(mem + 3 * PAGE, 1);
	do_fill(mem + 6 * PAGE, 1);
	ASSERT_EQ(mremap(mem + 3 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE |
			 MREMAP_FIXED, to), to);
	/* Others at the old place, whose index is that of what moved away. */
	ASSERT_EQ(map_fixed(mem + 3 * PAGE, 1, -1, 0), mem + 3 * PAGE);
	do_fill(mem + 3 * PAGE, 2);
	ASSERT_MERGES(places);
	ASSERT_MIGRATES(places, 1);
	ASSERT_TRUE(start_mate(0));
	ASSERT_MIGRATES(forked, 1);
}

/*
 * Two VMAs of one index: what moved, and what was left behind and filled anew.
 * They share an anon_vma if only a part was moved.
 */
static void dontunmap(struct __test_metadata *_metadata, size_t first,
		      size_t pages)
{
	char *mem = map_region(6), *to = reserve(6), *keep = map_region(1);
	char *from = mem + first * PAGE;
	struct place places[] = {
		{ SELF, from + PAGE }, { SELF, to + PAGE }, { SELF, keep },
	};

	ASSERT_NE(mem, NULL);
	ASSERT_NE(to, NULL);
	ASSERT_NE(keep, NULL);
	fill_region(mem, 6, first + 1, 1);
	do_fill(keep, 1);
	ASSERT_MERGES(((struct place[]){ places[0], places[2] }));
	if (mremap(from, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE |
		   MREMAP_FIXED | MREMAP_DONTUNMAP, to) != to)
		SKIP(return, "no MREMAP_DONTUNMAP: %s", strerror(errno));
	ASSERT_EQ(pfn_at(0, from + PAGE), 0);
	do_fill(from + PAGE, 1);
	ASSERT_MERGES(places);
	ASSERT_MIGRATES(places, 1);
	ASSERT_TRUE(start_mate(0));
	ASSERT_MIGRATES(((struct place[]){
		places[0], places[1], places[2], { 0, places[0].addr },
		{ 0, places[1].addr }, { 0, places[2].addr },
	}), 1);
}

TEST_F_TIMEOUT(ksm, moved_and_kept, LIMIT)
{
	dontunmap(_metadata, 0, 6);
}

TEST_F_TIMEOUT(ksm, part_moved_and_kept, LIMIT)
{
	dontunmap(_metadata, 2, 3);
}

TEST_F_TIMEOUT(ksm, grown_and_shrunk, LIMIT)
{
	char *area = reserve(32), *mem = area + 4 * PAGE, *moved;
	char *keep = map_region(1);
	struct place old[] = { { SELF, mem + PAGE }, { SELF, keep } };
	struct place grown[] = { old[0], old[1], { SELF, mem + 5 * PAGE } };
	struct place places[2];

	ASSERT_NE(area, NULL);
	ASSERT_NE(keep, NULL);
	ASSERT_EQ(map_fixed(mem, 2, -1, 0), mem);
	fill_region(mem, 2, 1, 1);
	do_fill(keep, 1);
	ASSERT_MERGES(old);

	/* Where it is, it stays merged. */
	ASSERT_EQ(munmap(mem + 2 * PAGE, 4 * PAGE), 0);
	ASSERT_EQ(mremap(mem, 2 * PAGE, 6 * PAGE, 0), mem);
	ASSERT_MIGRATES(old, 1);
	fill_region(mem + 2 * PAGE, 4, 3, 1);
	ASSERT_MERGES(grown);
	ASSERT_MIGRATES(grown, 1);

	/* The page is the last one now. */
	ASSERT_EQ(mremap(mem, 6 * PAGE, 2 * PAGE, 0), mem);
	ASSERT_MIGRATES(old, 1);

	/* No room: to another place. */
	ASSERT_EQ(map_fixed(mem + 2 * PAGE, 1, -1, 0), mem + 2 * PAGE);
	do_fill(mem + 2 * PAGE, 3);
	moved = mremap(mem, 2 * PAGE, 6 * PAGE, MREMAP_MAYMOVE);
	ASSERT_NE(moved, MAP_FAILED);
	ASSERT_NE(moved, mem);
	places[0] = (struct place){ SELF, moved + PAGE };
	places[1] = old[1];
	ASSERT_MERGES(places);
	ASSERT_MIGRATES(places, 1);
}

/* --- fork(): children map what is listed for their parents only --- */

TEST_F_TIMEOUT(ksm, fork_before_merge, LIMIT)
{
	char *mem = map_region(4), *keep = map_region(1);
	struct place places[] = {
		{ SELF, mem + PAGE }, { SELF, keep },
		{ 0, mem + PAGE }, { 0, keep },
	};

	ASSERT_NE(mem, NULL);
	ASSERT_NE(keep, NULL);
	fill_region(mem, 4, 1, 1);
	do_fill(keep, 1);
	ASSERT_TRUE(start_mate(0));
	ASSERT_MERGES(places);
	ASSERT_MIGRATES(places, 1);
	/* By now ksmd has looked at the child as well. */
	ASSERT_TRUE(ksm_scan(3));
	ASSERT_MIGRATES(places, 1);
}

TEST_F_TIMEOUT(ksm, fork_after_merge, LIMIT)
{
	char *mem = map_region(4), *keep = map_region(1);
	struct place places[] = {
		{ SELF, mem + PAGE }, { SELF, keep },
		{ 0, mem + PAGE }, { 0, keep },
		{ 1, mem + PAGE }, { 1, keep },
	};

	ASSERT_NE(mem, NULL);
	ASSERT_NE(keep, NULL);
	fill_region(mem, 4, 1, 1);
	do_fill(keep, 1);
	ASSERT_MERGES(((struct place[]){ places[0], places[1] }));
	ASSERT_TRUE(start_mate(0));
	ASSERT_TRUE(start_mate(1));
	ASSERT_MIGRATES(places, 1);
	ASSERT_TRUE(ksm_scan(3));
	ASSERT_MIGRATES(places, 1);
}

TEST_F_TIMEOUT(ksm, grandchild, LIMIT)
{
	char *mem = map_region(4), *keep = map_region(1);
	struct place places[] = {
		{ SELF, mem + PAGE }, { SELF, keep },
		{ 1, mem + PAGE }, { 1, keep }, { 0, mem + PAGE }, { 0, keep },
	};

	ASSERT_NE(mem, NULL);
	ASSERT_NE(keep, NULL);
	fill_region(mem, 4, 1, 1);
	do_fill(keep, 1);
	ASSERT_MERGES(((struct place[]){ places[0], places[1] }));
	ASSERT_TRUE(start_mate(0));
	ASSERT_TRUE(start_mate_of(0, 1));
	ASSERT_MIGRATES(places, 1);

	/* Without the generation in between. */
	ASSERT_TRUE(end_mate(0));
	ASSERT_OK(migrate(places, 4, 1));
}

/* A child has a VMA for each of its parent's, but not the page in each. */
TEST_F_TIMEOUT(ksm, child_without_page, LIMIT)
{
	char *mem = map_region(5), *keep = map_region(1), *to = reserve(5);
	char *addr = mem + 2 * PAGE;
	struct place places[] = {
		{ SELF, addr }, { SELF, keep }, { 3, addr },
		{ 0, keep }, { 1, keep }, { 2, keep }, { 3, keep },
	};
	struct place own[] = { { 1, addr } };

	ASSERT_NE(mem, NULL);
	ASSERT_NE(keep, NULL);
	ASSERT_NE(to, NULL);
	fill_region(mem, 5, 2, 1);
	do_fill(keep, 1);
	ASSERT_MERGES(((struct place[]){ places[0], places[1] }));
	for (int i = 0; i < 4; i++)
		ASSERT_TRUE(start_mate(i));
	ASSERT_EQ(ask(0, do_unmap, addr, PAGE), 1);
	ASSERT_EQ(ask(1, do_fill, addr, 7), 1);
	ASSERT_EQ(ask(2, do_unmap, mem, 5 * PAGE), 1);
	ASSERT_MIGRATES(places, 1);
	ASSERT_OK(content_is(own, 1, 7));

	/* The last child lets go of it too. */
	ASSERT_EQ(ask(3, do_unmap, addr, PAGE), 1);
	ASSERT_MIGRATES(((struct place[]){
		places[0], places[1], places[3], places[4], places[5],
		places[6],
	}), 1);
}

/* KSM lists the pages of a process that is no more; its children have them. */
TEST_F_TIMEOUT(ksm, parent_gone, LIMIT)
{
	char *mem = map_region(4), *keep = map_region(1);
	struct place before[] = { { 0, mem + PAGE }, { 0, keep } };
	struct place after[] = {
		{ 1, mem + PAGE }, { 1, keep }, { 2, mem + PAGE }, { 2, keep },
	};

	ASSERT_NE(mem, NULL);
	ASSERT_NE(keep, NULL);
	ASSERT_TRUE(start_mate(0));
	for (int i = 0; i < 2; i++) {
		ASSERT_EQ(ask(0, do_fill, mem + i * PAGE, i), 1);
		ASSERT_EQ(ask(0, do_fill, keep, 1), 1);
	}
	ASSERT_MERGES(before);
	ASSERT_TRUE(start_mate_of(0, 1));
	ASSERT_TRUE(start_mate_of(1, 2));
	ASSERT_TRUE(end_mate(0));
	ASSERT_MIGRATES(after, 1);
	ASSERT_TRUE(ksm_scan(3));
	ASSERT_MIGRATES(after, 1);
}

/* --- VMAs that are split and merged around the page --- */

TEST_F_TIMEOUT(ksm, split_around, LIMIT)
{
	char *mem = map_region(9), *keep = map_region(1);
	struct place places[] = {
		{ SELF, mem + 4 * PAGE }, { SELF, keep }, { SELF, mem },
		{ SELF, mem + 8 * PAGE },
	};

	ASSERT_NE(mem, NULL);
	ASSERT_NE(keep, NULL);
	fill_region(mem, 9, 4, 1);
	/* The first and the last page of a VMA as well. */
	do_fill(mem, 1);
	do_fill(mem + 8 * PAGE, 1);
	do_fill(keep, 1);
	ASSERT_MERGES(places);
	ASSERT_MIGRATES(places, 1);

	/* One page behind it, one page before: a VMA of one page. */
	ASSERT_TRUE(protect(mem + 5 * PAGE, 1, PROT_READ));
	ASSERT_MIGRATES(places, 1);
	ASSERT_TRUE(protect(mem + 3 * PAGE, 1, PROT_READ));
	ASSERT_MIGRATES(places, 1);
	/* Exactly the page. */
	ASSERT_TRUE(protect(mem + 3 * PAGE, 3, PROT_READ | PROT_WRITE));
	ASSERT_TRUE(protect(mem + 4 * PAGE, 1, PROT_READ));
	ASSERT_MIGRATES(places, 1);
	/* All in one again. */
	ASSERT_TRUE(protect(mem, 9, PROT_READ | PROT_WRITE));
	ASSERT_MIGRATES(places, 1);
	/* First, then last in its VMA. */
	ASSERT_TRUE(protect(mem, 4, PROT_READ));
	ASSERT_MIGRATES(places, 1);
	ASSERT_TRUE(protect(mem, 9, PROT_READ));
	ASSERT_TRUE(protect(mem, 5, PROT_READ | PROT_WRITE));
	ASSERT_MIGRATES(places, 1);
	/* The neighbours gone, and with them two of the mappings. */
	ASSERT_EQ(munmap(mem, 4 * PAGE), 0);
	ASSERT_EQ(munmap(mem + 5 * PAGE, 4 * PAGE), 0);
	ASSERT_OK(migrate(places, 2, 1));
}

/* Merged while they were split; an index must not be one within a VMA. */
TEST_F_TIMEOUT(ksm, joined_after, LIMIT)
{
	char *mem = map_region(9), *keep = map_region(1);
	struct place places[] = {
		{ SELF, mem + 4 * PAGE }, { SELF, mem + 7 * PAGE },
		{ SELF, keep },
	};

	ASSERT_NE(mem, NULL);
	ASSERT_NE(keep, NULL);
	fill_region(mem, 9, 4, 1);
	do_fill(mem + 7 * PAGE, 1);
	do_fill(keep, 1);
	ASSERT_TRUE(protect(mem + 3 * PAGE, 3, PROT_READ));
	ASSERT_MERGES(places);
	ASSERT_MIGRATES(places, 1);
	ASSERT_TRUE(protect(mem + 3 * PAGE, 3, PROT_READ | PROT_WRITE));
	ASSERT_MIGRATES(places, 1);
	ASSERT_TRUE(start_mate(0));
	ASSERT_TRUE(protect(mem, 5, PROT_READ));
	ASSERT_MIGRATES(((struct place[]){
		places[0], places[1], places[2], { 0, places[0].addr },
		{ 0, places[1].addr }, { 0, places[2].addr },
	}), 1);
}

/* Private pages of a file: the index is one in the file. */
static void file_pages(struct __test_metadata *_metadata, off_t offset)
{
	char *area = reserve(64), *one = area + 2 * PAGE;
	char *two = area + 12 * PAGE, *to = area + 40 * PAGE;
	char *keep = map_region(1);
	struct place places[] = {
		{ SELF, one + PAGE }, { SELF, two + 2 * PAGE }, { SELF, keep },
	};
	struct place moved[] = { { SELF, to + PAGE }, places[1], places[2] };
	int fd = memfd_create("ksm", MFD_CLOEXEC);

	if (fd < 0)
		SKIP(return, "no memfd_create()");
	ASSERT_EQ(ftruncate(fd, offset + 16 * PAGE), 0);
	ASSERT_NE(area, NULL);
	ASSERT_NE(keep, NULL);
	/* Once more the same part of it, and another. */
	ASSERT_EQ(map_fixed(one, 4, fd, offset), one);
	ASSERT_EQ(map_fixed(two, 4, fd, offset + 2 * PAGE), two);
	fill_region(one, 4, 1, 1);
	fill_region(two, 4, 2, 1);
	do_fill(keep, 1);
	ASSERT_MERGES(places);
	ASSERT_MIGRATES(places, 1);
	ASSERT_TRUE(protect(one, 1, PROT_READ));
	ASSERT_MIGRATES(places, 1);
	ASSERT_EQ(mremap(one + PAGE, 3 * PAGE, 3 * PAGE, MREMAP_MAYMOVE |
			 MREMAP_FIXED, to + PAGE), to + PAGE);
	ASSERT_MERGES(moved);
	ASSERT_MIGRATES(moved, 1);
	ASSERT_TRUE(start_mate(0));
	ASSERT_MIGRATES(((struct place[]){
		moved[0], moved[1], moved[2], { 0, moved[0].addr },
		{ 0, moved[1].addr }, { 0, moved[2].addr },
	}), 1);
}

TEST_F_TIMEOUT(ksm, file_private, LIMIT)
{
	file_pages(_metadata, 1234 * PAGE);
}

/* As large as an index can be; every bit of it counts. */
TEST_F_TIMEOUT(ksm, file_private_far, LIMIT)
{
	if (sizeof(long) < 8)
		SKIP(return, "no such offsets on 32 bits");
	file_pages(_metadata, (1ULL << 63) - 1024 * PAGE);
}

TEST_F_TIMEOUT(ksm, stack_grows, LIMIT)
{
	char *area = reserve(1024), *stack = area + 1020 * PAGE;
	char *keep = map_region(1);
	struct place places[] = {
		{ SELF, stack + 2 * PAGE }, { SELF, keep },
		{ SELF, stack - 3 * PAGE },
	};

	ASSERT_NE(area, NULL);
	ASSERT_NE(keep, NULL);
	ASSERT_EQ(mmap(stack, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS | MAP_FIXED | MAP_GROWSDOWN, -1, 0), stack);
	ASSERT_EQ(madvise(stack, 4 * PAGE, MADV_MERGEABLE), 0);
	fill_region(stack, 4, 2, 1);
	do_fill(keep, 1);
	ASSERT_OK(merge(places, 2));
	/* Nothing may be mapped where it is to grow, nor close below. */
	ASSERT_EQ(munmap(area, 1020 * PAGE), 0);
	fill_region(stack - 3 * PAGE, 3, 0, 1);
	ASSERT_OK(migrate(places, 2, 1));
	ASSERT_MERGES(places);
	ASSERT_MIGRATES(places, 1);
}

/* --- Broken and merged again --- */

TEST_F_TIMEOUT(ksm, written, LIMIT)
{
	char *mem = map_region(4), *keep = map_region(2);
	struct place places[] = {
		{ SELF, keep }, { SELF, keep + PAGE }, { 0, keep },
		{ SELF, mem + PAGE },
	};
	struct place writer[] = { places[3] };

	ASSERT_NE(mem, NULL);
	ASSERT_NE(keep, NULL);
	fill_region(mem, 4, 1, 1);
	do_fill(keep, 1);
	do_fill(keep + PAGE, 1);
	ASSERT_TRUE(start_mate(0));
	ASSERT_MERGES(places);
	for (int i = 0; i < 3; i++) {
		/* Once without, once with ksmd having seen it. */
		do_fill(writer[0].addr, 2);
		if (i)
			ASSERT_TRUE(ksm_scan(i));
		ASSERT_NE(page_at(&places[3]), page_at(&places[0]));
		ASSERT_OK(migrate(places, 3, 1));
		ASSERT_OK(content_is(writer, 1, 2));
		do_fill(writer[0].addr, 1);
		ASSERT_MERGES(places);
		ASSERT_MIGRATES(places, 1);
	}
	/* A child has it from the writer, which then writes again. */
	ASSERT_TRUE(start_mate(1));
	do_fill(writer[0].addr, 2);
	ASSERT_MIGRATES(((struct place[]){
		places[0], places[1], places[2], { 1, writer[0].addr },
	}), 1);
}

static long do_merge_any(char *addr, unsigned long on)
{
	return !prctl(PR_SET_MEMORY_MERGE, on, 0, 0, 0);
}

TEST_F_TIMEOUT(ksm, unmerged, LIMIT)
{
	char *mem = map_region(4), *keep = map_region(2);
	struct place places[] = {
		{ SELF, keep }, { SELF, keep + PAGE }, { 0, keep },
		{ SELF, mem + PAGE }, { 0, mem + PAGE },
	};

	ASSERT_NE(mem, NULL);
	ASSERT_NE(keep, NULL);
	fill_region(mem, 4, 1, 1);
	do_fill(keep, 1);
	do_fill(keep + PAGE, 1);
	ASSERT_TRUE(start_mate(0));
	ASSERT_MERGES(places);

	/* Some of them, */
	ASSERT_EQ(ask(SELF, do_unmergeable, mem, 4 * PAGE), 1);
	ASSERT_EQ(ask(0, do_unmergeable, mem, 4 * PAGE), 1);
	ASSERT_NE(page_at(&places[3]), page_at(&places[0]));
	ASSERT_NE(page_at(&places[4]), page_at(&places[0]));
	ASSERT_OK(migrate(places, 3, 1));
	ASSERT_EQ(ask(SELF, do_mergeable, mem, 4 * PAGE), 1);
	ASSERT_EQ(ask(0, do_mergeable, mem, 4 * PAGE), 1);
	ASSERT_MERGES(places);
	ASSERT_MIGRATES(places, 1);

	/* and all. */
	ASSERT_TRUE(ksm_set("run", 2));
	ASSERT_NE(page_at(&places[1]), page_at(&places[0]));
	ASSERT_EQ(ksm_get("pages_shared"), 0);
	ASSERT_MERGES(places);
	ASSERT_MIGRATES(places, 1);
}

TEST_F_TIMEOUT(ksm, unmerged_by_prctl, LIMIT)
{
	char *mem = reserve(4), *keep = map_region(2);
	struct place places[] = {
		{ SELF, keep }, { SELF, keep + PAGE }, { 0, mem + PAGE },
	};

	ASSERT_NE(mem, NULL);
	ASSERT_NE(keep, NULL);
	ASSERT_TRUE(protect(mem, 4, PROT_READ | PROT_WRITE));
	do_fill(keep, 1);
	do_fill(keep + PAGE, 1);
	ASSERT_TRUE(start_mate(0));
	ASSERT_EQ(ask(0, do_fill, mem + PAGE, 1), 1);
	for (int i = 0; i < 2; i++) {
		if (ask(0, do_merge_any, NULL, 1) != 1)
			SKIP(return, "no PR_SET_MEMORY_MERGE");
		ASSERT_MERGES(places);
		ASSERT_MIGRATES(places, 1);
		ASSERT_EQ(ask(0, do_merge_any, NULL, 0), 1);
		ASSERT_NE(page_at(&places[2]), page_at(&places[0]));
		ASSERT_OK(migrate(places, 2, 1));
	}
}

/* --- Huge pages --- */

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif

#define HPAGE_PMD_SIZE	"/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"

/* Order: replace the pages by a huge one, as khugepaged does it, but now. */
static long do_collapse(char *addr, unsigned long size)
{
	int error = -1;

	madvise(addr, size, MADV_HUGEPAGE);
	/* Fails while somebody else holds one of them. */
	for (int tries = 0; tries < 100 && error; tries++) {
		error = madvise(addr, size, MADV_COLLAPSE);
		if (error && errno != EAGAIN && errno != EBUSY)
			break;
	}
	/* So that khugepaged does not do it again later. */
	madvise(addr, size, MADV_NOHUGEPAGE);

	return !error;
}

/* Has every page the content that fill_region() gave it? */
static long do_check_region(char *mem, unsigned long pages)
{
	for (size_t i = 1; i < pages; i++) {
		if (i != pages / 2 && !do_check(mem + i * PAGE,
						(unsigned long)mem + i))
			return 0;
	}

	return do_check(mem + pages / 2 * PAGE, 1);
}

static bool is_huge(int mate, char *mem, size_t pages)
{
	unsigned long first = pfn_at(pid_of(mate), mem);

	for (size_t i = 0; i < pages; i++) {
		if (pfn_at(pid_of(mate), mem + i * PAGE) != first + i)
			return false;
	}

	return first && first % pages == 0;
}

/*
 * A collapse copies the page, and takes away one of its mappings, without KSM,
 * which still lists it. The others are found, also those that a child has by what
 * is listed for the place. Then ksmd splits the huge page and merges again.
 */
TEST_F_TIMEOUT(ksm, collapsed, LIMIT)
{
	size_t size = read_number(HPAGE_PMD_SIZE, NULL);
	size_t pages = size / PAGE;
	char *area, *mem, *keep = map_region(1);
	struct place places[4];

	if (madvise(NULL, 0, MADV_COLLAPSE) || size > 4 * MIB)
		SKIP(return, "no huge pages of a fitting size");
	area = reserve(2 * pages);
	ASSERT_NE(area, NULL);
	ASSERT_NE(keep, NULL);
	mem = (char *)(((unsigned long)area + size - 1) & -size);
	ASSERT_EQ(map_fixed(mem, pages, -1, 0), mem);
	fill_region(mem, pages, pages / 2, 1);
	do_fill(keep, 1);
	places[0] = (struct place){ SELF, mem + pages / 2 * PAGE };
	places[1] = (struct place){ SELF, keep };
	places[2] = (struct place){ 0, places[0].addr };
	places[3] = (struct place){ 0, keep };
	ASSERT_OK(merge(places, 2));
	ASSERT_TRUE(start_mate(0));
	ASSERT_MIGRATES(places, 1);

	/* First where it is listed, then in the child, then there again. */
	for (int i = 0; i < 3; i++) {
		int mate = i == 1 ? 0 : SELF;
		struct place own[] = { places[mate == SELF ? 0 : 2] };
		struct place others[] = {
			places[1], places[3], places[mate == SELF ? 2 : 0],
		};

		/* At least one page must be writable. */
		ASSERT_EQ(ask(mate, do_fill, mem, 10 + i), 1);
		ASSERT_EQ(ask(mate, do_collapse, mem, size), 1);
		ASSERT_TRUE(is_huge(mate, mem, pages));
		ASSERT_EQ(ask(mate, do_check_region, mem, pages), 1);
		ASSERT_MIGRATES(others, 1);
		ASSERT_TRUE(is_huge(mate, mem, pages));

		/* Written to, it is no longer the same, nor are the others. */
		ASSERT_EQ(ask(mate, do_fill, own[0].addr, 2), 1);
		ASSERT_MIGRATES(others, 1);
		ASSERT_OK(content_is(own, 1, 2));
		ASSERT_EQ(ask(mate, do_fill, own[0].addr, 1), 1);

		ASSERT_MERGES(places);
		ASSERT_FALSE(is_huge(mate, mem, pages));
		ASSERT_MIGRATES(places, 1);
		ASSERT_EQ(ask(mate, do_check_region, mem, pages), 1);
	}
}

/* --- More than one page of a content --- */

#define NR_SHARERS	24

TEST_F_TIMEOUT(ksm, sharing_limit, LIMIT)
{
	char *mem = map_region(NR_SHARERS);
	struct place group[NR_SHARERS];
	unsigned long pfns[NR_SHARERS];
	unsigned int pages = 0;

	ASSERT_NE(mem, NULL);
	ASSERT_TRUE(ksm_set("max_page_sharing", 5));
	for (int i = 0; i < NR_SHARERS; i++)
		do_fill(mem + i * PAGE, 1);
	ASSERT_TRUE(ksm_scan(10));
	for (int i = 0; i < NR_SHARERS; i++)
		pfns[i] = pfn_at(0, mem + i * PAGE);
	for (int i = 0; i < NR_SHARERS; i++) {
		int nr = 0;

		/* Those that share one page; each time from the first. */
		for (int k = 0; k < NR_SHARERS && pfns[i]; k++) {
			if (pfns[k] != pfns[i])
				continue;
			group[nr++] = (struct place){ SELF, mem + k * PAGE };
			if (k > i)
				pfns[k] = 0;
		}
		if (nr < 2)
			continue;
		pages++;
		ASSERT_LE(nr, 5);
		ASSERT_OK(migrate(group, nr, 1));
	}
	/* All but what was left over in the end. */
	ASSERT_GE(pages, NR_SHARERS / 5);
}

/* A page that is migrated to another node belongs into another tree. */
TEST_F_TIMEOUT(ksm, tree_per_node, LIMIT)
{
	char *mem = map_region(3);
	struct place places[] = {
		{ SELF, mem }, { SELF, mem + PAGE }, { SELF, mem + 2 * PAGE },
		{ 0, mem }, { 0, mem + PAGE }, { 0, mem + 2 * PAGE },
	};
	void *pages[3];
	int nodes[3], status[3];

	ASSERT_NE(mem, NULL);
	ASSERT_TRUE(ksm_set("merge_across_nodes", 0));
	for (int i = 0; i < 3; i++) {
		do_fill(mem + i * PAGE, 1);
		pages[i] = mem + i * PAGE;
		nodes[i] = self->world.nodes[0];
	}
	ASSERT_GE(move_pages_all(0, 3, pages, nodes, status), 0);
	ASSERT_OK(merge(places, 3));
	ASSERT_TRUE(start_mate(0));
	for (int i = 0; i < 4; i++) {
		ASSERT_OK(migrate_once(places, 6, 1));
		ASSERT_TRUE(ksm_scan(2));
		ASSERT_IS_ONE(places);
	}
}

/* --- The age of pages that cannot be merged --- */

/*
 * Where a page is listed by KSM, its checksum and its age are out of use: what
 * is kept in their place must not be taken for them later. A page that looks
 * old is left alone for some scans; one that looks very old, for 255.
 */
static void stay_young(struct __test_metadata *_metadata,
		       bool (*unmerge)(char *page))
{
	/* Index 0xffff........: all ones where the age is, on little endian. */
	const off_t far = 0xffff0000ULL << 16;
	char *mem = reserve(6), *keep = map_region(2);
	struct place places[] = {
		{ SELF, keep }, { SELF, keep + PAGE }, { 0, mem + 2 * PAGE },
		{ SELF, mem + 2 * PAGE },
	};
	char *last = places[3].addr;
	int fd = memfd_create("ksm", MFD_CLOEXEC);
	long scans;

	if (ksm_get("smart_scan") < 0)
		SKIP(return, "no smart_scan");
	if (sizeof(long) < 8 || fd < 0)
		SKIP(return, "no files that large");
	ASSERT_TRUE(ksm_set("smart_scan", 1));
	ASSERT_NE(mem, NULL);
	ASSERT_NE(keep, NULL);
	ASSERT_EQ(ftruncate(fd, (far + 16) * PAGE), 0);
	ASSERT_EQ(map_fixed(mem + PAGE, 4, fd, far * PAGE), mem + PAGE);
	do_fill(keep, 1);
	do_fill(keep + PAGE, 1);
	do_fill(mem + 2 * PAGE, 1);
	ASSERT_MERGES(((struct place[]){ places[0], places[1], places[3] }));

	for (int i = 0; i < 2; i++) {
		/* The child has it by what is listed for its parent. */
		if (!i)
			ASSERT_TRUE(start_mate(0));
		ASSERT_TRUE(unmerge(last));
		do_fill(last, 2);
		ASSERT_NE(page_at(&places[3]), page_at(&places[0]));
		ASSERT_OK(migrate(places, 3, 1));
		ASSERT_TRUE(ksm_scan(1));
		ASSERT_OK(migrate(places, 3, 1));
		ASSERT_TRUE(ksm_scan(6));
		ASSERT_OK(migrate(places, 3, 1));

		ASSERT_EQ(ask(SELF, do_mergeable, last, PAGE), 1);
		do_fill(last, 1);
		scans = ksm_get("full_scans");
		/* Old pages are looked at in every ninth scan, twice. */
		ASSERT_MERGES(places);
		TH_LOG("merged after %ld scans", ksm_get("full_scans") - scans);
		ASSERT_MIGRATES(places, 1);
	}
}

static bool unmerge_by_write(char *page)
{
	return do_fill(page, 2);
}

static bool unmerge_by_madvise(char *page)
{
	return do_unmergeable(page, PAGE);
}

TEST_F_TIMEOUT(ksm, smart_scan_after_write, LIMIT)
{
	stay_young(_metadata, unmerge_by_write);
}

TEST_F_TIMEOUT(ksm, smart_scan_after_madvise, LIMIT)
{
	stay_young(_metadata, unmerge_by_madvise);
}

/* --- Swap --- */

FIXTURE(swap) {
	struct world world;
};

FIXTURE_SETUP(swap)
{
	const char *missing = world_begin(&self->world, 1);

	if (missing)
		SKIP(return, "%s", missing);
	missing = squeeze_begin(&self->world.squeeze, SWAP_SIZE);
	if (missing) {
		ksm_restore(&ksm_saved);
		SKIP(return, "%s", missing);
	}
}

FIXTURE_TEARDOWN_PARENT(swap)
{
	world_end(_metadata, &self->world);
}

/* Until none of them is in memory. One that is not found stays. */
static const char *swap_out(const struct place *places, int nr)
{
	int i;

	for (int tries = 0; tries < 100; tries++) {
		for (i = 0; i < nr; i++) {
			if (!swapped_out(pid_of(places[i].mate),
					 places[i].addr))
				break;
		}
		if (i == nr)
			return "";
		squeeze(&world->squeeze, 16 * MIB);
		usleep(1000);
	}

	return complaint("place %d of %d is not swapped out", i, nr);
}

#define ASSERT_SWAPS_OUT(places) \
	ASSERT_OK(swap_out(places, sizeof(places) / sizeof(struct place)))

/* Reclaim has to find all of them too. */
TEST_F_TIMEOUT(swap, all_out_and_in, LIMIT)
{
	char *mem = map_region(6), *to = reserve(6), *keep = map_region(2);
	struct place places[] = {
		{ SELF, to + PAGE }, { SELF, keep }, { SELF, keep + PAGE },
		{ 0, to + PAGE }, { 0, keep }, { 0, keep + PAGE },
		{ 1, to + PAGE }, { 1, keep }, { 1, keep + PAGE },
	};

	ASSERT_NE(mem, NULL);
	ASSERT_NE(to, NULL);
	ASSERT_NE(keep, NULL);
	fill_region(mem, 6, 1, 1);
	do_fill(keep, 1);
	do_fill(keep + PAGE, 1);
	ASSERT_EQ(mremap(mem, 6 * PAGE, 6 * PAGE, MREMAP_MAYMOVE |
			 MREMAP_FIXED, to), to);
	ASSERT_TRUE(protect(to + 2 * PAGE, 1, PROT_READ));
	ASSERT_TRUE(start_mate(0));
	ASSERT_OK(merge(places, 6));
	ASSERT_TRUE(start_mate(1));
	for (int i = 0; i < 2; i++) {
		ASSERT_SWAPS_OUT(places);
		ASSERT_OK(content_is(places, ARRAY_SIZE(places), 1));
		ASSERT_MERGES(places);
		if (self->world.nodes[0] != self->world.nodes[1])
			ASSERT_MIGRATES(places, 1);
	}
}

/*
 * mremap() unmerges the pages that it moves, but not one that is in swap. If the
 * page itself still exists it is mapped again as a KSM page, at an address that
 * KSM does not list; or that it lists for another VMA that was there before.
 */
static void swapped_moved(struct __test_metadata *_metadata, char *from,
			  char *to)
{
	char *keep = map_region(1);
	struct place before[] = {
		{ SELF, from }, { SELF, to }, { SELF, keep },
	};
	struct place after[] = { { SELF, to }, { SELF, keep } };
	struct iovec iov = { keep, PAGE };
	unsigned long pfn;
	int pipefd[2];

	if (world->nodes[0] == world->nodes[1])
		SKIP(return, "needs two nodes with memory: boot with numa=fake=2");
	ASSERT_NE(keep, NULL);
	ASSERT_EQ(pipe(pipefd), 0);
	do_fill(from, 1);
	do_fill(to, 1);
	do_fill(keep, 1);
	ASSERT_MERGES(before);
	pfn = pfn_at(0, keep);
	/* A reference: it can be unmapped, but not let go. */
	ASSERT_EQ(vmsplice(pipefd[1], &iov, 1, 0), PAGE);
	ASSERT_SWAPS_OUT(before);
	ASSERT_EQ(mremap(from, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to),
		  to);
	ASSERT_OK(content_is(after, 2, 1));
	ASSERT_IS_ONE(after);
	ASSERT_EQ(pfn_at(0, to), pfn);
	close(pipefd[0]);
	close(pipefd[1]);

	/* One look of ksmd is what KSM has promised at any time. */
	ASSERT_TRUE(ksm_scan(1));
	ASSERT_IS_ONE(after);
	ASSERT_MIGRATES(after, 1);
}

/* Nothing has been merged where the page goes to. */
TEST_F_TIMEOUT(swap, moved_to_new_place, LIMIT)
{
	char *from = map_region(1), *to = reserve(1), *keep = map_region(1);
	struct place before[] = { { SELF, from }, { SELF, keep } };
	struct place after[] = { { SELF, to }, { SELF, keep } };
	struct iovec iov = { keep, PAGE };
	int pipefd[2];

	if (world->nodes[0] == world->nodes[1])
		SKIP(return, "needs two nodes with memory: boot with numa=fake=2");
	ASSERT_NE(from, NULL);
	ASSERT_NE(to, NULL);
	ASSERT_NE(keep, NULL);
	ASSERT_EQ(pipe(pipefd), 0);
	do_fill(from, 1);
	do_fill(keep, 1);
	ASSERT_MERGES(before);
	ASSERT_EQ(vmsplice(pipefd[1], &iov, 1, 0), PAGE);
	ASSERT_SWAPS_OUT(before);
	ASSERT_EQ(mremap(from, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to),
		  to);
	ASSERT_OK(content_is(after, 2, 1));
	ASSERT_IS_ONE(after);
	close(pipefd[0]);
	close(pipefd[1]);
	ASSERT_TRUE(ksm_scan(1));
	ASSERT_MIGRATES(after, 1);
}

/* A place of the same anon_vma: another index, but stock asks for none. */
TEST_F_TIMEOUT(swap, moved_within_anon_vma, LIMIT)
{
	char *mem = map_region(9);

	ASSERT_NE(mem, NULL);
	fill_region(mem, 9, 0, 2);
	swapped_moved(_metadata, mem + 2 * PAGE, mem + 6 * PAGE);
}

/*
 * Fails on stock 6.12: it lists the page for this address already, so it changes
 * nothing, and still searches in the anon_vma of the VMA that was there before.
 */
TEST_F_TIMEOUT(swap, moved_to_other_anon_vma, LIMIT)
{
	char *from = map_region(1), *to = map_region(1);

	ASSERT_NE(from, NULL);
	ASSERT_NE(to, NULL);
	swapped_moved(_metadata, from, to);
}

/* Fails on stock 6.12, as above. Here not even the index is another one. */
TEST_F_TIMEOUT(swap, moved_to_same_index, LIMIT)
{
	char *area = reserve(5), *from = area + PAGE, *to = area + 3 * PAGE;
	int fd = memfd_create("ksm", MFD_CLOEXEC);

	if (fd < 0)
		SKIP(return, "no memfd_create()");
	ASSERT_NE(area, NULL);
	ASSERT_EQ(ftruncate(fd, PAGE), 0);
	ASSERT_EQ(map_fixed(from, 1, fd, 0), from);
	ASSERT_EQ(map_fixed(to, 1, fd, 0), to);
	swapped_moved(_metadata, from, to);
}

TEST_HARNESS_MAIN
