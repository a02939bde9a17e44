"""The one kind of error that a user can mend: a line that names the option, file or tensor, what was expected and what
was found. Everything else is a mistake of the program and shows its trace.
"""


class Problem(Exception):
    """What is wrong with what was given."""


def expect(holds, name, expected, found):
    """Raises the line unless it holds."""
    if not holds:
        raise Problem(f"{name}: expected {expected}, found {found}")
