// SPDX-License-Identifier: GPL-2.0-only
/*
 * Compares the OOM killer's choice with one that sums up every task. The loop
 * is that of oom_evaluate_task(), which is in the kernel's file.
 */
#include "linux/minmax.h"
#include "linux/types.h"
#include "test.h"

#define CONFIG_MEMREAP_OOM_SELECT

#define READ_ONCE(x)				(*(const volatile __typeof__(x) *)&(x))
#define __read_mostly
#define module_param_named(name, variable, type, mode)	static_assert(mode == 0644)
#define MODULE_PARM_DESC(name, text)
#define lockdep_assert_held(lock)		CHECK(*(lock))

typedef long long ktime_t;

/**
 * struct mm_struct - an address space
 * @rss: approximately
 * @swap: likewise
 * @slack: by how much their sum can be off
 * @total: exactly
 * @sums: how often that was asked for
 */
struct mm_struct {
	long rss;
	long swap;
	long slack;
	long total;
	unsigned int sums;
};

struct oom_control {
	long chosen_points;
	unsigned int nr_compared;
	unsigned int nr_summed;
};

enum { MM_FILEPAGES, MM_ANONPAGES, MM_SHMEMPAGES, MM_SWAPENTS, NR_MM_COUNTERS };

static bool oom_lock;
static ktime_t now, traced;

static long get_mm_counter(struct mm_struct *mm, int member)
{
	switch (member) {
	case MM_ANONPAGES:
		return mm->rss;
	case MM_SWAPENTS:
		return mm->swap;
	default:
		return 0;
	}
}

static long mm_rss_near(struct mm_struct *mm, long *slack)
{
	*slack = mm->slack;
	return mm->rss + mm->swap;
}

static long mm_rss_total(struct mm_struct *mm)
{
	mm->sums++;
	return mm->total;
}

/* For what is only shown. */
static unsigned long get_mm_counter_sum(struct mm_struct *mm, int member)
{
	return mm->total;
}

static void get_mm_counter_sums(struct mm_struct *mm, long *pages)
{
	pages[0] = mm->total;
}

static ktime_t ktime_get(void)
{
	return now;
}

static unsigned int touches;

static void touch_softlockup_watchdog(void)
{
	touches++;
}

#define stock_oom_counter(mm, member)		get_mm_counter(mm, member)
#define ktime_sub(a, b)				((a) - (b))
#define ktime_to_ns(t)				(t)
#define trace_memreap_oom_select(oc, ns)	(traced = (ns))

#include CODE

#define MAX_TASKS	12

static struct mm_struct mms[MAX_TASKS];
/* For page tables and oom_score_adj. */
static long other_points[MAX_TASKS];

/* Sizes and errors that are often equal, and often not enough to differ. */
static void make_tasks(unsigned int nr, uint64_t *seed)
{
	for (unsigned int i = 0; i < nr; i++) {
		struct mm_struct *mm = &mms[i];

		*mm = (struct mm_struct){
			.rss = rnd(seed) % 8,
			.swap = rnd(seed) % 8,
			.slack = rnd(seed) % 2 * (rnd(seed) % 5),
		};
		mm->total = mm->rss + mm->swap +
			    (long)(rnd(seed) % (2 * mm->slack + 1)) - mm->slack;
		other_points[i] = (long)(rnd(seed) % 8) - 4;
		/* Set to be killed, or one that cannot be. */
		if (rnd(seed) % 16 == 0)
			other_points[i] = rnd(seed) % 2 ? -1000 : 1000;
	}
}

/* Of several with the most points, the last one. */
static int choose(unsigned int nr, struct oom_control *oc)
{
	int chosen = -1;

	*oc = (struct oom_control){ .chosen_points = LONG_MIN };
	oom_lock = true;
	for (unsigned int i = 0; i < nr; i++) {
		long points = other_points[i];

		points += memreap_oom_pages(&mms[i], points, oc);
		if (points < oc->chosen_points)
			continue;
		oc->chosen_points = points;
		chosen = i;
	}
	oom_lock = false;

	return chosen;
}

static void test_exact(void)
{
	uint64_t seed = 1;

	memreap_oom_select = true;
	for (unsigned int round = 0; round < 100000; round++) {
		unsigned int nr = 1 + rnd(&seed) % MAX_TASKS, summed = 0;
		long most = LONG_MIN;
		struct oom_control oc;
		int best = -1, chosen;

		make_tasks(nr, &seed);
		chosen = choose(nr, &oc);
		for (unsigned int i = 0; i < nr; i++) {
			const struct mm_struct *mm = &mms[i];
			long points = other_points[i];
			bool can_win = points + mm->rss + mm->swap + mm->slack >=
				       most;

			/* Exactly those that may win and are not known. */
			CHECK(mm->sums == (mm->slack && can_win));
			summed += mm->sums;
			points += mm->total;
			if (points >= most) {
				most = points;
				best = i;
			}
		}
		CHECK(chosen == best);
		CHECK(oc.chosen_points == most);
		CHECK(oc.nr_compared == nr);
		CHECK(oc.nr_summed == summed);
	}
}

/* For /proc/PID/oom_score: without a choice, or the lock. */
static void test_score(void)
{
	uint64_t seed = 2;

	memreap_oom_select = true;
	for (unsigned int round = 0; round < 1000; round++) {
		make_tasks(1, &seed);
		CHECK(memreap_oom_pages(mms, other_points[0], NULL) ==
		      mms->total);
		CHECK(mms->sums == !!mms->slack);
	}
}

static void test_switched_off(void)
{
	struct oom_control oc = { .chosen_points = LONG_MIN };
	uint64_t seed = 3;

	memreap_oom_select = false;
	for (unsigned int round = 0; round < 1000; round++) {
		make_tasks(1, &seed);
		CHECK(memreap_oom_pages(mms, other_points[0], &oc) ==
		      mms->rss + mms->swap);
		CHECK(!mms->sums);
	}
	CHECK(!oc.nr_compared);
	CHECK(!oc.nr_summed);
}

/* Once in 1,024 tasks, and by the OOM killer only. */
static void test_watchdog(void)
{
	struct oom_control oc = { .chosen_points = LONG_MAX };
	uint64_t seed = 4;

	memreap_oom_select = true;
	make_tasks(1, &seed);
	touches = 0;
	oom_lock = true;
	for (unsigned int i = 0; i < 4096; i++) {
		memreap_oom_pages(mms, other_points[0], &oc);
		memreap_oom_pages(mms, other_points[0], NULL);
	}
	oom_lock = false;
	CHECK(touches == 4);
}

static void test_time(void)
{
	const struct oom_control oc = {};

	now = 1234;
	memreap_oom_chosen(&oc, 1000);
	CHECK(traced == 234);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{ "exact", test_exact },
		{ "score", test_score },
		{ "switched_off", test_switched_off },
		{ "watchdog", test_watchdog },
		{ "time", test_time },
	};

	/* As the kernel boots. */
	CHECK(memreap_oom_select);

	return run_tests(tests, ARRAY_SIZE(tests), argc, argv);
}
