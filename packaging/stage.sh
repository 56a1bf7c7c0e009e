#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Lays out what a package has below a folder: packaging/stage.sh MEMREAP FOLDER. Where distributions differ,
# UNIT_DIR and ZSH_DIR say where.
set -eu
umask 022
if [ $# -ne 2 ]; then
    echo "usage: $0 MEMREAP FOLDER" >&2
    exit 2
fi
binary=$1
tree=$2
here=$(dirname "$(realpath "$0")")
unit_dir=${UNIT_DIR:-/usr/lib/systemd/system}
zsh_dir=${ZSH_DIR:-/usr/share/zsh/site-functions}

install -D -m 755 "$binary" "$tree/usr/bin/memreap"
install -D -m 644 "$here/memreap.service" "$tree$unit_dir/memreap.service"
install -D -m 644 "$here/memreap-sysctl.conf" "$tree/usr/lib/sysctl.d/60-memreap.conf"
install -D -m 644 "$here/etc/memreap.toml" "$tree/etc/memreap.toml"
for example in desktop.conf metrics.conf database.conf builds.slice; do
    install -D -m 644 "$here/examples/$example" "$tree/usr/share/doc/memreap/examples/$example"
done
install -D -m 755 "$here/examples/kubernetes-event.sh" "$tree/usr/share/doc/memreap/examples/kubernetes-event.sh"
install -m 644 "$here/../docs/memreap.md" "$here/../docs/daemon.md" "$tree/usr/share/doc/memreap/"
mkdir -p "$tree/usr/share/man/man1" "$tree/usr/share/bash-completion/completions" "$tree$zsh_dir" \
    "$tree/usr/share/fish/vendor_completions.d"
"$binary" generate man "$tree/usr/share/man/man1"
gzip -9n "$tree"/usr/share/man/man1/*
"$binary" generate completions bash >"$tree/usr/share/bash-completion/completions/memreap"
"$binary" generate completions zsh >"$tree$zsh_dir/_memreap"
"$binary" generate completions fish >"$tree/usr/share/fish/vendor_completions.d/memreap.fish"
