/* SPDX-License-Identifier: GPL-2.0-only */
/* The fuzzers' input, byte by byte; past its end there are zeros. */
#ifndef _HOSTED_FUZZ_H
#define _HOSTED_FUZZ_H

#include <stddef.h>
#include <stdint.h>

struct input {
	const uint8_t *data;
	size_t left;
};

static struct input input;

static uint8_t next_byte(void)
{
	if (!input.left)
		return 0;
	input.left--;
	return *input.data++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif /* _HOSTED_FUZZ_H */
