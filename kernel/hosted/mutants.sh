#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Usage: mutants.sh CODE SOURCE [HEADER]...   (called by the Makefile, which sets MAKE, CC and O, and
# PROGRAMS, if there are not all three)
#
# Introduces one bug at a time into a copy of SOURCE, the file of CODE, from CODE.mutants. Each time
# one of the tests has to fail; a mutant that survives shows what they do not check.
#
# CODE.mutants has a line per mutant: name | function | a string in it | its first replacement
# A function that is not in SOURCE is in a HEADER, included as <linux/HEADER> or "HEADER".
set -euo pipefail

code=$1
source=$2
shift 2
headers=("$@")
file=${source##*/}
here=$(cd "$(dirname "$0")" && pwd)

work=$O/mutants/$code
rm -rf "$work"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT

# A test that found something. One that hangs may, or the machine is too busy for it.
found_by() {
    if [ "$2" -eq 124 ]; then echo "$1, at its time limit"; else echo "$1"; fi
}

# Runs the tests one after the other and says which one failed first; nothing if none did.
killed_by() {
    local dir=$1
    local build=("$MAKE" -s --no-print-directory -C "$here" CODES="$code" CC="$CC" O="$dir")

    # The tests themselves do not change, but for what they include.
    if [ -e "$dir/$file" ]; then
        build+=(OBJECTS="$O" MUTANT="$dir/$file")
    else
        build+=(MUTANT_INCLUDE="$dir")
    fi

    # The compiler may notice what no longer makes sense.
    "${build[@]}" "$dir/$code-asan" >"$dir/log" 2>&1 || { echo compiler; return; }
    timeout 20 "$dir/$code-asan" >"$dir/log" 2>&1 || { found_by asan $?; return; }
    if [ "${PROGRAMS-}" = asan ]; then return; fi
    "${build[@]}" "$dir/$code-fuzz" >"$dir/log" 2>&1 || { echo "no fuzzer" >&2; exit 1; }
    # It ends by itself: a busy machine must not pass for a failed test.
    timeout 60 "$dir/$code-fuzz" -seed=1 -runs=20000 -max_total_time=20 -max_len=512 -len_control=0 \
        -timeout=5 -artifact_prefix="$dir/" >"$dir/log" 2>&1 || { found_by fuzz $?; return; }
    "${build[@]}" "$dir/$code-tsan" >"$dir/log" 2>&1 || { echo "no tsan test" >&2; exit 1; }
    # A race shows when threads meet; on a busy machine that may take more than one go.
    for _ in {1..20}; do
        timeout 60 "$dir/$code-tsan" >"$dir/log" 2>&1 || { found_by tsan $?; return; }
    done
}

# Prints a file with OLD replaced by NEW, at the first place in FUNCTION.
mutate() {
    FUNCTION=$2 OLD=$3 NEW=$4 awk '
        BEGIN { name = ENVIRON["FUNCTION"]; old = ENVIRON["OLD"]; new = ENVIRON["NEW"] }
        /^[a-z].*\(/ { within = index(" " $0, " " name "(") || index($0, "*" name "(") }
        within && !done && (at = index($0, old)) {
            $0 = substr($0, 1, at - 1) new substr($0, at + length(old)); done = 1
        }
        { print }
        END { exit !done }
    ' "$1"
}

# Puts a broken copy of the file that has FUNCTION into a directory: make_mutant DIR FUNCTION OLD NEW
make_mutant() {
    local dir=$1 header mutant
    shift
    if mutate "$source" "$@" >"$dir/$file"; then return; fi
    rm "$dir/$file"
    for header in "${headers[@]}"; do
        mutant=$dir/linux/${header##*/}
        if mutate "$header" "$@" >"$mutant"; then
            cp "$mutant" "$dir"
            return
        fi
        rm "$mutant"
    done

    return 1
}

# Tests the mutant of a line; fails if it survives.
try_mutant() {
    # A mutant that only takes something away has nothing behind the last bar.
    local line="$1 " name function old new dir killer
    name=${line%% | *} line=${line#* | }
    function=${line%% | *} line=${line#* | }
    old=${line%% | *} new=${line#* | }
    dir=$work/$name
    mkdir -p "$dir/linux"
    make_mutant "$dir" "$function" "$old" "${new% }" || {
        echo "mutants.sh: $name: \"$old\" is not in $function() of $source; bring $code.mutants up to date" >&2
        exit 1
    }
    killer=$(killed_by "$dir")
    if [ -z "$killer" ]; then
        echo "not ok mutant: $code: $name: survived"
        exit 1
    fi
    echo "ok mutant: $code: $name: found by $killer"
}

# Tests with threads have all CPUs for themselves.
at_a_time=1
if [ "${PROGRAMS-}" = asan ]; then at_a_time=$(nproc); fi
running=0
failed=0
while IFS= read -r line; do
    if [ "$running" -eq "$at_a_time" ]; then
        wait -n || failed=1
    else
        running=$((running + 1))
    fi
    try_mutant "$line" &
done <"$here/$code.mutants"
while [ "$running" -gt 0 ]; do
    wait -n || failed=1
    running=$((running - 1))
done

exit "$failed"
