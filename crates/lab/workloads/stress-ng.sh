#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Workload: operations per second of some of stress-ng's memory stressors.
#
#   lab ab --workload crates/lab/workloads/stress-ng.sh --root debian:stress-ng
#
# More stressors, or others: --arg mremap --arg brk
set -eu
[ $# -gt 0 ] || set -- brk fault fork
seconds=5
for stressor; do
    # "stress-ng: metrc: [1] brk 12345 5.00 ..."; the rate in real time is the fifth number.
    stress-ng --"$stressor" 2 --timeout "$seconds" --metrics-brief 2>&1 |
        awk -v name="$stressor" '{ for (i = 1; i <= NF; i++) if ($i == name && $(i + 1) ~ /^[0-9]+$/) {
            print name "-rate", $(i + 5), "1/s", "higher"; exit } }'
done
