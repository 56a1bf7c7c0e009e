#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Workload: random reads of a mapped file that does not fit into memory, so of page faults and reclaim, by Debian's fio.
#
#   lab ab --workload crates/lab/workloads/fio.sh --root debian:fio --mem 256
set -eu
fio --name=mapped --ioengine=mmap --rw=randread --bs=4k --size=384m --filename=/fio --runtime=10 --time_based \
    --output-format=terse --terse-version=3 |
    awk -F';' '{ print "read-rate", $8, "1/s", "higher" }'
