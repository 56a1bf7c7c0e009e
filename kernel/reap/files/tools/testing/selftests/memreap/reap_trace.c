// SPDX-License-Identifier: GPL-2.0-only
/* Compares the memreap_reap tracepoints with /proc, on kernels that have them. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/sysinfo.h>

#include "../kselftest_harness.h"
#include "trace.h"
#include "victim.h"

#define EVENTS		"memreap_reap"
#define FAIL_PAGE_ALLOC	DEBUGFS "/fail_page_alloc"
#define NR_PLACES	64
#define MAX_REAPERS	4

#define HUGE_SIZE	(2 * MIB)
#define CHUNK_SIZE	(32 * MIB)
#define THP		"/sys/kernel/mm/transparent_hugepage"
#define THP_ENABLED	THP "/enabled"
#define MTHP_ENABLED	THP "/hugepages-16kB/enabled"
#define MTHP_SIZE	(16 * 1024UL)
#define MTHP_ALLOCATED	THP "/hugepages-16kB/stats/anon_fault_alloc"

/* Allocations that may fail: more than there are, to count those that did. */
#define MAX_FAILURES	"1000000"

/* On a busy machine one reaper may finish before the next one starts. */
#define ROUNDS		20
#define TRACE_LIMIT	300

FIXTURE(trace) {
	struct victim victim;
	struct victim_ops ops;
	char thp[64];
	char mthp[64];
	unsigned long rss;
};

static enum verdict fill_places(void *arg)
{
	return map_sparse(NR_PLACES, 32 * PAGE, 32 * MIB) ? GOOD : BAD;
}

/* At an address where chunks and huge pages begin. */
static char *map_aligned(size_t size)
{
	char *mem = mmap(NULL, size + CHUNK_SIZE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (mem == MAP_FAILED)
		return NULL;

	return (char *)(((uintptr_t)mem + CHUNK_SIZE - 1) & ~(CHUNK_SIZE - 1));
}

/* Huge pages in one piece, one mapped by small pages, small pages between. */
static enum verdict fill_thp(void *arg)
{
	size_t size = 12 * HUGE_SIZE;
	char *mem = map_aligned(size);

	if (!mem)
		return BAD;
	if (madvise(mem, size, MADV_HUGEPAGE) ||
	    madvise(mem + 4 * HUGE_SIZE, HUGE_SIZE, MADV_NOHUGEPAGE))
		return UNSUPPORTED;
	fill(mem, size, 1);
	if (smaps_field(getpid(), "smaps_rollup", NULL, "AnonHugePages") <
	    (long)(8 * HUGE_SIZE))
		return UNSUPPORTED;
	if (mprotect(mem + 7 * HUGE_SIZE, 5 * PAGE, PROT_READ))
		return BAD;

	return GOOD;
}

static long mthp_allocated(void)
{
	return read_number(MTHP_ALLOCATED, NULL);
}

/*
 * One small page on top, and folios of several pages in another page table of
 * the same chunk: in an mmu_gather a page takes one entry, such a folio two.
 */
static enum verdict fill_mthp(void *arg)
{
	char *mem = map_aligned(CHUNK_SIZE);
	long before = mthp_allocated();

	if (!mem)
		return BAD;
	fill(mem + CHUNK_SIZE - PAGE, PAGE, 1);
	if (before < 0 || madvise(mem, HUGE_SIZE, MADV_HUGEPAGE))
		return UNSUPPORTED;
	fill(mem, 4 * MTHP_SIZE, 1);

	return mthp_allocated() >= before + 4 ? GOOD : UNSUPPORTED;
}

static void thp_set(const char *path, const char *value, char *old, size_t size)
{
	if (!read_setting(path, old, size))
		old[0] = 0;
	if (old[0])
		write_file(path, value);
}

static bool switched_off(void)
{
	char text[8];

	return read_file("/sys/module/memreap/parameters/reap", text,
			 sizeof(text)) && text[0] == 'N';
}

static void __attribute__((constructor)) reap_trace_begin(void)
{
	trace_begin(EVENTS);
}

FIXTURE_VARIANT(trace) {
	enum verdict (*prepare)(void *arg);
	/* Minimum number of 32 MiB chunks that it has memory in. */
	unsigned int chunks;
	bool thp;
	bool mthp;
	/* The reaper's allocations fail unless they may sleep. */
	bool starved;
};

FIXTURE_VARIANT_ADD(trace, places) {
	.prepare = fill_places, .chunks = NR_PLACES
};

FIXTURE_VARIANT_ADD(trace, thp) {
	.prepare = fill_thp, .chunks = 1, .thp = true
};

FIXTURE_VARIANT_ADD(trace, mthp) {
	.prepare = fill_mthp, .chunks = 1, .mthp = true
};

FIXTURE_VARIANT_ADD(trace, mthp_starved) {
	.prepare = fill_mthp, .chunks = 1, .mthp = true, .starved = true
};

FIXTURE_SETUP(trace)
{
	enum verdict verdict;

	if (!mrelease_supported())
		SKIP(return, "no process_mrelease()");
	if (switched_off())
		SKIP(return, "booted with memreap.reap=0");
	if (access(TRACEFS "/events/" EVENTS, F_OK))
		SKIP(return, "no memreap_reap tracepoints");
	trace_clear();
	if (!trace_enable(EVENTS, true))
		SKIP(return, "cannot trace");
	if (variant->thp)
		thp_set(THP_ENABLED, "madvise", self->thp, sizeof(self->thp));
	if (variant->mthp)
		thp_set(MTHP_ENABLED, "madvise", self->mthp,
			sizeof(self->mthp));
	self->ops.prepare = variant->prepare;
	verdict = victim_start(&self->victim, &self->ops);
	if (verdict == UNSUPPORTED)
		SKIP(return, "this kind of memory cannot be had here");
	ASSERT_EQ(verdict, GOOD);
	ASSERT_TRUE(victim_park(&self->victim));
	self->rss = rss(self->victim.pid);
	ASSERT_GT(self->rss, 0);
}

FIXTURE_TEARDOWN(trace)
{
	victim_end(&self->victim);
	if (self->thp[0])
		write_file(THP_ENABLED, self->thp);
	if (self->mthp[0])
		write_file(MTHP_ENABLED, self->mthp);
	trace_enable(EVENTS, false);
}

/* Sums over the events. */
struct told {
	/* Of the last one. */
	unsigned int id;
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
		unsigned int chunks, yields;
		int complete;
		char *at;

		if (strstr(line, "memreap_reap_start: "))
			told->starts++;
		at = strstr(line, "memreap_reap_end: ");
		if (!at || sscanf(at + strlen("memreap_reap_end: "),
				  "mm_id=%u bytes=%llu chunks=%u yields=%u ns=%llu complete=%d",
				  &told->id, &bytes, &chunks, &yields, &ns,
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

/* As when memory has run out: allocations that may not sleep fail. */
static bool starve(void)
{
	static const struct {
		const char *file, *value;
	} settings[] = {
		{ FAIL_PAGE_ALLOC "/task-filter", "Y" },
		{ FAIL_PAGE_ALLOC "/ignore-gfp-wait", "Y" },
		{ FAIL_PAGE_ALLOC "/min-order", "0" },
		{ FAIL_PAGE_ALLOC "/verbose", "0" },
		{ FAIL_PAGE_ALLOC "/times", MAX_FAILURES },
		{ FAIL_PAGE_ALLOC "/probability", "100" },
		{ "/proc/self/make-it-fail", "1" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(settings); i++) {
		if (!write_file(settings[i].file, settings[i].value))
			return false;
	}

	return true;
}

/* Returns what mrelease() returns in a child, which may be starved. */
static int mrelease_in_child(struct victim *v, bool starved)
{
	pid_t pid = fork();
	int status;

	if (!pid)
		_exit(starved && !starve() ? 255 : mrelease(v->pidfd));
	if (pid < 0 || waitpid(pid, &status, __WALL) != pid ||
	    !WIFEXITED(status))
		return -1;
	if (starved)
		write_file(FAIL_PAGE_ALLOC "/probability", "0");

	return WEXITSTATUS(status);
}

/* Huge pages whose page table entry was split, in all processes. */
static long huge_pages_split(void)
{
	return read_number("/proc/vmstat", "thp_split_pmd ");
}

TEST_F_TIMEOUT(trace, one_reaper, TRACE_LIMIT)
{
	long split = huge_pages_split();
	struct told told;

	if (variant->starved) {
		mount_debugfs(FAIL_PAGE_ALLOC);
		if (access(FAIL_PAGE_ALLOC, F_OK))
			SKIP(return, "no CONFIG_FAIL_PAGE_ALLOC");
	}
	ASSERT_EQ(mrelease_in_child(&self->victim, variant->starved), 0);
	ASSERT_EQ(rss(self->victim.pid), 0);
	read_trace(&told);
	EXPECT_EQ(told.starts, 1);
	EXPECT_EQ(told.ends, 1);
	EXPECT_EQ(told.complete, 1);
	EXPECT_GE(told.chunks, variant->chunks);
	/* Every page that was mapped, and nothing twice. */
	EXPECT_EQ(told.bytes, self->rss);
	if (variant->thp) {
		ASSERT_GE(split, 0);
		EXPECT_EQ(huge_pages_split(), split);
	}
	if (variant->starved)
		EXPECT_LT(read_number(FAIL_PAGE_ALLOC "/times", NULL),
			  atol(MAX_FAILURES));
}

/* As stock's event of a change of its counters has it, which only they tell. */
TEST_F_TIMEOUT(trace, mm_id_is_that_of_rss_stat, TRACE_LIMIT)
{
	struct told told;
	char text[64];

	ASSERT_TRUE(trace_enable("kmem/rss_stat", true));
	EXPECT_EQ(mrelease_in_child(&self->victim, false), 0);
	EXPECT_TRUE(trace_enable("kmem/rss_stat", false));
	read_trace(&told);
	ASSERT_NE(told.id, 0);
	snprintf(text, sizeof(text), "rss_stat: mm_id=%u ", told.id);
	EXPECT_GT(trace_count(text), 0);
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

/* Runs @nr reapers on the victim at once. Returns how many found work. */
static unsigned int share(struct __test_metadata *_metadata,
			  struct _test_data_trace *self, int nr,
			  unsigned int chunks)
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
	EXPECT_GE(told.chunks, chunks);

	return told.at_work;
}

TEST_F_TIMEOUT(trace, reapers_share_the_work, TRACE_LIMIT)
{
	int nr = get_nprocs() < MAX_REAPERS ? get_nprocs() : MAX_REAPERS;
	/* One chunk cannot be shared. */
	unsigned int want = variant->chunks > 1 ? 2 : 1;
	unsigned int at_work;

	if (nr < 2)
		SKIP(return, "needs two CPUs");
	at_work = share(_metadata, self, nr, variant->chunks);
	for (int i = 1; i < ROUNDS && at_work < want; i++) {
		victim_end(&self->victim);
		trace_clear();
		ASSERT_EQ(victim_start(&self->victim, &self->ops), GOOD);
		ASSERT_TRUE(victim_park(&self->victim));
		self->rss = rss(self->victim.pid);
		at_work = share(_metadata, self, nr, variant->chunks);
	}
	EXPECT_GE(at_work, want);
}

TEST_HARNESS_MAIN
