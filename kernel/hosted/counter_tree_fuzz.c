// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fuzzes the RSS counters against a simple model: a number per counter, and the
 * set of cells that have ever been used.
 *
 * The input's first bytes define a machine and the levels, the rest are steps:
 * additions on its CPUs, CPU hotplug, spreading with or without memory. Steps
 * may be nested up to three levels deep: an interrupt, another CPU, or a
 * migration of the task.
 *
 * A failure prints the steps, one per line, nested ones below the outer one.
 */
#include "counters.h"
#include "fuzz.h"

#define MOST_CPUS	512
#define MAX_STEPS	2048
#define MAX_DEPTH	3

enum step_kind {
	STEP_ADD,
	STEP_MIGRATE,
	STEP_SPREAD,
	STEP_OFFLINE,
	STEP_ONLINE,
	STEP_READ,
};

/* Of the test case, to be printed. */
struct step {
	enum step_kind kind;
	unsigned int depth;
	unsigned int cpu;
	unsigned int counter;
	long amount;
};

/**
 * struct model - expected state of a counter
 * @value: the sum of all that was added
 * @up: something was added
 * @down: something was taken away
 */
struct model {
	long value;
	bool up;
	bool down;
};

/**
 * struct under_way - an addition that has not finished
 * @outer: the addition that it is nested in
 * @counter: to which counter
 * @amount: how much
 * @nr: entries in @cpu
 * @cpu: CPUs that it has run on
 */
struct under_way {
	struct under_way *outer;
	unsigned int counter;
	long amount;
	unsigned int nr;
	unsigned int cpu[8];
};

static struct counter_tree trees[MAX_COUNTERS];
static struct counter_tree_shape shape;
static struct model models[MAX_COUNTERS];
static unsigned int nr_trees;
/* The cells that some counter has used, and what all can hold back in them. */
static bool used[2 * MOST_CPUS];
static long slack;
/* The default one. */
static bool best;

static struct step steps[MAX_STEPS];
static unsigned int nr_steps;
static unsigned int depth;
static struct under_way *under_way;
/* Others may come in the middle of this step; can right now; and did. */
static bool others;
static bool inside;
static bool disturbed;

static void print_step(const struct step *step)
{
	fprintf(stderr, "%*s", 2 + 4 * step->depth, "");
	switch (step->kind) {
	case STEP_ADD:
		fprintf(stderr, "CPU %u: add %ld to counter %u\n", step->cpu,
			step->amount, step->counter);
		break;
	case STEP_MIGRATE:
		fprintf(stderr, "go on on CPU %u\n", step->cpu);
		break;
	case STEP_SPREAD:
		fprintf(stderr, "CPU %u: spread", step->cpu);
		if (step->amount)
			fprintf(stderr, ", allocation %ld fails", step->amount);
		fprintf(stderr, "\n");
		break;
	case STEP_OFFLINE:
		fprintf(stderr, "CPU %u goes offline\n", step->cpu);
		break;
	case STEP_ONLINE:
		fprintf(stderr, "CPU %u comes online\n", step->cpu);
		break;
	case STEP_READ:
		fprintf(stderr, "CPU %u: sum up counter %u\n", step->cpu,
			step->counter);
		break;
	}
}

static void print_case(void)
{
	fprintf(stderr, "\nTest case: %u counters, %u CPUs, %s levels", nr_trees,
		nr_cpu_ids, best ? "the best" : "odd");
	for (unsigned int i = 0; i < shape.nr_levels; i++)
		fprintf(stderr, "%s nodes of %u CPUs with batch %u",
			i ? "," : ":", 1U << shape.level[i].shift,
			shape.level[i].batch);
	fprintf(stderr, "; memory at %u of a line\n", hosted_memory.offset);
	for (unsigned int i = 0; i < nr_steps; i++)
		print_step(&steps[i]);
	for (unsigned int i = 0; i < nr_trees; i++)
		fprintf(stderr, "Counter %u: %ld by the model\n", i,
			models[i].value);
	fprintf(stderr, "Slack %ld by the model\n", slack);
}

ON_FAILURE(print_case)

static void record(enum step_kind kind, unsigned int cpu, unsigned int counter,
		   long amount)
{
	CHECK(nr_steps < MAX_STEPS);
	steps[nr_steps++] = (struct step){ kind, depth, cpu, counter, amount };
}

/* What the additions to a counter that are under way can be carrying. */
static long carrying(unsigned int counter)
{
	long most = 0;

	for (struct under_way *u = under_way; u; u = u->outer) {
		if (u->counter == counter)
			most += carried(&shape, u->amount);
	}

	return most;
}

static bool is_spread(void)
{
	return counter_tree_is_spread(trees);
}

/* The cells above a CPU to which something was added: new ones are in use. */
static void look_at(unsigned int counter, unsigned int cpu)
{
	for (unsigned int i = 0; i <= shape.nr_levels; i++) {
		unsigned int nr = way_cell(&shape, cpu, i);
		struct cell cell = counter_cell(&trees[counter], nr);

		check_cell(&cell);
		CHECK(!used[nr] || cell.value);
		if (cell.announced && !used[nr]) {
			used[nr] = true;
			slack += MAX_COUNTERS * (cell.batch - 1L);
		}
	}
}

static void check_counter(unsigned int counter)
{
	long carry = 0, total = 0;

	check_sum(&trees[counter], models[counter].value, carrying(counter));
	for (unsigned int i = 0; i < nr_trees; i++) {
		carry += carrying(i);
		total += models[i].value;
	}
	check_total(trees, nr_trees, total, carry);
	CHECK(counter_tree_slack(trees) >= slack);
	if (!under_way) {
		CHECK(counter_tree_slack(trees) == slack);
		CHECK(slack <= MAX_COUNTERS * (long)shape.bound);
	}
}

/* The code under test is entered on a CPU. */
static void enter(unsigned int cpu)
{
	hosted_cpu = cpu;
	depth++;
	inside = others;
}

static void leave(void)
{
	inside = false;
	depth--;
}

static void add(unsigned int cpu, unsigned int counter, long amount)
{
	struct counter_tree *tree = &trees[counter];
	struct under_way u = { under_way, counter, amount, 1, { cpu } };
	struct model *model = &models[counter];
	struct way expected, way;
	bool top = !depth;

	record(STEP_ADD, cpu, counter, amount);
	expected = way_of(tree, &shape, cpu);
	way_add(&expected, amount);
	if (top)
		disturbed = false;

	under_way = &u;
	enter(cpu);
	counter_tree_add(tree, amount);
	leave();
	under_way = u.outer;

	model->value += amount;
	model->up |= amount > 0;
	model->down |= amount < 0;
	for (unsigned int i = 0; i < u.nr && is_spread(); i++)
		look_at(counter, u.cpu[i]);
	if (top && !disturbed) {
		way = way_of(tree, &shape, cpu);
		CHECK(ways_equal(&way, &expected));
	}
	check_counter(counter);
}

static void spread(unsigned int cpu, unsigned int fail)
{
	bool was_spread = is_spread();
	int ret;

	record(STEP_SPREAD, cpu, 0, fail);
	hosted_memory.fail = fail;
	enter(cpu);
	ret = best ? counter_tree_spread_many(trees, nr_trees, GFP_KERNEL) :
		     counter_tree_spread_shape(trees, nr_trees, &shape,
					       GFP_KERNEL);
	leave();
	hosted_memory.fail = 0;
	CHECK(!ret || (ret == -ENOMEM && !was_spread));
	if (!depth && !others)
		CHECK(!ret == (was_spread || !fail));
	if (ret)
		return;
	for (unsigned int i = 0; i < nr_trees; i++) {
		CHECK(counter_tree_is_spread(&trees[i]));
		CHECK(counter_tree_bytes(&trees[i]));
	}
}

static void read_sum(unsigned int cpu, unsigned int counter)
{
	struct model *model = &models[counter];
	long before = model->value, sum;

	record(STEP_READ, cpu, counter, 0);
	enter(cpu);
	sum = counter_tree_precise_sum(&trees[counter]);
	leave();
	/* What moves up meanwhile is missed, and never counted twice. */
	if (!under_way && !model->down)
		CHECK(sum <= model->value && sum >= before - (long)shape.bound);
	if (!under_way && !model->up)
		CHECK(sum >= model->value && sum <= before + (long)shape.bound);
	check_counter(counter);
}

/* A CPU that is online: one of few, or any. */
static unsigned int next_cpu(void)
{
	unsigned int byte = next_byte();
	unsigned int cpu = byte < 200 ? byte % 20 : byte << 8 | next_byte();

	for (cpu %= nr_cpu_ids; !cpu_online(cpu); cpu = (cpu + 1) % nr_cpu_ids)
		;

	return cpu;
}

/* Around where it makes a difference. */
static long next_amount(void)
{
	unsigned int byte = next_byte();
	long near = (long)(next_byte() % 9) - 4;
	long sign = byte & 1 ? -1 : 1;
	long batch = LEAF_BATCH;

	switch (byte / 2 % 8) {
	case 0:
	case 1:
		return sign * (near + 4);
	case 2:
		return sign * (LEAF_BATCH / 2 + near);
	case 3:
		return sign * (2 * LEAF_BATCH + near);
	case 4:
		return sign * (1L << next_byte() % 41) + near;
	default:
		if (shape.nr_levels && byte & 16)
			batch = shape.level[next_byte() % shape.nr_levels].batch;
		return sign * (batch + near);
	}
}

/* Others, in the middle of something that this CPU does. */
void hosted_others(void)
{
	unsigned int op, cpu = hosted_cpu, other;
	int preempt_count = hosted_preempt_count;

	if (!inside || depth > MAX_DEPTH || !input.left || nr_steps > MAX_STEPS / 2)
		return;
	op = next_byte();
	if (op % 2)
		return;
	other = op / 2 % 8 < 2 ? cpu : next_cpu();
	/* Nothing else happens on such a CPU. */
	if (hosted_irqs_disabled[other])
		return;
	disturbed = true;
	inside = false;
	switch (op / 2 % 8) {
	case 0:
	case 1:
		/* An interrupt. */
		add(cpu, op / 16 % nr_trees, next_amount());
		break;
	case 2:
	case 3:
	case 4:
		hosted_preempt_count = 0;
		add(other, op / 16 % nr_trees, next_amount());
		break;
	case 5:
		if (preempt_count || !under_way ||
		    under_way->nr == ARRAY_SIZE(under_way->cpu))
			break;
		cpu = other;
		under_way->cpu[under_way->nr++] = cpu;
		record(STEP_MIGRATE, cpu, 0, 0);
		break;
	case 6:
		hosted_preempt_count = 0;
		read_sum(other, op / 16 % nr_trees);
		break;
	case 7:
		hosted_preempt_count = 0;
		if (!hosted_memory.fail)
			spread(other, 0);
		break;
	}
	hosted_cpu = cpu;
	hosted_preempt_count = preempt_count;
	inside = true;
}

static void sweep(unsigned int counter)
{
	unsigned int first = next_cpu(), by = 1 + next_byte() % 40;
	long amount = next_amount();

	for (unsigned int cpu = first; cpu < nr_cpu_ids; cpu += by) {
		if (cpu_online(cpu) && nr_steps < MAX_STEPS / 2)
			add(cpu, counter, amount);
	}
}

static void repeat(unsigned int counter)
{
	unsigned int cpu = next_cpu(), times = next_byte() % 40;
	long amount = next_amount();

	while (times--)
		add(cpu, counter, amount);
}

static void hotplug(void)
{
	unsigned int cpu = next_cpu();
	unsigned int nr = 0;

	for (unsigned int i = 0; i < nr_cpu_ids && nr < 2; i++)
		nr += cpu_online(i);
	/* The last one stays. */
	if (next_byte() % 2 && nr == 2) {
		hosted_offline[cpu] = true;
		record(STEP_OFFLINE, cpu, 0, 0);
		return;
	}
	cpu = (cpu + nr_cpu_ids - 1) % nr_cpu_ids;
	if (hosted_offline[cpu]) {
		hosted_offline[cpu] = false;
		record(STEP_ONLINE, cpu, 0, 0);
	}
}

static void step(void)
{
	unsigned int op = next_byte();
	unsigned int counter = next_byte() % nr_trees;

	if (op < 100)
		add(next_cpu(), counter, next_amount());
	else if (op < 120)
		repeat(counter);
	else if (op < 130)
		sweep(counter);
	else if (op < 150)
		hotplug();
	else if (op < 170)
		spread(next_cpu(), op % 4 ? 0 : 1 + op / 4 % 2);
	else {
		others = true;
		if (op < 230)
			add(next_cpu(), counter, next_amount());
		else if (op < 248)
			read_sum(next_cpu(), counter);
		else
			spread(next_cpu(), 0);
		others = false;
		for (unsigned int i = 0; i < nr_trees; i++)
			check_counter(i);
	}
}

static void make_machine(void)
{
	static const unsigned int batches[] = {
		2, 3, 5, 31, 32, 33, 64, 100, 257, 1000,
	};
	unsigned int shift[COUNTER_TREE_MAX_LEVELS];
	unsigned int batch[COUNTER_TREE_MAX_LEVELS];
	unsigned int byte = next_byte(), nr = 0;

	nr_trees = 1 + byte % MAX_COUNTERS;
	hosted_memory.offset = byte / MAX_COUNTERS % 8 * 8;
	byte = next_byte();
	/* Often not so many, which meet more often. */
	boot(byte % 4 ? 1 + byte / 4 : 1 + (byte << 8 | next_byte()) % MOST_CPUS);
	byte = next_byte();
	best = byte % 2;
	if (best) {
		counter_tree_init_shape(&shape, nr_cpu_ids);
		return;
	}
	for (unsigned int at = 0; nr < byte / 2 % 7 && at <= 9; nr++) {
		unsigned int level = next_byte();

		shift[nr] = at + level % 3;
		at = shift[nr] + 1;
		batch[nr] = batches[level / 3 % ARRAY_SIZE(batches)];
	}
	shape = odd_shape(nr_cpu_ids, nr, shift, batch);
	/* Nodes of a CPU each and of two: more than twice as many cells. */
	if (shape.nr_nodes + shape.nr_cpus > ARRAY_SIZE(used))
		shape = odd_shape(nr_cpu_ids, 0, NULL, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	long values[MAX_COUNTERS];

	input = (struct input){ data, size };
	make_machine();
	memset(models, 0, sizeof(*models) * nr_trees);
	memset(used, 0, sizeof(used));
	slack = 0;
	counter_tree_init_many(trees, nr_trees);
	nr_steps = 0;
	while (input.left && nr_steps < MAX_STEPS / 2)
		step();

	for (unsigned int i = 0; i < nr_trees; i++)
		values[i] = models[i].value;
	check_counters(trees, nr_trees, &shape, values);
	counter_tree_destroy_many(trees, nr_trees);
	CHECK(!is_spread());
	CHECK(!hosted_memory.nr);

	return 0;
}
