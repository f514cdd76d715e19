#!/bin/sh
# Prints the rules for Prometheus as the object that its operator reads, which reads no ConfigMap:
#
#   k8s/make-rules.sh > k8s/components/service-monitor/rules.yaml
set -eu
cat <<'OBJECT'
# Made by k8s/make-rules.sh from monitoring/prometheus/rules/unstale.rules.yml, which is where to change them.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: unstale
  labels: {app.kubernetes.io/name: unstale}
spec:
OBJECT
sed 's/^./  &/' "$(dirname "$0")/../monitoring/prometheus/rules/unstale.rules.yml"
