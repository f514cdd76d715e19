"""What runs left behind, as one HTML page, tables and pictures. Reads run directories, and writes to none."""
