// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests for how the reapers of an address space share it.
 *
 * An address space is an array of spans here, an mm an address that is never
 * dereferenced: only the last test needs page tables and memory.
 */
#include <kunit/test.h>

#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/mman.h>
#include <linux/mmap_lock.h>
#include <linux/oom.h>
#include <linux/prandom.h>
#include <linux/sizes.h>
#include <linux/sort.h>
#include <linux/uaccess.h>

#include "reap.h"
#include "reap_session.h"

#define CHUNK		REAP_CHUNK_SIZE
#define MAX_SPANS	32
#define MAX_CHUNKS	1024
#define NR_CLAIMERS	4
#define HIGHEST		(ULONG_MAX & PAGE_MASK)

/* The tests distinguish these by address only. */
static char mm_places[REAP_MAX_SESSIONS + 2];
#define fake_mm(i)	((struct mm_struct *)&mm_places[i])

/**
 * struct space - an address space
 * @nr: entries in @spans
 * @spans: reapable memory, from the bottom to the top
 */
struct space {
	unsigned int nr;
	struct reap_span spans[MAX_SPANS];
};

static bool space_below(void *arg, unsigned long top, struct reap_span *span)
{
	const struct space *space = arg;

	for (int i = (int)space->nr - 1; i >= 0; i--) {
		if (space->spans[i].start >= top)
			continue;
		span->start = space->spans[i].start;
		span->end = min(space->spans[i].end, top);
		return true;
	}

	return false;
}

/* How much of @space lies within @within. */
static unsigned long space_size(const struct space *space,
				const struct reap_span *within)
{
	unsigned long size = 0;

	for (unsigned int i = 0; i < space->nr; i++) {
		unsigned long start = max(space->spans[i].start, within->start);
		unsigned long end = min(space->spans[i].end, within->end);

		if (start < end)
			size += end - start;
	}

	return size;
}

/*
 * @chunks, in the order of the claims, must go down, stay between multiples of
 * REAP_CHUNK_SIZE, skip gaps at the top, and hold all of @space.
 * As no two overlap, they hold no byte twice when the sizes add up.
 */
static void check_chunks(struct kunit *test, const struct space *space,
			 const struct reap_span *chunks, unsigned int nr)
{
	const struct reap_span all = { 0, ULONG_MAX };
	unsigned long above = ULONG_MAX;
	unsigned long size = 0;

	for (unsigned int i = 0; i < nr; i++) {
		struct reap_span last_page = {
			chunks[i].end - PAGE_SIZE, chunks[i].end
		};

		KUNIT_ASSERT_LT(test, chunks[i].start, chunks[i].end);
		KUNIT_ASSERT_LE(test, chunks[i].end, above);
		KUNIT_ASSERT_EQ(test, chunks[i].start,
				ALIGN_DOWN(chunks[i].end - 1, CHUNK));
		KUNIT_ASSERT_EQ(test, space_size(space, &last_page), PAGE_SIZE);
		size += space_size(space, &chunks[i]);
		above = chunks[i].start;
	}
	KUNIT_EXPECT_EQ(test, size, space_size(space, &all));
}

/* Claims what is left. Returns how many chunks that was. */
static unsigned int claim_all(struct kunit *test, struct reap_session *session,
			      struct space *space, struct reap_span *chunks)
{
	struct reap_span none;
	unsigned int nr = 0;

	while (nr < MAX_CHUNKS &&
	       reap_session_claim(session, space_below, space, &chunks[nr]))
		nr++;

	/* A finished session stays finished. */
	KUNIT_EXPECT_FALSE(test, reap_session_claim(session, space_below, space,
						    &none));
	return nr;
}

/* What a reaper does once it has nothing left to claim. */
static bool quit(struct reap_session *session)
{
	reap_session_finish(session);

	return reap_session_leave(session);
}

static struct reap_span *alloc_chunks(struct kunit *test)
{
	struct reap_span *chunks;

	chunks = kunit_kcalloc(test, MAX_CHUNKS, sizeof(*chunks), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, chunks);

	return chunks;
}

struct claim_case {
	const char *name;
	unsigned int nr_chunks;
	struct space space;
};

#define SPANS(...)						\
	{							\
		.nr = sizeof((struct reap_span[]){ __VA_ARGS__ }) / \
		      sizeof(struct reap_span),			\
		.spans = { __VA_ARGS__ },			\
	}

static const struct claim_case claim_cases[] = {
	{ "empty", 0, { 0 } },
	{ "lowest page", 1, SPANS({ 0, PAGE_SIZE }) },
	{ "highest page", 1, SPANS({ HIGHEST - PAGE_SIZE, HIGHEST }) },
	{ "lowest and highest chunk", 2,
	  SPANS({ 0, CHUNK }, { HIGHEST & ~(CHUNK - 1), HIGHEST }) },
	{ "one aligned chunk", 1, SPANS({ 4 * CHUNK, 5 * CHUNK }) },
	{ "a page on each side of a boundary", 2,
	  SPANS({ 4 * CHUNK - PAGE_SIZE, 4 * CHUNK + PAGE_SIZE }) },
	{ "one long span", 9,
	  SPANS({ 4 * CHUNK + PAGE_SIZE, 13 * CHUNK - PAGE_SIZE }) },
	{ "from the very bottom", 3, SPANS({ 0, 2 * CHUNK + PAGE_SIZE }) },
	{ "several spans in a chunk", 1,
	  SPANS({ CHUNK, CHUNK + PAGE_SIZE },
		{ CHUNK + PMD_SIZE, CHUNK + 2 * PMD_SIZE },
		{ 2 * CHUNK - PAGE_SIZE, 2 * CHUNK }) },
	{ "span after span without a gap", 2,
	  SPANS({ CHUNK, CHUNK + PMD_SIZE },
		{ CHUNK + PMD_SIZE, 2 * CHUNK },
		{ 2 * CHUNK, 2 * CHUNK + PMD_SIZE }) },
	{ "large gaps", 4,
	  SPANS({ PMD_SIZE, PMD_SIZE + PAGE_SIZE },
		{ 1000 * CHUNK - PAGE_SIZE, 1001 * CHUNK },
		{ HIGHEST - 4 * CHUNK - PMD_SIZE, HIGHEST - 4 * CHUNK }) },
};

static void claim_case_desc(const struct claim_case *c, char *desc)
{
	strscpy(desc, c->name, KUNIT_PARAM_DESC_SIZE);
}

KUNIT_ARRAY_PARAM(claim, claim_cases, claim_case_desc);

static void reap_test_claim(struct kunit *test)
{
	const struct claim_case *c = test->param_value;
	struct reap_span *chunks = alloc_chunks(test);
	struct space space = c->space;
	struct reap_session own, *session;
	unsigned int nr;

	session = reap_session_join(fake_mm(0), &own);
	nr = claim_all(test, session, &space, chunks);
	KUNIT_EXPECT_TRUE(test, quit(session));

	KUNIT_EXPECT_EQ(test, nr, c->nr_chunks);
	check_chunks(test, &space, chunks, nr);
}

static void random_space(struct rnd_state *rnd, struct space *space)
{
	unsigned long end = 0;

	space->nr = prandom_u32_state(rnd) % (MAX_SPANS + 1);
	for (unsigned int i = 0; i < space->nr; i++) {
		/* Small and large gaps, none at all, and the same for sizes. */
		unsigned int gap = 1 << (prandom_u32_state(rnd) % 16);
		unsigned int size = 1 << (prandom_u32_state(rnd) % 16);

		end += (prandom_u32_state(rnd) % gap) * PAGE_SIZE;
		space->spans[i].start = end;
		end += (1 + prandom_u32_state(rnd) % size) * PAGE_SIZE;
		space->spans[i].end = end;
	}
}

static void reap_test_claim_random(struct kunit *test)
{
	struct reap_span *chunks = alloc_chunks(test);
	struct rnd_state rnd;

	prandom_seed_state(&rnd, 1);
	for (int i = 0; i < 500; i++) {
		struct reap_session own, *session;
		struct space space;
		unsigned int nr;

		random_space(&rnd, &space);
		session = reap_session_join(fake_mm(0), &own);
		nr = claim_all(test, session, &space, chunks);
		quit(session);
		check_chunks(test, &space, chunks, nr);
	}
}

/**
 * struct overtaken - a claim in whose middle others claim
 * @space: what is claimed
 * @session: where the others claim
 * @times: how many claims still come in between
 * @chunks: all that was claimed
 * @nr: entries in @chunks
 */
struct overtaken {
	struct space *space;
	struct reap_session *session;
	unsigned int times;
	struct reap_span *chunks;
	unsigned int nr;
};

static bool overtaken_below(void *arg, unsigned long top,
			    struct reap_span *span)
{
	struct overtaken *o = arg;
	bool found = space_below(o->space, top, span);

	/* Between the search and the claim. */
	if (o->times) {
		o->times--;
		if (reap_session_claim(o->session, space_below, o->space,
				       &o->chunks[o->nr]))
			o->nr++;
	}

	return found;
}

static void reap_test_claim_overtaken(struct kunit *test)
{
	struct space space = SPANS({ 0, PMD_SIZE }, { 3 * CHUNK, 20 * CHUNK });
	struct reap_session own, *session;
	struct overtaken o = {
		.space = &space,
		.chunks = alloc_chunks(test),
	};
	struct reap_span chunk;
	bool found;

	session = reap_session_join(fake_mm(0), &own);
	o.session = session;
	do {
		o.times = o.nr % 3;
		found = reap_session_claim(session, overtaken_below, &o,
					   &chunk);
		if (found)
			o.chunks[o.nr++] = chunk;
	} while (found && o.nr < MAX_CHUNKS / 2);
	quit(session);

	KUNIT_EXPECT_EQ(test, o.nr, 18);
	check_chunks(test, &space, o.chunks, o.nr);
}

static void reap_test_join(struct kunit *test)
{
	struct space space = SPANS({ CHUNK, 8 * CHUNK });
	struct reap_session *first, *second, *other;
	struct reap_session own[3];
	struct reap_span chunk;

	first = reap_session_join(fake_mm(0), &own[0]);
	KUNIT_EXPECT_TRUE(test, reap_session_claim(first, space_below, &space,
						   &chunk));
	KUNIT_EXPECT_EQ(test, chunk.end, 8 * CHUNK);

	/* A reaper that joins continues where the others are, in this mm only. */
	second = reap_session_join(fake_mm(0), &own[1]);
	KUNIT_EXPECT_PTR_EQ(test, first, second);
	other = reap_session_join(fake_mm(1), &own[2]);
	KUNIT_EXPECT_PTR_NE(test, first, other);
	KUNIT_EXPECT_TRUE(test, reap_session_claim(second, space_below, &space,
						   &chunk));
	KUNIT_EXPECT_EQ(test, chunk.end, 7 * CHUNK);
	KUNIT_EXPECT_TRUE(test, reap_session_claim(other, space_below, &space,
						   &chunk));
	KUNIT_EXPECT_EQ(test, chunk.end, 8 * CHUNK);

	/* The session lasts until the last one leaves... */
	KUNIT_EXPECT_TRUE(test, quit(first));
	first = reap_session_join(fake_mm(0), &own[0]);
	KUNIT_EXPECT_PTR_EQ(test, first, second);
	KUNIT_EXPECT_TRUE(test, reap_session_claim(first, space_below, &space,
						   &chunk));
	KUNIT_EXPECT_EQ(test, chunk.end, 6 * CHUNK);
	KUNIT_EXPECT_TRUE(test, quit(first));
	KUNIT_EXPECT_TRUE(test, quit(second));

	/* ...and the next one starts from the top again. */
	first = reap_session_join(fake_mm(0), &own[0]);
	KUNIT_EXPECT_TRUE(test, reap_session_claim(first, space_below, &space,
						   &chunk));
	KUNIT_EXPECT_EQ(test, chunk.end, 8 * CHUNK);
	KUNIT_EXPECT_TRUE(test, quit(first));
	KUNIT_EXPECT_TRUE(test, quit(other));
}

static void reap_test_table_full(struct kunit *test)
{
	struct space space = SPANS({ CHUNK, 3 * CHUNK });
	struct reap_session *sessions[REAP_MAX_SESSIONS];
	struct reap_span *chunks = alloc_chunks(test);
	struct reap_session own, *alone, *again;
	unsigned int nr;

	for (int i = 0; i < REAP_MAX_SESSIONS; i++) {
		sessions[i] = reap_session_join(fake_mm(i), &own);
		KUNIT_EXPECT_PTR_NE(test, sessions[i], &own);
		for (int k = 0; k < i; k++)
			KUNIT_EXPECT_PTR_NE(test, sessions[i], sessions[k]);
	}

	/* Those in the table can still be joined, another works alone. */
	again = reap_session_join(fake_mm(3), &own);
	KUNIT_EXPECT_PTR_EQ(test, again, sessions[3]);
	quit(again);
	alone = reap_session_join(fake_mm(REAP_MAX_SESSIONS), &own);
	KUNIT_EXPECT_PTR_EQ(test, alone, &own);

	KUNIT_EXPECT_FALSE(test, reap_session_finished(alone));
	nr = claim_all(test, alone, &space, chunks);
	check_chunks(test, &space, chunks, nr);
	reap_session_finish(alone);
	KUNIT_EXPECT_TRUE(test, reap_session_finished(alone));
	KUNIT_EXPECT_TRUE(test, reap_session_leave(alone));

	/* A slot is free again once its last user has left. */
	quit(sessions[5]);
	again = reap_session_join(fake_mm(REAP_MAX_SESSIONS + 1), &own);
	KUNIT_EXPECT_PTR_EQ(test, again, sessions[5]);
	sessions[5] = again;

	for (int i = 0; i < REAP_MAX_SESSIONS; i++)
		KUNIT_EXPECT_TRUE(test, quit(sessions[i]));
}

static void reap_test_finished(struct kunit *test)
{
	struct reap_session *first, *second;
	struct reap_session own[2];

	first = reap_session_join(fake_mm(0), &own[0]);
	KUNIT_EXPECT_FALSE(test, reap_session_finished(first));
	second = reap_session_join(fake_mm(0), &own[1]);
	KUNIT_ASSERT_PTR_EQ(test, first, second);

	reap_session_finish(first);
	KUNIT_EXPECT_FALSE(test, reap_session_finished(first));
	reap_session_finish(second);
	KUNIT_EXPECT_TRUE(test, reap_session_finished(first));
	KUNIT_EXPECT_TRUE(test, reap_session_leave(second));
	KUNIT_EXPECT_TRUE(test, reap_session_finished(first));

	/* A late reaper finds nothing, but counts until it has looked. */
	second = reap_session_join(fake_mm(0), &own[1]);
	KUNIT_ASSERT_PTR_EQ(test, first, second);
	KUNIT_EXPECT_FALSE(test, reap_session_finished(first));
	KUNIT_EXPECT_TRUE(test, quit(second));
	KUNIT_EXPECT_TRUE(test, reap_session_finished(first));
	KUNIT_EXPECT_TRUE(test, reap_session_leave(first));
}

static void reap_test_alone(struct kunit *test)
{
	struct space space = SPANS({ CHUNK, 8 * CHUNK });
	struct reap_span *chunks = alloc_chunks(test);
	struct reap_session *shared, *alone;
	struct reap_session own[2];
	struct reap_span chunk;
	unsigned int nr;

	/* Another reaper has claimed a part, and stalls. */
	shared = reap_session_join(fake_mm(0), &own[0]);
	KUNIT_EXPECT_TRUE(test, reap_session_claim(shared, space_below, &space,
						   &chunk));

	/* A reaper alone walks all of it, and takes nothing from others. */
	alone = reap_session_alone(fake_mm(0), &own[1]);
	KUNIT_EXPECT_PTR_NE(test, alone, shared);
	nr = claim_all(test, alone, &space, chunks);
	KUNIT_EXPECT_EQ(test, nr, 7);
	check_chunks(test, &space, chunks, nr);
	KUNIT_EXPECT_TRUE(test, quit(alone));
	KUNIT_EXPECT_FALSE(test, reap_session_finished(shared));
	KUNIT_EXPECT_EQ(test, claim_all(test, shared, &space, chunks), 6);
	KUNIT_EXPECT_TRUE(test, quit(shared));
}

static void reap_test_failed(struct kunit *test)
{
	struct space space = SPANS({ CHUNK, 8 * CHUNK });
	struct reap_session *sessions[REAP_MAX_SESSIONS];
	struct reap_span *chunks = alloc_chunks(test);
	struct reap_session *first, *second, *other;
	struct reap_session own[3];
	unsigned int nr;

	first = reap_session_join(fake_mm(0), &own[0]);
	second = reap_session_join(fake_mm(0), &own[1]);
	other = reap_session_join(fake_mm(1), &own[2]);
	KUNIT_ASSERT_PTR_EQ(test, first, second);

	/* A part that one reaper misses is missed by the session. */
	nr = claim_all(test, first, &space, chunks);
	WRITE_ONCE(first->failed, true);
	KUNIT_EXPECT_FALSE(test, quit(second));

	/* A retry walks all of it again, though one has not left yet. */
	second = reap_session_join(fake_mm(0), &own[1]);
	KUNIT_EXPECT_PTR_NE(test, first, second);
	KUNIT_EXPECT_EQ(test, claim_all(test, second, &space, chunks), nr);
	check_chunks(test, &space, chunks, nr);
	KUNIT_EXPECT_FALSE(test, quit(first));
	KUNIT_EXPECT_TRUE(test, quit(second));
	KUNIT_EXPECT_TRUE(test, quit(other));

	/* No failure outlives its session. */
	for (int i = 0; i < REAP_MAX_SESSIONS; i++)
		sessions[i] = reap_session_join(fake_mm(i), &own[0]);
	for (int i = 0; i < REAP_MAX_SESSIONS; i++)
		KUNIT_EXPECT_TRUE(test, quit(sessions[i]));
}

/**
 * struct claimer - a kthread that claims what it can get
 * @session: the one it should get to
 * @space: what is claimed
 * @go: for a simultaneous start
 * @done: the thread no longer uses the test's data
 * @chunks: what it got, in that order
 * @nr: entries in @chunks
 * @met: it got to @session
 * @waited: it saw the session finished afterwards
 */
struct claimer {
	struct reap_session *session;
	struct space *space;
	struct completion *go;
	struct completion done;
	struct reap_span *chunks;
	unsigned int nr;
	bool met;
	bool waited;
};

static bool slow_below(void *arg, unsigned long top, struct reap_span *span)
{
	struct claimer *c = arg;
	bool found = space_below(c->space, top, span);

	/* Lets others run between search and claim, also with one CPU. */
	if (c->nr % 16 == 0)
		usleep_range(1, 20);
	else if (c->nr % 4 == 0)
		udelay(2);

	return found;
}

static int claimer_fn(void *arg)
{
	struct reap_session own, *session;
	struct claimer *c = arg;

	wait_for_completion(c->go);
	session = reap_session_join(fake_mm(0), &own);
	c->met = session == c->session;
	while (c->nr < MAX_CHUNKS &&
	       reap_session_claim(session, slow_below, c, &c->chunks[c->nr]))
		c->nr++;
	reap_session_finish(session);
	c->waited = wait_event_timeout(session->idle,
				       reap_session_finished(session), 20 * HZ);
	reap_session_leave(session);
	complete(&c->done);

	return 0;
}

/* From the top to the bottom. */
static int cmp_chunks(const void *a, const void *b)
{
	const struct reap_span *x = a, *y = b;

	return x->end < y->end ? 1 : x->end > y->end ? -1 : 0;
}

static void reap_test_concurrent(struct kunit *test)
{
	struct space space = SPANS({ PAGE_SIZE, 300 * CHUNK },
				   { 400 * CHUNK, 700 * CHUNK },
				   { 999 * CHUNK + PMD_SIZE, 1000 * CHUNK });
	struct reap_span *chunks = alloc_chunks(test);
	struct claimer claimers[NR_CLAIMERS] = {};
	struct reap_session own, *session;
	unsigned int started = 0;
	unsigned int nr = 0;
	struct completion go;

	init_completion(&go);
	/* Keeps the session until the last claimer has finished. */
	session = reap_session_join(fake_mm(0), &own);
	reap_session_finish(session);
	for (int i = 0; i < NR_CLAIMERS; i++) {
		claimers[i].session = session;
		claimers[i].space = &space;
		claimers[i].go = &go;
		claimers[i].chunks = alloc_chunks(test);
		init_completion(&claimers[i].done);
	}

	/* No assertion until all have finished: it would free what they use. */
	while (started < NR_CLAIMERS &&
	       !IS_ERR(kthread_run(claimer_fn, &claimers[started],
				   "reap_kunit/%u", started)))
		started++;
	complete_all(&go);
	for (unsigned int i = 0; i < started; i++)
		wait_for_completion(&claimers[i].done);
	reap_session_leave(session);

	KUNIT_ASSERT_EQ(test, started, NR_CLAIMERS);
	for (int i = 0; i < NR_CLAIMERS; i++) {
		struct claimer *c = &claimers[i];

		KUNIT_EXPECT_TRUE(test, c->met);
		KUNIT_EXPECT_TRUE(test, c->waited);
		for (unsigned int k = 1; k < c->nr; k++)
			KUNIT_EXPECT_LE(test, c->chunks[k].end,
					c->chunks[k - 1].start);
		KUNIT_ASSERT_LE(test, nr + c->nr, MAX_CHUNKS);
		memcpy(&chunks[nr], c->chunks, c->nr * sizeof(*chunks));
		nr += c->nr;
		kunit_info(test, "claimer %d: %u chunks\n", i, c->nr);
	}
	KUNIT_EXPECT_EQ(test, nr, 601);
	sort(chunks, nr, sizeof(*chunks), cmp_chunks, NULL);
	check_chunks(test, &space, chunks, nr);
}

/*
 * The OOM reaper also sets MMF_OOM_SKIP when it gives up, while others reap: they
 * have to continue.
 */
static void reap_test_skip_is_not_exit(struct kunit *test)
{
	static const unsigned long size = 2 * REAP_CHUNK_SIZE + PMD_SIZE;
	static const unsigned long pages = 2 * 16 + 1;
	unsigned long addr, freed = 0;
	struct mm_struct *mm;
	bool locked = true;

	/* The test gets an address space for this. */
	addr = kunit_vm_mmap(test, NULL, 0, size, PROT_READ | PROT_WRITE,
			     MAP_ANONYMOUS | MAP_PRIVATE | MAP_NORESERVE, 0);
	KUNIT_ASSERT_FALSE(test, IS_ERR_VALUE(addr));
	KUNIT_ASSERT_NE(test, addr, 0);
	mm = current->mm;
	/* A page in each page table. */
	for (unsigned long i = 0; i < pages; i++)
		KUNIT_ASSERT_EQ(test, put_user(1, (int __user *)(addr + i * PMD_SIZE)), 0);
	KUNIT_ASSERT_EQ(test, get_mm_counter_sum(mm, MM_ANONPAGES), pages);

	set_bit(MMF_OOM_SKIP, &mm->flags);
	mmap_read_lock(mm);
	KUNIT_EXPECT_TRUE(test, memreap_reap_mm(mm, REAP_MRELEASE, &locked,
						&freed, NULL));
	if (locked)
		mmap_read_unlock(mm);

	KUNIT_EXPECT_EQ(test, get_mm_counter_sum(mm, MM_ANONPAGES), 0);
	KUNIT_EXPECT_EQ(test, freed, pages);
}

static struct kunit_case reap_test_cases[] = {
	KUNIT_CASE_PARAM(reap_test_claim, claim_gen_params),
	KUNIT_CASE(reap_test_claim_random),
	KUNIT_CASE(reap_test_claim_overtaken),
	KUNIT_CASE(reap_test_join),
	KUNIT_CASE(reap_test_table_full),
	KUNIT_CASE(reap_test_finished),
	KUNIT_CASE(reap_test_alone),
	KUNIT_CASE(reap_test_failed),
	KUNIT_CASE(reap_test_concurrent),
	KUNIT_CASE(reap_test_skip_is_not_exit),
	{}
};

static struct kunit_suite reap_test_suite = {
	.name = "memreap_reap",
	.test_cases = reap_test_cases,
};

kunit_test_suite(reap_test_suite);

MODULE_DESCRIPTION("KUnit tests for the reapers' sharing of an address space");
MODULE_LICENSE("GPL");
