#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Renders the Helm chart with its defaults: packaging/render.sh >packaging/kubernetes/memreap.yaml
set -eu
cd "$(dirname "$0")"
echo "# The Helm chart with its defaults: packaging/render.sh. Put your image in."
exec helm template memreap helm/memreap --namespace kube-system --kube-version 1.30.0
