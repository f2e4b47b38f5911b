"""Prints what Choral needs from package indexes, for the image: `python requirements.py cpu|cuda [EXTRA,EXTRA…]`.

With these in a layer of their own, a change of Choral's code does not fetch gigabytes again.
"""

import sys
import tomllib
from pathlib import Path

EXTRAS = {"cpu": "server,jobs,otel", "cuda": "server,jobs,otel,torch"}

variant, *chosen = [argument for argument in sys.argv[1:] if argument]
with Path("pyproject.toml").open("rb") as file:
    project = tomllib.load(file)["project"]
print(*project["dependencies"], sep="\n")
for extra in (chosen[0] if chosen else EXTRAS[variant]).split(","):
    print(*project["optional-dependencies"][extra], sep="\n")
