/* SPDX-License-Identifier: GPL-2.0-only */
/* The fuzzers' input, byte by byte with zeros after its end; and failures. */
#ifndef _HOSTED_FUZZ_H
#define _HOSTED_FUZZ_H

#include <stdbool.h>
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

/* Lets failed checks and sanitizers call @print, once, before the run ends. */
#define ON_FAILURE(print)						\
static void print_once(void)						\
{									\
	static bool printed;						\
									\
	if (!printed) {							\
		printed = true;						\
		print();						\
	}								\
}									\
									\
void check_failed(void)							\
{									\
	print_once();							\
}									\
									\
void __asan_on_error(void)						\
{									\
	print_once();							\
}									\
									\
void __ubsan_on_report(void)						\
{									\
	print_once();							\
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif /* _HOSTED_FUZZ_H */
