"""What `k8s/` holds, and whether it runs: manifests built, examined, and started as local processes."""
