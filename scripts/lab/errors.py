"""What goes wrong in a lab."""

from __future__ import annotations


class LabError(Exception):
    """The lab cannot be made, or not changed as asked; the text is one line and says what to do."""
