#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Has a real Prometheus scrape a daemon that kills a process, and asks it what the dashboard and the alerts ask:
# packaging/prometheus-test.sh MEMREAP. Fails when a panel would stay empty, or the alert of a kill would not fire. Needs
# root, prometheus and jq. The daemon runs in a PID namespace, where it sees nothing but this test.
set -eu
if [ $# -ne 1 ]; then
    echo "usage: $0 MEMREAP" >&2
    exit 2
fi
here=$(dirname "$(realpath "$0")")
if [ -z "${IN_NAMESPACE:-}" ]; then
    for tool in prometheus promtool jq unshare; do
        command -v "$tool" >/dev/null && continue
        echo "$0: needs $tool (apt-get install prometheus jq util-linux)" >&2
        exit 1
    done
    # What is started in the namespace ends with its first process, this script.
    IN_NAMESPACE=yes exec unshare --pid --mount --net --fork --kill-child --mount-proc "$0" "$(realpath "$1")"
fi

memreap=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
say() { echo "prometheus-test: $*"; }
fail() {
    tail -n 5 "$work"/*.log >&2
    echo "prometheus-test: $*" >&2
    exit 1
}
server=http://127.0.0.1:9090
query() { promtool query instant "$server" "$1" 2>&1; }
# Until the answer of Prometheus to the first argument fits the second.
wait_for() {
    for _ in $(seq 60); do
        kill -0 "$daemon" 2>/dev/null || fail "the daemon has ended"
        query "$1" | grep -q -- "$2" && return
        sleep 1
    done
    fail "$1 is not $2 after a minute: $(query "$1")"
}

ip link set lo up
# Without PSI, and with these levels, any memory in use is a shortage.
mount -t tmpfs none /proc/pressure
cat >"$work/memreap.toml" <<END
act = { low = 100, critical = 99.9 }
record = { history = "$work/history.jsonl", metrics = "127.0.0.1:9105" }
policy = { defaults = false }
[[rule]]
name = "mr-victim"
weight = 1
[[rule]]
oom_score_adj = ">= -1000"
never = true
END
cat >"$work/prometheus.yaml" <<END
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [$here/helm/memreap/files/alerts.yaml]
scrape_configs:
  - {job_name: memreap, static_configs: [{targets: ["127.0.0.1:9105"]}]}
END
"$memreap" daemon --config "$work/memreap.toml" >"$work/memreap.log" 2>&1 &
daemon=$!
prometheus --config.file="$work/prometheus.yaml" --storage.tsdb.path="$work/data" \
    --web.listen-address=127.0.0.1:9090 >"$work/prometheus.log" 2>&1 &
say "waiting for the first scrape"
wait_for 'up{job="memreap"}' '=> 1 '
wait_for 'count_over_time(memreap_kills_total{reason="critical",method="plain"}[1m])' '=> [2-9]'

say "having the daemon kill a process"
# 32 MiB, in a shell with a name of its own.
mkfifo "$work/never"
sh -c 'printf mr-victim >/proc/$$/comm; bytes=$(head -c 33554432 /dev/zero | tr "\0" x); read -r _' <>"$work/never" &
wait_for 'sum(memreap_kills_total)' '=> 1 '
wait_for 'ALERTS{alertname="MemreapKilled",alertstate="firing"}' '=> 1 '

say "asking what the dashboard and the alerts ask"
jq --raw-output '.. | .expr? // empty' "$here/helm/memreap/files/dashboard.json" | sed 's/\$instance/.*/g' \
    >"$work/panels"
while read -r expression; do
    query "$expression" | grep -q '=> ' || fail "this panel stays empty: $expression"
done <"$work/panels"
say "$(wc -l <"$work/panels") queries of the dashboard have data, and the alert of a kill fires"
