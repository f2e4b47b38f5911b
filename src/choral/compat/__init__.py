"""Drop-in modules with the interfaces of other packages, so that a program changes one import to run on Choral.

Modules, classes and arguments have the names of the package they stand for; docs/compatibility.md says what differs.
"""
