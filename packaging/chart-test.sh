#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Checks the Helm chart with helm, and what it renders with kubeconform, as far as these are installed:
#     go install helm.sh/helm/v3/cmd/helm@v3.16.4
#     go install github.com/yannh/kubeconform/cmd/kubeconform@v0.6.7
# kubeconform fetches the schemas, or takes them from KUBERNETES_SCHEMAS: places separated by spaces, as for its option
# -schema-location. An object for which there is none is named.
set -eu
cd "$(dirname "$0")"
chart=helm/memreap

if ! command -v helm >/dev/null; then
    echo "helm is not installed: the chart was not checked"
    exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "chart-test: $*" >&2
    exit 1
}

# render NAME KUBE_VERSION [VALUES]
render() {
    helm lint --strict --quiet --kube-version "$2" ${3:+--values "$3"} "$chart"
    helm template memreap "$chart" --namespace kube-system --kube-version "$2" ${3:+--values "$3"} >"$work/$1.yaml"
}
# The last is older than the field for AppArmor's profile.
render default 1.30.0
render pod-monitor 1.31.0 "$chart/ci/pod-monitor-values.yaml"
render service-monitor 1.29.0 "$chart/ci/service-monitor-values.yaml"

# The plain manifest is the chart with its defaults.
if ! ./render.sh | diff -u kubernetes/memreap.yaml - >&2; then
    fail "kubernetes/memreap.yaml is not the chart rendered: packaging/render.sh >packaging/kubernetes/memreap.yaml"
fi
if helm template memreap "$chart" --set metrics.podMonitor.enabled=true --set metrics.serviceMonitor.enabled=true \
    >/dev/null 2>&1; then
    fail "a PodMonitor and a ServiceMonitor together scrape each pod twice"
fi

# A value that has no effect, as it is not called so, and a folder that must not be mounted.
for wrong in dryrun=true metrics.prt=1 history=/history.jsonl history=/etc/memreap/history.jsonl history=x; do
    if helm template memreap "$chart" --set "$wrong" >/dev/null 2>&1; then
        fail "--set $wrong is accepted"
    fi
done

# Without these the daemon can neither signal nor read the processes of other pods.
annotation='container.apparmor.security.beta.kubernetes.io/memreap: unconfined'
for name in default pod-monitor service-monitor; do
    count() { grep -cF -- "$1" "$work/$name.yaml" || true; }
    field=1 beta=0
    [ "$name" != service-monitor ] || field=0 beta=1
    [ "$(count 'seccompProfile: {type: Unconfined}')" -eq 1 ] || fail "$name: no seccompProfile"
    [ "$(count 'appArmorProfile: {type: Unconfined}')" -eq "$field" ] || fail "$name: appArmorProfile, from 1.30 on"
    [ "$(count "$annotation")" -eq "$beta" ] || fail "$name: AppArmor's annotation, before 1.30"
    [ "$(count 'hostPID: true')" -eq 1 ] || fail "$name: no hostPID"
done

for tool in kubeconform jq; do
    if ! command -v "$tool" >/dev/null; then
        echo "$tool is not installed: the chart's objects were not compared with their schemas"
        exit
    fi
done
catalog='https://raw.githubusercontent.com/datreeio/CRDs-catalog/main/{{.Group}}/{{.ResourceKind}}_{{.ResourceAPIVersion}}.json'
locations=
for place in ${KUBERNETES_SCHEMAS:-default "$catalog"}; do
    locations="$locations -schema-location $place"
done
# conform NAME KUBE_VERSION
conform() {
    # Places have no spaces. Its exit code does not tell a wrong object from a missing schema.
    # shellcheck disable=SC2086
    kubeconform -strict -verbose -output json -kubernetes-version "$2" $locations "$work/$1.yaml" >"$work/$1.json" || true
    jq --raw-output --arg of "$1" '.resources[] | "\(.kind) \(.name) of \($of): " as $what |
        if .status == "statusValid" then "fits \($what)"
        elif .status == "statusError" and (.msg | test("schema")) then "unknown \($what)\(.msg | split(": ") | last)"
        else "wrong \($what)\(.msg)" end' "$work/$1.json" >>"$work/found"
}
: >"$work/found"
conform default 1.30.0
conform pod-monitor 1.31.0
conform service-monitor 1.29.0
sed -n 's/^unknown \(.*\)/not checked, as there is no schema: \1/p' "$work/found"
if grep '^wrong ' "$work/found" >&2; then
    fail "what the chart renders does not fit its schemas"
fi
objects=$(grep -c '^kind: ' "$work"/*.yaml | awk -F: '{sum += $2} END {print sum}')
[ "$(wc -l <"$work/found")" -eq "$objects" ] || fail "kubeconform has not looked at all of the $objects objects"
echo "chart: $(grep -c '^fits ' "$work/found" || true) of $objects objects fit their schemas"
