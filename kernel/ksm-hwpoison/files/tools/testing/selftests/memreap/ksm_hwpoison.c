// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which processes are signalled on a memory error in a KSM page?
 *
 * Only those that map it. Each test loses a page permanently.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "../kselftest_harness.h"
#include "world.h"

/* Signals that this process got. */
static struct {
	int times;
	int code;
	char *addr;
	pid_t thread;
} told;

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
	told.code = info->si_code;
	told.addr = info->si_addr;
	told.thread = syscall(__NR_gettid);
	/* Last: it is what others wait for. */
	__atomic_fetch_add(&told.times, 1, __ATOMIC_SEQ_CST);
}

static bool wants_to_be_told(void)
{
	struct sigaction action = {
		.sa_sigaction = on_sigbus,
		.sa_flags = SA_SIGINFO | SA_RESTART,
	};

	return !sigaction(SIGBUS, &action, NULL) &&
	       !prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0);
}

static long do_want_to_be_told(char *addr, unsigned long arg)
{
	return wants_to_be_told();
}

static pid_t listener;

static void *listen_fn(void *arg)
{
	if (wants_to_be_told())
		__atomic_store_n(&listener, syscall(__NR_gettid),
				 __ATOMIC_SEQ_CST);
	for (;;)
		pause();

	return NULL;
}

/* Starts several threads, one of which takes such signals for all. */
static long do_start_threads(char *addr, unsigned long arg)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, idle_fn, NULL) ||
	    pthread_create(&thread, NULL, listen_fn, NULL) ||
	    pthread_create(&thread, NULL, idle_fn, NULL))
		return 0;
	while (!__atomic_load_n(&listener, __ATOMIC_SEQ_CST))
		usleep(1000);

	return 1;
}

/* Returns the number of signals; plus 1000 if any was not for @addr. */
static long do_tell(char *addr, unsigned long by_listener)
{
	for (int i = 0; i < 5000 && !told.times && by_listener; i++)
		usleep(1000);
	if (told.times &&
	    (told.code != BUS_MCEERR_AO || told.addr != addr ||
	     (by_listener && told.thread != listener)))
		return 1000 + told.times;

	return told.times;
}

/* Processes that map the page, and others. */
enum {
	OWNER,		/* listed by KSM, after a move */
	CHILD,		/* by fork after the merge */
	WRITER,		/* likewise, but it has a page of its own now */
	UNMAPPER,	/* likewise, but that page is unmapped now */
	THREADS,	/* listed by KSM */
	LATE,		/* wants no signal before it uses the page */
	STRANGER,	/* other content at the same address */
	INJECTOR,	/* breaks it */
};

FIXTURE(hwpoison) {
	struct world world;
	char *mem;
	char *keep;
};

static long do_move(char *addr, unsigned long to)
{
	return mremap(addr, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
		      (char *)to) == (char *)to;
}

static long do_map(char *addr, unsigned long pages)
{
	return map_fixed(addr, pages, -1, 0) == addr;
}

/* The caller gets a signal at once, as if it had accessed the page. */
static long do_poison(char *addr, unsigned long arg)
{
	return !madvise(addr, PAGE, MADV_HWPOISON) && told.times == 1 &&
	       told.addr == addr;
}

FIXTURE_SETUP(hwpoison)
{
	const char *missing = world_begin(&self->world, 1);
	char *area, *from, *addr;

	if (missing)
		SKIP(return, "%s", missing);
	/* Does nothing, and fails only if it is not supported. */
	if (madvise(NULL, 0, MADV_HWPOISON)) {
		ksm_restore(&ksm_saved);
		SKIP(return, "no MADV_HWPOISON (CONFIG_MEMORY_FAILURE)");
	}
	area = reserve(64);
	ASSERT_NE(area, NULL);
	from = area + 8 * PAGE;
	self->mem = area + 40 * PAGE;
	addr = self->mem + PAGE;
	self->keep = map_region(1);
	ASSERT_NE(self->keep, NULL);
	ASSERT_EQ(map_fixed(from, 4, -1, 0), from);

	/* Without a common anon_vma: each faults for itself. */
	ASSERT_TRUE(start_mate(OWNER));
	ASSERT_TRUE(start_mate(THREADS));
	ASSERT_TRUE(start_mate(LATE));
	ASSERT_TRUE(start_mate(STRANGER));
	ASSERT_TRUE(start_mate(INJECTOR));
	for (int i = 0; i < 4; i++)
		ASSERT_EQ(ask(OWNER, do_fill, from + i * PAGE,
			      i == 1 ? 1 : 50 + i), 1);
	ASSERT_EQ(ask(OWNER, do_move, from, (unsigned long)self->mem), 1);
	ASSERT_EQ(ask(THREADS, do_fill, self->keep, 1), 1);
	ASSERT_EQ(ask(LATE, do_fill, self->keep, 1), 1);
	ASSERT_EQ(ask(INJECTOR, do_fill, self->keep, 1), 1);
	ASSERT_EQ(ask(STRANGER, do_map, self->mem, 4), 1);
	ASSERT_EQ(ask(STRANGER, do_fill, addr, 9), 1);
	ASSERT_MERGES(((struct place[]){
		{ OWNER, addr }, { THREADS, self->keep }, { LATE, self->keep },
		{ INJECTOR, self->keep },
	}));

	ASSERT_TRUE(start_mate_of(OWNER, CHILD));
	ASSERT_TRUE(start_mate_of(OWNER, WRITER));
	ASSERT_TRUE(start_mate_of(OWNER, UNMAPPER));
	ASSERT_EQ(ask(WRITER, do_fill, addr, 7), 1);
	ASSERT_EQ(ask(UNMAPPER, do_unmap, addr, PAGE), 1);
	ASSERT_OK(one_page((struct place[]){
		{ OWNER, addr }, { CHILD, addr }, { THREADS, self->keep },
		{ LATE, self->keep }, { INJECTOR, self->keep },
	}, 5));

	ASSERT_EQ(ask(THREADS, do_start_threads, NULL, 0), 1);
	ASSERT_EQ(ask(OWNER, do_want_to_be_told, NULL, 0), 1);
	ASSERT_EQ(ask(CHILD, do_want_to_be_told, NULL, 0), 1);
	ASSERT_EQ(ask(WRITER, do_want_to_be_told, NULL, 0), 1);
	ASSERT_EQ(ask(UNMAPPER, do_want_to_be_told, NULL, 0), 1);
	ASSERT_EQ(ask(STRANGER, do_want_to_be_told, NULL, 0), 1);
	ASSERT_EQ(ask(INJECTOR, do_want_to_be_told, NULL, 0), 1);

	/* The page is lost: not every kernel can unpoison it. */
	ASSERT_EQ(ask(INJECTOR, do_poison, self->keep, 0), 1);
}

FIXTURE_TEARDOWN_PARENT(hwpoison)
{
	world_end(_metadata, &self->world);
}

TEST_F_TIMEOUT(hwpoison, mappers_are_told, LIMIT)
{
	char *addr = self->mem + PAGE;

	EXPECT_EQ(ask(OWNER, do_tell, addr, 0), 1);
	EXPECT_EQ(ask(CHILD, do_tell, addr, 0), 1);
	EXPECT_EQ(ask(THREADS, do_tell, self->keep, 1), 1);
	EXPECT_EQ(ask(LATE, do_tell, self->keep, 0), 0);
	EXPECT_EQ(ask(STRANGER, do_tell, addr, 0), 0);

	/* And no process maps it any more. */
	EXPECT_EQ(pfn_at(pid_of(OWNER), addr), 0);
	EXPECT_EQ(pfn_at(pid_of(CHILD), addr), 0);
	EXPECT_EQ(pfn_at(pid_of(THREADS), self->keep), 0);
	EXPECT_EQ(pfn_at(pid_of(LATE), self->keep), 0);
	EXPECT_EQ(ask(OWNER, do_check, self->mem, 50), 1);
	EXPECT_EQ(ask(STRANGER, do_check, addr, 9), 1);
	/* A process that still accesses it dies. */
	EXPECT_EQ(ask(LATE, do_check, self->keep, 1), -1);
}

/*
 * Fails on stock 6.12: there, every process is signalled that has a VMA in the
 * anon_vma of one that maps the page.
 */
TEST_F_TIMEOUT(hwpoison, others_are_not_told, LIMIT)
{
	char *addr = self->mem + PAGE;

	/* Signals are sent in any order: one does not prove the others. */
	EXPECT_EQ(ask(THREADS, do_tell, self->keep, 1), 1);
	EXPECT_EQ(ask(WRITER, do_tell, addr, 0), 0);
	EXPECT_EQ(ask(UNMAPPER, do_tell, addr, 0), 0);
	EXPECT_EQ(ask(WRITER, do_check, addr, 7), 1);
}

TEST_HARNESS_MAIN
