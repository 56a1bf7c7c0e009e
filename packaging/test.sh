#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Checks the files in this folder, as far as the tools for it are installed. Fails when one of them finds an error.
set -eu
cd "$(dirname "$0")"

if command -v systemd-analyze >/dev/null; then
    # The threshold is in tenths.
    if ! review=$(systemd-analyze security --offline=true --threshold=20 ./memreap.service 2>&1); then
        echo "$review" >&2
        exit 1
    fi
    echo "$review" | tail -n 1
    # A drop-in is valid only together with its unit; and the program need not be installed here.
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    sed 's,/usr/bin/memreap,/bin/true,; /^Documentation=/d' memreap.service >"$folder/memreap.service"
    mkdir "$folder/memreap.service.d"
    cp examples/desktop.conf examples/metrics.conf "$folder/memreap.service.d/"
    # As the unit of a database, which they are for.
    printf '[Service]\nExecStart=/bin/true\n' >"$folder/database.service"
    mkdir "$folder/database.service.d"
    cp examples/database.conf "$folder/database.service.d/"
    cp examples/builds.slice "$folder/"
    found=$(systemd-analyze verify "$folder"/*.service "$folder"/*.slice 2>&1 || echo "verify failed")
    if [ -n "$found" ]; then
        echo "$found" >&2
        exit 1
    fi
else
    echo "systemd-analyze is not installed: memreap.service was not checked"
fi

for script in chart-test.sh deb.sh deb-test.sh dist.sh install.sh kernel-deb-test.sh prometheus-test.sh render.sh stage.sh examples/kubernetes-event.sh; do sh -n "$script"; done
bash -n PKGBUILD
if command -v rpmlint >/dev/null; then
    rpmlint memreap.spec
else
    echo "rpmlint is not installed: memreap.spec was not checked"
fi
./chart-test.sh
if command -v promtool >/dev/null; then
    promtool check rules helm/memreap/files/alerts.yaml
else
    echo "promtool is not installed: the alerts were not checked"
fi
# The settings must exist in the running kernel.
sed -n 's/^\(vm\.[a-z_]*\) *=.*/\1/p' memreap-sysctl.conf | while read -r name; do
    if [ ! -e "/proc/sys/$(echo "$name" | tr . /)" ]; then
        echo "memreap-sysctl.conf: this kernel has no $name" >&2
        exit 1
    fi
done
echo "packaging is in order"
