"""Figures with matplotlib."""

from regard.system.extras import import_extra

import_extra("matplotlib", "a figure")
