#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Makes all packages: packaging/dist.sh [FOLDER]. A .deb for this machine's architecture, and for x86-64 and aarch64 a
# tarball with a static program, which needs nothing of the system but a kernel. Needs rustup and dpkg-dev.
set -eu
here=$(dirname "$(realpath "$0")")
cd "$here/.."
out=${1:-target/dist-packages}
mkdir -p "$out"

cargo build --locked --profile dist --package memreap
package=$(packaging/deb.sh target/dist/memreap "$out")
echo "$package"
if [ "$(id -u)" -eq 0 ] && command -v debootstrap >/dev/null; then
    packaging/deb-test.sh "$package"
else
    echo "$package was not installed in a clean Debian: packaging/deb-test.sh needs root and debootstrap" >&2
fi
if [ "$(id -u)" -eq 0 ] && command -v prometheus >/dev/null && command -v jq >/dev/null; then
    packaging/prometheus-test.sh target/dist/memreap
else
    echo "the metrics were not scraped: packaging/prometheus-test.sh needs root, prometheus and jq" >&2
fi

# Runs here, and so makes the man pages and completions for all of them.
generate=target/dist/memreap
for target in x86_64-unknown-linux-musl aarch64-unknown-linux-musl; do
    rustup --quiet target add "$target"
    # Rust's own linker and C library: no compiler for the other architecture is needed.
    linker=CARGO_TARGET_$(echo "$target" | tr 'a-z-' 'A-Z_')_LINKER
    env "$linker=rust-lld" cargo build --locked --profile dist --package memreap --target "$target"
    name=memreap-$("$generate" --version | cut -d ' ' -f 2)-${target%%-*}
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
    mkdir -p "$tree/$name/man" "$tree/$name/completions" "$tree/$name/examples"
    cp packaging/examples/* "$tree/$name/examples/"
    cp "target/$target/dist/memreap" packaging/install.sh packaging/etc/memreap.toml packaging/memreap-sysctl.conf LICENSE \
        docs/memreap.md docs/daemon.md "$tree/$name/"
    sed 's,/usr/bin/memreap,/usr/local/bin/memreap,' packaging/memreap.service >"$tree/$name/memreap.service"
    "$generate" generate man "$tree/$name/man"
    "$generate" generate completions bash >"$tree/$name/completions/memreap.bash"
    "$generate" generate completions zsh >"$tree/$name/completions/_memreap"
    "$generate" generate completions fish >"$tree/$name/completions/memreap.fish"
    tar --create --gzip --owner 0 --group 0 --sort name --directory "$tree" --file "$out/$name.tar.gz" "$name"
    rm -rf "$tree"
    echo "$out/$name.tar.gz"
done
