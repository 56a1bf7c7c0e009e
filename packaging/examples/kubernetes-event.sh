#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Makes an Event of a kill, so that `kubectl describe pod` shows it. For memreap as a service of the node, which has
# kubectl and the kubelet's credentials:
#
#     [warn]
#     command = ["/usr/local/lib/memreap/kubernetes-event.sh"]
#     time_limit = "10s"
#
# with a drop-in as for metrics, and IPAddressAllow= the API server. KUBECONFIG and NODE can be set for a try.
set -eu
[ "${MEMREAP_EVENT:-}" = killed ] && [ -n "${MEMREAP_POD:-}" ] || exit 0
# Not where nothing died: a dry run, a process that was gone or that the kernel refused to kill.
case ${MEMREAP_ENDING:-} in back | late | exited) ;; *) exit 0 ;; esac
export KUBECONFIG="${KUBECONFIG:-/etc/kubernetes/kubelet.conf}"
node=${NODE:-$(hostname)}

# The kill knows only what is in the cgroup's path: the pod's UID, or of a static pod its manifest's hash.
pod=$(kubectl get pods --all-namespaces --field-selector "spec.nodeName=$node" \
    --output 'jsonpath={range .items[*]}{.metadata.uid} {.metadata.namespace} {.metadata.name} {.metadata.annotations.kubernetes\.io/config\.hash}{"\n"}{end}' |
    awk -v id="$MEMREAP_POD" '$1 == id || $4 == id { print $1, $2, $3; exit }')
[ -n "$pod" ] || exit 0
read -r uid namespace name <<EOF
$pod
EOF
now=$(date -u +%Y-%m-%dT%H:%M:%SZ)
# A JSON string: what could end it is left out.
message=$(printf %s "$MEMREAP_MESSAGE" | tr -d '"\\\000-\037' | cut -c 1-1000)

kubectl create --filename - <<EOF
{
  "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": "MemoryReaped",
  "metadata": {"generateName": "memreap-", "namespace": "$namespace"},
  "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "$namespace", "name": "$name", "uid": "$uid"},
  "message": "$message", "count": 1, "firstTimestamp": "$now", "lastTimestamp": "$now",
  "source": {"component": "memreap", "host": "$node"}
}
EOF
