// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tests of the reap topic's session code with real threads.
 *
 * Usage: reap_session_test [NAME]...
 */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "space.h"
#include "test.h"

#define CHUNK		REAP_CHUNK_SIZE
#define HIGHEST		(ULONG_MAX & ~(PAGE_SIZE - 1))
#define MAX_CHUNKS	2048

/* How long to wait for a wake that should come at once, in seconds. */
#define PATIENCE	10

/* An mm is distinguished by its address, which is never dereferenced. */
static char mm_places[64];
#define fake_mm(i)	((struct mm_struct *)&mm_places[i])

/* What a reaper does once it has nothing left to claim. */
static bool quit(struct reap_session *session)
{
	reap_session_finish(session);

	return reap_session_leave(session);
}

static unsigned int claim_all(struct reap_session *session,
			      struct space *space, struct reap_span *chunks)
{
	struct reap_span none;
	unsigned int nr = 0;

	while (reap_session_claim(session, space_below, space, &chunks[nr])) {
		nr++;
		CHECK(nr < MAX_CHUNKS);
	}
	CHECK(!reap_session_claim(session, space_below, space, &none));

	return nr;
}

static void check_space(struct space *space, int expected_chunks)
{
	static struct reap_span chunks[MAX_CHUNKS];
	struct reap_session own, *session;
	unsigned int nr;

	session = reap_session_join(fake_mm(0), &own);
	nr = claim_all(session, space, chunks);
	CHECK(quit(session));
	check_chunks(space, chunks, nr);
	CHECK(expected_chunks < 0 || nr == (unsigned int)expected_chunks);
}

static void test_edges(void)
{
	static const struct {
		int chunks;
		struct space space;
	} cases[] = {
		{ 0, { 0 } },
		{ 1, { 1, { { 0, PAGE_SIZE } } } },
		{ 1, { 1, { { HIGHEST - PAGE_SIZE, HIGHEST } } } },
		{ 2, { 2, { { 0, CHUNK }, { -CHUNK, HIGHEST } } } },
		{ 1, { 1, { { 4 * CHUNK, 5 * CHUNK } } } },
		{ 2, { 1, { { 4 * CHUNK - PAGE_SIZE, 4 * CHUNK + PAGE_SIZE } } } },
		{ 9, { 1, { { 4 * CHUNK + PAGE_SIZE, 13 * CHUNK - PAGE_SIZE } } } },
		{ 3, { 1, { { 0, 2 * CHUNK + PAGE_SIZE } } } },
		{ 1, { 2, { { CHUNK, CHUNK + PAGE_SIZE },
			    { 2 * CHUNK - PAGE_SIZE, 2 * CHUNK } } } },
		{ 2, { 3, { { CHUNK, CHUNK + PMD_SIZE },
			    { CHUNK + PMD_SIZE, 2 * CHUNK },
			    { 2 * CHUNK, 2 * CHUNK + PMD_SIZE } } } },
		{ 3, { 2, { { PMD_SIZE, PMD_SIZE + PAGE_SIZE },
			    { 1000 * CHUNK - PAGE_SIZE, 1001 * CHUNK } } } },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct space space = cases[i].space;

		check_space(&space, cases[i].chunks);
	}
}

static void test_random_spaces(void)
{
	uint64_t seed = 1;

	for (int i = 0; i < 2000; i++) {
		struct space space = { .nr = rnd(&seed) % (MAX_SPANS + 1) };
		unsigned long end = 0;

		for (unsigned int k = 0; k < space.nr; k++) {
			end += rnd(&seed) % (1U << rnd(&seed) % 16) * PAGE_SIZE;
			space.spans[k].start = end;
			end += (1 + rnd(&seed) % (1U << rnd(&seed) % 16)) *
			       PAGE_SIZE;
			space.spans[k].end = end;
		}
		check_space(&space, -1);
	}
}

/* Others claim between the search and the claim, @times more times. */
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

	if (o->times) {
		o->times--;
		if (reap_session_claim(o->session, space_below, o->space,
				       &o->chunks[o->nr]))
			o->nr++;
	}

	return found;
}

static void test_overtaken(void)
{
	static struct reap_span chunks[64];
	struct space space = { 2, { { 0, PMD_SIZE },
				    { 3 * CHUNK, 20 * CHUNK } } };
	struct overtaken o = { .space = &space, .chunks = chunks };
	struct reap_session own;
	bool found;

	o.session = reap_session_join(fake_mm(0), &own);
	do {
		struct reap_span chunk;

		o.times = o.nr % 3;
		found = reap_session_claim(o.session, overtaken_below, &o,
					   &chunk);
		CHECK(o.nr < 60);
		if (found)
			chunks[o.nr++] = chunk;
	} while (found);
	CHECK(quit(o.session));
	check_chunks(&space, chunks, o.nr);
}

static void test_join_and_leave(void)
{
	struct space space = { 1, { { CHUNK, 8 * CHUNK } } };
	struct reap_session *first, *second, *other;
	struct reap_session own[3];
	struct reap_span chunk;

	first = reap_session_join(fake_mm(0), &own[0]);
	CHECK(reap_session_claim(first, space_below, &space, &chunk));
	second = reap_session_join(fake_mm(0), &own[1]);
	other = reap_session_join(fake_mm(1), &own[2]);
	CHECK(first == second && first != other);
	CHECK(reap_session_claim(second, space_below, &space, &chunk));
	CHECK(chunk.end == 7 * CHUNK);
	CHECK(reap_session_claim(other, space_below, &space, &chunk));
	CHECK(chunk.end == 8 * CHUNK);

	CHECK(quit(first));
	first = reap_session_join(fake_mm(0), &own[0]);
	CHECK(first == second);
	CHECK(reap_session_claim(first, space_below, &space, &chunk));
	CHECK(chunk.end == 6 * CHUNK);
	CHECK(quit(first));
	CHECK(quit(second));

	first = reap_session_join(fake_mm(0), &own[0]);
	CHECK(reap_session_claim(first, space_below, &space, &chunk));
	CHECK(chunk.end == 8 * CHUNK);
	CHECK(quit(first));
	CHECK(quit(other));
}

static void test_table_full(void)
{
	struct reap_session *sessions[REAP_MAX_SESSIONS], *session;
	struct space space = { 1, { { CHUNK, 3 * CHUNK } } };
	static struct reap_span chunks[MAX_CHUNKS];
	struct reap_session own;
	unsigned int nr;

	for (int i = 0; i < REAP_MAX_SESSIONS; i++) {
		sessions[i] = reap_session_join(fake_mm(i), &own);
		CHECK(sessions[i] != &own && sessions[i]);
		for (int k = 0; k < i; k++)
			CHECK(sessions[i] != sessions[k]);
	}
	session = reap_session_join(fake_mm(3), &own);
	CHECK(session == sessions[3]);
	CHECK(quit(session));

	session = reap_session_join(fake_mm(REAP_MAX_SESSIONS), &own);
	CHECK(session == &own);
	CHECK(!reap_session_finished(session));
	nr = claim_all(session, &space, chunks);
	check_chunks(&space, chunks, nr);
	reap_session_finish(session);
	CHECK(reap_session_finished(session));
	CHECK(reap_session_leave(session));

	CHECK(quit(sessions[5]));
	session = reap_session_join(fake_mm(REAP_MAX_SESSIONS + 1), &own);
	CHECK(session == sessions[5]);
	for (int i = 0; i < REAP_MAX_SESSIONS; i++)
		CHECK(quit(sessions[i]));
}

static void test_finished(void)
{
	struct reap_session *first, *second;
	struct reap_session own[2];

	first = reap_session_join(fake_mm(0), &own[0]);
	CHECK(!reap_session_finished(first));
	second = reap_session_join(fake_mm(0), &own[1]);
	CHECK(first == second);
	reap_session_finish(first);
	CHECK(!reap_session_finished(first));
	reap_session_finish(second);
	CHECK(reap_session_finished(first));
	CHECK(reap_session_leave(second));
	CHECK(reap_session_finished(first));

	/* A late reaper finds nothing, but counts until it has looked. */
	second = reap_session_join(fake_mm(0), &own[1]);
	CHECK(first == second);
	CHECK(!reap_session_finished(first));
	CHECK(quit(second));
	CHECK(reap_session_finished(first));
	CHECK(reap_session_leave(first));
}

static void test_alone(void)
{
	struct space space = { 1, { { CHUNK, 8 * CHUNK } } };
	static struct reap_span chunks[MAX_CHUNKS];
	struct reap_session *shared, *alone, *other;
	struct reap_session own[2];
	struct reap_span chunk;
	unsigned int nr;

	/* Another reaper has claimed a part, and stalls. */
	shared = reap_session_join(fake_mm(0), &own[0]);
	CHECK(reap_session_claim(shared, space_below, &space, &chunk));

	/* A reaper alone walks all of it, and takes nothing from others... */
	alone = reap_session_alone(fake_mm(0), &own[1]);
	CHECK(alone != shared);
	nr = claim_all(alone, &space, chunks);
	CHECK(nr == 7);
	check_chunks(&space, chunks, nr);
	reap_session_finish(alone);
	CHECK(reap_session_finished(alone));
	CHECK(!reap_session_finished(shared));
	CHECK(reap_session_leave(alone));

	/* ...and none joins them. */
	alone = reap_session_alone(fake_mm(1), &own[1]);
	other = reap_session_join(fake_mm(1), &own[0]);
	CHECK(other != alone);
	CHECK(quit(other));
	CHECK(quit(alone));
	CHECK(claim_all(shared, &space, chunks) == 6);
	CHECK(quit(shared));
}

static void test_failed(void)
{
	struct reap_session *first, *second, *other;
	struct space space = { 1, { { CHUNK, 8 * CHUNK } } };
	static struct reap_span chunks[MAX_CHUNKS];
	struct reap_session own[3];
	unsigned int nr;

	first = reap_session_join(fake_mm(0), &own[0]);
	second = reap_session_join(fake_mm(0), &own[1]);
	other = reap_session_join(fake_mm(1), &own[2]);
	nr = claim_all(first, &space, chunks);
	WRITE_ONCE(first->failed, true);
	CHECK(!quit(second));

	/* A retry walks all of it again, though one has not left yet. */
	second = reap_session_join(fake_mm(0), &own[1]);
	CHECK(first != second);
	CHECK(claim_all(second, &space, chunks) == nr);
	check_chunks(&space, chunks, nr);
	CHECK(!quit(first));
	CHECK(quit(second));
	CHECK(quit(other));

	/* No failure outlives its session. */
	first = reap_session_join(fake_mm(0), &own[0]);
	second = reap_session_join(fake_mm(1), &own[1]);
	CHECK(quit(first));
	CHECK(quit(second));
}

/*
 * Several threads share one address space out.
 *
 * What a chunk's owner does to it is a plain write, and each thread reads all
 * of it once the session is finished, as the caller of process_mrelease() may:
 * a chunk given out twice and a missing order are both races to the sanitizer.
 */
#define NR_CLAIMERS	6
#define SHARED_CHUNKS	400

static unsigned int taken[SHARED_CHUNKS];

struct claimer {
	struct reap_session *session;
	struct space *space;
	pthread_barrier_t *go;
	bool poll;
};

static bool yielding_below(void *arg, unsigned long top,
			   struct reap_span *span)
{
	bool found = space_below(arg, top, span);

	/* Lengthens the time between the search and the claim. */
	if (top / CHUNK % 8 == 0)
		sched_yield();

	return found;
}

static void *claimer_fn(void *arg)
{
	struct claimer *c = arg;
	struct reap_session own, *session;
	unsigned long above = ULONG_MAX;
	struct reap_span chunk;

	pthread_barrier_wait(c->go);
	session = reap_session_join(fake_mm(0), &own);
	CHECK(session == c->session);
	while (reap_session_claim(session, yielding_below, c->space, &chunk)) {
		CHECK(chunk.end <= above);
		above = chunk.start;
		check_chunk(c->space, &chunk);
		taken[chunk.start / CHUNK]++;
	}
	reap_session_finish(session);
	if (c->poll) {
		while (!reap_session_finished(session))
			sched_yield();
	} else {
		CHECK(wait_event_timeout(session->idle,
					 reap_session_finished(session),
					 PATIENCE));
	}
	for (unsigned int i = 0; i < SHARED_CHUNKS; i++)
		CHECK(taken[i] == 1);
	CHECK(reap_session_leave(session));

	return NULL;
}

static void test_concurrent_claims(void)
{
	for (int round = 0; round < 40; round++) {
		struct space space = { 2, {
			{ PAGE_SIZE, SHARED_CHUNKS / 2 * CHUNK },
			{ SHARED_CHUNKS / 2 * CHUNK,
			  SHARED_CHUNKS * CHUNK - PAGE_SIZE } } };
		struct claimer claimers[NR_CLAIMERS];
		struct reap_session own, *session;
		pthread_barrier_t go;

		memset(taken, 0, sizeof(taken));
		/* Keeps the session until the last one has finished. */
		session = reap_session_join(fake_mm(0), &own);
		reap_session_finish(session);
		pthread_barrier_init(&go, NULL, NR_CLAIMERS);
		for (int i = 0; i < NR_CLAIMERS; i++)
			claimers[i] = (struct claimer){ session, &space, &go,
							(i ^ round) & 1 };
		run_threads(NR_CLAIMERS, claimer_fn, claimers,
			    sizeof(claimers[0]));
		CHECK(reap_session_finished(session));
		CHECK(reap_session_leave(session));
		pthread_barrier_destroy(&go);
		for (unsigned int i = 0; i < SHARED_CHUNKS; i++)
			CHECK(taken[i] == 1);
	}
}

/* One works, the others sleep until it is done: none may be forgotten. */
static void *sleeper_fn(void *arg)
{
	struct claimer *c = arg;
	struct reap_session own, *session;
	struct reap_span chunk;

	session = reap_session_join(fake_mm(0), &own);
	CHECK(session == c->session);
	pthread_barrier_wait(c->go);
	if (c->poll) {
		usleep(2000);
		while (reap_session_claim(session, space_below, c->space,
					  &chunk))
			taken[chunk.start / CHUNK]++;
	}
	reap_session_finish(session);
	CHECK(wait_event_timeout(session->idle, reap_session_finished(session),
				 PATIENCE));
	CHECK(taken[0] == 1 && taken[1] == 1);
	CHECK(reap_session_leave(session));

	return NULL;
}

static void test_wake(void)
{
	for (int round = 0; round < 20; round++) {
		struct space space = { 1, { { 0, 2 * CHUNK } } };
		struct claimer claimers[8];
		struct reap_session own, *session;
		pthread_barrier_t go;

		memset(taken, 0, sizeof(taken));
		session = reap_session_join(fake_mm(0), &own);
		reap_session_finish(session);
		pthread_barrier_init(&go, NULL, 8);
		for (int i = 0; i < 8; i++)
			claimers[i] = (struct claimer){ session, &space, &go,
							i == 0 };
		run_threads(8, sleeper_fn, claimers, sizeof(claimers[0]));
		CHECK(reap_session_leave(session));
		pthread_barrier_destroy(&go);
	}
}

/*
 * Many threads join, claim and leave, with more address spaces than the table
 * has sessions. Per session in the table it counts how often each chunk was
 * claimed: in a finished session that is the same for all chunks, and the next
 * pass cannot start before the thread that checks has left.
 */
#define NR_CHURNERS	20
#define NR_MMS		(REAP_MAX_SESSIONS + 3)
#define CHURN_CHUNKS	6

static struct reap_session *table[REAP_MAX_SESSIONS];
static atomic_uint claims[REAP_MAX_SESSIONS][CHURN_CHUNKS];

struct churner {
	unsigned int id;
	unsigned int rounds;
	bool give_up;
};

static void learn_table(void)
{
	struct reap_session own;

	memset(claims, 0, sizeof(claims));
	for (int i = 0; i < REAP_MAX_SESSIONS; i++)
		table[i] = reap_session_join(fake_mm(i), &own);
	for (int i = 0; i < REAP_MAX_SESSIONS; i++)
		CHECK(quit(table[i]));
}

static atomic_uint *claims_of(const struct reap_session *session)
{
	for (int i = 0; i < REAP_MAX_SESSIONS; i++) {
		if (table[i] == session)
			return claims[i];
	}

	return NULL;
}

static void churn(struct churner *c, uint64_t *seed)
{
	struct space space = { 1, { { PAGE_SIZE, CHURN_CHUNKS * CHUNK } } };
	/* Most go for a few address spaces, so that they meet. */
	unsigned int nr = rnd(seed) % 2 ? rnd(seed) % 3 : rnd(seed) % NR_MMS;
	struct mm_struct *mm = fake_mm(nr);
	struct reap_session own, *session;
	atomic_uint alone[CHURN_CHUNKS];
	atomic_uint *count;
	bool gave_up = false;
	struct reap_span chunk;
	bool complete;

	session = reap_session_join(mm, &own);
	CHECK(session->mm == mm);
	memset(alone, 0, sizeof(alone));
	count = session == &own ? alone : claims_of(session);
	CHECK(count);

	while (!gave_up && reap_session_claim(session, yielding_below, &space,
					      &chunk)) {
		check_chunk(&space, &chunk);
		atomic_fetch_add_explicit(&count[chunk.start / CHUNK], 1,
					  memory_order_relaxed);
		if (rnd(seed) % 8 == 0)
			sched_yield();
		gave_up = c->give_up && rnd(seed) % 16 == 0;
	}
	if (gave_up)
		WRITE_ONCE(session->failed, true);
	reap_session_finish(session);
	CHECK(wait_event_timeout(session->idle, reap_session_finished(session),
				 PATIENCE));
	if (!c->give_up) {
		unsigned int first = atomic_load_explicit(&count[0],
							  memory_order_relaxed);

		CHECK(first);
		for (int i = 1; i < CHURN_CHUNKS; i++)
			CHECK(first == atomic_load_explicit(&count[i],
							    memory_order_relaxed));
	}
	CHECK(session->mm == mm);
	complete = reap_session_leave(session);
	CHECK(!complete || !gave_up);
	CHECK(complete || c->give_up);
}

static void *churner_fn(void *arg)
{
	struct churner *c = arg;
	uint64_t seed = 0x9e3779b97f4a7c15 * (c->id + 1);

	for (unsigned int i = 0; i < c->rounds; i++)
		churn(c, &seed);

	return NULL;
}

static void run_churn(bool give_up)
{
	struct churner churners[NR_CHURNERS];

	learn_table();
	for (unsigned int i = 0; i < NR_CHURNERS; i++)
		churners[i] = (struct churner){ i, 1500, give_up };
	run_threads(NR_CHURNERS, churner_fn, churners, sizeof(churners[0]));
	/* All have left, and all slots are free. */
	learn_table();
}

static void test_churn(void)
{
	run_churn(false);
}

static void test_churn_with_failures(void)
{
	run_churn(true);
}

static const struct test tests[] = {
	{ "edges", test_edges },
	{ "random-spaces", test_random_spaces },
	{ "overtaken", test_overtaken },
	{ "join-and-leave", test_join_and_leave },
	{ "table-full", test_table_full },
	{ "finished", test_finished },
	{ "alone", test_alone },
	{ "failed", test_failed },
	{ "concurrent-claims", test_concurrent_claims },
	{ "wake", test_wake },
	{ "churn", test_churn },
	{ "churn-with-failures", test_churn_with_failures },
};

int main(int argc, char **argv)
{
	return run_tests(tests, ARRAY_SIZE(tests), argc, argv);
}
