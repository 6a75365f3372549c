"""Plugins: layers of the user, their fields, shapes and the registry of their creators."""

from __future__ import annotations
