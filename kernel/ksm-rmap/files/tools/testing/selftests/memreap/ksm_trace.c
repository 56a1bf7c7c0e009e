// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the memreap_ksm_rmap tracepoints say about the walks of a migration, on
 * kernels that have them.
 */
#define _GNU_SOURCE
#include "../kselftest_harness.h"
#include "world.h"

#define EVENTS		"memreap_ksm_rmap"

/* Pages, each in a VMA, all in one anon_vma; and identical ones of them. */
#define NR_VMAS		2000
#define NR_SAME		20

FIXTURE(trace) {
	struct world world;
};

static void __attribute__((constructor)) ksm_trace_begin(void)
{
	trace_begin(EVENTS);
}

FIXTURE_SETUP(trace)
{
	const char *missing;

	if (access(INSTANCE, F_OK))
		missing = "no memreap_ksm_rmap tracepoints";
	else
		missing = world_begin(&self->world, 2);
	if (missing)
		SKIP(return, "%s", missing);
}

FIXTURE_TEARDOWN_PARENT(trace)
{
	trace_enable(EVENTS, false);
	world_end(_metadata, &self->world);
}

/**
 * struct walks - what the events say about one page
 * @starts: walks that started
 * @ends: walks that ended
 * @other_kind: of both, those for another kind of page
 * @mapcount: when the first one started
 * @mappings: of the first one
 * @vmas: maximum in a walk
 * @locks: maximum in a walk
 * @wide: walks with more than three VMAs per mapping
 */
struct walks {
	unsigned int starts;
	unsigned int ends;
	unsigned int other_kind;
	int mapcount;
	unsigned int mappings;
	unsigned int vmas;
	unsigned int locks;
	unsigned int wide;
};

static void read_walks(struct walks *walks, unsigned long page,
		       const char *kind)
{
	char line[512];
	FILE *f;

	memset(walks, 0, sizeof(*walks));
	f = fopen(INSTANCE "/trace", "re");
	while (f && fgets(line, sizeof(line), f)) {
		unsigned int mappings, vmas, locks;
		char *at = strstr(line, "memreap_rmap_walk_");
		unsigned long pfn;
		char what[8];
		int mapcount;

		if (!at)
			continue;
		at += strlen("memreap_rmap_walk_");
		if (sscanf(at, "start: pfn=0x%lx kind=%7s mapcount=%d", &pfn,
			   what, &mapcount) == 3 && pfn == page) {
			if (!walks->starts++)
				walks->mapcount = mapcount;
			walks->other_kind += !!strcmp(what, kind);
		}
		if (sscanf(at, "end: pfn=0x%lx kind=%7s mappings=%u vmas=%u locks=%u",
			   &pfn, what, &mappings, &vmas, &locks) == 5 &&
		    pfn == page) {
			if (!walks->ends++)
				walks->mappings = mappings;
			walks->other_kind += !!strcmp(what, kind);
			walks->wide += vmas > 3 * mappings;
			if (vmas > walks->vmas)
				walks->vmas = vmas;
			if (locks > walks->locks)
				walks->locks = locks;
		}
	}
	if (f)
		fclose(f);
}

/* Moves a page, and reads the events about it before and after the move. */
static const char *trace_migration(void *addr, const char *kind,
				   struct walks *out, struct walks *in)
{
	int to = world->nodes[node_of(0, addr) == world->nodes[0]];
	unsigned long from = pfn_at(0, addr);
	int status = -EBUSY;

	trace_clear();
	if (!trace_enable(EVENTS, true))
		return complaint("cannot trace: %s", strerror(errno));
	if (move_pages_all(0, 1, &addr, &to, &status) < 0)
		return complaint("move_pages: %s", strerror(errno));
	if (!trace_enable(EVENTS, false))
		return complaint("still tracing: %s", strerror(errno));
	if (status != to)
		return complaint("not moved: %s", strerror(-status));
	read_walks(out, from, kind);
	read_walks(in, pfn_at(0, addr), kind);

	return "";
}

TEST_F_TIMEOUT(trace, few_vmas_of_many, LIMIT)
{
	struct place places[NR_SAME];
	struct walks out, in;
	char *mem = map_region(NR_VMAS);

	ASSERT_NE(mem, NULL);
	/* Creates the anon_vma, which all parts keep. */
	do_fill(mem, 1);
	for (int i = 1; i < NR_VMAS; i += 2)
		ASSERT_EQ(madvise(mem + i * PAGE, PAGE, MADV_DONTDUMP), 0);
	for (int i = 0; i < NR_SAME; i++) {
		places[i] = (struct place){
			SELF, mem + i * (NR_VMAS / NR_SAME) * PAGE
		};
		do_fill(places[i].addr, 1);
	}
	ASSERT_MERGES(places);

	if (switch_saved[0])
		write_file(SWITCH, "Y");
	ASSERT_OK(trace_migration(mem, "ksm", &out, &in));
	/* It may take several attempts, but all see the same. */
	EXPECT_GE(out.starts, 1);
	EXPECT_EQ(out.ends, out.starts);
	EXPECT_EQ(out.mapcount, NR_SAME);
	EXPECT_EQ(out.mappings, NR_SAME);
	EXPECT_EQ(in.starts, 1);
	EXPECT_EQ(in.ends, 1);
	EXPECT_EQ(in.mapcount, 0);
	EXPECT_EQ(in.mappings, NR_SAME);
	EXPECT_EQ(out.wide + in.wide, 0) {
		TH_LOG("%u and %u VMAs", out.vmas, in.vmas);
	}
	EXPECT_EQ(out.other_kind + in.other_kind, 0);
	EXPECT_GE(in.locks, 1);
	EXPECT_LE(in.locks, NR_SAME);
	ASSERT_IS_ONE(places);

	/* With the switch off, as many as before. */
	if (!switch_saved[0] || !write_file(SWITCH, "N"))
		SKIP(return, "no switch to go back to long walks");
	ASSERT_OK(trace_migration(mem, "ksm", &out, &in));
	EXPECT_EQ(out.mappings, NR_SAME);
	EXPECT_GE(out.vmas, NR_VMAS);
	EXPECT_EQ(in.mappings, NR_SAME);
	EXPECT_GE(in.vmas, NR_VMAS);
	ASSERT_IS_ONE(places);
	ASSERT_MIGRATES(places, 1);
}

/*
 * Two VMAs with the same index in the same anon_vma, the moved one and the one
 * left behind: each mapping is counted once, and only where it is.
 */
TEST_F_TIMEOUT(trace, same_index, LIMIT)
{
	char *mem = map_region(6), *to = reserve(3), *keep = map_region(1);
	struct place places[] = {
		{ SELF, mem + 2 * PAGE }, { SELF, to + PAGE }, { SELF, keep },
		{ 0, mem + 2 * PAGE }, { 0, to + PAGE }, { 0, keep },
	};
	struct walks out, in;

	ASSERT_NE(mem, NULL);
	ASSERT_NE(to, NULL);
	ASSERT_NE(keep, NULL);
	fill_region(mem, 6, 2, 1);
	do_fill(keep, 1);
	ASSERT_EQ(mremap(mem + PAGE, 3 * PAGE, 3 * PAGE, MREMAP_MAYMOVE |
			 MREMAP_FIXED | MREMAP_DONTUNMAP, to), to);
	do_fill(places[0].addr, 1);
	ASSERT_OK(merge(places, 3));
	ASSERT_OK(trace_migration(keep, "ksm", &out, &in));
	EXPECT_EQ(out.mappings, 3);
	EXPECT_EQ(in.mappings, 3);
	EXPECT_EQ(out.wide + in.wide, 0);
	/* There are two roots, each with a lock of its own. */
	EXPECT_GE(in.locks, 2);
	ASSERT_OK(one_page(places, 3));

	ASSERT_TRUE(start_mate(0));
	ASSERT_OK(trace_migration(keep, "ksm", &out, &in));
	EXPECT_EQ(out.mapcount, 6);
	EXPECT_EQ(out.mappings, 6);
	EXPECT_EQ(in.mappings, 6);
	ASSERT_IS_ONE(places);
}

TEST_F_TIMEOUT(trace, other_kinds, LIMIT)
{
	int fd = memfd_create("ksm", MFD_CLOEXEC);
	struct walks out, in;
	char *mem[3];

	ASSERT_GE(fd, 0);
	ASSERT_EQ(ftruncate(fd, PAGE), 0);
	mem[0] = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mem[1] = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	mem[2] = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	for (int i = 0; i < 3; i++) {
		ASSERT_NE(mem[i], MAP_FAILED);
		do_fill(mem[i], i);
	}
	ASSERT_TRUE(start_mate(0));
	ASSERT_EQ(ask(0, do_check, mem[0], 0), 1);

	ASSERT_OK(trace_migration(mem[0], "anon", &out, &in));
	EXPECT_GE(out.ends, 1);
	EXPECT_EQ(out.mappings, 2);
	EXPECT_EQ(in.mappings, 2);
	EXPECT_EQ(out.wide + in.wide, 0);
	EXPECT_EQ(out.other_kind + in.other_kind, 0);
	EXPECT_EQ(do_check(mem[0], 0), 1);

	/* Two in the test, and two VMAs without a page table in the child. */
	ASSERT_OK(trace_migration(mem[1], "file", &out, &in));
	EXPECT_GE(out.ends, 1);
	EXPECT_GE(out.mappings, 2);
	EXPECT_GE(in.mappings, 2);
	EXPECT_EQ(out.wide + in.wide, 0);
	EXPECT_EQ(out.other_kind + in.other_kind, 0);
	EXPECT_EQ(do_check(mem[1], 2), 1);
}

TEST_HARNESS_MAIN
