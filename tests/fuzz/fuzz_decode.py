"""Coverage-guided fuzzing of decode for a bounded time, from the golden records. Not run by pytest: `make fuzz`.

The first byte of an input chooses the encoding, the rest is the record. The laws are those of the property tests, and
a bound on CPU time per byte. A failing input is written to `.fuzz/`; give its path as the argument to run it again.
Inputs that reached something new stay there too, and the next run starts from them.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

try:
    import atheris
except ImportError:
    sys.exit("fuzz: atheris has no wheel for this platform, so there is nothing to run; the property tests still do")

atheris.enabled_hooks.add("str")  # texts that are looked for guide the search too
with atheris.instrument_imports(include=["citegauge"]):
    from support.decode_laws import DECODERS, RECORDS, check

ROOT = Path(__file__).parents[2]
ENCODINGS = sorted(DECODERS)
RECORD_BYTES_MAX = 16_384
"""Longer golden records say nothing that shorter ones do not, and slow every round."""
INPUT_S_MAX = 2.0
BYTE_S_MAX = 50e-6
"""Time that an input may take, fixed and per byte: instrumented code is some fifty times slower than decode itself."""
WORDS_MAX = 2_000


def run_one(data: bytes) -> None:
    """One input: it breaks no law and takes linear time."""
    if not data:
        return
    started = time.process_time()
    check(ENCODINGS[data[0] % len(ENCODINGS)], data[1:])
    spent = time.process_time() - started
    assert spent < INPUT_S_MAX + BYTE_S_MAX * len(data), f"{spent:.2f} s for {len(data)} bytes"


def write_corpus(folder: Path) -> None:
    """The golden records in their own encoding and sniffed."""
    for number, (encoding, record) in enumerate(RECORDS):
        if len(record) <= RECORD_BYTES_MAX:
            for name in (encoding, "auto"):
                (folder / f"{number}-{name}").write_bytes(bytes([ENCODINGS.index(name)]) + record)


def write_words(path: Path) -> None:
    """Keys and short values of the golden records, so that the fuzzer need not guess `openinference.span.kind`."""
    found = {word for _, record in RECORDS for word in re.findall(rb'"([A-Za-z0-9_.\-]{3,60})"', record)}
    lines = [f'"{word.decode()}"\n' for word in sorted(found)[:WORDS_MAX]]
    path.write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """Fuzz for `--seconds`, or run the given inputs once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("inputs", nargs="*", help="failing inputs to run again")
    options = parser.parse_args()
    folder = ROOT / ".fuzz"  # the fuzzer ends the process itself, so nothing could clean up a temporary one
    golden, found, words = folder / "golden", folder / "found", folder / "words"
    for each in (golden, found):
        each.mkdir(parents=True, exist_ok=True)
    write_corpus(golden)
    write_words(words)
    limits = [f"-max_total_time={options.seconds}", "-timeout=20", f"-max_len={RECORD_BYTES_MAX}"]
    files = [f"-dict={words}", f"-artifact_prefix={folder}/", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *limits, *files, *(options.inputs or [str(found), str(golden)])], run_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
