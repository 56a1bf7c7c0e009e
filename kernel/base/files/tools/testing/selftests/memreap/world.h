/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Processes that execute orders, places where they map the same page, and
 * checks of that page. For programs that use the harness.
 */
#ifndef _SELFTESTS_MEMREAP_WORLD_H
#define _SELFTESTS_MEMREAP_WORLD_H

#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "ksm.h"
#include "trace.h"

/* Seconds for a test, on a busy host that emulates a kernel full of checks. */
#define LIMIT		300

#define NR_MATES	8
#define SELF		(-1)

/* Full scans within which pages must be merged; two or three are enough. */
#define MERGE_SCANS	50

#define SWAP_SIZE	(64 * MIB)

/* Where it exists, N selects the stock walks. */
#define SWITCH		"/sys/module/memreap/parameters/ksm_rmap"

/**
 * struct mate - another process, which executes orders
 * @pid: 0 if there is none
 * @talk: socket: the test's end and its own
 */
struct mate {
	pid_t pid;
	int talk[2];
};

/**
 * struct world - state of a test that is undone after it
 * @nodes: two that have memory
 * @mates: others, started by start_mate() and start_mate_of()
 * @squeeze: for tests that swap
 */
struct world {
	int nodes[2];
	struct mate mates[NR_MATES];
	struct squeeze squeeze;
};

static struct world *world;

/* The settings when the program started. */
static struct ksm_saved ksm_saved;
static char switch_saved[8];
static pid_t main_pid;

static void __attribute__((constructor)) before_all(void)
{
	main_pid = getpid();
	ksm_save(&ksm_saved);
	if (!read_file(SWITCH, switch_saved, sizeof(switch_saved)))
		switch_saved[0] = 0;
	/* All processes share its position: each test starts at the end. */
	kmsg = kmsg_open();
}

static inline void restore_settings(void)
{
	ksm_restore(&ksm_saved);
	if (switch_saved[0])
		write_file(SWITCH, switch_saved);
}

/* A test killed by the harness for taking too long restores nothing itself. */
static void __attribute__((destructor)) after_all(void)
{
	if (getpid() == main_pid && !geteuid())
		restore_settings();
}

/* @text: "", or what is wrong, which is printed as part of the failure. */
#define ASSERT_OK(text)		ASSERT_STREQ("", text)

static inline const char *complaint(const char *fmt, ...)
{
	static char text[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);

	return text;
}

/* --- Other processes --- */

typedef long (*order_fn)(char *addr, unsigned long arg);

/* All are forks of one program: functions have the same address. */
struct order {
	order_fn fn;
	char *addr;
	unsigned long arg;
};

static inline void mate_main(const struct mate *mate)
{
	int talk = mate->talk[1];
	struct order order;
	long answer;

	/* So that read() ends when the test is gone. */
	for (int i = 0; i < NR_MATES; i++)
		close(world->mates[i].talk[0]);
	while (read(talk, &order, sizeof(order)) == sizeof(order)) {
		answer = order.fn(order.addr, order.arg);
		if (write(talk, &answer, sizeof(answer)) != sizeof(answer))
			break;
	}
	_exit(0);
}

/* Order: fork, with the child as mate @nr. */
static inline long do_fork(char *addr, unsigned long nr)
{
	pid_t pid = fork();

	if (!pid)
		mate_main(&world->mates[nr]);

	return pid;
}

/* Returns whether a process has given up its memory; it may be a zombie. */
static inline bool gone(pid_t pid)
{
	return mapped_pages(pid) <= 0;
}

/* Calls @fn in mate @nr. Returns its result, or -1 if the mate dies. */
static inline long ask(int nr, order_fn fn, char *addr, unsigned long arg)
{
	struct order order = { fn, addr, arg };
	struct pollfd fd = { .events = POLLIN };
	long answer;

	if (nr == SELF)
		return fn(addr, arg);
	fd.fd = world->mates[nr].talk[0];
	if (write(fd.fd, &order, sizeof(order)) != sizeof(order))
		return -1;
	/* All mates have the other end open: there is no EOF when one dies. */
	while (poll(&fd, 1, 100) == 0) {
		if (gone(world->mates[nr].pid))
			return -1;
	}
	if (read(fd.fd, &answer, sizeof(answer)) != sizeof(answer))
		return -1;

	return answer;
}

/* Starts mate @nr as a child of mate @parent, or of the test. */
static inline bool start_mate_of(int parent, int nr)
{
	world->mates[nr].pid = ask(parent, do_fork, NULL, nr);

	return world->mates[nr].pid > 0;
}

static inline bool start_mate(int nr)
{
	return start_mate_of(SELF, nr);
}

static inline pid_t pid_of(int nr)
{
	return nr == SELF ? getpid() : world->mates[nr].pid;
}

static inline bool end_mate(int nr)
{
	kill(world->mates[nr].pid, SIGKILL);

	return within(PATIENCE, gone(world->mates[nr].pid));
}

/* --- Memory --- */

static inline unsigned long word_of(unsigned long seed, size_t i)
{
	return (seed + 1) * 2654435761UL + i;
}

static inline long do_fill(char *addr, unsigned long seed)
{
	unsigned long *page = (unsigned long *)addr;

	for (size_t i = 0, nr = PAGE / sizeof(*page); i < nr; i++)
		page[i] = word_of(seed, i);

	return 1;
}

/* Order: check for what do_fill() wrote. */
static inline long do_check(char *addr, unsigned long seed)
{
	const unsigned long *page = (unsigned long *)addr;

	/* Read again each time: others may free the page. */
	for (size_t i = 0, nr = PAGE / sizeof(*page); i < nr; i++) {
		if (__atomic_load_n(&page[i], __ATOMIC_RELAXED) !=
		    word_of(seed, i))
			return 0;
	}

	return 1;
}

static inline long do_unmap(char *addr, unsigned long size)
{
	return !munmap(addr, size);
}

static inline long do_mergeable(char *addr, unsigned long size)
{
	return !madvise(addr, size, MADV_MERGEABLE);
}

static inline long do_unmergeable(char *addr, unsigned long size)
{
	return !madvise(addr, size, MADV_UNMERGEABLE);
}

/* Reserves addresses for mappings. */
static inline char *reserve(size_t pages)
{
	char *mem = mmap(NULL, pages * PAGE, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return mem == MAP_FAILED ? NULL : mem;
}

/* Maps mergeable memory in a VMA of its own; anonymous if @fd is -1. */
static inline char *map_fixed(char *at, size_t pages, int fd, off_t offset)
{
	char *mem = mmap(at, pages * PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_FIXED |
			 (fd < 0 ? MAP_ANONYMOUS : 0), fd, offset);

	if (mem == MAP_FAILED)
		return NULL;
	/* Fails without huge pages in the kernel. */
	madvise(mem, pages * PAGE, MADV_NOHUGEPAGE);
	if (madvise(mem, pages * PAGE, MADV_MERGEABLE))
		return NULL;

	return mem;
}

static inline bool protect(char *mem, size_t pages, int prot)
{
	return !mprotect(mem, pages * PAGE, prot);
}

/* Between gaps: no neighbour to share an anon_vma with. */
static inline char *map_region(size_t pages)
{
	char *mem = reserve(pages + 2);

	return mem ? map_fixed(mem + PAGE, pages, -1, 0) : NULL;
}

/* Gives page @which the content @seed, and the others a unique one. */
static inline void fill_region(char *mem, size_t pages, size_t which,
			       unsigned long seed)
{
	for (size_t i = 0; i < pages; i++)
		do_fill(mem + i * PAGE,
			i == which ? seed : (unsigned long)mem + i);
}

/* --- Identical pages --- */

/* Where a page is mapped: a process and an address in it. */
struct place {
	int mate;
	char *addr;
};

static inline unsigned long page_at(const struct place *place)
{
	return pfn_at(pid_of(place->mate), place->addr);
}

/*
 * Checks that all places map one page. If fork() did not make them, it is a KSM
 * page. /proc/kpageflags does not tell: in 6.12 it flags all private memory as
 * KSM.
 */
static inline const char *one_page(const struct place *places, int nr)
{
	unsigned long pfn = page_at(&places[0]);

	if (!pfn)
		return complaint("no page at the first place");
	for (int i = 1; i < nr; i++) {
		unsigned long other = page_at(&places[i]);

		if (other != pfn)
			return complaint("place %d has page %lx, not %lx", i,
					 other, pfn);
	}

	return "";
}

/* Checks the content in all places. */
static inline const char *content_is(const struct place *places, int nr,
				     unsigned long seed)
{
	for (int i = 0; i < nr; i++) {
		if (ask(places[i].mate, do_check, places[i].addr, seed) != 1)
			return complaint("place %d has another content", i);
	}

	return "";
}

/* Runs ksmd until all these are one page. */
static inline const char *merge(const struct place *places, int nr)
{
	long end = ksm_get("full_scans") + MERGE_SCANS;
	unsigned long long limit = now_ns() + LIMIT * 500000000ULL;

	ksm_set("run", 1);
	while (*one_page(places, nr) && ksm_get("full_scans") < end &&
	       now_ns() < limit)
		usleep(2000);
	ksm_set("run", 0);

	return one_page(places, nr);
}

/* Migrates a page once. All mappings have to be moved. */
static inline const char *migrate_once(const struct place *places, int nr,
				       unsigned long seed)
{
	pid_t pid = pid_of(places[0].mate);
	void *addr = places[0].addr;
	unsigned long pfn = pfn_at(pid, addr);
	int from = node_of(pid, addr);
	int to = world->nodes[from == world->nodes[0]];
	const char *why = one_page(places, nr);
	int status = -EBUSY;

	if (*why)
		return why;
	/* An attempt fails while others hold a reference. */
	for (int i = 0; i < 3 && status != to; i++) {
		if (move_pages_all(pid, 1, &addr, &to, &status) < 0)
			return complaint("move_pages: %s", strerror(errno));
	}
	if (status != to)
		return complaint("page %lx stays on node %d: %s", pfn, from,
				 strerror(-status));
	why = one_page(places, nr);
	if (*why)
		return why;
	if (pfn_at(pid, addr) == pfn || node_of(pid, addr) != to)
		return complaint("page %lx has not moved", pfn);

	return content_is(places, nr, seed);
}

/* Migrates there and back: a migrated page must be found, too. */
static inline const char *migrate(const struct place *places, int nr,
				  unsigned long seed)
{
	const char *why = migrate_once(places, nr, seed);

	return *why ? why : migrate_once(places, nr, seed);
}

/* @places: an array; all of them must map one page. */
#define ASSERT_MERGES(places) \
	ASSERT_OK(merge(places, sizeof(places) / sizeof(struct place)))
#define ASSERT_IS_ONE(places) \
	ASSERT_OK(one_page(places, sizeof(places) / sizeof(struct place)))
#define ASSERT_MIGRATES(places, seed) \
	ASSERT_OK(migrate(places, sizeof(places) / sizeof(struct place), \
			    seed))

/* --- Set-up and teardown --- */

/* Returns NULL, or what is missing; then there is nothing to undo. */
static inline const char *world_begin(struct world *w, int nr_nodes)
{
	if (geteuid())
		return "must be root";
	if (ksm_get("run") < 0)
		return "no KSM (CONFIG_KSM)";
	if (!pfn_at(0, &w))
		return "no page frame numbers in /proc/PID/pagemap";
	if (memory_nodes(w->nodes, 2) < nr_nodes)
		return "needs two nodes with memory: boot with numa=fake=2";
	for (int i = 0; i < NR_MATES; i++) {
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, w->mates[i].talk))
			return "no socketpair";
	}
	world = w;
	if (kmsg >= 0)
		lseek(kmsg, 0, SEEK_END);

	ksm_set("run", 2);
	ksm_scan_fast();
	ksm_set("merge_across_nodes", 1);
	ksm_set("use_zero_pages", 0);
	ksm_set("max_page_sharing", 256);
	ksm_set("run", 0);

	return NULL;
}

/* For teardown in the test's parent, which runs even if the test died. */
static inline void world_end(struct __test_metadata *_metadata, struct world *w)
{
	for (int i = 0; i < NR_MATES; i++) {
		if (w->mates[i].pid > 0)
			kill(w->mates[i].pid, SIGKILL);
	}
	squeeze_end(&w->squeeze);
	ksm_set("run", 2);
	restore_settings();
	EXPECT_NO_COMPLAINT(kmsg);
}

#endif /* _SELFTESTS_MEMREAP_WORLD_H */
