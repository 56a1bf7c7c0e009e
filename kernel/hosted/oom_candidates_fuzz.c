// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fuzzes the OOM killer's choice against an exact comparison of all tasks.
 *
 * The input is the tasks: their ranges, and their exact points, which may be less
 * than the minimum.
 */
#include "check.h"
#include "fuzz.h"
#include "oom_candidates.h"

#define MAX_TASKS	256

struct fake {
	struct task_struct task;
	long highest;
	long points;
	bool asked;
};

static struct fake fakes[MAX_TASKS];

static long fake_points(struct task_struct *task, void *arg)
{
	struct fake *fake = (struct fake *)task;

	CHECK(task->usage == 1 && !fake->asked);
	fake->asked = true;

	return fake->points;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct oom_candidates candidates;
	unsigned int nr = 0, nr_asked = 0;
	struct task_struct *chosen;
	struct fake *best = NULL;
	long points, bar = LONG_MIN;
	bool shrunk = false;

	input = (struct input){ data, size };
	oom_candidates_init(&candidates, fake_points, NULL);
	while (input.left && nr < MAX_TASKS) {
		struct fake *fake = &fakes[nr++];
		long lowest = (signed char)next_byte();
		unsigned int width = next_byte();

		*fake = (struct fake){ .highest = lowest + width % 64 };
		fake->points = lowest;
		if (width >= 64)
			fake->points += (long)next_byte() * (width % 64) / 255;
		/* Some shrink or go away before they are asked. */
		if (width >= 250 && width % 64) {
			fake->points = width & 1 ? LONG_MIN : lowest - 9;
			shrunk = true;
		}
		if (lowest > bar)
			bar = lowest;
		oom_candidates_add(&candidates, &fake->task, lowest,
				   fake->highest);
	}
	if (size && data[0] == 0xd0) {
		oom_candidates_drop(&candidates);
		chosen = NULL;
		points = LONG_MIN;
	} else {
		chosen = oom_candidates_choose(&candidates, &points);
		CHECK(chosen || shrunk || !nr);
	}

	for (unsigned int i = 0; i < nr; i++) {
		struct fake *fake = &fakes[i];

		CHECK(fake->task.usage == (&fake->task == chosen));
		nr_asked += fake->asked;
		if (fake->points > LONG_MIN &&
		    (!best || fake->points >= best->points))
			best = fake;
	}
	CHECK(candidates.nr_tasks == nr);
	CHECK(candidates.nr_precise == nr_asked);
	CHECK(candidates.best >= bar);
	/* Unless it has to be repeated, the choice is the exact one. */
	if (chosen && points >= candidates.best)
		CHECK(chosen == &best->task && points == best->points);
	if (chosen && !shrunk)
		CHECK(points >= candidates.best);

	return 0;
}
