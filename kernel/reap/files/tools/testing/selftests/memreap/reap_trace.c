// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the memreap_reap tracepoints say, against what /proc says: on kernels
 * that have them.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#include "../kselftest_harness.h"
#include "victim.h"

#define TRACEFS		"/sys/kernel/tracing"
#define INSTANCE	TRACEFS "/instances/memreap_selftest"
#define ENABLE		INSTANCE "/events/memreap_reap/enable"
#define NR_PLACES	64
#define MAX_REAPERS	4

/* On a busy machine one reaper may be through before the next one starts. */
#define ROUNDS		20
#define TRACE_LIMIT	300

FIXTURE(trace) {
	struct victim victim;
	bool mounted;
	bool instance;
	unsigned long rss;
};

static enum verdict fill_places(void *arg)
{
	return map_sparse(NR_PLACES, 32 * PAGE, 32 * MIB) ? GOOD : BAD;
}

static bool switched_off(void)
{
	int fd = open("/sys/module/memreap/parameters/reap",
		      O_RDONLY | O_CLOEXEC);
	char byte = 'Y';

	if (fd >= 0) {
		if (read(fd, &byte, 1) != 1)
			byte = 'Y';
		close(fd);
	}

	return byte == 'N';
}

static bool start(struct victim *v)
{
	struct victim_ops ops = { .prepare = fill_places };

	return victim_start(v, &ops) == GOOD && victim_park(v);
}

FIXTURE_SETUP(trace)
{
	if (!mrelease_supported())
		SKIP(return, "no process_mrelease()");
	if (switched_off())
		SKIP(return, "booted with memreap.reap=0");
	if (access(TRACEFS "/events", F_OK))
		self->mounted = !mount("tracefs", TRACEFS, "tracefs", 0, NULL);
	if (access(TRACEFS "/events/memreap_reap", F_OK)) {
		if (self->mounted)
			umount(TRACEFS);
		SKIP(return, "no memreap_reap tracepoints");
	}
	/* An instance of its own: other users of tracing are not disturbed. */
	self->instance = !mkdir(INSTANCE, 0700) || errno == EEXIST;
	if (!self->instance || !write_file(ENABLE, "1"))
		SKIP(return, "cannot trace");
	ASSERT_TRUE(start(&self->victim));
	self->rss = rss(self->victim.pid);
	ASSERT_GT(self->rss, NR_PLACES * 32 * PAGE - 1);
}

FIXTURE_TEARDOWN(trace)
{
	victim_end(&self->victim);
	if (self->instance) {
		write_file(ENABLE, "0");
		rmdir(INSTANCE);
	}
	if (self->mounted)
		umount(TRACEFS);
}

/* What the end events said, all together. */
struct told {
	unsigned int starts;
	unsigned int ends;
	unsigned int at_work;
	unsigned long bytes;
	unsigned long chunks;
	unsigned int complete;
};

static void read_trace(struct told *told)
{
	char line[512];
	FILE *f;

	memset(told, 0, sizeof(*told));
	f = fopen(INSTANCE "/trace", "re");
	while (f && fgets(line, sizeof(line), f)) {
		unsigned long long ns, bytes;
		unsigned int id, chunks, yields;
		int complete;
		char *at;

		if (strstr(line, "memreap_reap_start: "))
			told->starts++;
		at = strstr(line, "memreap_reap_end: ");
		if (!at || sscanf(at + strlen("memreap_reap_end: "),
				  "mm_id=%u bytes=%llu chunks=%u yields=%u ns=%llu complete=%d",
				  &id, &bytes, &chunks, &yields, &ns,
				  &complete) != 6)
			continue;
		told->ends++;
		told->at_work += chunks && bytes && ns;
		told->bytes += bytes;
		told->chunks += chunks;
		told->complete += complete;
	}
	if (f)
		fclose(f);
}

TEST_F_TIMEOUT(trace, one_reaper, TRACE_LIMIT)
{
	struct told told;

	ASSERT_EQ(mrelease(self->victim.pidfd), 0);
	ASSERT_EQ(rss(self->victim.pid), 0);
	read_trace(&told);
	EXPECT_EQ(told.starts, 1);
	EXPECT_EQ(told.ends, 1);
	EXPECT_EQ(told.complete, 1);
	EXPECT_GE(told.chunks, NR_PLACES);
	/* Every page that was mapped, and nothing twice. */
	EXPECT_EQ(told.bytes, self->rss);
}

struct worker {
	pthread_barrier_t *go;
	int pidfd;
	int result;
};

static void *worker_fn(void *arg)
{
	struct worker *w = arg;

	pthread_barrier_wait(w->go);
	w->result = mrelease(w->pidfd);

	return NULL;
}

/* Let @nr reapers at the victim at the same time. Returns how many worked. */
static unsigned int share(struct __test_metadata *_metadata,
			  struct _test_data_trace *self, int nr)
{
	struct worker workers[MAX_REAPERS];
	pthread_t threads[MAX_REAPERS];
	pthread_barrier_t go;
	struct told told;

	pthread_barrier_init(&go, NULL, nr);
	for (int i = 0; i < nr; i++) {
		workers[i] = (struct worker){ &go, self->victim.pidfd, -1 };
		ASSERT_EQ(pthread_create(&threads[i], NULL, worker_fn,
					 &workers[i]), 0);
	}
	for (int i = 0; i < nr; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < nr; i++)
		EXPECT_EQ(workers[i].result, 0);
	EXPECT_EQ(rss(self->victim.pid), 0);

	read_trace(&told);
	EXPECT_EQ(told.starts, nr);
	EXPECT_EQ(told.ends, nr);
	EXPECT_EQ(told.complete, nr);
	EXPECT_EQ(told.bytes, self->rss);
	EXPECT_GE(told.chunks, NR_PLACES);

	return told.at_work;
}

TEST_F_TIMEOUT(trace, reapers_share_the_work, TRACE_LIMIT)
{
	int nr = get_nprocs() < MAX_REAPERS ? get_nprocs() : MAX_REAPERS;
	unsigned int at_work;

	if (nr < 2)
		SKIP(return, "needs two CPUs");
	at_work = share(_metadata, self, nr);
	for (int i = 1; i < ROUNDS && at_work < 2; i++) {
		victim_end(&self->victim);
		close(open(INSTANCE "/trace", O_WRONLY | O_TRUNC | O_CLOEXEC));
		ASSERT_TRUE(start(&self->victim));
		self->rss = rss(self->victim.pid);
		at_work = share(_metadata, self, nr);
	}
	EXPECT_GE(at_work, 2);
}

TEST_HARNESS_MAIN
