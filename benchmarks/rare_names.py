"""Writes a set of speech with rare names, for `hotwords.py`: three synthetic voices say each name once.

FOLDER gets flac files of four sentences, a manifest.jsonl, and names.txt with the names: people and places of novels
and maps, medicines and software, most of which a small model does not know.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import numpy as np

from choral.audio.constants import SAMPLE_RATE
from choral.bench.clips import FULL_SCALE, write_flac
from choral.cli.arguments import Parser
from choral.cli.console import write_stdout
from support.flite import VOICES, FliteVoice
from support.script import run_script

NAMES = """
Helstone Sherburn Thornbury Quilter Ravenglass Tewkesbury Malmesbury Haltwhistle Pocklington Wetherby Strickland
Haversham Micawber Pumblechook Gradgrind Bounderby Chuzzlewit Wickfield Trotwood Steerforth Murdstone Peggotty Barkis
Traddles Nickleby Squeers Verinder Ablewhite Betteredge Casaubon Ladislaw Bulstrode Lydgate Featherstone Harthouse
Blackpool Sparsit Slackbridge Ormskirk Skelmersdale Apomorphine Metoprolol Atorvastatin Omeprazole Lisinopril
Amlodipine Gabapentin Levothyroxine Sertraline Warfarin Tamoxifen Methotrexate Cetirizine Naproxen Clopidogrel
Simvastatin Furosemide Pantoprazole Tramadol Citalopram Kubernetes Grafana Terraform Prometheus Ansible Kafka
Cassandra Elasticsearch Novartis Zeebrugge Rotherhithe Bermondsey Twickenham Walthamstow Wolverhampton Kidderminster
Dunfermline Kilmarnock Inverurie Stonehaven Lossiemouth Pitlochry Aberfeldy Dalwhinnie Tobermory Ballachulish
Ardnamurchan Strathclyde Auchinleck Cumbernauld
"""
SENTENCES = (
    "I spoke with {} about {} on the telephone this morning.",
    "The report on {} mentions {} only once.",
    "They asked whether {} or {} would be better for the family.",
    "We left {} behind us and went on to {} before the evening.",
    "Nobody had told {} that the letter about {} was lost.",
    "In the end it was {} and not {} that everyone remembered.",
)
N_NAMES_PER_FILE = 8
PAUSE_S, SEED = 0.5, 5


def write_set(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    choices, lines = random.Random(SEED), []
    for name in VOICES:
        voice, names = FliteVoice(name), choices.sample(NAMES.split(), len(NAMES.split()))
        for start in range(0, len(names), N_NAMES_PER_FILE):
            group = names[start : start + N_NAMES_PER_FILE]
            pairs = zip(group[::2], group[1::2], strict=True)
            sentences = [choices.choice(SENTENCES).format(*pair) for pair in pairs]
            pause = np.zeros(round(PAUSE_S * SAMPLE_RATE), np.float32)
            samples = np.concatenate([piece for each in sentences for piece in (voice.speak(each)[0], pause)])
            path = folder / f"{name}-{start:02}.flac"
            write_flac(path, (samples * (FULL_SCALE - 1)).astype(np.int16))
            lines.append(json.dumps({"file": path.name, "text": " ".join(sentences), "language": "en"}))
    (folder / "manifest.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "names.txt").write_text("\n".join(NAMES.split()) + "\n")
    return len(lines)


def add_arguments(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder for the set")


def run(arguments: argparse.Namespace) -> int:
    n_files = write_set(arguments.folder)
    n_names = len(NAMES.split())
    write_stdout(f"{n_files} files with {n_names} names; measure with benchmarks/hotwords.py {arguments.folder}\n")
    return 0


if __name__ == "__main__":
    run_script(__doc__ or "", add_arguments, run, usage="FOLDER", has_machine_flags=False)
