// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fuzzes the reap topic's session code against a simple model, which searches
 * for the next chunk page by page.
 *
 * The input's first bytes define the address space, the rest are steps of
 * several reapers of several mms. Other claims may be nested in a claim, like
 * those of other CPUs at that moment.
 */
#include <string.h>

#include "fuzz.h"
#include "space.h"

#define NR_REAPERS	(REAP_MAX_SESSIONS + 4)
#define NR_MMS		(REAP_MAX_SESSIONS + 2)
#define NR_PAGES	1024

static char mm_places[NR_MMS];
#define fake_mm(i)	((struct mm_struct *)&mm_places[i])

struct model {
	struct reap_session *session;
	unsigned int mm;
	bool in_table;
	unsigned int users;
	unsigned int working;
	bool failed;
	/* First page of what is claimed. */
	unsigned int claimed;
};

struct reaper {
	struct reap_session own;
	struct model *model;
	bool working;
};

static struct space space;
static bool mapped[NR_PAGES];
static struct model models[NR_REAPERS];
static struct reaper reapers[NR_REAPERS];

static void lay_out(void)
{
	unsigned int nr = next_byte() % (MAX_SPANS + 1);
	unsigned int page = 0;

	memset(mapped, 0, sizeof(mapped));
	space.nr = 0;
	while (nr--) {
		unsigned int start = page + next_byte() % 80;
		unsigned int end = start + 1 + next_byte() % 150;

		if (end > NR_PAGES)
			break;
		space.spans[space.nr].start = start * PAGE_SIZE;
		space.spans[space.nr++].end = end * PAGE_SIZE;
		memset(&mapped[start], true, end - start);
		page = end;
	}
}

/* The highest unclaimed page, or -1. */
static int highest_page(const struct model *model)
{
	for (int page = (int)model->claimed - 1; page >= 0; page--) {
		if (mapped[page])
			return page;
	}

	return -1;
}

static void claim(struct model *model, unsigned int depth);

struct search {
	struct model *model;
	unsigned int depth;
};

static bool below(void *arg, unsigned long top, struct reap_span *span)
{
	struct search *s = arg;
	bool found = space_below(&space, top, span);

	CHECK(top);
	CHECK(!found || (span->start < span->end && span->end <= top));
	if (s->depth < 3 && input.left && next_byte() % 4 == 0)
		claim(s->model, s->depth + 1);

	return found;
}

static void claim(struct model *model, unsigned int depth)
{
	struct search search = { model, depth };
	struct reap_span chunk;
	bool found;
	int page;

	found = reap_session_claim(model->session, below, &search, &chunk);
	page = highest_page(model);
	CHECK(found == (page >= 0));
	model->claimed = 0;
	if (!found)
		return;
	CHECK(chunk.end == (page + 1) * PAGE_SIZE);
	while (page * PAGE_SIZE % REAP_CHUNK_SIZE)
		page--;
	CHECK(chunk.start == page * PAGE_SIZE);
	model->claimed = page;
}

static struct model *find_model(unsigned int mm)
{
	for (unsigned int i = 0; i < NR_REAPERS; i++) {
		if (models[i].users && models[i].in_table &&
		    models[i].mm == mm && !models[i].failed)
			return &models[i];
	}

	return NULL;
}

static void join(struct reaper *r, unsigned int mm)
{
	struct model *model = find_model(mm);
	unsigned int in_table = 0;
	struct reap_session *session;

	session = reap_session_join(fake_mm(mm), &r->own);
	if (model) {
		CHECK(session == model->session);
		model->users++;
		model->working++;
		r->model = model;
		r->working = true;
		return;
	}
	for (unsigned int i = 0; i < NR_REAPERS; i++) {
		if (!models[i].users) {
			model = &models[i];
			continue;
		}
		in_table += models[i].in_table;
		CHECK(models[i].session != session);
	}
	CHECK(model);
	*model = (struct model){
		.session = session,
		.mm = mm,
		.in_table = session != &r->own,
		.users = 1,
		.working = 1,
		.claimed = NR_PAGES,
	};
	CHECK(model->in_table == (in_table < REAP_MAX_SESSIONS));
	r->model = model;
	r->working = true;
}

static void finish(struct reaper *r)
{
	reap_session_finish(r->model->session);
	r->model->working--;
	r->working = false;
}

static void leave(struct reaper *r)
{
	if (r->working)
		finish(r);
	CHECK(reap_session_leave(r->model->session) == !r->model->failed);
	r->model->users--;
	r->model = NULL;
}

static void step(void)
{
	uint8_t op = next_byte();
	struct reaper *r = &reapers[next_byte() % NR_REAPERS];
	struct model *model = r->model;

	if (!model) {
		join(r, op % NR_MMS);
		return;
	}
	CHECK(model->session->mm == fake_mm(model->mm));
	CHECK(reap_session_finished(model->session) == !model->working);
	switch (op % 8) {
	case 0:
		leave(r);
		break;
	case 1:
		WRITE_ONCE(model->session->failed, true);
		model->failed = true;
		break;
	case 2:
		if (r->working)
			finish(r);
		break;
	default:
		if (r->working)
			claim(model, 0);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	input = (struct input){ data, size };
	memset(models, 0, sizeof(models));
	memset(reapers, 0, sizeof(reapers));
	lay_out();
	while (input.left)
		step();

	for (unsigned int i = 0; i < NR_REAPERS; i++) {
		if (reapers[i].model)
			leave(&reapers[i]);
	}

	return 0;
}
