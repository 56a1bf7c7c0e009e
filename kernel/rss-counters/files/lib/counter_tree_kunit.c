// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests for counters that are updated on many CPUs.
 *
 * A counter is compared with a model, which gets the same additions on the same
 * CPUs: they must agree in root, value and slack. Shapes are chosen so that
 * machines with few CPUs use nodes, too.
 */
#include <kunit/test.h>

#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/mm_rss.h>
#include <linux/mman.h>
#include <linux/counter_tree.h>
#include <linux/prandom.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <linux/uaccess.h>

#define BATCH		COUNTER_TREE_BATCH
#define MAX_LEVELS	COUNTER_TREE_MAX_LEVELS
/* Up to here every number of CPUs is checked. */
#define MAX_CPUS	8192
#define NR_COUNTERS	COUNTER_TREE_MAX_COUNTERS
#define SEED		20240517

/* Limit for loops: thousands of identical reads prove no more. */
static bool failed(struct kunit *test)
{
	return test->status == KUNIT_FAILURE;
}

/* What a counter can be off by that has one shared count, as on stock. */
static u64 flat_bound(u64 nr_cpus)
{
	return nr_cpus * (max(32ULL, 2 * nr_cpus) - 1);
}

/* --- Shapes --- */

/* Twice the CPUs that meet in what a cell of this batch members on to. */
static void expect_no_line_is_hot(struct kunit *test,
				  const struct counter_tree_shape *shape)
{
	unsigned int batch = BATCH;

	for (unsigned int i = 0; i < shape->nr_levels; i++) {
		const struct counter_tree_level *level = &shape->level[i];

		KUNIT_EXPECT_GE(test, batch,
				2 * min(1U << level->shift, shape->nr_cpus));
		batch = level->batch;
	}
	/* For two more CPUs than 16 a node would cost more than it saves. */
	if (shape->nr_levels || shape->nr_cpus > 17)
		KUNIT_EXPECT_GE(test, batch, 2 * shape->nr_cpus);
}

static void expect_sound(struct kunit *test,
			 const struct counter_tree_shape *shape,
			 unsigned int nr_cpus)
{
	unsigned int nr_nodes = 0, shift = 0;
	u64 bound = (u64)nr_cpus * (BATCH - 1);

	KUNIT_EXPECT_EQ(test, shape->nr_cpus, nr_cpus);
	KUNIT_ASSERT_LE(test, shape->nr_levels, MAX_LEVELS);
	for (unsigned int i = 0; i < shape->nr_levels; i++) {
		const struct counter_tree_level *level = &shape->level[i];

		KUNIT_EXPECT_GT(test, level->shift, shift);
		KUNIT_EXPECT_GE(test, level->batch, 2);
		KUNIT_EXPECT_EQ(test, level->first, nr_nodes);
		/* A node for each CPU, and none without a CPU. */
		KUNIT_EXPECT_EQ(test, level->nr,
				((nr_cpus - 1) >> level->shift) + 1);
		shift = level->shift;
		nr_nodes += level->nr;
		bound += (u64)level->nr * (level->batch - 1);
	}
	KUNIT_EXPECT_EQ(test, shape->nr_nodes, nr_nodes);
	KUNIT_EXPECT_EQ(test, shape->bound, bound);
}

static void shapes_are_never_worse_than_flat(struct kunit *test)
{
	struct counter_tree_shape shape;

	for (unsigned int nr_cpus = 1; nr_cpus <= MAX_CPUS; nr_cpus++) {
		counter_tree_init_shape(&shape, nr_cpus);
		expect_sound(test, &shape, nr_cpus);
		expect_no_line_is_hot(test, &shape);
		KUNIT_EXPECT_LE_MSG(test, shape.bound, flat_bound(nr_cpus),
				    "with %u CPUs", nr_cpus);
		if (failed(test))
			break;
		cond_resched();
	}
}

static void shapes_of_large_machines_are_far_better(struct kunit *test)
{
	struct counter_tree_shape shape;

	counter_tree_init_shape(&shape, 64);
	KUNIT_EXPECT_LE(test, 2 * shape.bound, flat_bound(64));
	counter_tree_init_shape(&shape, 256);
	KUNIT_EXPECT_LE(test, 5 * shape.bound, flat_bound(256));

	/* The most there are levels for. */
	counter_tree_init_shape(&shape, 1U << 16);
	expect_sound(test, &shape, 1U << 16);
	expect_no_line_is_hot(test, &shape);
	KUNIT_EXPECT_LE(test, 1000ULL * shape.bound, flat_bound(1U << 16));
}

/* --- Counters next to their model --- */

/**
 * struct shape_param - a shape of the tests' own
 * @name: for the log
 * @nr_levels: of @level; none, and no @flat: those for its CPUs
 * @flat: no levels
 * @level: a node for each 2^@shift CPUs, and its batch
 */
struct shape_param {
	const char *name;
	unsigned int nr_levels;
	bool flat;
	struct {
		unsigned int shift;
		unsigned int batch;
	} level[MAX_LEVELS];
};

static const struct shape_param shape_params[] = {
	{ "the machine's" },
	{ "flat", .flat = true },
	{ "node for each CPU", 1, .level = { { 0, 100 } } },
	{ "node for two CPUs", 1, .level = { { 1, 64 } } },
	{ "node for all CPUs", 1, .level = { { 16, 1000 } } },
	{ "nodes narrower than CPUs", 1, .level = { { 0, 2 } } },
	{ "ones, then pairs, then all", 3,
	  .level = { { 0, 64 }, { 1, 128 }, { 16, 256 } } },
	{ "wide, then narrow batches", 3,
	  .level = { { 0, 1000 }, { 1, 3 }, { 2, 50 } } },
	{ "as many levels as there can be", MAX_LEVELS,
	  .level = { { 0, 33 }, { 0, 34 }, { 1, 40 }, { 1, 50 },
		     { 2, 80 }, { 2, 99 } } },
};

KUNIT_ARRAY_PARAM_DESC(shape, shape_params, name);

static struct counter_tree_shape *make_shape(struct kunit *test,
					     const struct shape_param *param)
{
	struct counter_tree_shape *shape;

	shape = kunit_kzalloc(test, sizeof(*shape), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, shape);
	if (!param->flat && !param->nr_levels) {
		counter_tree_init_shape(shape, nr_cpu_ids);
		return shape;
	}
	shape->nr_cpus = nr_cpu_ids;
	shape->nr_levels = param->nr_levels;
	shape->bound = nr_cpu_ids * (BATCH - 1);
	for (unsigned int i = 0; i < param->nr_levels; i++) {
		struct counter_tree_level *level = &shape->level[i];

		level->shift = param->level[i].shift;
		level->batch = param->level[i].batch;
		level->first = shape->nr_nodes;
		level->nr = ((nr_cpu_ids - 1) >> level->shift) + 1;
		shape->nr_nodes += level->nr;
		shape->bound += level->nr * (level->batch - 1);
	}

	return shape;
}

/**
 * struct use - which cells have been used, by any counter of a set
 * @cell: nodes first
 * @slack: what these can hold back
 */
struct use {
	bool *cell;
	long slack;
};

/**
 * struct model - what a counter is to be
 * @shape: its levels
 * @use: of the cells
 * @held: by each cell, nodes first
 * @root: what has arrived
 * @total: what was added
 */
struct model {
	const struct counter_tree_shape *shape;
	struct use *use;
	long *held;
	long root;
	long total;
};

static void use_init(struct kunit *test, struct use *use,
		     const struct counter_tree_shape *shape)
{
	unsigned int nr = shape->nr_nodes + shape->nr_cpus;

	use->slack = 0;
	use->cell = kunit_kcalloc(test, nr, sizeof(*use->cell), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, use->cell);
}

static void model_init(struct kunit *test, struct model *m, struct use *use,
		       const struct counter_tree_shape *shape)
{
	unsigned int nr = shape->nr_nodes + shape->nr_cpus;

	*m = (struct model){ .shape = shape, .use = use };
	m->held = kunit_kcalloc(test, nr, sizeof(*m->held), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, m->held);
}

/* What the cell above gets. */
static long model_cell(struct model *m, unsigned int cell, long batch,
		       long amount)
{
	if (!m->use->cell[cell]) {
		if (abs(amount) >= batch)
			return amount;
		m->use->cell[cell] = true;
		m->use->slack += NR_COUNTERS * (batch - 1);
	}
	amount += m->held[cell];
	m->held[cell] = 0;
	if (abs(amount) >= batch)
		return amount;
	m->held[cell] = amount;

	return 0;
}

static void model_add(struct model *m, unsigned int cpu, long amount)
{
	const struct counter_tree_level *level = m->shape->level;

	m->total += amount;
	amount = model_cell(m, m->shape->nr_nodes + cpu, BATCH, amount);
	for (unsigned int i = 0; i < m->shape->nr_levels && amount; i++) {
		amount = model_cell(m, level[i].first + (cpu >> level[i].shift),
				    level[i].batch, amount);
	}
	m->root += amount;
}

/* What was added before the counter was spread. */
static void model_add_unspread(struct model *m, long amount)
{
	m->total += amount;
	m->root += amount;
}

static void expect_as_model(struct kunit *test,
			    const struct counter_tree *tree,
			    const struct model *m)
{
	KUNIT_EXPECT_EQ(test, counter_tree_precise_sum(tree), m->total);
	KUNIT_EXPECT_EQ(test, counter_tree_approximate_sum(tree),
			m->root);
}

/* Continue on @cpu. Every case has a thread of its own, which ends with it. */
static void run_on(struct kunit *test, unsigned int cpu)
{
	KUNIT_ASSERT_EQ(test, set_cpus_allowed_ptr(current, cpumask_of(cpu)), 0);
	KUNIT_ASSERT_EQ(test, raw_smp_processor_id(), cpu);
}

static unsigned int random_cpu(struct rnd_state *rnd)
{
	unsigned int skip = prandom_u32_state(rnd) % num_online_cpus();
	unsigned int cpu = cpumask_first(cpu_online_mask);

	while (skip--)
		cpu = cpumask_next(cpu, cpu_online_mask);

	return cpu;
}

/* Of all sizes that make a difference to some cell, in both directions. */
static long random_amount(struct rnd_state *rnd,
			  const struct counter_tree_shape *shape)
{
	u32 bits = prandom_u32_state(rnd);
	long batch = BATCH;
	long amount;

	if (shape->nr_levels && bits & 1)
		batch = shape->level[(bits >> 1) % shape->nr_levels].batch;
	bits = prandom_u32_state(rnd);
	switch (bits % 8) {
	case 0:
		amount = batch - 2 + (bits >> 8) % 4;
		break;
	case 1:
		amount = (bits >> 8) % (4 * batch);
		break;
	case 2:
		amount = (long)(bits >> 4) << 20;
		break;
	default:
		amount = 1 + (bits >> 8) % 3;
	}

	return prandom_u32_state(rnd) & 1 ? amount : -amount;
}

/**
 * struct set - counters that are initialized together, and their models
 * @trees: the counters
 * @models: theirs
 * @use: of their cells
 * @shape: that they are spread in
 */
struct set {
	struct counter_tree trees[NR_COUNTERS];
	struct model models[NR_COUNTERS];
	struct use use;
	struct counter_tree_shape *shape;
};

static void set_destroy(void *arg)
{
	struct set *set = arg;

	counter_tree_destroy_many(set->trees, NR_COUNTERS);
}

static struct set *make_set(struct kunit *test, const struct shape_param *param)
{
	struct set *set = kunit_kzalloc(test, sizeof(*set), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, set);
	set->shape = make_shape(test, param);
	use_init(test, &set->use, set->shape);
	for (unsigned int i = 0; i < NR_COUNTERS; i++)
		model_init(test, &set->models[i], &set->use, set->shape);
	/* Earlier values must not matter. */
	memset(set->trees, 0xa5, sizeof(set->trees));
	counter_tree_init_many(set->trees, NR_COUNTERS);
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, set_destroy, set),
			0);

	return set;
}

static void spread(struct kunit *test, struct set *set)
{
	KUNIT_ASSERT_EQ(test, counter_tree_spread_shape(set->trees, NR_COUNTERS,
							set->shape,
							GFP_KERNEL), 0);
	for (unsigned int i = 0; i < NR_COUNTERS; i++)
		KUNIT_ASSERT_TRUE(test, counter_tree_is_spread(&set->trees[i]));
}

static void expect_set_as_models(struct kunit *test, struct set *set)
{
	long sums[NR_COUNTERS], roots = 0, total = 0;

	counter_tree_sums(set->trees, NR_COUNTERS, sums);
	for (unsigned int i = 0; i < NR_COUNTERS; i++) {
		expect_as_model(test, &set->trees[i], &set->models[i]);
		KUNIT_EXPECT_EQ(test, sums[i], set->models[i].total);
		roots += set->models[i].root;
		total += set->models[i].total;
	}
	KUNIT_EXPECT_EQ(test, counter_tree_total(set->trees, NR_COUNTERS),
			total);
	KUNIT_EXPECT_EQ(test, counter_tree_slack(set->trees),
			set->use.slack);
	KUNIT_EXPECT_LE(test, abs(total - roots), set->use.slack);
	KUNIT_EXPECT_LE(test, set->use.slack, (long)NR_COUNTERS * set->shape->bound);
}

/* On the CPU that this runs on. */
static void add(struct set *set, unsigned int i, long amount)
{
	model_add(&set->models[i], raw_smp_processor_id(), amount);
	counter_tree_add(&set->trees[i], amount);
}

static void unspread_is_exact(struct kunit *test)
{
	struct set *set = make_set(test, &shape_params[0]);
	struct rnd_state rnd;

	prandom_seed_state(&rnd, SEED);
	expect_set_as_models(test, set);
	for (unsigned int i = 0; i < 500 && !failed(test); i++) {
		unsigned int k = prandom_u32_state(&rnd) % NR_COUNTERS;
		long amount = random_amount(&rnd, set->shape);

		if (i % 20 == 0)
			run_on(test, random_cpu(&rnd));
		model_add_unspread(&set->models[k], amount);
		counter_tree_add(&set->trees[k], amount);
		/* The slack is 0. */
		expect_set_as_models(test, set);
	}
	for (unsigned int i = 0; i < NR_COUNTERS; i++) {
		KUNIT_EXPECT_FALSE(test, counter_tree_is_spread(&set->trees[i]));
		KUNIT_EXPECT_EQ(test, counter_tree_bytes(&set->trees[i]), 0);
	}
}

static void is_as_its_model(struct kunit *test)
{
	struct set *set = make_set(test, test->param_value);
	struct rnd_state rnd;

	prandom_seed_state(&rnd, SEED);
	for (unsigned int i = 0; i < NR_COUNTERS; i++) {
		model_add_unspread(&set->models[i], 1000 * i);
		counter_tree_add(&set->trees[i], 1000 * i);
	}
	spread(test, set);
	/* Nothing is held back as yet. */
	expect_set_as_models(test, set);
	for (unsigned int i = 0; i < 1500 && !failed(test); i++) {
		if (i % 15 == 0)
			run_on(test, random_cpu(&rnd));
		add(set, prandom_u32_state(&rnd) % NR_COUNTERS,
		    random_amount(&rnd, set->shape));
		expect_set_as_models(test, set);
	}
}

/* One step at a time over all that the cells can hold, and back, twice. */
static void is_as_its_model_step_by_step(struct kunit *test)
{
	struct set *set = make_set(test, test->param_value);

	spread(test, set);
	run_on(test, cpumask_last(cpu_online_mask));
	for (long i = 0; i < 4200 && !failed(test); i++) {
		add(set, 1, i / 1050 % 2 ? -1 : 1);
		expect_as_model(test, &set->trees[1], &set->models[1]);
	}
}

static long slack_of(const struct set *set)
{
	return counter_tree_slack(set->trees);
}

static void slack_is_counted_once_for_a_cell(struct kunit *test)
{
	static const struct shape_param param = {
		"", 1, .level = { { 16, 1000 } }
	};
	struct set *set = make_set(test, &param);
	const long leaves = NR_COUNTERS * (BATCH - 1);
	unsigned int cpu, nr = 0;

	spread(test, set);
	for_each_online_cpu(cpu) {
		run_on(test, cpu);
		add(set, 0, 1);
		nr++;
		KUNIT_EXPECT_EQ(test, slack_of(set), nr * leaves);
		add(set, 0, -1);
		add(set, 0, 2);
		/* Also for the others. */
		add(set, 1, 1);
		KUNIT_EXPECT_EQ(test, slack_of(set), nr * leaves);
	}
	/* The node gets something for the first time, and for the second. */
	for (unsigned int i = 0; i < 2; i++) {
		add(set, 0, BATCH);
		KUNIT_EXPECT_EQ(test, slack_of(set),
				nr * leaves + NR_COUNTERS * 999);
	}
	expect_set_as_models(test, set);
}

static void what_passes_through_uses_no_cells(struct kunit *test)
{
	static const struct shape_param param = {
		"", 2, .level = { { 0, 64 }, { 16, 128 } }
	};
	struct set *set = make_set(test, &param);

	spread(test, set);
	/* Both directions, just enough and far more. */
	add(set, 0, 128);
	add(set, 0, -128);
	add(set, 0, -1000000);
	KUNIT_EXPECT_EQ(test, slack_of(set), 0);
	KUNIT_EXPECT_EQ(test, counter_tree_approximate_sum(&set->trees[0]),
			-1000000);
	/* Past the CPU and the first node, which is full of less than that. */
	add(set, 1, 64);
	KUNIT_EXPECT_EQ(test, slack_of(set), NR_COUNTERS * 127);
	/* Past the CPU. */
	add(set, 2, -32);
	KUNIT_EXPECT_EQ(test, slack_of(set), NR_COUNTERS * (127 + 63));
	add(set, 3, -31);
	KUNIT_EXPECT_EQ(test, slack_of(set), NR_COUNTERS * (127 + 63 + 31));
	expect_set_as_models(test, set);
}

static void spread_sets_are_as_they_were(struct kunit *test)
{
	struct set *set = make_set(test, &shape_params[1]);
	struct counter_tree_cells *cells;

	spread(test, set);
	add(set, 0, 7);
	cells = set->trees[0].cells;
	spread(test, set);
	KUNIT_EXPECT_PTR_EQ(test, set->trees[0].cells, cells);
	expect_set_as_models(test, set);
}

static void is_spread_in_the_shape_of_the_machine(struct kunit *test)
{
	struct counter_tree_shape shape;
	struct counter_tree tree;
	struct rnd_state rnd;
	struct model model;
	struct use use;
	size_t bytes;

	counter_tree_init_shape(&shape, nr_cpu_ids);
	use_init(test, &use, &shape);
	model_init(test, &model, &use, &shape);
	counter_tree_init_many(&tree, 1);
	KUNIT_ASSERT_EQ(test, counter_tree_spread_many(&tree, 1, GFP_KERNEL),
			0);
	bytes = counter_tree_bytes(&tree);
	KUNIT_EXPECT_GE(test, bytes, NR_COUNTERS * num_possible_cpus() +
			shape.nr_nodes * L1_CACHE_BYTES);
	prandom_seed_state(&rnd, SEED);
	for (unsigned int i = 0; i < 500 && !failed(test); i++) {
		long amount = random_amount(&rnd, &shape);

		if (i % 20 == 0 &&
		    set_cpus_allowed_ptr(current, cpumask_of(random_cpu(&rnd))))
			break;
		model_add(&model, raw_smp_processor_id(), amount);
		counter_tree_add(&tree, amount);
		expect_as_model(test, &tree, &model);
	}
	counter_tree_destroy_many(&tree, 1);
	KUNIT_EXPECT_FALSE(test, counter_tree_is_spread(&tree));
	KUNIT_EXPECT_EQ(test, counter_tree_bytes(&tree), 0);
	/* There is nothing left that could be freed twice. */
	counter_tree_destroy_many(&tree, 1);
}

static void goes_on_without_memory(struct kunit *test)
{
	struct counter_tree_shape vast = {
		.nr_cpus = nr_cpu_ids,
		/* More bytes than there can be in one piece: INT_MAX. */
		.nr_nodes = INT_MAX / L1_CACHE_BYTES + 1,
	};
	struct set *set = make_set(test, &shape_params[2]);
	const gfp_t gfp = GFP_KERNEL | __GFP_NOWARN;

	KUNIT_EXPECT_EQ(test, counter_tree_spread_shape(set->trees,
							NR_COUNTERS,
							&vast, gfp),
			-ENOMEM);
	for (unsigned int i = 0; i < NR_COUNTERS; i++) {
		KUNIT_EXPECT_FALSE(test, counter_tree_is_spread(&set->trees[i]));
		model_add_unspread(&set->models[i], 3);
		counter_tree_add(&set->trees[i], 3);
	}
	expect_set_as_models(test, set);
	/* A later attempt may succeed. */
	spread(test, set);
	add(set, 1, 5);
	expect_set_as_models(test, set);
}

/* --- Many at a time --- */

/* Threads on each CPU, which preempt each other. */
#define THREADS_PER_CPU	2

struct team;

/**
 * struct member - a thread of a team
 * @team: its team
 * @task: the thread
 * @seed: for random numbers
 * @begun: additions that have started, or their sum, depending on the job
 * @done: the same for additions that have finished
 * @added: to each counter, if the job uses it
 * @result: of the job
 */
struct member {
	struct team *team;
	struct task_struct *task;
	u32 seed;
	long begun;
	long done;
	long added[NR_COUNTERS];
	int result;
};

/**
 * struct team - threads on all CPUs
 * @nr: entries in @members
 * @members: the threads
 * @set: counters that they add to
 * @many: the same for jobs that need more of them
 * @arrived: threads that have reached the barrier
 * @ready: threads that have started
 */
struct team {
	unsigned int nr;
	struct member *members;
	struct set *set;
	struct counter_tree *many;
	atomic_t arrived;
	atomic_t ready;
};

static void team_stop(void *arg)
{
	struct team *team = arg;

	for (unsigned int i = 0; i < team->nr; i++) {
		struct member *member = &team->members[i];

		if (member->task)
			member->result = kthread_stop_put(member->task);
		member->task = NULL;
	}
}

/* Starts @job on all CPUs; it is stopped with the test at the latest. */
static struct team *team_start(struct kunit *test, unsigned int per_cpu,
			       int (*job)(void *member), struct set *set,
			       struct counter_tree *many)
{
	struct team *team = kunit_kzalloc(test, sizeof(*team), GFP_KERNEL);
	unsigned int cpu, i = 0;

	KUNIT_ASSERT_NOT_NULL(test, team);
	team->nr = per_cpu * num_online_cpus();
	team->set = set;
	team->many = many;
	team->members = kunit_kcalloc(test, team->nr, sizeof(*team->members),
				      GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, team->members);
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, team_stop, team),
			0);
	for_each_online_cpu(cpu) {
		for (unsigned int k = 0; k < per_cpu; k++, i++) {
			struct member *member = &team->members[i];
			struct task_struct *task;

			member->team = team;
			member->seed = SEED + i;
			task = kthread_create(job, member, "counter/%u", i);
			KUNIT_ASSERT_FALSE(test, IS_ERR(task));
			kthread_bind(task, cpu);
			member->task = get_task_struct(task);
		}
	}
	for (i = 0; i < team->nr; i++)
		wake_up_process(team->members[i].task);

	return team;
}

/* Until all are here, which is the @turn-th time, from 1. */
static void meet(struct team *team, unsigned int turn)
{
	atomic_inc(&team->arrived);
	while (atomic_read(&team->arrived) < team->nr * turn) {
		if (kthread_should_stop())
			return;
		cpu_relax();
	}
}

static int wait_to_be_stopped(void)
{
	while (!kthread_should_stop())
		schedule_timeout_idle(1);

	return 0;
}

/* Adds only ones, so that readers know which values are possible. */
static int count_up(void *arg)
{
	struct member *member = arg;
	struct counter_tree *tree = &member->team->set->trees[1];

	while (!kthread_should_stop()) {
		WRITE_ONCE(member->begun, member->begun + 1);
		/* Pairs with the barrier in begun_by_all(). */
		smp_mb();
		counter_tree_add(tree, 1);
		/* Pairs with the barrier in done_by_all(). */
		smp_mb();
		WRITE_ONCE(member->done, member->done + 1);
		cond_resched();
	}

	return 0;
}

static long begun_by_all(struct team *team)
{
	long sum = 0;

	/* Whose addition has been seen has begun. */
	smp_mb();
	for (unsigned int i = 0; i < team->nr; i++)
		sum += READ_ONCE(team->members[i].begun);

	return sum;
}

static long done_by_all(struct team *team)
{
	long sum = 0;

	for (unsigned int i = 0; i < team->nr; i++)
		sum += READ_ONCE(team->members[i].done);
	/* Finished additions are visible. */
	smp_mb();

	return sum;
}

/* Of a set in which only @tree has been added to. */
static void range_of(const struct set *set, const struct counter_tree *tree,
		     long *lowest, long *highest)
{
	long sum = counter_tree_approximate_sum(tree);
	long slack;

	/* See counter_tree_slack(). */
	smp_rmb();
	slack = slack_of(set);
	*lowest = sum - slack;
	*highest = sum + slack;
}

/* What of one kind of sum was never too much, and never too little. */
static void look_at_counting(struct kunit *test, struct team *team,
			     unsigned int looks)
{
	struct counter_tree *tree = &team->set->trees[1];
	const struct counter_tree_shape *shape = team->set->shape;
	long lowest, highest, sum, total, least, most;
	long slack = (long)NR_COUNTERS * shape->bound;
	long on_the_way = BATCH;

	/* What each thread may have between two cells: all that they held. */
	for (unsigned int i = 0; i < shape->nr_levels; i++)
		on_the_way += shape->level[i].batch;
	on_the_way *= team->nr;
	for (unsigned int i = 0; i < looks && !failed(test); i++) {
		least = done_by_all(team);
		sum = counter_tree_precise_sum(tree);
		total = counter_tree_total(team->set->trees, NR_COUNTERS);
		range_of(team->set, tree, &lowest, &highest);
		most = begun_by_all(team);

		KUNIT_EXPECT_LE(test, sum, most);
		KUNIT_EXPECT_GE(test, sum, least - shape->bound - on_the_way);
		KUNIT_EXPECT_LE(test, total, most);
		KUNIT_EXPECT_GE(test, total, least - shape->bound - on_the_way);
		KUNIT_EXPECT_LE(test, lowest, most);
		KUNIT_EXPECT_GE(test, highest, least - on_the_way);
		KUNIT_EXPECT_GE(test, lowest,
				least - shape->bound - slack - on_the_way);
		KUNIT_EXPECT_LE(test, slack_of(team->set),
				slack + (long)team->nr * on_the_way * NR_COUNTERS);
		if (i % 16 == 0)
			usleep_range(100, 1000);
	}
}

static void can_be_read_while_all_count(struct kunit *test)
{
	struct set *set = make_set(test, test->param_value);
	struct team *team = team_start(test, THREADS_PER_CPU, count_up, set, NULL);
	long lowest, highest, total;

	look_at_counting(test, team, 100);
	/* In the middle of it. */
	spread(test, set);
	look_at_counting(test, team, 300);
	kunit_release_action(test, team_stop, team);

	total = done_by_all(team);
	KUNIT_EXPECT_GT(test, total, 0);
	KUNIT_EXPECT_EQ(test, counter_tree_precise_sum(&set->trees[1]), total);
	range_of(set, &set->trees[1], &lowest, &highest);
	KUNIT_EXPECT_LE(test, lowest, total);
	KUNIT_EXPECT_GE(test, highest, total);
	KUNIT_EXPECT_LE(test, slack_of(set), (long)NR_COUNTERS * set->shape->bound);
	/* The neighbours' bytes are unchanged. */
	KUNIT_EXPECT_EQ(test, counter_tree_precise_sum(&set->trees[0]), 0);
	KUNIT_EXPECT_EQ(test, counter_tree_precise_sum(&set->trees[2]), 0);
}

static int count_wildly(void *arg)
{
	struct member *member = arg;
	struct set *set = member->team->set;
	struct rnd_state rnd;

	prandom_seed_state(&rnd, member->seed);
	while (!kthread_should_stop()) {
		unsigned int i = prandom_u32_state(&rnd) % NR_COUNTERS;
		long amount = random_amount(&rnd, set->shape);

		counter_tree_add(&set->trees[i], amount);
		member->added[i] += amount;
		cond_resched();
	}

	return 0;
}

/* From an interrupt, at whatever the CPU was about to do. */
static void add_three(void *arg)
{
	struct set *set = arg;

	for (unsigned int i = 0; i < NR_COUNTERS; i++)
		counter_tree_add(&set->trees[i], 3);
}

static void loses_nothing_while_all_count(struct kunit *test)
{
	struct set *set = make_set(test, test->param_value);
	const unsigned int interrupts = 100;
	unsigned int nr_cpus = 0;
	long off = 0, all = 0;
	struct team *team;

	team = team_start(test, THREADS_PER_CPU, count_wildly, set, NULL);
	for (unsigned int i = 0; i < interrupts; i++) {
		if (i == interrupts / 8)
			spread(test, set);
		cpus_read_lock();
		on_each_cpu(add_three, set, 1);
		nr_cpus += num_online_cpus();
		cpus_read_unlock();
		if (i % 4 == 0)
			usleep_range(100, 1000);
	}
	kunit_release_action(test, team_stop, team);

	for (unsigned int i = 0; i < NR_COUNTERS; i++) {
		struct counter_tree *tree = &set->trees[i];
		long total = 3L * nr_cpus;

		for (unsigned int k = 0; k < team->nr; k++)
			total += team->members[k].added[i];
		KUNIT_EXPECT_EQ(test, counter_tree_precise_sum(tree), total);
		off += total - counter_tree_approximate_sum(tree);
		all += total;
	}
	KUNIT_EXPECT_EQ(test, counter_tree_total(set->trees, NR_COUNTERS),
			all);
	KUNIT_EXPECT_LE(test, abs(off), slack_of(set));
	KUNIT_EXPECT_LE(test, slack_of(set), (long)NR_COUNTERS * set->shape->bound);
}

/* All threads use new counters for the first time at once. */
#define NR_NEW		1000

static int add_to_new(void *arg)
{
	struct member *member = arg;
	struct team *team = member->team;

	for (unsigned int i = 0; i < NR_NEW; i++) {
		meet(team, i + 1);
		counter_tree_add(&team->many[i], BATCH);
		cond_resched();
	}
	atomic_inc(&team->ready);

	return wait_to_be_stopped();
}

static void destroy_new(void *many)
{
	struct counter_tree *trees = many;

	for (unsigned int i = 0; i < NR_NEW; i++)
		counter_tree_destroy_many(&trees[i], 1);
	kvfree(many);
}

static void slack_is_counted_once_by_many(struct kunit *test)
{
	static const struct shape_param param = {
		/* Past the CPUs' own cells, all to the same node. */
		"", 2, .level = { { 16, 100000 }, { 16, 1000000 } }
	};
	struct counter_tree_shape *shape = make_shape(test, &param);
	struct counter_tree *many;
	struct team *team;

	many = kvcalloc(NR_NEW, sizeof(*many), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, many);
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, destroy_new, many),
			0);
	for (unsigned int i = 0; i < NR_NEW; i++)
		KUNIT_ASSERT_EQ(test, counter_tree_spread_shape(&many[i], 1,
								shape,
								GFP_KERNEL),
				0);
	/* One on each: they wait for each other without giving way. */
	team = team_start(test, 1, add_to_new, NULL, many);
	while (atomic_read(&team->ready) < team->nr)
		schedule_timeout_idle(1);
	for (unsigned int i = 0; i < NR_NEW && !failed(test); i++) {
		KUNIT_EXPECT_EQ(test, counter_tree_precise_sum(&many[i]),
				(long)team->nr * BATCH);
		KUNIT_EXPECT_EQ(test, counter_tree_slack(&many[i]),
				NR_COUNTERS * (100000 - 1));
	}
}

/* Sets that are spread by all at the same moment. */
#define NR_SETS		100

static int spread_and_add(void *arg)
{
	struct member *member = arg;
	struct team *team = member->team;
	int ret = 0;

	for (unsigned int i = 0; i < NR_SETS; i++) {
		struct counter_tree *trees = &team->many[i * NR_COUNTERS];

		meet(team, i + 1);
		if (counter_tree_spread_many(trees, NR_COUNTERS, GFP_KERNEL))
			ret = -ENOMEM;
		for (unsigned int k = 0; k < NR_COUNTERS; k++)
			counter_tree_add(&trees[k], k + 1);
	}
	WRITE_ONCE(member->result, ret);
	atomic_inc(&team->ready);
	wait_to_be_stopped();

	return ret;
}

static void destroy_sets(void *many)
{
	struct counter_tree *trees = many;

	for (unsigned int i = 0; i < NR_SETS; i++)
		counter_tree_destroy_many(&trees[i * NR_COUNTERS],
					  NR_COUNTERS);
	kvfree(many);
}

static void can_be_spread_by_many(struct kunit *test)
{
	struct counter_tree *many;
	struct team *team;

	many = kvcalloc(NR_SETS * NR_COUNTERS, sizeof(*many), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, many);
	for (unsigned int i = 0; i < NR_SETS; i++)
		counter_tree_init_many(&many[i * NR_COUNTERS], NR_COUNTERS);
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, destroy_sets, many),
			0);
	team = team_start(test, 1, spread_and_add, NULL, many);
	while (atomic_read(&team->ready) < team->nr)
		schedule_timeout_idle(1);
	for (unsigned int i = 0; i < team->nr; i++)
		KUNIT_EXPECT_EQ(test, READ_ONCE(team->members[i].result), 0);
	for (unsigned int i = 0; i < NR_SETS && !failed(test); i++) {
		struct counter_tree *trees = &many[i * NR_COUNTERS];

		KUNIT_ASSERT_NOT_NULL(test, trees[0].cells);
		for (unsigned int k = 0; k < NR_COUNTERS; k++) {
			KUNIT_EXPECT_PTR_EQ(test, trees[k].cells, trees[0].cells);
			KUNIT_EXPECT_EQ(test,
					counter_tree_precise_sum(&trees[k]),
					(long)team->nr * (k + 1));
		}
	}
}

/* --- CPUs that come and go --- */

/* A CPU that can be taken away; -1 if there is none. */
static int some_cpu_offline(struct kunit *test)
{
	unsigned int cpu;

	for_each_online_cpu(cpu) {
		if (cpu && cpu_is_hotpluggable(cpu))
			return cpu;
	}

	return -1;
}

static void cpu_back(void *arg)
{
	add_cpu((unsigned long)arg);
}

static void survives_cpus_that_go(struct kunit *test)
{
	struct set *set = make_set(test, test->param_value);
	int cpu = some_cpu_offline(test);
	long slack;

	if (!IS_ENABLED(CONFIG_HOTPLUG_CPU) || cpu < 0)
		kunit_skip(test, "no CPU can be taken offline");
	spread(test, set);
	run_on(test, cpu);
	add(set, 0, 31);
	add(set, 1, -31);
	add(set, 2, 33);
	run_on(test, 0);
	add(set, 2, -2);
	if (remove_cpu(cpu))
		kunit_skip(test, "CPU %d does not go offline", cpu);
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, cpu_back,
							(void *)(unsigned long)cpu),
			0);
	KUNIT_EXPECT_FALSE(test, cpu_online(cpu));
	expect_set_as_models(test, set);
	/* The others continue, also in the nodes that it used. */
	for (unsigned int i = 0; i < 100 && !failed(test); i++) {
		add(set, 1, i % 7 - 2);
		expect_set_as_models(test, set);
	}
	kunit_release_action(test, cpu_back, (void *)(unsigned long)cpu);
	KUNIT_ASSERT_TRUE(test, cpu_online(cpu));
	expect_set_as_models(test, set);
	slack = slack_of(set);

	/* It finds what it had left, and nothing is counted twice. */
	run_on(test, cpu);
	add(set, 0, -1);
	expect_set_as_models(test, set);
	KUNIT_EXPECT_EQ(test, slack_of(set), slack);
	for (unsigned int i = 0; i < 100 && !failed(test); i++) {
		add(set, 0, i % 5 - 1);
		expect_set_as_models(test, set);
	}
}

static void can_be_destroyed_while_a_cpu_is_gone(struct kunit *test)
{
	struct set *set = make_set(test, &shape_params[2]);
	int cpu = some_cpu_offline(test);

	if (!IS_ENABLED(CONFIG_HOTPLUG_CPU) || cpu < 0)
		kunit_skip(test, "no CPU can be taken offline");
	spread(test, set);
	run_on(test, cpu);
	add(set, 0, 5);
	run_on(test, 0);
	if (remove_cpu(cpu))
		kunit_skip(test, "CPU %d does not go offline", cpu);
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, cpu_back,
							(void *)(unsigned long)cpu),
			0);
	counter_tree_destroy_many(set->trees, NR_COUNTERS);

	/* And be spread while it is gone: it starts with nothing. */
	counter_tree_init_many(set->trees, NR_COUNTERS);
	use_init(test, &set->use, set->shape);
	for (unsigned int i = 0; i < NR_COUNTERS; i++)
		model_init(test, &set->models[i], &set->use, set->shape);
	spread(test, set);
	add(set, 0, 1);
	kunit_release_action(test, cpu_back, (void *)(unsigned long)cpu);
	run_on(test, cpu);
	add(set, 0, 2);
	expect_set_as_models(test, set);
}

static struct kunit_case counter_tree_cases[] = {
	KUNIT_CASE_SLOW(shapes_are_never_worse_than_flat),
	KUNIT_CASE(shapes_of_large_machines_are_far_better),
	KUNIT_CASE(unspread_is_exact),
	KUNIT_CASE_PARAM(is_as_its_model, shape_gen_params),
	KUNIT_CASE_PARAM(is_as_its_model_step_by_step, shape_gen_params),
	KUNIT_CASE(slack_is_counted_once_for_a_cell),
	KUNIT_CASE(what_passes_through_uses_no_cells),
	KUNIT_CASE(spread_sets_are_as_they_were),
	KUNIT_CASE(is_spread_in_the_shape_of_the_machine),
	KUNIT_CASE(goes_on_without_memory),
	KUNIT_CASE_PARAM_ATTR(can_be_read_while_all_count, shape_gen_params,
			      { .speed = KUNIT_SPEED_SLOW }),
	KUNIT_CASE_PARAM_ATTR(loses_nothing_while_all_count, shape_gen_params,
			      { .speed = KUNIT_SPEED_SLOW }),
	KUNIT_CASE(slack_is_counted_once_by_many),
	KUNIT_CASE(can_be_spread_by_many),
	KUNIT_CASE_PARAM(survives_cpus_that_go, shape_gen_params),
	KUNIT_CASE(can_be_destroyed_while_a_cpu_is_gone),
	{}
};

static struct kunit_suite counter_tree_suite = {
	.name = "counter_tree",
	.test_cases = counter_tree_cases,
};

/* --- Address spaces that kernel threads borrow --- */

#ifdef CONFIG_MEMREAP_RSS_COUNTERS

#define NR_PAGES	40

/**
 * struct borrower - a kernel thread that uses the test's address space
 * @mm: that address space
 * @addr: of the pages that it is to touch
 * @touch: or to unmap
 * @done: it has
 * @failed: it could not
 */
struct borrower {
	struct mm_struct *mm;
	unsigned long addr;
	bool touch;
	struct completion done;
	bool failed;
};

static bool touch_pages(unsigned long addr)
{
	for (unsigned int i = 0; i < NR_PAGES; i++) {
		if (put_user(1, (int __user *)(addr + i * PAGE_SIZE)))
			return false;
	}

	return true;
}

static int borrow(void *arg)
{
	struct borrower *b = arg;

	kthread_use_mm(b->mm);
	b->failed = b->touch ? !touch_pages(b->addr) :
			       vm_munmap(b->addr, NR_PAGES * PAGE_SIZE);
	kthread_unuse_mm(b->mm);
	complete(&b->done);

	return 0;
}

/* Touches, or unmaps, NR_PAGES at @addr on @cpu. */
static void lend(struct kunit *test, unsigned long addr, bool touch,
		 unsigned int cpu)
{
	struct borrower b = { .mm = current->mm, .addr = addr, .touch = touch };
	struct task_struct *task;

	init_completion(&b.done);
	task = kthread_create(borrow, &b, "borrower");
	KUNIT_ASSERT_FALSE(test, IS_ERR(task));
	kthread_bind(task, cpu);
	wake_up_process(task);
	wait_for_completion(&b.done);
	KUNIT_EXPECT_FALSE(test, b.failed);
}

static void expect_anon(struct kunit *test, long pages)
{
	long sums[NR_MM_COUNTERS], sum = 0, near, slack;

	get_mm_counter_sums(current->mm, sums);
	for (int i = 0; i < NR_MM_COUNTERS; i++) {
		KUNIT_EXPECT_EQ(test, sums[i], mm_counter_sum(current->mm, i));
		sum += sums[i];
	}
	KUNIT_EXPECT_EQ(test, sums[MM_ANONPAGES], pages);
	KUNIT_EXPECT_EQ(test, mm_rss_total(current->mm), sum);
	near = mm_rss_near(current->mm, &slack);
	KUNIT_EXPECT_LE(test, near - slack, sum);
	KUNIT_EXPECT_GE(test, near + slack, sum);
	if (!counter_tree_is_spread(current->mm->rss_stat)) {
		KUNIT_EXPECT_EQ(test, near, sum);
		KUNIT_EXPECT_EQ(test, slack, 0);
		KUNIT_EXPECT_EQ(test, get_mm_counter(current->mm, MM_ANONPAGES),
				pages);
	}
}

static void expect_borrowed_counted(struct kunit *test, bool spread)
{
	const size_t size = NR_PAGES * PAGE_SIZE;
	unsigned int cpu, nr = 0;
	unsigned long addr;

	/* That lends this thread an address space. */
	addr = kunit_vm_mmap(test, NULL, 0, (num_online_cpus() + 1) * size,
			     PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, 0);
	KUNIT_ASSERT_NE(test, addr, 0);
	KUNIT_ASSERT_LT(test, addr, TASK_SIZE);
	KUNIT_EXPECT_TRUE(test, current->mm->rss_shared);
	expect_anon(test, 0);
	if (spread)
		mm_rss_spread(current->mm);
	KUNIT_EXPECT_EQ(test, counter_tree_is_spread(current->mm->rss_stat),
			spread);

	KUNIT_EXPECT_TRUE(test, touch_pages(addr));
	expect_anon(test, NR_PAGES);
	for_each_online_cpu(cpu) {
		nr++;
		lend(test, addr + nr * size, true, cpu);
		expect_anon(test, (nr + 1) * NR_PAGES);
	}
	/* Each by another task than the one that touched them. */
	for_each_online_cpu(cpu) {
		lend(test, addr + nr * size, false, cpu);
		expect_anon(test, nr * NR_PAGES);
		nr--;
	}
	KUNIT_EXPECT_EQ(test, vm_munmap(addr, size), 0);
	expect_anon(test, 0);
}

static void borrowed_memory_is_counted(struct kunit *test)
{
	expect_borrowed_counted(test, false);
}

static void borrowed_memory_is_counted_by_cpus(struct kunit *test)
{
	expect_borrowed_counted(test, true);
}

static struct kunit_case rss_cases[] = {
	KUNIT_CASE(borrowed_memory_is_counted),
	KUNIT_CASE(borrowed_memory_is_counted_by_cpus),
	{}
};

static struct kunit_suite rss_suite = {
	.name = "counter_tree_rss",
	.test_cases = rss_cases,
};

kunit_test_suite(rss_suite);

#endif /* CONFIG_MEMREAP_RSS_COUNTERS */

kunit_test_suite(counter_tree_suite);

MODULE_DESCRIPTION("KUnit tests for counter_tree");
MODULE_LICENSE("GPL");
