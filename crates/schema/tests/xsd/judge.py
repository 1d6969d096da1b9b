#!/usr/bin/env python3
"""Asks other XSD processors about the cases, and writes judges.tsv. The script `judge` beside it runs this with the right
version of PyPI's `xmlschema`; a JDK is needed too.
"""
import multiprocessing
import pathlib
import queue
import subprocess
import tempfile
import warnings

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


def digest(text):
    """Tells an edited case from the one that was judged: FNV-1a with 32 bits, as in tests/xsd.rs."""
    value = 0x811C9DC5
    for byte in text.encode("utf-8"):
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{value:08x}"


def main():
    warnings.simplefilter("ignore")  # of imports that are not followed
    all_cases = list(cases())
    verdicts = [within(10, schema, documents) for _, schema, documents in all_cases]
    version = subprocess.run(["java", "--version"], check=True, capture_output=True, text=True).stdout.split("\n")[0]
    lines = [
        "# Written by the script `judge`: what other processors say. Do not edit.",
        f"# xmlschema {xmlschema.__version__}; {version}",
        "\t".join(["case", "digest"] + JUDGES),
    ]
    for (name, schema, documents), one, other in zip(all_cases, verdicts, ask_java(all_cases), strict=True):
        ids = [name] + [f"{name}#{at + 1}" for at in range(len(documents))]
        digests = map(digest, [schema] + documents)
        lines += ["\t".join(row) for row in zip(ids, digests, one, other, strict=True)]
    (HERE / "judges.tsv").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
