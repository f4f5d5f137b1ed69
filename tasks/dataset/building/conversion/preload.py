"""Imported by the process that a build's workers are forked from, before any of them starts.

During imports the garbage collector finds nothing to free, and all objects stay afterwards. So it is switched
off: the first worker starts a twelfth sooner, and memory that workers share is not copied.
"""

import gc
from importlib import import_module

gc.disable()
import_module("tasks.dataset.building.builder")
import_module("pyarrow.compute")  # loaded by the first table that is filtered, else once in each worker
gc.freeze()
gc.enable()
