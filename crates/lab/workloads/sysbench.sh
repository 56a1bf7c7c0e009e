#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Workload: threads that contend for a mutex, and for memory, by Debian's sysbench.
#
#   lab ab --workload crates/lab/workloads/sysbench.sh --root debian:sysbench
set -eu
sysbench threads --threads=8 --time=5 run | awk '/total number of events:/ { print "thread-events", $NF, "1", "higher" }'
sysbench memory --threads=2 --time=5 --memory-block-size=4M --memory-total-size=1T run |
    awk '/MiB transferred/ { gsub(/[(]/, ""); print "memory-rate", $(NF - 1), "MiB/s", "higher" }'
