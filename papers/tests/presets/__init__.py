"""Every published table and figure at a small scale: `make presets`."""
