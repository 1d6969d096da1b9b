"""What scripts/fuzz-api changes in requests before they are sent. Owns how long a request may wait and how often drawn
names meet; knows nothing of answers, which are checked by schemathesis alone."""

import zlib

import schemathesis

# The longest wait that the server takes. What is above is refused at once and therefore sent as drawn.
MAX_WAIT = 60
# Every second text becomes one of these, or no worker would ever report on what it took.
MEETING_POINTS = {"worker_id": "worker", "queue": "default"}
# Every second event number becomes one up to this, or next to none would exist.
EVENTS = 50


def bound_wait(fields):
    """Long polls wait for a second at most: minutes of silence find nothing."""
    wait = fields.get("wait")
    if str(wait).isdigit() and 1 < int(wait) <= MAX_WAIT:
        fields["wait"] = 1


def let_meet(fields):
    """By the drawn text itself, so that a seed still says what is sent."""
    for name, meeting_point in MEETING_POINTS.items():
        drawn = fields.get(name)
        if isinstance(drawn, str) and drawn and zlib.crc32(drawn.encode("utf-8", "replace")) % 2:
            fields[name] = meeting_point
    tags = fields.get("tags")
    if isinstance(tags, list) and tags and zlib.crc32(repr(tags).encode()) % 2:
        fields["tags"] = ["tag"]
    # A report without the number of its lease is held to its worker alone.
    lease = fields.get("lease")
    if isinstance(lease, int) and "worker_id" in fields and lease % 2:
        del fields["lease"]


def let_exist(path):
    event = path.get("id")
    if isinstance(event, int) and not isinstance(event, bool) and event > EVENTS and event % 2:
        path["id"] = event % EVENTS + 1


@schemathesis.hook
def before_call(context, case, kwargs):
    for fields in (case.query, case.body):
        if isinstance(fields, dict):
            bound_wait(fields)
            let_meet(fields)
    if isinstance(case.path_parameters, dict):
        let_exist(case.path_parameters)
