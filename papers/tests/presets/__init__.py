"""Every published table and figure, made small: `make presets`."""
