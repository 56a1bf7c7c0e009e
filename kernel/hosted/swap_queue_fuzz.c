// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fuzzes the swap-release topic's queue against a simple model: a list of all
 * slots that wait, each with the reference it was queued for. It has no runs,
 * only a flag where one begins, and only the batches that are being filled.
 *
 * The input is the steps of tasks that fill batches and of tasks that take
 * entries. A failure prints them, one per line.
 */
#include <string.h>

#include "check.h"
#include "fuzz.h"
#include "swap_queue.h"

/* Few, so that there are no spare ones at times. */
#define MOST_BATCHES	6
#define NR_FILLERS	3
#define NR_OWNERS	3
#define MOST_WAIT	(MOST_BATCHES * 1024)
#define MAX_STEPS	512

/* A device's last slot, and its number, can be as high as this. */
#define OFFSET_END	((unsigned long)UINT_MAX)
#define LAST_TYPE	31

static char owner_places[NR_OWNERS];
#define fake_owner(i)	((void *)((i) ? &owner_places[i] : NULL))

enum step_kind {
	STEP_GET,
	STEP_ADD,
	STEP_ADD_SINGLE,
	STEP_QUEUE,
	STEP_GIVE_BACK,
	STEP_NEW,
	STEP_TAKE,
	STEP_ARRAY,
	STEP_ARRAY_ADD,
};

/* Of the test case, to be printed. */
struct step {
	enum step_kind kind;
	unsigned int filler;
	unsigned int type;
	unsigned long offset;
	unsigned int nr;
	u64 now;
};

/**
 * struct slot - a slot in the model
 * @type: of its device
 * @offset: of it
 * @begins: it is not next to the one before it, so a run begins here
 * @stay: that it was queued with, if it waits
 */
struct slot {
	unsigned int type;
	unsigned long offset;
	bool begins;
	unsigned int stay;
};

/**
 * struct stay - a reference to an owner that is in the queue
 * @batch: that it was queued with
 * @owner: index of the owner
 * @queued: when
 * @runs: in that batch, and in those merged with it
 */
struct stay {
	struct swap_batch *batch;
	unsigned int owner;
	u64 queued;
	unsigned int runs;
};

/**
 * struct filler - a task that fills a batch
 * @batch: the batch, or NULL
 * @owner: of what is in it
 * @runs: in it
 * @nr: slots in it
 * @slots: those
 */
struct filler {
	struct swap_batch *batch;
	unsigned int owner;
	unsigned int runs;
	unsigned int nr;
	struct slot slots[1024];
};

/* An array of runs of its own, with a model that does not know of limits. */
struct wide_run {
	unsigned int type;
	u64 offset;
	u64 nr;
};

#define MOST_RUNS	4

static struct swap_queue queue;
static struct swap_batch *batches[MOST_BATCHES];
static unsigned int nr_batches;
static struct swap_chunk *chunk;

static struct slot waiting[MOST_WAIT];
static unsigned int nr_slots;
static struct stay stays[MAX_STEPS];
static unsigned int nr_stays;
static struct filler fillers[NR_FILLERS];
/* The last one is the next to be used. */
static struct swap_batch *spare[MOST_BATCHES];
static unsigned int nr_spare;
static u64 now;

static struct swap_run *array;
static struct wide_run wide[MOST_RUNS];
static unsigned int nr_array, nr_wide, max_array;

static struct step steps[MAX_STEPS];
static unsigned int nr_steps;

static void print_step(const struct step *step)
{
	fprintf(stderr, "  ");
	switch (step->kind) {
	case STEP_GET:
		fprintf(stderr, "%u: get a batch for owner %u\n", step->filler,
			step->nr);
		break;
	case STEP_ADD:
		fprintf(stderr, "%u: add %u slots from %lu of device %u\n",
			step->filler, step->nr, step->offset, step->type);
		break;
	case STEP_ADD_SINGLE:
		fprintf(stderr,
			"%u: add %u slots, every other one from %lu of device %u\n",
			step->filler, step->nr, step->offset, step->type);
		break;
	case STEP_QUEUE:
		fprintf(stderr, "%u: queue the batch at %llu\n", step->filler,
			step->now);
		break;
	case STEP_GIVE_BACK:
		fprintf(stderr, "%u: give the batch back\n", step->filler);
		break;
	case STEP_NEW:
		fprintf(stderr, "one more batch\n");
		break;
	case STEP_TAKE:
		fprintf(stderr, "take\n");
		break;
	case STEP_ARRAY:
		fprintf(stderr, "an array of %u runs\n", step->nr);
		break;
	case STEP_ARRAY_ADD:
		fprintf(stderr,
			"add to the array: %u slots from %lu of device %u\n",
			step->nr, step->offset, step->type);
		break;
	}
}

static void print_case(void)
{
	fprintf(stderr, "\nTest case:\n");
	for (unsigned int i = 0; i < nr_steps; i++)
		print_step(&steps[i]);
	fprintf(stderr, "By the model %u slots wait; %u batches, %u spare\n",
		nr_slots, nr_batches, nr_spare);
	for (unsigned int i = 0; i < nr_slots; i++) {
		const struct stay *stay = &stays[waiting[i].stay];

		if (i && waiting[i - 1].stay == waiting[i].stay)
			continue;
		fprintf(stderr, "  Owner %u's since %llu, %u runs so far\n",
			stay->owner, stay->queued, stay->runs);
	}
}

ON_FAILURE(print_case)

static void record(struct step step)
{
	CHECK(nr_steps < MAX_STEPS);
	steps[nr_steps++] = step;
}

/* How many slots wait that have come with @stay. */
static unsigned int left_of(unsigned int stay)
{
	unsigned int left = 0;

	for (unsigned int i = 0; i < nr_slots; i++)
		left += waiting[i].stay == stay;

	return left;
}

static void check_queue(void)
{
	unsigned int nr_waiting = 0;
	struct swap_batch *batch;
	unsigned int i = 0;

	list_for_each_entry(batch, &queue.waiting, list) {
		const struct stay *stay;
		unsigned int left;

		CHECK(i < nr_slots);
		stay = &stays[waiting[i].stay];
		left = left_of(waiting[i].stay);
		CHECK(batch == stay->batch);
		CHECK(batch->owner == fake_owner(stay->owner));
		CHECK(batch->queued == stay->queued);
		CHECK(batch->pages == left);
		CHECK(batch->nr == stay->runs);
		CHECK(batch->next < batch->nr);
		i += left;
		nr_waiting++;
	}
	CHECK(i == nr_slots);
	i = nr_spare;
	list_for_each_entry(batch, &queue.spare, list)
		CHECK(i && batch == spare[--i]);
	CHECK(!i);

	CHECK(queue.pages == nr_slots);
	CHECK(queue.nr_waiting == nr_waiting);
	CHECK(queue.nr_spare == nr_spare);
	CHECK(queue.oldest ==
	      (nr_slots ? stays[waiting[0].stay].queued : U64_MAX));
	for (i = 0; i < NR_FILLERS; i++)
		nr_waiting += !!fillers[i].batch;
	CHECK(nr_waiting + nr_spare == nr_batches);
}

/* A batch out of memory that was in use. */
static void add_batch(void)
{
	struct swap_batch *batch;

	if (nr_batches == MOST_BATCHES)
		return;
	record((struct step){ .kind = STEP_NEW });
	batch = malloc(sizeof(*batch));
	CHECK(batch);
	memset(batch, 0xa5, sizeof(*batch));
	batches[nr_batches++] = batch;
	spare[nr_spare++] = batch;
	swap_queue_put_spare(&queue, batch);
}

static void get_batch(unsigned int i, unsigned int owner)
{
	struct filler *filler = &fillers[i];
	struct swap_batch *batch;

	record((struct step){ .kind = STEP_GET, .filler = i, .nr = owner });
	batch = swap_queue_get_spare(&queue);
	CHECK(batch == (nr_spare ? spare[nr_spare - 1] : NULL));
	if (!batch)
		return;
	nr_spare--;
	CHECK(!batch->owner && !batch->next && !batch->nr && !batch->pages);
	batch->owner = fake_owner(owner);
	*filler = (struct filler){ .batch = batch, .owner = owner };
}

static bool hand_full(const struct filler *filler)
{
	return filler->nr == 1024 || filler->runs == 504;
}

/* Slots of a run, one after the other. Returns how many there is room for. */
static unsigned int add_to_model(struct filler *filler, unsigned int type,
				 unsigned long offset, unsigned int nr)
{
	unsigned int added;

	for (added = 0; added < nr; added++) {
		const struct slot *last = &filler->slots[filler->nr - 1];
		bool begins = !filler->nr || last->type != type ||
			      last->offset != offset + added - 1;

		if (filler->nr == 1024 || (begins && filler->runs == 504))
			break;
		filler->runs += begins;
		filler->slots[filler->nr++] = (struct slot){
			.type = type,
			.offset = offset + added,
			.begins = begins,
		};
	}

	return added;
}

static void add_slots(unsigned int i, unsigned int type, unsigned long offset,
		      unsigned int nr)
{
	struct filler *filler = &fillers[i];
	unsigned int added = add_to_model(filler, type, offset, nr);

	CHECK(swap_batch_add(filler->batch, type, offset, nr) == added);
	CHECK(swap_batch_full(filler->batch) == hand_full(filler));
	CHECK(filler->batch->pages == filler->nr);
	CHECK(filler->batch->nr == filler->runs);
}

/* Where slots are: most often next to the last ones, or not quite. */
static unsigned long some_offset(unsigned long end, unsigned int nr)
{
	uint8_t how = next_byte();
	unsigned long offset = end;

	switch (how % 8) {
	case 0:
		offset = end + 1;
		break;
	case 1:
		offset = end - 1;
		break;
	case 2:
		offset = end - nr;
		break;
	case 3:
		offset = 1 + next_byte();
		break;
	case 4:
		/* The device's last ones. */
		offset = OFFSET_END - nr - how / 8;
		break;
	}
	if (!offset || offset > OFFSET_END - nr)
		offset = 1;

	return offset;
}

/* A page table has 512 entries. */
static unsigned int some_nr(void)
{
	static const unsigned int some[] = {
		1, 1, 1, 2, 8, 31, 32, 33, 63, 64, 65, 88, 424, 511, 512, 512,
	};
	uint8_t which = next_byte();

	return which < 128 ? some[which % 16] : 1 + which * 2;
}

static void add_some(unsigned int i, bool single)
{
	const struct filler *filler = &fillers[i];
	struct step step = {
		.kind = single ? STEP_ADD_SINGLE : STEP_ADD,
		.filler = i,
		.nr = some_nr(),
	};
	unsigned int distance = single ? 2 * step.nr : step.nr;
	unsigned long end = 1;

	if (filler->nr) {
		step.type = filler->slots[filler->nr - 1].type;
		end = filler->slots[filler->nr - 1].offset + 1;
	}
	step.offset = some_offset(end, distance);
	if (step.offset % 8 == 0)
		step.type = next_byte() % 4 ? 0 : LAST_TYPE;
	record(step);
	if (!single) {
		add_slots(i, step.type, step.offset, step.nr);
		return;
	}
	for (unsigned int k = 0; k < step.nr; k++)
		add_slots(i, step.type, step.offset + 2 * k, 1);
}

static void queue_batch(unsigned int i)
{
	struct filler *filler = &fillers[i];
	unsigned int stay = nr_slots ? waiting[nr_slots - 1].stay : 0;
	bool merged;

	record((struct step){ .kind = STEP_QUEUE, .filler = i, .now = now });
	merged = nr_slots && stays[stay].owner == filler->owner &&
		 stays[stay].runs + filler->runs <= 504 &&
		 left_of(stay) + filler->nr <= 1024;
	CHECK(swap_queue_add(&queue, filler->batch, now) == merged);
	if (merged) {
		stays[stay].runs += filler->runs;
		spare[nr_spare++] = filler->batch;
	} else {
		stay = nr_stays++;
		stays[stay] = (struct stay){
			.batch = filler->batch,
			.owner = filler->owner,
			.queued = now,
			.runs = filler->runs,
		};
	}
	for (unsigned int k = 0; k < filler->nr; k++) {
		waiting[nr_slots] = filler->slots[k];
		waiting[nr_slots++].stay = stay;
	}
	filler->batch = NULL;
}

static void give_back(unsigned int i)
{
	record((struct step){ .kind = STEP_GIVE_BACK, .filler = i });
	swap_queue_put_spare(&queue, fillers[i].batch);
	spare[nr_spare++] = fillers[i].batch;
	fillers[i].batch = NULL;
}

/* What comes out next, slot by slot. */
static void take(void)
{
	const struct stay *stay;
	unsigned int nr = 0, runs = 0;

	memset(chunk, 0xa5, sizeof(*chunk));
	CHECK(swap_queue_take(&queue, chunk) == !!nr_slots);
	if (!nr_slots) {
		CHECK(!chunk->nr && !chunk->pages && !chunk->last);
		return;
	}
	stay = &stays[waiting[0].stay];
	for (unsigned int i = 0; i < chunk->nr; i++) {
		for (unsigned int k = 0; k < chunk->runs[i].nr; k++, nr++) {
			CHECK(nr < nr_slots);
			CHECK(&stays[waiting[nr].stay] == stay);
			CHECK(chunk->runs[i].type == waiting[nr].type);
			CHECK(chunk->runs[i].offset + k == waiting[nr].offset);
			/* One run at least where the model has one. */
			CHECK(!nr || waiting[nr].begins == !k);
			runs += !nr || waiting[nr].begins;
		}
	}
	CHECK(nr && chunk->pages == nr && chunk->nr == runs);
	CHECK(nr <= 64 && runs <= 32);
	CHECK(chunk->owner == fake_owner(stay->owner));
	CHECK(chunk->queued == stay->queued);
	CHECK(chunk->last ==
	      (nr == nr_slots || &stays[waiting[nr].stay] != stay));
	/* There was no room for more of it. */
	if (!chunk->last && nr < 64)
		CHECK(runs == 32 && waiting[nr].begins);

	if (chunk->last)
		spare[nr_spare++] = stay->batch;
	nr_slots -= nr;
	memmove(waiting, waiting + nr, nr_slots * sizeof(waiting[0]));
}

static void take_some(unsigned int nr)
{
	while (nr-- && nr_slots) {
		take();
		check_queue();
	}
}

static void new_array(unsigned int max)
{
	record((struct step){ .kind = STEP_ARRAY, .nr = max });
	free(array);
	array = malloc(max * sizeof(*array));
	CHECK(array);
	max_array = max;
	nr_array = 0;
	nr_wide = 0;
}

static void add_to_array(void)
{
	static const unsigned int some[] = {
		1, 2, 512, U16_MAX / 2, U16_MAX / 2 + 1, U16_MAX - 2,
		U16_MAX - 1, U16_MAX,
	};
	struct wide_run *last = nr_wide ? &wide[nr_wide - 1] : NULL;
	struct step step = {
		.kind = STEP_ARRAY_ADD,
		.nr = some[next_byte() % ARRAY_SIZE(some)],
	};
	bool added = true;

	step.offset = some_offset(last ? last->offset + last->nr : 1, step.nr);
	step.type = last ? last->type : 0;
	if (next_byte() % 4 == 0)
		step.type ^= LAST_TYPE;
	record(step);
	if (last && last->type == step.type &&
	    last->offset + last->nr == step.offset &&
	    last->nr + step.nr <= 65535) {
		last->nr += step.nr;
	} else if (nr_wide < max_array) {
		wide[nr_wide++] = (struct wide_run){
			.type = step.type,
			.offset = step.offset,
			.nr = step.nr,
		};
	} else {
		added = false;
	}
	CHECK(swap_run_add(array, &nr_array, max_array, step.type, step.offset,
			   step.nr) == added);
	CHECK(nr_array == nr_wide);
	for (unsigned int i = 0; i < nr_wide; i++)
		CHECK(array[i].type == wide[i].type &&
		      array[i].offset == wide[i].offset &&
		      array[i].nr == wide[i].nr);
}

static void step(void)
{
	uint8_t op = next_byte();
	unsigned int i = op % NR_FILLERS;

	now += op % 4;
	if (op >= 240) {
		add_batch();
	} else if (op >= 220) {
		if (op % 4 == 0)
			new_array(1 + op % MOST_RUNS);
		else
			add_to_array();
	} else if (op >= 160) {
		record((struct step){ .kind = STEP_TAKE });
		take();
		/* All that waits, every now and then. */
		if (op >= 210)
			take_some(UINT_MAX);
	} else if (!fillers[i].batch) {
		get_batch(i, next_byte() % NR_OWNERS);
	} else if (op < 100) {
		add_some(i, op % 4 == 0);
	} else if (fillers[i].nr && op < 155) {
		queue_batch(i);
	} else {
		/* Also with content that is no longer used. */
		give_back(i);
	}
	check_queue();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	input = (struct input){ data, size };
	memset(&queue, 0xa5, sizeof(queue));
	memset(fillers, 0, sizeof(fillers));
	chunk = malloc(sizeof(*chunk));
	CHECK(chunk);
	nr_batches = 0;
	nr_slots = 0;
	nr_stays = 0;
	nr_spare = 0;
	nr_steps = 0;
	now = 1000;

	swap_queue_init(&queue);
	check_queue();
	add_batch();
	add_batch();
	new_array(2);
	while (input.left && nr_steps < MAX_STEPS - NR_FILLERS)
		step();

	/* All of it comes out. */
	take_some(UINT_MAX);
	for (unsigned int i = 0; i < NR_FILLERS; i++) {
		if (fillers[i].batch)
			give_back(i);
	}
	check_queue();
	CHECK(nr_spare == nr_batches);
	for (unsigned int i = 0; i < nr_batches; i++)
		free(batches[i]);
	free(chunk);
	free(array);
	array = NULL;

	return 0;
}
