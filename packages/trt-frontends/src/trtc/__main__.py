"""`python -m trtc`: the command line where its script is not on the path."""

from __future__ import annotations

from trtc import main

if __name__ == "__main__":
    main()
