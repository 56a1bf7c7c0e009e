// SPDX-License-Identifier: GPL-2.0-only
/*
 * A private mapping of a file that was reaped while its process still runs: what
 * the process had written to it is gone, and nobody must be shown the file's
 * content instead.
 */
#define _GNU_SOURCE
#include "../kselftest_harness.h"
#include "victim.h"

/* Seconds, on a busy host that emulates a kernel full of checks. */
#define LIMIT	300
#define SIZE	(64 * PAGE)
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

/* What is shared was not reaped, and can still be read. */
TEST_F_TIMEOUT(fault, shared_mapping_is_read, LIMIT)
{
	const struct copy *copy = &self->copy;
	struct victim_ops ops = {};
	unsigned long first = 0;
	struct victim victim;
	char *shared;
	bool was_read;

	shared = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, copy->fd, 0);
	ASSERT_NE(shared, MAP_FAILED);
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
