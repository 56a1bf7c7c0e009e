#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Usage: static.sh [--quick] TREE BUILD-DIR
#
# What a maintainer runs before reading a patch: checkpatch --strict on the topics' files and
# hooks, sparse and W=1 on the objects they change, and those objects in less common
# configurations. --quick skips the configurations.
#
# TREE       a kernel tree with all topics applied; it is only read
# BUILD-DIR  for scratch files, best on the file system of TREE; kept, which makes the next run
#            faster
#
# Stock is TREE with the topics reverted. Findings that stock has, too, are ignored; any other is
# listed, and the exit status is 1.
# CC= (default "gcc") and JOBS= (default: the number of CPUs) are respected.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
kernel=$here/..
quick=false
if [ "${1-}" = --quick ]; then
    quick=true
    shift
fi
if [ $# -ne 2 ] || [ ! -f "$1/mm/memreap/Kconfig" ]; then
    sed -n 's/^# \{0,1\}//; 4,18p' "$0" >&2
    [ $# -ne 2 ] || echo "static.sh: $1 is no kernel tree with the topics applied" >&2
    exit 2
fi
tree=$(cd "$1" && pwd)
mkdir -p "$2"
work=$(cd "$2" && pwd)
jobs=${JOBS:-$(nproc)}
cc=${CC:-gcc}

for tool in sparse perl patch make; do
    command -v "$tool" >/dev/null || {
        echo "static.sh: $tool is missing: apt-get install $tool" >&2
        exit 3
    }
done

mapfile -t topics < <(sed -n 's/^name = "\(.*\)"/\1/p' "$kernel/topics.toml")
# A file, because report() is at the end of pipes, in processes of its own.
: >"$work/findings"

report() { # TITLE, findings on stdin
    local text
    text=$(cat)
    if [ -z "$text" ]; then
        echo "ok $1"
    else
        echo "not ok $1"
        printf '%s\n' "$text" | sed 's/^/    /' | tee -a "$work/findings"
    fi
}

# --- checkpatch ---

checkpatch() {
    (cd "$tree" && perl scripts/checkpatch.pl --strict --terse --show-types "$@" || true) |
        grep -v '^total:' || true
}

# Lines of the form FILE:LINE: LEVEL:TYPE: text, without those of a type that a stock file has, too.
beyond() { # STOCK-FILE
    local known
    known=$(checkpatch -f "$1" | sed -n 's/^[^ ]* [A-Z]*:\([A-Z_]*\): .*/\1/p' | sort -u)
    while IFS= read -r line; do
        local type
        type=$(sed -n 's/^[^ ]* [A-Z]*:\([A-Z_]*\): .*/\1/p' <<<"$line")
        grep -qx "$type" <<<"$known" || printf '%s\n' "$line"
    done
}

# checkpatch takes Kconfig.TOPIC, sourced from Kconfig, for Kconfig's own name.
not_a_sourced_name() {
    local line number
    while IFS= read -r line; do
        number=${line#*:}
        number=${number%%:*}
        if [[ $line == *:EMBEDDED_FILENAME:* ]] &&
            sed -n "${number}p" "$work/hook.mail" | grep -q '^+source "'; then
            continue
        fi
        printf '%s\n' "$line"
    done
}

check_style() {
    local topic file
    for topic in "${topics[@]}"; do
        local dir=$kernel/$topic
        # As a mail, because checkpatch wants to see one.
        {
            printf 'From: Topic <topic@localhost>\nSubject: [PATCH] mm: the hook of %s\n\n' "$topic"
            printf 'The edits to existing files.\n\nSigned-off-by: Topic <topic@localhost>\n---\n'
            cat "$dir/hook.patch"
        } >"$work/hook.mail"
        checkpatch "$work/hook.mail" | not_a_sourced_name | report "checkpatch $topic/hook.patch"

        while IFS= read -r file; do
            case $file in
            include/trace/events/*)
                # checkpatch does not know the style of TRACE_EVENT().
                checkpatch -f "$dir/files/$file" | beyond include/trace/events/oom.h ;;
            tools/testing/selftests/*)
                # Nor that of user space.
                checkpatch -f "$dir/files/$file" | beyond tools/testing/selftests/mm/mrelease_test.c ;;
            *)
                checkpatch -f "$dir/files/$file" ;;
            esac | report "checkpatch $file"
        done < <(cd "$dir" && [ ! -d files ] || (cd files && find . -type f ! -name .gitignore | sed 's|^\./||' | sort))
    done
}

# --- sparse and warnings ---

# Make imports all variables of the environment. Settings for other kernels (LLVM, KCFLAGS, W,
# KBUILD_...) must not change the findings.
clean_make() {
    env -i PATH="$PATH" HOME="${HOME-}" TMPDIR="${TMPDIR:-/tmp}" LC_ALL=C make "$@"
}

# Stock, from hard links: patch and rm replace names and do not change the linked files.
make_stock() {
    rm -rf "$work/stock"
    cp -al "$tree" "$work/stock" 2>/dev/null || {
        rm -rf "$work/stock"
        cp -a --reflink=auto "$tree" "$work/stock"
    }
    local i topic
    for ((i = ${#topics[@]} - 1; i >= 0; i--)); do
        topic=${topics[i]}
        patch -s -R -p1 --no-backup-if-mismatch -d "$work/stock" <"$kernel/$topic/hook.patch" || {
            echo "static.sh: $topic/hook.patch is not what is applied in $tree" >&2
            exit 2
        }
        [ ! -d "$kernel/$topic/files" ] ||
            (cd "$kernel/$topic/files" && find . -type f) | (cd "$work/stock" && xargs -r rm -f)
    done
}

# What the topics change or add, as make targets: objects, and the one folder that is all theirs.
hooked=$(sed -n 's|^+++ b/\(.*\)\.c$|\1.o|p' "$kernel"/*/hook.patch | grep -v '^mm/memreap/' | sort -u)
added=$(cd "$kernel" && find . -path '*/files/*.c' | sed 's|^\./[^/]*/files/||' |
    grep -v '^tools/' | sed 's|^mm/memreap/.*|mm/memreap/|; s|\.c$|.o|' | sort -u)

configure() { # TREE O ARCH CROSS_COMPILE, overrides as arguments behind
    local src=$1 out=$2 arch=$3 cross=$4
    shift 4
    mkdir -p "$out"
    {
        [ "$arch" != x86 ] || cat "$kernel/configs/slim.config"
        echo CONFIG_MEMREAP=y
        sed -n 's/^kconfig = "\(.*\)"/CONFIG_\1=y/p' "$kernel/topics.toml"
        echo CONFIG_KUNIT=y
        sed -n 's/^kunit = "\(.*\)"/CONFIG_\1=y/p' "$kernel/topics.toml"
        printf 'CONFIG_%s\n' "$@"
    } >"$out/fragment"
    # The later of two lines counts, and kconfig would complain about each.
    tac "$out/fragment" | awk -F= '/^CONFIG_/ && !seen[$1]++' >"$out/all.config"
    clean_make -s -C "$src" O="$out" ARCH="$arch" CROSS_COMPILE="$cross" CC="$cross$cc" \
        KCONFIG_ALLCONFIG="$out/all.config" allnoconfig >/dev/null 2>&1
    local set
    for set in "$@"; do
        case $set in
        *=n) ! grep -q "^CONFIG_${set%=n}=" "$out/.config" ;;
        *) grep -q "^CONFIG_$set$" "$out/.config" ;;
        esac || { echo "$set did not take effect"; return 1; }
    done
}

compile() { # TREE O ARCH CROSS_COMPILE, targets and variables as arguments behind
    local src=$1 out=$2 arch=$3 cross=$4
    shift 4
    clean_make -s -C "$src" O="$out" ARCH="$arch" CROSS_COMPILE="$cross" CC="$cross$cc" -j"$jobs" "$@"
}

# Warnings without line numbers. How a header was included is no finding; a warning in it has a line
# of its own.
messages() {
    grep -E ': (warning|error|note): |^make.*\*\*\*' |
        grep -v ': note: in included file' |
        sed -E "s|$work/stock/||g; s|$tree/||g; s|^(\.\./)+||; s|:[0-9]+(:[0-9]+)?: |: |" | sort || true
}

# Objects may exist from the last run, and would then be compiled without warnings.
forget() { # O targets
    local out=$1 target
    shift
    for target in "$@"; do
        rm -rf "${out:?}/$target"
    done
}

analyse() { # TREE O targets
    local src=$1 out=$2
    shift 2
    # mm/memcontrol-v1.c does not compile without it.
    configure "$src" "$out" x86 "" MEMCG_V1=y || return 1
    forget "$out" "$@"
    # shellcheck disable=SC2086
    compile "$src" "$out" x86 "" -k W=1 C=1 "$@" 2>&1 >"$out/log"
}

# Sparse reports the conditional locking in release.c as it does in folios_put_refs() of mm/swap.c,
# that of clusters in swap_free_batch.c as in mm/swapfile.c, and any use of folio_walk_start() as in
# mm/ksm.c: the same message for another function is no addition. For dump_task() it reports the inline function that reads the counter, in mm.h or, with
# a topic, elsewhere.
beyond_counterpart() {
    local line
    while IFS= read -r line; do
        sed -E "s|^mm/memreap/release\.c:|mm/swap.c:|; s|^mm/memreap/expedite_futex\.c:|mm/ksm.c:|
            s|^include/linux/memreap_oom\.h:|include/linux/mm.h:|
            s|^mm/memreap/swap_free_batch\.c:|mm/swapfile.c:|
            s/'[^']*'/''/" <<<"$line" |
            grep -qxFf - <(sed "s/'[^']*'/''/" "$work/stock.txt") || printf '%s\n' "$line"
    done
}

check_warnings() {
    # shellcheck disable=SC2086
    analyse "$work/stock" "$work/b-stock" $hooked mm/swap.o | messages >"$work/stock.txt"
    # shellcheck disable=SC2086
    analyse "$tree" "$work/b-topics" $hooked $added | messages >"$work/topics.txt"
    comm -13 "$work/stock.txt" "$work/topics.txt" | beyond_counterpart | report "sparse and W=1, beyond $(wc -l <"$work/stock.txt") on stock"
    local target
    for target in $hooked $added; do
        [ -e "$work/b-topics/$target" ] || echo "$target was not built: see $work/b-topics/log"
    done | report "all objects built"
}

# --- configurations ---

# Prints those of the objects that the configuration builds: asked for by name, make compiles the others as
# well.
configured() { # TREE O, objects
    local src=$1 out=$2 object part
    shift 2
    for object in "$@"; do
        # The object in its folder's Makefile, that folder in the one above, and so on.
        part=${object%/}
        [ "$part" = "$object" ] || part+=/
        while [[ ${part%/} = */* ]] && in_makefile "$src" "$out/.config" "$part"; do
            part=${part%/}
            part=${part%/*}/
        done
        [[ ${part%/} = */* ]] || echo "$object"
    done
}

# Whether the symbols are on that the Makefile of a folder requires for an object or a folder in it: those of
# its line and of the conditionals around that. What no line names depends on none.
in_makefile() { # TREE CONFIG, path of the object or folder
    local path=${3%/} makefile
    makefile=$1/${path%/*}/Makefile
    [ -f "$makefile" ] || return 0
    awk -v name="${3##"${path%/*}/"}" '
        NR == FNR { if (/^CONFIG_.*=[ym]$/) { sub(/=.*/, ""); on[$0] = 1 }; next }
        { line = line $0 }
        /\\$/ { sub(/\\$/, " ", line); next }
        { $0 = line; line = "" }
        /^ifdef[ \t]+CONFIG_/ { around[++depth] = $2; next }
        /^if(def|ndef|eq|neq)/ { around[++depth] = ""; next }
        /^endif/ { delete around[depth--]; next }
        /^(obj|lib)-\$\(CONFIG_/ {
            for (i = 2; i <= NF && $i != name; i++)
                ;
            if (i > NF)
                next
            symbol = $1
            gsub(/.*\(|\).*/, "", symbol)
            off = !on[symbol]
            for (i = 1; i <= depth; i++)
                off = off || (around[i] != "" && !on[around[i]])
        }
        END { exit off }
    ' "$2" "$makefile"
}

build_config() { # TITLE ARCH CROSS_COMPILE O, overrides
    local title=$1 arch=$2 cross=$3 out=$4
    shift 4
    if configure "$tree" "$out" "$arch" "$cross" "$@" >"$out.txt"; then
        local targets
        # shellcheck disable=SC2086
        targets=$(configured "$tree" "$out" $hooked $added)
        # shellcheck disable=SC2086
        forget "$out" $targets
        # shellcheck disable=SC2086
        compile "$tree" "$out" "$arch" "$cross" -k $targets 2>&1 >"$out/log" |
            grep -E ': (warning|error): |\*\*\*' >"$out.txt" || true
    fi
    report "$title" <"$out.txt"
}

check_configs() {
    local off all=() symbol
    for off in SMP SWAP MEMCG LRU_GEN NUMA TRANSPARENT_HUGEPAGE KSM MEMORY_FAILURE; do
        build_config "x86, $off=n" x86 "" "$work/b-topics" "$off=n"
    done
    build_config "x86, 32 bit" x86 "" "$work/b-32" 64BIT=n
    build_config "x86, MEMREAP=n" x86 "" "$work/b-topics" MEMREAP=n
    while read -r symbol; do
        [ "$symbol" = MEMREAP ] || all+=("$symbol=n")
    done < <(sed -n 's/^kconfig = "\(.*\)"/\1/p' "$kernel/topics.toml")
    build_config "x86, every topic off" x86 "" "$work/b-topics" "${all[@]}"

    # Kconfig alone decides: without an MMU there is no menu.
    { configure "$tree" "$work/b-nommu" riscv "" NONPORTABLE=y MMU=n MEMREAP=n || true; } |
        report "riscv, MMU=n: the menu is gone"

    if command -v aarch64-linux-gnu-gcc >/dev/null; then
        build_config "arm64" arm64 aarch64-linux-gnu- "$work/b-arm64" \
            SMP=y SWAP=y MEMCG=y CGROUPS=y LRU_GEN=y TRANSPARENT_HUGEPAGE=y
    else
        echo "skipped arm64: apt-get install gcc-aarch64-linux-gnu"
    fi
}

check_style
make_stock
check_warnings
$quick || check_configs

if [ -s "$work/findings" ]; then
    echo "$(wc -l <"$work/findings") findings"
    exit 1
fi
echo "nothing added"
