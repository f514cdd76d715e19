"""Tests of `k8s/`: manifests are built, examined, and started as local processes."""
