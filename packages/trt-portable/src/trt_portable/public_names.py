"""The public names of a package, imported when they are first asked for.

A process that only runs an engine needs a tenth of the package. So `__init__.py` imports nothing; the stub beside it,
`__init__.pyi`, names what is public and where it lives, for type checkers and for this module alike.
"""

from __future__ import annotations

import ast
from pathlib import Path


def read_stub(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Reads which names a stub makes public.

    Args:
        path: A stub that holds imports of modules by their full names, and constants that are attributes of one of
            the imported names.

    Returns:
        The module of each imported name, and the expression, `DataType.FLOAT`, behind each constant.
    """
    homes: dict[str, str] = {}
    constants: dict[str, str] = {}
    for statement in ast.parse(path.read_bytes()).body:
        if isinstance(statement, ast.ImportFrom) and statement.module != "typing":
            homes.update((alias.asname or alias.name, str(statement.module)) for alias in statement.names)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            assert statement.value is not None
            constants[statement.target.id] = ast.unparse(statement.value)
    return homes, constants
