#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Usage: mutants.sh REAP_SESSION.C   (called by the Makefile, which sets MAKE, CC and O)
#
# Breaks a copy of the code in one place at a time. Each time one of the tests has to fail;
# a mutant that survives shows what they do not look at.
set -euo pipefail

source=$1
here=$(cd "$(dirname "$0")" && pwd)

# name | the code as it is (a fixed string, once in the file) | what it becomes
mutants='
claim-not-atomic|if (atomic_long_try_cmpxchg(&session->next, &top, chunk->start))|atomic_long_set(\&session->next, chunk->start);
claim-off-by-one|ALIGN_DOWN(chunk->end - 1, REAP_CHUNK_SIZE)|ALIGN_DOWN(chunk->end, REAP_CHUNK_SIZE)
claim-rounds-up|ALIGN_DOWN(chunk->end - 1, REAP_CHUNK_SIZE) : 0|ALIGN_DOWN(chunk->start + REAP_CHUNK_SIZE - 1, REAP_CHUNK_SIZE) : 0
claim-ignores-chunk-size|ALIGN_DOWN(chunk->end - 1, REAP_CHUNK_SIZE) : 0|chunk->start : 0
claim-smaller-chunks|ALIGN_DOWN(chunk->end - 1, REAP_CHUNK_SIZE) : 0|ALIGN_DOWN(chunk->end - 1, PMD_SIZE) : 0
claim-never-ends|return found;|return true;
claim-bottom-left-out|while (top)|while (top > REAP_CHUNK_SIZE)
pass-not-restarted|atomic_long_set(&session->next, ULONG_MAX);|
failure-sticks|session->failed = false;|
failure-forgotten|complete = !READ_ONCE(session->failed);|complete = true;
join-ignores-mm|if (reap_sessions[i].mm == mm &&|if (reap_sessions[i].mm \&\&
join-always-new|if (reap_sessions[i].mm == mm &&|if (0 \&\&
join-failed-session|!READ_ONCE(reap_sessions[i].failed)|true
join-takes-used-slot|if (!session && !reap_sessions[i].mm)|if (!session)
join-no-own|session = own;|session = \&reap_sessions[0];
join-unlocked|spin_lock(&reap_sessions_lock);|if (0) spin_lock(\&reap_sessions_lock);
join-not-counted|session->users++;|session->users = 1;
leave-ends-session|if (!--session->users)|session->users--;
leave-keeps-session|if (!--session->users)|if (--session->users)
join-not-at-work|atomic_inc(&session->working);|
pause-all|return atomic_add_unless(&session->working, -1, 1);|return atomic_add_unless(\&session->working, -1, 0);
pause-none|return atomic_add_unless(&session->working, -1, 1);|return false;
finish-no-wake|wake_up_all(&session->idle);|(void)0;
finish-not-counted|if (atomic_dec_and_test(&session->working))|if (!atomic_read(\&session->working))
finished-not-ordered|atomic_read_acquire(&session->working)|atomic_read(\&session->working)
finished-always|return !atomic_read_acquire(&session->working);|return true;
'

work=$O/mutants
rm -rf "$work"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT

# Runs the tests one after the other and says which one failed first; nothing if none did.
killed_by() {
    local dir=$1
    local build=("$MAKE" -s --no-print-directory -C "$here" CC="$CC" O="$dir" SESSION="$dir/reap_session.c")

    # The compiler may notice what no longer makes sense.
    "${build[@]}" "$dir/test-asan" >"$dir/log" 2>&1 || { echo compiler; return; }
    timeout 20 "$dir/test-asan" >"$dir/log" 2>&1 || { echo asan; return; }
    "${build[@]}" "$dir/fuzz" >"$dir/log" 2>&1 || { echo "no fuzzer" >&2; exit 1; }
    timeout 20 "$dir/fuzz" -seed=1 -runs=20000 -max_len=512 -len_control=0 -timeout=5 \
        -artifact_prefix="$dir/" >"$dir/log" 2>&1 || { echo fuzz; return; }
    "${build[@]}" "$dir/test-tsan" >"$dir/log" 2>&1 || { echo "no tsan test" >&2; exit 1; }
    # A race shows when threads meet; on a busy machine that may take more than one go.
    for _ in 1 2 3 4 5; do
        timeout 60 "$dir/test-tsan" >"$dir/log" 2>&1 || { echo tsan; return; }
    done
}

survived=0
while IFS='|' read -r name old new; do
    [ -n "$name" ] || continue
    dir=$work/$name
    mkdir "$dir"
    # The first place only: join's lock and not leave's, for example.
    OLD=$old NEW=$new awk '
        BEGIN { old = ENVIRON["OLD"]; new = ENVIRON["NEW"]; gsub(/\\&/, "\\&", new) }
        !done && (at = index($0, old)) {
            $0 = substr($0, 1, at - 1) new substr($0, at + length(old)); done = 1
        }
        { print }
    ' "$source" >"$dir/reap_session.c"
    if cmp -s "$source" "$dir/reap_session.c"; then
        echo "mutants.sh: $name: \"$old\" is not in $source; bring the list up to date" >&2
        exit 1
    fi
    killer=$(killed_by "$dir")
    if [ -n "$killer" ]; then
        echo "ok mutant $name: found by $killer"
    else
        echo "not ok mutant $name: survived"
        survived=$((survived + 1))
    fi
done <<<"$mutants"

[ "$survived" -eq 0 ]
