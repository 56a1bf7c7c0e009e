#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Makes a Debian package of a memreap that has been built: packaging/deb.sh target/release/memreap [FOLDER].
# Needs dpkg-dev. Prints the package's path.
set -eu
if [ $# -lt 1 ]; then
    echo "usage: $0 MEMREAP [FOLDER]" >&2
    exit 2
fi
binary=$(realpath "$1")
out=$(realpath "${2:-.}")
here=$(dirname "$(realpath "$0")")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
version=$("$binary" --version | cut -d ' ' -f 2)
arch=$(dpkg --print-architecture)

install -D -m 755 "$binary" "$tree/usr/bin/memreap"
install -D -m 644 "$here/memreap.service" "$tree/lib/systemd/system/memreap.service"
install -D -m 644 "$here/memreap-sysctl.conf" "$tree/usr/lib/sysctl.d/60-memreap.conf"
install -D -m 644 "$here/memreap-desktop.conf" "$tree/usr/share/doc/memreap/examples/memreap-desktop.conf"
install -D -m 644 "$here/../LICENSE" "$tree/usr/share/doc/memreap/copyright"
install -D -m 644 "$here/../docs/memreap.md" "$tree/usr/share/doc/memreap/memreap.md"
mkdir -p "$tree/usr/share/man/man1" "$tree/usr/share/bash-completion/completions"
"$binary" generate man "$tree/usr/share/man/man1"
gzip -9n "$tree"/usr/share/man/man1/*
"$binary" generate completions bash >"$tree/usr/share/bash-completion/completions/memreap"

mkdir "$tree/DEBIAN"
if [ -e "$here/memreap.toml" ]; then
    install -D -m 644 "$here/memreap.toml" "$tree/etc/memreap.toml"
    echo /etc/memreap.toml >"$tree/DEBIAN/conffiles"
fi

# dpkg-shlibdeps wants to run in a source tree.
mkdir -p "$work/debian"
printf 'Source: memreap\n\nPackage: memreap\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O "$tree/usr/bin/memreap" | sed -n 's/^shlibs:Depends=//p')
cat >"$tree/DEBIAN/control" <<EOF
Package: memreap
Version: $version
Architecture: $arch
Maintainer: memreap maintainers
Section: admin
Priority: optional
Installed-Size: $(du -ks "$tree" | cut -f 1)
${depends:+Depends: $depends
}Suggests: libnotify-bin
Description: kills processes and gets their memory back, fast and predictably
 The command memreap kills processes and waits for their memory. Its daemon
 watches over memory and kills before the machine freezes.
EOF

# The daemon is not started by the installation: whom it may kill should be looked at before.
cat >"$tree/DEBIAN/postinst" <<'EOF'
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    # By what the administrator says elsewhere, if he does. Not in a container, where the kernel is another's.
    if ! systemd-detect-virt --quiet --container; then
        /lib/systemd/systemd-sysctl --prefix=/vm/watermark_scale_factor --prefix=/vm/expedite_cpu_percent || true
    fi
    systemctl try-restart memreap.service
fi
EOF
cat >"$tree/DEBIAN/prerm" <<'EOF'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now memreap.service
fi
EOF
cat >"$tree/DEBIAN/postrm" <<'EOF'
#!/bin/sh
set -e
if [ "$1" = purge ]; then
    rm -rf /var/lib/memreap
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
EOF
chmod 755 "$tree/DEBIAN/postinst" "$tree/DEBIAN/prerm" "$tree/DEBIAN/postrm"
package=$out/memreap_${version}_$arch.deb
dpkg-deb --root-owner-group --build "$tree" "$package" >/dev/null
echo "$package"
