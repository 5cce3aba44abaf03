"""Exit codes of the command line."""

DONE = 0
UNUSABLE = 2
"""An option, an input or a file is not usable; one line on stderr says why."""
DEFECT = 70
"""An error that regard does not expect: a defect of regard. REGARD_TRACEBACK=1 shows where; EX_SOFTWARE of sysexits."""
INTERRUPTED = 130
"""By Ctrl-C or SIGTERM."""
BROKEN_PIPE = 141
"""Nobody reads the output any more."""
