#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Makes the kernel's packages, installs them beside Debian's kernel in a Debian 12, boots the kernel there in QEMU with
# its own initramfs, and removes it: packaging/kernel-deb-test.sh [OPTIONS OF lab kernel-deb]. Without options it is
# Debian's configuration for clouds with the few modules that this guest needs. Needs root, debootstrap and QEMU.
set -eu
here=$(dirname "$(realpath "$0")")
cd "$here/.."
if [ "$(id -u)" -ne 0 ]; then
    echo "$0: making a Debian needs root" >&2
    exit 1
fi
work=$(mktemp -d)
root=$work/root
trap 'umount -q "$root/proc" || true; rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM
say() { echo "kernel-deb-test: $*"; }
fail() {
    echo "kernel-deb-test: $*" >&2
    exit 1
}
inside() { chroot "$root" env LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"; }

if [ $# -eq 0 ]; then
    printf '%s\n' autofs4 virtio_blk virtio_net zram >"$work/lsmod"
    set -- --config cloud "--localmod=$work/lsmod"
fi
cargo build --quiet --release -p lab -p memreap
bin=$(realpath "${CARGO_TARGET_DIR:-target}/release")
image=$("$bin/lab" kernel-deb "$@" | grep /linux-image-.*-memreap[0-9]*_)
release=$(dpkg-deb --field "$image" Version)

say "making a Debian with its own kernel"
# Of GRUB what has no questions about disks.
debootstrap --variant=minbase --include=systemd-sysv,initramfs-tools,linux-image-cloud-amd64,grub2-common,grub-pc-bin \
    bookworm "$root" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; fail "debootstrap failed"; }
stock=$(ls "$root/lib/modules")
mount -t proc proc "$root/proc"
say "installing $release beside $stock"
mkdir "$root/packages" "$root/boot/grub"
cp "$image" "$(packaging/deb.sh "$bin/memreap" "$work")" "$root/packages"
inside sh -c 'apt-get install -qy /packages/*.deb' >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "apt failed"; }
rm -r "$root/packages"
umount "$root/proc"
cp "$root/boot/vmlinuz-$release" "$work/vmlinuz"
cp "$root/boot/initrd.img-$release" "$work/initrd" || fail "the package made no initramfs"

cat >"$root/etc/default/grub" <<'EOF'
GRUB_DISTRIBUTOR=Debian
GRUB_DEFAULT=saved
GRUB_TIMEOUT=0
GRUB_TERMINAL=console
GRUB_CMDLINE_LINUX="rw console=ttyS0"
EOF
# What each boot does, on the console: the first is of QEMU, the others are GRUB's.
cat >"$root/test.sh" <<EOF
boot=\$((\$(cat /boots 2>/dev/null || echo 0) + 1))
echo \$boot >/boots
menu='Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux'
echo "boot \$boot: \$(uname -rv)"
trap 'systemctl --no-block poweroff' EXIT
set -ex
case \$boot in
1)
    lsmod
    memreap doctor || true
    grep . /sys/module/memreap/parameters/*
    systemctl start memreap
    systemctl is-active memreap
    grub-install --force /dev/vda
    update-grub
    grub-set-default "\$menu $stock"
    grub-reboot "\$menu $release"
    ;;
2)
    trap - EXIT
    systemctl --no-block reboot
    ;;
3)
    apt-get purge -qy linux-image-$release
    ls /boot /lib/modules
    [ ! -e /lib/modules/$release ]
    echo "all is done"
    ;;
esac
EOF
cat >"$root/etc/systemd/system/test.service" <<'EOF'
[Service]
Type=oneshot
ExecStart=/bin/sh /test.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
[Install]
WantedBy=multi-user.target
EOF
# A login there would hang up on it.
inside systemctl mask serial-getty@ttyS0.service 2>/dev/null
inside systemctl enable test.service 2>/dev/null
mke2fs -q -F -t ext4 -d "$root" "$work/disk" 3G >/dev/null
guest() {
    timeout 3600 qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -smp 2 -m 1024 -nodefaults -vga std \
        -display none -drive file="$work/disk",if=virtio,format=raw -serial file:"$work/serial" "$@" || true
    # Without what it has for a terminal.
    sed 's/\r//g; s/\x1b\[[0-9;?]*[a-zA-Z]//g' "$work/serial" >>"$work/console"
}
say "booting it with its initramfs"
guest -no-reboot -kernel "$work/vmlinuz" -initrd "$work/initrd" -append "root=/dev/vda rw console=ttyS0"
say "booting it once by GRUB, and then Debian's"
guest
for line in "boot 1: $release " "ok .*topic reap" "ok .*topic expedite" "^active" \
    "boot 2: $release " "boot 3: $stock " "all is done"; do
    grep -q "$line" "$work/console" || { tail -n 60 "$work/console" >&2; fail "the console has no \"$line\""; }
done
sed -n '/^boot /,/System Power Off/p' "$work/console" | grep -v '^ *\[\|^  *[A-Z]'
say "installed by apt, booted, chosen by GRUB once, and removed"
