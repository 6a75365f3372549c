"""Sphinx configuration. Build with `uv run nox -s docs`."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE / "_ext"))

project = "trt"
author = "the trt developers"
project_copyright = author
version = release = (_HERE.parent / "VERSION").read_text(encoding="utf-8").strip()

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx_copybutton",
    "generated_text",
    "google_docstrings",
]
exclude_patterns = ["_build"]
root_doc = "index"

html_theme = "furo"
html_title = f"trt {version}"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_selector = "div:not(.highlight-text):not(.doctest-output) > div.highlight > pre"

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say it in words, with shapes, types and units
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True

# Names of other projects in base classes and signatures; their inventories would need a network.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|numpy|np|collections|typing|types|pathlib|enum|os|contextlib|ctypes)(\..*)?"),
    ("py:(class|obj|data)", r"(optional|callable|Any|Self|None|Unpack|SettingKeywords|InputRanges)"),
    ("py:(class|obj|data)", r"(GroupMembers|CachePlace)"),
    ("py:class", r"trt_core\.entry_points\.Found"),  # a type variable
    ("py:class", r"trt_converters\.interpreter\.KnownPlace"),
]

doctest_global_setup = """
import logging, os, sys, tempfile, warnings
import torch
from torch import nn

os.environ.setdefault("TRT_PROVIDER", "portable")
torch.manual_seed(0)
torch.set_num_threads(1)
_home, _folder = os.getcwd(), tempfile.TemporaryDirectory()
os.chdir(_folder.name)

from trt_core import *
from trt_frontends import *
from trt_frontends.backend import torch_tensorrt_backend
"""

doctest_global_cleanup = """
os.chdir(_home)
_folder.cleanup()
"""
