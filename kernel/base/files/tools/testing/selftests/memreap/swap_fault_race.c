// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages that are faulted in from swap by one thread while another one discards
 * them, and while the process is killed and reaped: no slot stays in use or
 * charged, and what is read is what was written, or 0.
 */
#define _GNU_SOURCE
#include "../kselftest_harness.h"
#include "region.h"
#include "zram.h"

/* Seconds for a test, on a busy host that emulates a kernel full of checks. */
#define LIMIT		300

#define SWAP_SIZE	(64 * MIB)
#define SIZE		MIB
#define PAGES		((unsigned int)(SIZE / PAGE))
/* Milliseconds for which a victim runs. */
#define VICTIM_MS	20

static struct region memory;
static struct victim victim;
/* Pages with something else in them; shared with the victim. */
static unsigned int *wrong;

static unsigned long *page(unsigned int i)
{
	return memory.mem + i * PAGE;
}

/* What region_fill() writes first into a page. */
static unsigned long first_word(unsigned int i)
{
	return memory.seed + i * PAGE;
}

static void *fault_fn(void *arg)
{
	unsigned long long seed = 2;

	for (;;) {
		unsigned int i = rnd(&seed) % PAGES;
		unsigned long word = __atomic_load_n(page(i), __ATOMIC_RELAXED);

		if (word && word != first_word(i))
			__atomic_add_fetch(wrong, 1, __ATOMIC_RELAXED);
	}

	return arg;
}

/* Fills pages, swaps them out and discards some, until it is killed. */
static void zap(void *arg)
{
	struct region *r = arg;
	unsigned long long seed = 3;
	unsigned int first, nr;
	pthread_t thread;

	if (pthread_create(&thread, NULL, fault_fn, NULL))
		_exit(1);
	for (;;) {
		/* Some alone, and some together. */
		for (unsigned int i = 0; i < PAGES; i++) {
			if (rnd(&seed) % 8)
				fill(page(i), PAGE, first_word(i));
		}
		madvise(r->mem, r->size, MADV_PAGEOUT);
		first = rnd(&seed) % PAGES;
		nr = 1 + rnd(&seed) % (PAGES - first);
		madvise(page(first), nr * PAGE, MADV_DONTNEED);
	}
}

static const struct victim_ops zaps = { &memory, region_fill, NULL, zap };

FIXTURE(swap) {
	struct cgroups cgroups;
	bool on;
	int kmsg;
};

FIXTURE_SETUP(swap)
{
	const char *missing;

	if (geteuid())
		SKIP(return, "needs root");
	if (read_number("/proc/meminfo", "SwapTotal:"))
		SKIP(return, "there is swap in use, which the test would disturb");
	if (access(zram_device(0), F_OK))
		SKIP(return, "no zram device to swap to");
	missing = cgroups_begin(&self->cgroups, "+memory");
	if (missing)
		SKIP(return, "%s", missing);
	wrong = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(wrong, MAP_FAILED);
	memory = (struct region){
		.size = SIZE, .seed = 1, .cgroup = self->cgroups.top
	};
	self->kmsg = kmsg_open();
}

FIXTURE_TEARDOWN_PARENT(swap)
{
	/* Kills a victim that is left, of which only the child knows. */
	cgroups_end(&self->cgroups);
	if (self->on)
		zram_off(0);
}

FIXTURE_VARIANT(swap) {
	bool reaped;
};

FIXTURE_VARIANT_ADD(swap, exits) {
	.reaped = false
};

FIXTURE_VARIANT_ADD(swap, is_reaped) {
	.reaped = true
};

static long swapped_in(void)
{
	return read_number("/proc/vmstat", "pswpin ");
}

TEST_F_TIMEOUT(swap, fault_while_zapped, LIMIT)
{
	unsigned int met = 0;
	struct stress stress = { .min_rounds = 5, .variants = 2, .met = &met };

	while (stress_continues(&stress)) {
		long before = swapped_in();

		self->on = zram_on(0, SWAP_SIZE, 1);
		ASSERT_TRUE(self->on);
		ASSERT_EQ(victim_start(&victim, &zaps), GOOD);
		usleep(VICTIM_MS * 1000);
		ASSERT_EQ(kill_plain(&victim), 0);
		if (variant->reaped && mrelease_supported())
			mrelease(victim.pidfd);
		victim_end(&victim);
		met += swapped_in() > before;
		/*
		 * A page that was just written, or read, keeps its slot until
		 * then. For who has one that was lost it searches for ever.
		 */
		self->on = !zram_off(0);
		ASSERT_FALSE(self->on);
		ASSERT_EQ(cgroup_read(self->cgroups.top, "memory.swap.current",
				      NULL), 0);
		ASSERT_EQ(*wrong, 0);
	}
	EXPECT_NO_COMPLAINT(self->kmsg);
}

TEST_HARNESS_MAIN
