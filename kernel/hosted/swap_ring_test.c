// SPDX-License-Identifier: GPL-2.0-only
/*
 * Compares the ring of swap slots that wait with a plain list of all that ever
 * came.
 */
#include "swap_env.h"
#include "test.h"
#include CODE

#define STEPS		20000
#define MAX_RUNS	40

/* All that came, in order; those before @gone have been taken. */
static struct swap_ring_entry came[STEPS * MAX_RUNS];
static size_t nr_came, gone;

static struct swap_ring ring;

static void start(unsigned int size)
{
	ring = (struct swap_ring){
		.entries = size ? malloc(size * sizeof(*ring.entries)) : NULL,
		.size = size,
	};
	nr_came = 0;
	gone = 0;
}

static void add(const struct swap_run *runs, unsigned int nr,
		struct cgroup *owner)
{
	bool fits = nr_came - gone + nr <= ring.size;

	CHECK(swap_ring_add(&ring, runs, nr, owner) == fits);
	for (unsigned int i = 0; fits && i < nr; i++)
		came[nr_came++] = (struct swap_ring_entry){ runs[i], owner };
	CHECK(ring.nr == nr_came - gone);
}

/* The runs that a batch can have at most: from the oldest, as far as possible. */
static unsigned int nr_batch(void)
{
	const struct swap_ring_entry *first = &came[gone];
	unsigned int nr = 0, pages = 0;

	for (const struct swap_ring_entry *e = first; e < &came[nr_came]; e++) {
		if (nr == SWAP_BATCH_RUNS || e->owner != first->owner ||
		    e->run.type != first->run.type)
			break;
		pages += e->run.nr;
		if (nr && pages > SWAP_BATCH_PAGES)
			break;
		nr++;
	}

	return nr;
}

static void take(void)
{
	unsigned int nr = nr_batch(), pages = 0;
	struct cgroup *owner = (struct cgroup *)&ring;
	struct swap_batch batch;

	/* Whatever was on the stack. */
	memset(&batch, 0xff, sizeof(batch));
	swap_ring_take(&ring, &batch, &owner);
	CHECK(batch.nr == nr);
	CHECK(!batch.mm);
	CHECK(owner == (nr ? came[gone].owner : NULL));
	for (unsigned int i = 0; i < nr; i++) {
		const struct swap_run *run = &came[gone + i].run;

		CHECK(batch.runs[i].type == run->type);
		CHECK(batch.runs[i].offset == run->offset);
		CHECK(batch.runs[i].nr == run->nr);
		pages += run->nr;
	}
	CHECK(batch.pages == pages);
	gone += nr;
	CHECK(ring.nr == nr_came - gone);
}

static void end(void)
{
	while (nr_came > gone)
		take();
	take();
	free(ring.entries);
}

/* Mostly one owner and one device, mostly short runs: batches of all sizes. */
static void test_random(void)
{
	static const unsigned int sizes[] = { 0, 1, 2, 7, 64, 100 };
	uint64_t seed = 1;

	for (size_t n = 0; n < ARRAY_SIZE(sizes); n++) {
		start(sizes[n]);
		for (unsigned int i = 0; i < STEPS; i++) {
			struct swap_run runs[MAX_RUNS];
			unsigned int r = rnd(&seed), nr = 1 + r % 5;
			uintptr_t owner = r / 8 % 16 ? 0 : r / 128 % 3;

			if (r / 1024 % 8 == 0)
				nr = r / 8192 % (MAX_RUNS + 1);
			for (unsigned int k = 0; k < nr; k++)
				runs[k] = (struct swap_run){
					.offset = rnd(&seed),
					.nr = 1 + rnd(&seed) %
					      (r & 1 << 20 ? 2 : SWAP_BATCH_PAGES),
					.type = rnd(&seed) % 32 == 0,
				};
			add(runs, nr, (struct cgroup *)owner);
			/* Now and then it is full, now and then empty. */
			while (rnd(&seed) % (i / 64 % 2 ? 8 : 2))
				take();
		}
		end();
	}
}

/* What fits exactly, and what does not by one. */
static void test_limits(void)
{
	struct swap_run runs[SWAP_BATCH_RUNS + 1];

	for (unsigned int at = 0; at <= SWAP_BATCH_RUNS; at++) {
		start(SWAP_BATCH_RUNS + 1);
		for (unsigned int i = 0; i < ARRAY_SIZE(runs); i++)
			runs[i] = (struct swap_run){ .offset = i, .nr = 1 };
		/* Wherever in the ring they begin. */
		add(runs, at, NULL);
		while (nr_came > gone)
			take();
		add(runs, ARRAY_SIZE(runs), NULL);
		add(runs, 1, NULL);
		take();
		CHECK(nr_came - gone == 1);
		end();
	}

	for (unsigned int more = 0; more < 2; more++) {
		start(4);
		for (unsigned int i = 0; i < 2; i++)
			runs[i].nr = SWAP_BATCH_PAGES / 2 + more * i;
		add(runs, 2, NULL);
		take();
		CHECK(nr_came - gone == more);
		end();
	}
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{ "random", test_random },
		{ "limits", test_limits },
	};

	return run_tests(tests, ARRAY_SIZE(tests), argc, argv);
}
