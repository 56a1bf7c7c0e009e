// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the tracepoint memreap_ksm_rmap_walk says about the walks of a migration,
 * on kernels that have it.
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
		missing = "no tracepoint memreap_ksm_rmap_walk";
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
 * @nr: walks
 * @mapcount: after the last one
 * @mappings: of the first one
 * @vmas: maximum in a walk
 * @wide: walks with more than three VMAs per mapping
 */
struct walks {
	unsigned int nr;
	int mapcount;
	unsigned int mappings;
	unsigned int vmas;
	unsigned int wide;
};

#define WALK	"memreap_ksm_rmap_walk: pfn=0x%lx mapcount=%d mappings=%u vmas=%u"

static void read_walks(struct walks *walks, unsigned long page)
{
	char line[512];
	FILE *f;

	memset(walks, 0, sizeof(*walks));
	f = fopen(INSTANCE "/trace", "re");
	while (f && fgets(line, sizeof(line), f)) {
		char *at = strstr(line, "memreap_ksm_rmap_walk: ");
		unsigned int mappings, vmas;
		unsigned long pfn;
		int mapcount;

		if (!at || sscanf(at, WALK, &pfn, &mapcount, &mappings,
				  &vmas) != 4 || pfn != page)
			continue;
		if (!walks->nr++)
			walks->mappings = mappings;
		walks->mapcount = mapcount;
		walks->wide += vmas > 3 * mappings;
		if (vmas > walks->vmas)
			walks->vmas = vmas;
	}
	if (f)
		fclose(f);
}

/* Moves a page, and reads the events about it before and after the move. */
static const char *trace_migration(void *addr, struct walks *out,
				   struct walks *in)
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
	read_walks(out, from);
	read_walks(in, pfn_at(0, addr));

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
	ASSERT_OK(trace_migration(mem, &out, &in));
	/* It may take several attempts, but all see the same. */
	EXPECT_GE(out.nr, 1);
	EXPECT_EQ(out.mapcount, 0);
	EXPECT_EQ(out.mappings, NR_SAME);
	EXPECT_EQ(in.nr, 1);
	EXPECT_EQ(in.mapcount, NR_SAME);
	EXPECT_EQ(in.mappings, NR_SAME);
	EXPECT_EQ(out.wide + in.wide, 0) {
		TH_LOG("%u and %u VMAs", out.vmas, in.vmas);
	}
	ASSERT_IS_ONE(places);

	/* With the switch off, as many as before. */
	if (!switch_saved[0] || !write_file(SWITCH, "N"))
		SKIP(return, "no switch to go back to long walks");
	ASSERT_OK(trace_migration(mem, &out, &in));
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
	ASSERT_OK(trace_migration(keep, &out, &in));
	EXPECT_EQ(out.mappings, 3);
	EXPECT_EQ(in.mappings, 3);
	EXPECT_EQ(out.wide + in.wide, 0);
	ASSERT_OK(one_page(places, 3));

	ASSERT_TRUE(start_mate(0));
	ASSERT_OK(trace_migration(keep, &out, &in));
	EXPECT_EQ(out.mappings, 6);
	EXPECT_EQ(in.mappings, 6);
	ASSERT_IS_ONE(places);
}

TEST_HARNESS_MAIN
