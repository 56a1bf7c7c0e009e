// SPDX-License-Identifier: GPL-2.0-only
/*
 * process_mrelease(2): what it must free, what it must not free, and
 * concurrent operations.
 *
 * Nothing here depends on the implementation: the tests hold for any kernel
 * that has the call.
 */
#define _GNU_SOURCE
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include "../kselftest_harness.h"
#include "folios.h"
#include "region.h"

#define NR_THREADS	8

/* How long some of those in a race wait, at most, in us. */
#define MAX_WAIT_US	2000

/* Seconds for a test, on a busy host that emulates a kernel full of checks. */
#define RACE_LIMIT	300

#define HUGE_SIZE	(2 * MIB)
#define NR_HUGEPAGES	"/proc/sys/vm/nr_hugepages"

/* Distance of what the kernel hands out to different reapers, or more. */
#define FAR		(32 * MIB)

/* Reapers at work on one victim, all starting at the same moment. */
struct reapers {
	pthread_t threads[NR_THREADS];
	pthread_barrier_t go;
	unsigned int nr;
	pid_t pid;
	int pidfd;
	/* Started before the kill, to be active when the victim starts to die. */
	bool eager;
	/* Per thread the result of mrelease(), and the memory left then. */
	int result[NR_THREADS];
	long left[NR_THREADS];
	unsigned int next;
};

static void *reaper_fn(void *arg)
{
	struct reapers *r = arg;
	unsigned int i = __atomic_fetch_add(&r->next, 1, __ATOMIC_RELAXED);

	pthread_barrier_wait(&r->go);
	do {
		r->result[i] = mrelease(r->pidfd);
	} while (r->eager && r->result[i] == EINVAL);
	r->left[i] = rss(r->pid);

	return NULL;
}

/* Prepares them, so that they can start as soon as a victim is killed. */
static void reapers_prepare(struct reapers *r, struct victim *v,
			    unsigned int nr)
{
	memset(r, 0, sizeof(*r));
	r->pid = v->pid;
	r->pidfd = v->pidfd;
	pthread_barrier_init(&r->go, NULL, nr + 1);
	for (r->nr = 0; r->nr < nr; r->nr++) {
		if (pthread_create(&r->threads[r->nr], NULL, reaper_fn, r))
			ksft_exit_fail_msg("pthread_create: %m\n");
	}
}

static void reapers_go(struct reapers *r)
{
	pthread_barrier_wait(&r->go);
}

static void reapers_join(struct reapers *r)
{
	for (unsigned int i = 0; i < r->nr; i++)
		pthread_join(r->threads[i], NULL);
	pthread_barrier_destroy(&r->go);
}

static void reapers_run(struct reapers *r, struct victim *v, unsigned int nr)
{
	reapers_prepare(r, v, nr);
	reapers_go(r);
	reapers_join(r);
}

FIXTURE(reap) {
	struct victim victim;
	/* Another process to be gone in the end. */
	pid_t other;
	int kmsg;
	char hugepages[32];
};

FIXTURE_SETUP(reap)
{
	if (!mrelease_supported())
		SKIP(return, "no process_mrelease()");
	self->kmsg = kmsg_open();
	/* To wait for orphaned children of victims. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
}

FIXTURE_TEARDOWN(reap)
{
	if (self->other > 0)
		kill(self->other, SIGKILL);
	victim_end(&self->victim);
	if (self->other > 0)
		waitpid(self->other, NULL, __WALL);
	if (self->hugepages[0])
		write_file(NR_HUGEPAGES, self->hugepages);
	EXPECT_NO_COMPLAINT(self->kmsg);
	close(self->kmsg);
}

/* Many VMAs: a page here and there has another protection. */
static enum verdict region_fill_stripes(void *arg)
{
	static const int prot[] = { PROT_READ, PROT_NONE };
	struct region *region = arg;

	if (region_fill(arg) != GOOD)
		return BAD;
	for (size_t i = 0; i < region->size / PAGE; i += region->stripes) {
		if (mprotect(region->mem + i * PAGE, PAGE,
			     prot[i / region->stripes % 2]))
			return BAD;
	}

	return GOOD;
}

/* --- What must be freed: private memory of every kind --- */

static enum verdict fill_anon(void *arg)
{
	struct region region = { .size = 8 * MIB, .seed = 1 };

	return region_fill(&region);
}

static enum verdict fill_stripes(void *arg)
{
	struct region region = {
		.size = 1600 * PAGE, .seed = 1, .stripes = 2
	};

	return region_fill_stripes(&region);
}

static enum verdict fill_sparse(void *arg)
{
	return map_sparse(48, 16 * PAGE, FAR) ? GOOD : BAD;
}

/* Hardly any of the page tables exist. */
static enum verdict fill_huge_hole(void *arg)
{
	size_t size = 1024UL << 30;
	char *mem = mmap(NULL, size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (mem == MAP_FAILED)
		return UNSUPPORTED;
	for (size_t at = 0; at < size; at += size / 4)
		fill(mem + at, MIB, 1);

	return GOOD;
}

static enum verdict fill_mlocked(void *arg)
{
	struct region region = { .size = 4 * MIB, .seed = 1 };
	struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };

	setrlimit(RLIMIT_MEMLOCK, &limit);
	if (region_fill(&region) != GOOD)
		return BAD;
	/* All of it, then a hole in the middle: mlocked and not in one table. */
	if (mlock(region.mem, region.size) ||
	    munlock(region.mem + region.size / 2, 8 * PAGE))
		return UNSUPPORTED;

	return GOOD;
}

static enum verdict fill_thp(void *arg)
{
	struct region region = {
		.size = 16 * HUGE_SIZE, .seed = 1, .folio_kib = FOLIO_PMD
	};
	char *mem;

	if (region_fill(&region) != GOOD)
		return BAD;
	mem = region.mem;
	if (smaps_field(getpid(), "smaps", mem, "AnonHugePages") <= 0)
		return UNSUPPORTED;

	/* Some mapped in parts: by a VMA that ends inside, by a hole. */
	if (mprotect(mem + 3 * HUGE_SIZE, 5 * PAGE, PROT_READ) ||
	    madvise(mem + 5 * HUGE_SIZE + 9 * PAGE, PAGE, MADV_DONTNEED) ||
	    munmap(mem + 7 * HUGE_SIZE + 100 * PAGE, HUGE_SIZE))
		return BAD;

	return GOOD;
}

static enum verdict fill_file_private(void *arg)
{
	size_t size = 3 * MIB;
	char *mem;
	int fd;

	fd = memfd_create("memreap", MFD_CLOEXEC);
	if (fd < 0)
		return UNSUPPORTED;
	if (ftruncate(fd, size))
		return BAD;
	mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mem == MAP_FAILED)
		return BAD;
	fill(mem, size, 1);
	munmap(mem, size);

	mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	if (mem == MAP_FAILED || !filled(mem, size, 1))
		return BAD;
	/* Half of it is the file's, half is a copy. */
	fill(mem, size / 2, 2);

	return GOOD;
}

static enum verdict fill_uffd(void *arg)
{
	struct uffdio_api api = {
		.api = UFFD_API,
		.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP,
	};
	struct uffdio_register reg = {
		.mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP,
	};
	struct uffdio_writeprotect wp = {
		.mode = UFFDIO_WRITEPROTECT_MODE_WP,
	};
	struct region region = { .size = 8 * MIB, .seed = 1 };
	int fd;

	fd = syscall(__NR_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api))
		return UNSUPPORTED;
	if (region_fill(&region) != GOOD)
		return BAD;
	reg.range.start = (unsigned long)region.mem;
	reg.range.len = region.size;
	if (ioctl(fd, UFFDIO_REGISTER, &reg))
		return UNSUPPORTED;
	/* A quarter protected, of that a half no longer populated. */
	wp.range.start = reg.range.start + region.size / 4;
	wp.range.len = region.size / 4;
	if (ioctl(fd, UFFDIO_WRITEPROTECT, &wp))
		return BAD;
	if (madvise(region.mem + region.size / 4, region.size / 8,
		    MADV_DONTNEED))
		return BAD;

	return GOOD;
}

FIXTURE(memory) {
	struct victim victim;
	struct folio_settings settings;
	int kmsg;
};

FIXTURE_VARIANT(memory) {
	enum verdict (*prepare)(void *arg);
	struct folios folios;
};

FIXTURE_VARIANT_ADD(memory, anon) { .prepare = fill_anon };
FIXTURE_VARIANT_ADD(memory, stripes) { .prepare = fill_stripes };
FIXTURE_VARIANT_ADD(memory, sparse) { .prepare = fill_sparse };
FIXTURE_VARIANT_ADD(memory, huge_hole) { .prepare = fill_huge_hole };
FIXTURE_VARIANT_ADD(memory, mlocked) { .prepare = fill_mlocked };
FIXTURE_VARIANT_ADD(memory, file_private) { .prepare = fill_file_private };
FIXTURE_VARIANT_ADD(memory, uffd) { .prepare = fill_uffd };

FIXTURE_VARIANT_ADD(memory, thp) {
	.prepare = fill_thp, .folios = { .kib = FOLIO_PMD }
};

FIXTURE_VARIANT_ADD(memory, anon_other_lru) {
	.prepare = fill_anon, .folios = { .other_lru = true }
};

FIXTURE_VARIANT_ADD(memory, thp_other_lru) {
	.prepare = fill_thp, .folios = { FOLIO_PMD, true }
};

FIXTURE_VARIANT_ADD(memory, file_private_other_lru) {
	.prepare = fill_file_private, .folios = { .other_lru = true }
};

FIXTURE_SETUP(memory)
{
	struct victim_ops ops = { .prepare = variant->prepare };
	enum verdict verdict;
	const char *missing;

	if (!mrelease_supported())
		SKIP(return, "no process_mrelease()");
	missing = folios_begin(&self->settings, &variant->folios);
	if (missing)
		SKIP(return, "%s", missing);
	self->kmsg = kmsg_open();
	verdict = victim_start(&self->victim, &ops);
	if (verdict != GOOD)
		folios_end(&self->settings);
	if (verdict == UNSUPPORTED)
		SKIP(return, "this kind of memory cannot be had here");
	ASSERT_EQ(verdict, GOOD);
}

FIXTURE_TEARDOWN(memory)
{
	victim_end(&self->victim);
	folios_end(&self->settings);
	EXPECT_NO_COMPLAINT(self->kmsg);
	close(self->kmsg);
}

TEST_F_TIMEOUT(memory, is_freed, RACE_LIMIT)
{
	ASSERT_TRUE(victim_park(&self->victim));
	ASSERT_GT(rss(self->victim.pid), 1 * MIB);
	ASSERT_EQ(mrelease(self->victim.pidfd), 0);
	EXPECT_EQ(rss(self->victim.pid), 0);

	/* Once more: nothing is left, which is no error. */
	EXPECT_EQ(mrelease(self->victim.pidfd), 0);
}

TEST_F_TIMEOUT(memory, is_freed_by_many, RACE_LIMIT)
{
	struct reapers reapers;

	ASSERT_TRUE(victim_park(&self->victim));
	ASSERT_GT(rss(self->victim.pid), 1 * MIB);
	reapers_run(&reapers, &self->victim, NR_THREADS);
	for (int i = 0; i < NR_THREADS; i++) {
		EXPECT_EQ(reapers.result[i], 0);
		/* Success means freed, by any of them. */
		EXPECT_EQ(reapers.left[i], 0);
	}
}

/* The peak of a process that was reaped is what it was, for whoever asks. */
TEST_F_TIMEOUT(reap, peak_is_kept, RACE_LIMIT)
{
	struct region region = { .size = 8 * MIB, .seed = 1 };
	struct victim_ops ops = { &region, region_fill };
	struct rusage usage;
	char path[64];
	long least;
	int status;

	ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
	ASSERT_TRUE(victim_park(&self->victim));
	ASSERT_GE(rss(self->victim.pid), region.size);
	/* Stock's counters of a process that runs are approximate. */
	least = (region.size - MIB) / 1024;
	ASSERT_EQ(mrelease(self->victim.pidfd), 0);
	ASSERT_EQ(rss(self->victim.pid), 0);
	snprintf(path, sizeof(path), "/proc/%d/status", self->victim.pid);
	EXPECT_GE(read_number(path, "VmHWM:"), least);

	ASSERT_EQ(ptrace(PTRACE_CONT, self->victim.pid, NULL, NULL), 0);
	ASSERT_EQ(wait4(self->victim.pid, &status, __WALL, &usage),
		  self->victim.pid);
	victim_close(&self->victim);
	EXPECT_TRUE(WIFSIGNALED(status));
	EXPECT_GE(usage.ru_maxrss, least);
}

/* --- What must stay --- */

TEST_F_TIMEOUT(reap, live_process_is_left_alone, RACE_LIMIT)
{
	struct region region = { .size = 4 * MIB, .seed = 7 };
	struct victim_ops ops = { &region, region_fill, region_check };

	ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
	for (int i = 0; i < 100; i++)
		ASSERT_EQ(mrelease(self->victim.pidfd), EINVAL);
	EXPECT_EQ(victim_check(&self->victim), GOOD);
}

TEST_F_TIMEOUT(reap, shared_memory_stays, RACE_LIMIT)
{
	struct region region = { .size = 3 * MIB, .seed = 3 };
	struct victim_ops ops = { &region, region_check };
	struct reapers reapers;

	region.mem = map(region.size, MAP_SHARED);
	ASSERT_NE(region.mem, NULL);
	fill(region.mem, region.size, region.seed);

	ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
	ASSERT_TRUE(victim_park(&self->victim));
	ASSERT_EQ(rss_at(self->victim.pid, region.mem), region.size);
	reapers_run(&reapers, &self->victim, 3);
	for (int i = 0; i < 3; i++) {
		EXPECT_EQ(reapers.result[i], 0);
		EXPECT_EQ(reapers.left[i], region.size);
	}
	EXPECT_EQ(rss_at(self->victim.pid, region.mem), region.size);
	EXPECT_EQ(region_check(&region), GOOD);
	victim_end(&self->victim);
	EXPECT_EQ(region_check(&region), GOOD);
}

static enum verdict cow_touch(void *arg)
{
	struct region *region = arg;

	if (region_check(arg) != GOOD)
		return BAD;
	/* A third are the victim's own now. */
	for (size_t i = 0; i < region->size; i += 3 * PAGE)
		fill(region->mem + i, PAGE, 99);

	return GOOD;
}

TEST_F_TIMEOUT(reap, cow_pages_of_others_stay, RACE_LIMIT)
{
	struct region region = { .size = 3 * MIB, .seed = 5 };
	struct victim_ops ops = { &region, cow_touch };
	struct victim_ops sibling_ops = { &region, region_check, region_check };
	struct victim sibling;
	struct reapers reapers;

	ASSERT_EQ(region_fill(&region), GOOD);
	ASSERT_EQ(victim_start(&sibling, &sibling_ops), GOOD);
	self->other = sibling.pid;
	ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
	ASSERT_TRUE(victim_park(&self->victim));
	reapers_run(&reapers, &self->victim, 3);
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(reapers.result[i], 0);
	EXPECT_EQ(rss(self->victim.pid), 0);
	EXPECT_EQ(region_check(&region), GOOD);
	EXPECT_EQ(victim_check(&sibling), GOOD);
	victim_end(&self->victim);
	EXPECT_EQ(region_check(&region), GOOD);
	EXPECT_EQ(victim_check(&sibling), GOOD);
	victim_end(&sibling);
	self->other = 0;
}

static enum verdict fill_hugetlb(void *arg)
{
	struct region *region = arg;
	struct region beside = { .size = 2 * MIB, .seed = 1 };

	region->mem = map(region->size, MAP_PRIVATE | MAP_HUGETLB);
	if (!region->mem)
		return UNSUPPORTED;
	fill(region->mem, region->size, region->seed);

	return region_fill(&beside);
}

static long free_hugepages(void)
{
	return read_number("/proc/meminfo", "HugePages_Free:");
}

TEST_F_TIMEOUT(reap, hugetlb_stays_until_exit, RACE_LIMIT)
{
	struct region region = { .seed = 11 };
	struct victim_ops ops = { &region, fill_hugetlb };
	enum verdict verdict;
	long nr, size, before;
	char text[32];

	size = read_number("/proc/meminfo", "Hugepagesize:") * 1024;
	if (size <= 0 || size > 32 * (long)MIB ||
	    !read_file(NR_HUGEPAGES, text, sizeof(text)))
		SKIP(return, "no hugetlb pages of a fitting size");
	nr = atol(text);
	memcpy(self->hugepages, text, sizeof(text));
	snprintf(text, sizeof(text), "%ld\n", nr + 4);
	write_file(NR_HUGEPAGES, text);
	before = free_hugepages();
	if (before < 4)
		SKIP(return, "no free hugetlb pages");

	region.size = 4 * size;
	verdict = victim_start(&self->victim, &ops);
	if (verdict == UNSUPPORTED)
		SKIP(return, "no hugetlb mapping");
	ASSERT_EQ(verdict, GOOD);
	ASSERT_TRUE(victim_park(&self->victim));
	ASSERT_GT(rss(self->victim.pid), 2 * MIB);
	EXPECT_EQ(mrelease(self->victim.pidfd), 0);
	EXPECT_EQ(rss(self->victim.pid), 0);
	EXPECT_EQ(smaps_field(self->victim.pid, "smaps_rollup", NULL,
			      "Private_Hugetlb"), region.size);
	EXPECT_EQ(free_hugepages(), before - 4);
	victim_end(&self->victim);
	EXPECT_EQ(free_hugepages(), before);
}

/*
 * A victim whose memory another process shares, as with CLONE_VM but not
 * CLONE_THREAD. @alive and @stop are in memory shared with the test.
 */
struct sharers {
	struct region region;
	unsigned int nr;
	int stop;
	int alive;
	int spoiled;
	pid_t last;
};

static int sharer_fn(void *arg)
{
	struct sharers *s = arg;

	/* Not much more is safe here: libc thinks that this is its thread. */
	__atomic_fetch_add(&s->alive, 1, __ATOMIC_SEQ_CST);
	while (!__atomic_load_n(&s->stop, __ATOMIC_SEQ_CST)) {
		if (region_check(&s->region) != GOOD)
			__atomic_store_n(&s->spoiled, 1, __ATOMIC_SEQ_CST);
	}
	/* The last look is after the reapers have finished. */
	if (region_check(&s->region) != GOOD)
		__atomic_store_n(&s->spoiled, 1, __ATOMIC_SEQ_CST);
	syscall(__NR_exit_group, 0);

	return 0;
}

static enum verdict sharer_prepare(void *arg)
{
	struct sharers *s = arg;

	if (region_fill(&s->region) != GOOD)
		return BAD;
	if (!s->nr)
		return GOOD;
	s->last = clone_vm(sharer_fn, s);
	while (s->last > 0 && !__atomic_load_n(&s->alive, __ATOMIC_SEQ_CST))
		sched_yield();

	return s->last > 0 ? GOOD : BAD;
}

static bool exits(pid_t pid)
{
	int pidfd = pidfd_of(pid, 0);
	bool exited;

	if (pidfd < 0)
		return errno == ESRCH;
	exited = pidfd_exits(pidfd, PATIENCE);
	close(pidfd);

	return exited;
}

TEST_F_TIMEOUT(reap, live_sharer_keeps_its_memory, RACE_LIMIT)
{
	struct sharers *s = map(PAGE, MAP_SHARED);
	struct victim_ops ops = { s, sharer_prepare };

	ASSERT_NE(s, NULL);
	s->region = (struct region){ .size = 4 * MIB, .seed = 13 };
	s->nr = 1;
	ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
	self->other = s->last;
	ASSERT_TRUE(victim_park(&self->victim));
	for (int i = 0; i < 20; i++)
		ASSERT_EQ(mrelease(self->victim.pidfd), EINVAL);
	EXPECT_EQ(kill(s->last, 0), 0);
	EXPECT_EQ(s->spoiled, 0);
	EXPECT_GE(rss(self->victim.pid), s->region.size);

	/* With the other process dead, no live one is left. */
	__atomic_store_n(&s->stop, 1, __ATOMIC_SEQ_CST);
	ASSERT_TRUE(exits(s->last));
	EXPECT_EQ(s->spoiled, 0);
	EXPECT_EQ(mrelease(self->victim.pidfd), 0);
	/* All that stays is what it shares with the test. */
	EXPECT_EQ(rss(self->victim.pid), PAGE);
}

/* --- Races --- */

/* Reapers that are active when the victim dies, or start a bit later. */
static void kill_and_reap(struct reapers *r, struct victim *v, bool eager,
			  unsigned long long *seed)
{
	r->eager = eager;
	if (eager)
		reapers_go(r);
	short_wait(seed, MAX_WAIT_US);
	kill(v->pid, SIGKILL);
	if (!eager) {
		short_wait(seed, MAX_WAIT_US);
		reapers_go(r);
	}
	reapers_join(r);
}

FIXTURE(race) {
	struct victim victim;
	struct folio_settings settings;
	int kmsg;
};

FIXTURE_VARIANT(race) {
	struct folios folios;
};

FIXTURE_VARIANT_ADD(race, pages) {};
FIXTURE_VARIANT_ADD(race, thp) { .folios = { .kib = FOLIO_PMD } };
FIXTURE_VARIANT_ADD(race, mthp) { .folios = { .kib = FOLIO_MTHP } };
FIXTURE_VARIANT_ADD(race, pages_other_lru) { .folios = { .other_lru = true } };
FIXTURE_VARIANT_ADD(race, thp_other_lru) { .folios = { FOLIO_PMD, true } };
FIXTURE_VARIANT_ADD(race, mthp_other_lru) { .folios = { FOLIO_MTHP, true } };

/* The variants, which share a test's time. */
#define NR_KINDS	6

FIXTURE_SETUP(race)
{
	const char *missing;

	if (!mrelease_supported())
		SKIP(return, "no process_mrelease()");
	missing = folios_begin(&self->settings, &variant->folios);
	if (missing)
		SKIP(return, "%s", missing);
	self->kmsg = kmsg_open();
	/* To wait for orphaned children of victims. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
}

FIXTURE_TEARDOWN(race)
{
	victim_end(&self->victim);
	folios_end(&self->settings);
	EXPECT_NO_COMPLAINT(self->kmsg);
	close(self->kmsg);
}

TEST_F_TIMEOUT(race, exit, RACE_LIMIT)
{
	struct region cow = { .size = 1 * MIB, .seed = 17 };
	/* With large folios, also some that are mapped as a whole. */
	struct region region = {
		.size = variant->folios.kib ? 4 * HUGE_SIZE : 600 * PAGE,
		.seed = 1,
		.stripes = variant->folios.kib ? HUGE_SIZE / PAGE * 2 + 20 : 6,
		.folio_kib = variant->folios.kib,
	};
	struct victim_ops ops = { &region, region_fill_stripes };
	unsigned int won = 0;
	struct stress stress = {
		.min_rounds = 4, .variants = NR_KINDS, .met = &won
	};
	unsigned long long seed = 1;

	ASSERT_EQ(region_fill(&cow), GOOD);
	while (stress_continues(&stress)) {
		int nr = 1 + stress.rounds % 2;
		struct reapers reapers;

		ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
		reapers_prepare(&reapers, &self->victim, nr);
		kill_and_reap(&reapers, &self->victim, stress.rounds % 4,
			      &seed);
		for (int k = 0; k < nr; k++) {
			ASSERT_TRUE(!reapers.result[k] ||
				    reapers.result[k] == ESRCH) {
				TH_LOG("errno %d", reapers.result[k]);
			}
			won += !reapers.result[k];
		}
		victim_end(&self->victim);
		ASSERT_EQ(region_check(&cow), GOOD);
	}
	TH_LOG("%u calls came in time", won);
	if (variant->folios.kib)
		EXPECT_GT(folios_allocated(&self->settings), 0);
}

TEST_F_TIMEOUT(race, fork, RACE_LIMIT)
{
	struct region region = {
		.size = variant->folios.kib ? HUGE_SIZE : MIB,
		.seed = 19,
		.folio_kib = variant->folios.kib,
	};
	struct victim_ops ops = {
		.arg = &region,
		.prepare = region_fill,
		.run = region_fork,
	};
	unsigned int won = 0;
	struct stress stress = {
		.min_rounds = 2, .variants = NR_KINDS, .met = &won
	};
	unsigned long long seed = 3;

	while (stress_continues(&stress)) {
		struct reapers reapers;
		int status;

		ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
		reapers_prepare(&reapers, &self->victim, 2);
		usleep(500 + rnd(&seed) % 8000);
		kill_and_reap(&reapers, &self->victim, stress.rounds % 2,
			      &seed);
		for (int k = 0; k < 2; k++) {
			ASSERT_TRUE(!reapers.result[k] ||
				    reapers.result[k] == ESRCH);
			won += !reapers.result[k];
		}
		victim_end(&self->victim);
		/* Its children are ours now. */
		while (waitpid(-1, &status, __WALL) > 0) {
			ASSERT_TRUE(WIFEXITED(status));
			ASSERT_EQ(WEXITSTATUS(status), 0);
		}
	}
	if (variant->folios.kib)
		EXPECT_GT(folios_allocated(&self->settings), 0);
}

TEST_F_TIMEOUT(reap, exit_with_many_threads, RACE_LIMIT)
{
	struct victim_ops ops = { .prepare = fill_sparse };
	unsigned int won = 0;
	struct stress stress = { .min_rounds = 2, .met = &won };
	unsigned long long seed = 2;

	while (stress_continues(&stress)) {
		struct reapers reapers;

		ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
		reapers_prepare(&reapers, &self->victim, NR_THREADS);
		kill_and_reap(&reapers, &self->victim, stress.rounds % 2,
			      &seed);
		for (int k = 0; k < NR_THREADS; k++) {
			ASSERT_TRUE(!reapers.result[k] ||
				    reapers.result[k] == ESRCH);
			won += !reapers.result[k];
		}
		victim_end(&self->victim);
	}
}

static void clone_run(void *arg)
{
	struct sharers *s = arg;

	for (unsigned int i = 0; i < 3; i++)
		clone_vm(sharer_fn, s);
	pause();
}

TEST_F_TIMEOUT(reap, clone_vm, RACE_LIMIT)
{
	struct sharers *s = map(PAGE, MAP_SHARED);
	struct victim_ops ops = {
		.arg = s,
		.prepare = sharer_prepare,
		.run = clone_run,
	};
	unsigned int shared = 0;
	struct stress stress = { .min_rounds = 4, .met = &shared };
	unsigned long long seed = 4;

	ASSERT_NE(s, NULL);
	while (stress_continues(&stress)) {
		int result, status;

		memset(s, 0, sizeof(*s));
		s->region = (struct region){ .size = 64 * PAGE, .seed = 23 };
		ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
		/* From before the first sharer to after the last. */
		if (rnd(&seed) % 4)
			usleep(rnd(&seed) % 2000);
		ASSERT_EQ(kill(self->victim.pid, SIGKILL), 0);
		result = mrelease(self->victim.pidfd);
		ASSERT_TRUE(!result || result == ESRCH || result == EINVAL);
		shared += !!s->alive;
		usleep(2000);
		__atomic_store_n(&s->stop, 1, __ATOMIC_SEQ_CST);
		victim_end(&self->victim);
		/* One that lost its memory has died of it. */
		while (waitpid(-1, &status, __WALL) > 0) {
			ASSERT_TRUE(WIFEXITED(status));
			ASSERT_EQ(WEXITSTATUS(status), 0);
		}
		ASSERT_EQ(s->spoiled, 0);
	}
	TH_LOG("%u victims had sharers", shared);
}

/* A thread that takes the mmap_lock for writing all the time. */
struct pest {
	pid_t pid;
	int stop;
	unsigned int times;
};

static void *pest_fn(void *arg)
{
	struct pest *p = arg;
	char path[64];
	int fd;

	/* "5" resets the peak RSS, under the lock. */
	snprintf(path, sizeof(path), "/proc/%d/clear_refs", p->pid);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	while (fd >= 0 && !__atomic_load_n(&p->stop, __ATOMIC_RELAXED)) {
		if (write(fd, "5", 1) == 1)
			p->times++;
	}
	close(fd);

	return NULL;
}

TEST_F_TIMEOUT(reap, lock_wanted_by_others, RACE_LIMIT)
{
	struct victim_ops ops = { .prepare = fill_sparse };
	unsigned int times = 0;
	struct stress stress = { .min_rounds = 2, .met = &times };
	struct reapers reapers;
	struct pest pest = {};
	pthread_t thread;

	while (stress_continues(&stress)) {
		ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
		ASSERT_TRUE(victim_park(&self->victim));
		pest = (struct pest){ .pid = self->victim.pid };
		ASSERT_EQ(pthread_create(&thread, NULL, pest_fn, &pest), 0);
		reapers_run(&reapers, &self->victim,
			    1 + 2 * (stress.rounds % 2));
		__atomic_store_n(&pest.stop, 1, __ATOMIC_RELAXED);
		pthread_join(thread, NULL);
		for (unsigned int i = 0; i < reapers.nr; i++) {
			EXPECT_EQ(reapers.result[i], 0);
			EXPECT_EQ(reapers.left[i], 0);
		}
		times += pest.times;
		victim_end(&self->victim);
	}
	TH_LOG("lock taken %u times meanwhile", times);
}

/* What a killed reaper had taken on, the others must not report as done. */
TEST_F_TIMEOUT(reap, reaper_killed, RACE_LIMIT)
{
	struct victim_ops ops = { .prepare = fill_sparse };
	unsigned int early = 0;
	struct stress stress = { .min_rounds = 4, .met = &early };
	unsigned long long seed = 5;

	while (stress_continues(&stress)) {
		struct reapers reapers;
		struct pest pest = {};
		pthread_t thread;
		int status;

		ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
		ASSERT_TRUE(victim_park(&self->victim));
		/* With the lock wanted, reapers get killed waiting for it. */
		pest.pid = self->victim.pid;
		ASSERT_EQ(pthread_create(&thread, NULL, pest_fn, &pest), 0);
		self->other = fork();
		ASSERT_GE(self->other, 0);
		if (!self->other) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			_exit(mrelease(self->victim.pidfd));
		}
		reapers_prepare(&reapers, &self->victim, stress.rounds % 4);
		reapers_go(&reapers);
		short_wait(&seed, MAX_WAIT_US);
		kill(self->other, SIGKILL);
		ASSERT_EQ(waitpid(self->other, &status, __WALL), self->other);
		self->other = 0;
		early += WIFSIGNALED(status);
		reapers_join(&reapers);
		for (unsigned int k = 0; k < reapers.nr; k++) {
			EXPECT_EQ(reapers.result[k], 0);
			EXPECT_EQ(reapers.left[k], 0);
		}
		EXPECT_EQ(mrelease(self->victim.pidfd), 0);
		EXPECT_EQ(rss(self->victim.pid), 0);
		__atomic_store_n(&pest.stop, 1, __ATOMIC_RELAXED);
		pthread_join(thread, NULL);
		victim_end(&self->victim);
	}
	TH_LOG("%u reapers killed at work", early);
}

TEST_HARNESS_MAIN
