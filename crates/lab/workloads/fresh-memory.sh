#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Workload: how long it takes to read 16 MiB into memory that was just mapped. Of 30 times, as the clock counts in 10 ms:
#
#   lab ab --workload crates/lab/workloads/fresh-memory.sh --mode icount --cpus 1 --mem 512
now() { read -r up _ </proc/uptime; echo "$up"; }
began=$(now)
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
    dd if=/dev/zero of=/dev/null bs=16M count=1 2>/dev/null
done
awk "BEGIN { print \"dd-16M\", ($(now) - $began) * 1000 / 30, \"ms\", \"lower\" }"
