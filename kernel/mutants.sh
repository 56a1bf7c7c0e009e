#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Usage: kernel/mutants.sh [NAME]...
#
# Introduces one bug at a time, of those in kernel/mutants or of those that are named, into the hook of a topic for
# Linux 6.12, and runs the selftest that has to find it, in the slim kernel. Some three minutes each. Code that can be
# compiled in user space has its mutants in kernel/hosted, where they take seconds.
#
# kernel/mutants has a line per mutant:
#     name | topic | a string in a line that its hook adds | what the first such string becomes | selftest
set -euo pipefail
cd "$(dirname "$0")/.."

# The hooks are those for 6.12.
unset MEMREAP_KERNEL
cargo build --quiet --release -p lab
lab=$(realpath "${CARGO_TARGET_DIR:-target}/release/lab")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
# What is not committed, too.
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --no-dereference -t "$work"

# Runs the lab in the copy.
lab() {
    (cd "$work" && "$lab" "$@") >"$work/log" 2>&1 </dev/null
}

mutate() {
    OLD=$2 NEW=$3 awk '
        BEGIN { old = ENVIRON["OLD"]; new = ENVIRON["NEW"] }
        /^\+/ && !done && (at = index($0, old)) {
            $0 = substr($0, 1, at - 1) new substr($0, at + length(old)); done = 1
        }
        { print }
        END { exit !done }
    ' "$1"
}

failed=0
tried=0
while IFS= read -r line; do
    name=${line%% | *} line=${line#* | }
    if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
    tried=$((tried + 1))
    topic=${line%% | *} line=${line#* | }
    old=${line%% | *} line=${line#* | }
    test=${line##* | } new=${line%"$test"} new=${new% | }
    hook=kernel/$topic/6.12/hook.patch
    mutate "$hook" "$old" "$new" >"$work/$hook" || {
        echo "mutants.sh: $name: \"$old\" is not added by $hook; bring kernel/mutants up to date" >&2
        exit 1
    }
    if ! lab build --arm memreap; then
        cat "$work/log" >&2
        echo "mutants.sh: $name does not compile" >&2
        exit 1
    fi
    # 1 is a finding, 4 a guest that did not get to its end; others are of the host.
    status=0
    lab selftests "memreap/$test" || status=$?
    case $status in
    0)
        echo "not ok mutant: $name: survived $test"
        failed=1
        ;;
    1 | 4)
        echo "ok mutant: $name: found by $test: $(grep -m 1 -o 'not ok [0-9]* .*' "$work/log" || tail -n 1 "$work/log")"
        ;;
    *)
        cat "$work/log" >&2
        exit 1
        ;;
    esac
    cp "$hook" "$work/$hook"
done <kernel/mutants
if [ $# -gt "$tried" ]; then
    echo "mutants.sh: kernel/mutants does not have all of: $*" >&2
    exit 2
fi

exit "$failed"
