"""Compiled models inside of other systems; each module needs what it is named after."""
