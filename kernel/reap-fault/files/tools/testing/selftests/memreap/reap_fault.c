// SPDX-License-Identifier: GPL-2.0-only
/*
 * A private mapping of a file that was reaped while its process still runs: what
 * the process had written to it is gone, and nobody must be shown the file's
 * content instead.
 */
#define _GNU_SOURCE
#include <sys/uio.h>

#include "../kselftest_harness.h"
#include "folios.h"
#include "victim.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif

/* Seconds, on a busy host that emulates a kernel full of checks. */
#define LIMIT	300
#define SIZE	(64 * PAGE)
#define HUGE	((size_t)FOLIO_PMD << 10)
#define OF_FILE	1
#define OF_VICTIM	0x5eed0000UL

/**
 * struct copy - a private mapping of a file
 * @fd: the file
 * @mem: the mapping
 */
struct copy {
	int fd;
	char *mem;
};

FIXTURE(fault) {
	struct copy copy;
	struct victim victim;
};

/* Every other page becomes the victim's own. */
static enum verdict modify(void *arg)
{
	struct copy *copy = arg;

	for (size_t at = 0; at < SIZE; at += 2 * PAGE)
		fill(copy->mem + at, PAGE, OF_VICTIM);

	return GOOD;
}

/* The file's pages are in the page cache. */
FIXTURE_SETUP(fault)
{
	struct victim_ops ops = { &self->copy, modify };
	struct copy *copy = &self->copy;
	char *file;

	if (!mrelease_supported())
		SKIP(return, "no process_mrelease()");
	copy->fd = memfd_create("memreap", MFD_CLOEXEC);
	ASSERT_GE(copy->fd, 0);
	ASSERT_EQ(ftruncate(copy->fd, SIZE), 0);
	file = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, copy->fd,
		    0);
	ASSERT_NE(file, MAP_FAILED);
	fill(file, SIZE, OF_FILE);
	munmap(file, SIZE);
	copy->mem = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE,
			 copy->fd, 0);
	ASSERT_NE(copy->mem, MAP_FAILED);
	ASSERT_EQ(victim_start(&self->victim, &ops), GOOD);
	ASSERT_TRUE(victim_park(&self->victim));
}

FIXTURE_TEARDOWN(fault)
{
	victim_end(&self->victim);
	munmap(self->copy.mem, SIZE);
	close(self->copy.fd);
}

/* Reads the victim's memory, as its own threads and those of KVM may still do. */
static bool read_victim(const struct victim *v, const char *mem, void *data,
			size_t size)
{
	char path[32];
	ssize_t nr;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/mem", v->pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	nr = pread(fd, data, size, (off_t)mem);
	close(fd);

	return nr == (ssize_t)size;
}

TEST_F_TIMEOUT(fault, file_does_not_come_back, LIMIT)
{
	const struct copy *copy = &self->copy;
	unsigned int read = 0;
	unsigned long first;

	for (size_t at = 0; at < SIZE; at += 2 * PAGE) {
		ASSERT_TRUE(read_victim(&self->victim, copy->mem + at, &first,
					sizeof(first)));
		ASSERT_EQ(first, OF_VICTIM);
	}
	ASSERT_EQ(mrelease(self->victim.pidfd), 0);

	/* A fault in a page that was never modified maps those around it. */
	for (size_t at = PAGE; at < SIZE; at += 2 * PAGE)
		read_victim(&self->victim, copy->mem + at, &first,
			    sizeof(first));
	EXPECT_EQ(rss_at(self->victim.pid, copy->mem), 0);
	for (size_t at = 0; at < SIZE; at += 2 * PAGE)
		read += read_victim(&self->victim, copy->mem + at, &first,
				    sizeof(first));
	EXPECT_EQ(read, 0);
}

/* Maps a file at an address at which a huge page can be mapped. */
static char *map_aligned(char *area, int flags, int fd)
{
	char *at = (char *)(((unsigned long)area + HUGE - 1) & -HUGE);

	return mmap(at, HUGE, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
}

/* Nor as part of a huge page, for which an emptied page table makes room. */
TEST_F_TIMEOUT(fault, huge_page_of_the_file, LIMIT)
{
	struct copy copy = {};
	struct victim_ops ops = { &copy, modify };
	struct iovec range = { .iov_len = HUGE };
	unsigned int read = 0;
	unsigned long first;
	struct victim victim;
	char *area;

	area = mmap(NULL, 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		    0);
	ASSERT_NE(area, MAP_FAILED);
	copy.fd = memfd_create("memreap", MFD_CLOEXEC);
	ASSERT_EQ(ftruncate(copy.fd, HUGE), 0);
	copy.mem = map_aligned(area, MAP_SHARED, copy.fd);
	ASSERT_NE(copy.mem, MAP_FAILED);
	fill(copy.mem, HUGE, OF_FILE);
	if (madvise(copy.mem, HUGE, MADV_COLLAPSE) && errno == EINVAL)
		SKIP(return, "no huge pages of a file");
	ASSERT_TRUE(within(PATIENCE,
			   !madvise(copy.mem, HUGE, MADV_COLLAPSE)));
	ASSERT_EQ(map_aligned(area, MAP_PRIVATE, copy.fd), copy.mem);
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_TRUE(victim_park(&victim));
	EXPECT_TRUE(read_victim(&victim, copy.mem, &first, sizeof(first)));
	EXPECT_EQ(first, OF_VICTIM);
	EXPECT_EQ(mrelease(victim.pidfd), 0);
	range.iov_base = copy.mem;
	/* Fails where the page must not be mapped. */
	syscall(__NR_process_madvise, victim.pidfd, &range, 1, MADV_COLLAPSE, 0);
	for (size_t at = 0; at < HUGE; at += PAGE)
		read += read_victim(&victim, copy.mem + at, &first,
				    sizeof(first));
	victim_end(&victim);
	munmap(area, 2 * HUGE);
	close(copy.fd);
	EXPECT_EQ(read, 0);
}

/* What is shared was not reaped, and can still be read. */
TEST_F_TIMEOUT(fault, shared_mapping_is_read, LIMIT)
{
	const struct copy *copy = &self->copy;
	struct victim_ops ops = {};
	unsigned long first = 0;
	struct victim victim;
	char path[32], *shared;
	bool was_read;
	int fd;

	/* Such a mapping of a file that cannot be written has no VM_SHARED. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", copy->fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	shared = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
	ASSERT_NE(shared, MAP_FAILED);
	close(fd);
	ASSERT_EQ(victim_start(&victim, &ops), GOOD);
	ASSERT_TRUE(victim_park(&victim));
	EXPECT_EQ(mrelease(victim.pidfd), 0);
	was_read = read_victim(&victim, shared, &first, sizeof(first));
	victim_end(&victim);
	munmap(shared, SIZE);
	EXPECT_TRUE(was_read);
	EXPECT_EQ(first, OF_FILE);
}

TEST_HARNESS_MAIN
