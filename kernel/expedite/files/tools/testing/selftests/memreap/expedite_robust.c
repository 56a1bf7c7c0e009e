// SPDX-License-Identifier: GPL-2.0-only
/*
 * Robust futexes and kills with reclaim: waiters for a lock of the victim must
 * be woken, although the list of locks is in the memory that is freed.
 */
#define _GNU_SOURCE
#include <linux/futex.h>

#include "../kselftest_harness.h"
#include "expedite.h"
#include "pagemap.h"
#include "zram.h"

#define NR_LOCKS	8
/* The most kinds of victims in a test. */
#define MAX_KINDS	8
/* Seconds after which a waiter gives up: it was not woken. */
#define WAIT_LIMIT	60
/* Little: how long it takes to free it is not to matter. */
#define OWNER_SIZE	(2 * MIB)
/* Rounds in which the victim runs, however long they take. */
#define FEW_ROUNDS	4
/* The ways to own, which share the time of those rounds. */
#define NR_WAYS		6
#define NR_BUSY		2
/* Threads that a signal takes a while to reach, one after the other. */
#define NR_IDLE		500

#define ZRAM_SIZE	(16 * MIB)

/**
 * struct raw_lock - a robust futex without a libc around it
 * @entry: in the owner's list
 * @word: the futex
 */
struct raw_lock {
	struct robust_list entry;
	unsigned int word;
};

/**
 * struct locks - shared by the victim and the test
 * @mutex: robust ones
 * @raw: the same, by hand
 * @nr: of them, that the victim locks
 * @ready: of these, those that are locked
 */
struct locks {
	pthread_mutex_t mutex[NR_LOCKS];
	struct raw_lock raw;
	unsigned int nr;
	unsigned int ready;
};

/* One for all: victims are forked and find it at the same place. */
static struct locks *locks;

static struct parking parking;

/* The memory that is freed; the list's head is in such memory, too. */
static enum verdict fill_size(void)
{
	struct region region = { .size = OWNER_SIZE, .seed = 1 };

	return region_fill(&region);
}

static bool make_locks(void)
{
	pthread_mutexattr_t attr;

	locks = map(PAGE, MAP_SHARED);
	if (!locks)
		return false;
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	for (int i = 0; i < NR_LOCKS; i++) {
		if (pthread_mutex_init(&locks->mutex[i], &attr))
			return false;
	}
	pthread_mutexattr_destroy(&attr);

	return true;
}

/* --- Ways to own --- */

static void *owner_fn(void *arg)
{
	long i = (long)arg;

	pthread_mutex_lock(&locks->mutex[i]);
	__atomic_fetch_add(&locks->ready, 1, __ATOMIC_SEQ_CST);
	for (;;)
		pause();

	return NULL;
}

static enum verdict start_owners(unsigned int nr)
{
	pthread_t thread;

	locks->ready = 0;
	locks->nr = nr;
	for (long i = 0; i < nr; i++) {
		if (pthread_create(&thread, NULL, owner_fn, (void *)i))
			return BAD;
	}

	return within(PATIENCE, __atomic_load_n(&locks->ready,
						__ATOMIC_SEQ_CST) == nr) ?
	       fill_size() : BAD;
}

static enum verdict own_mutex(void *arg)
{
	locks->nr = 1;
	if (pthread_mutex_lock(&locks->mutex[0]))
		return BAD;

	return fill_size();
}

static enum verdict own_by_thread(void *arg)
{
	return start_owners(1);
}

static enum verdict own_by_many(void *arg)
{
	return start_owners(NR_LOCKS);
}

static struct robust_list_head *new_head(void)
{
	struct robust_list_head *head = map(PAGE, MAP_PRIVATE);

	if (head) {
		head->list.next = &head->list;
		head->futex_offset = offsetof(struct raw_lock, word) -
				     offsetof(struct raw_lock, entry);
	}

	return head;
}

static enum verdict use_head(struct robust_list_head *head)
{
	if (syscall(__NR_set_robust_list, head, sizeof(*head)))
		return UNSUPPORTED;

	return GOOD;
}

static struct robust_list_head *own_raw_lock(bool pending)
{
	struct robust_list_head *head = new_head();

	if (!head)
		return NULL;
	locks->nr = 0;
	locks->raw.word = syscall(__NR_gettid);
	locks->raw.entry.next = &head->list;
	if (pending)
		head->list_op_pending = &locks->raw.entry;
	else
		head->list.next = &locks->raw.entry;

	return use_head(head) == GOOD ? head : NULL;
}

static enum verdict own_listed(void *arg)
{
	return own_raw_lock(false) ? fill_size() : BAD;
}

/* As if it was about to add it to the list, or to remove it. */
static enum verdict own_pending(void *arg)
{
	return own_raw_lock(true) ? fill_size() : BAD;
}

/* The list's head is in swap: it cannot be read without waiting. */
static enum verdict own_swapped(void *arg)
{
	struct robust_list_head *head = own_raw_lock(false);

	if (!head || fill_size() != GOOD)
		return BAD;
	return within(NEVER_MS, put_on_lru() &&
		      !madvise(head, PAGE, MADV_PAGEOUT) &&
		      swapped_out(0, head)) ? GOOD : UNSUPPORTED;
}

/* --- Waiters --- */

/* What pthread_mutex_timedlock() said to each. */
struct waiters {
	pthread_t threads[NR_LOCKS];
	int result[NR_LOCKS];
	unsigned int nr;
};

static int wait_for_mutex(unsigned int i)
{
	struct timespec end;
	int err;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += WAIT_LIMIT;
	err = pthread_mutex_timedlock(&locks->mutex[i], &end);
	if (err == EOWNERDEAD)
		pthread_mutex_consistent(&locks->mutex[i]);
	if (!err || err == EOWNERDEAD)
		pthread_mutex_unlock(&locks->mutex[i]);

	return err;
}

static void *waiter_fn(void *arg)
{
	return (void *)(long)wait_for_mutex((long)arg);
}

static bool waiters_start(struct waiters *w)
{
	for (w->nr = 0; w->nr < locks->nr; w->nr++) {
		if (pthread_create(&w->threads[w->nr], NULL, waiter_fn,
				   (void *)(long)w->nr))
			return false;
	}

	return true;
}

static void waiters_join(struct waiters *w)
{
	for (unsigned int i = 0; i < w->nr; i++) {
		void *result;

		pthread_join(w->threads[i], &result);
		w->result[i] = (long)result;
	}
}

/* The owner of the raw lock died, and the kernel said so. */
static bool raw_lock_told(void)
{
	return within(WAIT_LIMIT * 1000,
		      __atomic_load_n(&locks->raw.word, __ATOMIC_SEQ_CST) &
		      FUTEX_OWNER_DIED);
}

/* --- Victims that own something --- */

FIXTURE(owner) {
	struct watch watch;
	bool swap;
};

FIXTURE_VARIANT(owner) {
	enum verdict (*prepare)(void *arg);
	bool raw;
	bool swap;
};

FIXTURE_VARIANT_ADD(owner, mutex) { .prepare = own_mutex };
FIXTURE_VARIANT_ADD(owner, thread) { .prepare = own_by_thread };
FIXTURE_VARIANT_ADD(owner, many) { .prepare = own_by_many };
FIXTURE_VARIANT_ADD(owner, listed) { .prepare = own_listed, .raw = true };
FIXTURE_VARIANT_ADD(owner, pending) { .prepare = own_pending, .raw = true };
FIXTURE_VARIANT_ADD(owner, swapped) {
	.prepare = own_swapped, .raw = true, .swap = true
};

FIXTURE_SETUP(owner)
{
	struct victim_ops ops = { .prepare = variant->prepare };
	const char *missing = watch_begin(&self->watch);
	enum verdict verdict;

	if (missing)
		SKIP(return, "%s", missing);
	if (!make_locks())
		SKIP(return, "no robust mutexes");
	if (variant->swap)
		self->swap = zram_on(0, ZRAM_SIZE, 0);
	verdict = victim_start(&victim, &ops);
	if (verdict == UNSUPPORTED) {
		if (self->swap)
			zram_off(0);
		watch_restore(&self->watch);
		SKIP(return, "no swap for the victim's list");
	}
	ASSERT_EQ(verdict, GOOD);
}

FIXTURE_TEARDOWN_PARENT(owner)
{
	wait_alone();
	if (self->swap)
		zram_off(0);
	watch_end(_metadata, &self->watch);
}

static void expect_told(struct __test_metadata *_metadata, struct waiters *w,
			bool raw)
{
	waiters_join(w);
	for (unsigned int i = 0; i < w->nr; i++) {
		EXPECT_EQ(w->result[i], EOWNERDEAD) {
			TH_LOG("lock %u", i);
		}
	}
	if (raw)
		EXPECT_TRUE(raw_lock_told());
}

/* It cannot run for a while, but for less than the kernel retries. */
TEST_F_TIMEOUT(owner, held_up, LIMIT)
{
	struct waiters waiters;
	struct told told;
	pid_t pid = victim.pid;

	ASSERT_TRUE(waiters_start(&waiters));
	ASSERT_EQ(park_threads(&parking, &victim, kill_expedited),
		  0);
	EXPECT_TRUE(memory_stays(pid, OWNER_SIZE));
	unpark(&parking, &victim);
	expect_told(_metadata, &waiters, variant->raw);
	EXPECT_TRUE(wait_all_done(pid, &told));
	EXPECT_EQ(told.taken, 1);
}

/* It cannot run for longer: its locks are worth more than its memory. */
TEST_F_TIMEOUT(owner, held_up_for_long, LIMIT)
{
	long fails = counter("expedite_fail");
	struct waiters waiters;
	struct told told;
	pid_t pid = victim.pid;

	ASSERT_TRUE(waiters_start(&waiters));
	ASSERT_EQ(park_threads(&parking, &victim, kill_expedited),
		  0);
	EXPECT_TRUE(wait_all_done(pid, &told));
	EXPECT_EQ(told.taken, 1);
	EXPECT_STREQ(told.outcome, "futex");
	EXPECT_EQ(told.early, 0);
	EXPECT_EQ(told.bytes, 0);
	EXPECT_EQ(counter("expedite_fail"), fails + 1);
	EXPECT_GE(rss(pid), OWNER_SIZE);
	unpark(&parking, &victim);
	expect_told(_metadata, &waiters, variant->raw);
}

/* It runs, and the workers with it. */
TEST_F_TIMEOUT(owner, runs, LIMIT)
{
	struct stress stress = { .min_rounds = FEW_ROUNDS, .variants = NR_WAYS };
	struct victim_ops ops = { .prepare = variant->prepare };
	unsigned long long seed = 1;
	enum verdict verdict;

	TH_LOG("seed %llu", seed);
	while (stress_continues(&stress)) {
		struct waiters waiters;

		ASSERT_TRUE(waiters_start(&waiters));
		short_wait(&seed, 1000);
		ASSERT_EQ(kill_expedited(&victim), 0);
		EXPECT_TRUE(dies(&victim));
		expect_told(_metadata, &waiters, variant->raw);
		munmap(locks, PAGE);
		ASSERT_TRUE(make_locks());
		verdict = victim_start(&victim, &ops);
		if (verdict == UNSUPPORTED) {
			TH_LOG("no swap any more, after %u rounds",
			       stress.rounds + 1);
			if (stress.rounds + 1 >= stress.min_rounds)
				break;
			SKIP(return, "no swap any more");
		}
		ASSERT_EQ(verdict, GOOD);
	}
}

FIXTURE(kill) {
	struct watch watch;
};

FIXTURE_SETUP(kill)
{
	const char *missing = watch_begin(&self->watch);

	if (missing)
		SKIP(return, "%s", missing);
	if (!make_locks())
		SKIP(return, "no robust mutexes");
}

FIXTURE_TEARDOWN_PARENT(kill)
{
	wait_alone();
	watch_end(_metadata, &self->watch);
}

/* The same mm again, while the first kill of it waits, and afterwards. */
TEST_F_TIMEOUT(kill, twice, LIMIT)
{
	struct victim_ops ops = { .prepare = own_mutex };
	struct told told;
	pid_t pid;

	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	pid = victim.pid;
	ASSERT_EQ(park_threads(&parking, &victim, kill_expedited),
		  0);
	EXPECT_EQ(kill_expedited(&victim), 0);
	EXPECT_EQ(kill_expedited(&victim), 0);
	read_events(pid, &told);
	EXPECT_EQ(told.taken, 1);
	ASSERT_TRUE(wait_all_done(pid, &told));
	EXPECT_EQ(kill_expedited(&victim), 0);
	read_events(pid, &told);
	EXPECT_EQ(told.taken, 1);
	EXPECT_EQ(told.done, 1);
	EXPECT_STREQ(told.outcome, "futex");
	EXPECT_EQ(told.early, 0);
	EXPECT_GE(rss(pid), OWNER_SIZE);
}

/*
 * Victims of all kinds, killed by @how and expedited together, that cannot run
 * for as long as the kernel retries: all have the same outcome.
 */
static void park_and_wait(struct __test_metadata *_metadata,
			  enum verdict (* const kinds[])(void *arg),
			  unsigned int nr, int (*how)(struct victim *v),
			  const char *outcome)
{
	struct parking parkings[MAX_KINDS];
	struct victim victims[MAX_KINDS];
	bool freed = !strcmp(outcome, "freed");
	struct told told;
	long bytes;

	for (unsigned int i = 0; i < nr; i++) {
		struct victim_ops ops = { .prepare = kinds[i] };

		/* Of its own for each. */
		ASSERT_TRUE(make_locks());
		ASSERT_EQ(victim_start(&victims[i], &ops), GOOD) {
			TH_LOG("victim %u", i);
		}
	}
	for (unsigned int i = 0; i < nr; i++) {
		ASSERT_EQ(park_threads(&parkings[i], &victims[i], how), 0) {
			TH_LOG("victim %u", i);
		}
		EXPECT_EQ(kill_expedited(&victims[i]), 0);
	}
	for (unsigned int i = 0; i < nr; i++) {
		EXPECT_TRUE(wait_all_done(victims[i].pid, &told));
		EXPECT_EQ(told.taken, 1);
		EXPECT_STREQ(told.outcome, outcome) {
			TH_LOG("victim %u", i);
		}
		/* By workers, or not at all. */
		bytes = freed ? (long)told.bytes : rss(victims[i].pid);
		EXPECT_GE(bytes, OWNER_SIZE);
		TH_LOG("victim %u after %llu us", i, told.ns / 1000);
		unpark(&parkings[i], &victims[i]);
	}
}

/* --- A victim that can run again --- */

/* Its memory has once been used by another process, which is gone. */
static enum verdict share_and_own(void *arg)
{
	struct region region = { .size = HURRY_SIZE, .seed = 2 };
	pid_t pid = vfork();

	if (!pid)
		_exit(0);

	return exits_cleanly(pid) && own_mutex(arg) == GOOD ?
	       region_fill(&region) : BAD;
}

/*
 * No worker may free the memory of an owner, but it is wanted: once the owner
 * can run, it frees pages while it unmaps them.
 */
TEST_F_TIMEOUT(kill, hurries, LIMIT)
{
	struct victim_ops ops = { .prepare = share_and_own };
	struct told told;

	if (reap_is_off())
		SKIP(return, "switched off (memreap.reap=0)");
	for (int i = 0; i < ALONE_TRIES; i++) {
		pid_t pid;

		munmap(locks, PAGE);
		ASSERT_TRUE(make_locks());
		ASSERT_EQ(victim_start(&victim, &ops), GOOD);
		pid = victim.pid;
		trace_clear();
		ASSERT_TRUE(trace_exit(pid));
		ASSERT_EQ(park(&victim, kill_expedited), 0);
		/* There are attempts 0.5 s and 1 s after the kill. */
		usleep(600000);
		victim_end(&victim);
		ASSERT_TRUE(wait_all_done(pid, &told));
		if (!told.bytes)
			break;
	}
	expect_hurry(_metadata, &told);
}

/* --- Victims that own something every other moment --- */

static void *busy_fn(void *arg)
{
	pthread_mutex_t *mutex = arg;

	for (;;) {
		pthread_mutex_lock(mutex);
		pthread_mutex_unlock(mutex);
	}

	return NULL;
}

static enum verdict own_now_and_then(void *arg)
{
	pthread_t thread;

	if (fill_size() != GOOD)
		return BAD;
	for (int i = 0; i < NR_BUSY; i++) {
		if (pthread_create(&thread, NULL, busy_fn, &locks->mutex[i]))
			return BAD;
	}

	return GOOD;
}

static void busy_owners(struct __test_metadata *_metadata,
			const struct victim_ops *ops,
			int (*how)(struct victim *v))
{
	unsigned int owned = 0;
	struct stress stress = { .min_rounds = FEW_ROUNDS, .met = &owned };
	unsigned long long seed = 2;

	TH_LOG("seed %llu", seed);
	while (stress_continues(&stress)) {
		munmap(locks, PAGE);
		ASSERT_TRUE(make_locks());
		ASSERT_EQ(victim_start(&victim, ops), GOOD);
		usleep(1000 + rnd(&seed) % 4000);
		ASSERT_EQ(how(&victim), 0);
		ASSERT_TRUE(dies(&victim));
		for (int k = 0; k < NR_BUSY; k++) {
			int err = wait_for_mutex(k);

			ASSERT_TRUE(!err || err == EOWNERDEAD) {
				TH_LOG("round %u: %s", stress.rounds,
				       strerror(err));
			}
			owned += !!err;
		}
	}
	TH_LOG("%u of %u were owned", owned, stress.rounds * NR_BUSY);
}

/* What is seen of the list of one that runs is no longer true. */
TEST_F_TIMEOUT(kill, busy_owners, LIMIT)
{
	static const struct victim_ops ops = { .prepare = own_now_and_then };

	busy_owners(_metadata, &ops, kill_expedited);
}

/* Sleeps for most of the time, and so has the CPU taken from nobody. */
static void *sleepy_fn(void *arg)
{
	pthread_mutex_t *mutex = arg;

	for (;;) {
		usleep(100);
		pthread_mutex_lock(mutex);
		usleep(100);
		pthread_mutex_unlock(mutex);
	}

	return NULL;
}

/* Those that own something get the signal last. */
static enum verdict own_behind_many(void *arg)
{
	pthread_attr_t attr;
	pthread_t thread;

	if (fill_size() != GOOD)
		return BAD;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 64 << 10);
	for (int i = 0; i < NR_IDLE; i++) {
		if (pthread_create(&thread, &attr, idle_fn, NULL))
			return BAD;
	}
	for (int i = 0; i < NR_BUSY; i++) {
		if (pthread_create(&thread, &attr, sleepy_fn, &locks->mutex[i]))
			return BAD;
	}

	return GOOD;
}

/* A worker may begin before all threads have the signal that it is for. */
TEST_F_TIMEOUT(kill, owners_without_the_signal, LIMIT)
{
	static const struct victim_ops ops = { .prepare = own_behind_many };

	ASSERT_TRUE(write_file(MIN_KBYTES, "1"));
	busy_owners(_metadata, &ops, kill_plain);
}

/* --- Victims that own nothing --- */

static enum verdict own_no_more(void *arg)
{
	for (int i = 0; i < NR_LOCKS; i++) {
		if (pthread_mutex_lock(&locks->mutex[i]))
			return BAD;
	}
	for (int i = 0; i < NR_LOCKS; i++)
		pthread_mutex_unlock(&locks->mutex[i]);

	return fill_size();
}

static void *own_no_more_fn(void *arg)
{
	pthread_mutex_t *mutex = arg;

	pthread_mutex_lock(mutex);
	pthread_mutex_unlock(mutex);
	__atomic_fetch_add(&locks->ready, 1, __ATOMIC_SEQ_CST);

	return idle_fn(NULL);
}

static enum verdict own_no_more_by_threads(void *arg)
{
	pthread_t thread;

	for (int i = 0; i < NR_LOCKS; i++) {
		if (pthread_create(&thread, NULL, own_no_more_fn,
				   &locks->mutex[i]))
			return BAD;
	}

	return within(PATIENCE, __atomic_load_n(&locks->ready,
						__ATOMIC_SEQ_CST) == NR_LOCKS) ?
	       fill_size() : BAD;
}

static enum verdict own_no_list(void *arg)
{
	if (syscall(__NR_set_robust_list, NULL,
		    sizeof(struct robust_list_head)))
		return UNSUPPORTED;

	return fill_size();
}

/* What is on the list is another's by now. */
static enum verdict own_no_listed(void *arg)
{
	enum verdict verdict = own_listed(arg);

	locks->raw.word = 1;

	return verdict;
}

/* A list without an end, that leads nowhere, or is nowhere itself. */
static enum verdict list_with_a_loop(void *arg)
{
	struct robust_list_head *head = new_head();
	struct raw_lock *loop = map(PAGE, MAP_PRIVATE);

	if (!head || !loop)
		return BAD;
	loop[0].entry.next = &loop[1].entry;
	loop[1].entry.next = &loop[0].entry;
	head->list.next = &loop[0].entry;

	return use_head(head) == GOOD ? fill_size() : BAD;
}

static enum verdict list_to_nowhere(void *arg)
{
	struct robust_list_head *head = new_head();

	if (!head)
		return BAD;
	head->list.next = (void *)8;
	head->list_op_pending = (void *)~7UL;

	return use_head(head) == GOOD ? fill_size() : BAD;
}

static enum verdict list_nowhere(void *arg)
{
	return use_head((void *)~7UL) == GOOD ? fill_size() : BAD;
}

static enum verdict list_unaligned(void *arg)
{
	struct robust_list_head *head = new_head();
	size_t most = PAGE - sizeof(*head) / 2;

	if (!head)
		return BAD;
	/* From the last bytes of a page into what is not mapped. */
	return use_head((void *)head + most + 1) == GOOD ? fill_size() : BAD;
}

/* In memory that the kernel itself cannot read. */
static enum verdict list_in_secret(void *arg)
{
	int fd = syscall(__NR_memfd_secret, 0);
	struct robust_list_head *head;

	if (fd < 0 && errno == ENOSYS)
		return UNSUPPORTED;
	if (fd < 0 || ftruncate(fd, PAGE))
		return BAD;
	head = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (head == MAP_FAILED)
		return BAD;
	head->list.next = &head->list;

	return use_head(head) == GOOD ? fill_size() : BAD;
}

/* Nothing is owned, and that is to be seen: nothing is waited for. */
TEST_F_TIMEOUT(kill, nothing_owned, LIMIT)
{
	static enum verdict (* const kinds[])(void *arg) = {
		own_no_more, own_no_more_by_threads, own_no_list,
	};

	/* Victims that run might still lock something: they have exited here. */
	park_and_wait(_metadata, kinds, ARRAY_SIZE(kinds), kill_plain, "freed");
}

/*
 * Nothing is owned, but it takes more than the head of the list to know that:
 * the memory is left to the victim.
 */
TEST_F_TIMEOUT(kill, odd_lists, LIMIT)
{
	static enum verdict (* const kinds[])(void *arg) = {
		own_no_listed, list_with_a_loop, list_to_nowhere, list_nowhere,
		list_unaligned, list_in_secret,
	};

	park_and_wait(_metadata, kinds, ARRAY_SIZE(kinds), kill_expedited,
		      "futex");
}

TEST_HARNESS_MAIN
