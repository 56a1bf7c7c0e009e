#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Installs or removes what is in this folder, the release's tarball. Says each thing that it does; with --dry-run it
# only says so. The daemon is not started: whom it may kill should be looked at before.
set -eu

usage() {
    cat <<EOF
usage: $0 [--dry-run] [--destdir FOLDER] [install | remove]

    --dry-run         say what would be done, and do nothing
    --destdir FOLDER  install below this folder, for a package [default: the system, which needs root]
EOF
}

dry_run=
destdir=
action=install
while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) dry_run=yes ;;
    --destdir)
        [ $# -ge 2 ] || { usage >&2; exit 2; }
        destdir=$2
        shift
        ;;
    install | remove) action=$1 ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        echo "$0: what is '$1'?" >&2
        usage >&2
        exit 2
        ;;
    esac
    shift
done
cd "$(dirname "$0")"

run() {
    echo "$*"
    [ -n "$dry_run" ] || "$@"
}

# Mode, file in this folder, place in the system.
files() {
    cat <<EOF
755 memreap /usr/local/bin/memreap
644 memreap.service /etc/systemd/system/memreap.service
644 memreap-sysctl.conf /usr/local/lib/sysctl.d/60-memreap.conf
644 completions/memreap.bash /usr/local/share/bash-completion/completions/memreap
644 completions/_memreap /usr/local/share/zsh/site-functions/_memreap
644 completions/memreap.fish /usr/local/share/fish/vendor_completions.d/memreap.fish
EOF
    for example in examples/*; do
        mode=644
        [ ! -x "$example" ] || mode=755
        echo "$mode $example /usr/local/share/doc/memreap/$example"
    done
    for page in man/*; do
        echo "644 $page /usr/local/share/man/man1/$(basename "$page")"
    done
}

if [ -z "$destdir$dry_run" ] && [ "$(id -u)" -ne 0 ]; then
    echo "$0: needs root, or --destdir FOLDER; --dry-run says what it would do" >&2
    exit 1
fi
systemd=
[ -n "$destdir" ] || [ ! -d /run/systemd/system ] || systemd=yes

if [ "$action" = install ]; then
    files | while read -r mode from to; do
        run install -D -m "$mode" "$from" "$destdir$to"
    done
    # What an administrator has changed stays.
    if [ -e "$destdir/etc/memreap.toml" ]; then
        echo "keeping $destdir/etc/memreap.toml"
    else
        run install -D -m 644 memreap.toml "$destdir/etc/memreap.toml"
    fi
    if [ -n "$systemd" ]; then
        run systemctl daemon-reload
        echo "for memreap-sysctl.conf before the next boot: systemctl restart systemd-sysctl"
        if [ -z "$destdir" ] && systemctl --quiet is-active memreap.service; then
            echo "the version that runs is the one before: memreap daemon --check-config && systemctl restart memreap"
        else
            echo "to start it, now and at boot: systemctl enable --now memreap"
        fi
    fi
else
    if [ -n "$systemd" ]; then
        # It may be gone, or never have been there.
        run systemctl disable --now memreap.service || true
    fi
    files | while read -r _ _ to; do
        run rm -f "$destdir$to"
    done
    [ -z "$systemd" ] || run systemctl daemon-reload
    echo "kept: $destdir/etc/memreap.toml, $destdir/var/lib/memreap"
fi
