// SPDX-License-Identifier: GPL-2.0-only
/*
 * How long does it take until processes with memory in swap are gone, and where
 * is the time spent?
 *
 * Runs on any kernel; see "swap_exit_bench -h".
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <linux/perf_event.h>
#include <sys/syscall.h>

#include "victim.h"
#include "zram.h"

#define MAX_VICTIMS	256

/* Pages of a page table, and page tables that are unmapped one by one. */
#define TABLE_PAGES	512
#define TABLES		32

/* A sample of each CPU every 20 us, in a ring buffer of 4 MiB. */
#define PROFILE_NS	20000
#define RING_PAGES	1024
#define TOP_FUNCTIONS	24
/* The kernel's text; modules not counted. */
#define MAX_SYMBOLS	200000

static const char usage[] =
"Usage: swap_exit_bench [-n VICTIMS] [-m MIB] [-s PERCENT] [-x] [-a ALGORITHM] [-p]\n"
"\n"
"Kills processes with memory in swap on zram0, and measures when they are gone,\n"
"when 98 % of their memory is unmapped and of their swap is back; then how long\n"
"munmap() of a page table in swap takes, and a page fault that swaps in.\n"
"\n"
"  -n  processes [8]\n"
"  -m  MiB of each [64]\n"
"  -s  percent of it in swap [65]\n"
"  -x  no two pages in swap are neighbours\n"
"  -a  compression of zram0, as in its comp_algorithm [the default]\n"
"  -p  where the kernel spends its time until everything is back\n"
"  -h  print this\n"
"\n"
"Prints lines of NAME VALUE UNIT lower, for \"lab ab --workload\". Must be run as\n"
"root, without swap in use. Exit status: 0, or 1 for an error.\n";

static struct {
	unsigned int victims;
	unsigned int mib;
	unsigned int percent;
	bool scattered;
	const char *algorithm;
	bool profile;
} opt = { .victims = 8, .mib = 64, .percent = 65 };

/* --- Profile --- */

struct symbol {
	unsigned long address;
	unsigned long samples;
	char name[48];
};

static struct symbol *symbols;
static size_t nr_symbols;
static struct perf_event_mmap_page *rings[CPU_SETSIZE];
static int events[CPU_SETSIZE];

static int by_address(const void *a, const void *b)
{
	const struct symbol *x = a, *y = b;

	return x->address < y->address ? -1 : x->address > y->address;
}

static int by_samples(const void *a, const void *b)
{
	const struct symbol *x = a, *y = b;

	return x->samples > y->samples ? -1 : x->samples < y->samples;
}

static bool read_symbols(void)
{
	FILE *f = fopen("/proc/kallsyms", "re");
	char line[512], kind;

	symbols = calloc(MAX_SYMBOLS, sizeof(*symbols));
	while (f && symbols && nr_symbols < MAX_SYMBOLS &&
	       fgets(line, sizeof(line), f)) {
		struct symbol *s = &symbols[nr_symbols];

		if (sscanf(line, "%lx %c %47s", &s->address, &kind, s->name) == 3 &&
		    strchr("tT", kind))
			nr_symbols++;
	}
	if (f)
		fclose(f);
	if (nr_symbols)
		qsort(symbols, nr_symbols, sizeof(*symbols), by_address);

	return nr_symbols && symbols[nr_symbols - 1].address;
}

static bool profile_open(int cpus)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_CPU_CLOCK,
		.sample_period = PROFILE_NS,
		.sample_type = PERF_SAMPLE_IP,
		.disabled = 1,
		.exclude_user = 1,
		.exclude_idle = 1,
	};

	for (int cpu = 0; cpu < cpus; cpu++) {
		events[cpu] = syscall(SYS_perf_event_open, &attr, -1, cpu, -1,
				      PERF_FLAG_FD_CLOEXEC);
		if (events[cpu] < 0)
			return false;
		rings[cpu] = mmap(NULL, (RING_PAGES + 1) * PAGE,
				  PROT_READ | PROT_WRITE, MAP_SHARED,
				  events[cpu], 0);
		if (rings[cpu] == MAP_FAILED)
			return false;
	}

	return read_symbols();
}

static void profile_run(int cpus, unsigned long request)
{
	for (int cpu = 0; cpu < cpus; cpu++)
		ioctl(events[cpu], request, 0);
}

static void count(unsigned long address)
{
	size_t low = 0, high = nr_symbols;

	while (high - low > 1) {
		size_t mid = (low + high) / 2;

		if (symbols[mid].address <= address)
			low = mid;
		else
			high = mid;
	}
	symbols[low].samples++;
}

static void profile_print(int cpus)
{
	unsigned long total = 0, lost = 0;

	for (int cpu = 0; cpu < cpus; cpu++) {
		struct perf_event_mmap_page *ring = rings[cpu];
		char *data = (char *)ring + ring->data_offset;
		uint64_t head = __atomic_load_n(&ring->data_head,
						__ATOMIC_ACQUIRE);

		for (uint64_t at = 0; at < head;) {
			struct perf_event_header *h = (void *)(data + at);

			/* Records are multiples of 8 bytes, and none wrapped. */
			if (h->type == PERF_RECORD_SAMPLE) {
				count(*(uint64_t *)(h + 1));
				total++;
			} else if (h->type == PERF_RECORD_LOST) {
				lost++;
			}
			at += h->size;
		}
	}
	qsort(symbols, nr_symbols, sizeof(*symbols), by_samples);
	printf("# %lu samples of the kernel, one per %d us%s\n", total,
	       PROFILE_NS / 1000, lost ? "; the end was lost" : "");
	for (size_t i = 0; i < TOP_FUNCTIONS && symbols[i].samples; i++)
		printf("# %5.1f %%  %s\n", 100. * symbols[i].samples / total,
		       symbols[i].name);
}

/* --- Memory in swap --- */

static long vm_swap(void)
{
	return read_number("/proc/self/status", "VmSwap:") * 1024 / (long)PAGE;
}

/* Three quarters of a page repeat: it is compressed to about a third. */
static void fill_page(unsigned long long *seed, char *page)
{
	unsigned int *words = (unsigned int *)page;

	for (size_t i = 0; i < PAGE / sizeof(*words); i++)
		words[i] = i % 4 ? 0x01010101 : rnd(seed);
}

/* Whether a page of an area is to be in swap. */
static bool goes(size_t page)
{
	return opt.scattered ? page % 2 && page * opt.percent % 50 < opt.percent :
			       page % 100 < opt.percent;
}

static bool swap_out(char *mem, size_t pages)
{
	size_t wanted = 0;
	long before = vm_swap();

	for (size_t page = 0; page < pages; page++)
		wanted += goes(page);
	for (int i = 0; i < 1000; i++) {
		for (size_t page = 0; page < pages;) {
			size_t end = page;

			while (end < pages && goes(end))
				end++;
			if (end > page)
				madvise(mem + page * PAGE, (end - page) * PAGE,
					MADV_PAGEOUT);
			page = end + 1;
		}
		/* A page may be busy, or in a batch. */
		if ((vm_swap() - before) * 100 >= (long)wanted * 99)
			return true;
		put_on_lru();
	}

	return false;
}

static char *area(size_t size, unsigned long long seed)
{
	char *mem = mmap(NULL, size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (size_t page = 0; mem != MAP_FAILED && page < size / PAGE; page++)
		fill_page(&seed, mem + page * PAGE);

	return mem != MAP_FAILED && swap_out(mem, size / PAGE) ? mem : NULL;
}

/* --- What is measured --- */

static void print(const char *name, double value, const char *unit)
{
	printf("%s %.1f %s lower\n", name, value, unit);
}

static long anonymous(void)
{
	return read_number("/proc/vmstat", "nr_anon_pages ");
}

static bool back(long now, long before, long with)
{
	return now - before <= (with - before) / 50;
}

static bool kill_all(int cpus)
{
	long anon[2] = { anonymous() }, swap[2] = { swap_used_of(NULL) };
	double gone = 0, ram = 0, in_swap = 0;
	pid_t pids[MAX_VICTIMS];
	unsigned int left = opt.victims;
	unsigned long long begin;
	int pipes[2];

	if (pipe(pipes))
		return false;
	for (unsigned int i = 0; i < opt.victims; i++) {
		char ok;

		pids[i] = fork();
		if (!pids[i]) {
			ok = !!area(opt.mib * MIB, i + 1);
			if (write(pipes[1], &ok, 1) == 1 && ok)
				pause();
			_exit(1);
		}
		if (pids[i] < 0 || read(pipes[0], &ok, 1) != 1 || !ok)
			return false;
	}
	close(pipes[0]);
	close(pipes[1]);
	anon[1] = anonymous();
	swap[1] = swap_used_of(NULL);
	if (opt.profile)
		profile_run(cpus, PERF_EVENT_IOC_ENABLE);
	begin = now_ns();
	for (unsigned int i = 0; i < opt.victims; i++)
		kill(pids[i], SIGKILL);
	while (!gone || !ram || !in_swap) {
		double ms;

		while (left && waitpid(-1, NULL, WNOHANG) > 0)
			left--;
		ms = (now_ns() - begin) / 1e6;
		if (!gone && !left)
			gone = ms;
		if (!ram && back(anonymous(), anon[0], anon[1]))
			ram = ms;
		if (!in_swap && back(swap_used_of(NULL), swap[0], swap[1]))
			in_swap = ms;
		if (ms > PATIENCE)
			return false;
		usleep(500);
	}
	if (opt.profile)
		profile_run(cpus, PERF_EVENT_IOC_DISABLE);
	print("gone", gone, "ms");
	print("unmapped", ram, "ms");
	print("swap-back", in_swap, "ms");

	return true;
}

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static bool calls(void)
{
	const size_t table = TABLE_PAGES * PAGE;
	double took[TABLE_PAGES * TABLES];
	unsigned long long begin;
	size_t n = 0;
	char *mem;

	mem = area(TABLES * table, 99);
	if (!mem)
		return false;
	for (unsigned int i = 0; i < TABLES; i++) {
		begin = now_ns();
		munmap(mem + i * table, table);
		took[i] = (now_ns() - begin) / 1e3;
	}
	qsort(took, TABLES, sizeof(*took), by_value);
	print("munmap-median", took[TABLES / 2], "us");

	mem = area(TABLES * table, 98);
	if (!mem || !write_file("/proc/sys/vm/page-cluster", "0"))
		return false;
	for (size_t page = 0; page < TABLES * TABLE_PAGES; page++) {
		if (!goes(page))
			continue;
		begin = now_ns();
		__atomic_load_n(mem + page * PAGE, __ATOMIC_RELAXED);
		took[n++] = (now_ns() - begin) / 1e3;
	}
	munmap(mem, TABLES * table);
	qsort(took, n, sizeof(*took), by_value);
	print("swap-in-median", took[n / 2], "us");
	print("swap-in-p99", took[n * 99 / 100], "us");

	return true;
}

static unsigned int parse(const char *text, unsigned int max)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (!isdigit(text[0]) || *end || !value || value > max) {
		fprintf(stderr, "swap_exit_bench: '%s' is no number from 1 to %u\n",
			text, max);
		exit(1);
	}

	return value;
}

int main(int argc, char **argv)
{
	int cpus = sysconf(_SC_NPROCESSORS_ONLN), c;
	char used[128];

	while ((c = getopt(argc, argv, "n:m:s:xa:ph")) != -1) {
		switch (c) {
		case 'n':
			opt.victims = parse(optarg, MAX_VICTIMS);
			break;
		case 'm':
			opt.mib = parse(optarg, 4096);
			break;
		case 's':
			opt.percent = parse(optarg, 100);
			break;
		case 'x':
			opt.scattered = true;
			break;
		case 'a':
			opt.algorithm = optarg;
			break;
		case 'p':
			opt.profile = true;
			break;
		case 'h':
			fputs(usage, stdout);
			return 0;
		default:
			fputs(usage, stderr);
			return 1;
		}
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (geteuid() || read_number("/proc/meminfo", "SwapTotal:")) {
		fprintf(stderr, "swap_exit_bench: needs root, and no swap in use\n");
		return 1;
	}
	if ((opt.algorithm && !zram_write(0, "comp_algorithm", opt.algorithm)) ||
	    !zram_on(0, (opt.victims * opt.mib + 256) * MIB, 5)) {
		fprintf(stderr, "swap_exit_bench: no zram0 with %s\n",
			opt.algorithm ?: "its default compression");
		return 1;
	}
	if (read_setting("/sys/block/zram0/comp_algorithm", used, sizeof(used)))
		printf("# zram0 with %s\n", used);
	if (opt.profile && !profile_open(cpus)) {
		perror("swap_exit_bench: perf_event_open or /proc/kallsyms");
		return 1;
	}
	if (!kill_all(cpus) || !calls()) {
		fprintf(stderr, "swap_exit_bench: memory did not go to swap, or not back\n");
		return 1;
	}
	if (opt.profile)
		profile_print(cpus);

	return zram_off(0) ? 0 : 1;
}
