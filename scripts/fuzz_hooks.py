"""What scripts/fuzz-api changes in requests before they are sent. Owns how long a request may wait, and how often a request
meets something that exists; knows nothing of the fuzzed answers, which are checked by schemathesis alone.

Whether a request is changed follows from what was drawn, so that nothing random is added to what a seed fixes."""

import os
import sys
import zlib

import requests
import schemathesis

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fuzz_gateway

# The longest wait that the server takes. What is above is refused at once and therefore sent as drawn.
MAX_WAIT = 60
# Every second text becomes one of these, or claims would find next to nothing.
MEETING_POINTS = {"worker_id": "worker", "queue": "default"}
# Every second event number becomes one up to this, or next to none would exist.
EVENTS = 50
# What workers say about an event that they hold.
REPORTS = tuple(f"/events/{{id}}/{report}" for report in ("start", "heartbeat", "complete", "fail"))


def chosen(drawn, part=2):
    """Whether this is one of every `part`."""
    return zlib.crc32(repr(drawn).encode("utf-8", "replace")) % part == 0


def bound_wait(fields):
    """Long polls wait for a second at most: minutes of silence find nothing."""
    wait = fields.get("wait")
    if str(wait).isdigit() and 1 < int(wait) <= MAX_WAIT:
        fields["wait"] = 1


def let_meet(fields):
    for name, meeting_point in MEETING_POINTS.items():
        drawn = fields.get(name)
        if isinstance(drawn, str) and drawn and chosen(drawn):
            fields[name] = meeting_point
    if isinstance(fields.get("tags"), list) and fields["tags"] and chosen(fields["tags"]):
        fields["tags"] = ["tag"]


def let_exist(path):
    event = path.get("id")
    if isinstance(event, int) and not isinstance(event, bool) and event > EVENTS and chosen(event):
        path["id"] = event % EVENTS + 1


def let_hold(case):
    """Every second report is about an event that its worker has just taken: hardly any would be otherwise."""
    path, body = case.path_parameters, case.body
    if not isinstance(path, dict) or not isinstance(body, dict) or not isinstance(path.get("id"), int):
        return
    worker = body.get("worker_id")
    if not isinstance(worker, str) or not worker or not chosen(body):
        return
    address = case.operation.base_url.rstrip("/")
    headers = {"Authorization": os.environ["FUZZ_AUTHORIZATION"]} if os.environ.get("FUZZ_AUTHORIZATION") else {}
    event = {"title": "held", "tags": ["held"], "max_retries": 0 if chosen(worker) else 3}
    requests.post(f"{address}/events", json=event, headers=headers, timeout=30)
    claim = {"worker_id": worker, "tags": ["held"], "max": 1}
    try:
        taken = requests.post(f"{address}/events/claim", json=claim, headers=headers, timeout=30)
    except UnicodeError:
        return  # half a surrogate pair: sent as drawn
    # A queue that was paused or drained, or a name that is refused: the report is sent as drawn.
    for event in taken.json().get("events", []):
        path["id"] = event["id"]
        if "lease" in body:
            body["lease"] = event["lease"]


@schemathesis.hook
def before_call(context, case, kwargs):
    for fields in (case.query, case.body):
        if isinstance(fields, dict):
            bound_wait(fields)
            let_meet(fields)
    if isinstance(case.path_parameters, dict):
        let_exist(case.path_parameters)
    if case.operation.path in REPORTS:
        let_hold(case)
    fuzz_gateway.before_call(case)
