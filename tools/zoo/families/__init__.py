"""Families of architectures, one file each. A file lists its entries in `ENTRIES`."""
