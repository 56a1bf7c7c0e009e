// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fuzzes the expedite topic's queue against a simple model: it has neither
 * lists nor places, records what happened instead of what is due, and searches
 * all of it for every answer.
 *
 * The input is the steps of kills, workers and the clock.
 */
#include <string.h>

#include "check.h"
#include "expedite_queue.h"
#include "fuzz.h"

#define SHARE		((unsigned long)EXPEDITE_SHARE)
#define PAUSE		((u64)EXPEDITE_PAUSE_NS)
#define PATIENCE	((u64)EXPEDITE_RETRY_NS)

/* Few, so that the queue is full at times. */
#define NR_PLACES	6
#define NR_MMS		9
#define NR_WORKERS	7

static char mm_places[NR_MMS];
#define fake_mm(i)	((struct mm_struct *)&mm_places[i])

/* Enough for one per byte of input. */
static char victim_places[1024];
#define fake_victim(i)	((struct task_struct *)&victim_places[i])

/**
 * struct model - history of an address space's request
 * @queued: there is a request
 * @victim: it was queued with
 * @pages: it was queued with
 * @since: time of that
 * @tried: end of the last attempt
 * @tries: attempts that have ended
 * @may_retry: the present attempt started before the deadline
 * @workers: current number
 * @peak_workers: maximum of @workers
 * @opened: by the first worker of this attempt
 * @closed: by a worker that finished
 * @bad: the worst outcome in this attempt so far
 * @freed: in total
 */
struct model {
	bool queued;
	struct task_struct *victim;
	unsigned long pages;
	u64 since;
	u64 tried;
	unsigned int tries;
	bool may_retry;
	unsigned int workers;
	unsigned int peak_workers;
	bool opened;
	bool closed;
	enum expedite_outcome bad;
	unsigned long freed;
};

struct worker {
	struct expedite_request *req;
	struct model *model;
	bool first;
};

static struct expedite_queue queue;
static struct model models[NR_MMS];
static struct worker workers[NR_WORKERS];
static unsigned int nr_victims;
static u64 now;

/* Start of the next attempt at a request without workers. */
static u64 due(const struct model *m)
{
	u64 end = m->since + PATIENCE;
	u64 pause = PAUSE;

	if (!m->tries)
		return m->since;
	for (unsigned int i = 1; i < m->tries && i <= 6; i++)
		pause += pause;

	return end - m->tried < pause || end < m->tried ? end :
							  m->tried + pause;
}

/* Whether one more worker could do something, and for how many pages. */
static bool workable(const struct model *m, unsigned long *pages)
{
	if (!m->queued)
		return false;
	/* To see that there is nothing to free is work, too. */
	*pages = m->pages ? m->pages : 1;
	if (!m->workers)
		return due(m) <= now;
	*pages /= m->workers + 1;

	return m->opened && !m->closed &&
	       m->pages >= (m->workers + 1) * SHARE;
}

/* Is there anything to do, and when will there be? */
static bool any_workable(unsigned long *most, u64 *next)
{
	bool any = false;

	*most = 0;
	*next = EXPEDITE_NEVER;
	for (unsigned int i = 0; i < NR_MMS; i++) {
		unsigned long pages;

		if (workable(&models[i], &pages)) {
			any = true;
			if (pages > *most)
				*most = pages;
		} else if (models[i].queued && !models[i].workers &&
			   due(&models[i]) < *next) {
			*next = due(&models[i]);
		}
	}

	return any;
}

static void check_ready(void)
{
	unsigned long most;
	u64 next;

	CHECK(expedite_queue_ready(&queue, now) == any_workable(&most, &next));
}

static void add(unsigned int mm, unsigned long pages)
{
	struct task_struct *victim = fake_victim(nr_victims++);
	struct model *m = &models[mm];
	unsigned int used = 0;

	for (unsigned int i = 0; i < NR_MMS; i++)
		used += models[i].queued;

	switch (expedite_queue_add(&queue, fake_mm(mm), victim, pages, now)) {
	case EXPEDITE_QUEUED:
		CHECK(!m->queued && used < NR_PLACES);
		*m = (struct model){
			.queued = true,
			.victim = victim,
			.pages = pages,
			.since = now,
		};
		break;
	case EXPEDITE_MERGED:
		CHECK(m->queued);
		break;
	case EXPEDITE_FULL:
		CHECK(!m->queued && used == NR_PLACES);
		break;
	}
}

static void take(struct worker *w)
{
	unsigned long most, pages;
	struct expedite_turn turn;
	struct model *m;
	u64 next;
	bool any;

	any = any_workable(&most, &next);
	CHECK(expedite_queue_take(&queue, now, &turn) == any);
	CHECK(!!turn.req == any);
	if (!any) {
		CHECK(!turn.more);
		CHECK(turn.next == next);
		return;
	}
	for (m = models; fake_mm(m - models) != turn.req->mm; m++)
		CHECK(m < &models[NR_MMS]);
	CHECK(workable(m, &pages));
	/* The queue may choose among equals. */
	CHECK(pages == most);
	CHECK(turn.first == !m->workers);
	if (turn.first) {
		m->may_retry = now < m->since + PATIENCE;
		m->opened = false;
		m->closed = false;
		m->bad = EXPEDITE_EXITED;
	}
	CHECK(turn.may_retry == m->may_retry);
	m->workers++;
	if (m->workers > m->peak_workers)
		m->peak_workers = m->workers;
	CHECK(turn.more == any_workable(&most, &next));
	*w = (struct worker){ turn.req, m, turn.first };
}

static void open_up(struct worker *w)
{
	unsigned long pages;

	w->model->opened = true;
	CHECK(expedite_queue_open(&queue, w->req) ==
	      workable(w->model, &pages));
}

static void put(struct worker *w, unsigned long freed,
		enum expedite_outcome outcome)
{
	struct expedite_request over;
	struct model *m = w->model;
	bool ended;

	ended = expedite_queue_put(&queue, w->req, freed, outcome, now, &over);
	m->freed += freed;
	m->closed = true;
	if (outcome > m->bad)
		m->bad = outcome;
	m->workers--;
	w->model = NULL;
	if (m->workers) {
		CHECK(!ended);
		return;
	}
	m->tries++;
	m->tried = now;
	if (m->bad == EXPEDITE_FREED || m->bad == EXPEDITE_EXITED)
		CHECK(ended);
	else
		CHECK(ended == !m->may_retry);
	if (!ended)
		return;

	CHECK(over.mm == fake_mm(m - models));
	CHECK(over.victim == m->victim);
	CHECK(over.pages == m->pages);
	CHECK(over.queued == m->since);
	CHECK(over.freed == m->freed);
	CHECK(over.peak_workers == m->peak_workers);
	CHECK(over.outcome == m->bad);
	CHECK(!over.workers);
	m->queued = false;
}

static void pass_time(unsigned int how)
{
	unsigned long most;
	u64 next;

	any_workable(&most, &next);
	switch (how % 8) {
	case 0:
		now++;
		break;
	case 1:
		now += PAUSE / 2;
		break;
	case 2:
		now += 40 * PAUSE;
		break;
	case 3:
		now += PATIENCE - 1;
		break;
	case 4:
		/* Just too early. */
		if (next != EXPEDITE_NEVER && next - 1 > now)
			now = next - 1;
		break;
	default:
		if (next != EXPEDITE_NEVER && next > now)
			now = next;
		break;
	}
}

static void step(void)
{
	struct worker *w = &workers[next_byte() % NR_WORKERS];
	uint8_t op = next_byte();

	if (op < 60)
		/* Around whole shares, where it matters, and what wraps. */
		add(op % NR_MMS, next_byte() % 9 * SHARE + next_byte() % 3 -
				 (op & 1));
	else if (op < 110)
		pass_time(op);
	else if (!w->model)
		take(w);
	else if (op < 180 && w->first && w->model->workers == 1 &&
		 !w->model->opened)
		open_up(w);
	else
		put(w, op % 7, op % (EXPEDITE_FAILED + 1));
	check_ready();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	input = (struct input){ data, size };
	memset(models, 0, sizeof(models));
	memset(workers, 0, sizeof(workers));
	nr_victims = 0;
	now = 10 * PATIENCE;
	expedite_queue_init(&queue);
	INIT_LIST_HEAD(&queue.free);
	for (unsigned int i = 0; i < NR_PLACES; i++)
		list_add_tail(&queue.places[i].list, &queue.free);
	while (input.left && nr_victims < sizeof(victim_places))
		step();

	return 0;
}
