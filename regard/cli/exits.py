"""Exit codes of the command line."""

DONE = 0
UNUSABLE = 2
"""Invalid option, input or file; one line on stderr says why."""
DEFECT = 70
"""Unexpected error, a defect of regard: REGARD_TRACEBACK=1 shows the traceback. EX_SOFTWARE of sysexits."""
INTERRUPTED = 130
"""Stopped by Ctrl-C or SIGTERM."""
BROKEN_PIPE = 141
"""The reader of the output has closed it."""
