// SPDX-License-Identifier: GPL-2.0-only
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memreap::fuzzing::pattern(bytes);
});
