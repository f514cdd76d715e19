"""Apps of Flower as apps of unstale. Imports flwr only for an app of Flower."""
