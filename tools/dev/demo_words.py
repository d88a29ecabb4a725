"""./dev demo asks before it sets up whether the demo understands its words.

Only the module that reads them is loaded, as part of a package that imports no torch.
"""

import importlib
import sys
import types
from pathlib import Path

sys.dont_write_bytecode = True
package = types.ModuleType("twofour")
package.__path__ = [str(Path(__file__).resolve().parents[2] / "python/twofour")]
sys.modules["twofour"] = package
importlib.import_module("twofour._demo_words").parse(
    [word for word in sys.argv[1:] if word != "--parse-only"]
)
