// SPDX-License-Identifier: GPL-2.0-only
/*
 * Threads that exit in a cgroup at its limit: each has its control block in
 * swap, and has to read it back, as the head of its list of robust futexes is
 * there. And a thread whose list is in a file.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>

#include "../kselftest_harness.h"
#include "cgroup.h"
#include "trace.h"
#include "victim.h"
#include "zram.h"

/* Seconds for the test, on a busy host that emulates a kernel full of checks. */
#define LIMIT		600

#define NR_THREADS	256
/* Of the limit, an eighth is more than a page for each thread. */
#define RESIDENT	(32 * MIB)
#define ZRAM_SIZE	(256 * MIB)
/* Attempts to have threads at the limit with the switch off. */
#define MAX_TRIES	5
/* Limit in ms for one job: stock asks for the OOM killer once per thread. */
#define JOB_PATIENCE	(8 * PATIENCE)
/* By this part of it a limit may be exceeded. */
#define RESERVE_DIVISOR	8

#define SWITCH		"/sys/module/memreap/parameters/memcg_exit"
#define RT_HAS_MEMORY	"with PREEMPT_RT, memory is back before threads need some"
/* That the OOM killer waits for a process. */
#define MARK		"oom/mark_victim"

static void __attribute__((constructor)) memcg_exit_begin(void)
{
	trace_begin(MARK);
}

static bool watch_marks(void)
{
	trace_clear();

	return trace_enable(MARK, true);
}

/* Since watch_marks(). */
static int nr_marks(void)
{
	return trace_count("mark_victim: ");
}

FIXTURE(exit) {
	struct cgroups cgroups;
	struct victim victim;
	struct victim other;
	bool swap;
};

FIXTURE_SETUP(exit)
{
	const char *missing;

	if (access(SWITCH, W_OK))
		SKIP(return, "no " SWITCH);
	missing = cgroups_begin(&self->cgroups, "+memory");
	if (missing)
		SKIP(return, "%s", missing);
	self->swap = zram_on(0, ZRAM_SIZE, 0);
	if (!self->swap)
		SKIP(return, "no zram0");
}

FIXTURE_TEARDOWN(exit)
{
	write_file(SWITCH, "Y");
	trace_enable(MARK, false);
	victim_end(&self->victim);
	victim_end(&self->other);
	cgroups_end(&self->cgroups);
	if (self->swap)
		EXPECT_TRUE(zram_off(0));
}

/* What the victim holds that cannot go to swap. */
static char *resident;

static enum verdict start_threads(void *cgroup)
{
	pthread_attr_t attr;
	pthread_t thread;

	resident = map(2 * RESIDENT, MAP_PRIVATE);
	if (!resident || !cgroup_enter(cgroup) || pthread_attr_init(&attr) ||
	    pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN))
		return BAD;
	for (int i = 0; i < NR_THREADS; i++)
		if (pthread_create(&thread, &attr, idle_fn, NULL))
			return BAD;

	return GOOD;
}

/* At the second request, exceeds the limit and dies. */
static enum verdict take(void *cgroup)
{
	static unsigned int taken;

	touch(resident + taken++ * RESIDENT, RESIDENT / PAGE);

	return GOOD;
}

static bool request(struct victim *v)
{
	return write(v->talk, "", 1) == 1;
}

/* As much as possible: EAGAIN says that it was not all. */
static void swap_out(const char *cgroup)
{
	for (int i = 0; i < 10; i++)
		cgroup_write_number(cgroup, "memory.reclaim",
				    cgroup_memory(cgroup));
}

/* Returns how often the OOM killer was asked for when a job of threads died. */
static long kill_threads(struct __test_metadata *_metadata,
			 struct victim *victim, const char *cgroup)
{
	struct victim_ops ops = { (void *)cgroup, start_threads, take };
	long limit, peak;

	ASSERT_EQ(mkdir(cgroup, 0700), 0);
	ASSERT_EQ(victim_start(victim, &ops), GOOD);
	swap_out(cgroup);
	ASSERT_GE(cgroup_read(cgroup, "memory.swap.current", NULL),
		  NR_THREADS * PAGE);
	ASSERT_EQ(cgroup_write(cgroup, "memory.swap.max", "0"), 0);
	ASSERT_EQ(victim_check(victim), GOOD);
	limit = cgroup_memory(cgroup);
	ASSERT_EQ(cgroup_write_number(cgroup, "memory.max", limit), 0);
	ASSERT_EQ(cgroup_read(cgroup, "memory.events", "oom "), 0);

	ASSERT_TRUE(request(victim));
	EXPECT_TRUE(pidfd_exits(victim->pidfd, JOB_PATIENCE));
	EXPECT_EQ(cgroup_read(cgroup, "memory.events", "oom_kill "), 1);
	peak = cgroup_read(cgroup, "memory.peak", NULL);
	EXPECT_LE(peak, limit + limit / RESERVE_DIVISOR);
	victim_end(victim);

	return cgroup_read(cgroup, "memory.events", "oom ");
}

TEST_F_TIMEOUT(exit, does_not_wait_for_the_oom_killer, LIMIT)
{
	long without = 0, with;
	char name[16];

	ASSERT_EQ(cgroup_write(self->cgroups.top, "cgroup.subtree_control",
			       "+memory"), 0);
	ASSERT_TRUE(write_file(SWITCH, "N"));
	/* Few, if the stacks of the first threads come back before the others exit. */
	for (int i = 0; i < MAX_TRIES && without < NR_THREADS / 4; i++) {
		snprintf(name, sizeof(name), "without%d", i);
		without = kill_threads(_metadata, &self->victim,
				       cgroup_path(&self->cgroups, name));
	}
	ASSERT_TRUE(write_file(SWITCH, "Y"));
	with = kill_threads(_metadata, &self->victim,
			    cgroup_path(&self->cgroups, "with"));

	TH_LOG("%ld times of %d threads, %ld with the switch off", with,
	       NR_THREADS, without);
	EXPECT_LE(with, NR_THREADS / 64);
	/* Otherwise nobody was at the limit. */
	if (without < NR_THREADS / 4 && preempt_rt())
		SKIP(return, RT_HAS_MEMORY);
	EXPECT_GE(without, NR_THREADS / 4);
}

/* --- Those beside --- */

/* More than threads give back that exit, and less than all of their process. */
#define TAKEN		(RESIDENT / 2)

static enum verdict enter(void *cgroup)
{
	return cgroup_enter(cgroup) ? GOOD : BAD;
}

static enum verdict take_more(void *cgroup)
{
	char *mem = map(TAKEN, MAP_PRIVATE);

	if (!mem)
		return BAD;
	touch(mem, TAKEN / PAGE);

	return GOOD;
}

/*
 * A job dies at a limit, beside a process that takes what it gives back, and one of
 * its threads does not exit. The other process gets more once the job is reaped,
 * and is not killed instead.
 */
TEST_F_TIMEOUT(exit, others_at_the_limit_wait, LIMIT)
{
	const char *both = cgroup_path(&self->cgroups, "both");
	const char *job = cgroup_path(&self->cgroups, "both/job");
	const char *beside = cgroup_path(&self->cgroups, "both/beside");
	struct victim_ops ops = { (void *)job, start_threads, take };
	struct victim_ops more = { (void *)beside, enter, take_more };
	char answer = BAD;

	ASSERT_EQ(cgroup_write(self->cgroups.top, "cgroup.subtree_control",
			       "+memory"), 0);
	ASSERT_EQ(mkdir(both, 0700), 0);
	ASSERT_EQ(cgroup_write(both, "cgroup.subtree_control", "+memory"), 0);
	ASSERT_EQ(mkdir(job, 0700), 0);
	ASSERT_EQ(mkdir(beside, 0700), 0);
	ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
	swap_out(job);
	ASSERT_EQ(cgroup_write(both, "memory.swap.max", "0"), 0);
	ASSERT_EQ(victim_check(&self->victim), GOOD);
	/* Neither can be chosen. */
	ASSERT_TRUE(set_oom_score_adj(self->victim.pid, -1000));
	ASSERT_EQ(victim_start(&self->other, &more), GOOD);
	ASSERT_TRUE(set_oom_score_adj(self->other.pid, -1000));
	ASSERT_EQ(cgroup_write_number(both, "memory.max", cgroup_memory(both)),
		  0);
	ASSERT_TRUE(watch_marks());
	ASSERT_TRUE(request(&self->other));
	ASSERT_TRUE(within(PATIENCE, cgroup_read(both, "memory.events",
						 "oom ") > 0));

	ASSERT_TRUE(victim_park(&self->victim));
	if (!within(PATIENCE, nr_marks() > 0) && preempt_rt())
		SKIP(return, RT_HAS_MEMORY);
	EXPECT_GT(nr_marks(), 0);
	/* From now on it could. */
	ASSERT_TRUE(set_oom_score_adj(self->other.pid, 0));
	EXPECT_EQ(read(self->other.talk, &answer, 1), 1);
	EXPECT_EQ(answer, GOOD);
	EXPECT_EQ(cgroup_read(both, "memory.events", "oom_kill "), 0);
}

/* --- Lists of robust futexes in a file --- */

/* The device that is the file, and its part that is mapped. */
#define FILE_DEVICE	0
#define FILE_SIZE	(8 * MIB)
/* The kernel follows so many entries of a list, and no more. */
#define MAX_ENTRIES	2000

struct entry {
	struct robust_list list;
	unsigned int futex;
};

/**
 * struct list - a list in a file, none of whose pages is in memory
 * @cgroup: that its owner enters
 * @distance: pages from an entry to the next one
 * @advice: to madvise(2) about the file
 */
struct list {
	const char *cgroup;
	unsigned int distance;
	int advice;
};

static unsigned int nr_entries(const struct list *l)
{
	unsigned int nr = FILE_SIZE / PAGE / l->distance;

	return nr < MAX_ENTRIES ? nr : MAX_ENTRIES;
}

static off_t place(const struct list *l, unsigned int entry)
{
	return entry * (off_t)l->distance * PAGE;
}

/* Makes the caller the owner of the last futex of a list. */
static enum verdict own_list(void *arg)
{
	static struct robust_list_head head = {
		.futex_offset = offsetof(struct entry, futex),
	};
	const struct list *l = arg;
	unsigned int nr = nr_entries(l);
	int fd = open(zram_device(FILE_DEVICE), O_RDWR | O_CLOEXEC);
	char *mem = mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			 0);

	if (mem == MAP_FAILED || madvise(mem, FILE_SIZE, l->advice))
		return BAD;
	head.list.next = (void *)mem;
	for (unsigned int i = 0; i < nr; i++) {
		struct entry entry = { { (void *)(mem + place(l, i + 1)) } };

		if (i == nr - 1) {
			entry.list.next = &head.list;
			entry.futex = getpid();
		}
		if (pwrite(fd, &entry, sizeof(entry), place(l, i)) !=
		    sizeof(entry))
			return BAD;
	}
	if (fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) ||
	    syscall(__NR_set_robust_list, &head, sizeof(head)) ||
	    !cgroup_enter(l->cgroup))
		return BAD;
	close(fd);
	resident = map(RESIDENT, MAP_PRIVATE);
	if (!resident)
		return BAD;
	touch(resident, RESIDENT / PAGE);

	return GOOD;
}

/* What the kernel leaves in the last futex of a list. */
static unsigned int last_futex(const struct list *l)
{
	int fd = open(zram_device(FILE_DEVICE), O_RDONLY | O_CLOEXEC);
	struct entry entry = {};

	if (pread(fd, &entry, sizeof(entry), place(l, nr_entries(l) - 1)) !=
	    sizeof(entry))
		entry.futex = 0;
	close(fd);

	return entry.futex;
}

FIXTURE(list) {
	struct cgroups cgroups;
	struct victim victim;
	struct list list;
	long limit;
	bool file;
};

FIXTURE_SETUP(list)
{
	char size[32];
	const char *missing;

	if (access(SWITCH, W_OK))
		SKIP(return, "no " SWITCH);
	missing = cgroups_begin(&self->cgroups, "+memory");
	if (missing)
		SKIP(return, "%s", missing);
	snprintf(size, sizeof(size), "%lu", 2 * FILE_SIZE);
	self->file = zram_write(FILE_DEVICE, "disksize", size);
	if (!self->file)
		SKIP(return, "no zram%d", FILE_DEVICE);
	self->list.cgroup = self->cgroups.top;
	/* Nothing but the file's pages can be reclaimed. */
	ASSERT_EQ(cgroup_write(self->cgroups.top, "memory.swap.max", "0"), 0);
}

FIXTURE_TEARDOWN(list)
{
	victim_end(&self->victim);
	cgroups_end(&self->cgroups);
	if (self->file)
		EXPECT_TRUE(within(PATIENCE, zram_reset(FILE_DEVICE)));
}

/* Kills the owner of a list at its limit. Returns by how much it exceeded that. */
static long kill_owner(struct __test_metadata *_metadata,
		       struct _test_data_list *self)
{
	struct victim_ops ops = { &self->list, own_list };
	const char *cgroup = self->cgroups.top;
	long peak;

	ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
	self->limit = cgroup_memory(cgroup);
	ASSERT_EQ(cgroup_write_number(cgroup, "memory.max", self->limit), 0);
	ASSERT_TRUE(watch_marks());
	ASSERT_EQ(kill_plain(&self->victim), 0);
	EXPECT_TRUE(pidfd_exits(self->victim.pidfd, PATIENCE));
	trace_enable(MARK, false);
	peak = cgroup_read(cgroup, "memory.peak", NULL);
	TH_LOG("%u entries, %ld KiB above a limit of %ld KiB",
	       nr_entries(&self->list), (peak - self->limit) / 1024,
	       self->limit / 1024);
	victim_end(&self->victim);

	return peak - self->limit;
}

/* Pages are read one by one. Those before can be reclaimed, and nobody is marked. */
TEST_F_TIMEOUT(list, exceeds_nothing_where_reclaim_helps, LIMIT)
{
	long excess;

	self->list.distance = 1;
	self->list.advice = MADV_RANDOM;
	excess = kill_owner(_metadata, self);
	/* Their buffer heads, which cannot be refused, are charged, too. */
	EXPECT_LE(excess, self->limit / RESERVE_DIVISOR / 4);
	EXPECT_EQ(nr_marks(), 0);
	EXPECT_EQ(last_futex(&self->list), FUTEX_OWNER_DIED);
}

/* With each page the kernel would like to read those around it. */
TEST_F_TIMEOUT(list, reads_nothing_ahead, LIMIT)
{
	self->list.distance = 32;
	self->list.advice = MADV_NORMAL;
	EXPECT_LE(kill_owner(_metadata, self),
		  2 * nr_entries(&self->list) * (long)PAGE);
	/* It got all pages that it needed. */
	EXPECT_EQ(last_futex(&self->list), FUTEX_OWNER_DIED);
}

TEST_HARNESS_MAIN
