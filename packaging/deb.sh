#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Makes a Debian package of a memreap that has been built: packaging/deb.sh target/release/memreap [FOLDER].
# Needs dpkg-dev. Prints the package's path.
set -eu
umask 022
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
# Who builds it.
maintainer=${DEB_MAINTAINER:-memreap developers <root@localhost>}

UNIT_DIR=/lib/systemd/system ZSH_DIR=/usr/share/zsh/vendor-completions "$here/stage.sh" "$binary" "$tree"
cat >"$tree/usr/share/doc/memreap/copyright" <<'EOF'
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: memreap

Files: *
Copyright: 2026 the memreap developers
License: GPL-2
 On Debian systems, the GNU General Public License, version 2, is in
 /usr/share/common-licenses/GPL-2.
EOF
# In Debian's form, with the date of the last change of ours.
released=$(git -C "$here" log -1 --format=%cD -- ../CHANGELOG.md 2>/dev/null || true)
gzip -9n >"$tree/usr/share/doc/memreap/changelog.gz" <<EOF
memreap ($version) unstable; urgency=medium

  * See CHANGELOG.md of the sources.

 -- $maintainer  ${released:-$(date -R)}
EOF
mkdir "$tree/DEBIAN"
echo /etc/memreap.toml >"$tree/DEBIAN/conffiles"

# dpkg-shlibdeps wants to run in a source tree.
mkdir -p "$work/debian"
printf 'Source: memreap\n\nPackage: memreap\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O "$tree/usr/bin/memreap" | sed -n 's/^shlibs:Depends=//p')
cat >"$tree/DEBIAN/control" <<EOF
Package: memreap
Version: $version
Architecture: $arch
Maintainer: $maintainer
Section: admin
Priority: optional
Installed-Size: $(du -ks "$tree" | cut -f 1)
${depends:+Depends: $depends
}Recommends: procps
Suggests: libnotify-bin
Description: kills processes and gets their memory back, fast and predictably
 The command memreap kills processes and waits for their memory. Its daemon
 watches over memory and kills before the machine freezes.
EOF

# The daemon is not started by the installation: whom it may kill should be looked at before.
cat >"$tree/DEBIAN/postinst" <<'EOF'
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload
    # By what the administrator says elsewhere, if he does. Not in a container, where the kernel is another's.
    if ! systemd-detect-virt --quiet --container; then
        /lib/systemd/systemd-sysctl --prefix=/vm/watermark_scale_factor || true
    fi
    # Only if it runs: deb-systemd-invoke would also start one that is enabled and was stopped. Where the configuration
    # does not suit the new version, the one that runs goes on; the package must not be left half installed.
    if systemctl --quiet is-active memreap.service; then
        refused=0
        /usr/bin/memreap pick >/dev/null || refused=$?
        # 2: the configuration is wrong. --check-config also refuses what the daemon starts with.
        if [ "$refused" -eq 2 ]; then
            echo "memreap: not restarted: mend /etc/memreap.toml, then: systemctl restart memreap" >&2
        else
            deb-systemd-invoke restart memreap.service || true
        fi
    fi
fi
if [ "$1" = configure ]; then
    # So that the links of `systemctl enable` are removed with the package.
    deb-systemd-helper update-state memreap.service
fi
EOF
cat >"$tree/DEBIAN/prerm" <<'EOF'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    deb-systemd-invoke stop memreap.service || true
fi
EOF
cat >"$tree/DEBIAN/postrm" <<'EOF'
#!/bin/sh
set -e
if [ "$1" = purge ]; then
    rm -rf /var/lib/memreap
    deb-systemd-helper purge memreap.service
fi
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload
fi
EOF
chmod 755 "$tree/DEBIAN/postinst" "$tree/DEBIAN/prerm" "$tree/DEBIAN/postrm"
package=$out/memreap_${version}_$arch.deb
dpkg-deb --root-owner-group --build "$tree" "$package" >/dev/null
echo "$package"
