#!/usr/bin/env python3
"""Makes cases.json: documents, and what Python's protobuf says of them.

    python -m venv venv && venv/bin/pip install protobuf grpcio-tools
    venv/bin/python make_fixtures.py

Documents are made from all3.proto and old2.proto by the library itself, in binary and in JSON, and then mutated. A
verdict is that the library parses a document and finds all required fields; the strict one, that it finds nothing
unknown either. A case is [verdict, strict verdict, schema, format, name, hexadecimal digits or text]. Random choices come from a fixed seed, so that a second run makes the same file.
"""

import json
import os
import random
import tempfile

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, unknown_fields
from google.protobuf import any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2  # noqa: F401
from google.protobuf.message import DecodeError
from grpc_tools import protoc
import grpc_tools

HERE = os.path.dirname(os.path.abspath(__file__))
RANDOM = random.Random(11)


def load():
    includes = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
    pool = descriptor_pool.Default()
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "set.bin")
        files = [os.path.join(HERE, name) for name in ("all3.proto", "old2.proto")]
        assert protoc.main(["protoc", f"-I{HERE}", f"-I{includes}", f"--descriptor_set_out={out}", *files]) == 0
        with open(out, "rb") as file:
            content = file.read()
    descriptors = descriptor_pb2.FileDescriptorSet.FromString(content)
    for file in descriptors.file:
        pool.Add(file)
    of = lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))  # noqa: E731
    return pool, of("fixtures.All"), of("fixtures.Old"), of("fixtures.Inner")


POOL, All, Old, Inner = load()
MESSAGES = {"all3": All, "old2": Old}
CASES = []


def has_unknown(message):
    if len(unknown_fields.UnknownFieldSet(message)):
        return True
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"].message_type
            values = value.values() if inner else []
        else:
            values = value if field.is_repeated else [value]
        if any(has_unknown(one) for one in values):
            return True
    return False


def judge_binary(schema, data):
    message = MESSAGES[schema]()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return False, False
    accepted = message.IsInitialized()
    return accepted, accepted and not has_unknown(message)


def judge_json(schema, text):
    verdicts = []
    for ignore in (True, False):
        message = MESSAGES[schema]()
        try:
            json_format.Parse(text, message, ignore_unknown_fields=ignore, descriptor_pool=POOL)
            verdicts.append(message.IsInitialized())
        except (json_format.ParseError, RecursionError):
            verdicts.append(False)
        except (TypeError, ValueError, OverflowError):
            # Some mistakes are not caught by the library.
            verdicts.append(False)
    return tuple(verdicts)


def binary(name, schema, data):
    lenient, strict = judge_binary(schema, data)
    CASES.append([lenient, strict, schema, "binary", name, data.hex()])


def as_json(schema, text, name=""):
    """A document without a name is named by its text."""
    lenient, strict = judge_json(schema, text)
    CASES.append([lenient, strict, schema, "json", name, text])


INTS = {
    "an_int32": (-(2**31), 2**31 - 1), "an_int64": (-(2**63), 2**63 - 1), "a_uint32": (0, 2**32 - 1),
    "a_uint64": (0, 2**64 - 1), "a_sint32": (-(2**31), 2**31 - 1), "a_sint64": (-(2**63), 2**63 - 1),
    "a_fixed32": (0, 2**32 - 1), "a_fixed64": (0, 2**64 - 1), "an_sfixed32": (-(2**31), 2**31 - 1),
    "an_sfixed64": (-(2**63), 2**63 - 1),
}


def word():
    return RANDOM.choice(["", "a", "order", "ä€😀", 'quo"te\\', "line\nbreak", "x" * RANDOM.randint(1, 9)])


def fill_inner(message, depth):
    message.name = word()
    message.numbers.extend(RANDOM.randint(-(2**63), 2**63 - 1) for _ in range(RANDOM.randint(0, 3)))
    if depth and RANDOM.random() < 0.6:
        fill_inner(message.child, depth - 1)
    if depth and RANDOM.random() < 0.3:
        fill_inner(message.children[word()], depth - 1)


def random_all():
    message = All()
    for field, (low, high) in INTS.items():
        if RANDOM.random() < 0.2:
            setattr(message, field, RANDOM.choice([low, high, 0, 1, RANDOM.randint(low, high)]))
    if RANDOM.random() < 0.2:
        message.a_double = RANDOM.choice([1.5, -1e300, float("inf"), float("nan"), 0.1])
    if RANDOM.random() < 0.2:
        message.a_float = RANDOM.choice([1.5, float("-inf"), 3.4e38])
    if RANDOM.random() < 0.2:
        message.a_bool, message.a_string, message.some_bytes = True, word(), RANDOM.randbytes(RANDOM.randint(0, 9))
    if RANDOM.random() < 0.2:
        message.color = RANDOM.choice([0, 1, -5, 77])
        message.colors.extend([0, 1, -5, 99])
    if RANDOM.random() < 0.2:
        message.maybe = 0
        fill_inner(message.inner, 2)
    if RANDOM.random() < 0.2:
        message.doubles.extend([1.0, -2.5])
        message.ints.extend(RANDOM.randint(-9, 999) for _ in range(5))
        message.sints.extend([-1, 1, -(2**63)])
        message.fixeds.extend([1, 2**32 - 1])
        message.bools.extend([True, False])
        message.unpacked.extend([1, 2**64 - 1])
    if RANDOM.random() < 0.2:
        message.strings.extend([word(), word()])
        message.blobs.extend([b"", b"\x00\xff"])
        fill_inner(message.inners.add(), 2)
        fill_inner(message.inners.add(), 1)
    if RANDOM.random() < 0.25:
        message.by_string[word()] = 5
        fill_inner(message.by_int[-3], 1)
        message.by_bool[True] = word()
        message.by_fixed[2**64 - 1] = 1
        message.by_sint[-7] = b"x"
    choice = RANDOM.randint(0, 4)
    if choice == 0:
        message.text = word()
    elif choice == 1:
        message.number = 0
    elif choice == 2:
        fill_inner(message.nested, 1)
    elif choice == 3:
        message.nothing = 0
    if RANDOM.random() < 0.25:
        message.at.FromJsonString(RANDOM.choice(["2026-01-31T12:30:00Z", "1969-07-20T20:17:40.000000001Z"]))
        message.lasting.FromJsonString(RANDOM.choice(["1.5s", "-3s", "315576000000s"]))
        message.mask.FromJsonString("name,addressList.cityName")
        message.times.add().FromJsonString("0001-01-01T00:00:00Z")
    if RANDOM.random() < 0.25:
        message.object.update({"a": [1, None, {"b": True}], word(): "x"})
        message.value.number_value = 1e100
        message.list.extend(["a", 2, None])
        message.empty.SetInParent()
    if RANDOM.random() < 0.25:
        inner = Inner(name="in any")
        message.any.Pack(RANDOM.choice([inner, timestamp_pb2.Timestamp(seconds=5), wrappers_pb2.Int32Value(value=3)]))
    if RANDOM.random() < 0.25:
        message.maybe_double.value, message.maybe_int64.value, message.maybe_uint32.value = 1.5, -1, 7
        message.maybe_bool.value, message.maybe_string.value, message.maybe_bytes.value = True, "", b"\x01"
    if RANDOM.random() < 0.3:
        message.renamed = 1
    return message


def random_old():
    message = Old(id=RANDOM.randint(-5, 5), name=word())

    def part(of):
        of.code, of.size = word(), RANDOM.choice([1, 2])

    if RANDOM.random() < 0.5:
        part(message.part)
        part(message.part.sub)
    for _ in range(RANDOM.randint(0, 2)):
        part(message.parts.add())
    if RANDOM.random() < 0.5:
        message.box.width = 3
        message.box.lid.label = word()
    message.item.add().sku = 5
    message.sizes.extend([1, 2])
    message.packed_sizes.extend([2, 1])
    if RANDOM.random() < 0.5:
        part(message.parts_by_name[word()])
        message.sizes_by_number[3] = 2
        message.size = 1
    if RANDOM.random() < 0.5:
        part(message.other)
    if RANDOM.random() < 0.5:
        part(message.Extensions[POOL.FindExtensionByName("fixtures.extra")])
        message.Extensions[POOL.FindExtensionByName("fixtures.extra_numbers")].extend([1, 2])
    message.packed.extend([1, 300])
    message.unpacked.extend([1, -1])
    return message


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def key(number, wire):
    return varint(number << 3 | wire)


def block(number, data):
    return key(number, 2) + varint(len(data)) + data


def binary_by_hand():
    part = block(1, b"c") + key(4, 0) + b"\x01"
    old = key(1, 0) + b"\x01" + block(2, b"n")
    in_all = {
        "empty": b"",
        "unknown varint": key(90, 0) + varint(5),
        "unknown group": key(90, 3) + key(1, 0) + b"\x05" + key(91, 3) + key(91, 4) + key(90, 4),
        "unknown group without end": key(90, 3) + key(1, 0) + b"\x05",
        "unknown group with another end": key(90, 3) + key(91, 4),
        "end of a group": key(90, 4),
        "number 0": key(0, 0) + b"\x01",
        "wire type 6": key(14, 6) + b"\x01",
        "wire type 7": key(90, 7) + b"\x01",
        "largest number": key(2**29 - 1, 0) + b"\x01",
        "number beyond 29 bits": varint(2**29 << 3) + b"\x01",
        "key of 10 bytes": b"\x98" + b"\x80" * 8 + b"\x00" + b"\x05",
        "varint of 10 bytes": key(4, 0) + b"\xff" * 9 + b"\x01",
        "varint beyond 64 bits": key(4, 0) + b"\xff" * 9 + b"\x02",
        "varint of 11 bytes": key(4, 0) + b"\x80" * 10 + b"\x00",
        "int32 beyond 32 bits": key(3, 0) + varint(2**40),
        "bool beyond 1": key(13, 0) + varint(2**40),
        "padded varint": key(3, 0) + b"\x80\x80\x00",
        "string with bad UTF-8": block(14, b"\xff"),
        "string with a surrogate": block(14, b"\xed\xa0\x80"),
        "strings with bad UTF-8": block(26, b"a") + block(26, b"\xc3"),
        "map key with bad UTF-8": block(41, block(1, b"\xff")),
        "map value with bad UTF-8": block(43, block(2, b"\xff")),
        "bytes with bad UTF-8": block(15, b"\xff"),
        "nested bad UTF-8": block(17, block(2, block(1, b"\xff"))),
        "wrapped bad UTF-8": block(73, block(1, b"\xff")),
        "bad UTF-8 in unknown": block(90, b"\xff"),
        "string as varint": key(14, 0) + b"\x01",
        "int32 as bytes": block(3, b"\x01"),
        "int32 as fixed32": key(3, 5) + bytes(4),
        "double as fixed32": key(1, 5) + bytes(4),
        "message as varint": key(17, 0) + b"\x01",
        "message as group": key(17, 3) + key(17, 4),
        "map as varint": key(41, 0) + b"\x01",
        "packed as one": key(22, 0) + b"\x07",
        "one as packed": block(30, b"\x01\x02"),
        "packed and not": block(22, b"\x01") + key(22, 0) + b"\x02" + block(22, b""),
        "packed with a cut varint": block(22, b"\x01\x80"),
        "packed of 7 bytes": block(24, bytes(7)),
        "packed as fixed32": key(22, 5) + bytes(4),
        "length beyond the end": key(14, 2) + b"\x05a",
        "length of 2**32": key(14, 2) + varint(2**32) + b"a",
        "length of 2**64": key(14, 2) + varint(2**64 - 1) + b"a",
        "length beyond the message": block(17, key(1, 2) + b"\x05a") + b"aaaaa",
        "cut in a key": b"\x80",
        "cut in a varint": key(3, 0) + b"\x80",
        "cut in a fixed64": key(1, 1) + bytes(7),
        "no value": key(3, 0),
        "open enum": key(16, 0) + varint(1234),
        "open enum in a map": block(44, key(1, 1) + bytes(8) + key(2, 0) + varint(77)),
        "map entry without anything": block(42, b""),
        "map entry with the value first": block(41, key(2, 0) + b"\x01" + block(1, b"k")),
        "map entry with more": block(41, block(1, b"k") + key(3, 0) + b"\x01"),
        "map entry with a wrong key": block(41, key(1, 0) + b"\x01"),
        "two of a oneof": block(51, b"a") + key(52, 0) + b"\x01",
        "merged messages": block(17, block(1, b"a")) + block(17, block(2, b"")),
        "99 messages deep": nest(99, lambda inner: block(2, inner)),
        "deeper than 100 messages": nest(110, lambda inner: block(2, inner)),
        "deeper than 100 groups": key(90, 3) * 110 + key(90, 4) * 110,
        "Any of nothing": block(67, block(1, b"type.googleapis.com/nothing")),
        "Timestamp out of range": block(61, key(1, 0) + varint(2**62)),
    }
    in_old = {
        "nothing": b"",
        "only id": key(1, 0) + b"\x01",
        "both": old,
        "string with bad UTF-8": key(1, 0) + b"\x01" + block(2, b"\xff"),
        "part without anything": old + block(3, b""),
        "part in two pieces": old + block(3, block(1, b"c")) + block(3, key(4, 0) + b"\x01"),
        "parts in two pieces": old + block(4, block(1, b"c")) + block(4, key(4, 0) + b"\x01"),
        "sub without anything": old + block(3, part + block(2, b"")),
        "group": old + key(5, 3) + key(1, 0) + b"\x01" + key(5, 4),
        "group without anything": old + key(5, 3) + key(5, 4),
        "group in two pieces": old + key(5, 3) + key(5, 4) + key(5, 3) + key(1, 0) + b"\x01" + key(5, 4),
        "group with another end": old + key(5, 3) + key(6, 4),
        "group without end": old + key(5, 3) + key(1, 0) + b"\x01",
        "group as message": old + block(5, key(1, 0) + b"\x01"),
        "unknown size": old + key(7, 0) + b"\x09",
        "unknown sizes": old + key(8, 0) + b"\x09" + key(8, 0) + b"\x01",
        "unknown packed sizes": old + block(9, b"\x01\x09"),
        "negative size": old + key(7, 0) + varint(2**64 - 1),
        "required size unknown": old + block(3, block(1, b"c") + key(4, 0) + b"\x09"),
        "map": old + block(10, block(1, b"k") + block(2, part)),
        "map value without anything": old + block(10, block(1, b"k") + block(2, b"")),
        "map entry without value": old + block(10, block(1, b"k")),
        "map entry replaced": old + block(10, block(1, b"k") + block(2, b"")) + block(10, block(1, b"k") + block(2, part)),
        "map entry in two pieces": old + block(10, block(2, block(1, b"c")) + block(2, key(4, 0) + b"\x01")),
        "map of an unknown size": old + block(11, key(1, 0) + b"\x01" + key(2, 0) + b"\x09"),
        "oneof replaced": old + block(12, b"") + block(13, part),
        "oneof replaced by text": old + block(12, b"") + block(14, b"t"),
        "oneof replaced and back": old + block(12, block(1, b"c")) + block(13, part) + block(12, key(4, 0) + b"\x01"),
        "oneof in two pieces": old + block(12, block(1, b"c")) + block(12, key(4, 0) + b"\x01"),
        "extension": old + block(100, part),
        "extension without anything": old + block(100, b""),
        "unknown extension": old + block(150, b""),
        "packed the other way": old + key(16, 0) + b"\x01" + block(17, b"\x01\x02"),
    }
    for name, data in in_all.items():
        binary(name, "all3", data)
    for name, data in in_old.items():
        binary(name, "old2", data)


def nest(depth, wrap):
    data = b""
    for _ in range(depth):
        data = wrap(data)
    return block(17, data)


def json_by_hand():
    values = [
        "null", "true", '"true"', "0", "1.0", "1.5", "-1", '"1"', '"1.0"', '"01"', '"x"', '""', '" 1"', "1e3", "1e400",
        "2147483648", "-2147483649", "4294967296", "9223372036854775808", "18446744073709551616", '"NaN"', '"nan"',
        '"Infinity"', "[]", "{}", "[1]",
    ]
    kinds = ["aDouble", "aFloat", "anInt32", "aUint32", "aSint64", "aFixed64", "aBool", "aString", "someBytes", "color"]
    for kind in kinds:
        for value in values:
            as_json("all3", f'{{"{kind}":{value}}}')
    shaped = {
        "ints": ["[]", "[1,2]", "[null]", "null", "1", "{}", '["1"]', "[[1]]"],
        "inner": ["{}", "null", "[]", '"x"', '{"child":{"child":{}}}', '{"nope":1}', '{"all":{"anInt32":"x"}}'],
        "inners": ["[{}]", "[null]", "{}", '[{"name":1}]', '[{"nope":1}]'],
        "byString": ['{"a":1}', '{"a":null}', '{"a":"x"}', "[]", '{"a":1,"a":2}'],
        "byInt": ['{"-1":{}}', '{"x":{}}', '{"1.0":{}}', '{"99999999999":{}}', '{"1":{"nope":1}}', '{"":{}}'],
        "byBool": ['{"true":"a","false":"b"}', '{"True":"a"}', '{"1":"a"}'],
        "byFixed": ['{"18446744073709551615":"RED"}', '{"-1":"RED"}', '{"1":"NOPE"}', '{"1":7}'],
        "colors": ['["RED","CRIMSON",-5]', '["NOPE"]', '["red"]', '["1"]', "[99]", "[1.0]", "[1.5]", "[null]", "[4294967296]"],
        "someBytes": ['"AA=="', '"AA"', '"AA="', '"_-8="', '"+/8="', '"_+8="', '"A"', '"AAA=AAA="', '"AAAA\\n"', '"!"'],
        "at": [
            '"2026-01-31T12:30:00Z"', '"2026-01-31T12:30:00.5+02:00"', '"2026-01-31t12:30:00z"', '"2026-02-30T00:00:00Z"',
            '"2026-01-31"', '"0000-01-01T00:00:00Z"', '"9999-12-31T23:59:59.999999999Z"', '"2026-01-31T12:30:60Z"', "5", "null",
            '"2026-01-31T24:00:00Z"', '"2026-01-31T12:30:00.1234567891Z"', '"2026-01-31T12:30:00"', "{}", '""',
        ],
        "lasting": ['"1s"', '"-1.5s"', '"1"', '"1.0000000001s"', '"315576000001s"', '"s"', "1", '"1.5.5s"', '"+1s"', '" 1s"'],
        "mask": ['"a.bC,d"', '""', '"a_b"', '"A"', "[]", '"a,,b"'],
        "object": ["{}", '{"a":[1,{"b":null}]}', "[]", "null", '"x"'],
        "value": ["null", "1", '"x"', "[]", "{}", "1e400", "true"],
        "list": ["[]", "[null,1]", "{}", '"x"'],
        "empty": ["{}", '{"a":1}', "[]", '"x"'],
        "any": [
            "{}", '{"@type":"type.googleapis.com/fixtures.Inner","name":"x"}', '{"@type":"type.googleapis.com/nope"}',
            '{"name":"x"}', '{"@type":"fixtures.Inner"}', '{"name":"x","@type":"a/fixtures.Inner"}',
            '{"@type":"a/fixtures.Inner","name":1}', '{"@type":"a/fixtures.Inner","nope":1}',
            '{"@type":"a/google.protobuf.Timestamp","value":"2026-01-31T12:30:00Z"}',
            '{"@type":"a/google.protobuf.Timestamp","value":"x"}', '{"@type":"a/google.protobuf.Timestamp"}', '{"@type":1}', "[]",
            '{"@type":"a/google.protobuf.Int32Value","value":5}', '{"@type":"a/google.protobuf.Struct","value":{"a":1}}',
            '{"@type":"a/fixtures.All","any":{"@type":"a/fixtures.Inner"}}',
        ],
        "maybeInt64": ["5", '"5"', "null", '"x"', '{"value":5}'],
        "maybeString": ['"x"', "5", "null"],
        "nothing": ["null", '"NULL_VALUE"', "0", "1", '"x"', '""'],
    }
    for name, values in shaped.items():
        for value in values:
            as_json("all3", f'{{"{name}":{value}}}')
    texts = [
        "", " ", "null", "[]", "1", '"x"', "{", "{}}", "{} ", '{"anInt32":1,}', "{'anInt32':1}", '{"anInt32":01}', "{anInt32:1}",
        '{"an_int32":1}', '{"an_int32":1,"anInt32":1}', '{"anInt32":1,"anInt32":1}', '{"aninT32":1}', '{"nope":1}',
        '{"nope":{"anInt32":"x"}}', '{"text":"a","number":1}', '{"text":"a","number":null}', '{"otherName":1}', '{"renamed":1}',
        '{"aString":"\\ud800"}', '{"aString":"\\ud83d\\ude00"}', '{"aString":"\\x"}', '{"aString":"a\nb"}', '{"gone":1}',
        '{"aDouble":NaN}', '{"aDouble":.5}', '{"aDouble":1.}', '{"aDouble":+1}', '\ufeff{}', '{"anInt32":1}//', '{"nope":1e400}',
        '{"nope":1,"nope":1}', '{"[fixtures.extra]":{}}',
    ]
    for text in texts:
        as_json("all3", text)
    olds = [
        "{}", '{"id":1,"name":"n"}', '{"id":1}', '{"id":1,"name":null}', '{"id":1,"name":"n","part":{}}', '{"id":1,"name":"n","box":{}}',
        '{"id":1,"name":"n","part":{"code":"c","size":"SMALL"}}', '{"id":1,"name":"n","part":{"code":"c","size":9}}',
        '{"id":1,"name":"n","box":{"width":1,"lid":{}}}', '{"id":1,"name":"n","item":[{"sku":1}]}', '{"id":1,"name":"n","size":9}',
        '{"id":1,"name":"n","size":"NOPE"}', '{"id":1,"name":"n","size":1}', '{"id":1,"name":"n","partsByName":{"k":{}}}',
        '{"id":1,"name":"n","[fixtures.extra]":{}}', '{"id":1,"name":"n","[fixtures.extra]":{"code":"c","size":1}}',
        '{"id":1,"name":"n","[fixtures.extraNumbers]":[1]}', '{"id":1,"name":"n","[fixtures.extra_numbers]":[1]}',
        '{"id":1,"name":"n","extra":{}}', '{"id":1,"name":"n","one":{"code":"c","size":1},"text":"t"}',
    ]
    for text in olds:
        as_json("old2", text)


def from_messages():
    for schema, make, count in (("all3", random_all, 34), ("old2", random_old, 18)):
        for index in range(count):
            message = make()
            data = message.SerializeToString(deterministic=True)
            binary(f"message/{schema}/{index}", schema, data)
            text = json_format.MessageToJson(message, indent=None, sort_keys=True, descriptor_pool=POOL)
            if len(text) < 1000:
                as_json(schema, text, f"message/{schema}/{index}")
            if index < 2:
                named = json_format.MessageToJson(message, preserving_proto_field_name=True, indent=1, sort_keys=True, descriptor_pool=POOL)
                as_json(schema, named, f"names/{schema}/{index}")
            if len(data) > 120:
                continue
            cut = RANDOM.randrange(len(data) + 1)
            binary(f"cut/{schema}/{index}", schema, data[:cut])
            for turn in range(2):
                changed = bytearray(data)
                if changed:
                    changed[RANDOM.randrange(len(changed))] ^= 1 << RANDOM.randrange(8)
                binary(f"flipped/{schema}/{index}/{turn}", schema, bytes(changed))
            if len(text) > 300:
                continue
            cut = RANDOM.randrange(len(text))
            as_json(schema, text[:cut], f"cut/{schema}/{index}")


def main():
    binary_by_hand()
    json_by_hand()
    from_messages()
    assert len({tuple(case[2:5]) if case[4] else tuple(case[2:]) for case in CASES}) == len(CASES), "names are unique"
    path = os.path.join(HERE, "cases.json")
    with open(path, "w", encoding="utf-8") as file:
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in CASES)
        file.write(f"[\n{lines}\n]\n")
    print(len(CASES), "cases,", os.path.getsize(path), "bytes")


if __name__ == "__main__":
    main()
