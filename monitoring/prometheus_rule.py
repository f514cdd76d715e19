"""The rules as an object of the Prometheus operator, which reads no ConfigMap."""

from pathlib import Path

RULES = Path(__file__).parent / "prometheus/rules/unstale.rules.yml"
OBJECT = Path(__file__).parent / "prometheus/prometheusrule.yaml"
HEAD = """\
# The rules of rules/unstale.rules.yml as the Prometheus operator reads them. Made by `python -m monitoring`.
#
# An operator looks for rules by labels. That of kube-prometheus-stack wants `release` to be the name of its Helm
# release, which is what its documentation calls it here: put your own in its place.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: unstale
  labels:
    app.kubernetes.io/name: unstale
    app.kubernetes.io/part-of: unstale
    release: kube-prometheus-stack
spec:
"""


def text(rules: str) -> str:
    """The object, with comments and layout of the rules. rules: a file of rules."""
    groups = rules[rules.index("\ngroups:\n") + 1 :]
    return HEAD + "".join(f"  {line}" if line.strip() else line for line in groups.splitlines(keepends=True))
