#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Installs, upgrades, removes and purges a package in a Debian that has nothing but what it needs to boot, and fails when
# something is left behind: packaging/deb-test.sh PACKAGE.deb [SUITE]. Needs root and debootstrap. No service manager
# runs in there; how the daemon is started is for the face-off.
set -eu
if [ $# -lt 1 ]; then
    echo "usage: $0 PACKAGE.deb [SUITE]" >&2
    exit 2
fi
package=$(realpath "$1")
suite=${2:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
if [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null; then
    echo "$0: needs root and debootstrap (apt-get install debootstrap)" >&2
    exit 1
fi

work=$(mktemp -d)
root=$work/root
enabled=$root/etc/systemd/system/multi-user.target.wants/memreap.service
trap 'umount -q "$root/proc" || true; rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM
say() { echo "deb-test: $*"; }
fail() {
    echo "deb-test: $*" >&2
    exit 1
}
inside() { chroot "$root" env LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"; }
# All but what dpkg and its helpers write about each package that ever was there.
files() {
    inside find / -xdev \( -path /proc -o -path /tmp -o -path /var/cache -o -path /var/log -o -path /var/lib/dpkg \) \
        -prune -o -printf '%p %y %l\n' | sort
}
installed() { inside dpkg-query --show --showformat '${Status} ${Version}' memreap 2>/dev/null; }

say "making a clean Debian ($suite), a minute"
debootstrap --variant=minbase --include=systemd,init-system-helpers "$suite" "$root" >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; fail "debootstrap failed"; }
mount -t proc proc "$root/proc"
# The next version, for the upgrade: the same, but for its number.
dpkg-deb --raw-extract "$package" "$work/next"
version=$(dpkg-deb --field "$package" Version)
sed -i "s/^Version: .*/Version: $version+next/" "$work/next/DEBIAN/control"
dpkg-deb --root-owner-group --build "$work/next" "$root/tmp/next.deb" >/dev/null
cp "$package" "$root/tmp/this.deb"

files >"$work/before"
say "installing $version"
inside dpkg --install /tmp/this.deb >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "it cannot be installed"; }
inside memreap --version >/dev/null || fail "memreap does not run"
inside memreap daemon --check-config >/dev/null || fail "the configuration that comes with it is wrong"
[ -L "$enabled" ] && fail "the daemon was enabled, unasked"
inside systemctl enable memreap.service 2>/dev/null
[ -L "$enabled" ] || fail "the daemon cannot be enabled"

echo '# the administrator was here' >>"$root/etc/memreap.toml"
mkdir -p "$root/var/lib/memreap"
echo '{}' >"$root/var/lib/memreap/history.jsonl"
say "upgrading to $version+next"
inside dpkg --install /tmp/next.deb >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "it cannot be upgraded"; }
[ "$(installed)" = "install ok installed $version+next" ] || fail "after the upgrade: $(installed)"
grep -q 'administrator was here' "$root/etc/memreap.toml" || fail "the upgrade has lost the configuration"
[ -L "$enabled" ] || fail "the upgrade has disabled the daemon"

say "removing"
inside dpkg --remove memreap >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "it cannot be removed"; }
[ ! -e "$root/usr/bin/memreap" ] || fail "memreap is still there"
for kept in etc/memreap.toml var/lib/memreap/history.jsonl; do
    [ -e "$root/$kept" ] || fail "only a purge may remove /$kept"
done
say "purging"
inside dpkg --purge memreap >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "it cannot be purged"; }
files >"$work/after"
if ! difference=$(diff "$work/before" "$work/after"); then
    echo "$difference" >&2
    fail "the purge has left something behind"
fi
say "installed, upgraded, removed and purged, and nothing was left behind"
