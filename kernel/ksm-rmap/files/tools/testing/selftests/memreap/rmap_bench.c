// SPDX-License-Identifier: GPL-2.0-only
/*
 * How long does it take to find all mappings of a page?
 *
 * Sets up pages with a given number of mappings among a given number of VMAs,
 * makes the kernel search for them, and prints the time per page. Runs on any
 * kernel; see "rmap_bench -h".
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "ksm.h"

#define MAX_MAP_COUNT	"/proc/sys/vm/max_map_count"

/* Time for ksmd to merge everything, in ns. */
#define MERGE_LIMIT	60000000000ULL

/* Mappings of all pages together. */
#define MAX_SLOTS	10000000U

static const char usage[] =
"Usage: rmap_bench [-k KIND] [-v VMAS] [-m MAPPINGS] [-p PAGES] [-r ROUNDS]\n"
"                  [-w WORK] [-j]\n"
"\n"
"Measures how long the kernel takes to find all mappings of a page.\n"
"\n"
"  -k  ksm, anon, file or all [all]\n"
"        ksm: pages that ksmd merged, mapped within one process\n"
"        anon: private pages, shared by fork(), a process for each mapping\n"
"        file: pages of a file in memory, mapped within one process\n"
"  -v  VMAs to search: of one anon_vma, or of one file [1000]\n"
"  -m  mappings of each page [10]\n"
"  -p  pages [32]\n"
"  -r  rounds; each is one sample [5]\n"
"  -w  the operation [the first one that works here]\n"
"        idle: mark pages as idle; measures almost nothing else\n"
"        migrate: to another node; walks twice, and copies the page\n"
"        reclaim: swap out\n"
"  -j  print JSON, a line for each kind\n"
"  -h  print this\n"
"\n"
"Results are in ns per page: minimum, median and maximum of the rounds.\n"
"Compare them with those of one VMA and two mappings (-v 1 -m 2).\n"
"\n"
"Must be run as root. While it runs it changes the settings of KSM, and with\n"
"more mappings than max_page_sharing allows it unmerges all pages first.\n"
"For reclaim it creates a cgroup, and swaps to zram0 if there is no swap.\n"
"\n"
"Exit status: 0 if anything was measured, 1 for an error, 4 if nothing can be\n"
"measured here.\n";

enum kind { KSM, ANON, FILE_SHARED, NR_KINDS };
enum work { IDLE, MIGRATE, RECLAIM, NR_WORKS };

static const char * const kinds[] = { "ksm", "anon", "file" };
static const char * const works[] = { "idle", "migrate", "reclaim" };

static struct {
	unsigned int kinds;
	unsigned int vmas;
	unsigned int mappings;
	unsigned int pages;
	unsigned int rounds;
	int work;
	bool json;
} opt = {
	.kinds = (1 << NR_KINDS) - 1,
	.vmas = 1000,
	.mappings = 10,
	.pages = 32,
	.rounds = 5,
	.work = -1,
};

/**
 * struct bench - what is measured
 * @slots: addresses in this process where a page is; page i is in every slot
 *	whose number is i modulo the number of pages
 * @nr_slots: how many
 * @talk: to each of the other processes
 * @nr_others: how many
 * @nodes: two
 * @squeeze: for reclaim
 */
struct bench {
	char **slots;
	unsigned int nr_slots;
	int *talk;
	unsigned int nr_others;
	int nodes[2];
	struct squeeze *squeeze;
};

/* What a child found out, for its parent to print. */
struct outcome {
	bool measured;
	char error[256];
	char skip[256];
	unsigned int failed;
	unsigned long long min, median, max;
};

static struct outcome *outcome;

/* The child at work; 0 if there is none. */
static pid_t worker;
static bool interrupted;

/* In a child, for what goes wrong where it should not. */
static void die(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(outcome->error, sizeof(outcome->error), fmt, args);
	va_end(args);
	exit(KSFT_FAIL);
}

static void *need(void *mem, const char *what)
{
	if (!mem || mem == MAP_FAILED)
		die("%s: %s", what, strerror(errno));

	return mem;
}

/* --- Setting up --- */

/* No page is like another, but for those that have the same number. */
static void fill_page(char *page, unsigned long nr)
{
	unsigned long *word = (unsigned long *)page;

	for (size_t i = 0; i < PAGE / sizeof(*word); i++)
		word[i] = (nr + 1) * 2654435761UL + i;
}

static void touch_slots(const struct bench *b)
{
	for (unsigned int i = 0; i < b->nr_slots; i++)
		__atomic_load_n(b->slots[i], __ATOMIC_RELAXED);
}

/* Private memory of @vmas VMAs in one anon_vma, with room for all the slots. */
static void map_split(struct bench *b, unsigned int vmas)
{
	size_t per_vma = (b->nr_slots + vmas - 1) / vmas;
	size_t nr_pages = per_vma * vmas;
	char *mem;

	mem = need(mmap(NULL, nr_pages * PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
		   "mmap");
	madvise(mem, nr_pages * PAGE, MADV_NOHUGEPAGE);
	/* The first page creates the anon_vma, which all parts keep. */
	fill_page(mem, opt.pages);
	for (size_t i = 1; i < vmas; i += 2) {
		if (madvise(mem + i * per_vma * PAGE, per_vma * PAGE,
			    MADV_DONTDUMP))
			die("cannot split into %u VMAs: %s (see " MAX_MAP_COUNT ")",
			    vmas, strerror(errno));
	}
	for (size_t i = 0; i < b->nr_slots; i++) {
		b->slots[i] = mem + i * nr_pages / b->nr_slots * PAGE;
		fill_page(b->slots[i], i % opt.pages);
	}
}

static bool merged(const struct bench *b)
{
	for (unsigned int i = opt.pages; i < b->nr_slots; i++) {
		unsigned long pfn = pfn_at(0, b->slots[i % opt.pages]);

		if (!pfn || pfn != pfn_at(0, b->slots[i]))
			return false;
	}

	return true;
}

static void merge_all(const struct bench *b)
{
	unsigned long long limit = now_ns() + MERGE_LIMIT;

	ksm_set("run", 1);
	while (!merged(b)) {
		if (now_ns() > limit)
			die("ksmd has not merged all within %llu s",
			    MERGE_LIMIT / 1000000000);
		usleep(5000);
	}
	ksm_set("run", 0);
}

static void setup_ksm(struct bench *b)
{
	long limit = ksm_get("max_page_sharing");

	b->nr_slots = opt.pages * opt.mappings;
	b->slots = need(calloc(b->nr_slots, sizeof(*b->slots)), "memory");
	if (limit >= 0 && limit < opt.mappings) {
		/* Can be changed only as long as nothing is merged. */
		ksm_set("run", 2);
		if (!ksm_set("max_page_sharing", opt.mappings))
			die("cannot set max_page_sharing: %s", strerror(errno));
	}
	ksm_set("run", 0);
	ksm_set("use_zero_pages", 0);
	ksm_scan_fast();
	map_split(b, opt.vmas);
	if (madvise(b->slots[0],
		    b->slots[b->nr_slots - 1] + PAGE - b->slots[0],
		    MADV_MERGEABLE))
		die("madvise(MADV_MERGEABLE): %s", strerror(errno));
	merge_all(b);
}

/* Reads all slots on request, until the parent is gone. */
static void other_main(const struct bench *b, int talk)
{
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(talk, &byte, 1) == 1) {
		touch_slots(b);
		if (write(talk, &byte, 1) != 1)
			break;
	}
	_exit(0);
}

static void setup_anon(struct bench *b)
{
	unsigned int vmas = opt.vmas / opt.mappings;

	b->nr_slots = opt.pages;
	b->slots = need(calloc(b->nr_slots, sizeof(*b->slots)), "memory");
	b->nr_others = opt.mappings - 1;
	b->talk = need(calloc(opt.mappings, sizeof(*b->talk)), "memory");
	map_split(b, vmas ? vmas : 1);
	for (unsigned int i = 0; i < b->nr_others; i++) {
		int talk[2];
		pid_t pid;

		if (socketpair(AF_UNIX, SOCK_STREAM, 0, talk))
			die("socketpair: %s", strerror(errno));
		pid = fork();
		if (pid < 0)
			die("fork: %s", strerror(errno));
		if (!pid) {
			close(talk[0]);
			other_main(b, talk[1]);
		}
		close(talk[1]);
		b->talk[i] = talk[0];
	}
}

static void setup_file(struct bench *b)
{
	unsigned int rest = opt.vmas > opt.mappings ?
		opt.vmas - opt.mappings : 0;
	int fd = memfd_create("rmap_bench", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, (opt.pages + rest) * PAGE))
		die("a file in memory: %s", strerror(errno));
	b->nr_slots = opt.pages * opt.mappings;
	b->slots = need(calloc(b->nr_slots, sizeof(*b->slots)), "memory");
	for (unsigned int m = 0; m < opt.mappings; m++) {
		char *mem = need(mmap(NULL, opt.pages * PAGE,
				      PROT_READ | PROT_WRITE, MAP_SHARED, fd,
				      0), "mmap");

		for (unsigned int i = 0; i < opt.pages; i++) {
			b->slots[m * opt.pages + i] = mem + i * PAGE;
			fill_page(mem + i * PAGE, i);
		}
	}
	/* Other protection than the one before: they do not merge. */
	for (unsigned int i = 0; i < rest; i++)
		need(mmap(NULL, PAGE, i % 2 ? PROT_READ : PROT_NONE,
			  MAP_SHARED, fd, (opt.pages + i) * PAGE), "mmap");
}

static void touch_everywhere(const struct bench *b)
{
	char byte = 0;

	touch_slots(b);
	for (unsigned int i = 0; i < b->nr_others; i++) {
		if (write(b->talk[i], &byte, 1) != 1 ||
		    read(b->talk[i], &byte, 1) != 1)
			die("a process is gone");
	}
}

/* --- Measuring: the time for all pages, in ns --- */

/* Marked one by one; each mark is cleared by the next round's touch. */
static unsigned long long mark_idle(struct bench *b)
{
	int fd = open(PAGE_IDLE, O_RDWR | O_CLOEXEC);
	unsigned long long sum = 0;

	if (fd < 0)
		die(PAGE_IDLE ": %s", strerror(errno));
	for (unsigned int i = 0; i < opt.pages; i++) {
		unsigned long pfn = pfn_at(0, b->slots[i]);
		uint64_t word = 1ULL << pfn % 64;
		unsigned long long start = now_ns();

		if (pwrite(fd, &word, sizeof(word), pfn / 64 * sizeof(word)) !=
		    sizeof(word))
			die(PAGE_IDLE ": %s", strerror(errno));
		sum += now_ns() - start;
		/* Without effect if it is not on an LRU list. */
		if (pread(fd, &word, sizeof(word), pfn / 64 * sizeof(word)) !=
		    sizeof(word) || !(word >> pfn % 64 & 1))
			outcome->failed++;
	}
	close(fd);

	return sum;
}

static unsigned long long move_all(struct bench *b)
{
	int to = b->nodes[node_of(0, b->slots[0]) == b->nodes[0]];
	int *nodes = need(calloc(opt.pages, sizeof(*nodes)), "memory");
	int *status = need(calloc(opt.pages, sizeof(*status)), "memory");
	unsigned long long start, end;

	for (unsigned int i = 0; i < opt.pages; i++) {
		nodes[i] = to;
		status[i] = -EBUSY;
	}
	start = now_ns();
	if (move_pages_all(0, opt.pages, (void **)b->slots, nodes, status) < 0)
		die("move_pages: %s", strerror(errno));
	end = now_ns();
	for (unsigned int i = 0; i < opt.pages; i++)
		outcome->failed += status[i] != to;
	free(nodes);
	free(status);

	return end - start;
}

static bool any_present(const struct bench *b)
{
	for (unsigned int i = 0; i < opt.pages; i++) {
		if (pfn_at(0, b->slots[i]))
			return true;
	}

	return false;
}

static unsigned long long squeeze_out(struct bench *b)
{
	unsigned long long start, sum = 0;

	for (int i = 0; i < 100 && any_present(b); i++) {
		start = now_ns();
		squeeze(b->squeeze, opt.pages * PAGE);
		sum += now_ns() - start;
	}
	for (unsigned int i = 0; i < opt.pages; i++)
		outcome->failed += !!pfn_at(0, b->slots[i]);

	return sum;
}

/* What is missing for @work, and what to do about it; NULL if nothing is. */
static const char *work_missing(struct bench *b, enum work work)
{
	switch (work) {
	case IDLE:
		if (access(PAGE_IDLE, W_OK))
			return "no " PAGE_IDLE ": needs CONFIG_IDLE_PAGE_TRACKING";
		return NULL;
	case MIGRATE:
		if (memory_nodes(b->nodes, 2) < 2)
			return "only one node with memory: boot with numa=fake=2 (CONFIG_NUMA_EMU)";
		return NULL;
	default:
		/* Only here, as it changes something. */
		return squeeze_begin(b->squeeze,
				     2ULL * opt.pages * PAGE + 16 * MIB);
	}
}

static int by_size(const void *a, const void *b)
{
	const unsigned long long *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void measure(enum kind kind, enum work work, struct squeeze *squeeze)
{
	static void (* const setup[])(struct bench *b) = {
		setup_ksm, setup_anon, setup_file,
	};
	static unsigned long long (* const look[])(struct bench *b) = {
		mark_idle, move_all, squeeze_out,
	};
	struct bench b = { .squeeze = squeeze };
	unsigned long long *ns = need(calloc(opt.rounds, sizeof(*ns)), "memory");
	const char *missing = work_missing(&b, work);
	int status, node;

	if (!missing && kind == KSM && ksm_get("run") < 0)
		missing = "no " KSM_DIR ": needs CONFIG_KSM";
	if (!missing && kind == KSM && opt.mappings < 2)
		missing = "ksmd merges nothing that has one mapping only: -m 2";
	if (missing) {
		snprintf(outcome->skip, sizeof(outcome->skip), "%s", missing);
		return;
	}
	setup[kind](&b);
	/* Has the pages of all CPUs put on the LRU lists. */
	node = node_of(0, b.slots[0]);
	move_pages_all(0, 1, (void **)b.slots, &node, &status);
	/* One more: the first one finds nothing in the caches. */
	for (unsigned int i = 0; i <= opt.rounds; i++) {
		touch_everywhere(&b);
		/* What was in swap is not merged any more. */
		if (kind == KSM && work == RECLAIM)
			merge_all(&b);
		outcome->failed = i > 1 ? outcome->failed : 0;
		ns[i ? i - 1 : 0] = look[work](&b) / opt.pages;
	}
	qsort(ns, opt.rounds, sizeof(*ns), by_size);
	outcome->min = ns[0];
	outcome->median = ns[opt.rounds / 2];
	outcome->max = ns[opt.rounds - 1];
	outcome->measured = true;
}

/* --- The frame --- */

static void interrupt(int sig)
{
	pid_t pid = __atomic_load_n(&worker, __ATOMIC_SEQ_CST);

	__atomic_store_n(&interrupted, true, __ATOMIC_SEQ_CST);
	if (pid > 0)
		kill(pid, SIGKILL);
}

/* Measures in a child, so that everything can be undone. */
static void run(enum kind kind, enum work work, struct squeeze *squeeze)
{
	int status;
	pid_t pid;

	memset(outcome, 0, sizeof(*outcome));
	fflush(stdout);
	pid = fork();
	__atomic_store_n(&worker, pid, __ATOMIC_SEQ_CST);
	if (!pid) {
		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		measure(kind, work, squeeze);
		exit(0);
	}
	if (pid < 0)
		snprintf(outcome->error, sizeof(outcome->error), "fork: %s",
			 strerror(errno));
	while (pid > 0 && waitpid(pid, &status, 0) != pid)
		;
	__atomic_store_n(&worker, 0, __ATOMIC_SEQ_CST);
	if (pid > 0 && WIFSIGNALED(status))
		snprintf(outcome->error, sizeof(outcome->error), "ended by %s",
			 strsignal(WTERMSIG(status)));
	squeeze_end(squeeze);
}

static void print_json(enum kind kind, enum work work)
{
	printf("{\"kind\": \"%s\", \"work\": \"%s\", \"vmas\": %u, ",
	       kinds[kind], works[work], opt.vmas);
	printf("\"mappings\": %u, \"pages\": %u, \"rounds\": %u, ",
	       opt.mappings, opt.pages, opt.rounds);
	if (!outcome->measured) {
		printf("\"missing\": \"%s\"}\n", outcome->error[0] ?
		       outcome->error : outcome->skip);
		return;
	}
	printf("\"failed\": %u, \"ns_per_page\": ", outcome->failed);
	printf("{\"min\": %llu, \"median\": %llu, \"max\": %llu}}\n",
	       outcome->min, outcome->median, outcome->max);
}

static void print_tap(enum kind kind, enum work work)
{
	if (outcome->measured) {
		ksft_print_msg("%s, %s: %u pages, %u mappings of each, %u VMAs\n",
			       kinds[kind], works[work], opt.pages,
			       opt.mappings, opt.vmas);
		ksft_print_msg("%llu/%llu/%llu ns per page (min/median/max of %u)\n",
			       outcome->min, outcome->median, outcome->max,
			       opt.rounds);
		/* A mapping was not found, or the page was in use. */
		if (outcome->failed)
			ksft_print_msg("%u times a page stayed as it was\n",
				       outcome->failed);
		ksft_test_result_pass("%s %s\n", kinds[kind], works[work]);
	} else if (outcome->error[0]) {
		ksft_print_msg("%s\n", outcome->error);
		ksft_test_result_fail("%s %s\n", kinds[kind], works[work]);
	} else {
		ksft_test_result_skip("%s %s: %s\n", kinds[kind],
				      works[work], outcome->skip);
	}
}

/* The first one that is possible; else the last, for its error. */
static enum work choose_work(void)
{
	struct bench b = {};

	if (opt.work >= 0)
		return opt.work;
	for (enum work work = IDLE; work < RECLAIM; work++) {
		const char *missing = work_missing(&b, work);

		if (!missing)
			return work;
		if (!opt.json)
			ksft_print_msg("not measured by %s: %s\n", works[work],
				       missing);
	}

	return RECLAIM;
}

static int index_of(const char *name, const char * const *names, int nr)
{
	for (int i = 0; i < nr; i++) {
		if (!strcmp(name, names[i]))
			return i;
	}
	fprintf(stderr, "rmap_bench: '%s' is unknown; -h lists what there is\n",
		name);
	exit(KSFT_FAIL);
}

static unsigned int parse_number(const char *text, unsigned int max)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (*text < '0' || *text > '9' || *end || !value || value > max) {
		fprintf(stderr, "rmap_bench: '%s' is no number from 1 to %u\n",
			text, max);
		exit(KSFT_FAIL);
	}

	return value;
}

static void parse(int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "k:v:m:p:r:w:jh")) != -1) {
		switch (c) {
		case 'k':
			if (strcmp(optarg, "all"))
				opt.kinds = 1 << index_of(optarg, kinds,
							  NR_KINDS);
			break;
		case 'v':
			opt.vmas = parse_number(optarg, 10000000);
			break;
		case 'm':
			opt.mappings = parse_number(optarg, 100000);
			break;
		case 'p':
			opt.pages = parse_number(optarg, 1000000);
			break;
		case 'r':
			opt.rounds = parse_number(optarg, 1000000);
			break;
		case 'w':
			opt.work = index_of(optarg, works, NR_WORKS);
			break;
		case 'j':
			opt.json = true;
			break;
		case 'h':
			fputs(usage, stdout);
			exit(0);
		default:
			fputs(usage, stderr);
			exit(KSFT_FAIL);
		}
	}
	if (optind < argc) {
		fprintf(stderr, "rmap_bench: what is '%s'? See -h\n",
			argv[optind]);
		exit(KSFT_FAIL);
	}
	if ((unsigned long long)opt.pages * opt.mappings > MAX_SLOTS) {
		fprintf(stderr, "rmap_bench: more than %u mappings in all\n",
			MAX_SLOTS);
		exit(KSFT_FAIL);
	}
}

/* Returns the limit as it was, if it had to be raised; or an empty string. */
static void raise_map_count(char *was, size_t size)
{
	char text[32];

	if (!read_file(MAX_MAP_COUNT, was, size))
		was[0] = 0;
	if (!was[0] || strtoul(was, NULL, 10) > opt.vmas + 1000UL) {
		was[0] = 0;
		return;
	}
	snprintf(text, sizeof(text), "%u", opt.vmas + 1000);
	write_file(MAX_MAP_COUNT, text);
}

int main(int argc, char **argv)
{
	unsigned int measured = 0, failed = 0;
	struct ksm_saved saved;
	struct squeeze *squeeze;
	char map_count[32];
	enum work work;
	long sharing;

	parse(argc, argv);
	if (!opt.json) {
		ksft_print_header();
		ksft_set_plan(__builtin_popcount(opt.kinds));
	}
	if (geteuid()) {
		fprintf(stderr, "rmap_bench: must be run as root\n");
		return KSFT_SKIP;
	}
	squeeze = mmap(NULL, sizeof(*squeeze) + sizeof(*outcome),
		       PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		       0);
	if (squeeze == MAP_FAILED) {
		perror("rmap_bench: mmap");
		return KSFT_FAIL;
	}
	outcome = (struct outcome *)(squeeze + 1);

	/* Ends what is measured; then all is undone. */
	signal(SIGINT, interrupt);
	signal(SIGTERM, interrupt);
	ksm_save(&saved);
	sharing = ksm_get("max_page_sharing");
	raise_map_count(map_count, sizeof(map_count));
	work = choose_work();
	for (enum kind kind = KSM; kind < NR_KINDS; kind++) {
		if (!(opt.kinds & 1 << kind))
			continue;
		if (__atomic_load_n(&interrupted, __ATOMIC_SEQ_CST))
			break;
		run(kind, work, squeeze);
		measured += outcome->measured;
		failed += !!outcome->error[0];
		if (opt.json)
			print_json(kind, work);
		else
			print_tap(kind, work);
	}
	if (ksm_get("max_page_sharing") != sharing)
		ksm_set("run", 2);
	ksm_restore(&saved);
	if (map_count[0])
		write_file(MAX_MAP_COUNT, map_count);
	if (!opt.json)
		ksft_print_cnts();
	if (failed)
		return KSFT_FAIL;

	return measured ? KSFT_PASS : KSFT_SKIP;
}
