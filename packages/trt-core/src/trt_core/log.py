"""The logger of the whole stack."""

from __future__ import annotations

import logging

logger = logging.getLogger("torch_tensorrt")
"""Its name is the one that users' scripts already configure."""
