"""Print Choral's dependencies for the image: `python requirements.py cpu|cuda [EXTRA,EXTRA…]`.

They are installed in a separate layer, so that a change of the code does not download them again.
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
