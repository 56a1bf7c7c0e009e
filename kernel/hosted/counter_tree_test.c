// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tests of the counters that RSS is counted with, at the end with real threads.
 *
 * Usage: counter_tree_test [NAME]...
 *
 * A thread selects the CPU that it runs as.
 */
#include <sched.h>

#include "bounds.h"
#include "test.h"

/* More than any batch, so that nothing is held back. */
#define HUGE_AMOUNT	(1L << 40)

static struct counter_tree trees[MAX_COUNTERS];
static struct counter_tree_shape shape;
static long values[MAX_COUNTERS];

/* What comes in between, if anything. */
static _Thread_local void (*others)(void);

void hosted_others(void)
{
	if (others)
		others();
}

/* Does what the test wants to happen, in the given number of calls. */
static unsigned int others_wait;
static void (*others_do)(void);

static void others_once(void)
{
	if (others_wait--)
		return;
	others = NULL;
	others_do();
}

/* Lets @fn come in between, after @wait other chances. */
static void let_others(void (*fn)(void), unsigned int wait)
{
	others_wait = wait;
	others_do = fn;
	others = others_once;
}

/* Returns whether they came. */
static bool others_came(void)
{
	bool came = !others;

	others = NULL;

	return came;
}

static void start(unsigned int nr_cpus, unsigned int nr)
{
	boot(nr_cpus);
	counter_tree_init_shape(&shape, nr_cpus);
	counter_tree_init_many(trees, nr);
	memset(values, 0, sizeof(values));
}

static void start_spread(unsigned int nr_cpus, unsigned int nr)
{
	start(nr_cpus, nr);
	CHECK(!counter_tree_spread_many(trees, nr, GFP_KERNEL));
}

static void start_odd(unsigned int nr_cpus, unsigned int nr,
		      unsigned int nr_levels, const unsigned int *shift,
		      const unsigned int *batch)
{
	start(nr_cpus, nr);
	shape = odd_shape(nr_cpus, nr_levels, shift, batch);
	CHECK(!counter_tree_spread_shape(trees, nr, &shape, GFP_KERNEL));
}

static void check_all(unsigned int nr)
{
	check_counters(trees, nr, &shape, values);
}

static void end(unsigned int nr)
{
	check_all(nr);
	counter_tree_destroy_many(trees, nr);
	for (unsigned int i = 0; i < nr; i++)
		CHECK(!counter_tree_is_spread(&trees[i]));
	CHECK(!hosted_memory.nr);
}

/* Adds, and sees each cell become what the rule says. */
static void add(unsigned int cpu, unsigned int i, long amount)
{
	struct way expected, way;

	expected = way_of(&trees[i], &shape, cpu);
	way_add(&expected, amount);
	add_on(cpu, &trees[i], amount);
	values[i] += amount;
	way = way_of(&trees[i], &shape, cpu);
	CHECK(ways_equal(&way, &expected));
	check_sum(&trees[i], values[i], 0);
}

/* In all of the tests' counters together, in parts of what one counter's is. */
static long slack_of_each(void)
{
	long slack = counter_tree_slack(trees);

	CHECK(slack % MAX_COUNTERS == 0);

	return slack / MAX_COUNTERS;
}

/* Levels of any widths, of which there can be more. */
#define MANY_LEVELS	12

/* The smallest bound there can be, found without trying shapes. */
static long smallest_bound(unsigned int nr_cpus)
{
	long bound[MANY_LEVELS + 1][17], best = LONG_MAX;
	long leaves = nr_cpus * (LEAF_BATCH - 1);

	if (nr_cpus <= FASTER_CPUS)
		return leaves;

	/* Of nodes for 2^i CPUs, the lowest of so many levels. */
	for (int levels = 1; levels <= MANY_LEVELS; levels++) {
		for (int i = 16; i >= 0; i--) {
			long nr = (nr_cpus + (1L << i) - 1) >> i;
			long least = levels > 1 ? LONG_MAX :
						  nr * (2L * nr_cpus - 1);

			for (int above = i + 1; levels > 1 && above <= 16; above++) {
				long rest = bound[levels - 1][above];

				if (rest < LONG_MAX &&
				    nr * ((2L << above) - 1) + rest < least)
					least = nr * ((2L << above) - 1) + rest;
			}
			bound[levels][i] = least;
			/* CPUs can hand on to it every 32. */
			if (2L << i <= LEAF_BATCH && least < LONG_MAX &&
			    leaves + least < best)
				best = leaves + least;
		}
	}

	return best;
}

static void test_bounds(void)
{
	CHECK(check_bounds());
}

static void test_shapes(void)
{
	for (unsigned int nr = 1; nr <= NR_CPUS; nr++) {
		const struct counter_tree_level *level = shape.level;
		unsigned int first = 0;

		counter_tree_init_shape(&shape, nr);
		CHECK(10L * shape.bound <= 11 * smallest_bound(nr));
		CHECK(!!shape.nr_levels == nr > FASTER_CPUS);
		for (; level < &shape.level[shape.nr_levels]; level++) {
			CHECK(level == shape.level ||
			      level->shift > level[-1].shift);
			CHECK(level->first == first);
			/* Each CPU has one, and each of them a CPU. */
			CHECK((nr - 1) >> level->shift == level->nr - 1);
			first += level->nr;
		}
		CHECK(shape.nr_nodes == first);
	}

	/* The most that there is room for. */
	counter_tree_init_shape(&shape, 1U << 16);
	CHECK(shape.nr_levels <= COUNTER_TREE_MAX_LEVELS);
	CHECK(10L * shape.bound <= 11 * smallest_bound(1U << 16));
}

static void test_unspread(void)
{
	size_t bytes = hosted_memory.bytes;

	start(64, MAX_COUNTERS);
	for (unsigned int i = 0; i < MAX_COUNTERS; i++)
	for (unsigned int cpu = 0; cpu < 64; cpu++) {
		for (unsigned int i = 0; i < MAX_COUNTERS; i++) {
			add(cpu, i, cpu % 2 ? 31 + i : -7);
			CHECK(counter_tree_approximate_sum(&trees[i]) ==
			      values[i]);
			CHECK(!slack_of_each());
			CHECK(!counter_tree_is_spread(&trees[i]));
			CHECK(!counter_tree_bytes(&trees[i]));
		}
	}
	CHECK(hosted_memory.bytes == bytes);
	end(MAX_COUNTERS);
}

static void test_spread(void)
{
	static const unsigned int cpus[] = { 1, 2, 17, 18, 31, 63, 64, 65, 512 };

	for (size_t n = 0; n < ARRAY_SIZE(cpus); n++) {
		for (unsigned int nr = 1; nr <= MAX_COUNTERS; nr++) {
			size_t bytes = hosted_memory.bytes;

			/* Wherever in a line its memory begins. */
			hosted_memory.offset = (n + nr) * 8 % L1_CACHE_BYTES;
			start(cpus[n], nr);
			for (unsigned int i = 0; i < nr; i++)
				add(0, i, 5 - 3L * i);
			CHECK(!counter_tree_spread_many(trees, nr,
							GFP_KERNEL));
			bytes = hosted_memory.bytes - bytes;
			for (unsigned int i = 0; i < nr; i++) {
				CHECK(counter_tree_is_spread(&trees[i]));
				CHECK(counter_tree_bytes(&trees[i]) ==
				      bytes);
				CHECK(!slack_of_each());
			}
			check_all(nr);

			/* Again: nothing happens, not even for want of memory. */
			bytes = hosted_memory.bytes;
			hosted_memory.fail = 1;
			CHECK(!counter_tree_spread_many(trees, nr,
							GFP_KERNEL));
			hosted_memory.fail = 0;
			CHECK(hosted_memory.bytes == bytes);

			for (unsigned int cpu = 0; cpu < cpus[n]; cpu++) {
				for (unsigned int i = 0; i < nr; i++) {
					add(cpu, i, 40 + i);
					add(cpu, i, -3);
				}
			}
			end(nr);
		}
	}
	hosted_memory.offset = 0;
}

static void test_no_memory(void)
{
	for (unsigned int fail = 1; fail <= 2; fail++) {
		start(64, 4);
		for (unsigned int i = 0; i < 4; i++)
			add(i, i, 100 * i);
		hosted_memory.fail = fail;
		CHECK(counter_tree_spread_many(trees, 4, GFP_KERNEL) ==
		      -ENOMEM);
		CHECK(!hosted_memory.fail && !hosted_memory.nr);
		for (unsigned int i = 0; i < 4; i++) {
			CHECK(!counter_tree_is_spread(&trees[i]));
			add(63, i, -1);
		}
		CHECK(!counter_tree_spread_many(trees, 4, GFP_KERNEL));
		for (unsigned int i = 0; i < 4; i++)
			add(63, i, -1);
		end(4);
	}
}

/* Only what is held back makes a range of the value. */
static void test_first_use(void)
{
	unsigned int batch = 0;

	start_spread(128, 4);
	for (unsigned int i = 0; i < shape.nr_levels; i++)
		batch = shape.level[i].batch;
	CHECK(batch == 256);
	/* Straight to the root. */
	add(0, 1, 256);
	add(9, 1, -256);
	add(63, 1, HUGE_AMOUNT);
	CHECK(!slack_of_each());
	/* Past the CPU and a node, to where it can be held back. */
	add(0, 1, -255);
	CHECK(slack_of_each() == 255);
	add(17, 1, 255);
	CHECK(slack_of_each() == 255);
	/* Past the CPU. */
	add(0, 1, 32);
	CHECK(slack_of_each() == 255 + shape.level[0].batch - 1);
	add(0, 1, -31);
	CHECK(slack_of_each() == 255 + shape.level[0].batch - 1 + 31);
	check_all(4);
	for (unsigned int n = 0; n < 100; n++)
		add(0, 1, n % 2 ? 31 : 3);
	CHECK(slack_of_each() == 255 + shape.level[0].batch - 1 + 31);

	/* A CPU for the first time, by an amount of nothing even. */
	add(5, 2, 0);
	CHECK(slack_of_each() == 255 + shape.level[0].batch - 1 + 2 * 31);
	/* And again, by another counter. */
	add(5, 3, 31);
	CHECK(slack_of_each() == 255 + shape.level[0].batch - 1 + 2 * 31);
	CHECK(!counter_tree_approximate_sum(&trees[3]));
	end(4);
}

/* All that a CPU's cell can be, and all that can be added to it. */
static void test_leaf(void)
{
	start_spread(17, 1);
	for (long held = -31; held <= 31; held++) {
		for (long amount = -100; amount <= 100; amount++) {
			add(3, 0, held);
			CHECK(way_of(trees, &shape, 3).cell[0].held == held);
			add(3, 0, amount);
			/* Nothing is left. */
			add(3, 0, values[0] > 0 ? 64 : -64);
			CHECK(!way_of(trees, &shape, 3).cell[0].held);
		}
	}
	add(3, 0, HUGE_AMOUNT);
	add(3, 0, 31);
	add(3, 0, -3 * HUGE_AMOUNT);
	end(1);
}

/* What stays with a CPU that has been used takes one exchange and no more. */
static void test_fast(void)
{
	start_spread(64, 1);
	add(3, 0, 0);
	for (long held = -31; held <= 31; held++) {
		for (long next = -31; next <= 31; next++) {
			unsigned long disabled;

			add(3, 0, held - values[0]);
			disabled = hosted_preempt_disabled;
			add(3, 0, next - held);
			CHECK(hosted_preempt_disabled == disabled);
		}
	}
	end(1);
}

/* What nodes can be and what can be added, with odd sizes: step by step. */
static void test_levels(void)
{
	static const unsigned int shift[] = { 0, 1, 3, 4, 6, 9 };
	static const unsigned int batch[] = { 33, 2, 40, 3, 100, 64 };
	uint64_t seed = 1;

	for (unsigned int levels = 0; levels <= ARRAY_SIZE(shift); levels++) {
		/* The widest of them. */
		unsigned int skip = ARRAY_SIZE(shift) - levels;

		start_odd(512, 2, levels, shift + skip, batch + skip);
		for (unsigned int n = 0; n < 5000; n++) {
			unsigned int cpu = rnd(&seed) % (n % 2 ? 512 : 9);
			long amount = (long)(rnd(&seed) % 81) - 40;

			add(cpu, n % 2, rnd(&seed) % 16 ? amount : 3 * amount);
		}
		end(2);
	}
}

/* CPUs and counters do not get into each other's cells. */
static void test_apart(void)
{
	static bool taken[2 * NR_CPUS];
	unsigned int nr = MAX_COUNTERS;

	start_spread(512, nr);
	for (unsigned int cpu = 0; cpu < 512; cpu++) {
		for (unsigned int i = 0; i < nr; i++)
			add(cpu, i, 33 + i);
		for (unsigned int i = 0; i < nr; i++)
			add(cpu, i, 1 + i);
	}
	check_all(nr);
	for (unsigned int node = 0; node < shape.nr_nodes; node++) {
		unsigned long first = (unsigned long)counter_cell(&trees[0], node).where;
		unsigned long last = (unsigned long)counter_cell(&trees[nr - 1], node).where;

		/* In a cache line that no other node is in. */
		CHECK(first % L1_CACHE_BYTES == 0);
		CHECK(last / L1_CACHE_BYTES == first / L1_CACHE_BYTES);
		if (node) {
			unsigned long before = (unsigned long)
				counter_cell(&trees[nr - 1], node - 1).where;

			CHECK(first / L1_CACHE_BYTES > before / L1_CACHE_BYTES);
		}
	}
	memset(taken, 0, sizeof(taken));
	for (unsigned int cpu = 0; cpu < 512; cpu++) {
		unsigned int own = way_cell(&shape, cpu, 0);

		CHECK(!taken[own]);
		taken[own] = true;
	}
	end(nr);
}

/* The bound is reached, so it could not be smaller, and never exceeded. */
static void test_bound_reached(void)
{
	static const unsigned int cpus[] = { 1, 16, 17, 18, 64, 100, 256, 512 };

	for (size_t n = 0; n < ARRAY_SIZE(cpus); n++) {
		for (long sign = -1; sign <= 1; sign += 2) {
			start_spread(cpus[n], 1);
			/* From the top: what is too much for those below. */
			for (unsigned int i = shape.nr_levels; i-- > 0; ) {
				unsigned int wide = 1U << shape.level[i].shift;

				for (unsigned int cpu = 0; cpu < cpus[n]; cpu += wide)
					add(cpu, 0, sign * (shape.level[i].batch - 1));
			}
			for (unsigned int cpu = 0; cpu < cpus[n]; cpu++)
				add(cpu, 0, sign * 31);
			CHECK(!counter_tree_approximate_sum(trees));
			CHECK(values[0] == sign * (long)shape.bound);
			CHECK(slack_of_each() == shape.bound);
			/* One more, and it comes down to much less. */
			add(0, 0, sign);
			CHECK(counter_tree_approximate_sum(trees));
			end(1);
		}
	}
}

/* How often lines are written to, against a flat counter's shared count. */
static void test_update_rate(void)
{
	static const unsigned int cpus[] = { 16, 18, 40, 64, 129 };

	for (size_t n = 0; n < ARRAY_SIZE(cpus); n++) {
		static unsigned int writes[NR_CPUS];
		unsigned int nr = cpus[n], rounds = 4 * flat_batch(nr);
		struct way before, way;

		start_spread(nr, 1);
		memset(writes, 0, sizeof(writes));
		for (unsigned int i = 0; i < rounds; i++) {
			for (unsigned int cpu = 0; cpu < nr; cpu++) {
				before = way_of(trees, &shape, cpu);
				add_on(cpu, trees, 1);
				way = way_of(trees, &shape, cpu);
				for (unsigned int c = 1; c < way.nr; c++) {
					if (way.cell[c].value != before.cell[c].value)
						writes[way_cell(&shape, cpu, c)]++;
				}
				writes[shape.nr_nodes] += way.root != before.root;
			}
		}
		values[0] = (long)nr * rounds;
		for (unsigned int line = 0; line <= shape.nr_nodes; line++) {
			CHECK(writes[line]);
			CHECK(writes[line] <= nr * rounds / flat_batch(nr));
		}
		end(1);
	}
}

/* What a CPU holds back stays its own when it is gone, and is not forgotten. */
static void test_offline(void)
{
	start_spread(64, 2);
	for (unsigned int cpu = 0; cpu < 64; cpu++) {
		add(cpu, 0, 20);
		add(cpu, 1, -1);
	}
	for (unsigned int cpu = 1; cpu < 64; cpu++) {
		hosted_offline[cpu] = true;
		check_all(2);
	}
	CHECK(counter_tree_precise_sum(&trees[0]) == 64 * 20);
	add(0, 0, -64 * 20);
	add(0, 1, 64);
	CHECK(!counter_tree_precise_sum(&trees[0]));
	for (unsigned int cpu = 1; cpu < 64; cpu += 2) {
		hosted_offline[cpu] = false;
		add(cpu, 0, 20);
		CHECK(way_of(&trees[0], &shape, cpu).cell[0].held == 0);
		add(cpu, 0, -40);
	}
	end(2);
}

/* What others add in between, and where. */
static unsigned int between_cpu;
static long between_amount;

/* An interrupt on the same CPU, or another CPU. */
static void add_between(void)
{
	unsigned int cpu = hosted_cpu;
	int preempt_count = hosted_preempt_count;

	/* An interrupt comes as soon as it can. */
	if (hosted_irqs_disabled[between_cpu]) {
		let_others(add_between, 0);
		return;
	}
	if (between_cpu != cpu)
		hosted_preempt_count = 0;
	add_on(between_cpu, trees, between_amount);
	hosted_cpu = cpu;
	hosted_preempt_count = preempt_count;
	values[0] += between_amount;
}

/* Migrates the task to another CPU, unless preemption is disabled. */
static void migrate_between(void)
{
	if (!hosted_preempt_count)
		hosted_cpu = between_cpu;
}

static void sum_between(void)
{
	check_sum(trees, values[0], carried(&shape, between_amount));
	check_total(trees, 1, values[0], carried(&shape, between_amount));
}

/* Nothing is lost or counted twice, wherever others get in between. */
static void test_between(void)
{
	static const unsigned int shift[] = { 1, 3 };
	static const unsigned int batch[] = { 8, 40 };
	static const long amounts[] = { 1, -1, 7, 31, -31, 32, -40, 100 };
	static void (*const fns[])(void) = {
		add_between, migrate_between, sum_between,
	};
	unsigned int came = 0;

	for (unsigned int n = 0; n < 8 * 8 * 3 * 4 * 40; n++) {
		long first = amounts[n % 8], amount = amounts[n / 8 % 8];
		void (*fn)(void) = fns[n / 64 % 3];
		unsigned int cpu = n / 192 % 4, wait = n / 768 % 20;

		start_odd(16, 1, n / 15360 ? 2 : 0, shift, batch);
		if (first > 1)
			add(0, 0, first);
		/* The same CPU, under the same node, under the next. */
		between_cpu = cpu == 3 ? 9 : cpu;
		between_amount = amount;
		let_others(fn, wait);
		add_on(0, trees, amount);
		came += others_came();
		values[0] += amount;
		end(1);
	}
	/* Otherwise this shows nothing. */
	CHECK(came > 8 * 8 * 3 * 4 * 5);
}

/* What moves towards the root while it is summed up is not counted twice. */
static void test_sum_between(void)
{
	static const unsigned int shift[] = { 1, 3 };
	static const unsigned int batch[] = { 34, 80 };
	unsigned int came = 0;

	for (unsigned int wait = 0; wait < 40; wait++) {
		for (long amount = -200; amount <= 200; amount += 7) {
			long before, sum;

			start_odd(16, 1, 2, shift, batch);
			/* In all cells. */
			for (unsigned int cpu = 0; cpu < 16; cpu++) {
				add(cpu, 0, amount > 0 ? 79 : -79);
				add(cpu, 0, amount > 0 ? 33 : -33);
				add(cpu, 0, amount > 0 ? 31 : -31);
			}
			before = values[0];
			between_cpu = 5;
			between_amount = amount;
			let_others(add_between, wait);
			sum = wait % 2 ? counter_tree_total(trees, 1) :
					 counter_tree_precise_sum(trees);
			came += others_came();
			if (amount > 0) {
				CHECK(sum <= values[0]);
				CHECK(sum >= before - (long)shape.bound);
			} else {
				CHECK(sum >= values[0]);
				CHECK(sum <= before + (long)shape.bound);
			}
			end(1);
		}
	}
	CHECK(came > 20 * 50);
}

static void spread_between(void)
{
	CHECK(!counter_tree_spread_many(trees, 3, GFP_KERNEL));
	for (unsigned int i = 0; i < 3; i++)
		add(1, i, 5);
}

/* Two spread the same counters. */
static void test_spread_between(void)
{
	unsigned int came = 0;

	for (unsigned int wait = 0; wait < 6; wait++) {
		start(64, 3);
		let_others(spread_between, wait);
		CHECK(!counter_tree_spread_many(trees, 3, GFP_KERNEL));
		came += others_came();
		for (unsigned int i = 0; i < 3; i++)
			CHECK(counter_tree_is_spread(&trees[i]));
		/* What one of them threw away is not in use. */
		CHECK(hosted_memory.nr == 2);
		end(3);
	}
	CHECK(came >= 3);

	/* During additions that do or do not see it yet. */
	for (unsigned int wait = 0; wait < 6; wait++) {
		start(64, 3);
		let_others(spread_between, wait);
		add_on(1, &trees[2], 9);
		values[2] += 9;
		came += others_came();
		end(3);
	}
	CHECK(came >= 2);
}

/* A counter that is in use again begins at 0. */
static void test_again(void)
{
	for (unsigned int n = 0; n < 3; n++) {
		start_spread(64, 4);
		for (unsigned int i = 0; i < 4; i++) {
			add(n, i, 31);
			add(40, i, -90);
		}
		end(4);
		counter_tree_destroy_many(trees, 4);
	}
}

#define NR_THREADS	8
#define NR_TREES	3
#define MOST		80

/**
 * struct adder - a thread that runs as a CPU
 * @cpu: the CPU
 * @seed: of the amounts
 * @rounds: number of additions
 * @spreads: it spreads the counters in between
 * @up: sum of positive amounts of additions that have started, per counter
 * @up_done: the same for additions that have finished
 * @down: sum of negative amounts, as a positive number
 * @down_done: likewise
 */
struct adder {
	unsigned int cpu;
	uint64_t seed;
	unsigned int rounds;
	bool spreads;
	long up[NR_TREES];
	long up_done[NR_TREES];
	long down[NR_TREES];
	long down_done[NR_TREES];
};

static struct adder adders[NR_THREADS];
static unsigned int adding;
static pthread_barrier_t all_there;

/* Seldom: on a busy machine it takes long until it is this thread's turn again. */
static void sometimes_yield(void)
{
	static _Thread_local uint64_t seed;

	if (!seed)
		seed = 1 + hosted_cpu;
	if (rnd(&seed) % 2048 == 0)
		sched_yield();
}

static void *adder_thread(void *arg)
{
	struct adder *adder = arg;

	hosted_cpu = adder->cpu;
	others = sometimes_yield;
	for (unsigned int n = 0; n < adder->rounds; n++) {
		unsigned int i = rnd(&adder->seed) % NR_TREES;
		long amount = rnd(&adder->seed) % MOST;

		if (adder->spreads && n == adder->rounds / 4)
			CHECK(!counter_tree_spread_shape(trees, NR_TREES,
							 &shape,
							 GFP_KERNEL));
		/* Often little, and as often up as down, but for the last. */
		if (rnd(&adder->seed) % 4)
			amount %= 4;
		if (i < NR_TREES - 1 && rnd(&adder->seed) % 2) {
			__atomic_add_fetch(&adder->down[i], amount, __ATOMIC_SEQ_CST);
			counter_tree_add(&trees[i], -amount);
			__atomic_add_fetch(&adder->down_done[i], amount, __ATOMIC_SEQ_CST);
		} else {
			__atomic_add_fetch(&adder->up[i], amount, __ATOMIC_SEQ_CST);
			counter_tree_add(&trees[i], amount);
			__atomic_add_fetch(&adder->up_done[i], amount, __ATOMIC_SEQ_CST);
		}
	}
	others = NULL;
	__atomic_sub_fetch(&adding, 1, __ATOMIC_SEQ_CST);

	return NULL;
}

static long total(size_t member, unsigned int i)
{
	long sum = 0;

	for (unsigned int n = 0; n < NR_THREADS; n++) {
		long *amounts = (void *)&adders[n] + member;

		sum += __atomic_load_n(&amounts[i], __ATOMIC_SEQ_CST);
	}

	return sum;
}

#define TOTAL(member, i)	total(offsetof(struct adder, member), i)

/* Reads while others add, until they are done. */
static void *reader_thread(void *arg)
{
	long carry = NR_THREADS * carried(&shape, MOST);
	long slack = MAX_COUNTERS * (long)shape.bound;

	for (unsigned int i = 0; __atomic_load_n(&adding, __ATOMIC_SEQ_CST);
	     i = (i + 1) % NR_TREES) {
		long up = TOTAL(up_done, i), down = TOTAL(down_done, i);
		long sum = counter_tree_precise_sum(&trees[i]);
		long root = counter_tree_approximate_sum(&trees[i]);
		long least, most, used;

		smp_rmb();
		used = counter_tree_slack(trees);
		/* What it was at any time meanwhile is between these. */
		least = up - TOTAL(down, i);
		most = TOTAL(up, i) - down;
		CHECK(sum >= least - (long)shape.bound - carry);
		CHECK(sum <= most + (long)shape.bound + carry);
		/* Of that counter alone, a part; some count a cell twice. */
		CHECK(used >= 0 && used <= slack + NR_THREADS * MAX_COUNTERS *
		      carried(&shape, 0));
		CHECK(root + used >= least - carry);
		CHECK(root - used <= most + carry);
		sched_yield();
	}

	return NULL;
}

struct thread {
	void *(*fn)(void *);
	void *arg;
};

static void *run_thread(void *arg)
{
	struct thread *thread = arg;

	pthread_barrier_wait(&all_there);

	return thread->fn(thread->arg);
}

/* The first @spreaders of the threads spread the counters at some time. */
static void hammer(unsigned int stride, unsigned int spreaders)
{
	struct thread threads[NR_THREADS + 2];

	memset(adders, 0, sizeof(adders));
	for (unsigned int n = 0; n < ARRAY_SIZE(threads); n++) {
		if (n >= NR_THREADS) {
			threads[n] = (struct thread){ reader_thread, NULL };
			continue;
		}
		adders[n].cpu = n * stride;
		adders[n].seed = n + 1;
		adders[n].rounds = 15000;
		adders[n].spreads = n < spreaders;
		threads[n] = (struct thread){ adder_thread, &adders[n] };
	}
	adding = NR_THREADS;
	pthread_barrier_init(&all_there, NULL, ARRAY_SIZE(threads));
	run_threads(ARRAY_SIZE(threads), run_thread, threads, sizeof(*threads));
	pthread_barrier_destroy(&all_there);
	for (unsigned int i = 0; i < NR_TREES; i++) {
		values[i] = TOTAL(up, i) - TOTAL(down, i);
		CHECK(counter_tree_is_spread(&trees[i]));
	}
	end(NR_TREES);
}

static void test_threads(void)
{
	/* Under one node, and each under its own up to the last. */
	start_spread(64, NR_TREES);
	hammer(1, 0);
	start_spread(512, NR_TREES);
	hammer(64, 0);
}

/* They meet at all levels, and often. */
static void test_threads_odd(void)
{
	static const unsigned int shift[] = { 1, 2, 3 };
	static const unsigned int batch[] = { 2, 35, 60 };

	start_odd(8, NR_TREES, ARRAY_SIZE(shift), shift, batch);
	hammer(1, 0);
}

static void test_threads_spread(void)
{
	for (unsigned int n = 0; n < 4; n++) {
		start(64, NR_TREES);
		hammer(5, 1 + n);
	}
}

static const struct test tests[] = {
	{ "unspread", test_unspread },
	{ "spread", test_spread },
	{ "no_memory", test_no_memory },
	{ "first_use", test_first_use },
	{ "leaf", test_leaf },
	{ "fast", test_fast },
	{ "levels", test_levels },
	{ "apart", test_apart },
	{ "bound_reached", test_bound_reached },
	{ "update_rate", test_update_rate },
	{ "offline", test_offline },
	{ "between", test_between },
	{ "sum_between", test_sum_between },
	{ "spread_between", test_spread_between },
	{ "again", test_again },
	{ "shapes", test_shapes },
	{ "bounds", test_bounds },
	{ "threads", test_threads },
	{ "threads_odd", test_threads_odd },
	{ "threads_spread", test_threads_spread },
};

int main(int argc, char **argv)
{
	return run_tests(tests, ARRAY_SIZE(tests), argc, argv);
}
