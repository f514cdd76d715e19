"""An attack suite: hostile clients and unknown peers against a real server, with honest clients beside them.

The imports below start at the folder `tests`, which `python -m tests.hostile` does not put on the path.
"""

import sys
from pathlib import Path

_TESTS = str(Path(__file__).parents[1])
if _TESTS not in sys.path:
    sys.path.insert(0, _TESTS)
