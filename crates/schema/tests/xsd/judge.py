#!/usr/bin/env python3
"""Asks other XSD processors about the cases, and writes judges.tsv.

Needs PyPI's `xmlschema` (4.x), and for the second judge a JDK: `python3 judge.py [--java]`. Without --java the verdicts of
Java that are there already are kept.
"""
import multiprocessing
import pathlib
import queue
import re
import subprocess
import sys
import tempfile

import xmlschema

HERE = pathlib.Path(__file__).parent
XSI = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
JUDGES = ["xmlschema", "java"]


def cases():
    """Yields (id, schema, documents) of all files, as tests/xsd.rs reads them."""
    for path in sorted((HERE / "cases").glob("*.txt")):
        for part in path.read_text("utf-8").split("\n=== ")[1:]:
            head, body = part.split("\n", 1)
            sections = body.split("\n--- ")
            lines = sections[0].split("\n")
            while lines and lines[0].startswith("#"):
                lines.pop(0)
            schema = "\n".join(lines).strip()
            if not schema.startswith(("<xs:schema", "<schema")):
                schema = f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">{schema}</xs:schema>'
            documents = [section.split("\n", 1)[1].strip().replace("XSI", XSI) for section in sections[1:]]
            yield f"{path.stem}/{head.split(': ')[0]}", schema, documents


def ask_xmlschema(schema, documents):
    """The verdicts of PyPI's xmlschema; nothing is fetched."""
    try:
        compiled = xmlschema.XMLSchema10(schema, allow="none", use_fallback=False)
    except Exception:
        return ["refused"] + ["-"] * len(documents)
    verdicts = ["accepted"]
    for document in documents:
        try:
            verdicts.append("valid" if compiled.is_valid(document, use_location_hints=False) else "invalid")
        except Exception:
            verdicts.append("invalid")
    return verdicts


def within(seconds, schema, documents):
    """Asks xmlschema in a process of its own: it takes exponential time for some patterns, and very long for large counts."""
    results = multiprocessing.Queue()
    process = multiprocessing.Process(target=lambda: results.put(ask_xmlschema(schema, documents)), daemon=True)
    process.start()
    try:
        return results.get(timeout=seconds)
    except queue.Empty:
        return ["timeout"] * (1 + len(documents))
    finally:
        process.kill()


def ask_java(all_cases):
    """The verdicts of Java's javax.xml.validation, by one run over files."""
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        for number, (_, schema, documents) in enumerate(all_cases):
            folder = root / f"{number:05}"
            folder.mkdir()
            (folder / "schema.xsd").write_text(schema, "utf-8")
            for at, document in enumerate(documents):
                (folder / f"{at:03}.xml").write_text(document, "utf-8")
        subprocess.run(["javac", "-d", directory, str(HERE / "Judge.java")], check=True)
        done = subprocess.run(["java", "-cp", directory, "Judge", directory], check=True, capture_output=True, text=True)
    return [line.split() for line in done.stdout.splitlines()]


def main():
    all_cases = list(cases())
    verdicts = [within(10, schema, documents) for _, schema, documents in all_cases]
    if "--java" in sys.argv:
        others = ask_java(all_cases)
    else:
        kept = {}
        if (HERE / "judges.tsv").exists():
            for line in (HERE / "judges.tsv").read_text("utf-8").splitlines():
                columns = re.split("\t", line)
                kept[columns[0]] = columns[2] if len(columns) > 2 else "-"
        others = [
            [kept.get(name, "-")] + [kept.get(f"{name}#{at + 1}", "-") for at in range(len(documents))]
            for name, _, documents in all_cases
        ]
    lines = ["# Written by judge.py: what other processors say. Do not edit.", "\t".join(["case"] + JUDGES)]
    for (name, _, documents), one, other in zip(all_cases, verdicts, others):
        ids = [name] + [f"{name}#{at + 1}" for at in range(len(documents))]
        lines += ["\t".join(row) for row in zip(ids, one, other)]
    (HERE / "judges.tsv").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
