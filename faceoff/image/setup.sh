#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Runs inside the new root folder, as root, after the packages are there and image/files were
# copied over them: makes the guest quick to boot and quiet afterwards. The arguments are the
# contestants' packages.
set -eu

# No contestant runs unless it is its turn.
for package in "$@"; do
    dpkg -L "$package" | sed -n 's,.*/systemd/system/\([^/]*\.\(service\|socket\)\)$,\1,p' |
        xargs -r systemctl disable --quiet
    # A unit that systemd-oomd is to watch over pulls it in, so such settings wait as well.
    dpkg -L "$package" | sed -n 's,.*/lib/systemd/system/\(.*\.d/.*\.conf\)$,\1,p' |
        while read -r setting; do
            mkdir -p "/etc/systemd/system/${setting%/*}"
            ln -s /dev/null "/etc/systemd/system/$setting"
        done
done

# What would start by itself in the middle of a run, or wait for hardware that is not there.
systemctl mask --quiet \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    fstrim.timer systemd-tmpfiles-clean.timer e2scrub_reap.service \
    systemd-random-seed.service systemd-pstore.service systemd-timesyncd.service \
    systemd-networkd.service systemd-networkd.socket systemd-networkd-wait-online.service \
    systemd-update-utmp.service systemd-update-utmp-runlevel.service \
    systemd-journal-flush.service systemd-journal-catalog-update.service \
    systemd-hwdb-update.service systemd-udev-settle.service systemd-fsck-root.service \
    systemd-binfmt.service systemd-boot-system-token.service systemd-machine-id-commit.service \
    systemd-firstboot.service ldconfig.service \
    modprobe@.service systemd-modules-load.service kmod-static-nodes.service \
    systemd-remount-fs.service dev-hugepages.mount \
    getty@tty1.service serial-getty@ttyS0.service systemd-rfkill.socket
systemctl enable --quiet faceoff.service

useradd --create-home --uid 1000 --shell /bin/sh user
passwd --quiet --delete root

# The same in every guest: not a first boot, and nothing to be made up at boot.
echo faceoff >/etc/hostname
echo 0123456789abcdef0123456789abcdef >/etc/machine-id
: >/etc/fstab
touch /etc/.updated /var/.updated
rm -rf /var/cache/apt/* /var/lib/apt/lists/* /usr/share/doc/* /usr/share/man/* /usr/share/locale/*
