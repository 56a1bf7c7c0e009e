// SPDX-License-Identifier: GPL-2.0-only
//! Which unit, pod and container a process belongs to, by the path of its cgroup: what systemd, the kubelet and
//! container runtimes call the cgroups that they make.

use arrayvec::ArrayString;

/// The length of a container's ID, in hexadecimal digits.
const CONTAINER_ID_BYTES: usize = 64;
/// The length of a pod's UID; with the hash of its manifest, a static pod's is shorter.
const POD_UID_BYTES: usize = 36;
const STATIC_POD_UID_BYTES: usize = 32;

/// The parts of a cgroup's path that people know; each is empty where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workload<'a> {
    /// The innermost systemd unit: "nginx.service".
    pub unit: &'a [u8],
    /// The pod's UID, with hyphens.
    pub pod: ArrayString<POD_UID_BYTES>,
    /// The container's ID.
    pub container: &'a [u8],
}

impl<'a> Workload<'a> {
    /// Takes the path of a cgroup apart.
    pub fn of(cgroup: &'a [u8]) -> Self {
        let mut found = Self::default();
        for name in cgroup.split(|b| *b == b'/') {
            if name.ends_with(b".service") || name.ends_with(b".scope") {
                found.unit = name;
            }
            found.container = container(name).unwrap_or(found.container);
            found.pod = pod(name).unwrap_or(found.pod);
        }
        found
    }
}

/// "<id>" (cgroupfs driver, LXC excepted), or "docker-<id>.scope" and the like (systemd driver).
fn container(name: &[u8]) -> Option<&[u8]> {
    let name = name.strip_suffix(b".scope").unwrap_or(name);
    let id = name.rsplit(|b| *b == b'-').next()?;
    (id.len() == CONTAINER_ID_BYTES && id.iter().all(u8::is_ascii_hexdigit)).then_some(id)
}

/// "pod<uid>", or "kubepods-burstable-pod<uid>.slice", where hyphens are underscores.
fn pod(name: &[u8]) -> Option<ArrayString<POD_UID_BYTES>> {
    let name = name.strip_suffix(b".slice").unwrap_or(name);
    let uid = [POD_UID_BYTES, STATIC_POD_UID_BYTES].into_iter().find_map(|len| {
        let (before, uid) = name.split_at_checked(name.len().checked_sub(len)?)?;
        (before == b"pod" || before.ends_with(b"-pod")).then_some(uid)
    })?;
    let mut text = ArrayString::new();
    for byte in uid {
        match byte {
            b'_' => text.push('-'),
            b'-' | b'0'..=b'9' | b'a'..=b'f' => text.push(char::from(*byte)),
            _ => return None,
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "1a2b3c4d-0001-4002-8003-0123456789ab";

    fn shown(cgroup: &str) -> [String; 3] {
        let Workload { unit, pod, container } = Workload::of(cgroup.as_bytes());
        [unit, pod.as_bytes(), container].map(|part| String::from_utf8(part.to_vec()).unwrap())
    }

    #[test]
    fn containers_and_pods_are_found_with_either_cgroup_driver() {
        let scope = format!("cri-containerd-{ID}.scope");
        let slice = format!("kubepods-burstable-pod{}.slice", UID.replace('-', "_"));
        let systemd = format!("/kubepods.slice/kubepods-burstable.slice/{slice}/{scope}");
        assert_eq!(shown(&systemd), [scope.as_str(), UID, ID]);
        assert_eq!(shown(&format!("/kubepods/besteffort/pod{UID}/{ID}")), ["", UID, ID]);
        assert_eq!(shown(&format!("/kubepods/pod{}/{ID}", &ID[..32])), ["", &ID[..32], ID]);
        let docker = format!("docker-{ID}.scope");
        assert_eq!(shown(&format!("/system.slice/{docker}/inner")), [docker.as_str(), "", ID]);
    }

    #[test]
    fn the_innermost_unit_counts() {
        let user = "/user.slice/user-1000.slice/user@1000.service";
        assert_eq!(shown(&format!("{user}/app.slice/app-editor.scope")), ["app-editor.scope", "", ""]);
        assert_eq!(shown("/system.slice/php-fpm.service/workers"), ["php-fpm.service", "", ""]);
        for nothing in ["", "/", "/a/b", "/kubepods/podcast", "/pod1234", &format!("/pod{}", "x".repeat(36))] {
            assert_eq!(shown(nothing), ["", "", ""], "{nothing}");
        }
    }
}
